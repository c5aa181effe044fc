// decode.cl: attention of few query rows for any device with OpenCL C 1.2. All that such a call does is read K
// and V once, so nothing stands between global memory and the registers that multiply: no tile is copied.
//
// A work-group owns ROWS rows, pairs of query and head of one KV head (address.cl), and a split of the keys. It
// walks over them ITEMS at a time. Twice in a step its work-items share the work differently:
//     S = Q K^T   LANES_QK neighbours share a key; each multiplies its own columns of K with its own columns of
//                 all rows of Q, which stay in registers; then work-item i sums up what they gave for key i
//     O += P V    LANES_V neighbours share a key; each owns the same columns of all rows of O for the keys that
//                 it gets; these are summed up once, at the end
// A work-item's columns are a quad, neighbours taking neighbouring ones, so that a key's row is read at once. (Two
// quads each halve what goes through local memory, but need registers that then hold fewer loads; see few_rows
// in src/tune_portable.c.)
//
// Scores of key i are work-item i's own. The softmax is lazy, as in portable.cl: P is computed against the rows'
// references as they are; only if some score outgrew its reference is the step done again, exactly.

#ifndef HEAD_DIM_QK // padded head dims, multiples of 32; the true ones are arguments
#define HEAD_DIM_QK 64
#endif
#ifndef HEAD_DIM_V
#define HEAD_DIM_V 64
#endif
#ifndef ITEMS // work-items, and keys of a step; a multiple of LANES_QK and LANES_V
#define ITEMS 64
#endif
#ifndef UNROLL // keys of a work-item whose loads are under way together; divides LANES_QK and LANES_V
#define UNROLL 8
#endif

// Of these where rows are read in single elements, which takes more registers.
#define UNROLL_ANY (UNROLL < 8 ? UNROLL : 8)
#define STEP_KEYS(aligned) ((aligned) ? UNROLL : UNROLL_ANY)

#define ROWS BLOCK_Q
#define LANES_QK (HEAD_DIM_QK / 4)
#define LANES_V (HEAD_DIM_V / 4)
#define KEYS_QK (ITEMS / LANES_QK) // keys that the work-group has in hand at a time
#define KEYS_V (ITEMS / LANES_V)

// Floats from key to key: the odd quad keeps work-items that read whole rows in different banks.
#define PARTIAL_PITCH ((ROWS * LANES_QK + 3) / 4 * 4 + 4)
#define MAX_PARTS_PER_ROW 8 // of the search for a row's largest score
#define PARTIAL_FLOATS (ITEMS * PARTIAL_PITCH)
#define RESULT_FLOATS (KEYS_V * ROWS * HEAD_DIM_V)
#define SCRATCH_FLOATS (PARTIAL_FLOATS > RESULT_FLOATS ? PARTIAL_FLOATS : RESULT_FLOATS)

typedef QUAD(K_TYPE) k_quad;
typedef QUAD(V_TYPE) v_quad;

#define inlined static inline __attribute__((always_inline))

typedef struct decode_memory {
    __local float *scratch; // partial products [key][lane][row]; at the end partial O
    __local float *weights; // [key][row]
    __local int *seen; // of each key, whether some row may see it; with SCORE_FULL only
    volatile __local int *outgrown;
    __local long *k_rows; // of the keys of two steps, with pages only
    __local long *v_rows;
} decode_memory;

typedef struct decoder {
    int id;
    int lane_qk, key_qk; // which columns, and the first of which keys
    int lane_v, key_v;
    int batch;
    int group; // heads of the KV head
    int first_head;
    int split;
    int first_row;
    int num_rows; // that exist
    sequence seq;
    key_range keys;
    key_rows k, v;
    key_scales k_scales, v_scales;
    decode_memory memory;
    const __global uchar *map_plane;
} decoder;

inlined int query_of(const decoder *d, int r) { return (d->first_row + min(r, d->num_rows - 1)) / d->group; }
inlined int head_of(const decoder *d, int r)
{
    return d->first_head + (d->first_row + min(r, d->num_rows - 1)) % d->group;
}

inlined decoder make_decoder(const attention_buffers *in, const attention_args *a, const decode_memory *memory,
                             const work_place *place)
{
    decoder d;
    d.id = (int)get_local_id(0);
    d.lane_qk = d.id % LANES_QK;
    d.key_qk = d.id / LANES_QK;
    d.lane_v = d.id % LANES_V;
    d.key_v = d.id / LANES_V;
    d.batch = place->batch;
    d.group = a->heads_per_kv;
    d.first_head = place->head * d.group;
    d.split = place->split;
    d.seq = sequence_of(place->batch, in, a);
    d.first_row = place->q_tile * ROWS;
    d.num_rows = min(ROWS, d.seq.q_len * d.group - d.first_row);
    d.keys.begin = d.keys.end = 0;
    if (d.num_rows > 0)
        d.keys = keys_of_split(keys_of_rows(query_of(&d, 0), query_of(&d, ROWS - 1), d.seq.kv_len,
                                            d.seq.band_begin, d.seq.band_end),
                               d.split, ITEMS, a);
    d.k = rows_of_keys(&a->k, place->batch, place->head, &d.seq, in, a);
    d.v = rows_of_keys(&a->v, place->batch, place->head, &d.seq, in, a);
    d.k_scales = scales_of_k(place->batch, place->head, &d.seq, in, a);
    d.v_scales = scales_of_v(place->batch, place->head, &d.seq, in, a);
    d.map_plane = in->workspace + head_base(&a->tile_map, place->batch, d.first_head);
    d.memory = *memory;
    return d;
}

// Numbers of all rows side by side in local memory, by quads where they make up any.
inlined void store_rows(__local float *to, const float x[ROWS])
{
#if ROWS % 4 == 0
#pragma unroll
    for (int r = 0; r < ROWS; r += 4)
        *(__local float4 *)(to + r) = (float4)(x[r], x[r + 1], x[r + 2], x[r + 3]);
#else
#pragma unroll
    for (int r = 0; r < ROWS; r++)
        to[r] = x[r];
#endif
}

inlined void load_rows(float x[ROWS], const __local float *from)
{
#if ROWS % 4 == 0
#pragma unroll
    for (int r = 0; r < ROWS; r += 4) {
        const float4 quad = *(const __local float4 *)(from + r);
        x[r] = quad.x;
        x[r + 1] = quad.y;
        x[r + 2] = quad.z;
        x[r + 3] = quad.w;
    }
#else
#pragma unroll
    for (int r = 0; r < ROWS; r++)
        x[r] = from[r];
#endif
}

// ---- Keys and values to registers ------------------------------------------------------------------------

// Where rows are: known from the key, or with pages looked up once for each key of a step, in turns in one of two
// lists. Keys beyond the last repeat it.
inlined long k_row(const decoder *d, int first, int j, int turn)
{
    return PAGE_SIZE > 0 ? d->memory.k_rows[turn * ITEMS + j]
                         : row_of_key(&d->k, min(first + j, d->keys.end - 1));
}

inlined long v_row(const decoder *d, int first, int j, int turn)
{
    return PAGE_SIZE > 0 ? d->memory.v_rows[turn * ITEMS + j]
                         : row_of_key(&d->v, min(first + j, d->keys.end - 1));
}

// The look-up of the work-item's own key of a step is begun early and kept behind a barrier: what it reads comes
// from far.
inlined long2 look_up_rows(const decoder *d, int first)
{
    const int key = min(first + d->id, d->keys.end - 1);
    long2 rows = (long2)(0);
    if (PAGE_SIZE > 0 && first < d->keys.end)
        rows = (long2)(row_of_key(&d->k, key), row_of_key(&d->v, key));
    return rows;
}

inlined void keep_rows(const decoder *d, long2 rows, int turn)
{
    if (PAGE_SIZE > 0) {
        d->memory.k_rows[turn * ITEMS + d->id] = rows.x;
        d->memory.v_rows[turn * ITEMS + d->id] = rows.y;
    }
}

// The work-item's columns of one row. Loads are unconditional where they can be, for conditions would become
// branches; what lies beyond the true head dim is zero, for it could be inf.
#define LOAD_LANE(name, TYPE)                                                                              \
    inlined QUAD(TYPE) name(const __global STORAGE(TYPE) *row, int lane, int columns, float scale,         \
                            int aligned)                                                                   \
    {                                                                                                      \
        const int column = 4 * lane;                                                                       \
        const QUAD(TYPE) quad = aligned ? LOAD_QUAD(TYPE)(row, min(column, columns - 4))                   \
                                        : GATHER_QUAD(TYPE)(row, column, columns);                         \
        const QUAD(TYPE) inside = !aligned || column < columns ? quad : (QUAD(TYPE))(0);                   \
        return IS_SCALED(TYPE) ? SCALED_QUAD(TYPE)(inside, scale) : inside;                                \
    }
LOAD_LANE(load_k_lane, K_TYPE)
LOAD_LANE(load_v_lane, V_TYPE)

// STEP_KEYS of the keys that are this work-item's, from number `step` on: under way until they are used. Whole steps
// of keys at even distances need one addition for each.
#define FETCH(name, TYPE, QUADS, TENSOR, ROW_OF, SCALES, LANE, FIRST_KEY, KEYS, COLUMNS, LOAD)        \
    inlined void name(QUADS quads[UNROLL], int first, int step, int turn, const decoder *d,    \
                      const attention_buffers *in, const attention_args *a, int aligned)                   \
    {                                                                                                      \
        const int begin = step * KEYS + d->FIRST_KEY;                                                      \
        if (PAGE_SIZE == 0 && first + ITEMS <= d->keys.end) {                                              \
            const __global STORAGE(TYPE) *row = in->TENSOR + row_of_key(&d->TENSOR, first + begin);        \
            const long distance = KEYS * d->TENSOR.token;                                                  \
            _Pragma("unroll") for (int u = 0; u < STEP_KEYS(aligned); u++, row += distance)                \
            {                                                                                              \
                const int key = first + begin + u * KEYS;                                                  \
                quads[u] = LOAD(row, d->LANE, a->COLUMNS,                                                  \
                                IS_SCALED(TYPE) ? scale_of_key(&d->SCALES, key) : 1.0f, aligned);          \
            }                                                                                              \
        } else {                                                                                           \
            _Pragma("unroll") for (int u = 0; u < STEP_KEYS(aligned); u++)                                 \
            {                                                                                              \
                const int key = min(first + begin + u * KEYS, d->keys.end - 1);                            \
                quads[u] = LOAD(in->TENSOR + ROW_OF(d, first, begin + u * KEYS, turn), d->LANE,            \
                                a->COLUMNS, IS_SCALED(TYPE) ? scale_of_key(&d->SCALES, key) : 1.0f,        \
                                aligned);                                                                  \
            }                                                                                              \
        }                                                                                                  \
    }
FETCH(fetch_keys, K_TYPE, k_quad, k, k_row, k_scales, lane_qk, key_qk, KEYS_QK, head_dim_qk, load_k_lane)
FETCH(fetch_values, V_TYPE, v_quad, v, v_row, v_scales, lane_v, key_v, KEYS_V, head_dim_v, load_v_lane)

// The work-item's columns of all rows of Q, scaled; zero beyond the true head dim.
inlined void load_q(float4 q[ROWS], const decoder *d, const attention_buffers *in,
                    const attention_args *a)
{
    const float scale = SCORE_FULL ? a->scale : a->scale_log2;
#pragma unroll
    for (int r = 0; r < ROWS; r++) {
        const __global q_t *row = in->q + query_base(&a->q, d->batch, head_of(d, r), &d->seq) +
                                  query_of(d, r) * a->q.token;
        const int column = 4 * d->lane_qk;
        q[r] = (float4)(0.0f);
        if (column < a->head_dim_qk)
            q[r] = UNPACK_QUAD(Q_TYPE)(GATHER_QUAD(Q_TYPE)(row, column, a->head_dim_qk)) * scale;
    }
}

// ---- Scores ----------------------------------------------------------------------------------------------

// The products of one key that this work-item has the columns for.
inlined void multiply_key(k_quad quad, const float4 q[ROWS], int j, const decoder *d)
{
    const float4 k = UNPACK_QUAD(K_TYPE)(quad);
    float sum[ROWS];
#pragma unroll
    for (int r = 0; r < ROWS; r++)
        sum[r] = fma(q[r].x, k.x, fma(q[r].y, k.y, fma(q[r].z, k.z, q[r].w * k.w)));
    store_rows(d->memory.scratch + j * PARTIAL_PITCH + d->lane_qk * ROWS, sum);
}

// Partial products of the step's keys, the first of which have been fetched, to local memory. Behind the barrier
// they are all there.
inlined void multiply_keys(k_quad quads[UNROLL], float4 q[ROWS], int first,
                           int turn, const decoder *d, const attention_buffers *in, const attention_args *a,
                           int aligned)
{
#pragma unroll 1
    for (int step = 0; step < LANES_QK; step += STEP_KEYS(aligned)) {
        if (step > 0)
            fetch_keys(quads, first, step, turn, d, in, a, aligned);
#pragma unroll
        for (int u = 0; u < STEP_KEYS(aligned); u++)
            multiply_key(quads[u], q, (step + u) * KEYS_QK + d->key_qk, d);
    }
    barrier(CLK_LOCAL_MEM_FENCE);
}

// The products of the work-item's own key.
inlined void sum_lanes(float sum[ROWS], const decoder *d)
{
    const __local float *partial = d->memory.scratch + d->id * PARTIAL_PITCH;
#pragma unroll
    for (int r = 0; r < ROWS; r++)
        sum[r] = 0.0f;
#pragma unroll 4
    for (int lane = 0; lane < LANES_QK; lane++) {
        float x[ROWS];
        load_rows(x, partial + lane * ROWS);
#pragma unroll
        for (int r = 0; r < ROWS; r++)
            sum[r] += x[r];
    }
}

// From the product to the final score of one row and key: score.cl's order. class: of the step, as far as masks
// go.
inlined float finish_score(float score, int r, int key, int class, const decoder *d, const attention_buffers *in,
                           const attention_args *a)
{
    const int query = query_of(d, r);
    const key_range seen = keys_of_row(query, d->keys.end, d->seq.band_begin, d->seq.band_end);
#if SCORE_FULL
    const int head = head_of(d, r), j = min(key, d->keys.end - 1);
    const mod_place place = make_mod_place(d->batch, head, d->seq.offset, in->user, a);
    if (a->softcap > 0.0f)
        score = cap_score(score, a->softcap);
    if (has(a, FEATURE_BIAS)) {
        const __global bias_t *bias = in->bias + head_base(&a->bias, d->batch, head) + query * a->bias.token;
        const float head_scale = has(a, FEATURE_BIAS_HEAD_SCALE)
                                     ? in->bias_head_scale[number_at(&a->bias_head_scale, d->batch, head)]
                                     : 1.0f;
        score = add_bias(score, LOAD1(BIAS_TYPE)(bias, j * a->bias_key), head_scale);
    }
    if (has(a, FEATURE_ALIBI))
        score = add_alibi(score, (float)(query + d->seq.offset - j),
                          in->alibi_slopes[number_at(&a->alibi_slopes, d->batch, head)]);
    score = apply_score_mod(score, &place, query, j);
    if (class != TILE_FULL) {
        if (has(a, FEATURE_MASK) &&
            in->mask[head_base(&a->mask, d->batch, head) + query * a->mask.token + j * a->mask_key] == 0)
            score = -INFINITY;
        if (a->tile_rows > 0 && tile_class(d->map_plane + (head - d->first_head) * a->tile_map.head, query, query,
                                           j, j, a) == TILE_EMPTY)
            score = -INFINITY;
        if (!apply_mask_mod(&place, query, j))
            score = -INFINITY;
    }
#endif
    return key >= seen.begin && key < seen.end ? score : -INFINITY;
}

// The final scores of the work-item's key, settled; notes whether some row may see it.
inlined void take_scores(float s[ROWS], int first, int class, const decoder *d, const attention_buffers *in,
                         const attention_args *a)
{
    int seen = 0;
    sum_lanes(s, d);
#pragma unroll
    for (int r = 0; r < ROWS; r++) {
        s[r] = finish_score(s[r], r, first + d->id, class, d, in, a);
        seen |= s[r] != -INFINITY && r < d->num_rows; // NaN is seen
        s[r] = settle_score(s[r]);
    }
    if (SCORE_FULL)
        d->memory.seen[d->id] = seen;
}

// ---- Softmax ---------------------------------------------------------------------------------------------

inlined void store_weights(const float s[ROWS], const float m[ROWS], float p[ROWS], const decoder *d)
{
#pragma unroll
    for (int r = 0; r < ROWS; r++)
        p[r] = WEIGHT(s[r] - m[r]);
    store_rows(d->memory.weights + d->id * ROWS, p);
}

// Each row's largest score of the step: in parts, then the parts by every work-item.
inlined void find_largest(float largest[ROWS], const float s[ROWS], const decoder *d)
{
    __local float *scores = d->memory.scratch, *parts = scores + ROWS * ITEMS;
    barrier(CLK_LOCAL_MEM_FENCE); // partial products have been read
#pragma unroll
    for (int r = 0; r < ROWS; r++)
        scores[r * ITEMS + d->id] = s[r];
    barrier(CLK_LOCAL_MEM_FENCE);
    for (int begin = 0; begin < ROWS * MAX_PARTS_PER_ROW; begin += ITEMS) {
        const int i = begin + d->id;
        if (i >= ROWS * MAX_PARTS_PER_ROW)
            continue;
        float part = SCORE_FORBIDDEN;
        const __local float *row = scores + i / MAX_PARTS_PER_ROW * ITEMS;
#pragma unroll 1
        for (int j = i % MAX_PARTS_PER_ROW; j < ITEMS; j += MAX_PARTS_PER_ROW)
            part = fmax(part, row[j]);
        parts[i] = part;
    }
    barrier(CLK_LOCAL_MEM_FENCE);
#pragma unroll
    for (int r = 0; r < ROWS; r++) {
        largest[r] = SCORE_FORBIDDEN;
#pragma unroll 1
        for (int i = 0; i < MAX_PARTS_PER_ROW; i++)
            largest[r] = fmax(largest[r], parts[r * MAX_PARTS_PER_ROW + i]);
    }
}

// P of the step to local memory, and to l what is this work-item's. Behind the barrier P is all there.
inlined void soften(const float s[ROWS], float m[ROWS], float l[ROWS], float4 o[ROWS], const decoder *d)
{
    float p[ROWS];
    int outgrown = 0;
#pragma unroll
    for (int r = 0; r < ROWS; r++)
        outgrown |= s[r] - m[r] > LAZY_LIMIT;
    if (outgrown)
        atomic_or(d->memory.outgrown, 1);
    store_weights(s, m, p, d);
    barrier(CLK_LOCAL_MEM_FENCE);
    if (*d->memory.outgrown) {
        float largest[ROWS];
        find_largest(largest, s, d);
#pragma unroll
        for (int r = 0; r < ROWS; r++) {
            largest[r] = fmax(largest[r], m[r]);
            const float shrink = WEIGHT(m[r] - largest[r]);
            m[r] = largest[r];
            l[r] *= shrink;
            o[r] *= shrink;
        }
        store_weights(s, m, p, d);
        if (d->id == 0) // everybody has read it
            *d->memory.outgrown = 0;
        barrier(CLK_LOCAL_MEM_FENCE);
    }
#pragma unroll
    for (int r = 0; r < ROWS; r++)
        l[r] += p[r];
}

// ---- Values ----------------------------------------------------------------------------------------------

// O += P V for the keys and columns that are this work-item's, the first of which have been fetched. has_holes:
// whether there may be keys that no row may see, whose values must not be touched (0 * NaN is NaN).
inlined void add_values(float4 o[ROWS], v_quad quads[UNROLL], int first, int turn,
                        int has_holes, const decoder *d, const attention_buffers *in,
                        const attention_args *a, int aligned)
{
#pragma unroll 1
    for (int step = 0; step < LANES_V; step += STEP_KEYS(aligned)) {
        if (step > 0)
            fetch_values(quads, first, step, turn, d, in, a, aligned);
#pragma unroll
        for (int u = 0; u < STEP_KEYS(aligned); u++) {
            const int j = (step + u) * KEYS_V + d->key_v;
            const int is_read = !SCORE_FULL || !has_holes || d->memory.seen[j];
            float p[ROWS];
            load_rows(p, d->memory.weights + j * ROWS);
            const float4 v = UNPACK_QUAD(V_TYPE)(is_read ? quads[u] : (v_quad)(0));
#pragma unroll
            for (int r = 0; r < ROWS; r++)
                o[r] = fma((float4)(p[r]), v, o[r]);
        }
    }
}

// ---- Results ---------------------------------------------------------------------------------------------

// One row: to o and lse, or with several splits to the workspace. Neighbours take neighbouring columns.
inlined void store_row(int r, float m, float sum, const decoder *d, const attention_buffers *in,
                       const attention_args *a)
{
    const int query = query_of(d, r), head = head_of(d, r);
    const int empty = sum == 0.0f; // no key was allowed
    const float inverse = empty ? 0.0f : 1.0f / sum;
    const int is_part = a->num_splits > 1;
    const long place = part_place(d->batch, query, head, d->split, &d->seq, a);
    __global float *part = part_o(in->workspace, place, a);
    __global o_t *o = in->o + query_base(&a->o, d->batch, head, &d->seq) + query * a->o.token;
    for (int begin = 0; begin < a->head_dim_v; begin += ITEMS) { // steps of all alike: see rows.cl
        const int c = begin + d->id;
        if (c >= a->head_dim_v)
            continue;
        float value = 0.0f;
#pragma unroll 1
        for (int j = 0; j < KEYS_V; j++)
            value += d->memory.scratch[(j * ROWS + r) * HEAD_DIM_V + c];
        value = empty ? 0.0f : value * inverse;
        if (is_part)
            part[c] = value;
        else
            STORE1(O_TYPE)(o, c, value);
    }
    if (d->id == 0 && is_part) {
        part_state(in->workspace, place, a)[0] = m;
        part_state(in->workspace, place, a)[1] = sum;
    }
    if (d->id == 0 && !is_part && has(a, FEATURE_LSE))
        in->lse[query_base(&a->lse, d->batch, head, &d->seq) + query * a->lse.token] =
            empty ? -INFINITY : (m * SCORE_TO_NATURAL + log(sum)) * a->lse_unit;
}

// The sum of what all work-items have, to every one of them.
inlined float sum_of_items(float x, const decoder *d)
{
    __local float *numbers = d->memory.scratch;
    float sum = 0.0f;
    barrier(CLK_LOCAL_MEM_FENCE);
    numbers[d->id] = x;
    barrier(CLK_LOCAL_MEM_FENCE);
#pragma unroll 4
    for (int i = 0; i < ITEMS; i++)
        sum += numbers[i];
    return sum;
}

inlined void store_results(const float m[ROWS], float l[ROWS], float4 o[ROWS], const decoder *d,
                           const attention_buffers *in, const attention_args *a)
{
#pragma unroll
    for (int r = 0; r < ROWS; r++)
        l[r] = sum_of_items(l[r], d);
    barrier(CLK_LOCAL_MEM_FENCE);
#pragma unroll
    for (int r = 0; r < ROWS; r++)
        *(__local float4 *)(d->memory.scratch + (d->key_v * ROWS + r) * HEAD_DIM_V + 4 * d->lane_v) = o[r];
    barrier(CLK_LOCAL_MEM_FENCE);
#pragma unroll
    for (int r = 0; r < ROWS; r++)
        if (r < d->num_rows)
            store_row(r, m[r], l[r], d, in, a);
}

// ---- The whole -------------------------------------------------------------------------------------------

// A sink takes part in the first split alone; of the sums it is work-item 0's.
inlined void begin_rows(float m[ROWS], float l[ROWS], float4 o[ROWS], const decoder *d,
                        const attention_buffers *in, const attention_args *a)
{
    const row_start none = {SCORE_FLOOR, 0.0f};
#pragma unroll
    for (int r = 0; r < ROWS; r++) {
        const row_start start =
            d->split == 0 && d->num_rows > 0 ? start_of_rows(d->batch, head_of(d, r), in->sinks, a) : none;
        m[r] = start.max;
        l[r] = d->id == 0 ? start.sum : 0.0f;
        o[r] = (float4)(0.0f);
    }
    if (d->id == 0)
        *d->memory.outgrown = 0;
}

// The class of the step's keys as far as the map tells; without one, what forbids keys leaves none full.
inlined int class_of_step(int first, const decoder *d, const attention_args *a)
{
    int empty = 1, full = 1;
    for (int h = 0; h < (a->tile_map.head != 0 ? d->group : 1); h++) {
        const int of_head =
            tile_class(d->map_plane + h * a->tile_map.head, query_of(d, 0), query_of(d, ROWS - 1), first,
                       min(first + ITEMS, d->keys.end) - 1, a);
        empty &= of_head == TILE_EMPTY;
        full &= of_head == TILE_FULL;
    }
    return empty ? TILE_EMPTY : full ? class_without_map(a) : TILE_PARTIAL;
}

// The first step from `key` on that masks leave something of; beyond the last key if there is none.
inlined int next_step(int *class, int key, const decoder *d, const attention_args *a)
{
    *class = class_without_map(a);
    if (SCORE_FULL && a->map_width > 0)
        for (; key < d->keys.end; key += ITEMS) {
            *class = class_of_step(key, d, a);
            if (*class != TILE_EMPTY)
                break;
        }
    return key;
}

inlined void decode(const attention_buffers *in, const attention_args *a, const decode_memory *memory,
                    const int aligned)
{
    const work_place place = place_of_group((int)get_group_id(1) + a->first_group, in, a);
    const decoder decoder_ = make_decoder(in, a, memory, &place);
    const decoder *d = &decoder_;
    float m[ROWS], l[ROWS];
    float4 o[ROWS], q[ROWS];
    begin_rows(m, l, o, d, in, a);
    if (d->keys.begin < d->keys.end)
        load_q(q, d, in, a);

    // for each ITEMS of the split's keys:
    //     S = Q K^T, forbidden ones -inf
    //     P = exp(S - m); if some score outgrew m: m = row maximum, rescale l and O, P again
    //     l += P;  O += P V
    // write O / l and ln(sum exp) = m + ln l
    int class, turn = 0;
    int first = next_step(&class, d->keys.begin, d, a);
    k_quad k[UNROLL];
    keep_rows(d, look_up_rows(d, first), turn);
    barrier(CLK_LOCAL_MEM_FENCE);
    if (first < d->keys.end)
        fetch_keys(k, first, 0, turn, d, in, a, aligned);
    while (first < d->keys.end) {
        int next_class;
        const int next = next_step(&next_class, first + ITEMS, d, a);
        float s[ROWS];
        v_quad v[UNROLL];
        const long2 next_rows = look_up_rows(d, next);
        multiply_keys(k, q, first, turn, d, in, a, aligned);
        fetch_values(v, first, 0, turn, d, in, a, aligned); // under way during the softmax
        keep_rows(d, next_rows, !turn); // behind the barrier nobody uses the list of the step before
        take_scores(s, first, class, d, in, a);
        soften(s, m, l, o, d);
        if (next < d->keys.end)
            fetch_keys(k, next, 0, !turn, d, in, a, aligned); // under way during P V
        add_values(o, v, first, turn, class != TILE_FULL, d, in, a, aligned);
        first = next;
        class = next_class;
        turn = !turn;
    }
    store_results(m, l, o, d, in, a);
    barrier(CLK_LOCAL_MEM_FENCE); // as at the end of portable.cl
}

#define KERNEL(name, aligned)                                                                              \
    __kernel __attribute__((reqd_work_group_size(ITEMS, 1, 1))) void name(ATTENTION_BUFFERS,               \
                                                                          attention_args args)             \
    {                                                                                                      \
        __local float4 scratch[(SCRATCH_FLOATS + 3) / 4];                                                  \
        __local float4 weights[(ITEMS * ROWS + 3) / 4];                                                               \
        __local int seen[SCORE_FULL ? ITEMS : 1];                                                          \
        __local int outgrown;                                                                              \
        __local long k_rows[PAGE_SIZE > 0 ? 2 * ITEMS : 1], v_rows[PAGE_SIZE > 0 ? 2 * ITEMS : 1];         \
        const decode_memory memory = {(__local float *)scratch, (__local float *)weights, seen, &outgrown, \
                                      k_rows, v_rows};                                                     \
        const attention_buffers buffers = GATHERED_BUFFERS;                                                \
        if ((int)get_group_id(1) < args.num_groups)                                                        \
            decode(&buffers, &args, &memory, aligned);                                                     \
    }

KERNEL(decode_any, 0)
KERNEL(decode_aligned, 1)
