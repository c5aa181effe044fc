// tiles.cl: the tile map. Masks are looked through once, before the attention kernel, and each tile of scores
// gets one byte: so that tiles without an allowed key are never loaded and tiles that are all allowed are not
// compared. Causal bound, window and lengths are no part of it: they cost no look (bounds.cl).
//
// A map has one plane for each batch entry and head, or for all of them where the masks repeat.

#define TILE_EMPTY 0   // nothing is allowed
#define TILE_PARTIAL 1 // something may be
#define TILE_FULL 2    // everything is

#define MAP_WORK_ITEMS 64

// The class of the scores at rows first_row .. last_row and keys first_key .. last_key by the map.
static inline int tile_class(const __global uchar *plane, int first_row, int last_row, int first_key,
                             int last_key, const attention_args *a)
{
    int empty = 1, full = 1;
    for (int y = first_row / a->map_rows; y <= last_row / a->map_rows; y++)
        for (int x = first_key / a->map_keys; x <= last_key / a->map_keys; x++) {
            const int entry = plane[y * a->tile_map.token + x];
            empty &= entry == TILE_EMPTY;
            full &= entry == TILE_FULL;
        }
    return empty ? TILE_EMPTY : full ? TILE_FULL : TILE_PARTIAL;
}

// The class of any tile as far as the map does not tell it: what forbids keys without a map leaves none full.
static inline int class_without_map(const attention_args *a)
{
    const int has_mask = has(a, FEATURE_MASK) || HAS_MASK_MOD;
    return HAS_SCORE_MOD || (has(a, FEATURE_BIAS) && !a->map_has_bias) || (has_mask && a->map_width == 0)
               ? TILE_PARTIAL
               : TILE_FULL;
}

#if SCORE_FULL

// The scores that one entry stands for.
typedef struct map_entry {
    int batch;
    int head;
    int first_row;
    int last_row;
    int first_key;
    int last_key;
} map_entry;

#define SOME_ALLOWED 1
#define SOME_FORBIDDEN 2
#define MIXED 3

static inline int class_of_seen(int seen)
{
    return seen == SOME_ALLOWED ? TILE_FULL : seen == MIXED ? TILE_PARTIAL : TILE_EMPTY;
}

// Entries never reach over a border of the caller's tiles (the host sees to that): listed or not.
static inline int class_by_list(const map_entry *e, const attention_buffers *in, const attention_args *a)
{
    const int row_tile = e->first_row / a->tile_rows, key_tile = e->first_key / a->tile_keys;
    const long list = head_base(&a->tiles_index, e->batch, e->head) + row_tile * a->tiles_index.token;
    const int count = in->tiles_count[head_base(&a->tiles_count, e->batch, e->head) +
                                      row_tile * a->tiles_count.token];
    const long end = min((long)count, a->tiles_capacity);
    for (long n = 0; n < end; n++)
        if (in->tiles_index[list + n * a->tiles_entry] == key_tile)
            return TILE_FULL;
    return TILE_EMPTY;
}

// Eight bytes of a mask at once.
static inline int seen_in_bytes(ulong bytes)
{
    // A borrow reaches the highest bit of a byte that was 0; bytes that had that bit do not count.
    const ulong zeros = (bytes - 0x0101010101010101ul) & ~bytes & 0x8080808080808080ul;
    return (bytes != 0 ? SOME_ALLOWED : 0) | (zeros != 0 ? SOME_FORBIDDEN : 0);
}

static inline int class_by_mask(const map_entry *e, const attention_buffers *in, const attention_args *a)
{
    const __global uchar *row =
        in->mask + head_base(&a->mask, e->batch, e->head) + e->first_row * a->mask.token;
    int seen = 0;
    for (int i = e->first_row; i <= e->last_row && seen != MIXED; i++, row += a->mask.token) {
        int j = e->first_key;
        if (a->mask_key == 1)
            for (; j + 7 <= e->last_key; j += 8)
                seen |= seen_in_bytes(as_ulong(vload8(0, row + j)));
        for (; j <= e->last_key; j++)
            seen |= row[j * a->mask_key] != 0 ? SOME_ALLOWED : SOME_FORBIDDEN;
    }
    return class_of_seen(seen);
}

static inline int class_by_bias(const map_entry *e, const attention_buffers *in, const attention_args *a)
{
    const __global bias_t *row =
        in->bias + head_base(&a->bias, e->batch, e->head) + e->first_row * a->bias.token;
    int seen = 0;
    for (int i = e->first_row; i <= e->last_row && seen != MIXED; i++, row += a->bias.token) {
        int j = e->first_key;
        if (a->bias_key == 1)
            for (; j + 3 <= e->last_key; j += 4) {
                const int4 forbidden = LOAD4(BIAS_TYPE)(row, j) == (float4)(-INFINITY);
                seen |= (all(forbidden) ? 0 : SOME_ALLOWED) | (any(forbidden) ? SOME_FORBIDDEN : 0);
            }
        for (; j <= e->last_key; j++)
            seen |= LOAD1(BIAS_TYPE)(row, j * a->bias_key) != -INFINITY ? SOME_ALLOWED : SOME_FORBIDDEN;
    }
    return class_of_seen(seen);
}

static inline int class_by_mod(const map_entry *e, const attention_buffers *in, const attention_args *a)
{
    const sequence seq = sequence_of(e->batch, in, a);
    const mod_place place = make_mod_place(e->batch, e->head, seq.offset, in->user, a);
    int seen = 0;
    for (int i = e->first_row; i <= min(e->last_row, seq.q_len - 1) && seen != MIXED; i++) {
        const key_range keys = keys_of_row(i, seq.kv_len, seq.band_begin, seq.band_end);
        for (int j = max(e->first_key, keys.begin); j < min(e->last_key + 1, keys.end); j++)
            seen |= apply_mask_mod(&place, i, j) ? SOME_ALLOWED : SOME_FORBIDDEN;
    }
    return class_of_seen(seen);
}

// A work-item for each entry; the entry's class is the least that a mask gives it.
__kernel __attribute__((reqd_work_group_size(MAP_WORK_ITEMS, 1, 1))) void
classify_tiles(ATTENTION_BUFFERS, attention_args args)
{
    const attention_buffers buffers = GATHERED_BUFFERS;
    const attention_buffers *in = &buffers;
    const attention_args *a = &args;
    const int groups_per_row = (a->map_width + MAP_WORK_ITEMS - 1) / MAP_WORK_ITEMS;
    const int group = (int)get_group_id(1) + a->first_group;
    const int row = a->num_groups > 0 ? group / groups_per_row : 0;
    const int x = (group - row * groups_per_row) * MAP_WORK_ITEMS + (int)get_local_id(0);
    if ((int)get_group_id(1) >= a->num_groups || x >= a->map_width)
        return;
    const int plane = row / a->map_height, y = row - plane * a->map_height;
    map_entry entry;
    entry.batch = plane / a->map_heads;
    entry.head = plane - entry.batch * a->map_heads;
    entry.first_row = y * a->map_rows;
    entry.last_row = min(entry.first_row + a->map_rows, a->q_len) - 1;
    entry.first_key = x * a->map_keys;
    entry.last_key = min(entry.first_key + a->map_keys, a->kv_len) - 1;

    int class = class_without_map(a);
    if (a->tile_rows > 0)
        class = min(class, class_by_list(&entry, in, a));
    if (has(a, FEATURE_MASK) && class != TILE_EMPTY)
        class = min(class, class_by_mask(&entry, in, a));
    if (a->map_has_bias && class != TILE_EMPTY)
        class = min(class, class_by_bias(&entry, in, a));
    if (HAS_MASK_MOD && class != TILE_EMPTY)
        class = min(class, class_by_mod(&entry, in, a));
    in->workspace[head_base(&a->tile_map, entry.batch, entry.head) + y * a->tile_map.token + x] =
        (uchar)class;
}

#endif
