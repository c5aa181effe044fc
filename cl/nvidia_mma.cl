// nvidia_mma.cl: forward attention on the matrix units of NVIDIA's GPUs, compute capability 8.0 and up, by
// mma.sync: nvidia_ptx.cl has the instructions, nvidia_half.cl and nvidia_tf32.cl the two products.
//
// A work-group owns BLOCK_Q query rows of one head, each warp WARP_ROWS of them, and walks over the keys that they
// may see, BLOCK_K at a time. Scores, weights and O of a warp stay in its registers, Q in local memory or, for its
// first Q_HELD steps, in registers too. K and V come in by asynchronous copies to a ring of slots:
//     slot i % STAGES:  [ K of tile i | V of tile i - 1 ]
// which is what turn i multiplies.
//
// With TURNS two teams of warps take turns at the matrix units: while one multiplies, the other exponentiates. A team
// waits for its turn at a barrier of its own, at which the other arrives when it has multiplied, or, where its products
// alternate, when it has their last operands; so the same barrier tells that tiles have come in, and that a slot may be
// filled again.

// ---- Copies ---------------------------------------------------------------------------------------------

#define CHUNK (16 / ELEMENT_BYTES) // elements

// Work-items that share a row: the largest power of two that divides its chunks.
#define LANES_OF_ROW(dim) (((dim) / CHUNK) & -((dim) / CHUNK))

#define STEP_OF_ROWS(dim) (ITEMS / LANES_OF_ROW(dim)) // from one of a work-item's rows to the next
#define ROWS_OF_ITEM(rows, dim) (((rows) + STEP_OF_ROWS(dim) - 1) / STEP_OF_ROWS(dim))
#define CHUNKS_OF_ITEM(dim) ((dim) / CHUNK / LANES_OF_ROW(dim)) // of each of its rows

#define LARGER(a, b) ((a) > (b) ? (a) : (b))
#define MOST_ROWS                                                                                        \
    LARGER(ROWS_OF_ITEM(LARGER(BLOCK_Q, BLOCK_K), HEAD_DIM_QK), ROWS_OF_ITEM(BLOCK_K, HEAD_DIM_V))
#define MOST_CHUNKS LARGER(CHUNKS_OF_ITEM(HEAD_DIM_QK), CHUNKS_OF_ITEM(HEAD_DIM_V))

// One of q, k and v.
typedef struct source {
    const __global k_t *head;
    key_rows rows;
    int columns;
} source;

// A work-item's copies of some rows, still to be made: where its first chunk of each row is, and how many elements there
// are of each chunk. The others become zeros.
typedef struct copies {
    const __global k_t *row[MOST_ROWS];
    int elements[MOST_ROWS][MOST_CHUNKS];
} copies;

// Of rows first .. first + count - 1, of which those in `there` are. count, dim, is_q: constants.
inlined copies plan_copies(const source *from, int first, const int count, key_range there, const int dim, int id,
                           const int is_q)
{
    const int column = id % LANES_OF_ROW(dim) * CHUNK, r = first + id / LANES_OF_ROW(dim);
    const long at = (long)r * from->rows.token + column;
    copies plan;
#pragma unroll
    for (int i = 0; i < ROWS_OF_ITEM(count, dim); i++) {
        const int row = r + i * STEP_OF_ROWS(dim);
        const int is_there = (uint)(row - there.begin) < (uint)(there.end - there.begin);
        plan.row[i] = from->head + at + i * STEP_OF_ROWS(dim) * from->rows.token;
        if (PAGE_SIZE > 0 && !is_q)
            plan.row[i] = from->head + (is_there ? row_of_key(&from->rows, row) + column : 0);
#pragma unroll
        for (int c = 0; c < CHUNKS_OF_ITEM(dim); c++) {
            const int left = from->columns - column - c * CHUNK * LANES_OF_ROW(dim);
            plan.elements[i][c] = is_there ? clamp(left, 0, CHUNK) : 0;
        }
    }
    return plan;
}

// aligned: chunks are there whole or not at all.
inlined void copy_chunk(uint to, const __global k_t *from, int elements, const int aligned)
{
    if (aligned) {
        copy_16(to, from, elements == 0);
        return;
    }
    uint4 chunk = (uint4)(0);
#if K_TYPE == TYPE_F32
    if (elements > 0)
        chunk = as_uint4(GATHER_QUAD(K_TYPE)(from, 0, elements));
#else
    if (elements > 0)
        chunk.lo = GATHER_QUAD(K_TYPE)(from, 0, elements);
    if (elements > 4)
        chunk.hi = GATHER_QUAD(K_TYPE)(from, 4, elements);
#endif
    store_local(to, chunk);
}

// to: where row `first` goes. count, dim, pitch, aligned: constants.
inlined void make_copies(uint to, const copies *plan, const int count, const int dim, const int pitch, int id,
                         const int aligned)
{
    to += id / LANES_OF_ROW(dim) * pitch + id % LANES_OF_ROW(dim) * 16;
#pragma unroll
    for (int i = 0; i < ROWS_OF_ITEM(count, dim); i++) {
        if (count % STEP_OF_ROWS(dim) != 0 && id / LANES_OF_ROW(dim) + i * STEP_OF_ROWS(dim) >= count)
            continue;
#pragma unroll
        for (int c = 0; c < CHUNKS_OF_ITEM(dim); c++)
            copy_chunk(to + i * STEP_OF_ROWS(dim) * pitch + c * LANES_OF_ROW(dim) * 16,
                       plan->row[i] + c * CHUNK * LANES_OF_ROW(dim), plan->elements[i][c], aligned);
    }
}

// Where tiles follow on each other and their rows lie evenly, a work-item's copies do too: nothing is worked out anew in
// a turn, where the matrix units would wait for it. Others are planned ahead of it.
#define TILES_FOLLOW (PAGE_SIZE == 0 && !SCORE_FULL)

typedef struct cursor {
    const __global k_t *at; // its first chunk of its next row
    int end; // in tiles whose first key is this or a later one, the chunk of the first row is not there
} cursor;

inlined cursor make_cursor(const source *from, key_range keys, const int dim, int id)
{
    const int column = id % LANES_OF_ROW(dim) * CHUNK, row = id / LANES_OF_ROW(dim);
    cursor c;
    c.at = from->head + (keys.begin + row) * from->rows.token + column;
    c.end = CHUNKS_OF_ITEM(dim) > 1 || column < from->columns ? keys.end - row : 0;
    return c;
}

// A work-item's chunks of a tile, the cursor's next, of aligned rows. to: where the first of them goes.
inlined void copy_tile(uint to, cursor *c, int tile, const source *from, const int dim, const int pitch)
{
    const int step = STEP_OF_ROWS(dim), rows = ROWS_OF_ITEM(BLOCK_K, dim), chunks = CHUNKS_OF_ITEM(dim);
    const int is_uneven = chunks > 1 || BLOCK_K % step != 0, id = is_uneven ? local_id_again() : 0;
#pragma unroll
    for (int i = 0; i < rows; i++) {
#pragma unroll
        for (int n = 0; n < chunks; n++) {
            const int column = n * CHUNK * LANES_OF_ROW(dim);
            const int is_there = tile + i * step < c->end &&
                                 (chunks == 1 || id % LANES_OF_ROW(dim) * CHUNK + column < from->columns);
            if (BLOCK_K % step == 0 || id / LANES_OF_ROW(dim) + i * step < BLOCK_K)
                copy_16(to + i * step * pitch + n * LANES_OF_ROW(dim) * 16, c->at + column, !is_there);
        }
        const int down = i + 1 < rows ? step : BLOCK_K - (rows - 1) * step;
        c->at = (const __global k_t *)walked(c->at, down * from->rows.token * (long)sizeof(k_t));
    }
}

// ---- A work-item's place ---------------------------------------------------------------------------------

typedef struct worker {
    int id;
    int lane;
    int team; // 0 goes first
    int batch;
    int head;
    sequence seq;
    int first_row; // of the work-group; last_row is the last that the sequence has
    int last_row;
    key_range keys;
    int first_row_of_warp;
    int last_row_of_warp;
    key_range keys_of_warp;
    source q, k, v;
    const __global uchar *map_plane;
    uint memory;         // address of the ring
    __local float *m;    // the work-item's copies of its rows' references, natural (see weigh)
    uint q_address;      // of the work-item's part of its warp's rows
    uint k_copy, v_copy; // of its first chunk of a slot
    uint k_lane, v_lane; // of a slot
} worker;

// Work-groups begin as others end, and some sections have fewer tiles than are worked at: then heavy tiles of the last one
// would be left at the end. Four are still in the cache. Of f32, products take so long that memory keeps up without it.
#define SECTIONS_AT_ONCE 4

inlined work_place place_in_order(int index, const attention_buffers *in, const attention_args *a)
{
    const int lines = lines_of(a), key_bytes = (HEAD_DIM_QK + HEAD_DIM_V) * ELEMENT_BYTES;
    const int sections = SECTIONS_AT_ONCE * lines_of_section(lines, a->heads_per_kv, a->kv_len, key_bytes);
    const int section = K_TYPE == TYPE_F32 ? lines : min(sections, lines);
    return place_of_group(tile_in_order(index, lines, a->q_tiles, section), in, a);
}

inlined worker make_worker(const attention_buffers *in, const attention_args *a, uint memory, __local float *m)
{
    const work_place place = place_in_order((int)get_group_id(1) + a->first_group, in, a);
    worker w;
    w.id = (int)get_local_id(0);
    w.lane = w.id % WARP;
    const int warp = (int)bits_from((uint)(w.id / WARP), 0); // from one lane, so that compilers know it for all
    w.team = TURNS ? warp / (WARPS / 2) : 0;
    w.batch = place.batch;
    w.head = place.head;
    w.seq = sequence_of(place.batch, in, a);
    const int rows = w.seq.q_len;
    w.first_row = place.q_tile * BLOCK_Q;
    w.last_row = min(w.first_row + BLOCK_Q, rows) - 1;
    w.keys = keys_of_rows(w.first_row, w.last_row, w.seq.kv_len, w.seq.band_begin, w.seq.band_end);
    w.first_row_of_warp = w.first_row + warp * WARP_ROWS;
    w.last_row_of_warp = min(w.first_row_of_warp + WARP_ROWS, rows) - 1;
    w.keys_of_warp = keys_of_rows(w.first_row_of_warp, w.last_row_of_warp, w.seq.kv_len, w.seq.band_begin,
                                  w.seq.band_end);
    if (w.last_row < w.first_row) // the entry's q ends before
        w.keys.end = w.keys.begin;
    if (w.last_row_of_warp < w.first_row_of_warp)
        w.keys_of_warp.end = w.keys_of_warp.begin;

    const int head_kv = place.head / a->heads_per_kv;
    w.q.head = in->q + query_base(&a->q, place.batch, place.head, &w.seq);
    w.q.rows.token = a->q.token;
    w.q.columns = a->head_dim_qk;
    w.k.rows = rows_of_keys(&a->k, place.batch, head_kv, &w.seq, in, a);
    w.k.head = in->k + w.k.rows.first;
    w.k.rows.first = 0;
    w.k.columns = a->head_dim_qk;
    w.v.rows = rows_of_keys(&a->v, place.batch, head_kv, &w.seq, in, a);
    w.v.head = in->v + w.v.rows.first;
    w.v.rows.first = 0;
    w.v.columns = a->head_dim_v;
    w.map_plane = in->workspace + head_base(&a->tile_map, place.batch, place.head);

    w.memory = memory;
    w.m = m + w.id;
    w.q_address = memory + (Q_APART ? RING_BYTES : 0) + warp * WARP_ROWS * K_PITCH + q_lane(w.lane);
    w.k_copy = memory + w.id / LANES_OF_ROW(HEAD_DIM_QK) * K_PITCH + w.id % LANES_OF_ROW(HEAD_DIM_QK) * 16;
    w.v_copy = memory + K_BYTES + w.id / LANES_OF_ROW(HEAD_DIM_V) * V_PITCH + w.id % LANES_OF_ROW(HEAD_DIM_V) * 16;
    w.k_lane = k_lane(w.lane);
    w.v_lane = K_BYTES + v_lane(w.lane);
    return w;
}

// The row of the work-item that has the results [t][n][2 r] and [t][n][2 r + 1].
inlined int row_of(const worker *w, int t, int r) { return w->first_row_of_warp + w->lane / 4 + 16 * t + 8 * r; }

// ---- Tiles of keys ---------------------------------------------------------------------------------------

// The first key of the first tile from `key` on that masks leave something of; beyond the last key if there is none.
inlined int next_tile(const worker *w, int key, const attention_args *a)
{
    if (SCORE_FULL && a->map_width > 0)
        while (key < w->keys.end && tile_class(w->map_plane, w->first_row, w->last_row, key,
                                               min(key + BLOCK_K, w->keys.end) - 1, a) == TILE_EMPTY)
            key += BLOCK_K;
    return key;
}

inlined int is_there(const worker *w, int tile) { return tile < w->keys.end; }

// Whether rows of the warp may see keys of the tile, as far as the band goes.
inlined int is_own(const worker *w, int tile)
{
    return tile < w->keys_of_warp.end && tile + BLOCK_K > w->keys_of_warp.begin;
}

// Where the ring stands.
typedef struct ring {
    uint read; // the slot to be read next
    int next_k; // the tiles to be copied next
    int next_v;
    cursor k; // or where they are, if TILES_FOLLOW and rows are aligned
    cursor v;
} ring;

inlined uint next_slot(uint slot) { return slot == (STAGES - 1) * SLOT_BYTES ? 0 : slot + SLOT_BYTES; }
inlined uint last_slot(uint slot) { return slot == 0 ? (STAGES - 1) * SLOT_BYTES : slot - SLOT_BYTES; }

// The copies that fill a slot.
typedef struct filling {
    copies k;
    copies v;
} filling;

// Of the ring's next tiles. The tile of V is that which K's was before.
inlined filling plan_filling(ring *ring, int id, const worker *w, const attention_args *a)
{
    filling plan;
    plan.k = plan_copies(&w->k, ring->next_k, BLOCK_K, w->keys, HEAD_DIM_QK, id, 0);
    plan.v = plan_copies(&w->v, ring->next_v, BLOCK_K, w->keys, HEAD_DIM_V, id, 0);
    ring->next_v = ring->next_k;
    ring->next_k = next_tile(w, ring->next_k + BLOCK_K, a);
    return plan;
}

inlined void fill_slot(uint slot, const filling *plan, int id, const worker *w, const int aligned)
{
    make_copies(w->memory + slot, &plan->k, BLOCK_K, HEAD_DIM_QK, K_PITCH, id, aligned);
    make_copies(w->memory + slot + K_BYTES, &plan->v, BLOCK_K, HEAD_DIM_V, V_PITCH, id, aligned);
    close_copies();
}

// The same where tiles follow.
inlined void walk_to_slot(uint slot, ring *ring, int tile, const worker *w, const int with_v)
{
    copy_tile(w->k_copy + slot, &ring->k, tile, &w->k, HEAD_DIM_QK, K_PITCH);
    if (with_v)
        copy_tile(w->v_copy + slot, &ring->v, tile - BLOCK_K, &w->v, HEAD_DIM_V, V_PITCH);
    close_copies();
}

// The first STAGES - 1 slots; the first has no V.
inlined ring fill_first(const worker *w, const attention_args *a, const int aligned)
{
    ring ring;
    ring.read = 0;
    ring.next_k = next_tile(w, w->keys.begin, a);
    ring.next_v = w->keys.begin - BLOCK_K;
    ring.k = make_cursor(&w->k, w->keys, HEAD_DIM_QK, w->id);
    ring.v = make_cursor(&w->v, w->keys, HEAD_DIM_V, w->id);
#pragma unroll
    for (int i = 0; i < STAGES - 1; i++)
        if (TILES_FOLLOW && aligned) {
            walk_to_slot(i * SLOT_BYTES, &ring, w->keys.begin + i * BLOCK_K, w, i > 0);
        } else {
            const filling plan = plan_filling(&ring, w->id, w, a);
            fill_slot(i * SLOT_BYTES, &plan, w->id, w, aligned);
        }
    return ring;
}

// ---- Turns -----------------------------------------------------------------------------------------------

#define TURN_OF(team) (1u + (team)) // its barrier's name

// Waits for the turn; what the slot to be read holds has then come in, and that which was read last may be filled.
inlined void begin_turn(const worker *w)
{
    WAIT_FOR_COPIES(STAGES - 2);
    if (TURNS)
        WAIT_AT(TURN_OF(w->team), ITEMS);
    else
        barrier(CLK_LOCAL_MEM_FENCE);
}

// What is copied to the slot that was read last, worked out ahead of the turn where tiles do not follow: maps and page
// tables are far away. tile: the turn's of K; without a map the next tiles follow from that one, and take no registers.
inlined filling plan_refill(ring *ring, int tile, const worker *w, const attention_args *a, const int aligned)
{
    filling plan;
    if (TILES_FOLLOW && aligned)
        return plan; // not looked at
    if (!SCORE_FULL) {
        ring->next_k = tile + (STAGES - 1) * BLOCK_K;
        ring->next_v = tile + (STAGES - 2) * BLOCK_K;
    }
    return plan_filling(ring, local_id_again(), w, a);
}

inlined void refill(ring *ring, const filling *plan, int tile, const worker *w, const int aligned)
{
    const uint slot = last_slot(ring->read);
    if (TILES_FOLLOW && aligned)
        walk_to_slot(slot, ring, tile + (STAGES - 1) * BLOCK_K, w, 1);
    else
        fill_slot(slot, plan, local_id_again(), w, aligned);
}

// The other team's turn begins.
inlined void hand_over(const worker *w)
{
    if (TURNS) {
        WAIT_FOR_COPIES(STAGES - 2);
        ARRIVE_AT(TURN_OF(1 - w->team), ITEMS);
    }
}

// The last turn of team 1, which has no tile of K, is followed by none.
inlined void end_turn(ring *ring, const worker *w, int has_tile)
{
    ring->read = next_slot(ring->read);
    if (w->team == 0 || has_tile)
        hand_over(w);
}

// A turn for the other warps.
inlined void pass_turn(ring *ring, const worker *w, int tile, const attention_args *a, const int aligned)
{
    const filling plan = plan_refill(ring, tile, w, a, aligned);
    begin_turn(w);
    refill(ring, &plan, tile, w, aligned);
    end_turn(ring, w, is_there(w, tile));
}

// ---- Q ---------------------------------------------------------------------------------------------------

// Plain scores are compared before they are scaled, so that the sign of the scale goes to Q.
inlined void negate_q(uint to, int id)
{
    const uint signs = K_TYPE == TYPE_F32 ? 0x80000000u : 0x80008000u;
    for (int i = id; i < Q_BYTES / 16; i += ITEMS) {
        uint x[4];
        load_local(x, to + i * 16);
        store_local(to + i * 16, (uint4)(x[0], x[1], x[2], x[3]) ^ signs);
    }
}

// Begins with all copies under way that may be, and Q there.
inlined ring load_first(uint held[Q_HELD + 1][ROW_TILES][4], const worker *w, const attention_args *a,
                        const int aligned)
{
    const uint q_memory = w->memory + (Q_APART ? RING_BYTES : 0);
    const key_range rows = {w->first_row, w->last_row + 1};
    ring ring;
    const copies plan = plan_copies(&w->q, w->first_row, BLOCK_Q, rows, HEAD_DIM_QK, w->id, 1);
    make_copies(q_memory, &plan, BLOCK_Q, HEAD_DIM_QK, K_PITCH, w->id, aligned);
    if (Q_APART) {
        ring = fill_first(w, a, aligned);
        WAIT_FOR_COPIES(STAGES - 2);
    } else {
        close_copies();
        WAIT_FOR_COPIES(0);
    }
    barrier(CLK_LOCAL_MEM_FENCE);
    if (!SCORE_FULL && a->scale < 0.0f) {
        negate_q(q_memory, w->id);
        barrier(CLK_LOCAL_MEM_FENCE);
    }
#pragma unroll
    for (int step = 0; step < Q_HELD; step++)
        load_q(held[step], w->q_address, step);
    if (!Q_APART) {
        barrier(CLK_LOCAL_MEM_FENCE);
        ring = fill_first(w, a, aligned);
    }
    if (TURNS && w->team == 1) {
        WAIT_FOR_COPIES(STAGES - 2);
        ARRIVE_AT(TURN_OF(0), ITEMS);
    }
    return ring;
}

// ---- Scores ----------------------------------------------------------------------------------------------

#if SCORE_FORMULA

// From products to scores in log2 units.
inlined void change_scores(float s[ROW_TILES][KEY_GROUPS][4], const worker *w, int first_key,
                           const attention_buffers *in, const attention_args *a)
{
#define FOR_EACH_PRODUCT                                                                                 \
    _Pragma("unroll") for (int t = 0; t < ROW_TILES; t++)                                                \
        _Pragma("unroll") for (int n = 0; n < KEY_GROUPS; n++)                                           \
            _Pragma("unroll") for (int i = 0; i < 4; i++)

    if (a->softcap > 0.0f) {
        const capping cap =
            make_capping(fabs(a->scale) * reciprocal_of(a->softcap), a->softcap * LOG2_E); // sign: negate_q
        FOR_EACH_PRODUCT s[t][n][i] = capped(s[t][n][i], &cap);
    } else {
        FOR_EACH_PRODUCT s[t][n][i] *= fabs(a->scale_log2);
    }
    if (has(a, FEATURE_ALIBI)) {
        const float slope = in->alibi_slopes[number_at(&a->alibi_slopes, w->batch, w->head)] * LOG2_E;
        float distance[ROW_TILES][2]; // of each row's position from the work-item's first key
#pragma unroll
        for (int t = 0; t < ROW_TILES; t++)
#pragma unroll
            for (int r = 0; r < 2; r++)
                distance[t][r] = (float)(row_of(w, t, r) + w->seq.offset - first_key - w->lane % 4 * 2);
        FOR_EACH_PRODUCT s[t][n][i] = fma(fabs(distance[t][i / 2] - (float)(8 * n + i % 2)), -slope, s[t][n][i]);
    }
#undef FOR_EACH_PRODUCT
}

#elif SCORE_FULL

// One row's scores through all that may change them, in the order of score.cl. Keys beyond the last repeat it.
// class: of the tile, as far as masks go.
inlined void finish_row(float s[KEY_GROUPS][4], int r, const worker *w, int row, int first_key, int class,
                        const attention_buffers *in, const attention_args *a)
{
    const int last_key = w->keys.end - 1;
    const mod_place place = make_mod_place(w->batch, w->head, w->seq.offset, in->user, a);
    row = min(row, w->last_row);

// The row's scores and their keys.
#define FOR_EACH_SCORE                                                                                   \
    _Pragma("unroll") for (int n = 0; n < KEY_GROUPS; n++)                                               \
        _Pragma("unroll") for (int e = 0; e < 2; e++)
#define SCORE s[n][2 * r + e]
#define KEY min(first_key + 8 * n + w->lane % 4 * 2 + e, last_key)

    if (a->softcap > 0.0f) {
        const capping cap = make_capping(reciprocal_of(a->softcap), a->softcap);
        FOR_EACH_SCORE SCORE = capped(SCORE, &cap);
    }
    if (has(a, FEATURE_BIAS)) {
        const __global bias_t *bias = in->bias + head_base(&a->bias, w->batch, w->head) + row * a->bias.token;
        const float head_scale =
            has(a, FEATURE_BIAS_HEAD_SCALE) ? in->bias_head_scale[number_at(&a->bias_head_scale, w->batch, w->head)]
                                            : 1.0f;
        FOR_EACH_SCORE SCORE = add_bias(SCORE, LOAD1(BIAS_TYPE)(bias, KEY * a->bias_key), head_scale);
    }
    if (has(a, FEATURE_ALIBI)) {
        const float slope = in->alibi_slopes[number_at(&a->alibi_slopes, w->batch, w->head)];
        FOR_EACH_SCORE SCORE = add_alibi(SCORE, (float)(row + w->seq.offset - KEY), slope);
    }
    if (HAS_SCORE_MOD)
        FOR_EACH_SCORE SCORE = apply_score_mod(SCORE, &place, row, KEY);

    if (has(a, FEATURE_MASK) && class != TILE_FULL) {
        const __global uchar *mask = in->mask + head_base(&a->mask, w->batch, w->head) + row * a->mask.token;
        FOR_EACH_SCORE SCORE = mask[KEY * a->mask_key] != 0 ? SCORE : -INFINITY;
    }
    if (a->tile_rows > 0 && class != TILE_FULL) // entries of the map lie within the caller's tiles
        FOR_EACH_SCORE SCORE = tile_class(w->map_plane, row, row, KEY, KEY, a) == TILE_EMPTY ? -INFINITY : SCORE;
    if (HAS_MASK_MOD && class != TILE_FULL)
        FOR_EACH_SCORE SCORE = apply_mask_mod(&place, row, KEY) ? SCORE : -INFINITY;
}

inlined uint seen_by_warp(float s[ROW_TILES][KEY_GROUPS][4])
{
    uint seen = 0;
#pragma unroll
    for (int n = 0; n < KEY_GROUPS; n++)
#pragma unroll
        for (int t = 0; t < ROW_TILES; t++)
#pragma unroll
            for (int i = 0; i < 4; i++)
                seen |= s[t][n][i] != -INFINITY ? 1u << 2 * n + i % 2 : 0u; // NaN is seen
    seen |= bits_across(seen, 4);
    seen |= bits_across(seen, 8);
    return seen | bits_across(seen, 16);
}

#endif

#if K_TYPE == TYPE_F32

// An infinite element has no low part, and makes NaN of every product: such scores are taken again, the plain way.
inlined void repair_scores(float s[ROW_TILES][KEY_GROUPS][4], const worker *w, int first_key, const attention_args *a)
{
    const float sign = !SCORE_FULL && a->scale < 0.0f ? -1.0f : 1.0f; // as negate_q
    int broken = 0;
#pragma unroll
    for (int at = 0; at < ROW_TILES * KEY_GROUPS * 4; at++)
        broken |= s[at / 4 / KEY_GROUPS][at / 4 % KEY_GROUPS][at % 4] != s[at / 4 / KEY_GROUPS][at / 4 % KEY_GROUPS][at % 4];
    if (!any_in_warp(broken))
        return;
#pragma unroll 1
    for (int at = 0; at < ROW_TILES * KEY_GROUPS * 4; at++) {
        const int row = row_of(w, at / 4 / KEY_GROUPS, at % 4 / 2);
        const int key = first_key + at / 4 % KEY_GROUPS * 8 + w->lane % 4 * 2 + at % 2;
        float sum = 0.0f;
        if (row <= w->last_row && key < w->keys.end) {
            const __global k_t *q = w->q.head + row * w->q.rows.token, *k = w->k.head + row_of_key(&w->k.rows, key);
            for (int c = 0; c < a->head_dim_qk; c++)
                sum = fma(q[c], k[c], sum);
        }
#pragma unroll
        for (int i = 0; i < ROW_TILES * KEY_GROUPS * 4; i++) {
            float *const x = &s[i / 4 / KEY_GROUPS][i / 4 % KEY_GROUPS][i % 4];
            *x = i == at && *x != *x ? sign * sum : *x;
        }
    }
}

#endif

#define ALL_SEEN (KEY_GROUPS == 16 ? 0xffffffffu : (1u << 2 * (KEY_GROUPS % 16)) - 1)

// Keys that the row may not see by position get -inf, whatever the product there: a NaN in K at such a key goes no
// further. As keys_of_row, but counted from the work-item's first key and for its first row; what follows for the
// others differs by constants.
inlined void apply_band(float s[ROW_TILES][KEY_GROUPS][4], const worker *w, int first_key)
{
    const int row = row_of(w, 0, 0), key = min(first_key + w->lane % 4 * 2, w->seq.kv_len);
    const int begin = row + w->seq.band_begin - key;
    const int end = row + w->seq.band_end - key;
    const int last = w->keys.end - key;
#pragma unroll
    for (int t = 0; t < ROW_TILES; t++)
#pragma unroll
        for (int n = 0; n < KEY_GROUPS; n++)
#pragma unroll
            for (int i = 0; i < 4; i++) {
                const int down = 16 * t + i / 2 * 8, right = 8 * n + i % 2;
                if (right < begin + down || right >= min(end + down, last))
                    s[t][n][i] = -INFINITY;
            }
}

// From products to final scores, forbidden ones as -inf: with SCORE_FULL in natural units, with SCORE_FORMULA in log2
// units, otherwise still to be scaled. Returns which of its keys some row of the warp may see, as far as masks tell.
inlined uint finish_scores(float s[ROW_TILES][KEY_GROUPS][4], const worker *w, int first_key,
                           const attention_buffers *in, const attention_args *a)
{
    const int in_band =
        tile_is_full(w->first_row_of_warp, w->last_row_of_warp, first_key, first_key + BLOCK_K - 1, w->keys.end,
                     w->seq.band_begin, w->seq.band_end);
    uint seen = ALL_SEEN;
#if K_TYPE == TYPE_F32
    repair_scores(s, w, first_key, a);
#endif
#if SCORE_FORMULA
    change_scores(s, w, first_key, in, a);
#elif SCORE_FULL
    int class = class_without_map(a);
    if (a->map_width > 0)
        class = tile_class(w->map_plane, w->first_row_of_warp, w->last_row_of_warp, first_key,
                           min(first_key + BLOCK_K, w->keys.end) - 1, a);
#pragma unroll
    for (int t = 0; t < ROW_TILES; t++)
#pragma unroll
        for (int n = 0; n < KEY_GROUPS; n++)
#pragma unroll
            for (int i = 0; i < 4; i++)
                s[t][n][i] *= a->scale;
    if (a->transforms || class != TILE_FULL) {
#pragma unroll
        for (int t = 0; t < ROW_TILES; t++)
#pragma unroll
            for (int r = 0; r < 2; r++)
                finish_row(s[t], r, w, row_of(w, t, r), first_key, class, in, a);
    }
#endif
    if (!in_band)
        apply_band(s, w, first_key);
#if SCORE_FULL
    // By the band alone, the union of the work-group's rows leaves no hole; with a map, the rows for which the band
    // would show a key may be others than those for which the masks do.
    if (class != TILE_FULL || (!in_band && a->map_width > 0))
        seen = seen_by_warp(s);
#endif
    return seen;
}

// ---- Softmax ---------------------------------------------------------------------------------------------

// Lazy, as nvidia_lazy.cl explains. exponent[t][r]: exponent_of the row's reference.
#define M_OF(w, t, r) (w)->m[((t) * 2 + (r)) * ITEMS] // natural

// The exact step for row r of row tile t: its reference moves to the largest score so far, and what was summed up
// shrinks accordingly. Returns the new reference.
inlined float move_reference(float s[KEY_GROUPS][4], float o[COLUMN_GROUPS][4], float *l, float *exponent, int t,
                             int r, const worker *w, const attention_args *a)
{
    float largest = SCORE_FORBIDDEN;
#pragma unroll
    for (int n = 0; n < KEY_GROUPS; n++)
#pragma unroll
        for (int e = 0; e < 2; e++)
            largest = fmax(largest, settled(s[n][2 * r + e], a)); // passes over NaN, which the weights show
    largest = fmax(largest, across(largest, 1));
    largest = fmax(largest, across(largest, 2));
    const float old = M_OF(w, t, r), moved = fmax(old, largest), moved_exponent = exponent_of(moved);
    const float difference = *exponent - moved_exponent; // NaN unless both are exponents
    const float shrink = exp2_of(difference == difference ? difference : (old - moved) * LOG2_E);
    *l *= shrink;
#pragma unroll
    for (int n = 0; n < COLUMN_GROUPS; n++) {
        o[n][2 * r] *= shrink;
        o[n][2 * r + 1] *= shrink;
    }
    M_OF(w, t, r) = moved;
    *exponent = moved_exponent;
    return moved;
}

// First references of rows of which nothing has been summed up yet: the largest score of a few keys is mostly near enough
// to the largest of all. Where scores may not be lowered by it, the exact step follows.
#define GUESS_GROUPS 2 // of eight keys

inlined void guess_references(float s[ROW_TILES][KEY_GROUPS][4], float exponent[ROW_TILES][2], const worker *w,
                              const attention_args *a)
{
#pragma unroll
    for (int t = 0; t < ROW_TILES; t++)
#pragma unroll
        for (int r = 0; r < 2; r++) {
            float largest = SCORE_FORBIDDEN;
#pragma unroll
            for (int n = 0; n < GUESS_GROUPS && n < KEY_GROUPS; n++)
#pragma unroll
                for (int e = 0; e < 2; e++)
                    largest = fmax(largest, settled(s[t][n][2 * r + e], a));
            largest = fmax(largest, across(largest, 1));
            largest = fmax(largest, across(largest, 2));
            exponent[t][r] = exponent_of(largest);
            if (exponent[t][r] == exponent[t][r])
                M_OF(w, t, r) = largest;
        }
}

// P = exp(S - m), row sums to l.
inlined void weigh(WEIGHTS(p), float s[ROW_TILES][KEY_GROUPS][4], float o[ROW_TILES][COLUMN_GROUPS][4],
                   float l[ROW_TILES][2], float exponent[ROW_TILES][2], const worker *w, const attention_args *a)
{
    const float factor = SCORE_TO_EXPONENT(a);
    float sum[ROW_TILES][2];
    int outgrown = 0;
#pragma unroll
    for (int t = 0; t < ROW_TILES; t++) {
        sum[t][0] = sum[t][1] = 0.0f;
#pragma unroll
        for (int n = 0; n < KEY_GROUPS; n++) {
            float weight[4];
#pragma unroll
            for (int i = 0; i < 4; i++) {
                weight[i] = exp2_of(fma(s[t][n][i], factor, -exponent[t][i / 2]));
                sum[t][i / 2] += weight[i];
            }
            set_weights(p, t, n, weight);
        }
        outgrown |= !(sum[t][0] <= LARGEST_SUM) | !(sum[t][1] <= LARGEST_SUM);
    }
    if (__builtin_expect(any_in_warp(outgrown), 0)) {
#pragma unroll
        for (int t = 0; t < ROW_TILES; t++) {
            float m[2];
#pragma unroll
            for (int r = 0; r < 2; r++) {
                m[r] = move_reference(s[t], o[t], &l[t][r], &exponent[t][r], t, r, w, a);
                sum[t][r] = 0.0f;
            }
#pragma unroll
            for (int n = 0; n < KEY_GROUPS; n++) {
                float weight[4];
#pragma unroll
                for (int i = 0; i < 4; i++) {
                    const float x = fma(s[t][n][i], factor, -exponent[t][i / 2]);
                    const float far = (settled(s[t][n][i], a) - m[i / 2]) * LOG2_E;
                    weight[i] = exp2_of(exponent[t][i / 2] == exponent[t][i / 2] ? x : far);
                    sum[t][i / 2] += weight[i];
                }
                set_weights(p, t, n, weight);
            }
        }
    }
#pragma unroll
    for (int t = 0; t < ROW_TILES; t++) {
        l[t][0] += sum[t][0];
        l[t][1] += sum[t][1];
    }
}

// ---- Results ---------------------------------------------------------------------------------------------

inlined void store_results(float o[ROW_TILES][COLUMN_GROUPS][4], float l[ROW_TILES][2], const worker *w,
                           const attention_buffers *in, const attention_args *a, const int aligned)
{
    const row_start sink = start_of_rows(w->batch, w->head, in->sinks, a);
    __global o_t *const head = in->o + query_base(&a->o, w->batch, w->head, &w->seq);
#pragma unroll
    for (int t = 0; t < ROW_TILES; t++)
#pragma unroll
        for (int r = 0; r < 2; r++) {
            const int row = row_of(w, t, r);
            float sum = l[t][r]; // of the work-item's keys
            sum += across(sum, 1);
            sum += across(sum, 2);
            const float m = M_OF(w, t, r), sink_m = sink.max * SCORE_TO_NATURAL, largest = fmax(m, sink_m);
            const float own = exp2_of((m - largest) * LOG2_E);
            const float total = sum * own + sink.sum * exp2_of((sink_m - largest) * LOG2_E);
            const int empty = total == 0.0f; // no key was allowed
            const int exists = row <= w->last_row;
            if (exists && w->lane % 4 == 0 && has(a, FEATURE_LSE))
                in->lse[query_base(&a->lse, w->batch, w->head, &w->seq) + row * a->lse.token] =
                    (empty ? -INFINITY : largest + log(total)) * a->lse_unit;
            store_o(head + row * a->o.token, o[t], r, empty ? 0.0f : own / total, exists, w->lane, a->head_dim_v,
                    aligned);
        }
}

// ---- The whole -------------------------------------------------------------------------------------------

// Turn i: S of tile i and, with the weights of tile i - 1, its part of O. with_s, with_pv: constants.
inlined void take_turn(ring *ring, float s[ROW_TILES][KEY_GROUPS][4], float o[ROW_TILES][COLUMN_GROUPS][4],
                       WEIGHTS(p), uint held[Q_HELD + 1][ROW_TILES][4], uint seen, int tile, const worker *w,
                       const attention_args *a, const int with_s, const int with_pv, const int aligned)
{
    const filling plan = plan_refill(ring, tile, w, a, aligned);
    begin_turn(w);
    const uint slot = w->memory + ring->read;
#if ALTERNATES && !SCORE_FULL
    if (with_s && with_pv) {
        const uint k = slot + w->k_lane, v = slot + w->v_lane;
        const int walks = TILES_FOLLOW && aligned; // otherwise there is a plan, which takes registers
        operands x[2];
        if (!walks)
            refill(ring, &plan, tile, w, aligned);
        begin_both(s, x, held, w->q_address, k);
#pragma unroll
        for (int step = 0; step < QK_STEPS; step++) {
            load_step(x, step, held, w->q_address, k, v);
            if (step == QK_STEPS - 1) { // the other team's first operands come beside the last products
                hand_over(w);
                NOTHING_CROSSES(w->team);
            }
            multiply_step(s, o, p, &x[step % 2], step);
            if (walks && step == 0) // behind the first operands, which would have to wait for it
                refill(ring, &plan, tile, w, aligned);
        }
        ring->read = next_slot(ring->read);
        return;
    }
#endif
    if (!FILL_LATE)
        refill(ring, &plan, tile, w, aligned);
    if (with_s && !PV_FIRST)
        multiply_qk(s, held, w->q_address, slot + w->k_lane);
    if (FILL_LATE)
        refill(ring, &plan, tile, w, aligned);
    if (with_pv) {
        if (!SCORE_FULL || !any_in_warp(seen != ALL_SEEN))
            multiply_pv(o, p, slot + w->v_lane, 1, seen);
        else
            multiply_pv(o, p, slot + w->v_lane, 0, seen);
    }
    if (with_s && PV_FIRST)
        multiply_qk(s, held, w->q_address, slot + w->k_lane);
    end_turn(ring, w, with_s || is_there(w, tile));
}

// Both kernels, with `aligned` a constant: whether rows are whole chunks at multiples of 16 bytes.
inlined void forward(const attention_buffers *in, const attention_args *a, uint memory, __local float *m,
                     const int aligned)
{
    const worker work = make_worker(in, a, memory, m);
    const worker *w = &work;
    float s[ROW_TILES][KEY_GROUPS][4], o[ROW_TILES][COLUMN_GROUPS][4];
    float l[ROW_TILES][2], exponent[ROW_TILES][2];
    uint held[Q_HELD + 1][ROW_TILES][4];
    WEIGHTS(p);
#pragma unroll
    for (int t = 0; t < ROW_TILES; t++) {
#pragma unroll
        for (int n = 0; n < COLUMN_GROUPS; n++)
#pragma unroll
            for (int i = 0; i < 4; i++)
                o[t][n][i] = 0.0f;
#pragma unroll
        for (int r = 0; r < 2; r++) {
            l[t][r] = 0.0f;
            exponent[t][r] = NAN;
            M_OF(w, t, r) = -1e30f; // a row without keys; floor scores weigh 1 against it, forbidden keys nothing
        }
    }
    ring ring = load_first(held, w, a, aligned);
    int tile = next_tile(w, w->keys.begin, a);

    // in turn with the other team, for each tile i of keys that the work-group's rows may see, and once more:
    //     ask for the tiles that come STAGES - 1 turns later
    //     S = Q K^T for tile i
    //     O += P V for tile i - 1; where every key counts, the two step by step (ALTERNATES)
    // out of turn:
    //     S = -inf where a row may not see a key
    //     P = exp(S - m);  l += row sums of P
    //     if some sum passed its limit: m = row maximum; rescale l, O; P again
    // write O / l and ln(sum exp) = m + ln l
    while (is_there(w, tile) && !is_own(w, tile)) { // other warps' rows come before
        pass_turn(&ring, w, tile, a, aligned);
        tile = next_tile(w, tile + BLOCK_K, a);
    }
    if (is_there(w, tile)) {
        take_turn(&ring, s, o, p, held, 0, tile, w, a, 1, 0, aligned);
        uint seen = finish_scores(s, w, tile, in, a);
        tile = next_tile(w, tile + BLOCK_K, a);
        guess_references(s, exponent, w, a);
        while (tile < w->keys_of_warp.end) {
            weigh(p, s, o, l, exponent, w, a);
            take_turn(&ring, s, o, p, held, seen, tile, w, a, 1, 1, aligned);
            seen = finish_scores(s, w, tile, in, a);
            tile = next_tile(w, tile + BLOCK_K, a);
        }
        weigh(p, s, o, l, exponent, w, a);
        take_turn(&ring, s, o, p, held, seen, tile, w, a, 0, 1, aligned);
    } else {
        pass_turn(&ring, w, tile, a, aligned);
    }
    while (is_there(w, tile)) { // other warps' rows come behind
        tile = next_tile(w, tile + BLOCK_K, a);
        pass_turn(&ring, w, tile, a, aligned);
    }
    store_results(o, l, w, in, a, aligned);
}

#define KERNEL(name, aligned)                                                                              \
    __kernel __attribute__((reqd_work_group_size(ITEMS, 1, 1))) void name(ATTENTION_BUFFERS,               \
                                                                          attention_args args)             \
    {                                                                                                      \
        __local uint4 memory[MEMORY_BYTES / 16];                                                           \
        __local float references[ROW_TILES * 2 * ITEMS];                                                   \
        const attention_buffers buffers = GATHERED_BUFFERS;                                                \
        if ((int)get_group_id(1) < args.num_groups)                                                        \
            forward(&buffers, &args, local_address(memory), references, aligned);                          \
    }

KERNEL(forward_any, 0)
KERNEL(forward_aligned, 1)
