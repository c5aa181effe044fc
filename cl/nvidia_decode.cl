// nvidia_decode.cl: attention of few query rows on the matrix units of NVIDIA's GPUs, compute capability 8.0 and up,
// for q, k and v of 16 bits, or q of f16 and caches of bytes. All that such a call does is read K and V once: they go
// straight from global memory to the registers that multiply (nvidia_ptx.cl tells which), eight elements at a time.
// Bytes stay bytes until they are multiplied; as f16 they are exact, and their scales multiply scores and weights.
//
// A work-group owns BLOCK_Q rows, pairs of query and head of one KV head (address.cl), and a split of the keys. Its
// warps take turns at steps of STEP_KEYS keys and know nothing of each other until the keys end:
//     S = Q K^T       rows are rows: work-item (g, c) has rows g and g + 8 at keys 2c, 2c+1 of each 8
//     O^T = V^T P^T   rows are columns, so that P is taken as S leaves it; work-item (g, c) has rows 2c, 2c+1 of
//                     each 8 at 8 columns of each 64
// The order of the columns within either product is free: so a work-item's 8 neighbouring columns of a key, one load,
// are what it feeds into two steps over K, or four rows of V^T.

#ifndef HEAD_DIM_QK // padded head dims, multiples of 32; the true ones are arguments
#define HEAD_DIM_QK 64
#endif
#ifndef HEAD_DIM_V
#define HEAD_DIM_V 64
#endif
#ifndef ROW_GROUPS // of 8 rows: 1 or 2; BLOCK_Q is 8 times as many
#define ROW_GROUPS 1
#endif
#ifndef WARPS // of a work-group
#define WARPS 8
#endif
#ifndef KEY_BLOCKS // of 16 keys, of a step: 1 or 2
#define KEY_BLOCKS 1
#endif
#ifndef AHEAD // 1: keys and values of the next step are under way during this one
#define AHEAD 1
#endif
#ifndef REGISTERS // what the compiler is told to do with, by an option: see below; 0: not told
#define REGISTERS 0
#endif
#ifndef Q_HELD // 1: Q stays in registers; 0: in local memory
#define Q_HELD 1
#endif

#define ITEMS (WARPS * WARP)
#define STEP_KEYS (16 * KEY_BLOCKS)
#define K_PIECES (HEAD_DIM_QK / 32)
#define V_PIECES ((HEAD_DIM_V + 63) / 64)
#define PIECE 8 // elements

#define HAS_BYTES IS_SCALED(K_TYPE) // and V_TYPE
#if HAS_BYTES
#define WORDS 2 // registers of a piece of K or V as it is stored
#define LOAD_WORDS load_8
#else
#define WORDS 4
#define LOAD_WORDS load_16
#endif
#define F16_WORDS 4 // of any 16 bits

#define MULTIPLY_AS_Q PASTE(multiply_, Q_TYPE)
#define PACK_AS_Q PASTE(pack_, Q_TYPE)

// [key group][piece]: key 8 t + g, columns 32 i + 8 c
#define K_FRAGMENTS(k) uint k[2 * KEY_BLOCKS][K_PIECES][WORDS]
// [key block][key][piece]: key 16 b + 2 c + r % 2 + r / 2 * 8, columns 64 h + 8 g
#define V_FRAGMENTS(v) uint v[KEY_BLOCKS][4][V_PIECES][WORDS]
// [row group][piece]: row 8 r + g, columns as K's
#define Q_FRAGMENTS(q) uint q[ROW_GROUPS][Q_HELD ? K_PIECES : 1][F16_WORDS]
#define SCORES(s) float s[2 * KEY_BLOCKS][4]
// [row group][column group]: [4 h + t] has columns 64 h + 8 g + 2 t and the next, each for rows 2c and 2c + 1
#define RESULTS(o) float o[ROW_GROUPS][4 * V_PIECES][4]

// From row to row of partial O in local memory; the odd pair spreads rows over the banks.
#define PART_PITCH 66

// What is the same for all work-items of a group and costs loads and divisions to find out: kept in local memory, not in
// registers, for when the keys have ended.
typedef struct decode_place {
    sequence seq;
    int batch;
    int first_head;
    int split;
    int first_row;
    int tile; // of the count of splits
} decode_place;

typedef struct decode_memory {
    __local decode_place *place;
    __local float *o;      // 64 columns of each warp's rows
    __local float *m;      // of each warp's rows; then what their O is multiplied by
    __local float *l;
    __local float *totals; // of each row: largest score, sum
    __local int *is_last;
    __local uint4 *q;      // with Q_HELD == 0
} decode_memory;

typedef struct decoder {
    int id;
    int lane;
    int warp;
    int batch;
    int group; // heads of the KV head
    int first_head;
    int split;
    int first_row;
    int num_rows; // that exist
    int tile;
    sequence seq;
    key_range keys;
    key_range seen[ROW_GROUPS]; // of these, by the work-item's rows
    const __global k_t *k_head; // rows of k and v count from here
    const __global v_t *v_head;
    key_rows k, v;
    key_scales k_scales, v_scales;
    const __global uchar *map_plane;
    decode_memory memory;
} decoder;

// Rows that do not exist repeat the last one. (A division takes as long as a hundred other instructions: where all rows
// are of the first query there is none.)
inlined int row_of_group(const decoder *d, int r) { return d->first_row + min(r, d->num_rows - 1); }
inlined int query_of(const decoder *d, int r)
{
    const int row = row_of_group(d, r);
    return d->seq.q_len == 1 ? 0 : row / d->group;
}
inlined int head_of(const decoder *d, int r)
{
    const int row = row_of_group(d, r);
    return d->first_head + (d->seq.q_len == 1 ? row : row % d->group);
}

// Of what a decoder has, that which is not about keys.
inlined decoder decoder_at(const decode_place *place, const decode_memory *memory, const attention_args *a)
{
    decoder d;
    d.id = (int)get_local_id(0);
    d.lane = d.id % WARP;
    d.warp = d.id / WARP;
    d.batch = place->batch;
    d.group = a->heads_per_kv;
    d.first_head = place->first_head;
    d.split = place->split;
    d.first_row = place->first_row;
    d.tile = place->tile;
    d.seq = place->seq;
    d.num_rows = min(BLOCK_Q, d.seq.q_len * d.group - d.first_row);
    d.memory = *memory;
    return d;
}

inlined decoder make_decoder(const attention_buffers *in, const attention_args *a, const decode_memory *memory)
{
    const int group = (int)get_group_id(1) + a->first_group;
    const work_place place = place_of_group(group, in, a);
    decode_place found;
    found.seq = sequence_of(place.batch, in, a);
    found.batch = place.batch;
    found.first_head = place.head * a->heads_per_kv;
    found.split = place.split;
    found.first_row = place.q_tile * BLOCK_Q;
    found.tile = a->num_splits > 1 ? tile_of_group(group, a) : 0;
    decoder d = decoder_at(&found, memory, a);
    if (d.id == 0)
        *memory->place = found;
    d.keys.begin = d.keys.end = 0;
    if (d.num_rows > 0)
        d.keys = keys_of_split(keys_of_rows(query_of(&d, 0), query_of(&d, BLOCK_Q - 1), d.seq.kv_len,
                                            d.seq.band_begin, d.seq.band_end),
                               d.split, WARPS * STEP_KEYS, a);
    if (d.keys.end <= d.keys.begin) // steps begin before the first key
        d.keys.begin = d.keys.end = 0;
#pragma unroll
    for (int r = 0; r < ROW_GROUPS; r++) {
        d.seen[r] = keys_of_row(query_of(&d, d.lane / 4 + 8 * r), d.keys.end, d.seq.band_begin, d.seq.band_end);
        d.seen[r].begin = max(d.seen[r].begin, d.keys.begin);
    }
    d.k = rows_of_keys(&a->k, place.batch, place.head, &d.seq, in, a);
    d.v = rows_of_keys(&a->v, place.batch, place.head, &d.seq, in, a);
    d.k_head = in->k + d.k.first;
    d.v_head = in->v + d.v.first;
    d.k.first = d.v.first = 0;
    d.k_scales = scales_of_k(place.batch, place.head, &d.seq, in, a);
    d.v_scales = scales_of_v(place.batch, place.head, &d.seq, in, a);
    d.map_plane = in->workspace + head_base(&a->tile_map, place.batch, d.first_head);
    return d;
}

// ---- Keys and values to registers ------------------------------------------------------------------------

// Steps begin at multiples of 16 keys, so that pages of as many or more are changed between blocks alone. Keys of a
// step that the split does not have repeat its first or last.
inlined int key_of(const decoder *d, int first, int j) { return clamp(first + j, d->keys.begin, d->keys.end - 1); }

// Pages are looked up two steps ahead, for what they name comes from far: by each work-item for its own key of the
// step.
inlined int look_up(const decoder *d, int first)
{
    return PAGE_SIZE > 0 && first < d->keys.end ? page_of_key(&d->k, key_of(d, first, d->lane % STEP_KEYS)) : 0;
}

inlined int page_of(int pages, int block, int j)
{
    const int is_one = PAGE_SIZE % 16 == 0; // page for the whole block
    return is_one && KEY_BLOCKS == 1 ? pages : (int)bits_from((uint)pages, is_one ? 16 * block : j);
}

// Of a padded head dim, the largest true one that it is not compiled for.
#define DIM_BELOW(dim) ((dim) - ((dim) <= 128 ? 32 : 64))

// Eight columns of a row. may_end (a constant): whether they may lie beyond the true head dim. With `aligned` they lie
// there as a whole, and other columns of the row are read instead, for a condition would become a branch.
inlined void load_piece(uint piece[WORDS], const __global k_t *row, int column, int columns, const int may_end,
                        const int aligned)
{
    if (aligned) {
        LOAD_WORDS(piece, row + (may_end ? min(column, columns - PIECE) : column));
        return;
    }
    const uint2 low = GATHER_QUAD(K_TYPE)(row, column, columns);
    const uint2 high = GATHER_QUAD(K_TYPE)(row, column + 4, columns);
    piece[0] = low.x;
#if HAS_BYTES
    piece[1] = high.x;
#else
    piece[1] = low.y;
    piece[2] = high.x;
    piece[3] = high.y;
#endif
}

inlined void clear_piece(uint *piece, const int words, int is_kept)
{
#pragma unroll
    for (int x = 0; x < words; x++)
        piece[x] = is_kept ? piece[x] : 0;
}

// As it is multiplied.
inlined void widen_piece(uint wide[F16_WORDS], const uint piece[WORDS])
{
#pragma unroll
    for (int x = 0; x < F16_WORDS; x++) {
#if K_TYPE == TYPE_I8 // 0x64 above a byte without a sign is 1024 and that more
        const uint unsigned_bytes = piece[x / 2] ^ 0x80808080u;
        wide[x] = less_f16(x % 2 ? low_bytes_23(unsigned_bytes, 0x64) : low_bytes_01(unsigned_bytes, 0x64), 0x64806480u);
#elif HAS_BYTES
        const uint upper_bytes = x % 2 ? high_bytes_23(piece[x / 2], 0) : high_bytes_01(piece[x / 2], 0);
        wide[x] = K_TYPE == TYPE_F8_E4M3 ? times_f16(f16_of_e4m3_uint(upper_bytes), 0x5c005c00u) : upper_bytes; // 256
#else
        wide[x] = piece[x];
#endif
    }
}

// Columns of K beyond the true head dim meet zeros of Q, and are zeros too: other numbers could be inf.
inlined void fetch_keys(K_FRAGMENTS(k), int first, int pages, const decoder *d, const attention_args *a,
                        const int aligned)
{
#pragma unroll
    for (int t = 0; t < 2 * KEY_BLOCKS; t++) {
        const int j = 8 * t + d->lane / 4;
        const __global k_t *row = d->k_head + row_on_page(&d->k, page_of(pages, t / 2, j), key_of(d, first, j));
#pragma unroll
        for (int i = 0; i < K_PIECES; i++)
            load_piece(k[t][i], row, 32 * i + d->lane % 4 * PIECE, a->head_dim_qk,
                       32 * i + 32 > DIM_BELOW(HEAD_DIM_QK), aligned);
    }
}

inlined void fetch_values(V_FRAGMENTS(v), int first, int pages, const decoder *d, const attention_args *a,
                          const int aligned)
{
#pragma unroll
    for (int b = 0; b < KEY_BLOCKS; b++)
#pragma unroll
        for (int r = 0; r < 4; r++) {
            const int j = 16 * b + d->lane % 4 * 2 + r % 2 + r / 2 * 8;
            const __global v_t *row = d->v_head + row_on_page(&d->v, page_of(pages, b, j), key_of(d, first, j));
#pragma unroll
            for (int h = 0; h < V_PIECES; h++)
                load_piece(v[b][r][h], row, 64 * h + d->lane / 4 * PIECE, a->head_dim_v,
                           64 * h + 64 > DIM_BELOW(HEAD_DIM_V), aligned);
        }
}

// ---- Q ---------------------------------------------------------------------------------------------------

inlined const __global q_t *row_of_q(int row, const decoder *d, const attention_buffers *in, const attention_args *a)
{
    return in->q + query_base(&a->q, d->batch, head_of(d, row), &d->seq) + query_of(d, row) * a->q.token;
}

// Zeros beyond the true head dim. Plain scores are compared before they are scaled, so that the sign of the scale goes
// to Q.
inlined void load_piece_of_q(uint piece[F16_WORDS], const __global q_t *row, int column, const attention_args *a,
                             const int aligned)
{
    const uint signs = !SCORE_FULL && a->scale < 0.0f ? 0x80008000u : 0;
    if (aligned) {
        load_16(piece, row + min(column, a->head_dim_qk - PIECE));
        clear_piece(piece, F16_WORDS, column < a->head_dim_qk);
    } else {
        const uint2 low = GATHER_QUAD(Q_TYPE)(row, column, a->head_dim_qk);
        const uint2 high = GATHER_QUAD(Q_TYPE)(row, column + 4, a->head_dim_qk);
        piece[0] = low.x;
        piece[1] = low.y;
        piece[2] = high.x;
        piece[3] = high.y;
    }
#pragma unroll
    for (int x = 0; x < F16_WORDS; x++)
        piece[x] ^= signs;
}

inlined void load_q(Q_FRAGMENTS(q), const decoder *d, const attention_buffers *in, const attention_args *a,
                    const int aligned)
{
#if Q_HELD
#pragma unroll
    for (int r = 0; r < ROW_GROUPS; r++) {
        const __global q_t *row = row_of_q(d->lane / 4 + 8 * r, d, in, a);
#pragma unroll
        for (int i = 0; i < K_PIECES; i++)
            load_piece_of_q(q[r][i], row, 32 * i + d->lane % 4 * PIECE, a, aligned);
    }
#else
    for (int x = d->id; x < ROW_GROUPS * K_PIECES * WARP; x += ITEMS) {
        const int r = x / (K_PIECES * WARP), i = x / WARP % K_PIECES, lane = x % WARP;
        uint piece[F16_WORDS];
        load_piece_of_q(piece, row_of_q(lane / 4 + 8 * r, d, in, a), 32 * i + lane % 4 * PIECE, a, aligned);
        d->memory.q[x] = (uint4)(piece[0], piece[1], piece[2], piece[3]);
    }
#endif
}

inlined void get_q(uint piece[F16_WORDS], Q_FRAGMENTS(q), int r, int i, const decoder *d)
{
#if Q_HELD
#pragma unroll
    for (int x = 0; x < F16_WORDS; x++)
        piece[x] = q[r][i][x];
#else
    const uint4 x = d->memory.q[(r * K_PIECES + i) * WARP + d->lane];
    piece[0] = x.x;
    piece[1] = x.y;
    piece[2] = x.z;
    piece[3] = x.w;
#endif
}

// ---- Scores ----------------------------------------------------------------------------------------------

inlined void multiply_keys(SCORES(s), Q_FRAGMENTS(q), K_FRAGMENTS(k), const decoder *d, const attention_args *a,
                           const int aligned)
{
#pragma unroll
    for (int t = 0; t < 2 * KEY_BLOCKS; t++)
#pragma unroll
        for (int x = 0; x < 4; x++)
            s[t][x] = 0.0f;
#pragma unroll
    for (int i = 0; i < K_PIECES; i++) {
        uint q0[F16_WORDS], q1[F16_WORDS] = {0, 0, 0, 0};
        get_q(q0, q, 0, i, d);
        if (ROW_GROUPS == 2)
            get_q(q1, q, ROW_GROUPS - 1, i, d);
        const uint low[4] = {q0[0], q1[0], q0[1], q1[1]}, high[4] = {q0[2], q1[2], q0[3], q1[3]};
#pragma unroll
        for (int t = 0; t < 2 * KEY_BLOCKS; t++) {
            uint wide[F16_WORDS];
            if (aligned && 32 * i + 32 > DIM_BELOW(HEAD_DIM_QK))
                clear_piece(k[t][i], WORDS, 32 * i + d->lane % 4 * PIECE < a->head_dim_qk);
            widen_piece(wide, k[t][i]);
            MULTIPLY_AS_Q(s[t], low, wide[0], wide[1]);
            MULTIPLY_AS_Q(s[t], high, wide[2], wide[3]);
        }
    }
}

// The scores of the work-item's row r and their keys.
#define FOR_EACH_SCORE                                                                                     \
    _Pragma("unroll") for (int t = 0; t < 2 * KEY_BLOCKS; t++) _Pragma("unroll") for (int e = 0; e < 2; e++)
#define SCORE s[t][2 * r + e]
#define KEY_NUMBER (8 * t + d->lane % 4 * 2 + e)
#define KEY key_of(d, first, KEY_NUMBER)

#if SCORE_FULL

// Through all that may change them, in the order of score.cl. class: of the step, as far as masks go.
inlined void finish_row(SCORES(s), const int r, int first, int class, const decoder *d, const attention_buffers *in,
                        const attention_args *a)
{
    const int row = d->lane / 4 + 8 * r, query = query_of(d, row), head = head_of(d, row);
    const mod_place place = make_mod_place(d->batch, head, d->seq.offset, in->user, a);
    if (a->softcap > 0.0f)
        FOR_EACH_SCORE SCORE = cap_score(SCORE, a->softcap);
    if (has(a, FEATURE_BIAS)) {
        const __global bias_t *bias = in->bias + head_base(&a->bias, d->batch, head) + query * a->bias.token;
        const float head_scale = has(a, FEATURE_BIAS_HEAD_SCALE)
                                     ? in->bias_head_scale[number_at(&a->bias_head_scale, d->batch, head)]
                                     : 1.0f;
        FOR_EACH_SCORE SCORE = add_bias(SCORE, LOAD1(BIAS_TYPE)(bias, KEY * a->bias_key), head_scale);
    }
    if (has(a, FEATURE_ALIBI)) {
        const float slope = in->alibi_slopes[number_at(&a->alibi_slopes, d->batch, head)];
        FOR_EACH_SCORE SCORE = add_alibi(SCORE, (float)(query + d->seq.offset - KEY), slope);
    }
    if (HAS_SCORE_MOD)
        FOR_EACH_SCORE SCORE = apply_score_mod(SCORE, &place, query, KEY);

    if (class == TILE_FULL)
        return;
    if (has(a, FEATURE_MASK)) {
        const __global uchar *mask = in->mask + head_base(&a->mask, d->batch, head) + query * a->mask.token;
        FOR_EACH_SCORE SCORE = mask[KEY * a->mask_key] != 0 ? SCORE : -INFINITY;
    }
    if (a->tile_rows > 0) { // entries of the map lie within the caller's tiles
        const __global uchar *plane = d->map_plane + (head - d->first_head) * a->tile_map.head;
        FOR_EACH_SCORE SCORE = tile_class(plane, query, query, KEY, KEY, a) == TILE_EMPTY ? -INFINITY : SCORE;
    }
    if (HAS_MASK_MOD)
        FOR_EACH_SCORE SCORE = apply_mask_mod(&place, query, KEY) ? SCORE : -INFINITY;
}

// Which of the work-item's keys of V some row may see: bit 4 b + r for key [b][r] of V_FRAGMENTS.
inlined uint seen_keys(SCORES(s))
{
    uint seen = 0;
#pragma unroll
    for (int t = 0; t < 2 * KEY_BLOCKS; t++)
#pragma unroll
        for (int x = 0; x < 2 * ROW_GROUPS; x++)
            seen |= s[t][x] != -INFINITY ? 1u << (2 * t + x % 2) : 0; // NaN is seen
    seen |= bits_across(seen, 4);
    seen |= bits_across(seen, 8);
    return seen | bits_across(seen, 16);
}

#endif

#define ALL_SEEN (KEY_BLOCKS == 2 ? 0xffu : 0xfu)

// From products to final scores, forbidden ones as -inf, whatever the product there: with SCORE_FULL in natural units,
// otherwise still to be scaled. Returns the keys of seen_keys, as far as masks tell.
inlined uint finish_scores(SCORES(s), int first, int class, const decoder *d, const attention_buffers *in,
                           const attention_args *a)
{
    uint seen = ALL_SEEN;
#if SCORE_FULL
#pragma unroll
    for (int r = 0; r < ROW_GROUPS; r++)
        FOR_EACH_SCORE SCORE *= a->scale;
    if (a->transforms || class != TILE_FULL) {
#pragma unroll
        for (int r = 0; r < ROW_GROUPS; r++)
            finish_row(s, r, first, class, d, in, a);
    }
#endif
    int in_band = 1;
#pragma unroll
    for (int r = 0; r < ROW_GROUPS; r++)
        in_band &= first >= d->seen[r].begin && first + STEP_KEYS <= d->seen[r].end;
    if (!in_band) {
#pragma unroll
        for (int r = 0; r < ROW_GROUPS; r++)
            FOR_EACH_SCORE if (first + KEY_NUMBER < d->seen[r].begin || first + KEY_NUMBER >= d->seen[r].end)
                SCORE = -INFINITY;
    }
#if SCORE_FULL
    if (class != TILE_FULL) // by the band alone, the union of the work-group's rows leaves no hole
        seen = seen_keys(s);
#endif
    return seen;
}

// ---- Softmax ---------------------------------------------------------------------------------------------

// The exact step for row r: its reference moves to the largest score so far, and what was summed up shrinks
// accordingly.
inlined void move_reference(SCORES(s), float o[4 * V_PIECES][4], float *m, float *l, float *exponent, const int r,
                            const decoder *d, const attention_args *a)
{
    float largest = SCORE_FORBIDDEN;
    FOR_EACH_SCORE largest = fmax(largest, settled(SCORE, a)); // passes over NaN, which the weights show
    largest = fmax(largest, across(largest, 1));
    largest = fmax(largest, across(largest, 2));
    const float moved = fmax(*m, largest), moved_exponent = exponent_of(moved);
    const float difference = *exponent - moved_exponent; // NaN unless both are exponents
    const float shrink = exp2_of(difference == difference ? difference : (*m - moved) * LOG2_E);
    *l *= shrink;
    *m = moved;
    *exponent = moved_exponent;
    const float shrink_0 = from_lane(shrink, d->lane % 4 * 8); // of the rows that its part of O is of
    const float shrink_1 = from_lane(shrink, d->lane % 4 * 8 + 4);
#pragma unroll
    for (int n = 0; n < 4 * V_PIECES; n++) {
        o[n][0] *= shrink_0;
        o[n][1] *= shrink_1;
        o[n][2] *= shrink_0;
        o[n][3] *= shrink_1;
    }
}

// P = exp(S - m) in S's place, row sums to l.
inlined void weigh(SCORES(s), RESULTS(o), float m[ROW_GROUPS], float l[ROW_GROUPS], float exponent[ROW_GROUPS],
                   const decoder *d, const attention_args *a)
{
    const float factor = SCORE_TO_EXPONENT(a);
    SCORES(p);
    float sum[ROW_GROUPS];
    int outgrown = 0;
#pragma unroll
    for (int r = 0; r < ROW_GROUPS; r++) {
        sum[r] = 0.0f;
        FOR_EACH_SCORE
        {
            p[t][2 * r + e] = exp2_of(fma(SCORE, factor, -exponent[r]));
            sum[r] += p[t][2 * r + e];
        }
        outgrown |= !(sum[r] <= LARGEST_SUM);
    }
    if (any_in_warp(outgrown)) {
#pragma unroll
        for (int r = 0; r < ROW_GROUPS; r++) {
            move_reference(s, o[r], &m[r], &l[r], &exponent[r], r, d, a);
            sum[r] = 0.0f;
            FOR_EACH_SCORE
            {
                const float near = fma(SCORE, factor, -exponent[r]), far = (settled(SCORE, a) - m[r]) * LOG2_E;
                p[t][2 * r + e] = exp2_of(exponent[r] == exponent[r] ? near : far);
                sum[r] += p[t][2 * r + e];
            }
        }
    }
#pragma unroll
    for (int r = 0; r < ROW_GROUPS; r++) {
        l[r] += sum[r];
        FOR_EACH_SCORE SCORE = p[t][2 * r + e];
    }
}

// ---- Scales ----------------------------------------------------------------------------------------------

// Of each work-item's own key of the step, as look_up has it.
typedef struct step_scales {
    float k;
    float v;
} step_scales;

inlined step_scales fetch_scales(int first, int pages, const decoder *d)
{
    step_scales scales = {1.0f, 1.0f};
    const int key = key_of(d, first, d->lane % STEP_KEYS);
    if (HAS_BYTES && d->k_scales.is_given)
        scales.k = d->k_scales.numbers[row_on_page(&d->k_scales.rows, pages, key)];
    if (HAS_BYTES && d->v_scales.is_given)
        scales.v = d->v_scales.numbers[row_on_page(&d->v_scales.rows, pages, key)];
    return scales;
}

inlined void scale_scores(SCORES(s), float scale, const decoder *d)
{
#if HAS_BYTES
    if (d->k_scales.is_given) {
#pragma unroll
        for (int t = 0; t < 2 * KEY_BLOCKS; t++)
#pragma unroll
            for (int e = 0; e < 2; e++) {
                const float of_key = from_lane(scale, KEY_NUMBER);
#pragma unroll
                for (int r = 0; r < ROW_GROUPS; r++)
                    SCORE *= of_key;
            }
    }
#endif
}

inlined void multiply_results(RESULTS(o), float factor)
{
#pragma unroll
    for (int r = 0; r < ROW_GROUPS; r++)
#pragma unroll
        for (int n = 0; n < 4 * V_PIECES; n++)
#pragma unroll
            for (int x = 0; x < 4; x++)
                o[r][n][x] *= factor;
}

// What V's scales multiply must stay what f16 holds: so they are divided by the largest that met a weight so far, which
// O is to be multiplied by in the end. Weights of 0 stay that, for a key that nobody may see may have any scale.
inlined void scale_weights(SCORES(s), RESULTS(o), float *unit, float scale, const decoder *d)
{
#if HAS_BYTES
    if (!d->v_scales.is_given)
        return;
    float of_key[2 * KEY_BLOCKS][2];
    float largest = *unit;
    int outgrown = 0;
#pragma unroll
    for (int r = 0; r < ROW_GROUPS; r++)
        FOR_EACH_SCORE
        {
            of_key[t][e] = from_lane(scale, KEY_NUMBER);
            if (SCORE != 0.0f) {
                outgrown |= !(fabs(of_key[t][e]) <= *unit);
                largest = fmax(largest, fabs(of_key[t][e]));
            }
        }
    if (any_in_warp(outgrown)) {
#pragma unroll
        for (int mask = 1; mask < WARP; mask *= 2)
            largest = fmax(largest, across(largest, mask));
        multiply_results(o, *unit / largest);
        *unit = largest;
    }
    const float inverse = 1.0f / *unit;
#pragma unroll
    for (int r = 0; r < ROW_GROUPS; r++)
        FOR_EACH_SCORE SCORE = SCORE == 0.0f ? 0.0f : SCORE * (of_key[t][e] * inverse);
#endif
}

// ---- Values ----------------------------------------------------------------------------------------------

// O += P V, with P as float. all_seen (a constant): whether V is multiplied as it is; otherwise only at the keys seen,
// because 0 times what lies at the others need not be 0.
inlined void add_values(RESULTS(o), SCORES(p), V_FRAGMENTS(v), const int all_seen, uint seen)
{
#pragma unroll
    for (int b = 0; b < KEY_BLOCKS; b++) {
        uint weights[ROW_GROUPS][2];
#pragma unroll
        for (int r = 0; r < ROW_GROUPS; r++)
#pragma unroll
            for (int x = 0; x < 2; x++)
                weights[r][x] = PACK_AS_Q(p[2 * b + x][2 * r], p[2 * b + x][2 * r + 1]);
#pragma unroll
        for (int h = 0; h < V_PIECES; h++) {
            uint wide[4][F16_WORDS];
#pragma unroll
            for (int r = 0; r < 4; r++) {
                if (!all_seen)
                    clear_piece(v[b][r][h], WORDS, seen >> (4 * b + r) & 1);
                widen_piece(wide[r], v[b][r][h]);
            }
#pragma unroll
            for (int x = 0; x < 4; x++) {
                const uint pairs[4] = {
                    low_halves(wide[0][x], wide[1][x]), high_halves(wide[0][x], wide[1][x]),
                    low_halves(wide[2][x], wide[3][x]), high_halves(wide[2][x], wide[3][x])};
#pragma unroll
                for (int r = 0; r < ROW_GROUPS; r++)
                    MULTIPLY_AS_Q(o[r][4 * h + x], pairs, weights[r][0], weights[r][1]);
            }
        }
    }
}

// ---- Results ---------------------------------------------------------------------------------------------

// What the warp has of each row, to local memory.
inlined void leave_states(const float m[ROW_GROUPS], const float l[ROW_GROUPS], const decode_memory *memory)
{
    const int lane = (int)get_local_id(0) % WARP, first = (int)get_local_id(0) / WARP * BLOCK_Q + lane / 4;
#pragma unroll
    for (int r = 0; r < ROW_GROUPS; r++) {
        float sum = l[r]; // of the work-item's keys
        sum += across(sum, 1);
        sum += across(sum, 2);
        if (lane % 4 == 0) {
            memory->m[first + 8 * r] = m[r];
            memory->l[first + 8 * r] = sum;
        }
    }
}

// By the row's own work-item: the total, and what each warp's O is to be multiplied by. A sink takes part in the first
// split alone.
inlined void total_rows(const decoder *d, const attention_buffers *in, const attention_args *a)
{
    const decode_memory *memory = &d->memory;
    if (d->id < d->num_rows) {
        const row_start none = {SCORE_FLOOR, 0.0f};
        const row_start sink = d->split == 0 ? start_of_rows(d->batch, head_of(d, d->id), in->sinks, a) : none;
        const float sink_m = sink.max * SCORE_TO_NATURAL;
        float largest = sink_m;
        for (int w = 0; w < WARPS; w++)
            largest = fmax(largest, memory->m[w * BLOCK_Q + d->id]);
        float total = sink.sum * exp2_of((sink_m - largest) * LOG2_E);
        for (int w = 0; w < WARPS; w++) {
            const float factor = exp2_of((memory->m[w * BLOCK_Q + d->id] - largest) * LOG2_E);
            memory->m[w * BLOCK_Q + d->id] = factor;
            total += memory->l[w * BLOCK_Q + d->id] * factor;
        }
        const float inverse = total == 0.0f ? 0.0f : 1.0f / total; // no key was allowed
        for (int w = 0; w < WARPS; w++)
            memory->m[w * BLOCK_Q + d->id] *= inverse;
        memory->totals[2 * d->id] = largest;
        memory->totals[2 * d->id + 1] = total;
    }
}

inlined __global o_t *row_of_o(int row, const decoder *d, const attention_buffers *in, const attention_args *a)
{
    return in->o + query_base(&a->o, d->batch, head_of(d, row), &d->seq) + query_of(d, row) * a->o.token;
}

inlined long place_of_row(int row, int split, const decoder *d, const attention_args *a)
{
    return part_place(d->batch, query_of(d, row), head_of(d, row), split, &d->seq, a);
}

inlined void store_lse(int row, float m, float sum, const decoder *d, const attention_buffers *in,
                       const attention_args *a)
{
    if (has(a, FEATURE_LSE))
        in->lse[query_base(&a->lse, d->batch, head_of(d, row), &d->seq) + query_of(d, row) * a->lse.token] =
            (sum == 0.0f ? -INFINITY : m + log(sum)) * a->lse_unit;
}

// The row's state, or lse.
inlined void store_state(int row, const decoder *d, const attention_buffers *in, const attention_args *a)
{
    const float largest = d->memory.totals[2 * row], total = d->memory.totals[2 * row + 1];
    if (a->num_splits > 1) {
        __global float *state = part_state(in->workspace, place_of_row(row, d->split, d, a), a);
        state[0] = largest; // natural, whatever the unit of scores
        state[1] = total;
    } else {
        store_lse(row, largest, total, d, in, a);
    }
}

// 64 columns at a time go through local memory: to o, or with several splits to the workspace.
inlined void store_results(RESULTS(o), const decoder *d, const attention_buffers *in, const attention_args *a)
{
    total_rows(d, in, a);
    __local float *part = d->memory.o + (d->warp * BLOCK_Q + d->lane % 4 * 2) * PART_PITCH + d->lane / 4 * PIECE;
#pragma unroll
    for (int h = 0; h < V_PIECES; h++) {
        if (h > 0)
            barrier(CLK_LOCAL_MEM_FENCE); // the columns before have been read
#pragma unroll
        for (int r = 0; r < ROW_GROUPS; r++)
#pragma unroll
            for (int x = 0; x < 4; x++) {
                const float *pair = o[r][4 * h + x];
                *(__local float2 *)(part + 8 * r * PART_PITCH + 2 * x) = (float2)(pair[0], pair[2]);
                *(__local float2 *)(part + (8 * r + 1) * PART_PITCH + 2 * x) = (float2)(pair[1], pair[3]);
            }
        barrier(CLK_LOCAL_MEM_FENCE);
        for (int x = d->id; x < d->num_rows * 64; x += ITEMS) {
            const int row = x / 64, column = 64 * h + x % 64;
            float value = 0.0f;
            if (column >= a->head_dim_v)
                continue;
#pragma unroll
            for (int w = 0; w < WARPS; w++)
                value = fma(d->memory.o[(w * BLOCK_Q + row) * PART_PITCH + x % 64], d->memory.m[w * BLOCK_Q + row],
                            value);
            value = d->memory.totals[2 * row + 1] == 0.0f ? 0.0f : value;
            if (a->num_splits > 1)
                part_o(in->workspace, place_of_row(row, d->split, d, a), a)[column] = value;
            else
                STORE1(O_TYPE)(row_of_o(row, d, in, a), column, value);
        }
    }
    if (d->id < d->num_rows)
        store_state(d->id, d, in, a);
}

// ---- Splits ----------------------------------------------------------------------------------------------

// Before a group's split is counted, some group of the tile has begun the count for this call: by one exchange, which
// fails where another group's did not.
inlined void begin_count(const decoder *d, const attention_buffers *in, const attention_args *a)
{
    volatile __global ulong *counter = part_counter(in->workspace, d->tile, a);
    const ulong found = *counter;
    if (found / COUNT_LIMIT != (ulong)a->ticket)
        compare_exchange(counter, found, (ulong)a->ticket * COUNT_LIMIT);
}

// Whether the tile's other splits have all ended: to every work-item, behind what all of them wrote. The last one makes
// the count no count, for a recorded call runs again with the same ticket.
inlined int is_last_split(const decoder *d, const attention_buffers *in, const attention_args *a)
{
    fence_device();
    barrier(CLK_LOCAL_MEM_FENCE);
    if (d->id == 0) {
        volatile __global ulong *counter = part_counter(in->workspace, d->tile, a);
        const ulong ended = add_to(counter, 1) % COUNT_LIMIT + 1;
        if (ended == (ulong)a->num_splits)
            *counter = 0;
        *d->memory.is_last = ended == (ulong)a->num_splits;
    }
    barrier(CLK_LOCAL_MEM_FENCE);
    if (!*d->memory.is_last)
        return 0;
    fence_device();
    return 1;
}

// What the splits left of one row and head.
typedef struct row_splits {
    const __global float *o; // of the first split
    const __global float *state;
    long o_step; // from split to split
    long state_step;
    int count;
    float largest;
    float inverse; // of the total
} row_splits;

inlined row_splits splits_of_row(int row, const decoder *d, const attention_buffers *in, const attention_args *a)
{
    const long place = place_of_row(row, 0, d, a), places = a->part_rows * a->heads_q;
    row_splits splits;
    splits.o = part_o(in->workspace, place, a);
    splits.state = part_state(in->workspace, place, a);
    splits.o_step = places * a->head_dim_v;
    splits.state_step = 2 * places;
    splits.count = a->num_splits;
    return splits;
}

// In proportion: what a split weighs.
inlined float share_of_split(const row_splits *splits, int p)
{
    const __global float *state = splits->state + p * splits->state_step;
    return state[1] * exp2_of((state[0] - splits->largest) * LOG2_E);
}

// By a warp, its work-items the splits: their total; the row's lse.
inlined void weigh_splits(row_splits *splits, int row, const decoder *d, const attention_buffers *in,
                          const attention_args *a)
{
    float largest = -1e30f, total = 0.0f;
    for (int p = d->lane; p < splits->count; p += WARP)
        largest = fmax(largest, splits->state[p * splits->state_step]);
#pragma unroll
    for (int mask = 1; mask < WARP; mask *= 2)
        largest = fmax(largest, across(largest, mask));
    splits->largest = largest;
    for (int p = d->lane; p < splits->count; p += WARP)
        total += share_of_split(splits, p);
#pragma unroll
    for (int mask = 1; mask < WARP; mask *= 2)
        total += across(total, mask);
    splits->inverse = total == 0.0f ? 0.0f : 1.0f / total;
    if (d->lane == 0)
        store_lse(row, largest, total, d, in, a);
}

#define PARTS_AHEAD 16 // quads of a work-item that are under way at a time

// Where the workspace begins at a multiple of 16 bytes, so do parts of whole quads.
inlined void load_parts(float4 parts[PARTS_AHEAD], const row_splits *splits, int first, int column)
{
    const __global float *o = splits->o + column;
    if ((size_t)splits->o % sizeof(float4) == 0) {
#pragma unroll
        for (int i = 0; i < PARTS_AHEAD; i++)
            parts[i] = *(const __global float4 *)(o + min(first + i, splits->count - 1) * splits->o_step);
        return;
    }
#pragma unroll
    for (int i = 0; i < PARTS_AHEAD; i++)
        parts[i] = load4_1(o, min(first + i, splits->count - 1) * splits->o_step);
}

// The row of o from the parts, by a warp; always in the order of the splits, so that those without keys change no bit.
// The first parts are under way while their weights are worked out.
inlined void combine_row(int row, const decoder *d, const attention_buffers *in, const attention_args *a)
{
    const int columns = a->head_dim_v, quads = columns % 4 == 0 ? columns / 4 : 0;
    row_splits splits = splits_of_row(row, d, in, a);
    float4 parts[PARTS_AHEAD];
    if (quads > 0)
        load_parts(parts, &splits, 0, 4 * min(d->lane, quads - 1));
    weigh_splits(&splits, row, d, in, a);
    for (int first = 0; first < quads; first += WARP) {
        const int quad = first + d->lane;
        float4 sum = (float4)(0.0f);
        for (int p = 0; p < splits.count; p += PARTS_AHEAD) {
            const int mine = p + d->lane % PARTS_AHEAD;
            const float weight = mine < splits.count ? share_of_split(&splits, mine) * splits.inverse : 0.0f;
            if (first > 0 || p > 0)
                load_parts(parts, &splits, p, 4 * min(quad, quads - 1));
#pragma unroll
            for (int i = 0; i < PARTS_AHEAD; i++) {
                const float of_split = from_lane(weight, i);
                sum = p + i < splits.count ? sum + of_split * parts[i] : sum;
            }
        }
        if (quad < quads)
            STORE4(O_TYPE)(row_of_o(row, d, in, a), 4 * quad, sum);
    }
    for (int column = d->lane; quads == 0 && column < columns; column += WARP) {
        float sum = 0.0f;
        for (int p = 0; p < splits.count; p++)
            sum += share_of_split(&splits, p) * splits.inverse * splits.o[p * splits.o_step + column];
        STORE1(O_TYPE)(row_of_o(row, d, in, a), column, sum);
    }
}

// ---- The whole -------------------------------------------------------------------------------------------

// The class of the step's keys as far as the map tells; without one, what forbids keys leaves none full.
inlined int class_of_step(int first, const decoder *d, const attention_args *a)
{
    int empty = 1, full = 1;
    for (int h = 0; h < (a->tile_map.head != 0 ? d->group : 1); h++) {
        const int of_head = tile_class(d->map_plane + h * a->tile_map.head, query_of(d, 0), query_of(d, BLOCK_Q - 1),
                                       first, min(first + STEP_KEYS, d->keys.end) - 1, a);
        empty &= of_head == TILE_EMPTY;
        full &= of_head == TILE_FULL;
    }
    return empty ? TILE_EMPTY : full ? class_without_map(a) : TILE_PARTIAL;
}

typedef struct key_step {
    int first;
    int class;
    int pages;
} key_step;

// The first of the warp's steps from `first` on that masks leave something of; beyond the last key if there is none.
inlined key_step step_from(int first, const decoder *d, const attention_args *a)
{
    key_step step;
    step.class = class_without_map(a);
    if (SCORE_FULL && a->map_width > 0)
        for (; first < d->keys.end; first += WARPS * STEP_KEYS) {
            step.class = class_of_step(first, d, a);
            if (step.class != TILE_EMPTY)
                break;
        }
    step.first = first;
    step.pages = look_up(d, first);
    return step;
}

inlined key_step step_behind(const key_step *step, const decoder *d, const attention_args *a)
{
    return step_from(min(step->first, d->keys.end) + WARPS * STEP_KEYS, d, a);
}

inlined void decode(const attention_buffers *in, const attention_args *a, const decode_memory *memory,
                    const int aligned)
{
    const decoder decoder_ = make_decoder(in, a, memory);
    const decoder *d = &decoder_;
    const int ahead = AHEAD && aligned; // single elements take more registers on their way
    float m[ROW_GROUPS], l[ROW_GROUPS], exponent[ROW_GROUPS];
    float v_unit = 1e-30f; // no scale yet
    Q_FRAGMENTS(q);
    K_FRAGMENTS(k);
    V_FRAGMENTS(v);
    RESULTS(o);
#pragma unroll
    for (int r = 0; r < ROW_GROUPS; r++) {
        m[r] = -1e30f; // a row without keys; floor scores weigh 1 against it, forbidden keys nothing
        l[r] = 0.0f;
        exponent[r] = NAN;
#pragma unroll
        for (int n = 0; n < 4 * V_PIECES; n++)
#pragma unroll
            for (int x = 0; x < 4; x++)
                o[r][n][x] = 0.0f;
    }
    key_step step = step_from((d->keys.begin & ~15) + d->warp * STEP_KEYS, d, a);
    key_step next = step_behind(&step, d, a); // before the keys, which wait for the first page
    step_scales scales = {1.0f, 1.0f}, next_scales = scales;
    if (step.first < d->keys.end)
        scales = fetch_scales(step.first, step.pages, d);
    if (ahead && step.first < d->keys.end) {
        fetch_keys(k, step.first, step.pages, d, a, aligned);
        fetch_values(v, step.first, step.pages, d, a, aligned);
    }
    if (d->keys.begin < d->keys.end)
        load_q(q, d, in, a, aligned);
    if (d->id == 0 && a->num_splits > 1)
        begin_count(d, in, a);
    if (!Q_HELD)
        barrier(CLK_LOCAL_MEM_FENCE);

    // for each STEP_KEYS of the warp's share of the split's keys:
    //     S = Q K^T, forbidden ones -inf
    //     P = exp(S - m);  l += row sums of P
    //     if some sum passed its limit: m = row maximum; rescale l, O; P again
    //     O += P V, with the keys' scales if they have any
    // add up the warps' l and O; write O / l and ln(sum exp) = m + ln l; the last split's group adds up the splits'
    while (step.first < d->keys.end) {
        const key_step after = step_behind(&next, d, a);
        SCORES(s);
        if (!ahead)
            fetch_keys(k, step.first, step.pages, d, a, aligned);
        multiply_keys(s, q, k, d, a, aligned);
        scale_scores(s, scales.k, d);
        if (next.first < d->keys.end)
            next_scales = fetch_scales(next.first, next.pages, d);
        if (ahead && next.first < d->keys.end)
            fetch_keys(k, next.first, next.pages, d, a, aligned); // under way during softmax and P V
        const uint seen = finish_scores(s, step.first, step.class, d, in, a);
        weigh(s, o, m, l, exponent, d, a);
        scale_weights(s, o, &v_unit, scales.v, d);
        if (!ahead)
            fetch_values(v, step.first, step.pages, d, a, aligned);
        if (!SCORE_FULL || !any_in_warp(seen != ALL_SEEN))
            add_values(o, s, v, 1, seen);
        else
            add_values(o, s, v, 0, seen);
        if (ahead && next.first < d->keys.end)
            fetch_values(v, next.first, next.pages, d, a, aligned); // under way during S
        step = next;
        next = after;
        scales = next_scales;
    }
    if (HAS_BYTES && d->v_scales.is_given)
        multiply_results(o, v_unit);
    leave_states(m, l, memory);
    barrier(CLK_LOCAL_MEM_FENCE);
    const decode_place place = *memory->place;
    const decoder ending = decoder_at(&place, memory, a);
    store_results(o, &ending, in, a);
    if (a->num_splits > 1 && ending.num_rows > 0 && is_last_split(&ending, in, a))
        for (int row = ending.warp; row < ending.num_rows; row += WARPS)
            combine_row(row, &ending, in, a);
}

// The driver (580.159.04, seen 2026-11-30) obeys the option -cl-nv-maxrregcount for kernels that do not require the
// size of their work-groups: so the one whose speed counts does not where REGISTERS says so.
#define ITEMS_REQUIRED __attribute__((reqd_work_group_size(ITEMS, 1, 1)))
#if REGISTERS > 0
#define ITEMS_AS_CAPPED
#else
#define ITEMS_AS_CAPPED ITEMS_REQUIRED
#endif

#define KERNEL(name, aligned, items)                                                                       \
    __kernel items void name(ATTENTION_BUFFERS, attention_args args)                                       \
    {                                                                                                      \
        __local float2 part[WARPS * BLOCK_Q * PART_PITCH / 2];                                             \
        __local float m[WARPS * BLOCK_Q], l[WARPS * BLOCK_Q], totals[2 * BLOCK_Q];                         \
        __local decode_place place;                                                                        \
        __local int is_last;                                                                               \
        __local uint4 held[Q_HELD ? 1 : ROW_GROUPS * K_PIECES * WARP];                                     \
        const decode_memory memory = {&place, (__local float *)part, m, l, totals, &is_last, held};                \
        const attention_buffers buffers = GATHERED_BUFFERS;                                                \
        if ((int)get_group_id(1) < args.num_groups)                                                        \
            decode(&buffers, &args, &memory, aligned);                                                     \
    }

KERNEL(decode_any, 0, ITEMS_REQUIRED)
KERNEL(decode_aligned, 1, ITEMS_AS_CAPPED)
