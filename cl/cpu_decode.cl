// cpu_decode.cl: attention of few query rows on CPU devices. A work-group is one work-item; it computes a tile
// of up to BLOCK_Q rows, pairs of a query and one of the heads that share a KV head, over a split of the keys.
//
// With few rows time goes into reading K and V. Both are walked row by row as they lie in memory, and vectors
// run along the head dim:
//
//     S[row][key] = sum over lanes of Q[row] * K[key]        O[row] += P[row][key] * V[key]
//
// Rows go through the products in groups, for which K and V are loaded, and converted, once. Sums over lanes are
// made of VECTOR_WIDTH vectors at a time, by a transposing tree; a row's scores then lie side by side along the
// keys, where all that follows the product runs in vectors again.
//
// A tile of at most one group multiplies K and V straight from memory. With more groups a block's rows are
// converted once to scratch.

#ifndef BLOCK_K // keys of a step, a multiple of VECTOR_WIDTH
#define BLOCK_K 64
#endif
#ifndef LARGEST_GROUP // rows that share a load: 1, 2 or 4, at most VECTOR_WIDTH; a divisor of BLOCK_Q
#define LARGEST_GROUP 1
#endif
#ifndef VALUE_VECTORS // vectors of O side by side; LARGEST_GROUP times as many accumulators
#define VALUE_VECTORS 4
#endif
#ifndef HEAD_DIM_QK // the largest head dims this program can serve, multiples of 32
#define HEAD_DIM_QK 64
#endif
#ifndef HEAD_DIM_V
#define HEAD_DIM_V 64
#endif

#define MOST_ROWS 4    // of a group
#define KEYS_AT_ONCE 4 // keys whose products with a group run side by side
#define ROW_PADDING 16 // keeps rows out of each other's cache sets
#define VALUE_COLUMNS (VALUE_VECTORS * VECTOR_WIDTH)
#define Q_STRIDE (HEAD_DIM_QK + ROW_PADDING)
#define O_STRIDE ((HEAD_DIM_V + VALUE_COLUMNS - 1) / VALUE_COLUMNS * VALUE_COLUMNS + ROW_PADDING)
#define STRIDE (Q_STRIDE > O_STRIDE ? Q_STRIDE : O_STRIDE) // of K and V in scratch
#define K_STEP (IS_BLOCK(K_TYPE) && BLOCK_ELEMENTS > VECTOR_WIDTH ? BLOCK_ELEMENTS : VECTOR_WIDTH) // columns
#define ALIGNED __attribute__((aligned(64)))

// Loads of VECTOR_WIDTH elements of a row, or codes of a block, where there are such.
#if VECTOR_WIDTH == 16
#define ROW_VECTOR(type) ROW16(type)
#define CODES_VECTOR(type) PASTE(codes16_, type)
#define CAN_BE_DIRECT 1
#elif VECTOR_WIDTH == 8
#define ROW_VECTOR(type) ROW8(type)
#define CODES_VECTOR(type) PASTE(codes8_, type)
#define CAN_BE_DIRECT 1
#else
#define CAN_BE_DIRECT 0
#endif

// The rows of a tile and their running state.
typedef struct decode_rows {
    float q[BLOCK_Q][Q_STRIDE] ALIGNED;      // scaled; 0 beyond the head dim, and in rows that fill up a group
    float o[BLOCK_Q][O_STRIDE] ALIGNED;      // relative to max
    float scores[BLOCK_Q][BLOCK_K] ALIGNED;  // of the block, then weights: exp(score - max)
    float max[BLOCK_Q];                      // of the scores so far; at least SCORE_FLOOR
    float_v sum[BLOCK_Q];                    // of the weights so far, lane by lane, a sink's included
    float rescale[BLOCK_Q];                  // what O so far is to be multiplied by
    int first_query;                         // of the first row, and its head within the group
    int first_head;
    int count;
} decode_rows;

// What a tile works on.
typedef struct decode_place {
    const attention_buffers *in;
    const attention_args *a;
    int batch;
    int head_kv;
    int split;
    sequence seq;
    key_rows k;
    key_rows v;
    int k_blocks; // of a row, for types that have such
    int v_blocks;
    key_scales k_scales;
    key_scales v_scales;
} decode_place;

// A block of keys. Those that some row may see are one range by position; masks leave holes, whose V must not be
// touched (0 * NaN is NaN): full programs list them.
typedef struct key_block {
    int first;
    int count;
    int end; // of the whole split
    float k_scale[BLOCK_K] ALIGNED;
    float v_scale[BLOCK_K] ALIGNED;
    int num_live;
    int live[BLOCK_K];
} key_block;

INLINE int query_of(const decode_rows *rows, int row, const attention_args *a)
{
    return rows->first_query + (rows->first_head + row) / a->heads_per_kv;
}

INLINE int head_of(const decode_rows *rows, int row, const decode_place *at)
{
    return at->head_kv * at->a->heads_per_kv + (rows->first_head + row) % at->a->heads_per_kv;
}

// ---- Sums over lanes ----------------------------------------------------------------------------------------

#define LARGER(a, b) ((a) < (b) ? (b) : (a))

#if VECTOR_WIDTH >= 4

#if VECTOR_WIDTH == 16
typedef float8 half_v;
typedef float4 quarter_v;
#elif VECTOR_WIDTH == 8
typedef float4 half_v;
typedef float2 quarter_v;
#else
typedef float2 half_v;
typedef float quarter_v;
#endif

// Within each four lanes: (a0, b0, a1, b1) and (a2, b2, a3, b3).
#define FOUR_LOW(a, b, x, y) a.x, b.x, a.y, b.y
#if VECTOR_WIDTH == 16
#define LOW_PAIRS(a, b)                                                                                   \
    (float_v)(FOUR_LOW(a, b, s0, s1), FOUR_LOW(a, b, s4, s5), FOUR_LOW(a, b, s8, s9), FOUR_LOW(a, b, sc, sd))
#define HIGH_PAIRS(a, b)                                                                                  \
    (float_v)(FOUR_LOW(a, b, s2, s3), FOUR_LOW(a, b, s6, s7), FOUR_LOW(a, b, sa, sb), FOUR_LOW(a, b, se, sf))
#define LOW_TWOS(a, b)                                                                                    \
    (float_v)(a.s01, b.s01, a.s45, b.s45, a.s89, b.s89, a.scd, b.scd)
#define HIGH_TWOS(a, b)                                                                                   \
    (float_v)(a.s23, b.s23, a.s67, b.s67, a.sab, b.sab, a.sef, b.sef)
#elif VECTOR_WIDTH == 8
#define LOW_PAIRS(a, b) (float_v)(FOUR_LOW(a, b, s0, s1), FOUR_LOW(a, b, s4, s5))
#define HIGH_PAIRS(a, b) (float_v)(FOUR_LOW(a, b, s2, s3), FOUR_LOW(a, b, s6, s7))
#define LOW_TWOS(a, b) (float_v)(a.s01, b.s01, a.s45, b.s45)
#define HIGH_TWOS(a, b) (float_v)(a.s23, b.s23, a.s67, b.s67)
#else
#define LOW_PAIRS(a, b) (float_v)(FOUR_LOW(a, b, s0, s1))
#define HIGH_PAIRS(a, b) (float_v)(FOUR_LOW(a, b, s2, s3))
#define LOW_TWOS(a, b) (float_v)(a.s01, b.s01)
#define HIGH_TWOS(a, b) (float_v)(a.s23, b.s23)
#endif

// Within each four lanes the sums of a, b, c and d.
INLINE float_v sum_fours(const float_v v[4])
{
    const float_v ab = LOW_PAIRS(v[0], v[1]) + HIGH_PAIRS(v[0], v[1]);
    const float_v cd = LOW_PAIRS(v[2], v[3]) + HIGH_PAIRS(v[2], v[3]);
    return LOW_TWOS(ab, cd) + HIGH_TWOS(ab, cd);
}

// Lane n: the sum of v[n].
INLINE float_v sum_lanes(const float_v v[VECTOR_WIDTH])
{
#if VECTOR_WIDTH == 16
    const float_v a = sum_fours(v), b = sum_fours(v + 4), c = sum_fours(v + 8), d = sum_fours(v + 12);
    const float_v ab = (float_v)(a.lo, b.lo) + (float_v)(a.hi, b.hi);
    const float_v cd = (float_v)(c.lo, d.lo) + (float_v)(c.hi, d.hi);
    return (float_v)(ab.lo.lo, ab.hi.lo, cd.lo.lo, cd.hi.lo) + (float_v)(ab.lo.hi, ab.hi.hi, cd.lo.hi, cd.hi.hi);
#elif VECTOR_WIDTH == 8
    const float_v a = sum_fours(v), b = sum_fours(v + 4);
    return (float_v)(a.lo, b.lo) + (float_v)(a.hi, b.hi);
#else
    return sum_fours(v);
#endif
}

// The scores of a group's rows at `j` and the keys behind it, from lanes in the order [row][key].
INLINE void store_scores(float (*scores)[BLOCK_K], int j, const int rows, float_v lanes)
{
    if (rows == 1)
        *(float_v *)(scores[0] + j) = lanes;
    if (rows == 2) {
        *(half_v *)(scores[0] + j) = lanes.lo;
        *(half_v *)(scores[1] + j) = lanes.hi;
    }
    if (rows == 4) {
        *(quarter_v *)(scores[0] + j) = lanes.lo.lo;
        *(quarter_v *)(scores[1] + j) = lanes.lo.hi;
        *(quarter_v *)(scores[2] + j) = lanes.hi.lo;
        *(quarter_v *)(scores[3] + j) = lanes.hi.hi;
    }
}

#if VECTOR_WIDTH == 16
#define FOLD_TO_FOUR(v, OP) OP(OP((v).lo.lo, (v).lo.hi), OP((v).hi.lo, (v).hi.hi))
#elif VECTOR_WIDTH == 8
#define FOLD_TO_FOUR(v, OP) OP((v).lo, (v).hi)
#else
#define FOLD_TO_FOUR(v, OP) (v)
#endif

INLINE float largest_lane(float_v v)
{
    const float4 four = FOLD_TO_FOUR(v, LARGER);
    const float2 two = LARGER(four.lo, four.hi);
    return LARGER(two.x, two.y);
}

#define ADD(a, b) ((a) + (b))

INLINE float sum_of_lanes(float_v v)
{
    const float4 four = FOLD_TO_FOUR(v, ADD);
    const float2 two = four.lo + four.hi;
    return two.x + two.y;
}

#else // a vector is one number

INLINE float_v sum_lanes(const float_v v[VECTOR_WIDTH]) { return v[0]; }
INLINE void store_scores(float (*scores)[BLOCK_K], int j, const int rows, float_v lanes) { scores[0][j] = lanes; }
INLINE float largest_lane(float_v v) { return v; }
INLINE float sum_of_lanes(float_v v) { return v; }

#endif

// ---- Between global memory and scratch ------------------------------------------------------------------------

// Keys of the next block are asked for while those of this one are worked on: so reading goes on during the rest.
#ifdef __has_builtin
#if __has_builtin(__builtin_prefetch)
#define FETCH_LINE(p) __builtin_prefetch((const void *)(size_t)(p), 0, 2)
#endif
#endif
#ifndef FETCH_LINE
#define FETCH_LINE(p)
#endif

#define LINE_BYTES 64
#define UNITS(type, columns) ((columns) / (IS_BLOCK(type) ? BLOCK_ELEMENTS : 1))

// All or some of a row; a constant number of bytes.
INLINE void fetch(const __global void *first, const int bytes)
{
    UNROLL for (int i = 0; i < bytes; i += LINE_BYTES)
        FETCH_LINE((const __global char *)first + i);
}

// Rows of a block as floats, with zeros up to a column that is a multiple of `columns_step`, and up to a multiple
// of VECTOR_WIDTH rows, so that what fills up a product is no slow (denormal) number.
#define PACKER(name, unit, type, dims)                                                                        \
    INLINE void name(float *to, const __global unit *from, const key_rows *rows, const key_block *block,  \
                     int columns, int columns_step)                                                       \
    {                                                                                                     \
        for (int j = 0; j < block->count; j++, to += STRIDE) {                                            \
            const long row = row_of_key(rows, block->first + j);                                          \
            int c = 0;                                                                                    \
            if (block->first + j + BLOCK_K < block->end)                                                  \
                fetch(from + row_of_key(rows, block->first + j + BLOCK_K),                                \
                      UNITS(type, dims) * (int)sizeof(unit));                                             \
            for (; c + 16 <= columns; c += 16)                                                            \
                vstore16(ROW16(type)(from, row, c), 0, to + c);                                           \
            for (; c < columns; c++)                                                                      \
                to[c] = ROW1(type)(from, row, c);                                                         \
            for (; c % columns_step != 0; c++)                                                            \
                to[c] = 0.0f;                                                                             \
        }                                                                                                 \
        for (int j = block->count; j % VECTOR_WIDTH != 0; j++, to += STRIDE)                              \
            for (int c = 0; c < STRIDE; c++)                                                              \
                to[c] = 0.0f;                                                                             \
    }
PACKER(pack_k, k_t, K_TYPE, HEAD_DIM_QK)
PACKER(pack_v, v_t, V_TYPE, HEAD_DIM_V)

// What the call multiplies each key's row by.
INLINE void load_scales(float *scales, const key_scales *from, const key_block *block)
{
    for (int j = 0; j < block->count; j++)
        scales[j] = scale_of_key(from, block->first + j);
    for (int j = block->count; j % VECTOR_WIDTH != 0; j++)
        scales[j] = 0.0f;
}

// Q, scaled; no key seen yet.
INLINE void load_rows(decode_rows *rows, const decode_place *at)
{
    const attention_args *a = at->a;
    const float scale = SCORE_FULL ? a->scale : a->scale_log2;
    const int end = (rows->count + LARGEST_GROUP - 1) / LARGEST_GROUP * LARGEST_GROUP;
    for (int r = 0; r < end; r++) {
        int c = 0;
        if (r < rows->count) {
            const int head = head_of(rows, r, at);
            const long row = query_base(&a->q, at->batch, head, &at->seq) + query_of(rows, r, a) * a->q.token;
            const row_start none = {SCORE_FLOOR, 0.0f};
            const row_start start = at->split == 0 ? start_of_rows(at->batch, head, at->in->sinks, a) : none;
            for (; c + 4 <= a->head_dim_qk; c += 4)
                vstore4(LOAD4(Q_TYPE)(at->in->q, row + c) * scale, 0, rows->q[r] + c);
            for (; c < a->head_dim_qk; c++)
                rows->q[r][c] = LOAD1(Q_TYPE)(at->in->q, row + c) * scale;
            rows->max[r] = start.max;
            rows->sum[r] = 0.0f;
            *(float *)&rows->sum[r] = start.sum;
        }
        for (; c < HEAD_DIM_QK; c++)
            rows->q[r][c] = 0.0f;
        for (c = 0; c < O_STRIDE; c++)
            rows->o[r][c] = 0.0f;
        rows->rescale[r] = 1.0f;
    }
}

// O / sum and the LSE of each row: the result, or one of several parts of it.
INLINE void store_rows(const decode_rows *rows, const decode_place *at)
{
    const attention_args *a = at->a;
    for (int r = 0; r < rows->count; r++) {
        const int head = head_of(rows, r, at), query = query_of(rows, r, a);
        const float sum = sum_of_lanes(rows->sum[r]);
        const float factor = sum == 0.0f ? 0.0f : 1.0f / sum;
        int c = 0;
        if (a->num_splits > 1) {
            const long place = part_place(at->batch, query, head, at->split, &at->seq, a);
            __global float *o = part_o(at->in->workspace, place, a);
            for (; c + 4 <= a->head_dim_v; c += 4)
                vstore4(vload4(0, rows->o[r] + c) * factor, 0, o + c);
            for (; c < a->head_dim_v; c++)
                o[c] = rows->o[r][c] * factor;
            __global float *state = part_state(at->in->workspace, place, a);
            state[0] = rows->max[r];
            state[1] = sum;
        } else {
            const long row = query_base(&a->o, at->batch, head, &at->seq) + query * a->o.token;
            for (; c + 4 <= a->head_dim_v; c += 4)
                STORE4(O_TYPE)(at->in->o, row + c, vload4(0, rows->o[r] + c) * factor);
            for (; c < a->head_dim_v; c++)
                STORE1(O_TYPE)(at->in->o, row + c, rows->o[r][c] * factor);
            if (has(a, FEATURE_LSE))
                at->in->lse[query_base(&a->lse, at->batch, head, &at->seq) + query * a->lse.token] =
                    sum == 0.0f ? -INFINITY
                                : (rows->max[r] * SCORE_TO_NATURAL + log(sum)) * a->lse_unit;
        }
    }
}

// ---- The products ---------------------------------------------------------------------------------------------

// A loop of count <= most, both constants: compilers unroll it before they know that a parameter is one.
#define FOR_FEW(i, most, count)             \
    UNROLL for (int i = 0; i < (most); i++) \
        if (i < (count))

// Where neighbouring keys are; those behind the last one repeat it.
INLINE void find_rows(long row[KEYS_AT_ONCE], const key_rows *rows, int key, int last)
{
    row[0] = row_of_key(rows, min(key, last));
    UNROLL for (int i = 1; i < KEYS_AT_ONCE; i++)
        row[i] = PAGE_SIZE > 0 ? row_of_key(rows, min(key + i, last))
                               : row[i - 1] + (key + i <= last ? rows->token : 0);
}

// What products load from memory. Of types of blocks, d and m are taken out of the rows of all keys of the block
// first and become floats as vectors: one by one that would cost more than the 32 codes between them.
typedef struct code_scales {
    float d[BLOCK_K * STRIDE / BLOCK_ELEMENTS] ALIGNED; // [key][block of the row]
    float m[BLOCK_K * STRIDE / BLOCK_ELEMENTS] ALIGNED;
} code_scales;

#define HAS_M(type) ((type) == TYPE_Q4_1 || (type) == TYPE_Q5_1)

#define PLAIN_LOADS(name, type)                                                                           \
    INLINE void load_##name##_scales(code_scales *scales, const key_block *block, const decode_place *at) \
    {                                                                                                     \
    }                                                                                                     \
    INLINE float_v load_##name(const code_scales *scales, int key, long row, int column,                  \
                               const decode_place *at)                                                    \
    {                                                                                                     \
        return ROW_VECTOR(type)(at->in->name, row, column);                                               \
    }

// A block begins with d, then comes m where there is one.
#define BLOCK_LOADS(name, type, dims)                                                                     \
    INLINE void load_##name##_scales(code_scales *scales, const key_block *block, const decode_place *at) \
    {                                                                                                     \
        ushort d[BLOCK_K * (dims) / BLOCK_ELEMENTS], m[BLOCK_K * (dims) / BLOCK_ELEMENTS];                \
        int n = 0;                                                                                        \
        for (int j = 0; j < block->count; j++) {                                                          \
            const long row = row_of_key(&at->name, block->first + j);                                     \
            UNROLL for (int i = 0; i < (dims) / BLOCK_ELEMENTS; i++, n++) {                               \
                const int within = min(i, at->name##_blocks - 1);                                         \
                const __global ushort *numbers = (const __global ushort *)(at->in->name + row + within);  \
                d[n] = numbers[0];                                                                        \
                m[n] = HAS_M(type) ? numbers[1] : (ushort)0;                                              \
            }                                                                                             \
        }                                                                                                 \
        for (int i = 0; i < n; i += 8) {                                                                  \
            vstore8(vload_half8(0, (const __private half *)(d + i)), 0, scales->d + i);                   \
            if (HAS_M(type))                                                                              \
                vstore8(vload_half8(0, (const __private half *)(m + i)), 0, scales->m + i);               \
        }                                                                                                 \
    }                                                                                                     \
    INLINE float_v load_##name(const code_scales *scales, int key, long row, int column,                  \
                               const decode_place *at)                                                    \
    {                                                                                                     \
        const int n = key * ((dims) / BLOCK_ELEMENTS) + column / BLOCK_ELEMENTS;                          \
        const float_v codes = PASTE(convert_, SCORE_T)(                                                   \
            CODES_VECTOR(type)(at->in->name + row + column / BLOCK_ELEMENTS, column % BLOCK_ELEMENTS));   \
        return HAS_M(type) ? codes * scales->d[n] + scales->m[n] : codes * scales->d[n];                  \
    }

#if CAN_BE_DIRECT
#if IS_BLOCK(K_TYPE)
BLOCK_LOADS(k, K_TYPE, HEAD_DIM_QK)
#else
PLAIN_LOADS(k, K_TYPE)
#endif
#if IS_BLOCK(V_TYPE)
BLOCK_LOADS(v, V_TYPE, HEAD_DIM_V)
#else
PLAIN_LOADS(v, V_TYPE)
#endif
#endif

// S = Q K^T of a group of num_rows rows. Constants: num_rows, and packed where it is 0: K comes from memory.
INLINE void score_group(float (*scores)[BLOCK_K], float (*q)[Q_STRIDE], const int num_rows, const float *packed,
                        const code_scales *scales, const key_block *block, int columns, const decode_place *at)
{
    const int tile_keys = VECTOR_WIDTH / num_rows;
    const int num_keys = tile_keys < KEYS_AT_ONCE ? tile_keys : KEYS_AT_ONCE;
    const int step = packed != 0 ? VECTOR_WIDTH : K_STEP;
    for (int tile = 0; tile < block->count; tile += tile_keys) {
        float_v sums[VECTOR_WIDTH]; // [row][key]
        UNROLL for (int n = 0; n < VECTOR_WIDTH; n++)
            sums[n] = 0.0f;
        UNROLL for (int first = 0; first < VECTOR_WIDTH; first += KEYS_AT_ONCE) {
            const int key = block->first + tile + first;
            long row[KEYS_AT_ONCE];
            if (first >= tile_keys)
                break;
            if (packed == 0 && key + BLOCK_K < block->end) {
                find_rows(row, &at->k, key + BLOCK_K, block->end - 1);
                FOR_FEW(i, KEYS_AT_ONCE, num_keys)
                    fetch(at->in->k + row[i], UNITS(K_TYPE, HEAD_DIM_QK) * (int)sizeof(k_t));
            }
            if (packed == 0)
                find_rows(row, &at->k, key, block->first + block->count - 1);
            for (int c = 0; c < columns; c += step)
                FOR_FEW(part, K_STEP / VECTOR_WIDTH, step / VECTOR_WIDTH) {
                    const int column = c + part * VECTOR_WIDTH;
                    FOR_FEW(i, KEYS_AT_ONCE, num_keys) {
                        float_v k;
#if CAN_BE_DIRECT
                        if (packed == 0)
                            k = load_k(scales, tile + first + i, row[i], column, at);
                        else
#endif
                            k = *(const float_v *)(packed + (tile + first + i) * STRIDE + column);
                        FOR_FEW(r, MOST_ROWS, num_rows)
                            sums[r * tile_keys + first + i] += k * *(const float_v *)(q[r] + column);
                    }
                }
        }
        store_scores(scores, tile, num_rows, sum_lanes(sums));
    }
}

// O = O * rescale + P V of a group. A block's product is summed up on its own before it joins O, so that rounding
// errors grow with the number of blocks, not of keys.
INLINE void add_group(float (*o)[O_STRIDE], float (*weights)[BLOCK_K], const float *rescale, const int num_rows,
                      const float *packed, const code_scales *scales, const key_block *block, int columns,
                      const decode_place *at)
{
    for (int c = 0; c < columns; c += VALUE_COLUMNS) {
        float_v sums[MOST_ROWS][VALUE_VECTORS];
        UNROLL for (int r = 0; r < MOST_ROWS; r++)
            UNROLL for (int v = 0; v < VALUE_VECTORS; v++)
                sums[r][v] = 0.0f;
        for (int n = 0; n < block->num_live; n++) {
            const int j = SCORE_FULL ? block->live[n] : n;
            const long row = packed != 0 ? 0 : row_of_key(&at->v, block->first + j);
            if (packed == 0 && block->first + j + BLOCK_K < block->end)
                fetch(at->in->v + row_of_key(&at->v, block->first + j + BLOCK_K) + UNITS(V_TYPE, c),
                      UNITS(V_TYPE, VALUE_COLUMNS) * (int)sizeof(v_t));
            UNROLL for (int v = 0; v < VALUE_VECTORS; v++) {
                const int column = c + v * VECTOR_WIDTH;
                float_v x;
#if CAN_BE_DIRECT
                if (packed == 0)
                    x = load_v(scales, j, row, column, at);
                else
#endif
                    x = *(const float_v *)(packed + j * STRIDE + column);
                FOR_FEW(r, MOST_ROWS, num_rows)
                    sums[r][v] += weights[r][j] * x;
            }
        }
        FOR_FEW(r, MOST_ROWS, num_rows) {
            float_v *const to = (float_v *)(o[r] + c);
            UNROLL for (int v = 0; v < VALUE_VECTORS; v++)
                to[v] = to[v] * rescale[r] + sums[r][v];
        }
    }
}

// ---- From products to weights -----------------------------------------------------------------------------------

#define FOR_EACH_VECTOR(j, count) for (int j = 0; j < (count); j += VECTOR_WIDTH)
#define VECTOR_AT(array, j) (*(float_v *)((array) + (j)))

#if SCORE_FULL

// Copies a row of the bias or the mask for the block's keys to scratch.
INLINE void stage_row(float *to, int type, const __global void *from, long row, long key_stride, int count)
{
    int j = 0;
    for (; key_stride == 1 && j + 4 <= count; j += 4)
        vstore4(load4_of(type, from, row + j), 0, to + j);
    for (; j < count; j++)
        to[j] = load1_of(type, from, row + j * key_stride);
    for (; j % VECTOR_WIDTH != 0; j++)
        to[j] = 0.0f;
}

// The class of the block for a row. What the caller's tile lists leave out is only in the map.
INLINE int class_of_row(int query, int head, const key_block *block, const decode_place *at)
{
    const attention_args *a = at->a;
    if (a->map_width == 0)
        return class_without_map(a);
    return tile_class(at->in->workspace + head_base(&a->tile_map, at->batch, head), query, query, block->first,
                      block->first + block->count - 1, a);
}

// Whether some row of the tile may see some key of the block, as far as the map tells.
INLINE int block_is_needed(const decode_rows *rows, const key_block *block, const decode_place *at)
{
    if (at->a->map_width == 0)
        return 1;
    for (int r = 0; r < rows->count; r++)
        if (class_of_row(query_of(rows, r, at->a), head_of(rows, r, at), block, at) != TILE_EMPTY)
            return 1;
    return 0;
}

INLINE void drop_unlisted_tiles(float *scores, int query, int head, const key_block *block,
                                const decode_place *at)
{
    const attention_args *a = at->a;
    const __global uchar *map = at->in->workspace + head_base(&a->tile_map, at->batch, head) +
                                query / a->map_rows * a->tile_map.token;
    for (int x = block->first / a->map_keys; x <= (block->first + block->count - 1) / a->map_keys; x++)
        if (map[x] == TILE_EMPTY)
            for (int j = max(x * a->map_keys - block->first, 0);
                 j < min((x + 1) * a->map_keys - block->first, block->count); j++)
                scores[j] = -INFINITY;
}

// The caller's functions know no vectors. They are asked for keys within the band.
INLINE void apply_mods(float *scores, int query, int head, key_range seen, int class, const key_block *block,
                       const decode_place *at)
{
    const mod_place place = make_mod_place(at->batch, head, at->seq.offset, at->in->user, at->a);
    for (int j = seen.begin; j < seen.end; j++) {
        scores[j] = apply_score_mod(scores[j], &place, query, block->first + j);
        if (class != TILE_FULL && !apply_mask_mod(&place, query, block->first + j))
            scores[j] = -INFINITY;
    }
}

// From scaled products to final scores of a row, forbidden ones as -inf; seen: the keys of its band.
INLINE void finish_scores(float *scores, int query, int head, key_range seen, int class, const key_block *block,
                          const decode_place *at)
{
    const attention_args *a = at->a;
    const int count = block->count;
    float staged[BLOCK_K] ALIGNED;
    if (a->softcap > 0.0f)
        _Pragma("nounroll") FOR_EACH_VECTOR(j, count)
            VECTOR_AT(scores, j) = cap_score(VECTOR_AT(scores, j), a->softcap);
    if (has(a, FEATURE_BIAS)) {
        const float head_scale = has(a, FEATURE_BIAS_HEAD_SCALE)
                                     ? at->in->bias_head_scale[number_at(&a->bias_head_scale, at->batch, head)]
                                     : 1.0f;
        stage_row(staged, BIAS_TYPE, at->in->bias,
                  head_base(&a->bias, at->batch, head) + query * a->bias.token + block->first * a->bias_key,
                  a->bias_key, count);
        FOR_EACH_VECTOR(j, count)
            VECTOR_AT(scores, j) = add_bias(VECTOR_AT(scores, j), VECTOR_AT(staged, j), head_scale);
    }
    if (has(a, FEATURE_ALIBI)) {
        const float slope = at->in->alibi_slopes[number_at(&a->alibi_slopes, at->batch, head)];
        const float_v lanes = PASTE(convert_, SCORE_T)(lane_numbers());
        FOR_EACH_VECTOR(j, count)
            VECTOR_AT(scores, j) = add_alibi(VECTOR_AT(scores, j),
                                             (float)(query + at->seq.offset - (block->first + j)) - lanes, slope);
    }
    if (HAS_SCORE_MOD || HAS_MASK_MOD)
        apply_mods(scores, query, head, seen, class, block, at);
    if (has(a, FEATURE_MASK) && class != TILE_FULL) {
        stage_row(staged, TYPE_BOOL, at->in->mask,
                  head_base(&a->mask, at->batch, head) + query * a->mask.token + block->first * a->mask_key,
                  a->mask_key, count);
        FOR_EACH_VECTOR(j, count)
            VECTOR_AT(scores, j) =
                VECTOR_AT(staged, j) != 0.0f ? VECTOR_AT(scores, j) : (float_v)(-INFINITY);
    }
    if (a->tile_rows > 0 && class != TILE_FULL)
        drop_unlisted_tiles(scores, query, head, block, at);
}

#endif

// P = exp(S - m') in place, m' = max(m, rowmax(S)); and the sums with them. In most blocks the maximum stays: a
// branch that processors predict, so that nothing waits for what crosses lanes.
INLINE void softmax_row(decode_rows *rows, int r, int count)
{
    float *const scores = rows->scores[r];
    float_v largest = rows->max[r], sum = rows->sum[r];
    rows->rescale[r] = 1.0f;
    FOR_EACH_VECTOR(j, count)
        largest = larger(largest, VECTOR_AT(scores, j));
    const float new_max = largest_lane(largest);
    if (new_max > rows->max[r]) {
        const float_v rescale = exp2_of_negative((float_v)((rows->max[r] - new_max) * SCORE_TO_LOG2));
        sum *= rescale;
        rows->rescale[r] = *(const float *)&rescale;
        rows->max[r] = new_max;
    }
    const float max = rows->max[r];
    // Scores below the floor weigh something only in a row that has no others yet, which is rare.
    if (max <= SCORE_FLOOR)
        FOR_EACH_VECTOR(j, count)
            VECTOR_AT(scores, j) = settle_score(VECTOR_AT(scores, j));
    FOR_EACH_VECTOR(j, count) {
        const float_v weight = exp2_of_negative((VECTOR_AT(scores, j) - max) * SCORE_TO_LOG2);
        VECTOR_AT(scores, j) = weight;
        sum += weight;
    }
    rows->sum[r] = sum;
}

// The weights of all rows of the tile, from their products with the block's keys; and the block's live keys.
INLINE void weigh_block(decode_rows *rows, key_block *block, const decode_place *at)
{
    const attention_args *a = at->a;
    const int count = block->count;
    float is_live[BLOCK_K] ALIGNED;
    int has_holes = 0;
    if (SCORE_FULL)
        FOR_EACH_VECTOR(j, count)
            VECTOR_AT(is_live, j) = 0.0f;
    for (int r = 0; r < rows->count; r++) {
        float *const scores = rows->scores[r];
        const int query = query_of(rows, r, a), head = head_of(rows, r, at);
        key_range seen = keys_of_row(query, at->seq.kv_len, at->seq.band_begin, at->seq.band_end);
        seen.begin = max(seen.begin - block->first, 0);
        seen.end = min(seen.end - block->first, count);
        if (IS_SCALED(K_TYPE) && at->k_scales.is_given)
            FOR_EACH_VECTOR(j, count)
                VECTOR_AT(scores, j) = VECTOR_AT(scores, j) * VECTOR_AT(block->k_scale, j);
#if SCORE_FULL
        const int class = class_of_row(query, head, block, at);
        if (class == TILE_EMPTY)
            seen.end = seen.begin;
        else if (a->transforms || class != TILE_FULL)
            finish_scores(scores, query, head, seen, class, block, at);
        has_holes |= class != TILE_FULL;
#endif
        if (seen.begin > 0 || seen.end < count || count % VECTOR_WIDTH != 0)
            FOR_EACH_VECTOR(j, count) {
                const int_v key = lane_numbers() + j;
                VECTOR_AT(scores, j) = key >= seen.begin && key < seen.end ? VECTOR_AT(scores, j)
                                                                         : (float_v)(-INFINITY);
            }
        if (SCORE_FULL)
            FOR_EACH_VECTOR(j, count)
                VECTOR_AT(is_live, j) =
                    VECTOR_AT(scores, j) != (float_v)(-INFINITY) ? (float_v)(1.0f) : VECTOR_AT(is_live, j);
        softmax_row(rows, r, count);
        if (IS_SCALED(V_TYPE) && at->v_scales.is_given)
            FOR_EACH_VECTOR(j, count)
                VECTOR_AT(scores, j) = VECTOR_AT(scores, j) * VECTOR_AT(block->v_scale, j);
    }
    block->num_live = SCORE_FULL ? 0 : count;
    for (int j = 0; SCORE_FULL && j < count; j++)
        if (!has_holes || is_live[j] != 0.0f) // NaN is live
            block->live[block->num_live++] = j;
}

// ---- The tile ---------------------------------------------------------------------------------------------------

// A call for a group with its size as a constant; direct ones have any size up to the largest.
#define FOR_GROUP(num_rows, CALL) \
    if ((num_rows) == 1)          \
        CALL(1);                  \
    else if ((num_rows) == 2)     \
        CALL(2);                  \
    else                          \
        CALL(4)

// Whether vectors reach no further than rows do, and there is but one group to serve.
INLINE int is_direct(const decode_rows *rows, int columns, int step)
{
    return CAN_BE_DIRECT && rows->count <= LARGEST_GROUP && columns % step == 0;
}

INLINE void score_block(decode_rows *rows, float *scratch, code_scales *scales, const key_block *block,
                        const decode_place *at)
{
    const int columns = at->a->head_dim_qk;
#if CAN_BE_DIRECT
    if (is_direct(rows, columns, VECTOR_WIDTH)) {
        load_k_scales(scales, block, at);
#define SCORE(n) score_group(rows->scores, rows->q, n, 0, scales, block, columns, at)
        FOR_GROUP(rows->count, SCORE);
#undef SCORE
        return;
    }
#endif
    pack_k(scratch, at->in->k, &at->k, block, columns, V_IN_K ? VALUE_COLUMNS : VECTOR_WIDTH);
    for (int r = 0; r < rows->count; r += LARGEST_GROUP)
        score_group(rows->scores + r, rows->q + r, LARGEST_GROUP, scratch, scales, block, columns, at);
}

INLINE void add_block(decode_rows *rows, float *scratch, code_scales *scales, const key_block *block,
                      const decode_place *at)
{
    const int columns = at->a->head_dim_v;
#if CAN_BE_DIRECT
    if (is_direct(rows, columns, VALUE_COLUMNS)) {
        load_v_scales(scales, block, at);
#define ADD_VALUES(n) add_group(rows->o, rows->scores, rows->rescale, n, 0, scales, block, columns, at)
        FOR_GROUP(rows->count, ADD_VALUES);
#undef ADD_VALUES
        return;
    }
#endif
    if (!V_IN_K || is_direct(rows, at->a->head_dim_qk, VECTOR_WIDTH)) // otherwise scratch holds K
        pack_v(scratch, at->in->v, &at->v, block, columns, VALUE_COLUMNS);
    for (int r = 0; r < rows->count; r += LARGEST_GROUP)
        add_group(rows->o + r, rows->scores + r, rows->rescale + r, LARGEST_GROUP, scratch, scales, block,
                  columns, at);
}

// A function of its own, not inlined: PoCL (3.1, seen 2026-11-29) compiles a kernel three times.
static __attribute__((noinline)) USE_WHOLE_VECTORS
void decode_tile(int group, const attention_buffers *in, const attention_args *a)
{
    decode_rows rows;
    key_block block;
    code_scales scales;
    float scratch[BLOCK_K * STRIDE] ALIGNED;

    const work_place place = place_of_group(group, in, a);
    decode_place at;
    at.in = in;
    at.a = a;
    at.batch = place.batch;
    at.head_kv = place.head;
    at.split = place.split;
    at.seq = sequence_of(place.batch, in, a);
    at.k = rows_of_keys(&a->k, place.batch, place.head, &at.seq, in, a);
    at.v = rows_of_keys(&a->v, place.batch, place.head, &at.seq, in, a);
    at.k_blocks = a->head_dim_qk / BLOCK_ELEMENTS;
    at.v_blocks = a->head_dim_v / BLOCK_ELEMENTS;
    at.k_scales = scales_of_k(place.batch, place.head, &at.seq, in, a);
    at.v_scales = scales_of_v(place.batch, place.head, &at.seq, in, a);

    const long first_row = (long)place.q_tile * BLOCK_Q;
    rows.first_query = (int)(first_row / a->heads_per_kv);
    rows.first_head = (int)(first_row % a->heads_per_kv);
    rows.count = (int)min((long)at.seq.q_len * a->heads_per_kv - first_row, (long)BLOCK_Q);
    if (rows.count <= 0)
        return;
    load_rows(&rows, &at);
    const key_range seen = keys_of_rows(query_of(&rows, 0, a), query_of(&rows, rows.count - 1, a),
                                        at.seq.kv_len, at.seq.band_begin, at.seq.band_end);
    const key_range keys = keys_of_split(seen, place.split, BLOCK_K, a);

    // for each block of the split's keys
    //     S = Q K^T, forbidden ones -inf;   m' = max(m, rowmax(S))
    //     P = exp(S - m');   l = l exp(m - m') + rowsum(P)
    //     O = O exp(m - m') + P V
    // O = O / l;   lse = m + ln(l)
    block.end = keys.end;
    for (block.first = keys.begin; block.first < keys.end; block.first += BLOCK_K) {
        block.count = min(BLOCK_K, keys.end - block.first);
#if SCORE_FULL
        if (!block_is_needed(&rows, &block, &at))
            continue;
#endif
        if (IS_SCALED(K_TYPE) && at.k_scales.is_given)
            load_scales(block.k_scale, &at.k_scales, &block);
        if (IS_SCALED(V_TYPE) && at.v_scales.is_given)
            load_scales(block.v_scale, &at.v_scales, &block);
        score_block(&rows, scratch, &scales, &block, &at);
        weigh_block(&rows, &block, &at);
        add_block(&rows, scratch, &scales, &block, &at);
    }
    store_rows(&rows, &at);
}

__kernel __attribute__((reqd_work_group_size(1, 1, 1))) void decode(ATTENTION_BUFFERS, attention_args args)
{
    const attention_buffers in = GATHERED_BUFFERS;
    if (args.num_groups > 0)
        decode_tile(get_group_id(1) + args.first_group, &in, &args);
}
