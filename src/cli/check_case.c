/* check_case.c: the grid of `clattn check`. */
#include "check_case.h"

#include "cli.h"
#include "tensor_convert.h"

#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { F32 = CLATTN_DTYPE_F32, F16 = CLATTN_DTYPE_F16, BF16 = CLATTN_DTYPE_BF16 };

/* ---- Groups -------------------------------------------------------------------------------------
 */

#define ALL(type)              \
    {                          \
        type, type, type, type \
    }

/* Head dims of one class (up to 32, 64, 96, 128, ...) share a program. */
const check_group check_groups[] = {
    {ALL(F32), 64, 64, 0, 0, 1},
    {ALL(F16), 24, 24, 1, F32, 1},
    {ALL(BF16), 20, 20, 0, 0, 1},
    {ALL(F16), 40, 40, 1, F32, 0},
    {ALL(BF16), 96, 96, 0, 0, 0},
    {ALL(F32), 1, 1, 0, 0, 0},
    {ALL(F32), 8, 8, 0, 0, 0},
    {ALL(F32), 59, 59, 0, 0, 0},
    {ALL(F32), 80, 80, 0, 0, 0},
    {ALL(F32), 96, 96, 0, 0, 0},
    {ALL(F32), 111, 111, 0, 0, 0},
    {ALL(F32), 128, 128, 0, 0, 0},
    {ALL(F32), 192, 192, 0, 0, 0},
    {ALL(F32), 256, 256, 0, 0, 0},
    {ALL(F16), 8, 8, 0, 0, 0},
    {ALL(F16), 59, 59, 0, 0, 0},
    {ALL(F16), 64, 64, 0, 0, 0},
    {ALL(F16), 80, 80, 0, 0, 0},
    {ALL(F16), 128, 128, 0, 0, 0},
    {ALL(F16), 256, 256, 0, 0, 0},
    {ALL(BF16), 40, 40, 0, 0, 0},
    {ALL(BF16), 64, 64, 0, 0, 0},
    {ALL(BF16), 111, 111, 0, 0, 0},
    {ALL(BF16), 128, 128, 0, 0, 0},
    {ALL(BF16), 192, 192, 0, 0, 0},
    {ALL(F32), 64, 64, 1, F32, 0},
    {ALL(F32), 111, 111, 1, F16, 0},
    {ALL(F32), 256, 256, 1, F32, 0},
    {ALL(F16), 64, 64, 1, F16, 0},
    {ALL(F16), 128, 128, 1, F16, 0},
    {ALL(BF16), 64, 64, 1, BF16, 0},
    {ALL(BF16), 128, 128, 1, F32, 0},
    {ALL(F32), 192, 128, 0, 0, 0},
    {ALL(F16), 192, 128, 0, 0, 0},
    {ALL(F32), 64, 160, 0, 0, 0},
    {ALL(F32), 512, 512, 0, 0, 0},
    {ALL(F16), 576, 512, 0, 0, 0},
    {ALL(F32), 576, 512, 1, F32, 0},
    {{F32, F16, BF16, F32}, 64, 64, 0, 0, 0},
    {{F16, BF16, F32, BF16}, 80, 80, 1, BF16, 0},
    {{BF16, F32, F16, F16}, 128, 128, 0, 0, 0},
    {{F16, F16, F16, F32}, 64, 64, 0, 0, 0},
};

const int num_check_groups = (int)(sizeof check_groups / sizeof check_groups[0]);

/* ---- Variants -----------------------------------------------------------------------------------
 */

enum {
    STRIDED = 1,       /* gaps between rows, heads and batches; odd offsets */
    BIAS = 2,          /* of the shape that `bias_axes` names */
    BIAS_FORBIDS = 4,  /* a third of the bias is -inf, and so is one whole row */
    BIAS_LOWEST = 8,   /* one row is filled with the type's most negative number */
    NAN_UNSEEN = 16,   /* NaN in k and v where no row may look */
    NAN_LAST_KEY = 32, /* NaN in k at the last key: forbidden to all rows but those that see it */
    INF_KEYS = 64,     /* -inf in k, so that q.k is -inf for some keys */
    TIES = 128         /* all keys alike: every weight the same */
};

typedef struct variant {
    const char *name;
    const char *options; /* as on the command line */
    unsigned flags;
    unsigned bias_axes; /* bit 0: batch, 1: head, 2: row, 3: key; the others are repeated */
} variant;

static const variant lean_variants[] = {
    {"plain", "", 0, 0},
    {"causal", "--causal", 0, 0},
    {"causal top-left", "--causal=top-left --lse", 0, 0},
    {"window", "--window=7,3 --lse", 0, 0},
    {"left window, causal", "--causal --window=13,-1", 0, 0},
    {"right window", "--window=-1,0 --lse", 0, 0},
    {"offset", "--causal --offset=5 --lse", 0, 0},
    {"negative offset", "--causal --offset=-9 --lse", 0, 0},
    {"window beyond all keys", "--window=2,2 --offset=100000 --lse", 0, 0},
    {"negative scale", "--scale=-0.37 --lse", 0, 0},
    {"large scores", "--scale=9 --lse", 0, 0},
    {"bshd", "--layout=bshd --causal --lse", 0, 0},
    {"strided", "--lse", STRIDED, 0},
    {"strided bshd, window", "--layout=bshd --window=20,20", STRIDED, 0},
    {"NaN at unseen keys", "--causal=top-left --window=9,-1 --lse", NAN_UNSEEN, 0},
    {"NaN in the last key", "--causal --lse", NAN_LAST_KEY, 0},
    {"infinite keys", "--lse", INF_KEYS, 0},
    {"ties", "--lse", TIES, 0},
};

static const variant full_variants[] = {
    {"softcap", "--softcap=2 --lse", 0, 0},
    {"softcap, causal, window", "--softcap=0.5 --causal --window=31,-1 --scale=1", 0, 0},
    {"bias", "--lse", BIAS, 15},
    {"bias by key", "--lse --causal", BIAS, 8},
    {"bias by row", "--lse", BIAS, 4},
    {"bias by head", "--window=10,10", BIAS, 2},
    {"bias by batch and key", "--lse", BIAS, 9},
    {"bias, softcap, scale", "--softcap=3 --scale=-0.5 --lse", BIAS, 14},
    {"bias of -inf", "--lse", BIAS | BIAS_FORBIDS, 12},
    {"bias of -inf, causal", "--causal=top-left", BIAS | BIAS_FORBIDS, 15},
    {"bias at the lowest", "--lse", BIAS | BIAS_LOWEST, 12},
    {"bias, strided", "--lse --layout=bshd", BIAS | STRIDED, 15},
    {"softcap, NaN at unseen keys", "--causal=top-left --softcap=1 --lse", NAN_UNSEEN, 0},
    {"bias, infinite keys", "--lse", BIAS | INF_KEYS, 8},
};

typedef struct lengths {
    int q, kv;
} lengths;

/* One below, at and above the tile sizes that the paths use; more queries than keys; nothing at
 * all. */
static const lengths all_lengths[] = {
    {33, 65}, {64, 64},   {63, 129}, {130, 47},  {1, 77},    {1, 1},   {48, 49},   {47, 48},
    {5, 0},   {127, 128}, {65, 63},  {113, 203}, {128, 129}, {0, 5},   {129, 127}, {200, 100},
    {1, 500}, {64, 65},   {17, 300}, {96, 95},   {31, 32},   {2, 191}, {255, 256},
};

enum { NUM_LENGTHS = sizeof all_lengths / sizeof all_lengths[0] };
enum { LENGTHS_QUICK = 2, LENGTHS_FULL = 6 }; /* of them, for each variant */

typedef struct heads {
    int batch, q, kv;
} heads;

static const heads all_heads[] = {{2, 4, 2}, {1, 1, 1}, {1, 3, 1}, {2, 2, 2}, {1, 4, 4}};

static const variant *variants_of(const check_group *group, int *count)
{
    *count = group->full ? (int)(sizeof full_variants / sizeof full_variants[0])
                         : (int)(sizeof lean_variants / sizeof lean_variants[0]);
    return group->full ? full_variants : lean_variants;
}

int check_case_count(const check_group *group, int quick)
{
    int count;
    variants_of(group, &count);
    return count * (quick ? LENGTHS_QUICK : LENGTHS_FULL);
}

/* ---- Inputs -------------------------------------------------------------------------------------
 */

static void set_element(void *values, int32_t dtype, int64_t element, float value)
{
    tensor_store((unsigned char *)values + (size_t)element * dtype_size(dtype), dtype, value);
}

/* Sets component `c` (-1: all) of key `key` of every head. Follows the layout. */
static void set_key(const case_inputs *in, int bshd, void *values, int32_t dtype, int64_t dim, int64_t key,
                    int64_t c, float value)
{
    for (int64_t b = 0; b < in->batch; b++)
        for (int64_t h = 0; h < in->heads_kv; h++) {
            const int64_t row =
                bshd ? (b * in->kv_len + key) * in->heads_kv + h : (b * in->heads_kv + h) * in->kv_len + key;
            for (int64_t e = 0; e < dim; e++)
                if (c < 0 || c == e)
                    set_element(values, dtype, row * dim + e, value);
        }
}

/* NaN at every key that no row sees: beyond the valid, if they may not be read, no result changes.
 */
static void poison_unseen(check_case *check, const case_inputs *in)
{
    const reference_call call = case_reference(&check->c);
    for (int64_t key = 0; key < in->kv_len; key++) {
        int seen = 0;
        for (int64_t i = 0; i < in->q_len && !seen; i++) {
            int64_t begin, end;
            reference_keys_of_row(&call, 0, i, &begin, &end);
            seen = key >= begin && key < end;
        }
        if (seen)
            continue;
        set_key(in, check->c.options.layout_bshd, check->owned[1], in->dtype_k, in->head_dim_qk, key, -1,
                NAN);
        set_key(in, check->c.options.layout_bshd, check->owned[2], in->dtype_v, in->head_dim_v, key, -1, NAN);
    }
}

static void change_keys(check_case *check, const case_inputs *in, const variant *v)
{
    const int bshd = check->c.options.layout_bshd;
    if (in->kv_len == 0)
        return;
    if (v->flags & NAN_UNSEEN)
        poison_unseen(check, in);
    if (v->flags & NAN_LAST_KEY)
        set_key(in, bshd, check->owned[1], in->dtype_k, in->head_dim_qk, in->kv_len - 1, 0, NAN);
    if (v->flags & TIES)
        for (int64_t key = 0; key < in->kv_len; key++)
            set_key(in, bshd, check->owned[1], in->dtype_k, in->head_dim_qk, key, -1, 0.5f);
    if (v->flags & INF_KEYS) {
        /* With q[.,0] = 1 the product is -inf exactly for every third key, but never for key 0. */
        const int64_t rows = in->batch * in->heads_q * in->q_len;
        for (int64_t row = 0; row < rows; row++)
            set_element(check->owned[0], in->dtype_q, row * in->head_dim_qk, 1.0f);
        for (int64_t key = 1; key < in->kv_len; key += 3)
            set_key(in, bshd, check->owned[1], in->dtype_k, in->head_dim_qk, key, 0, -INFINITY);
    }
}

static float lowest(int32_t dtype)
{
    return dtype == F16 ? -65504.0f : dtype == BF16 ? -0x1.fep127f : -0x1.fffffep127f;
}

static void change_bias(check_case *check, const case_inputs *in, const variant *v, random_state *random)
{
    const int64_t rows = in->bias_dim[2], columns = in->bias_dim[3];
    const int64_t count = in->bias_dim[0] * in->bias_dim[1] * rows * columns;
    if (count == 0)
        return;
    if (v->flags & BIAS_FORBIDS)
        for (int64_t i = 0; i < count; i++)
            if (random_below(random, 3) == 0 || i / columns % rows == rows / 2)
                set_element(check->owned[3], in->dtype_bias, i, -INFINITY);
    if (v->flags & BIAS_LOWEST)
        for (int64_t i = 0; i < count; i++)
            if (i / columns % rows == rows / 2)
                set_element(check->owned[3], in->dtype_bias, i, lowest(in->dtype_bias));
}

/* ---- One case -----------------------------------------------------------------------------------
 */

/* Offsets leave guard zones in front; strides, if asked for, gaps between everything. The numbers
 * are multiples of four elements by default (rows that kernels may read in whole vectors) and odd
 * otherwise. */
static void choose_layout(call_options *o, const case_inputs *in, unsigned flags)
{
    const int64_t head_counts[TENSOR_COUNT] = {in->heads_q, in->heads_kv, in->heads_kv,
                                               0,           in->heads_q,  in->heads_q};
    const int64_t token_counts[TENSOR_COUNT] = {in->q_len, in->kv_len, in->kv_len, 0, in->q_len, in->q_len};
    const int64_t dims[TENSOR_COUNT] = {
        in->head_dim_qk, in->head_dim_qk, in->head_dim_v, 0, in->head_dim_v, 1};
    for (int t = 0; t < TENSOR_COUNT; t++) {
        if (t == TENSOR_BIAS || (t == TENSOR_LSE && !o->want_lse))
            continue;
        o->offset_bytes[t] = flags & STRIDED ? 36 : 64;
        if (!(flags & STRIDED))
            continue;
        const int64_t inner = dims[t] + 3 + t;
        const int64_t tokens = token_counts[t] > 0 ? token_counts[t] : 1;
        o->num_strides[t] = 3;
        o->strides[t][2] = o->layout_bshd ? inner * head_counts[t] + 1 : inner;
        o->strides[t][1] = o->layout_bshd ? inner : inner * tokens + 2;
        o->strides[t][0] =
            (o->layout_bshd ? o->strides[t][2] * tokens : o->strides[t][1] * head_counts[t]) + 5;
    }
}

static void choose_sizes(case_inputs *in, const check_group *group, int quick, int index)
{
    int num_variants;
    variants_of(group, &num_variants);
    const int per_variant = quick ? LENGTHS_QUICK : LENGTHS_FULL;
    /* 7 and the number of lengths have no common divisor: neighbouring variants meet different
     * lengths. */
    const lengths *n =
        &all_lengths[(index / per_variant * 7 + index % per_variant * 4 + group->head_dim_qk) % NUM_LENGTHS];
    const heads *h = &all_heads[index % (int)(sizeof all_heads / sizeof all_heads[0])];
    in->q_len = n->q;
    in->kv_len = n->kv;
    in->batch = h->batch;
    in->heads_q = h->q;
    in->heads_kv = h->kv;
    in->head_dim_qk = group->head_dim_qk;
    in->head_dim_v = group->head_dim_v;
    /* The reference takes about 4 ns for each product: keep it below some 20 ms. */
    if (in->batch * in->heads_q * in->q_len * in->kv_len * in->head_dim_qk > 4000000) {
        in->batch = 1;
        in->heads_q = 2;
        in->heads_kv = 1;
    }
}

static int make_inputs(check_case *out, case_inputs *in, const check_group *group, const variant *v,
                       random_state *random)
{
    const int64_t rows_q = in->batch * in->heads_q * in->q_len;
    const int64_t rows_kv = in->batch * in->heads_kv * in->kv_len;
    in->dtype_q = group->dtype[0];
    in->dtype_k = group->dtype[1];
    in->dtype_v = group->dtype[2];
    out->owned[0] = random_tensor(random, rows_q * in->head_dim_qk, in->dtype_q, 1.0f);
    out->owned[1] = random_tensor(random, rows_kv * in->head_dim_qk, in->dtype_k, 1.0f);
    out->owned[2] = random_tensor(random, rows_kv * in->head_dim_v, in->dtype_v, 1.0f);
    int enough = out->owned[0] && out->owned[1] && out->owned[2];
    if (v->flags & BIAS) {
        const int64_t full[4] = {in->batch, in->heads_q, in->q_len, in->kv_len};
        int64_t count = 1;
        for (int axis = 0; axis < 4; axis++) {
            in->bias_dim[axis] = v->bias_axes >> axis & 1 ? full[axis] : 1;
            count *= in->bias_dim[axis];
        }
        in->dtype_bias = group->dtype_bias;
        out->owned[3] = random_tensor(random, count, in->dtype_bias, 1.0f);
        enough = enough && out->owned[3];
    }
    in->q = out->owned[0];
    in->k = out->owned[1];
    in->v = out->owned[2];
    in->bias = out->owned[3];
    return enough ? CLI_OK : cli_fail(CLI_FAILED, "out of memory");
}

int check_case_make(check_case *out, const check_group *group, int quick, int index, int32_t path,
                    uint64_t seed)
{
    int num_variants;
    const variant *v = &variants_of(group, &num_variants)[index / (quick ? LENGTHS_QUICK : LENGTHS_FULL)];
    random_state random = {seed};
    call_options options = {0};
    common_options unused = {0};
    case_inputs in = {0};
    memset(out, 0, sizeof *out);
    choose_sizes(&in, group, quick, index);
    int status = call_options_from_text(&options, &unused, v->options, NULL);
    if (status == CLI_OK)
        status = make_inputs(out, &in, group, v, &random);
    options.path = path;
    options.verify = 1; /* so that the saved case tells what was wrong */
    if (group->dtype[3] != group->dtype[0])
        options.out_dtype = group->dtype[3];
    choose_layout(&options, &in, v->flags);
    /* Twice: the first tells which keys are seen, the second lays the changed values out. */
    if (status == CLI_OK)
        status = case_from_inputs(&out->c, &in, &options);
    if (status == CLI_OK) {
        change_keys(out, &in, v);
        change_bias(out, &in, v, &random);
        status = case_from_inputs(&out->c, &in, &options);
    }
    out->c.guard_bytes = 128;
    cli_format(out->name, sizeof out->name,
               "%s: [%" PRId64 ",%" PRId64 "/%" PRId64 ",%" PRId64 "/%" PRId64 "]", v->name, in.batch,
               in.heads_q, in.heads_kv, in.q_len, in.kv_len);
    if (status != CLI_OK)
        check_case_release(out);
    return status;
}

void check_case_release(check_case *check)
{
    for (int i = 0; i < 4; i++)
        free(check->owned[i]);
    memset(check, 0, sizeof *check);
}
