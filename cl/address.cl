// address.cl: where a tile's rows are. A 64-bit base per (batch, head), 64-bit token strides; within a
// row 32 bits. This is the one place that knows how sequences are stored: padded, packed or in pages.

#ifndef PAGE_SIZE // tokens of a page of k and v; 0: no pages
#define PAGE_SIZE 0
#endif
#ifndef V_IN_K // 1: v is the first columns of k
#define V_IN_K 0
#endif
#ifndef BLOCK_Q // rows of a work-group
#define BLOCK_Q 64
#endif
#ifndef DECODE // 1: a work-group's rows are those of all heads that share a KV head, and keys are split
#define DECODE 0
#endif

// What every kernel takes before attention_args, in the order of CLATTN__BUFFERS (src/emit.h).
#define ATTENTION_BUFFERS                                                                                \
    const __global q_t *restrict q, const __global k_t *restrict k, const __global v_t *restrict v,      \
        __global o_t *restrict o, __global float *restrict lse, const __global bias_t *restrict bias,    \
        const __global uchar *restrict mask, const __global float *restrict bias_head_scale,             \
        const __global float *restrict alibi_slopes, const __global float *restrict sinks,               \
        const __global int *restrict q_lens, const __global int *restrict kv_lens,                       \
        const __global int *restrict q_offsets, const __global int *restrict tiles_count,                \
        const __global int *restrict tiles_index, const __global uchar *restrict user,                   \
        const __global float *restrict k_scale, const __global float *restrict v_scale,                  \
        const __global int *restrict cu_seqlens_q, const __global int *restrict cu_seqlens_k,            \
        const __global int *restrict block_table, __global int *restrict status_words,                   \
        __global uchar *restrict workspace

typedef struct attention_buffers {
    const __global q_t *q;
    const __global k_t *k;
    const __global v_t *v;
    __global o_t *o;
    __global float *lse;
    const __global bias_t *bias;
    const __global uchar *mask;
    const __global float *bias_head_scale;
    const __global float *alibi_slopes;
    const __global float *sinks;
    const __global int *q_lens;
    const __global int *kv_lens;
    const __global int *q_offsets;
    const __global int *tiles_count;
    const __global int *tiles_index;
    const __global uchar *user;
    const __global float *k_scale;
    const __global float *v_scale;
    const __global int *cu_seqlens_q;
    const __global int *cu_seqlens_k;
    const __global int *block_table;
    __global int *status_words;
    __global uchar *workspace;
} attention_buffers;

// The parameters of a kernel as one struct.
#define GATHERED_BUFFERS                                                                                 \
    {                                                                                                    \
        q, (const __global k_t *)LED(K_TYPE, k, args.k_lead),                                            \
            (const __global v_t *)LED(V_TYPE, v, args.v_lead), o, lse, bias, mask, bias_head_scale,      \
            alibi_slopes, sinks, q_lens, kv_lens, q_offsets, tiles_count, tiles_index, user, k_scale,    \
            v_scale, cu_seqlens_q, cu_seqlens_k, block_table, status_words, workspace                    \
    }

static inline int has(const attention_args *a, int feature) { return (a->features & feature) != 0; }

static inline long head_base(const tensor_address *t, int batch, int head)
{
    return t->base + batch * t->batch + head * t->head;
}

static inline long number_at(const number_address *t, int batch, int head)
{
    return t->base + batch * t->batch + head * t->head;
}

// ---- Sequences ------------------------------------------------------------------------------------------

// Where packed sequence b begins. What lies in device memory is clamped to what the host knows.
static inline int first_row_of(int b, const __global int *cu_seqlens, long base, int total)
{
    return clamp(cu_seqlens[base + b], 0, total);
}

// Lengths and positions of a batch entry, and where it begins.
static inline sequence sequence_of(int batch, const attention_buffers *in, const attention_args *a)
{
    int q_len = a->q_len, kv_len = a->kv_len, first_q = 0, first_k = 0;
    if (has(a, FEATURE_CU_SEQLENS_Q)) {
        first_q = first_row_of(batch, in->cu_seqlens_q, a->cu_seqlens_q, a->total_q);
        q_len = clamp(first_row_of(batch + 1, in->cu_seqlens_q, a->cu_seqlens_q, a->total_q) - first_q, 0,
                      q_len);
    }
    if (has(a, FEATURE_CU_SEQLENS_K)) {
        first_k = first_row_of(batch, in->cu_seqlens_k, a->cu_seqlens_k, a->total_k);
        kv_len = clamp(first_row_of(batch + 1, in->cu_seqlens_k, a->cu_seqlens_k, a->total_k) - first_k, 0,
                       kv_len);
    }
    if (has(a, FEATURE_Q_LENS))
        q_len = clamp(in->q_lens[number_at(&a->q_lens, batch, 0)], 0, q_len);
    if (has(a, FEATURE_KV_LENS))
        kv_len = clamp(in->kv_lens[number_at(&a->kv_lens, batch, 0)], 0, kv_len);
    const long offset =
        has(a, FEATURE_Q_OFFSETS) ? in->q_offsets[number_at(&a->q_offsets, batch, 0)] : a->q_offset;
    sequence seq = make_sequence(q_len, kv_len, a->position_mode, offset, a->window_begin, a->window_end);
    seq.first_q = first_q;
    seq.first_k = first_k;
    return seq;
}

// The first row of a head of q, o or lse.
static inline long query_base(const tensor_address *t, int batch, int head, const sequence *seq)
{
    return head_base(t, batch, head) + seq->first_q * t->token;
}

// ---- Keys -----------------------------------------------------------------------------------------------

// Where the keys of one head are: rows of k or v, or their scales. Padded, packed, or in pages, which the table
// names: entries beyond the sequence's keys are not read, and pages outside the pool are not touched.
typedef struct key_rows {
    long first;
    long token;
    const __global int *table;
    long page; // from page to page
    int last_page;
} key_rows;

static inline key_rows rows_of_keys(const tensor_address *t, int batch, int head_kv, const sequence *seq,
                                    const attention_buffers *in, const attention_args *a)
{
    key_rows rows;
    rows.token = t->token;
    rows.table = in->block_table + a->block_table + batch * a->block_table_batch;
    rows.page = t->batch;
    rows.last_page = a->num_pages - 1;
    rows.first = t->base + head_kv * t->head;
    if (PAGE_SIZE == 0)
        rows.first += batch * t->batch + seq->first_k * t->token;
    return rows;
}

// A key's row in two steps, for kernels that know what to do between them: the page first, 0 without pages.
static inline int page_of_key(const key_rows *rows, int key)
{
#if PAGE_SIZE > 0
    return clamp(rows->table[key / PAGE_SIZE], 0, rows->last_page);
#else
    return 0;
#endif
}

static inline long row_on_page(const key_rows *rows, int page, int key)
{
#if PAGE_SIZE > 0
    return rows->first + page * rows->page + key % PAGE_SIZE * rows->token;
#else
    return rows->first + key * rows->token;
#endif
}

static inline long row_of_key(const key_rows *rows, int key)
{
    return row_on_page(rows, page_of_key(rows, key), key);
}

// What the keys of one head are multiplied by: a number of the call's for each, or 1.
typedef struct key_scales {
    const __global float *numbers;
    key_rows rows;
    int is_given;
} key_scales;

static inline float scale_of_key(const key_scales *scales, int key)
{
    return scales->is_given ? scales->numbers[row_of_key(&scales->rows, key)] : 1.0f;
}

static inline key_scales scales_of_k(int batch, int head_kv, const sequence *seq, const attention_buffers *in,
                                     const attention_args *a)
{
    const key_scales scales = {in->k_scale, rows_of_keys(&a->k_scale, batch, head_kv, seq, in, a),
                               has(a, FEATURE_K_SCALE)};
    return scales;
}

// V inside K has K's.
static inline key_scales scales_of_v(int batch, int head_kv, const sequence *seq, const attention_buffers *in,
                                     const attention_args *a)
{
    const key_scales scales = {in->v_scale, rows_of_keys(&a->v_scale, batch, head_kv, seq, in, a),
                               has(a, V_IN_K ? FEATURE_K_SCALE : FEATURE_V_SCALE)};
    return scales;
}

// ---- Work-groups ----------------------------------------------------------------------------------------

// What a work-group works on. Tiles of a head are neighbours, so that the groups running at one time share K
// and V. A tile is BLOCK_Q rows: queries of one head, or with DECODE pairs of query and head (see row_head),
// for one of the splits of the keys.
typedef struct work_place {
    int q_tile;
    int head; // with DECODE the KV head
    int batch;
    int split;
} work_place;

// Rows that each query has in a tile.
static inline int rows_per_query(const attention_args *a) { return DECODE ? a->heads_per_kv : 1; }

// Of packed sequence b, the first of the tiles that all sequences of a head may have together: a number that
// grows by more than the sequence has. (So all tiles have places, and total / BLOCK_Q + batch places do.)
static inline int first_tile_of(int b, const attention_buffers *in, const attention_args *a)
{
    const long row = first_row_of(b, in->cu_seqlens_q, a->cu_seqlens_q, a->total_q);
    return (int)(row * rows_per_query(a) / BLOCK_Q) + b;
}

// a / b; in decode, where a call may take no longer than some divisions one after the other, b is often 1.
static inline int quotient(int a, int b) { return DECODE && b == 1 ? a : a / b; }

// Lines of tiles (tile_order.cl): a head of one batch entry, or of all packed sequences, has q_tiles.
static inline int lines_of(const attention_args *a)
{
    return has(a, FEATURE_CU_SEQLENS_Q) ? a->heads_q : a->heads_q * a->batch;
}

static inline work_place place_of_group(int group, const attention_buffers *in, const attention_args *a)
{
    work_place place;
    const int heads = DECODE ? a->heads_q / a->heads_per_kv : a->heads_q;
    int row = quotient(group, a->q_tiles);
    place.q_tile = group - row * a->q_tiles;
    place.split = 0;
    if (DECODE) {
        const int tile = quotient(row, a->num_splits);
        place.split = row - tile * a->num_splits;
        row = tile;
    }
    place.batch = DECODE && a->batch == 1 ? 0 : row / heads;
    place.head = row - place.batch * heads;
    if (has(a, FEATURE_CU_SEQLENS_Q)) { // the last sequence that does not begin behind the tile
        int begin = 0, end = a->batch;
        while (end - begin > 1) {
            const int middle = (begin + end) / 2;
            if (first_tile_of(middle, in, a) <= place.q_tile)
                begin = middle;
            else
                end = middle;
        }
        place.batch = begin;
        place.q_tile -= first_tile_of(begin, in, a);
        if (place.q_tile < 0) // before the first sequence: beyond all rows instead
            place.q_tile = MAX_LENGTH / BLOCK_Q;
    }
    return place;
}

// ---- Splits ---------------------------------------------------------------------------------------------

// The keys that a split takes of those that a tile's rows may see. Splits that are left without any have
// end <= begin. Even ones share what the rows see; ones of a fixed size make a row's bits independent of
// everything but its own keys.
static inline key_range keys_of_split(key_range seen, int split, int block_k, const attention_args *a)
{
    const int blocks = (seen.end - seen.begin + block_k - 1) / block_k;
    const int even = quotient(blocks + a->num_splits - 1, a->num_splits) * block_k;
    const int size = a->split_keys > 0 ? a->split_keys : even;
    key_range keys;
    keys.begin = (int)min((long)seen.begin + (long)split * size, (long)seen.end);
    keys.end = (int)min((long)keys.begin + size, (long)seen.end);
    return keys;
}

// What a split gives, if there are several: in the workspace, in float32, its normalised o and its state: the
// largest score, in their unit, and the sum of exp(score - largest), 0 without keys. combine.cl makes one of
// them. The number of the place of a row and head:
static inline long part_place(int batch, int query, int head, int split, const sequence *seq,
                              const attention_args *a)
{
    const long row = has(a, FEATURE_CU_SEQLENS_Q) ? seq->first_q + query : (long)batch * a->q_len + query;
    return (split * a->part_rows + row) * a->heads_q + head;
}

static inline __global float *part_o(__global uchar *workspace, long place, const attention_args *a)
{
    return (__global float *)workspace + a->parts + place * a->head_dim_v;
}

// Kernels whose last work-group combines count, behind all states, the splits of each tile that have ended. What was
// in the workspace before is no count: that is ticket * COUNT_LIMIT + splits.
#define COUNT_LIMIT (1ul << 24)

static inline volatile __global ulong *part_counter(__global uchar *workspace, int tile, const attention_args *a)
{
    const __global float *end = (const __global float *)workspace + a->parts +
                                a->num_splits * a->part_rows * a->heads_q * (a->head_dim_v + 2);
    return (volatile __global ulong *)(((size_t)end + 7) / 8 * 8) + tile;
}

// The number of a group's tile: of all splits the same.
static inline int tile_of_group(int group, const attention_args *a)
{
    const int row = quotient(group, a->q_tiles);
    return quotient(row, a->num_splits) * a->q_tiles + (group - row * a->q_tiles);
}

static inline __global float *part_state(__global uchar *workspace, long place, const attention_args *a)
{
    return (__global float *)workspace + a->parts +
           a->num_splits * a->part_rows * a->heads_q * a->head_dim_v + 2 * place;
}
