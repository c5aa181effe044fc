// wgmma_tiles.cl: what the producers and consumers of nvidia_wgmma.cl agree on: parameters, local memory, and how the
// query tiles that a work-group works through are found and described.

#ifndef CONSUMERS // warpgroups of 64 rows: 2 to 4
#define CONSUMERS 3
#endif
#ifndef STAGES // blocks of K and V in local memory
#define STAGES 2
#endif
#ifndef Q_PLACES // query tiles in local memory: 2, or 1 where there is no room
#define Q_PLACES 2
#endif
#ifndef PRODUCER_REGISTERS // of a work-item; what producers give back consumers get
#define PRODUCER_REGISTERS 32
#endif
#ifndef COPY_ENGINE // 1: tensors whose layout allows it come by the copy engine
#define COPY_ENGINE 0
#endif
#ifndef CONSUMER_REGISTERS
#define CONSUMER_REGISTERS 160
#endif

#define WARPGROUP 128
#define TWO_WARPGROUPS 256
#define pack_two PASTE(pack_, Q_TYPE)
#define WORK_ITEMS ((CONSUMERS + 1) * WARPGROUP)

// ---- Local memory --------------------------------------------------------------------------------------

#define Q_PANEL_BYTES (64 * PANEL_ROW) // of one consumer
#define Q_CONSUMER_BYTES (PANELS(HEAD_DIM_QK) * Q_PANEL_BYTES)
#define Q_BYTES (CONSUMERS * Q_CONSUMER_BYTES)
#define KV_PANEL_BYTES (BLOCK_K * PANEL_ROW)
#define K_BYTES (PANELS(HEAD_DIM_QK) * KV_PANEL_BYTES)
#define V_BYTES (PANELS(HEAD_DIM_V) * KV_PANEL_BYTES)
#define K_BEGIN (Q_PLACES * Q_BYTES)
#define V_BEGIN (K_BEGIN + STAGES * K_BYTES)
#define BARRIERS_BEGIN (V_BEGIN + STAGES * V_BYTES)
#define MEMORY_BYTES (BARRIERS_BEGIN + 8 * (2 * Q_PLACES + 4 * STAGES + DESCRIPTIONS + 1))

// Barriers, from the begin of local memory.
#define Q_FULL(place) (BARRIERS_BEGIN + 8 * (place))
#define Q_EMPTY(place) (BARRIERS_BEGIN + 8 * (Q_PLACES + (place)))
#define K_FULL(stage) (BARRIERS_BEGIN + 8 * (2 * Q_PLACES + (stage)))
#define K_EMPTY(stage) (BARRIERS_BEGIN + 8 * (2 * Q_PLACES + STAGES + (stage)))
#define V_FULL(stage) (BARRIERS_BEGIN + 8 * (2 * Q_PLACES + 2 * STAGES + (stage)))
#define V_EMPTY(stage) (BARRIERS_BEGIN + 8 * (2 * Q_PLACES + 3 * STAGES + (stage)))
#define TILE_FOUND(place) (BARRIERS_BEGIN + 8 * (2 * Q_PLACES + 4 * STAGES + (place))) // of descriptions
#define V_COPIED (BARRIERS_BEGIN + 8 * (2 * Q_PLACES + 4 * STAGES + DESCRIPTIONS)) // of a block at the border

// Named barriers: those of consumers' turns, and the producers' own.
#define TURN_OF(consumer) (1 + (consumer))
#define PRODUCERS_ALONE 8

// One query tile, as the finder describes it. Eight have room: one is written while the consumers may still be at the
// results of the one four before.
#define DESCRIPTIONS 8

// The blocks of a tile as one consumer sees them, with its 64 rows.
typedef struct row_blocks {
    int skipped;    // at the begin: those behind the last key that a row sees, or all if there are no rows
    int full_begin; // blocks in between need no compare: all rows see all their keys
    int full_end;
} row_blocks;

typedef struct query_tile {
    int first_row; // NO_TILE: there is no more to do
    int end_row;   // of its rows that exist
    int last_block; // of keys
    int first_block;
    int start_block; // the first to be worked at
    int end_block;   // the last one
    row_blocks blocks[CONSUMERS];
    int due_block; // behind which chunks of Q of the next tile are copied
    int q_len;
    int kv_len;
    int band_begin;
    int band_end;
    int offset;
    float start_max; // in log2 units
    float start_sum;
    float slope;    // of ALiBi, in log2 units
    int seen_begin; // keys that some row of the sequence may see; others are not used
    int seen_end;
    int whole_begin; // blocks that need no look at single keys
    int whole_end;
    int is_aligned;   // rows of q, k and v are whole chunks
    int is_by_chunks; // not by the copy engine
    int q_row;        // the first row, counted in the tensor
    int first_key;    // the sequence's, likewise
    int head;
    int head_kv;
    int batch;
    long q; // elements from the begin of the buffers to the first row
    long k;
    long v;
    long o;
    long lse;
    long table; // to the first page
} query_tile;

// A place in the rings, and the parity of the phase to wait for.
typedef struct ring {
    uint stage;
    uint parity;
} ring;

inlined void advance(ring *r)
{
    r->stage++;
    if (r->stage == STAGES) {
        r->stage = 0;
        r->parity ^= 1;
    }
}

// The producers' warps. With the copy engine each sees to one thing; without, all copy. The first work-item of the last
// one is the finder.
#define WARP_OF_K 0
#define WARP_OF_V 1
#define WARP_OF_Q 2
#define WARP_OF_TILES 3

inlined uint producer_warp(void) { return warp_uniform(item() % WARPGROUP / WARP); }

inlined int is_leader(void) { return item() % WARP == 0; }

inlined int is_finder(void) { return item() == CONSUMERS * WARPGROUP + WARP_OF_TILES * WARP; }

// ---- Query tiles in order ------------------------------------------------------------------------------

// A causal bound, and no window that leaves keys out.
inlined int is_triangular(const attention_args *a)
{
    return a->window_end <= MAX_LENGTH && a->window_begin <= -a->kv_len;
}

// How tiles are shared out among the work-groups.
#define IN_ORDER 0 // tile_order.cl
#define CAUSAL 1   // shares.cl
#define EVEN 2

#define LOW_ROWS (BLOCK_Q - 64) // of its low tiles

// The finder's notes: the rounds that it has been through, its share, and what holds for all tiles.
typedef struct tile_search {
    int round;
    int is_aligned;
    int is_by_chunks;
    int law;
    int lines;
    int section;
    causal_share causal;
    even_share even;
} tile_search;

inlined int next_in_order(int round, const __local tile_search *search, const attention_args *a)
{
    const int index = round * (int)get_num_groups(1) + (int)get_group_id(1);
    if (index >= a->num_groups)
        return NO_TILE;
    return tile_in_order(a->first_group + index, search->lines, a->q_tiles, search->section);
}

// Finds the tile of the next round: its head and sequence, its first row and the end of its rows, if they exist. Returns
// whether there is one.
inlined int next_tile(__local query_tile *tile, __local tile_search *search, const attention_buffers *in,
                      const attention_args *a)
{
    const int round = search->round++, is_even = search->law == EVEN;
    int number = is_even                 ? next_even_tile(&search->even)
                 : search->law == CAUSAL ? causal_tile(round, search->causal)
                                         : next_in_order(round, search, a);
    if (number == NO_TILE)
        return 0;
    int row = 0, rows = BLOCK_Q;
    if (is_even) {
        const int whole = search->even.whole, tiles = whole + search->even.low, line = number / tiles;
        const int low = number - line * tiles - whole;
        row = low < 0 ? (low + whole) * BLOCK_Q : whole * BLOCK_Q + low * LOW_ROWS;
        rows = low < 0 ? BLOCK_Q : LOW_ROWS;
        number = line * a->q_tiles;
    }
    const work_place place = place_of_group(number, in, a);
    row += place.q_tile * BLOCK_Q;
    tile->first_row = row;
    tile->end_row = row + rows;
    tile->head = place.head;
    tile->batch = place.batch;
    return 1;
}

// Whether all rows begin at multiples of 16 bytes.
inlined int is_chunked(const __global void *buffer, const tensor_address *t)
{
    return (((ulong)buffer | (ulong)(t->base | t->batch | t->head | t->token) * 2) & (CHUNK - 1)) == 0;
}

inlined int ceil_divide(int a, int b) { return (a + b - 1) / b; }

inlined int is_aligned(const attention_buffers *in, const attention_args *a)
{
    return is_chunked(in->q, &a->q) && is_chunked(in->k, &a->k) && is_chunked(in->v, &a->v) &&
           (a->head_dim_qk | a->head_dim_v) % (CHUNK / 2) == 0;
}

inlined void begin_search(__local tile_search *search, int is_by_chunks, const attention_buffers *in,
                          const attention_args *a)
{
    const int lines = lines_of(a), key_bytes = 2 * (HEAD_DIM_QK + HEAD_DIM_V);
    const int section = lines_of_section(lines, a->heads_per_kv, a->kv_len, key_bytes);
    search->round = 0;
    search->is_aligned = is_aligned(in, a);
    search->is_by_chunks = is_by_chunks;
    search->lines = lines;
    search->section = section;
    search->law = IN_ORDER;
    if (a->num_groups != lines * a->q_tiles) // a piece of the call
        return;
    const int me = (int)get_group_id(1), width = (int)get_num_groups(1);
    if (is_triangular(a)) {
        search->law = CAUSAL;
        search->causal = make_causal_share(me, width, lines, a->q_tiles, section);
    } else if (!has(a, FEATURE_CU_SEQLENS_Q) && !(has(a, FEATURE_ALIBI) && has(a, FEATURE_BATCH_INVARIANT))) {
        // (Low tiles follow from how many lines there are, and ALiBi's order of blocks from the tile.)
        search->law = EVEN;
        search->even = make_even_share(me, width, lines, a->q_len, BLOCK_Q, LOW_ROWS, section);
    }
}

// A tile is described step by step, each of which takes what it needs from the description so far: the
// producers have few registers.
inlined void describe_keys(__local query_tile *tile, int mapped_rows)
{
    const int first_row = tile->first_row, last_row = tile->end_row - 1;
    const int band_begin = tile->band_begin, band_end = tile->band_end, kv_len = tile->kv_len;
    const key_range seen = keys_of_rows(first_row, last_row, kv_len, band_begin, band_end);
    const key_range all = keys_of_rows(0, tile->q_len - 1, kv_len, band_begin, band_end);
    const int is_empty = seen.end <= seen.begin;
    const int first_block = is_empty ? 0 : seen.begin / BLOCK_K;
    // Without keys: one block of zeros, which no row sees.
    tile->seen_begin = is_empty ? 0 : all.begin;
    tile->seen_end = is_empty ? 0 : all.end;
    // Beyond the tensor the copy engine writes zeros.
    const int ends_there = tile->first_key + all.end == mapped_rows;
    tile->whole_begin = ceil_divide(all.begin, BLOCK_K);
    tile->whole_end = is_empty ? 0 : ends_there ? ceil_divide(all.end, BLOCK_K) : all.end / BLOCK_K;
    tile->first_block = first_block;
    const int last_block = is_empty ? 0 : (seen.end - 1) / BLOCK_K;
    tile->last_block = last_block;
    tile->start_block = last_block;
    tile->end_block = first_block;
}

inlined void describe_blocks(__local query_tile *tile)
{
#pragma unroll 1
    for (int i = 0; i < CONSUMERS; i++) {
        settle_memory();
        const int first_row = tile->first_row + 64 * i, last_row = min(first_row + 64, tile->end_row) - 1;
        const int kv_len = tile->kv_len, start = tile->start_block, end = tile->end_block;
        const int last = (min(last_row + tile->band_end, kv_len) - 1) / BLOCK_K;
        const int unseen = start < end ? 0 : start - clamp(last, end, start);
        __local row_blocks *blocks = &tile->blocks[i];
        blocks->skipped = last_row < first_row ? tile->last_block - tile->first_block + 1 : unseen;
        blocks->full_begin = max(ceil_divide(max(last_row + tile->band_begin, 0), BLOCK_K), tile->first_block);
        blocks->full_end = max(min(first_row + tile->band_end, kv_len), 0) / BLOCK_K;
    }
}

inlined void describe_start(__local query_tile *tile, const attention_buffers *in, const attention_args *a)
{
    const row_start start = start_of_rows(tile->batch, tile->head, in->sinks, a);
    tile->start_max = start.max * SCORE_TO_LOG2;
    tile->start_sum = start.sum;
    if (has(a, FEATURE_ALIBI))
        tile->slope = LOG2_E * in->alibi_slopes[number_at(&a->alibi_slopes, tile->batch, tile->head)];
}

// ALiBi's scores are largest beside the rows' own place.
inlined void describe_order(__local query_tile *tile)
{
    const int position = tile->end_row - 1 + tile->offset; // of the last row
    const int start_block = clamp(position / BLOCK_K, tile->first_block, tile->last_block);
    if (start_block < tile->last_block) {
        tile->start_block = start_block;
        tile->end_block = start_block + 1;
    }
}

// The block to be worked at behind one that is not the last.
inlined int block_after(int block, const __local query_tile *tile)
{
    return block == tile->first_block ? tile->last_block : block - 1;
}

// With two places Q of the next tile goes where the tile before had its own, which the consumers are done with when
// they have emptied a place of this tile's first block.
inlined void describe_due(__local query_tile *tile)
{
    const int blocks = tile->last_block - tile->first_block + 1;
    const int due = tile->start_block - min(Q_PLACES > 1 ? STAGES : blocks, blocks - 1);
    tile->due_block = due < tile->first_block ? due + blocks : due;
}

inlined long first_of_rows(const tensor_address *t, const __local query_tile *tile)
{
    return head_base(t, tile->batch, tile->head) + tile->q_row * t->token;
}

inlined long first_of_keys(const tensor_address *t, const __local query_tile *tile)
{
    const long head = t->base + tile->head_kv * t->head;
    return PAGE_SIZE > 0 ? head : head + tile->batch * t->batch + tile->first_key * t->token;
}

inlined void describe_places(__local query_tile *tile, const attention_args *a)
{
    tile->head_kv = tile->head / a->heads_per_kv;
    settle_memory();
    tile->q = first_of_rows(&a->q, tile);
    settle_memory();
    tile->o = first_of_rows(&a->o, tile);
    settle_memory();
    tile->lse = first_of_rows(&a->lse, tile);
    settle_memory();
    tile->k = first_of_keys(&a->k, tile);
    settle_memory();
    tile->v = first_of_keys(&a->v, tile);
    tile->table = a->block_table + tile->batch * a->block_table_batch;
}

#define NO_ROWS (-1)

// Rows that the copy engine's maps of k and v have, but for pages.
inlined int mapped_keys(const attention_args *a)
{
    return has(a, FEATURE_CU_SEQLENS_K) ? a->total_k : a->kv_len;
}

// The next tile that has rows.
inlined void find_tile(__local query_tile *tile, __local tile_search *search, const attention_buffers *in,
                       const attention_args *a)
{
#pragma unroll 1
    for (;;) {
        if (!next_tile(tile, search, in, a)) {
            tile->first_row = NO_TILE;
            return;
        }
        settle_memory();
        const sequence seq = sequence_of(tile->batch, in, a);
        tile->q_len = seq.q_len;
        tile->end_row = min(tile->end_row, seq.q_len);
        tile->kv_len = seq.kv_len;
        tile->band_begin = seq.band_begin;
        tile->band_end = seq.band_end;
        tile->offset = seq.offset;
        tile->q_row = seq.first_q + tile->first_row;
        tile->first_key = seq.first_k;
        settle_memory();
        if (tile->first_row < tile->q_len) {
            describe_keys(tile, search->is_by_chunks || PAGE_SIZE > 0 ? NO_ROWS : mapped_keys(a));
            settle_memory();
            if (SCORE_FORMULA & FORMULA_ALIBI)
                describe_order(tile);
            settle_memory();
            describe_blocks(tile);
            settle_memory();
            describe_due(tile);
            settle_memory();
            describe_start(tile, in, a);
            settle_memory();
            describe_places(tile, a);
            tile->is_aligned = search->is_aligned;
            tile->is_by_chunks = search->is_by_chunks;
            return;
        }
    }
}
