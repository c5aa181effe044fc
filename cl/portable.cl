// portable.cl: forward attention for any device with OpenCL C 1.2; no extension, subgroup or assembly.
//
// A work-group owns BLOCK_Q query rows of one head and walks over the keys that they may see, BLOCK_K at a
// time. Work-item (x, y) of its ITEMS_X x ITEMS_Y work-items owns, in registers,
//     ROWS  query rows     y, y + ITEMS_Y, ...
//     KEYS  scores of each row and tile (see item_key)
//     QUADS quads of four columns of each row of O:  x, x + ITEMS_X, ...
// so that both products are small outer products whose operands come from local memory as quads.
//
// Local memory holds Q (pre-scaled), and one area for first the K tile and then, once all scores are in
// registers, the softmax weights P beside a piece of the V tile:
//     [ Q: BLOCK_Q rows ] [ K: BLOCK_K rows            ]
//                         [ P: BLOCK_Q rows | V piece  ]
// (V inside K stays where it is, and P lies behind K.) With K_APART there is room for all three, and the next K
// comes as soon as the scores are there: P V runs into the next Q K^T without a barrier.
// Large head dims pass through in pieces of QK_PIECE columns of K (and Q), whose products add up.
//
// The softmax is lazy (lazy.cl): scores accumulate on top of -m, exp2 applies at once, and the work-group agrees
// on an exact step by a flag and a barrier that is there anyway. On an H200 this is worth half the time at
// HEAD_DIM 128.

#ifndef HEAD_DIM_QK // padded head dims, multiples of 32; the true ones are arguments
#define HEAD_DIM_QK 64
#endif
#ifndef HEAD_DIM_V
#define HEAD_DIM_V 64
#endif
#ifndef BLOCK_Q // query rows of a work-group; a multiple of ITEMS_Y
#define BLOCK_Q 64
#endif
#ifndef BLOCK_K // keys of a step; a multiple of ITEMS_X, of 4 and of V_PIECE
#define BLOCK_K 32
#endif
#ifndef ITEMS_X // work-items along keys and columns; divides HEAD_DIM_V / 4
#define ITEMS_X 8
#endif
#ifndef ITEMS_Y // work-items along rows; even
#define ITEMS_Y 8
#endif
#ifndef QK_PIECE // columns of K in local memory at a time; divides HEAD_DIM_QK, a multiple of 32
#define QK_PIECE HEAD_DIM_QK
#endif
#ifndef Q_RESIDENT // 1: all of Q stays in local memory; 0: Q comes in pieces with K, at every tile
#define Q_RESIDENT 1
#endif
#ifndef V_PIECE // keys of V in local memory at a time; a multiple of 4
#define V_PIECE 16
#endif
#ifndef PACK_Q // 1: Q stays in its storage type in local memory (the scale then goes to the scores)
#define PACK_Q 0
#endif
#ifndef PACK_KV // 1: K and V stay in their storage types in local memory
#define PACK_KV 0
#endif
#ifndef K_APART // 1: K has local memory of its own, beside P and V
#define K_APART 0
#endif
#ifndef UNROLL // steps of the inner loops at a time
#define UNROLL 1
#endif

// Scores accumulate on top of -m only for a row whose m is above this. Below are rows that have seen no key
// yet, rows of floor scores only, and rows so low that a later, larger score would lose digits to -m: they
// start from 0 and take the exact step at every tile.
#define ANCHOR_MIN (-16.0f)

// Every function must become part of the kernel: arrays passed between them live in registers, and whether
// rows are aligned is a constant only there. Compilers left alone make calls, and keep both in memory.
#define inlined static inline __attribute__((always_inline))

#define WORK_ITEMS (ITEMS_X * ITEMS_Y)
#define ROWS (BLOCK_Q / ITEMS_Y)
#define KEYS (BLOCK_K / ITEMS_X)
#define QUADS (HEAD_DIM_V / 4 / ITEMS_X)

// V inside K, and K in local memory as a whole: V is taken from there, and K is not read twice.
#define V_FROM_K (V_IN_K && QK_PIECE == HEAD_DIM_QK)
#if V_FROM_K
#undef V_PIECE
#define V_PIECE BLOCK_K
#undef K_APART
#define K_APART 0
#endif

#define QK_PIECES (HEAD_DIM_QK / QK_PIECE)
#define V_PIECES (BLOCK_K / V_PIECE)

// A quad as it lies in local memory is a cell: float4, or the storage type's own quad if packed.
#define Q_PACKED (PACK_Q && Q_TYPE != TYPE_F32)
#if PACK_Q
#define Q_CELL_TYPE Q_TYPE
#else
#define Q_CELL_TYPE TYPE_F32
#endif
#if PACK_KV
#define K_CELL_TYPE K_TYPE
#define V_CELL_TYPE V_TYPE
#else
#define K_CELL_TYPE TYPE_F32
#define V_CELL_TYPE TYPE_F32
#endif

typedef QUAD(Q_TYPE) q_quad;
typedef QUAD(K_TYPE) k_quad;
typedef QUAD(V_TYPE) v_quad;
typedef QUAD(Q_CELL_TYPE) q_cell;
typedef QUAD(K_CELL_TYPE) k_cell;
typedef QUAD(V_CELL_TYPE) v_cell;

// Pitches, from row to row: Q, K and V in cells, P in floats. The odd quad keeps rows in different banks.
#define QK_PIECE_QUADS (QK_PIECE / 4)
#define V_QUADS (HEAD_DIM_V / 4)
#define Q_PITCH ((Q_RESIDENT ? HEAD_DIM_QK : QK_PIECE) / 4 + 1)
#define K_PITCH (QK_PIECE_QUADS + 1)
#define P_PITCH (BLOCK_K + 4)

// KEYS of a work-item are neighbours if that lets it write P in quads; K rows are then skewed by one cell
// for every work-item against bank conflicts. Otherwise they are strided by ITEMS_X.
#define KEYS_ADJACENT (KEYS % 4 == 0)
#define KEY_STEP (KEYS_ADJACENT ? 1 : ITEMS_X)

#define LARGER(a, b) ((a) > (b) ? (a) : (b))
#define ROUND_UP_16(bytes) (((bytes) + 15) / 16 * 16)
#define Q_BYTES (BLOCK_Q * Q_PITCH * sizeof(q_cell))
#define K_BYTES ((BLOCK_K * K_PITCH + (KEYS_ADJACENT ? ITEMS_X : 0)) * sizeof(k_cell))
#define P_BYTES (BLOCK_Q * P_PITCH * sizeof(float))
#define V_BYTES (V_PIECE * V_QUADS * sizeof(v_cell))
#define P_BEGIN (V_FROM_K || K_APART ? ROUND_UP_16(K_BYTES) : 0)
#define V_BEGIN (V_FROM_K ? 0 : P_BEGIN + P_BYTES)
#define TILE_BYTES (V_FROM_K ? P_BEGIN + P_BYTES : LARGER(K_BYTES, V_BEGIN + V_BYTES))
#define V_PITCH (V_FROM_K ? K_PITCH : V_QUADS)

typedef struct local_memory {
    __local q_cell *q;
    __local k_cell *k;
    __local float *p;  // over k, or behind it
    __local v_cell *v; // behind p
    __local float *m;  // references of the rows
    // Of this tile and the next, in turns:
    volatile __local int *outgrown;
    __local int *seen; // whether some row may see the tile's key; with SCORE_FULL only
} local_memory;

// The key, within the tile, of score n of a work-item.
inlined int item_key(int x, int n) { return KEYS_ADJACENT ? x * KEYS + n : x + n * ITEMS_X; }

// a * b + c, fused wherever that is fast.
inlined float multiply_add(float a, float b, float c)
{
#ifdef FP_FAST_FMAF
    return fma(a, b, c);
#else
    return a * b + c;
#endif
}

inlined float4 multiply_add4(float a, float4 b, float4 c)
{
#ifdef FP_FAST_FMAF
    return fma((float4)(a), b, c);
#else
    return a * b + c;
#endif
}

// ---- Staging: from global to local memory ----------------------------------------------------------------
//
// For rows of whole quads the way has two halves, from global memory to registers (fetch) and on to local
// memory (store), so that the loads of the next piece are under way while this one is computed with. Fetches
// are unconditional, with rows and columns clamped to what may be read: a condition would keep the registers
// of what is fetched alive all through the loop. What must be zero becomes so when it is stored.
// (Quads of float32 are four choices each. So one condition for all of a piece is worth 2% on an H200; the
// two words of 16-bit quads are not.)
// Other rows, and Q, which mostly is read once, go all the way in one loop (copy).
//
// A work-item's share of a piece of `quads` quads a row is one or more columns of a row, and the same
// columns of every STAGE_STEP'th row from there, so that every address is one base plus a constant.

#define STAGE_WIDTH(quads) ((quads) % 32 == 0 ? 32 : (quads) % 16 == 0 ? 16 : 8)
#define STAGE_COLUMNS(quads) ((quads) / STAGE_WIDTH(quads))
#define STAGE_STEP(quads) (WORK_ITEMS / STAGE_WIDTH(quads))
#define STAGE_COUNT(rows, quads)                                                                         \
    (((rows) + STAGE_STEP(quads) - 1) / STAGE_STEP(quads) * STAGE_COLUMNS(quads))

// Whether a piece without anything to be zero is stored without a choice for each quad. (Full scores leave no
// registers for it.)
#define STORES_WHOLE(type) ((type) == TYPE_F32 && !SCORE_FULL)

#define K_FETCHES STAGE_COUNT(BLOCK_K, QK_PIECE_QUADS)
#define V_FETCHES STAGE_COUNT(V_PIECE, V_QUADS)

inlined int stage_row0(int id, int quads) { return id / STAGE_WIDTH(quads); }
inlined int stage_quad0(int id, int quads) { return id % STAGE_WIDTH(quads); }
inlined int stage_row(int i, int quads) { return i / STAGE_COLUMNS(quads) * STAGE_STEP(quads); }
inlined int stage_quad(int i, int quads) { return i % STAGE_COLUMNS(quads) * STAGE_WIDTH(quads); }

// The last pass over the rows of a piece may be a partial one.
inlined int stage_inside(int id, int i, int rows, int quads)
{
    return rows % STAGE_STEP(quads) == 0 || stage_row0(id, quads) + stage_row(i, quads) < rows;
}

// One head of q, k or v, how far it may be read, and whether in whole quads.
typedef struct q_source {
    const __global q_t *head; // with DECODE the first of the group's
    long token;
    long next_head;
    int group; // rows of a query
    int last_row;
    int columns;
    int aligned;
    float scale; // of the scores; goes to Q unless that stays packed
} q_source;

typedef struct k_source {
    const __global k_t *head;
    key_rows rows; // from head on
    key_scales scales;
    int last_row;
    int columns;
    int aligned;
} k_source;

typedef struct v_source {
    const __global v_t *head;
    key_rows rows;
    key_scales scales;
    int last_row;
    int columns;
    int aligned;
    const __local int *seen; // whether some row may see a key of the tile: if not, its value is not to be touched
} v_source;

// Floats of Q lie turned by one: what meets in a product then comes from places of a quad that differ by one.
// On NVIDIA, whose registers have two banks, even and odd, that is worth 1 to 2%.
inlined q_cell make_q_cell(q_quad quad, float scale)
{
#if Q_PACKED
    return quad;
#else
    return (UNPACK_QUAD(Q_TYPE)(quad) * scale).yzwx;
#endif
}

inlined float4 unpack_q_cell(q_cell cell)
{
#if Q_PACKED
    return UNPACK_QUAD(Q_CELL_TYPE)(cell);
#else
    return cell.wxyz;
#endif
}

inlined k_cell make_k_cell(k_quad quad)
{
#if PACK_KV
    return quad;
#else
    return UNPACK_QUAD(K_TYPE)(quad);
#endif
}

inlined v_cell make_v_cell(v_quad quad)
{
#if PACK_KV
    return quad;
#else
    return UNPACK_QUAD(V_TYPE)(quad);
#endif
}

// Where in global memory a row of q begins.
inlined const __global q_t *q_row(const q_source *q, int row)
{
    row = min(row, q->last_row);
    return DECODE ? q->head + row / q->group * q->token + row % q->group * q->next_head
                  : q->head + row * q->token;
}

inlined k_quad load_k(const k_source *k, int key, int column)
{
    const k_quad quad = LOAD_QUAD(K_TYPE)(k->head + row_of_key(&k->rows, key), column);
    return IS_SCALED(K_TYPE) ? SCALED_QUAD(K_TYPE)(quad, scale_of_key(&k->scales, key)) : quad;
}

inlined k_quad gather_k(const k_source *k, int key, int column)
{
    const k_quad quad = GATHER_QUAD(K_TYPE)(k->head + row_of_key(&k->rows, key), column, k->columns);
    return IS_SCALED(K_TYPE) ? SCALED_QUAD(K_TYPE)(quad, scale_of_key(&k->scales, key)) : quad;
}

inlined v_quad load_v(const v_source *v, int key, int column)
{
    const v_quad quad = LOAD_QUAD(V_TYPE)(v->head + row_of_key(&v->rows, key), column);
    return IS_SCALED(V_TYPE) ? SCALED_QUAD(V_TYPE)(quad, scale_of_key(&v->scales, key)) : quad;
}

inlined v_quad gather_v(const v_source *v, int key, int column)
{
    const v_quad quad = GATHER_QUAD(V_TYPE)(v->head + row_of_key(&v->rows, key), column, v->columns);
    return IS_SCALED(V_TYPE) ? SCALED_QUAD(V_TYPE)(quad, scale_of_key(&v->scales, key)) : quad;
}

// Where in local memory a row of K begins.
inlined int k_slot(int row) { return row * K_PITCH + (KEYS_ADJACENT ? row / KEYS : 0); }

// Rows beyond the last repeat it, columns beyond the true head dim are zero.
inlined void copy_q(__local q_cell *cells, const q_source *q, int id, int first_row, int first_column)
{
#pragma unroll 1
    for (int i = id; i < BLOCK_Q * QK_PIECE_QUADS; i += WORK_ITEMS) {
        const int row = i / QK_PIECE_QUADS, quad = i % QK_PIECE_QUADS;
        const int column = first_column + 4 * quad;
        const __global q_t *p = q_row(q, first_row + row);
        q_quad value = (q_quad)(0);
        if (column < q->columns)
            value = q->aligned ? LOAD_QUAD(Q_TYPE)(p, column) : GATHER_QUAD(Q_TYPE)(p, column, q->columns);
        cells[row * Q_PITCH + quad] = make_q_cell(value, q->scale);
    }
}

inlined void copy_k(__local k_cell *cells, const k_source *k, int id, int first_row, int first_column)
{
#pragma unroll 1
    for (int i = id; i < BLOCK_K * QK_PIECE_QUADS; i += WORK_ITEMS) {
        const int row = i / QK_PIECE_QUADS, quad = i % QK_PIECE_QUADS;
        cells[k_slot(row) + quad] =
            make_k_cell(gather_k(k, min(first_row + row, k->last_row), first_column + 4 * quad));
    }
}

inlined void fetch_k(k_quad fetched[K_FETCHES], const k_source *k, int id, int first_row,
                     int first_column)
{
    if (!k->aligned)
        return;
    const int row0 = first_row + stage_row0(id, QK_PIECE_QUADS);
    const int column0 = first_column + 4 * stage_quad0(id, QK_PIECE_QUADS);
#pragma unroll
    for (int i = 0; i < K_FETCHES; i++) {
        const int row = min(row0 + stage_row(i, QK_PIECE_QUADS), k->last_row);
        const int column = min(column0 + 4 * stage_quad(i, QK_PIECE_QUADS), k->columns - 4);
        fetched[i] = load_k(k, row, column);
    }
}

inlined void store_k(__local k_cell *cells, const k_quad fetched[K_FETCHES], const k_source *k, int id,
                     int first_row, int first_column)
{
    if (!k->aligned) {
        copy_k(cells, k, id, first_row, first_column);
        return;
    }
    const int row0 = stage_row0(id, QK_PIECE_QUADS), quad0 = stage_quad0(id, QK_PIECE_QUADS);
    const int columns = k->columns - first_column - 4 * quad0; // that exist from the first one on
    const int skew_is_linear = !KEYS_ADJACENT || STAGE_STEP(QK_PIECE_QUADS) % KEYS == 0;
    if (STORES_WHOLE(K_TYPE) && BLOCK_K % STAGE_STEP(QK_PIECE_QUADS) == 0 && k->columns == HEAD_DIM_QK) {
#pragma unroll
        for (int i = 0; i < K_FETCHES; i++) {
            const int row = stage_row(i, QK_PIECE_QUADS), quad = stage_quad(i, QK_PIECE_QUADS);
            const int slot = skew_is_linear ? k_slot(row0) + k_slot(row) : k_slot(row0 + row);
            cells[quad0 + slot + quad] = make_k_cell(fetched[i]);
        }
        return;
    }
#pragma unroll
    for (int i = 0; i < K_FETCHES; i++) {
        const int row = stage_row(i, QK_PIECE_QUADS), quad = stage_quad(i, QK_PIECE_QUADS);
        const int slot = skew_is_linear ? k_slot(row0) + k_slot(row) : k_slot(row0 + row);
        if (stage_inside(id, i, BLOCK_K, QK_PIECE_QUADS))
            cells[quad0 + slot + quad] = make_k_cell(4 * quad < columns ? fetched[i] : (k_quad)(0));
    }
}

// Rows beyond the last, and of keys that masks leave to no row, are zero, as 0 * NaN is NaN. Columns beyond
// the true head dim hold anything: their part of O is never written. first_seen: the flag of the piece's first
// key; all_seen: no key is masked, whatever the flags say.
inlined void copy_v(__local v_cell *cells, const v_source *v, int id, int first_row, int first_seen, int all_seen)
{
#pragma unroll 1
    for (int i = id; i < V_PIECE * V_QUADS; i += WORK_ITEMS) {
        const int row = first_row + i / V_QUADS, column = i % V_QUADS * 4;
        v_quad value = (v_quad)(0);
        if (row <= v->last_row && (all_seen || v->seen[first_seen + i / V_QUADS]))
            value = gather_v(v, row, column);
        cells[i] = make_v_cell(value);
    }
}

inlined void fetch_v(v_quad fetched[V_FETCHES], const v_source *v, int id, int first_row)
{
    if (!v->aligned)
        return;
    const int row0 = first_row + stage_row0(id, V_QUADS), column0 = 4 * stage_quad0(id, V_QUADS);
#pragma unroll
    for (int i = 0; i < V_FETCHES; i++) {
        const int row = min(row0 + stage_row(i, V_QUADS), v->last_row);
        const int column = min(column0 + 4 * stage_quad(i, V_QUADS), v->columns - 4);
        fetched[i] = load_v(v, row, column);
    }
}

inlined void store_v(__local v_cell *cells, const v_quad fetched[V_FETCHES], const v_source *v, int id,
                     int first_row, int first_seen, int all_seen)
{
    if (!v->aligned) {
        copy_v(cells, v, id, first_row, first_seen, all_seen);
        return;
    }
    const int row0 = stage_row0(id, V_QUADS);
    const int last = v->last_row - first_row - row0;
    const __local int *seen = v->seen + first_seen + row0;
    __local v_cell *first = cells + row0 * V_QUADS + stage_quad0(id, V_QUADS);
    if (STORES_WHOLE(V_TYPE) && V_PIECE % STAGE_STEP(V_QUADS) == 0 && all_seen &&
        first_row + V_PIECE - 1 <= v->last_row) {
#pragma unroll
        for (int i = 0; i < V_FETCHES; i++)
            first[stage_row(i, V_QUADS) * V_QUADS + stage_quad(i, V_QUADS)] = make_v_cell(fetched[i]);
        return;
    }
#pragma unroll
    for (int i = 0; i < V_FETCHES; i++) {
        const int row = stage_row(i, V_QUADS);
        if (stage_inside(id, i, V_PIECE, V_QUADS)) {
            const int is_read = row <= last && (all_seen || seen[row]);
            first[row * V_QUADS + stage_quad(i, V_QUADS)] = make_v_cell(is_read ? fetched[i] : (v_quad)(0));
        }
    }
}

// ---- The work of a work-item -----------------------------------------------------------------------------

typedef struct worker {
    int id; // of the work-item
    int x;
    int y;
    int batch;
    int head; // with DECODE the first of the group's
    int group; // heads of the group
    int split;
    int first_row; // of the work-group
    int last_row;  // the last that exists
    int first_query; // of these rows
    int last_query;
    sequence seq;
    key_range keys;
    q_source q;
    k_source k;
    v_source v;
    const __global uchar *map_plane;
    local_memory whole;
    // The work-item's first row of Q, P and m, first key of K, first column of V.
    const __local q_cell *q_cells;
    const __local k_cell *k_cells;
    const __local v_cell *v_cells;
    __local float *p;
    __local float *m;
} worker;

// With DECODE a row is a pair of query and head: row n is head n % group of query n / group. Rows beyond the last
// repeat it.
inlined int query_of_row(const worker *w, int row)
{
    row = max(min(row, w->last_row), 0);
    return DECODE ? row / w->group : row;
}

inlined int head_of_row(const worker *w, int row)
{
    row = max(min(row, w->last_row), 0);
    return DECODE ? w->head + row % w->group : w->head;
}

inlined worker make_worker(const attention_buffers *in, const attention_args *a, const local_memory *memory,
                           const work_place *place, int aligned)
{
    worker w;
    w.id = (int)get_local_id(0);
    // Neighbours 2i and 2i+1 share x, and every other pair shares y, so that their loads of one cell
    // coincide: on NVIDIA a 16-byte local load then takes 2.5 cycles instead of 4.1.
    w.x = w.id / 2 % ITEMS_X;
    w.y = w.id % 2 + w.id / (2 * ITEMS_X) * 2;
    w.batch = place->batch;
    w.group = rows_per_query(a);
    w.head = place->head * w.group;
    w.split = place->split;
    w.seq = sequence_of(place->batch, in, a);
    const int rows = w.seq.q_len * w.group;
    const int tiles = (rows + BLOCK_Q - 1) / BLOCK_Q;
    // Under a causal bound the long tiles go first.
    w.first_row = (place->q_tile < tiles ? tiles - 1 - place->q_tile : place->q_tile) * BLOCK_Q;
    w.last_row = min(w.first_row + BLOCK_Q, rows) - 1;
    w.first_query = query_of_row(&w, w.first_row);
    w.last_query = query_of_row(&w, w.last_row);
    w.keys = keys_of_rows(w.first_query, w.last_query, w.seq.kv_len, w.seq.band_begin, w.seq.band_end);
    if (w.last_row < w.first_row) // the entry's q ends before
        w.keys.end = w.keys.begin;
    if (DECODE)
        w.keys = keys_of_split(w.keys, w.split, BLOCK_K, a);
    w.map_plane = in->workspace + head_base(&a->tile_map, place->batch, w.head);

    const int head_kv = DECODE ? place->head : place->head / a->heads_per_kv;
    w.q.head = in->q + query_base(&a->q, place->batch, w.head, &w.seq);
    w.q.token = a->q.token;
    w.q.next_head = a->q.head;
    w.q.group = w.group;
    w.q.last_row = w.last_row;
    w.q.columns = a->head_dim_qk;
    w.q.scale = SCORE_FULL ? a->scale : a->scale_log2;
    w.q.aligned = aligned;
    w.k.rows = rows_of_keys(&a->k, place->batch, head_kv, &w.seq, in, a);
    w.k.head = in->k + w.k.rows.first;
    w.k.rows.first = 0;
    w.k.scales = scales_of_k(place->batch, head_kv, &w.seq, in, a);
    w.k.last_row = w.keys.end - 1;
    w.k.columns = a->head_dim_qk;
    w.k.aligned = aligned;
    w.v.rows = rows_of_keys(&a->v, place->batch, head_kv, &w.seq, in, a);
    w.v.head = in->v + w.v.rows.first;
    w.v.rows.first = 0;
    w.v.scales = scales_of_v(place->batch, head_kv, &w.seq, in, a);
    w.v.last_row = w.keys.end - 1;
    w.v.columns = a->head_dim_v;
    w.v.aligned = aligned;
    w.v.seen = memory->seen;

    w.whole = *memory;
    w.q_cells = memory->q + w.y * Q_PITCH;
    w.k_cells = memory->k + k_slot(item_key(w.x, 0));
    w.v_cells = memory->v + w.x;
    w.p = memory->p + w.y * P_PITCH;
    w.m = memory->m + w.y;
    return w;
}

// In a K tile that V is taken from: what no row may see must not be multiplied, not even by 0.
inlined void clear_unseen(const worker *w, int turn, int all_seen)
{
    if (!all_seen)
        for (int i = w->id; i < BLOCK_K * V_QUADS; i += WORK_ITEMS)
            if (!w->whole.seen[turn * BLOCK_K + i / V_QUADS])
                w->whole.v[k_slot(i / V_QUADS) + i % V_QUADS] = (v_cell)(0);
}

// Of a tile that is still to come no score has outgrown its reference, and no key has been seen.
inlined void reset_flags(const worker *w, int turn)
{
    if (w->id == 0)
        w->whole.outgrown[turn] = 0;
    if (SCORE_FULL)
        for (int i = w->id; i < BLOCK_K; i += WORK_ITEMS)
            w->whole.seen[turn * BLOCK_K + i] = 0;
}

// A sink takes part in the first split alone.
inlined row_start start_of_row(const worker *w, int row, const attention_buffers *in, const attention_args *a)
{
    const row_start none = {SCORE_FLOOR, 0.0f};
    return DECODE && w->split > 0 ? none : start_of_rows(w->batch, head_of_row(w, row), in->sinks, a);
}

inlined void begin_rows(float l[ROWS], float4 o[ROWS][QUADS], const worker *w, const attention_buffers *in,
                        const attention_args *a)
{
#pragma unroll
    for (int r = 0; r < ROWS; r++) {
        const row_start start = start_of_row(w, w->first_row + w->y + r * ITEMS_Y, in, a);
        if (w->x == 0)
            w->m[r * ITEMS_Y] = start.max;
        l[r] = w->x == 0 ? start.sum : 0.0f;
#pragma unroll
        for (int c = 0; c < QUADS; c++)
            o[r][c] = (float4)(0.0f);
    }
    reset_flags(w, 0);
}

// Q (or its first piece, if it comes in pieces) and the first piece of the first K tile. Without keys
// nothing is read: k and v may be NULL then.
inlined void load_first(const worker *w, int first_key)
{
    if (first_key < w->keys.end) {
        k_quad k_next[K_FETCHES];
        fetch_k(k_next, &w->k, w->id, first_key, 0);
        for (int piece = 0; piece < (Q_RESIDENT ? QK_PIECES : 1); piece++)
            copy_q(w->whole.q + piece * QK_PIECE_QUADS, &w->q, w->id, w->first_row, piece * QK_PIECE);
        store_k(w->whole.k, k_next, &w->k, w->id, first_key, 0);
    }
    barrier(CLK_LOCAL_MEM_FENCE);
}

// ---- The two products ------------------------------------------------------------------------------------

// s += Q K^T over one piece of columns. q: the work-item's first row, k: its first key.
inlined void multiply_qk(float s[ROWS][KEYS], const __local q_cell *q, const __local k_cell *k)
{
#pragma unroll UNROLL
    for (int step = 0; step < QK_PIECE_QUADS; step++, q++, k++) {
        float4 keys[KEYS];
#pragma unroll
        for (int n = 0; n < KEYS; n++)
            keys[n] = UNPACK_QUAD(K_CELL_TYPE)(k[n * KEY_STEP * K_PITCH]);
#pragma unroll
        for (int r = 0; r < ROWS; r++) {
            const float4 row = unpack_q_cell(q[r * ITEMS_Y * Q_PITCH]);
#pragma unroll
            for (int n = 0; n < KEYS; n++)
                s[r][n] = multiply_add(row.x, keys[n].x, s[r][n]);
#pragma unroll
            for (int n = 0; n < KEYS; n++)
                s[r][n] = multiply_add(row.y, keys[n].y, s[r][n]);
#pragma unroll
            for (int n = 0; n < KEYS; n++)
                s[r][n] = multiply_add(row.z, keys[n].z, s[r][n]);
#pragma unroll
            for (int n = 0; n < KEYS; n++)
                s[r][n] = multiply_add(row.w, keys[n].w, s[r][n]);
        }
    }
}

// Rows of K are skewed for every work-item's keys, which are whole fours: what the step to the next four adds.
#define V_SKEW(step) (V_FROM_K && KEYS_ADJACENT && (step) % (KEYS / 4 > 0 ? KEYS / 4 : 1) == KEYS / 4 - 1)

// o += P V over one piece of keys. p: the work-item's first row at the piece's first key, v: its first
// column.
inlined void multiply_pv(float4 o[ROWS][QUADS], const __local float *p, const __local v_cell *v)
{
#pragma unroll UNROLL
    for (int step = 0; step < V_PIECE / 4; step++, p += 4, v += 4 * V_PITCH + V_SKEW(step)) {
        float4 columns[4][QUADS];
#pragma unroll
        for (int j = 0; j < 4; j++)
#pragma unroll
            for (int c = 0; c < QUADS; c++)
                columns[j][c] = UNPACK_QUAD(V_CELL_TYPE)(v[j * V_PITCH + c * ITEMS_X]);
#pragma unroll
        for (int r = 0; r < ROWS; r++) {
            const float4 weights = *(const __local float4 *)(p + r * ITEMS_Y * P_PITCH);
#pragma unroll
            for (int c = 0; c < QUADS; c++)
                o[r][c] = multiply_add4(weights.x, columns[0][c], o[r][c]);
#pragma unroll
            for (int c = 0; c < QUADS; c++)
                o[r][c] = multiply_add4(weights.y, columns[1][c], o[r][c]);
#pragma unroll
            for (int c = 0; c < QUADS; c++)
                o[r][c] = multiply_add4(weights.z, columns[2][c], o[r][c]);
#pragma unroll
            for (int c = 0; c < QUADS; c++)
                o[r][c] = multiply_add4(weights.w, columns[3][c], o[r][c]);
        }
    }
}

// s += Q K^T: one piece of columns after the other, the next K (and Q) coming in meanwhile.
inlined void add_q_k(float s[ROWS][KEYS], const worker *w, int key)
{
    for (int piece = 1; piece < QK_PIECES; piece++) {
        k_quad k_next[K_FETCHES];
        fetch_k(k_next, &w->k, w->id, key, piece * QK_PIECE);
        multiply_qk(s, w->q_cells + (Q_RESIDENT ? (piece - 1) * QK_PIECE_QUADS : 0), w->k_cells);
        barrier(CLK_LOCAL_MEM_FENCE);
        store_k(w->whole.k, k_next, &w->k, w->id, key, piece * QK_PIECE);
        if (!Q_RESIDENT)
            copy_q(w->whole.q, &w->q, w->id, w->first_row, piece * QK_PIECE);
        barrier(CLK_LOCAL_MEM_FENCE);
    }
    multiply_qk(s, w->q_cells + (Q_RESIDENT ? (QK_PIECES - 1) * QK_PIECE_QUADS : 0), w->k_cells);
}

// K of another tile, or its first piece (and Q's, if that comes in pieces).
inlined void store_tile(const worker *w, const k_quad fetched[K_FETCHES], int key)
{
    store_k(w->whole.k, fetched, &w->k, w->id, key, 0);
    if (!Q_RESIDENT)
        copy_q(w->whole.q, &w->q, w->id, w->first_row, 0);
}

// o += P V: one piece of keys after the other, the next V and at last, unless K is apart, the first piece of the
// next K tile coming in meanwhile. (That is loaded after the last tile too, its rows clamped.)
inlined void add_p_v(float4 o[ROWS][QUADS], const worker *w, int key, int next_key, int turn, int all_seen)
{
    for (int piece = 1; piece < V_PIECES; piece++) {
        v_quad v_next[V_FETCHES];
        fetch_v(v_next, &w->v, w->id, key + piece * V_PIECE);
        multiply_pv(o, w->p + (piece - 1) * V_PIECE, w->v_cells);
        barrier(CLK_LOCAL_MEM_FENCE);
        store_v(w->whole.v, v_next, &w->v, w->id, key + piece * V_PIECE, turn * BLOCK_K + piece * V_PIECE,
                all_seen);
        barrier(CLK_LOCAL_MEM_FENCE);
    }
    k_quad k_next[K_FETCHES];
    if (!K_APART)
        fetch_k(k_next, &w->k, w->id, next_key, 0);
    multiply_pv(o, w->p + (V_PIECES - 1) * V_PIECE, w->v_cells);
    if (!K_APART) {
        barrier(CLK_LOCAL_MEM_FENCE); // nobody reads P or V any more: K may lie there
        store_tile(w, k_next, next_key);
        barrier(CLK_LOCAL_MEM_FENCE);
    }
}

// ---- Scores and softmax ----------------------------------------------------------------------------------

// What a row's scores are relative to.
inlined float score_base(float m) { return m > ANCHOR_MIN ? m : 0.0f; }

// With SCORE_FULL the score itself is wanted first, and with a packed Q the scale is still to come:
// the base then comes off in finish_scores.
#define BASE_FIRST (!SCORE_FULL && !Q_PACKED)

// Returns whether all rows of the work-item have an anchored reference.
inlined int begin_scores(float s[ROWS][KEYS], const worker *w)
{
    int anchored = 1;
#pragma unroll
    for (int r = 0; r < ROWS; r++) {
        const float reference = w->m[r * ITEMS_Y];
        anchored &= reference > ANCHOR_MIN;
#pragma unroll
        for (int n = 0; n < KEYS; n++)
            s[r][n] = BASE_FIRST ? -score_base(reference) : 0.0f;
    }
    return anchored;
}

inlined const __global uchar *map_plane_of(const worker *w, int head, const attention_args *a)
{
    return w->map_plane + (head - w->head) * a->tile_map.head;
}

#if SCORE_FULL

// One row's scores through all that may change them, in the order of score.cl. Row by row, each part behind
// its condition: compilers handed all rows at once fetch every bias and mask before they use one, and spill.
// Keys and rows beyond the last repeat it. class: of the tile, as far as masks go.
inlined void finish_row(float s[KEYS], const worker *w, int row, int first_key, int class,
                        const attention_buffers *in, const attention_args *a)
{
    const int last_key = w->keys.end - 1, head = head_of_row(w, row);
    const mod_place place = make_mod_place(w->batch, head, w->seq.offset, in->user, a);
    int key[KEYS];
#pragma unroll
    for (int n = 0; n < KEYS; n++)
        key[n] = min(first_key + item_key(w->x, n), last_key);
    row = query_of_row(w, row);

    if (a->softcap > 0.0f)
#pragma unroll
        for (int n = 0; n < KEYS; n++)
            s[n] = cap_score(s[n], a->softcap);
    if (has(a, FEATURE_BIAS)) {
        const __global bias_t *bias =
            in->bias + head_base(&a->bias, w->batch, head) + row * a->bias.token;
        const float head_scale =
            has(a, FEATURE_BIAS_HEAD_SCALE) ? in->bias_head_scale[number_at(&a->bias_head_scale, w->batch, head)]
                                   : 1.0f;
#pragma unroll
        for (int n = 0; n < KEYS; n++)
            s[n] = add_bias(s[n], LOAD1(BIAS_TYPE)(bias, key[n] * a->bias_key), head_scale);
    }
    if (has(a, FEATURE_ALIBI)) {
        const float slope = in->alibi_slopes[number_at(&a->alibi_slopes, w->batch, head)];
#pragma unroll
        for (int n = 0; n < KEYS; n++)
            s[n] = add_alibi(s[n], (float)(row + w->seq.offset - key[n]), slope);
    }
    if (HAS_SCORE_MOD)
#pragma unroll
        for (int n = 0; n < KEYS; n++)
            s[n] = apply_score_mod(s[n], &place, row, key[n]);

    if (has(a, FEATURE_MASK) && class != TILE_FULL) {
        const __global uchar *mask =
            in->mask + head_base(&a->mask, w->batch, head) + row * a->mask.token;
#pragma unroll
        for (int n = 0; n < KEYS; n++)
            s[n] = mask[key[n] * a->mask_key] != 0 ? s[n] : -INFINITY;
    }
    if (a->tile_rows > 0 && class != TILE_FULL) // entries of the map lie within the caller's tiles
#pragma unroll
        for (int n = 0; n < KEYS; n++)
            s[n] = tile_class(map_plane_of(w, head, a), row, row, key[n], key[n], a) == TILE_EMPTY ? -INFINITY : s[n];
    if (HAS_MASK_MOD && class != TILE_FULL)
#pragma unroll
        for (int n = 0; n < KEYS; n++)
            s[n] = apply_mask_mod(&place, row, key[n]) ? s[n] : -INFINITY;
}

// Tells which keys of the tile some row may see.
inlined void note_seen(float s[ROWS][KEYS], const worker *w, int turn)
{
#pragma unroll
    for (int n = 0; n < KEYS; n++) {
        int seen = 0;
#pragma unroll
        for (int r = 0; r < ROWS; r++)
            seen |= s[r][n] != -INFINITY; // NaN is seen
        if (seen)
            w->whole.seen[turn * BLOCK_K + item_key(w->x, n)] = 1;
    }
}

#endif

// Keys that the row may not see by position get -inf, whatever the product there: a NaN in K at such a key
// goes no further.
inlined void apply_band(float s[ROWS][KEYS], const worker *w, int first_key)
{
#if DECODE
#pragma unroll
    for (int r = 0; r < ROWS; r++) {
        const key_range seen = keys_of_row(query_of_row(w, w->first_row + w->y + r * ITEMS_Y), w->keys.end,
                                           w->seq.band_begin, w->seq.band_end);
#pragma unroll
        for (int n = 0; n < KEYS; n++) {
            const int key = first_key + item_key(w->x, n);
            if (key < seen.begin || key >= seen.end)
                s[r][n] = -INFINITY;
        }
    }
#else
    // As keys_of_row, but counted from the work-item's first key and for its first row; what follows for the
    // others differs by constants. Compilers would keep the bounds of all rows in registers otherwise.
    const int row = w->first_row + w->y, key = min(first_key + item_key(w->x, 0), w->seq.kv_len);
    const int begin = row + w->seq.band_begin - key;
    const int end = row + w->seq.band_end - key;
    const int last = w->seq.kv_len - key;
#pragma unroll
    for (int r = 0; r < ROWS; r++)
#pragma unroll
        for (int n = 0; n < KEYS; n++) {
            const int down = r * ITEMS_Y, right = n * KEY_STEP;
            if (right < begin + down || right >= min(end + down, last))
                s[r][n] = -INFINITY;
        }
#endif
}

inlined void scale_scores(float s[ROWS][KEYS], float scale)
{
#pragma unroll
    for (int r = 0; r < ROWS; r++)
#pragma unroll
        for (int n = 0; n < KEYS; n++)
            s[r][n] *= scale;
}

// Scores relative to what begin_scores left out: their rows' bases.
inlined void lower_scores(float s[ROWS][KEYS], const worker *w, float scale)
{
#pragma unroll
    for (int r = 0; r < ROWS; r++) {
        const float base = score_base(w->m[r * ITEMS_Y]);
#pragma unroll
        for (int n = 0; n < KEYS; n++)
            s[r][n] = multiply_add(s[r][n], scale, -base);
    }
}

// From products to final scores, relative to their rows' bases; forbidden ones as -inf. class: of the tile, as
// far as masks go. Returns whether all keys are known to be seen by some row.
inlined int finish_scores(float s[ROWS][KEYS], const worker *w, int first_key, int turn, int class,
                          const attention_buffers *in, const attention_args *a)
{
    const int in_band = tile_is_full(w->first_query, w->last_query, first_key, first_key + BLOCK_K - 1,
                                     w->keys.end, w->seq.band_begin, w->seq.band_end);
    int all_seen = 1;
#if SCORE_FULL
    if (Q_PACKED)
        scale_scores(s, a->scale);
    if (a->transforms || class != TILE_FULL) {
#pragma unroll
        for (int r = 0; r < ROWS; r++)
            finish_row(s[r], w, w->first_row + w->y + r * ITEMS_Y, first_key, class, in, a);
    }
    if (!in_band)
        apply_band(s, w, first_key);
    if (class != TILE_FULL) { // by the band alone, the union of rows leaves no hole
        note_seen(s, w, turn);
        all_seen = 0;
    }
    lower_scores(s, w, 1.0f);
#else
    if (Q_PACKED)
        lower_scores(s, w, a->scale_log2);
    if (!in_band)
        apply_band(s, w, first_key);
#endif
    return all_seen;
}

// The largest score of the work-item. (fmax passes over NaN; a NaN score reaches its row through the
// weights.)
inlined float largest_score(float s[ROWS][KEYS])
{
    float largest[ROWS]; // of each row first: these need not wait for each other
#pragma unroll
    for (int r = 0; r < ROWS; r++)
        largest[r] = s[r][0];
#pragma unroll
    for (int n = 1; n < KEYS; n++)
#pragma unroll
        for (int r = 0; r < ROWS; r++)
            largest[r] = fmax(largest[r], s[r][n]);
#pragma unroll
    for (int r = 1; r < ROWS; r++)
        largest[0] = fmax(largest[0], largest[r]);
    return largest[0];
}

// Whether some row of the work-group needs the exact step. Behind it, nobody reads this K, or the P and V before,
// any more.
inlined int any_outgrown(float s[ROWS][KEYS], int anchored, const worker *w, int turn)
{
    if (!anchored || largest_score(s) > LAZY_LIMIT)
        atomic_or(w->whole.outgrown + turn, 1);
    barrier(CLK_LOCAL_MEM_FENCE);
    return w->whole.outgrown[turn];
}

// The exact online-softmax step: each row's reference moves to its largest score so far, and what was
// summed up shrinks accordingly. A row that has seen no key has m = SCORE_FLOOR, against which a forbidden
// key weighs nothing and a floor score 1. P is scratch here.
inlined void move_references(float s[ROWS][KEYS], float l[ROWS], float4 o[ROWS][QUADS],
                             const worker *w)
{
    float peak[ROWS];
#pragma unroll
    for (int r = 0; r < ROWS; r++) {
        peak[r] = SCORE_FORBIDDEN;
#pragma unroll
        for (int n = 0; n < KEYS; n++) {
            s[r][n] = settle_score(s[r][n]);
            peak[r] = fmax(peak[r], s[r][n]);
        }
        w->p[r * ITEMS_Y * P_PITCH + w->x] = peak[r];
    }
    barrier(CLK_LOCAL_MEM_FENCE);
#pragma unroll
    for (int r = 0; r < ROWS; r++) {
        for (int i = 0; i < ITEMS_X; i++)
            peak[r] = fmax(peak[r], w->p[r * ITEMS_Y * P_PITCH + i]);
        const float before = w->m[r * ITEMS_Y], base = score_base(before);
        // What scores are lowered by: from these numbers, not from references, whose sum may be rounded by
        // more than exp2 bears (scores beyond 1e9).
        const float step = fmax(before - base, peak[r]);
        const float shrink = WEIGHT(before - base - step);
        peak[r] = base + step;
        l[r] *= shrink;
#pragma unroll
        for (int c = 0; c < QUADS; c++)
            o[r][c] *= shrink;
#pragma unroll
        for (int n = 0; n < KEYS; n++)
            s[r][n] -= step;
    }
    barrier(CLK_LOCAL_MEM_FENCE);
    if (w->x == 0) {
#pragma unroll
        for (int r = 0; r < ROWS; r++)
            w->m[r * ITEMS_Y] = peak[r];
    }
}

// P = exp(s), row sums to l.
inlined void store_weights(float s[ROWS][KEYS], float l[ROWS], const worker *w)
{
#pragma unroll
    for (int r = 0; r < ROWS; r++) {
        __local float *row = w->p + r * ITEMS_Y * P_PITCH + item_key(w->x, 0);
        float sum = 0.0f;
#pragma unroll
        for (int n = 0; n < KEYS; n++) {
            s[r][n] = WEIGHT(s[r][n]);
            sum += s[r][n];
        }
        l[r] += sum;
#if KEYS_ADJACENT
#pragma unroll
        for (int n = 0; n < KEYS; n += 4)
            *(__local float4 *)(row + n) =
                (float4)(s[r][n], s[r][n + 1], s[r][n + 2], s[r][n + 3]);
#else
#pragma unroll
        for (int n = 0; n < KEYS; n++)
            row[n * ITEMS_X] = s[r][n];
#endif
    }
}

// ---- Results ---------------------------------------------------------------------------------------------

#define STORE_QUAD(name, TYPE)                                                                             \
    inlined void name(__global STORAGE(TYPE) *row, int column, int columns, float4 value, int aligned)     \
    {                                                                                                      \
        const float values[4] = {value.x, value.y, value.z, value.w};                                      \
        if (aligned && column < columns)                                                                   \
            STORE4(TYPE)(row, column, value);                                                              \
        if (!aligned)                                                                                      \
            for (int i = 0; i < 4; i++)                                                                    \
                if (column + i < columns)                                                                  \
                    STORE1(TYPE)(row, column + i, values[i]);                                              \
    }
STORE_QUAD(store_o, O_TYPE)
STORE_QUAD(store_part, TYPE_F32)

// One row: to o and lse, or with several splits to the workspace.
inlined void store_row(const float4 o[QUADS], float m, float sum, int row, const worker *w,
                       const attention_buffers *in, const attention_args *a, int aligned)
{
    const int query = query_of_row(w, row), head = head_of_row(w, row);
    const int empty = sum == 0.0f; // no key was allowed
    const float inverse = empty ? 0.0f : 1.0f / sum;
    const float lse = empty ? -INFINITY : m * SCORE_TO_NATURAL + log(sum);
#if DECODE
    if (a->num_splits > 1) {
        const long place = part_place(w->batch, query, head, w->split, &w->seq, a);
        __global float *part = part_o(in->workspace, place, a);
#pragma unroll
        for (int c = 0; c < QUADS; c++)
            store_part(part, 4 * (w->x + c * ITEMS_X), a->head_dim_v, empty ? (float4)(0.0f) : o[c] * inverse,
                       aligned);
        if (w->x == 0) {
            part_state(in->workspace, place, a)[0] = m;
            part_state(in->workspace, place, a)[1] = sum;
        }
        return;
    }
#endif
    __global o_t *to = in->o + query_base(&a->o, w->batch, head, &w->seq) + query * a->o.token;
#pragma unroll
    for (int c = 0; c < QUADS; c++)
        store_o(to, 4 * (w->x + c * ITEMS_X), a->head_dim_v, empty ? (float4)(0.0f) : o[c] * inverse, aligned);
    if (has(a, FEATURE_LSE) && w->x == 0)
        in->lse[query_base(&a->lse, w->batch, head, &w->seq) + query * a->lse.token] = lse * a->lse_unit;
}

inlined void store_results(const float l[ROWS], float4 o[ROWS][QUADS], const worker *w,
                           const attention_buffers *in, const attention_args *a, int aligned)
{
#pragma unroll
    for (int r = 0; r < ROWS; r++) // each work-item has summed the weights of its own keys
        w->p[r * ITEMS_Y * P_PITCH + w->x] = l[r];
    barrier(CLK_LOCAL_MEM_FENCE);
#pragma unroll
    for (int r = 0; r < ROWS; r++) {
        const int row = w->first_row + w->y + r * ITEMS_Y;
        float sum = 0.0f;
        for (int i = 0; i < ITEMS_X; i++)
            sum += w->p[r * ITEMS_Y * P_PITCH + i];
        if (row <= w->last_row)
            store_row(o[r], w->m[r * ITEMS_Y], sum, row, w, in, a, aligned);
    }
}

// ---- The whole -------------------------------------------------------------------------------------------

// A step of the main loop.
typedef struct key_tile {
    int first;
    int class; // TILE_PARTIAL or TILE_FULL, as far as masks go
} key_tile;

// The class of the work-group's rows at some keys: with DECODE of all heads together.
inlined int class_of_tile(const worker *w, int first_key, int last_key, const attention_args *a)
{
    const int planes = DECODE && a->tile_map.head != 0 ? w->group : 1;
    int empty = 1, full = 1;
    for (int i = 0; i < planes; i++) {
        const int class = tile_class(map_plane_of(w, w->head + i, a), w->first_query, w->last_query, first_key,
                                     last_key, a);
        empty &= class == TILE_EMPTY;
        full &= class == TILE_FULL;
    }
    return empty ? TILE_EMPTY : full ? TILE_FULL : TILE_PARTIAL;
}

// The first tile from `key` on that masks leave something of; beyond the last key if there is none.
inlined key_tile next_tile(const worker *w, int key, const attention_args *a)
{
    key_tile tile = {key, class_without_map(a)};
    if (SCORE_FULL && a->map_width > 0)
        for (; tile.first < w->keys.end; tile.first += BLOCK_K) {
            tile.class = class_of_tile(w, tile.first, min(tile.first + BLOCK_K, w->keys.end) - 1, a);
            if (tile.class != TILE_EMPTY)
                break;
        }
    return tile;
}

// Both kernels, with `aligned` a constant: whether rows may be read and written in whole quads.
inlined void forward(const attention_buffers *in, const attention_args *a, const local_memory *memory,
                     const int aligned)
{
    const work_place place = place_of_group((int)get_group_id(1) + a->first_group, in, a);
    const worker work = make_worker(in, a, memory, &place, aligned);
    const worker *w = &work;
    float l[ROWS];
    float4 o[ROWS][QUADS];
    begin_rows(l, o, w, in, a);
    key_tile tile = next_tile(w, w->keys.begin, a);
    load_first(w, tile.first);

    // for each tile of keys that rows may see:
    //     S = -m + Q K^T;  S = -inf where a row may not see a key
    //     if some score outgrew its reference: m = row maximum; rescale l, O, S
    //     P = exp(S);  l += row sums of P
    //     O += P V
    // write O / l and ln(sum exp) = m + ln l
    int turn = 0; // of the flags
    while (tile.first < w->keys.end) {
        const key_tile next = next_tile(w, tile.first + BLOCK_K, a);
        float s[ROWS][KEYS];
        k_quad k_next[K_FETCHES];
        v_quad v_first[V_FETCHES];
        const int anchored = begin_scores(s, w);
        add_q_k(s, w, tile.first);
        if (K_APART) {
            fetch_v(v_first, &w->v, w->id, tile.first);
            fetch_k(k_next, &w->k, w->id, next.first, 0);
        }
        const int all_seen = finish_scores(s, w, tile.first, turn, tile.class, in, a);
        const int outgrown = any_outgrown(s, anchored, w, turn);

        if (!K_APART && !V_FROM_K)
            fetch_v(v_first, &w->v, w->id, tile.first); // under way during exp2
        if (outgrown)
            move_references(s, l, o, w);
        store_weights(s, l, w);
        if (V_FROM_K)
            clear_unseen(w, turn, all_seen);
        else
            store_v(w->whole.v, v_first, &w->v, w->id, tile.first, turn * BLOCK_K, all_seen);
        if (K_APART)
            store_tile(w, k_next, next.first);
        reset_flags(w, 1 - turn);
        barrier(CLK_LOCAL_MEM_FENCE);

        add_p_v(o, w, tile.first, next.first, turn, all_seen);
        turn = 1 - turn;
        tile = next;
    }
    if (K_APART)
        barrier(CLK_LOCAL_MEM_FENCE); // nobody reads P any more: results may lie there
    store_results(l, o, w, in, a, aligned);

    // PoCL 3.1 (2026-11-29) needs this: where the kernel skips a body with barriers, a condition at the very
    // end of that body is otherwise decided by the first work-item for all of them.
    barrier(CLK_LOCAL_MEM_FENCE);
}

#define KERNEL(name, aligned)                                                                              \
    __kernel __attribute__((reqd_work_group_size(WORK_ITEMS, 1, 1))) void name(ATTENTION_BUFFERS,          \
                                                                               attention_args args)        \
    {                                                                                                      \
        __local float4 q_memory[ROUND_UP_16(Q_BYTES) / 16];                                                \
        __local float4 tile_memory[ROUND_UP_16(TILE_BYTES) / 16];                                          \
        __local float references[BLOCK_Q];                                                                 \
        __local int outgrown[2];                                                                           \
        __local int seen[SCORE_FULL ? 2 * BLOCK_K : 1];                                                    \
        const local_memory memory = {(__local q_cell *)q_memory, (__local k_cell *)tile_memory,            \
                                     (__local float *)(tile_memory + P_BEGIN / 16),                        \
                                     (__local v_cell *)(tile_memory + V_BEGIN / 16),                       \
                                     references,                                                           \
                                     outgrown, seen};                                                      \
        const attention_buffers buffers = GATHERED_BUFFERS;                                                \
        if ((int)get_group_id(1) < args.num_groups)                                                        \
            forward(&buffers, &args, &memory, aligned);                                                    \
    }

KERNEL(forward_any, 0)
KERNEL(forward_aligned, 1)
