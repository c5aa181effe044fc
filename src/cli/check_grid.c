/* check_grid.c: the tables behind `clattn check`. */
#include "check_grid.h"

#include "clattn.h"

enum {
    F32 = CLATTN_DTYPE_F32,
    F16 = CLATTN_DTYPE_F16,
    BF16 = CLATTN_DTYPE_BF16,
    I8 = CLATTN_DTYPE_I8,
    E4M3 = CLATTN_DTYPE_F8_E4M3,
    E5M2 = CLATTN_DTYPE_F8_E5M2,
    Q8_0 = CLATTN_DTYPE_Q8_0,
    Q4_0 = CLATTN_DTYPE_Q4_0,
    Q4_1 = CLATTN_DTYPE_Q4_1,
    Q5_0 = CLATTN_DTYPE_Q5_0,
    Q5_1 = CLATTN_DTYPE_Q5_1,
    IQ4_NL = CLATTN_DTYPE_IQ4_NL,
    PREFILL = CLATTN_PHASE_PREFILL,
    DECODE = CLATTN_PHASE_DECODE
};

/* ---- Groups -------------------------------------------------------------------------------------
 */

/* clang-format off */
#define EACH(q, k, v, o) {q, k, v, o}
#define ALL(type) EACH(type, type, type, type)
#define CACHE(k, v) EACH(F32, k, v, F32)
#define LEAN(types, qk, v, quick) {types, qk, v, CHECK_LEAN, 0, 0, PREFILL, 0, quick}
#define FULL(types, qk, v, bias, quick) {types, qk, v, CHECK_FULL, bias, 0, PREFILL, 0, quick}
#define DIMS(types, qk, v) {types, qk, v, CHECK_DIMS, 0, 0, PREFILL, 0, 0}
#define MODS(types, qk, v, bias, mod, quick) {types, qk, v, CHECK_MODS, bias, mod, PREFILL, 0, quick}
#define DECODE_LEAN(types, qk, v, quick) {types, qk, v, CHECK_LEAN, 0, 0, DECODE, 0, quick}
#define DECODE_FULL(types, qk, v, bias, quick) {types, qk, v, CHECK_FULL, bias, 0, DECODE, 0, quick}
#define SEQUENCES(types, qk, v, phase, quick) {types, qk, v, CHECK_SEQUENCES, 0, 0, phase, 0, quick}
#define PAGES(types, qk, v, phase, page, quick) {types, qk, v, CHECK_PAGES, 0, 0, phase, page, quick}
/* clang-format on */

/* Head dims of one class (up to 32, 64, 96, 128, ...) share a program. */
const check_group check_groups[] = {
    LEAN(ALL(F32), 64, 64, QUICK),
    FULL(ALL(F16), 24, 24, F32, QUICK),
    LEAN(ALL(BF16), 20, 20, QUICK_MEANT),
    MODS(ALL(F32), 20, 20, F32, 1, QUICK_MEANT),
    FULL(ALL(F16), 40, 40, F32, 0),
    LEAN(ALL(BF16), 96, 96, 0),
    LEAN(ALL(F32), 1, 1, 0),
    LEAN(ALL(F32), 8, 8, 0),
    LEAN(ALL(F32), 59, 59, 0),
    LEAN(ALL(F32), 80, 80, 0),
    LEAN(ALL(F32), 96, 96, 0),
    LEAN(ALL(F32), 111, 111, 0),
    LEAN(ALL(F32), 128, 128, 0),
    LEAN(ALL(F32), 192, 192, 0),
    LEAN(ALL(F32), 256, 256, 0),
    LEAN(ALL(F16), 8, 8, 0),
    LEAN(ALL(F16), 59, 59, 0),
    LEAN(ALL(F16), 64, 64, 0),
    LEAN(ALL(F16), 80, 80, 0),
    LEAN(ALL(F16), 128, 128, 0),
    LEAN(ALL(F16), 256, 256, 0),
    LEAN(ALL(BF16), 40, 40, 0),
    LEAN(ALL(BF16), 64, 64, 0),
    LEAN(ALL(BF16), 111, 111, 0),
    LEAN(ALL(BF16), 128, 128, 0),
    LEAN(ALL(BF16), 192, 192, 0),
    FULL(ALL(F32), 64, 64, F32, 0),
    FULL(ALL(F32), 111, 111, F16, 0),
    FULL(ALL(F32), 256, 256, F32, 0),
    FULL(ALL(F16), 64, 64, F16, 0),
    FULL(ALL(F16), 128, 128, F16, 0),
    FULL(ALL(F16), 96, 96, F32, 0),
    FULL(ALL(F16), 192, 128, F16, 0),
    FULL(ALL(F16), 256, 256, F32, 0),
    FULL(ALL(BF16), 64, 64, BF16, 0),
    FULL(ALL(BF16), 128, 128, F32, 0),
    DIMS(ALL(F16), 16, 16),
    DIMS(ALL(BF16), 32, 32),
    DIMS(ALL(F16), 48, 48),
    DIMS(ALL(BF16), 72, 72),
    DIMS(ALL(F16), 88, 88),
    DIMS(ALL(F16), 96, 96),
    DIMS(ALL(F16), 104, 104),
    DIMS(ALL(BF16), 112, 112),
    DIMS(ALL(F16), 120, 120),
    DIMS(ALL(BF16), 136, 136),
    DIMS(ALL(F16), 144, 144),
    DIMS(ALL(BF16), 160, 160),
    DIMS(ALL(F16), 176, 176),
    DIMS(ALL(F16), 192, 192),
    DIMS(ALL(F16), 200, 200),
    DIMS(ALL(BF16), 224, 224),
    DIMS(ALL(F16), 240, 240),
    DIMS(ALL(BF16), 255, 255),
    DIMS(ALL(BF16), 192, 128),
    DIMS(ALL(F16), 64, 128),
    DIMS(ALL(F16), 128, 64),
    DIMS(ALL(BF16), 256, 256),
    DIMS(ALL(F32), 160, 160),
    LEAN(ALL(F32), 192, 128, 0),
    LEAN(ALL(F16), 192, 128, 0),
    LEAN(ALL(F32), 64, 160, 0),
    LEAN(ALL(F32), 512, 512, 0),
    LEAN(ALL(F16), 576, 512, 0),
    FULL(ALL(F32), 576, 512, F32, 0),
    LEAN(EACH(F32, F16, BF16, F32), 64, 64, 0),
    FULL(EACH(F16, BF16, F32, BF16), 80, 80, BF16, 0),
    LEAN(EACH(BF16, F32, F16, F16), 128, 128, 0),
    LEAN(EACH(F16, F16, F16, F32), 64, 64, 0),
    MODS(ALL(F32), 64, 64, F32, 0, 0),
    MODS(ALL(F16), 64, 64, F16, 1, 0),
    MODS(ALL(BF16), 40, 40, F32, 0, 0),
    MODS(ALL(F32), 192, 128, F32, 1, 0),
    DECODE_LEAN(ALL(F32), 64, 64, 0),
    DECODE_LEAN(ALL(F16), 128, 128, 0),
    DECODE_LEAN(ALL(BF16), 40, 40, 0),
    DECODE_LEAN(ALL(F16), 256, 256, 0),
    DECODE_LEAN(ALL(BF16), 192, 128, 0),
    DECODE_LEAN(ALL(F16), 576, 512, 0),
    DECODE_FULL(ALL(F16), 24, 24, F32, 0),
    DECODE_FULL(ALL(BF16), 128, 128, BF16, 0),
    DECODE_FULL(ALL(F32), 64, 64, F32, 0),
    SEQUENCES(ALL(F32), 64, 64, PREFILL, 0),
    SEQUENCES(ALL(F16), 40, 24, PREFILL, 0),
    SEQUENCES(ALL(F16), 20, 20, DECODE, QUICK_MEANT),
    SEQUENCES(ALL(F32), 64, 64, DECODE, 0),
    PAGES(ALL(F32), 20, 20, PREFILL, 16, 0),
    PAGES(ALL(F16), 64, 64, PREFILL, 1, 0),
    PAGES(ALL(BF16), 64, 64, PREFILL, 7, 0),
    PAGES(ALL(BF16), 40, 24, PREFILL, 5, 0),
    PAGES(ALL(F16), 48, 64, PREFILL, 16, 0),
    PAGES(ALL(BF16), 96, 80, PREFILL, 64, 0),
    PAGES(ALL(F16), 64, 64, DECODE, 1, 0),
    PAGES(ALL(F16), 80, 80, DECODE, 16, QUICK_MEANT),
    PAGES(ALL(F32), 40, 40, DECODE, 7, 0),
    PAGES(ALL(BF16), 64, 64, DECODE, 8, 0),
    PAGES(EACH(F16, Q8_0, F16, F16), 32, 32, DECODE, 16, QUICK_MEANT),
    SEQUENCES(CACHE(I8, I8), 64, 64, PREFILL, 0),
    SEQUENCES(CACHE(E4M3, E5M2), 64, 64, PREFILL, 0),
    SEQUENCES(CACHE(Q8_0, Q4_0), 64, 64, PREFILL, 0),
    SEQUENCES(CACHE(Q4_1, Q5_0), 64, 64, PREFILL, 0),
    SEQUENCES(CACHE(Q5_1, IQ4_NL), 64, 64, PREFILL, 0),
    SEQUENCES(CACHE(IQ4_NL, F16), 128, 96, PREFILL, 0),
    SEQUENCES(CACHE(I8, I8), 64, 64, DECODE, 0),
    SEQUENCES(CACHE(E5M2, E4M3), 64, 64, DECODE, 0),
    SEQUENCES(CACHE(Q4_0, Q8_0), 64, 64, DECODE, 0),
    SEQUENCES(CACHE(Q5_0, Q4_1), 64, 64, DECODE, 0),
    SEQUENCES(CACHE(IQ4_NL, Q5_1), 64, 64, DECODE, 0),
    SEQUENCES(EACH(F16, I8, I8, F16), 64, 64, DECODE, 0),
    SEQUENCES(EACH(F16, E5M2, E5M2, F16), 80, 48, DECODE, 0),
    PAGES(CACHE(I8, E4M3), 40, 40, PREFILL, 5, 0),
    PAGES(CACHE(I8, E4M3), 40, 40, DECODE, 5, 0),
    PAGES(EACH(F16, E4M3, E4M3, F16), 128, 128, DECODE, 16, 0),
    PAGES(EACH(F16, I8, I8, F16), 96, 96, DECODE, 7, 0),
};

const int num_check_groups = (int)(sizeof check_groups / sizeof check_groups[0]);

/* ---- Variants ----------------------------------------------------------------------------------- */

static const check_variant lean_variants[] = {
    {"plain", "", 0, 0, 0},
    {"causal", "--causal", 0, 0, 0},
    {"causal top-left", "--causal=top-left --lse", 0, 0, 0},
    {"window", "--window=7,3 --lse", 0, 0, 0},
    {"left window, causal", "--causal --window=13,-1", 0, 0, 0},
    {"right window", "--window=-1,0 --lse", 0, 0, 0},
    {"offset", "--causal --offset=5 --lse", 0, 0, 0},
    {"negative offset", "--causal --offset=-9 --lse", 0, 0, 0},
    {"window beyond all keys", "--window=2,2 --offset=100000 --lse", 0, 0, 0},
    {"negative scale", "--scale=-0.37 --lse", 0, 0, 0},
    {"large scores", "--scale=9 --lse", 0, 0, 0},
    {"bshd", "--layout=bshd --causal --lse", 0, 0, 0},
    {"strided", "--lse", STRIDED, 0, 0},
    {"strided bshd, window", "--layout=bshd --window=20,20", STRIDED, 0, 0},
    {"causal top-left, left window", "--causal=top-left --window=9,-1 --lse", 0, 0, 0},
    {"NaN in the last key", "--causal --lse", NAN_LAST_KEY, 0, 0},
    {"infinite keys", "--lse", INF_KEYS, 0, 0},
    {"ties", "--lse", TIES, 0, 0},
    {"kv lens", "--lse", KV_LENS, 0, 0},
    {"kv lens, causal", "--causal --lse", KV_LENS, 0, 0},
    {"q lens", "--lse", Q_LENS, 0, 0},
    {"lens, causal, bshd", "--causal --lse --layout=bshd", Q_LENS | KV_LENS, 0, 0},
    {"lens, window top-left, strided", "--causal=top-left --window=17,4", Q_LENS | KV_LENS | STRIDED, 0, 0},
    {"offsets, causal", "--causal --lse", OFFSETS, 0, 0},
    {"offsets, lens, window", "--window=11,2 --lse", OFFSETS | Q_LENS | KV_LENS, 0, 0},
    {"sinks", "--lse", SINKS, 0, 0},
    {"sinks, empty rows", "--causal --offset=-20 --lse", SINKS | SINKS_NONE, 0, 0},
    {"sinks, lens, strided", "--causal --lse", SINKS | Q_LENS | KV_LENS | STRIDED, 0, 0},
    {"base 2", "--lse --lse-base=2 --window=30,30", 0, 0, 0},
    {"base 2, sinks, empty rows", "--lse --lse-base=2 --causal=top-left", SINKS | KV_LENS, 0, 0},
    {"keys x10", "--lse", KEYS_TIMES_10, 0, 0},
    {"keys x200, causal", "--causal --lse", KEYS_TIMES_200, 0, 0},
    {"keys x10, NaN in the last key", "--causal --lse", KEYS_TIMES_10 | NAN_LAST_KEY, 0, 0},
};

/* Of head dims that lie within a class, or whose class no other group has. */
static const check_variant dim_variants[] = {
    {"plain", "--lse", 0, 0, 0},
    {"causal, bshd", "--causal --layout=bshd", 0, 0, 0},
    {"keys x200, window", "--window=100,3 --lse", KEYS_TIMES_200, 0, 0},
    {"keys x10, lens, sinks, strided", "--causal --lse", KEYS_TIMES_10 | Q_LENS | KV_LENS | SINKS | STRIDED,
     0, 0},
};

static const check_variant full_variants[] = {
    {"softcap", "--softcap=2 --lse", 0, 0, 0},
    {"softcap, causal, window", "--softcap=0.5 --causal --window=31,-1 --scale=1", 0, 0, 0},
    {"softcap, causal top-left", "--causal=top-left --softcap=1 --lse", 0, 0, 0},
    {"softcap, keys x10", "--softcap=30 --lse", KEYS_TIMES_10, 0, 0},
    {"softcap far above, keys x10", "--softcap=10000 --lse", KEYS_TIMES_10, 0, 0},
    {"softcap, keys x200, causal", "--causal --softcap=50 --scale=-0.2 --lse", KEYS_TIMES_200, 0, 0},
    {"alibi, keys x200, causal", "--causal --lse", ALIBI | KEYS_TIMES_200, 0, 0},
    {"bias, keys x10", "--lse", BIAS | KEYS_TIMES_10, 15, 0},
    {"bias", "--lse", BIAS, 15, 0},
    {"bias by key", "--lse --causal", BIAS, 8, 0},
    {"bias by row", "--lse", BIAS, 4, 0},
    {"bias by head", "--window=10,10", BIAS, 2, 0},
    {"bias by batch and key", "--lse", BIAS, 9, 0},
    {"bias, softcap, scale", "--softcap=3 --scale=-0.5 --lse", BIAS, 14, 0},
    {"bias of -inf", "--lse", BIAS | BIAS_FORBIDS, 12, 0},
    {"bias of -inf by key", "--lse", BIAS | BIAS_FORBIDS, 8, 0},
    {"bias of -inf, causal", "--causal=top-left", BIAS | BIAS_FORBIDS, 15, 0},
    {"bias at the lowest", "--lse", BIAS | BIAS_LOWEST, 12, 0},
    {"bias, strided", "--lse --layout=bshd", BIAS | STRIDED, 15, 0},
    {"bias, infinite keys", "--lse", BIAS | INF_KEYS, 8, 0},
    {"bias, head scale", "--lse --lse-base=2", BIAS | HEAD_SCALE, 14, 0},
    {"bias of -inf, head scale", "--lse", BIAS | BIAS_FORBIDS | HEAD_SCALE, 12, 0},
    {"bias, lens", "--lse", BIAS | Q_LENS | KV_LENS, 15, 0},
    {"mask", "--lse", MASK, 0, 15},
    {"mask by key", "--lse", MASK | MASK_HIDES, 0, 8},
    {"mask by row", "--causal", MASK, 0, 4},
    {"mask by head", "--lse", MASK, 0, 2},
    {"mask by batch and key", "--lse --causal", MASK | MASK_HIDES, 0, 9},
    {"mask, empty row, hidden keys", "--lse", MASK | MASK_EMPTY_ROW | MASK_HIDES, 0, 12},
    {"mask in blocks", "--lse", MASK | MASK_BLOCKS, 0, 12},
    {"mask in blocks, window", "--window=50,20 --lse", MASK | MASK_BLOCKS | MASK_HIDES, 0, 14},
    {"mask, strided", "--layout=bshd --lse", MASK | MASK_HIDES | STRIDED, 0, 15},
    {"alibi", "--lse", ALIBI, 0, 0},
    {"standard alibi, causal", "--causal --alibi-max-bias=8 --lse", 0, 0, 0},
    {"alibi by batch, offsets", "--window=40,5 --lse", ALIBI | ALIBI_BATCH | OFFSETS, 0, 0},
    {"alibi far away", "--offset=3000 --lse", ALIBI, 0, 0},
    {"alibi, keys behind the rows", "--offset=0 --lse", ALIBI, 0, 0},
    {"alibi, lens, softcap", "--softcap=4 --lse", ALIBI | Q_LENS | KV_LENS, 0, 0},
    {"tiles of 16 x 16", "--tiles=16,16 --lse", TILES, 0, 0},
    {"tiles of 64 x 32, causal", "--tiles=64,32 --causal", TILES | TILES_WILD, 0, 0},
    {"tiles of 7 x 5", "--tiles=7,5 --lse", TILES | TILES_WILD, 0, 0},
    {"tiles of 128 x 128, lens", "--tiles=128,128 --lse", TILES | TILES_WILD | Q_LENS | KV_LENS, 0, 0},
    {"one tile, strided", "--tiles=1000,1000 --lse", TILES | STRIDED, 0, 0},
    {"softcap, sinks, empty rows", "--softcap=2 --lse --window=2,2 --offset=100000", SINKS, 0, 0},
    {"mask, sinks", "--lse", MASK | MASK_EMPTY_ROW | SINKS | SINKS_NONE, 0, 12},
    {"mask, bias, softcap, alibi, sinks, lens", "--softcap=3 --lse",
     MASK | BIAS | BIAS_FORBIDS | ALIBI | SINKS | Q_LENS | KV_LENS, 12, 13},
    {"everything", "--softcap=3 --causal --window=60,-1 --lse --lse-base=2 --tiles=32,16",
     MASK | MASK_HIDES | BIAS | BIAS_FORBIDS | HEAD_SCALE | ALIBI | ALIBI_BATCH | SINKS | Q_LENS | KV_LENS |
         OFFSETS | TILES | TILES_WILD | STRIDED,
     15, 9},
};

/* With check_group.mod. */
static const check_variant mod_variants[] = {
    {"mods", "--lse", 0, 0, 0},
    {"mods, causal, lens", "--causal --lse", Q_LENS | KV_LENS, 0, 0},
    {"mods, offsets, sinks, strided", "--window=70,9 --lse --lse-base=2", OFFSETS | SINKS | STRIDED, 0, 0},
    {"mods, bias, softcap", "--softcap=3 --lse", BIAS | BIAS_FORBIDS, 12, 0},
    {"mods, mask, tiles", "--lse --tiles=32,32", MASK | MASK_HIDES | TILES | TILES_WILD, 0, 12},
    {"mods, everything", "--softcap=3 --causal --window=60,-1 --lse --tiles=16,32",
     MASK | BIAS | HEAD_SCALE | ALIBI | SINKS | Q_LENS | KV_LENS | OFFSETS | TILES, 14, 9},
};

/* Packed, appended to, cut into splits. */
static const check_variant sequence_variants[] = {
    {"packed", "--lse", PACKED_Q | PACKED_K, 0, 0},
    {"packed, causal", "--causal --lse", PACKED_Q | PACKED_K, 0, 0},
    {"packed, window, strided", "--window=9,3 --lse", PACKED_Q | PACKED_K | STRIDED, 0, 0},
    {"packed, keys x200, causal", "--causal --lse", PACKED_Q | PACKED_K | KEYS_TIMES_200, 0, 0},
    {"packed q", "--causal --lse", PACKED_Q | KV_LENS | ONE_SCALE, 0, 0},
    {"packed k, bshd", "--lse --layout=bshd", PACKED_K | Q_LENS | SCALE_BY_HEAD, 0, 0},
    {"packed, lens, top-left", "--causal=top-left --lse", PACKED_Q | PACKED_K | Q_LENS | KV_LENS, 0, 0},
    {"append", "--causal --lse", APPEND | KV_LENS, 0, 0},
    {"append, bshd, strided, rope", "--lse --layout=bshd --rope=neox", APPEND | KV_LENS | STRIDED, 0, 0},
    {"append, q lens, rope tables", "--causal --rope=interleaved", APPEND | KV_LENS | Q_LENS | ROPE_TABLES, 0,
     0},
    {"append, packed, rope", "--causal --rope=neox --rotary-dim=8 --rope-base=500",
     APPEND | KV_LENS | PACKED_Q, 0, 0},
};

/* With decode kernels also these. */
static const check_variant split_variants[] = {
    {"1 split", "--splits=1 --lse", KV_LENS, 0, 0},
    {"3 splits, causal", "--splits=3 --causal --lse", KV_LENS | Q_LENS, 0, 0},
    {"256 splits, packed", "--splits=256 --lse", PACKED_Q | PACKED_K, 0, 0},
    {"7 splits, window, strided", "--splits=7 --window=40,1 --lse", KV_LENS | STRIDED, 0, 0},
    {"batch-invariant", "--batch-invariant --causal --lse", KV_LENS | PACKED_Q, 0, 0},
};

static const check_variant page_variants[] = {
    {"pages", "--lse", KV_LENS, 0, 0},
    {"pages, causal, strided", "--causal --lse", KV_LENS | STRIDED, 0, 0},
    {"pages, keys x10, causal", "--causal --lse", KV_LENS | KEYS_TIMES_10, 0, 0},
    {"pages, packed q", "--causal --lse", KV_LENS | PACKED_Q, 0, 0},
    {"pages, window, q lens", "--window=11,2 --lse", KV_LENS | Q_LENS, 0, 0},
    {"pages, append, rope", "--causal --lse --rope=neox", KV_LENS | APPEND, 0, 0},
    {"pages, append, packed", "--rope=neox --rotary-dim=10", KV_LENS | APPEND | PACKED_Q, 0, 0},
};

#define COUNT(array) ((int)(sizeof(array) / sizeof(array)[0]))

typedef struct variant_list {
    const check_variant *variant;
    int count;
} variant_list;

/* A group's variants are those of both lists. */
static void variants_of(const check_group *group, variant_list list[2])
{
    static const variant_list lists[] = {
        [CHECK_LEAN] = {lean_variants, COUNT(lean_variants)},
        [CHECK_FULL] = {full_variants, COUNT(full_variants)},
        [CHECK_DIMS] = {dim_variants, COUNT(dim_variants)},
        [CHECK_MODS] = {mod_variants, COUNT(mod_variants)},
        [CHECK_SEQUENCES] = {sequence_variants, COUNT(sequence_variants)},
        [CHECK_PAGES] = {page_variants, COUNT(page_variants)},
    };
    const int splits = group->variants == CHECK_SEQUENCES && group->phase == DECODE;
    list[0] = lists[group->variants];
    list[1].variant = split_variants;
    list[1].count = splits ? COUNT(split_variants) : 0;
}

int check_is_serving(const check_group *group) { return group->variants >= CHECK_SEQUENCES; }

enum { LENGTHS_QUICK = 2, LENGTHS_FULL = 6, LENGTHS_DIMS = 5, LENGTHS_DECODE = 4 }; /* for each variant */

static int cases_per_variant(const check_group *group, int quick)
{
    return quick                           ? LENGTHS_QUICK
           : group->phase == DECODE        ? LENGTHS_DECODE
           : group->variants == CHECK_DIMS ? LENGTHS_DIMS
                                           : LENGTHS_FULL;
}

int check_case_count(const check_group *group, int quick)
{
    variant_list list[2];
    variants_of(group, list);
    return (list[0].count + list[1].count) * cases_per_variant(group, quick);
}

const check_variant *check_variant_of(const check_group *group, int quick, int index)
{
    variant_list list[2];
    variants_of(group, list);
    const int number = index / cases_per_variant(group, quick);
    return number < list[0].count ? &list[0].variant[number] : &list[1].variant[number - list[0].count];
}

/* ---- Sizes -------------------------------------------------------------------------------------- */

typedef struct lengths {
    int q, kv;
} lengths;

/* One below, at and above the tile sizes that the paths use; more queries than keys; nothing at
 * all. */
static const lengths prefill_lengths[] = {
    {33, 65},   {64, 64},   {63, 129},  {130, 47},  {1, 77},    {1, 1},   {48, 49},   {47, 48},
    {5, 0},     {127, 128}, {65, 63},   {113, 203}, {128, 129}, {0, 5},   {129, 127}, {200, 100},
    {1, 500},   {64, 65},   {17, 300},  {96, 95},   {31, 32},   {2, 191}, {255, 256}, {1, 1000},
    {77, 1000}, {1000, 77}, {193, 191}, {192, 385}, {257, 80},
};

/* What decode kernels are for, and what lies around it. */
static const lengths decode_lengths[] = {
    {1, 77},   {3, 129}, {8, 500}, {64, 191}, {1, 1},  {5, 0},   {1, 1025},
    {17, 300}, {2, 64},  {8, 8},   {65, 63},  {1, 31}, {4, 257},
};

typedef struct heads {
    int batch, q, kv;
} heads;

static const heads all_heads[] = {{2, 4, 2}, {1, 1, 1}, {1, 3, 1}, {2, 2, 2}, {1, 4, 4}};
static const heads decode_heads[] = {{2, 8, 2}, {1, 1, 1}, {1, 3, 1}, {2, 2, 2}, {1, 16, 1}};

check_sizes check_sizes_of(const check_group *group, int quick, int index)
{
    const int per_variant = cases_per_variant(group, quick);
    const check_variant *v = check_variant_of(group, quick, index);
    const int decode = group->phase == DECODE;
    const lengths *all_lengths = decode ? decode_lengths : prefill_lengths;
    const int count = decode ? COUNT(decode_lengths) : COUNT(prefill_lengths);
    /* 7 and the number of lengths have no common divisor: neighbouring variants meet different
     * lengths. */
    const lengths *n =
        &all_lengths[(index / per_variant * 7 + index % per_variant * 4 + group->head_dim_qk) % count];
    const heads *h =
        decode ? &decode_heads[index % COUNT(decode_heads)] : &all_heads[index % COUNT(all_heads)];
    check_sizes s = {h->batch, h->q, h->kv, n->q, n->kv};
    const int several = (v->flags & (Q_LENS | KV_LENS | OFFSETS | PACKED_Q | PACKED_K)) !=
                        0; /* entries, to differ from each other */
    if (several)
        s.batch = 4;
    /* The reference takes about 4 ns for each product: keep it below some 20 ms. */
    if (s.batch * s.heads_q * s.q_len * s.kv_len * group->head_dim_qk > 4000000) {
        s.batch = several ? 3 : 1;
        s.heads_q = several ? 1 : 2;
        s.heads_kv = 1;
    }
    return s;
}
