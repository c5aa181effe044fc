// nvidia_wgmma.cl: forward attention for NVIDIA's compute capability 9.0, whose warpgroups (four warps)
// multiply tiles of 64 rows straight from local memory (wgmma). After FlashAttention-3 (Shah et al. 2024).
//
// A work-group stays on its multiprocessor and works through many query tiles. It has
//     CONSUMERS  warpgroups of 64 query rows each, which multiply and take the softmax,
//     1          warpgroup of producers, which copies K and V of block after block, and Q of the next tile,
// and rings of STAGES places for K and V in local memory between them. Each place has two barriers: it is
// full, it is empty. Consumers take turns in beginning their products, so that one's softmax runs beside
// another's products.
//
//     [ Q: Q_PLACES of BLOCK_Q rows ] [ K: STAGES of BLOCK_K rows ] [ V: likewise ] [ barriers ]
//
// Blocks are walked from the last key that the tile's rows may see down to the first; with ALiBi from the rows' own
// place down and then from the last one on, so that the largest scores come early. The softmax is lazy
// (lazy.cl says why that is exact): a block's weights are taken against the row's reference as it is, and
// only if a row of the warp outgrew it are they taken again, from the scores that are still in registers.

#ifndef CONSUMERS // warpgroups of 64 rows: 2 or 3
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
#define MEMORY_BYTES (BARRIERS_BEGIN + 8 * (2 * Q_PLACES + 4 * STAGES))

// Barriers, from the begin of local memory.
#define Q_FULL(place) (BARRIERS_BEGIN + 8 * (place))
#define Q_EMPTY(place) (BARRIERS_BEGIN + 8 * (Q_PLACES + (place)))
#define K_FULL(stage) (BARRIERS_BEGIN + 8 * (2 * Q_PLACES + (stage)))
#define K_EMPTY(stage) (BARRIERS_BEGIN + 8 * (2 * Q_PLACES + STAGES + (stage)))
#define V_FULL(stage) (BARRIERS_BEGIN + 8 * (2 * Q_PLACES + 2 * STAGES + (stage)))
#define V_EMPTY(stage) (BARRIERS_BEGIN + 8 * (2 * Q_PLACES + 3 * STAGES + (stage)))

// Named barriers: those of consumers' turns, and the producers' own.
#define TURN_OF(consumer) (1 + (consumer))
#define PRODUCERS_ALONE 8

// One query tile, as the producers describe it to the consumers. Eight have room: one is written while the
// consumers may still be at the results of the one four before.
#define DESCRIPTIONS 8
typedef struct query_tile {
    int first_row;  // NO_TILE: there is no more to do
    int last_block; // of keys
    int first_block;
    int start_block; // the first to be worked at
    int end_block;   // the last one
    int due_block;   // behind which the producers fetch Q of the next tile
    int full_begin; // blocks in between need no compare: every row sees all their keys
    int full_end;
    int q_len;
    int kv_len;
    int band_begin;
    int band_end;
    int offset;
    float start_max; // in log2 units
    float start_sum;
    float slope;    // of ALiBi, in log2 units
    int seen_begin; // keys that some row of the sequence may see; others are not read
    int seen_end;
    int whole_begin; // blocks that need no look at single keys: by the copy engine, if it has maps
    int whole_end;
    int is_aligned;   // rows of q, k and v are whole chunks
    int is_by_chunks; // not even whole blocks come by the copy engine
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

// Two of the producers, of two warps, do what takes one work-item.
inlined int is_first_producer(void) { return item() == CONSUMERS * WARPGROUP; }

inlined int is_finder(void) { return item() == CONSUMERS * WARPGROUP + WARPGROUP - WARP; }

// ---- Query tiles in order ------------------------------------------------------------------------------

// A causal bound, and no window that leaves keys out.
inlined int is_triangular(const attention_args *a)
{
    return a->window_end <= MAX_LENGTH && a->window_begin <= -a->kv_len;
}

// The finder's notes: the rounds that it has been through, its share if tiles are shared out, and what holds for all
// tiles.
typedef struct tile_search {
    int round;
    int is_aligned;
    int is_by_chunks;
    int is_shared_out;
    tile_share share;
} tile_search;

// The tile of the next round, as a group's number; or NO_TILE.
inlined int next_group(__local tile_search *search, const attention_args *a)
{
    const int round = search->round++, index = round * (int)get_num_groups(1) + (int)get_group_id(1);
    const tile_share share = search->share;
    if (search->is_shared_out)
        return tile_of_round(round, share);
    if (index >= a->num_groups)
        return NO_TILE;
    return tile_in_order(a->first_group + index, share.lines, share.tiles, share.section);
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
    search->is_shared_out = is_triangular(a) && a->num_groups == lines * a->q_tiles;
    search->share = make_share((int)get_group_id(1), (int)get_num_groups(1), lines, a->q_tiles, section);
}

// A tile is described step by step, each of which takes what it needs from the description so far: the
// producers have few registers.
inlined void describe_keys(__local query_tile *tile, int mapped_rows)
{
    const int first_row = tile->first_row, last_row = min(first_row + BLOCK_Q, tile->q_len) - 1;
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
    tile->full_begin = max(ceil_divide(max(last_row + band_begin, 0), BLOCK_K), first_block);
    tile->full_end = is_empty ? 0 : max(min(first_row + band_end, kv_len), 0) / BLOCK_K;
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
    const int position = min(tile->first_row + BLOCK_Q, tile->q_len) - 1 + tile->offset; // of the last row
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
        tile->first_row = next_group(search, a);
        settle_memory();
        if (tile->first_row == NO_TILE)
            return;
        const work_place place = place_of_group(tile->first_row, in, a);
        tile->first_row = place.q_tile * BLOCK_Q;
        tile->head = place.head;
        tile->batch = place.batch;
        settle_memory();
        const sequence seq = sequence_of(tile->batch, in, a);
        tile->q_len = seq.q_len;
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
            if (SCORE_FORMULA && has(a, FEATURE_ALIBI))
                describe_order(tile);
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

// ---- Maps of tensors -----------------------------------------------------------------------------------

#ifndef COPY_ENGINE // 1: blocks of regular tensors come by the copy engine
#define COPY_ENGINE 0
#endif

#define MAP_WORDS 16 // of 64 bits

// Keys that the copy engine copies at a time: a block, or what a page has of it (src/tune_nvidia_wgmma.c sees to it
// that pages and blocks divide each other).
#define KEY_BOX (PAGE_SIZE > 0 && PAGE_SIZE < BLOCK_K ? PAGE_SIZE : BLOCK_K)

#if COPY_ENGINE

#define MAPS 3 // of q, k and v
#define MAPS_BYTES 512
#define MOST_STRIDE (1l << 39)

inlined int is_mappable(const tensor_address *t)
{
    return t->token > 0 && t->token < MOST_STRIDE && t->head < MOST_STRIDE && t->batch < MOST_STRIDE;
}

inlined void make_map(ulong map, __local ulong *scratch, const __global void *buffer, const tensor_address *t,
                      int head_dim, int rows, int box_rows, int heads, int batch)
{
    for (int i = 0; i < MAP_WORDS; i++)
        scratch[i] = 0;
    const uint at = local_address(scratch);
    map_address(at, (ulong)buffer + 2 * t->base);
    map_axes(at, 4);
    map_axis_0(at, head_dim, 64);
    map_axis_1(at, rows, box_rows, 2 * t->token);
    map_axis_2(at, heads, t->head == 0 ? CHUNK : 2 * t->head);
    map_axis_3(at, batch, t->batch == 0 ? CHUNK : 2 * t->batch);
    map_elements(at);
    for (int i = 0; i < MAP_WORDS; i++)
        store_global(map + 8 * i, scratch[i]);
    release_map();
}

// The copy engine reads maps from global memory. Each multiprocessor has a place in the program's own memory:
// only one work-group, which takes all its registers, is there at a time. Returns that place, or 0: no maps.
inlined ulong make_maps(__local ulong *scratch, const attention_buffers *in, const attention_args *a)
{
    const uint place = multiprocessor();
    if (!is_aligned(in, a) || !is_mappable(&a->q) || !is_mappable(&a->k) || !is_mappable(&a->v) ||
        place >= MAP_PLACES)
        return 0;
    const ulong maps = program_memory() + place * MAPS_BYTES;
    const uint which = item() % WARPGROUP / WARP; // a warp for each
    if (item() % WARP == 0 && which < MAPS) {
        const tensor_address *t = which == 0 ? &a->q : which == 1 ? &a->k : &a->v;
        const __global void *buffer = which == 0   ? (const __global void *)in->q
                                      : which == 1 ? (const __global void *)in->k
                                                   : (const __global void *)in->v;
        const int rows_q = has(a, FEATURE_CU_SEQLENS_Q) ? a->total_q : a->q_len;
        const int rows_k = PAGE_SIZE > 0 ? PAGE_SIZE : mapped_keys(a);
        make_map(maps + which * 8 * MAP_WORDS, scratch + which * MAP_WORDS, buffer, t,
                 which == 2 ? a->head_dim_v : a->head_dim_qk, which == 0 ? rows_q : rows_k,
                 which == 0 ? 64 : KEY_BOX, which == 0 ? a->heads_q : a->heads_q / a->heads_per_kv,
                 which > 0 && PAGE_SIZE > 0 ? a->num_pages : a->batch);
    }
    return maps;
}

inlined void acquire_maps(ulong maps)
{
#pragma unroll
    for (int i = 0; i < MAPS; i++)
        acquire_map(maps + i * 8 * MAP_WORDS);
}

#endif

// ---- Producers -----------------------------------------------------------------------------------------
//
// A whole block goes the short way: by the copy engine, or in whole chunks without a look. Blocks at the
// border, where keys that no row of the sequence sees become zero and are not read, and rows that are not made
// of whole chunks, go the long way.

// In a pass the producers copy a chunk each of a panel.
#define PASS_ROWS (WARPGROUP * CHUNK / PANEL_ROW)
#define PASSES (BLOCK_K / PASS_ROWS)
#define PASS_BYTES (PASS_ROWS * PANEL_ROW)

inlined void meet_producers(void)
{
    meet_warp();
    WAIT_AT(PRODUCERS_ALONE, WARPGROUP);
}

// A producer's chunk: its row in a pass, its first column in a panel, and its place in a panel. (Told anew
// for every block: producers have few registers.)
typedef struct producer {
    int row;
    int column;
    uint place;
} producer;

inlined producer make_producer(void)
{
    const uint id = item() % WARPGROUP, row = id / (PANEL_ROW / CHUNK), chunk = id % (PANEL_ROW / CHUNK);
    const producer me = {(int)row, (int)chunk * (CHUNK / 2), row * PANEL_ROW + (chunk ^ row % 8) * CHUNK};
    return me;
}

// A chunk of which `count` elements exist, at any alignment.
inlined void copy_elements(uint to, const __global ushort *from, int count)
{
#pragma unroll 1
    for (int i = 0; i < CHUNK / 2; i++)
        store_element(to + 2 * i, i < count ? from[i] : 0);
}

// The chunks of one row, one in each panel; the long way. What does not exist becomes zero and is not read;
// only the last panel may have columns beyond the true head dim.
inlined void copy_row(uint to, uint panel_bytes, int panels, const __global ushort *row, int exists,
                      int columns, int is_aligned)
{
#pragma unroll 1
    for (int p = 0; p < panels; p++) {
        const int count = exists ? clamp(columns - 64 * p, 0, CHUNK / 2) : 0;
        if (is_aligned)
            copy_part(to, (const __global uchar *)row, 2 * count);
        else
            copy_elements(to, row, count);
        to += panel_bytes;
        row += 64;
    }
}

// K or V of one head as the producers copy it.
typedef struct key_copy {
    const __global ushort *buffer;
    const tensor_address *t;
    const __local long *first; // elements to the first key
    int head_dim;
    int panels;
    int map; // place among the maps
} key_copy;

inlined key_copy copy_of_k(const __local query_tile *tile, const attention_buffers *in,
                           const attention_args *a)
{
    const key_copy copy = {
        (const __global ushort *)in->k, &a->k, &tile->k, a->head_dim_qk, PANELS(HEAD_DIM_QK), 8 * MAP_WORDS};
    return copy;
}

inlined key_copy copy_of_v(const __local query_tile *tile, const attention_buffers *in,
                           const attention_args *a)
{
    const key_copy copy = {
        (const __global ushort *)in->v, &a->v, &tile->v, a->head_dim_v, PANELS(HEAD_DIM_V), 2 * 8 * MAP_WORDS};
    return copy;
}

inlined key_rows rows_of_copy(const key_copy *copy, const __local query_tile *tile,
                              const attention_buffers *in, const attention_args *a)
{
    const key_rows rows = {*copy->first, copy->t->token, in->block_table + tile->table, copy->t->batch,
                           a->num_pages - 1};
    return rows;
}

// (What the description says is read for each row anew: see make_producer.)
inlined void copy_border_block(uint to, const key_copy *copy, int block, const __local query_tile *tile,
                               const attention_buffers *in, const attention_args *a)
{
    const producer me = make_producer();
    int key = block * BLOCK_K + me.row;
    to += me.place;
#pragma unroll 1
    for (int i = 0; i < PASSES; i++) {
        settle_memory();
        const key_rows rows = rows_of_copy(copy, tile, in, a);
        const int exists = key >= tile->seen_begin && key < tile->seen_end;
        const long row = exists ? row_of_key(&rows, key) : rows.first;
        copy_row(to, KV_PANEL_BYTES, copy->panels, copy->buffer + row + me.column, exists,
                 copy->head_dim - me.column, tile->is_aligned);
        to += PASS_BYTES;
        key += PASS_ROWS;
    }
}

// Chunks beyond the true head dim are zero from the beginning (clear_beyond).
inlined void copy_whole_row(uint to, const key_copy *copy, const __global uchar *from, int has_last)
{
#pragma unroll
    for (int p = 0; p < copy->panels; p++)
        if (p < copy->panels - 1 || has_last)
            copy_whole_chunk(to + p * KV_PANEL_BYTES, from + p * PANEL_ROW);
}

inlined void copy_whole_block(uint to, const key_copy *copy, int block, const __local query_tile *tile,
                              const attention_buffers *in, const attention_args *a)
{
    const producer me = make_producer();
    const int key = block * BLOCK_K + me.row;
    const key_rows rows = rows_of_copy(copy, tile, in, a);
    const int has_last = 64 * (copy->panels - 1) + me.column < copy->head_dim;
    to += me.place;
#if PAGE_SIZE > 0
    int pages[PASSES]; // all looked up before the first is used
#pragma unroll
    for (int i = 0; i < PASSES; i++)
        pages[i] = rows.table[(key + i * PASS_ROWS) / PAGE_SIZE];
#pragma unroll
    for (int i = 0; i < PASSES; i++) {
        const long row = rows.first + clamp(pages[i], 0, rows.last_page) * rows.page +
                         (key + i * PASS_ROWS) % PAGE_SIZE * rows.token;
        copy_whole_row(to + i * PASS_BYTES, copy, (const __global uchar *)(copy->buffer + row + me.column),
                       has_last);
    }
#else
    const __global uchar *from = (const __global uchar *)(copy->buffer + row_of_key(&rows, key) + me.column);
    const long pass = 2 * PASS_ROWS * rows.token;
#pragma unroll
    for (int i = 0; i < PASSES; i++) {
        copy_whole_row(to + i * PASS_BYTES, copy, from, has_last);
        from += pass;
    }
#endif
}

// Zeroes the chunks beyond a true head dim, which the short way leaves alone.
inlined void clear_beyond(uint first, int panels, int head_dim)
{
    const producer me = make_producer();
    if (64 * (panels - 1) + me.column < head_dim)
        return;
    uint to = first + (panels - 1) * KV_PANEL_BYTES + me.place;
#pragma unroll 1
    for (int stage = 0; stage < STAGES; stage++)
#pragma unroll 1
        for (int i = 0; i < PASSES; i++)
            clear_chunk(to + stage * panels * KV_PANEL_BYTES + i * PASS_BYTES);
}

// By the copy engine, of one work-item's doing, once the place is empty.
inlined void engine_block(uint to, uint full, uint empty, uint parity, const key_copy *copy, ulong maps, int block,
                          const __local query_tile *tile, const attention_buffers *in, const attention_args *a)
{
    const int key = block * BLOCK_K, head = copy->t->head == 0 ? 0 : tile->head_kv;
#if PAGE_SIZE > 0
    const key_rows rows = rows_of_copy(copy, tile, in, a);
    int pages[BLOCK_K / KEY_BOX]; // all looked up before the first is used
#pragma unroll
    for (int i = 0; i < BLOCK_K / KEY_BOX; i++)
        pages[i] = rows.table[(key + i * KEY_BOX) / PAGE_SIZE];
#else
    const int row = tile->first_key + key, batch = copy->t->batch == 0 ? 0 : tile->batch;
#endif
    wait_for(empty, parity);
    arrive_for_bytes(full, WARPGROUP, copy->panels * KV_PANEL_BYTES);
#if PAGE_SIZE > 0
#pragma unroll
    for (int i = 0; i < BLOCK_K / KEY_BOX; i++)
#pragma unroll
        for (int p = 0; p < copy->panels; p++)
            copy_box(to + p * KV_PANEL_BYTES + i * KEY_BOX * PANEL_ROW, maps + copy->map, 64 * p, key % PAGE_SIZE,
                     head, rows.page == 0 ? 0 : clamp(pages[i], 0, rows.last_page), full);
#else
#pragma unroll
    for (int p = 0; p < copy->panels; p++)
        copy_box(to + p * KV_PANEL_BYTES, maps + copy->map, 64 * p, row, head, batch, full);
#endif
}

// Without, programs for the copy engine take the long way always: tensors are rarely so.
inlined int has_maps(const __local ulong *maps) { return COPY_ENGINE && *maps != 0; }

// One block of K or V, once its place is empty; it then arrives at its barrier. Without maps (0) all
// producers copy it; with maps only the first producer follows the barriers, and tells the others.
inlined void produce_block(uint to, uint full, uint empty, uint parity, const key_copy *copy,
                           const __local ulong *maps, int block, const __local query_tile *tile,
                           const attention_buffers *in, const attention_args *a)
{
    const int is_aligned = tile->is_aligned;
    const int is_whole = block >= tile->whole_begin && block < tile->whole_end;
    if (is_whole && has_maps(maps)) {
        if (is_first_producer())
            engine_block(to, full, empty, parity, copy, *maps, block, tile, in, a);
        return;
    }
    if (!has_maps(maps) || is_first_producer())
        wait_for(empty, parity);
    if (has_maps(maps))
        meet_producers();
    if (!COPY_ENGINE && is_whole && is_aligned)
        copy_whole_block(to, copy, block, tile, in, a);
    else
        copy_border_block(to, copy, block, tile, in, a);
    if (is_aligned)
        arrive_after_copies(full);
    else
        arrive(full);
}

inlined void copy_queries(uint to, const __local query_tile *tile, const attention_buffers *in,
                          const attention_args *a)
{
    const producer me = make_producer();
    const int rows = tile->q_len - tile->first_row - me.row, columns = a->head_dim_qk - me.column;
    const __global ushort *row = (const __global ushort *)in->q + tile->q + me.row * a->q.token + me.column;
    to += me.place;
    if (COPY_ENGINE || !tile->is_aligned) {
#pragma unroll 1
        for (int i = 0; i < BLOCK_Q; i += PASS_ROWS) {
            copy_row(to + i / 64 * Q_CONSUMER_BYTES + i % 64 * PANEL_ROW, Q_PANEL_BYTES, PANELS(HEAD_DIM_QK),
                     row, i < rows, columns, tile->is_aligned);
            row += PASS_ROWS * a->q.token;
        }
        return;
    }
#pragma unroll 1
    for (int i = 0; i < BLOCK_Q; i += 64) {
#pragma unroll
        for (int j = 0; j < 64; j += PASS_ROWS) {
#pragma unroll
            for (int p = 0; p < PANELS(HEAD_DIM_QK); p++)
                copy_part(to + p * Q_PANEL_BYTES + j * PANEL_ROW, (const __global uchar *)(row + 64 * p),
                        i + j < rows && 64 * p < columns ? CHUNK : 0);
            row += PASS_ROWS * a->q.token;
        }
        to += Q_CONSUMER_BYTES;
    }
}

inlined void engine_queries(uint to, uint full, ulong map, const __local query_tile *tile,
                            const attention_args *a)
{
    arrive_for_bytes(full, WARPGROUP, Q_BYTES);
#pragma unroll
    for (int i = 0; i < CONSUMERS; i++)
#pragma unroll
        for (int p = 0; p < PANELS(HEAD_DIM_QK); p++)
            copy_box(to + i * Q_CONSUMER_BYTES + p * Q_PANEL_BYTES, map, 64 * p, tile->q_row + 64 * i,
                     a->q.head == 0 ? 0 : tile->head, a->q.batch == 0 ? 0 : tile->batch, full);
}

// Q of tile number `count` of the work-group, which has been found, or that there is none. Meanwhile the
// finder looks for the next one.
inlined void produce_queries(uint memory, __local query_tile *tiles, uint count, __local tile_search *search,
                             const __local ulong *maps, const attention_buffers *in, const attention_args *a)
{
    const uint place = count % Q_PLACES, full = memory + Q_FULL(place);
    const __local query_tile *tile = &tiles[count % DESCRIPTIONS];
    meet_producers();
    const int exists = tile->first_row != NO_TILE;
    if (!has_maps(maps) || is_first_producer())
        wait_for(memory + Q_EMPTY(place), (count / Q_PLACES & 1) ^ 1);
    if (has_maps(maps)) {
        if (is_first_producer() && exists)
            engine_queries(memory + place * Q_BYTES, full, *maps, tile, a);
        else if (is_first_producer())
            arrive_for_bytes(full, WARPGROUP, 0);
    } else {
        if (exists)
            copy_queries(memory + place * Q_BYTES, tile, in, a);
        if (exists && tile->is_aligned)
            arrive_after_copies(full);
        else
            arrive(full);
    }
    if (exists && is_finder())
        find_tile(&tiles[(count + 1) % DESCRIPTIONS], search, in, a);
}

inlined void produce(uint memory, __local query_tile *tiles, __local tile_search *search, const __local ulong *maps,
                     const attention_buffers *in, const attention_args *a)
{
    uint blocks = 0; // produced so far
    uint next = 0;   // tile whose K and V are produced
    clear_beyond(memory + K_BEGIN, PANELS(HEAD_DIM_QK), a->head_dim_qk);
    clear_beyond(memory + V_BEGIN, PANELS(HEAD_DIM_V), a->head_dim_v);
#if COPY_ENGINE
    meet_producers();
    if (has_maps(maps) && is_first_producer())
        acquire_maps(*maps);
#endif
    int block = -1; // of it; -1: none yet
    int is_due = 1; // Q of the next tile
    for (;;) {
        if (is_due)
            produce_queries(memory, tiles, block < 0 ? next : next + 1, search, maps, in, a);
        const __local query_tile *tile = &tiles[next % DESCRIPTIONS];
        if (tile->first_row == NO_TILE)
            break;
        if (block < 0)
            block = tile->start_block;
        is_due = block == tile->due_block;
        const uint stage = blocks % STAGES, parity = (blocks / STAGES & 1) ^ 1;
        const key_copy k = copy_of_k(tile, in, a);
        produce_block(memory + K_BEGIN + stage * K_BYTES, memory + K_FULL(stage), memory + K_EMPTY(stage), parity,
                      &k, maps, block, tile, in, a);
        const key_copy v = copy_of_v(tile, in, a);
        produce_block(memory + V_BEGIN + stage * V_BYTES, memory + V_FULL(stage), memory + V_EMPTY(stage), parity,
                      &v, maps, block, tile, in, a);
        blocks++;
        const int is_last = block == tile->end_block;
        block = is_last ? -1 : block_after(block, tile);
        next += is_last;
    }
    end_copies();
}

// ---- Scores --------------------------------------------------------------------------------------------

// A consumer's state is in few registers beside its matrices. What a work-item can tell from its number, it
// tells anew wherever it is needed: it has rows r and r + 8 of its warpgroup's 64, and columns 2t and 2t + 1
// of each piece.
inlined int row_of_item(void)
{
    const int id = (int)item();
    return id / 32 * 16 + id % 32 / 4;
}

inlined int column_of_item(void) { return (int)item() % 4 * 2; }

// One lane of each warp tells that its warp is done with a place.
inlined void release(uint barrier_address, int is_leader)
{
    if (is_leader)
        arrive(barrier_address);
}

// One row's softmax so far. The sum is of the work-item's own columns.
typedef struct row_state {
    float m; // the reference, in log2 units
    float sum;
} row_state;

// Products become scores in log2 units when they are multiplied by a number, which weigh does on the way: by the
// scale, or what softcap and ALiBi (SCORE_FORMULA) leave to be multiplied by.
inlined float score_factor(const attention_args *a)
{
    const int caps = SCORE_FORMULA && a->softcap > 0.0f, slopes = SCORE_FORMULA && has(a, FEATURE_ALIBI);
    return slopes ? 1.0f : caps ? a->softcap * LOG2_E : a->scale_log2;
}

#if SCORE_FORMULA

// What changes products. Told anew each time: compilers would keep it for the whole call, and have no registers for
// that.
typedef struct changes {
    int caps;
    int slopes;
} changes;

inlined int told_anew(int x)
{
    int y;
    __asm__ volatile("mov.b32 %0,%1;" : "=r"(y) : "r"(x));
    return y;
}

inlined changes changes_of(const attention_args *a)
{
    const changes c = {told_anew(a->softcap > 0.0f), told_anew(has(a, FEATURE_ALIBI))};
    return c;
}

// The same with each of a piece's four.
#define FOUR(i, change)                    \
    s[4 * i] = change(s[4 * i]);           \
    s[4 * i + 1] = change(s[4 * i + 1]);   \
    s[4 * i + 2] = change(s[4 * i + 2]);   \
    s[4 * i + 3] = change(s[4 * i + 3]);

#define TO_CAP(x) ((x) * from)
#define CAP(x) capped(x, &cap)
#define EACH_TO_CAP(i)                                                                                   \
    FOUR(i, TO_CAP)                                                                                      \
    most = larger(larger(larger(most, fabs(s[4 * i])), fabs(s[4 * i + 1])),                              \
                  larger(fabs(s[4 * i + 2]), fabs(s[4 * i + 3])));
#define EACH_NEAR(i) FOUR(i, tanh_near)
#define EACH_CAP(i) FOUR(i, CAP)

// S in units of the cap. Mostly all are far below it. Returns whether all are so near 0 that weigh_capped would do.
inlined int cap_scores(float s[4 * S_PIECES], float from)
{
    float most = 0.0f;
    EACH(S_PIECES, EACH_TO_CAP)
    if (__builtin_expect(any_in_warp(most > TANH_NEAR), 0)) {
        const capping cap = make_capping(1.0f, 1.0f);
        EACH(S_PIECES, EACH_CAP)
    } else {
        EACH(S_PIECES, EACH_NEAR)
    }
    return !any_in_warp(most >= LOW_CAP);
}

#define SLOPE(i)                                                                   \
    s[4 * i] = fused(s[4 * i], factor, slope * fabs(upper - (8 * i)));             \
    s[4 * i + 1] = fused(s[4 * i + 1], factor, slope * fabs(upper - (8 * i + 1))); \
    s[4 * i + 2] = fused(s[4 * i + 2], factor, slope * fabs(lower - (8 * i)));     \
    s[4 * i + 3] = fused(s[4 * i + 3], factor, slope * fabs(lower - (8 * i + 1)));

// From products to scores, but for score_factor. Returns whether weigh_capped would have done instead.
inlined int transform(float s[4 * S_PIECES], const __local query_tile *tile, int block,
                       const attention_args *a)
{
    const changes does = changes_of(a);
    int is_low = 1;
    if (does.caps)
        is_low = cap_scores(s, a->scale * reciprocal_of(a->softcap));
    if (does.slopes) {
        const int position = tile->first_row + row_of_item() + tile->offset;
        const int first = block * BLOCK_K + column_of_item();
        const float upper = (float)(position - first), lower = upper + 8.0f, slope = -tile->slope;
        const float factor = does.caps ? a->softcap * LOG2_E : a->scale_log2;
        EACH(S_PIECES, SLOPE)
    }
    return is_low;
}

#else

inlined int transform(float s[4 * S_PIECES], const __local query_tile *tile, int block,
                      const attention_args *a)
{
    return 1;
}

#endif

#define FORBID(i)                                                                                \
    s[4 * i] = 8 * i >= upper.begin && 8 * i < upper.end ? s[4 * i] : forbidden;                 \
    s[4 * i + 1] = 8 * i + 1 >= upper.begin && 8 * i + 1 < upper.end ? s[4 * i + 1] : forbidden; \
    s[4 * i + 2] = 8 * i >= lower.begin && 8 * i < lower.end ? s[4 * i + 2] : forbidden;         \
    s[4 * i + 3] = 8 * i + 1 >= lower.begin && 8 * i + 1 < lower.end ? s[4 * i + 3] : forbidden;

// Forbids keys beyond the band and the sequence.
inlined void forbid(float s[4 * S_PIECES], const __local query_tile *tile, int block, float c)
{
    const int row = tile->first_row + row_of_item(), first = block * BLOCK_K + column_of_item();
    const float forbidden = c < 0.0f ? INFINITY : -INFINITY; // becomes -inf
    key_range upper = keys_of_row(row, tile->kv_len, tile->band_begin, tile->band_end);
    key_range lower = keys_of_row(row + 8, tile->kv_len, tile->band_begin, tile->band_end);
    upper.begin -= first;
    upper.end -= first;
    lower.begin -= first;
    lower.end -= first;
    EACH(S_PIECES, FORBID)
}

// ---- Softmax -------------------------------------------------------------------------------------------

// A work-item's weights of a row and block may add up to this before the reference moves: far from what
// float16 holds, and from what its row's other blocks would lose beside it.
#define MOST_WEIGHT 4096.0f

// References beyond this are so coarse that a difference from a score must be taken between rounded numbers:
// then equal scores have equal weights. It is also told from here that a row has seen no key yet (its
// reference is SCORE_FLOOR), or floor scores only.
#define COARSE 16777216.0f
#define FLOOR_LOG2 (SCORE_FLOOR * SCORE_TO_LOG2)

// Weights of a piece whose scores less their references are these.
#define WEIGH_THESE(i, x0, x1, x2, x3)                     \
    {                                                      \
        const float w0 = exp2_of(x0), w1 = exp2_of(x1);    \
        const float w2 = exp2_of(x2), w3 = exp2_of(x3);    \
        sum0 += w0;                                        \
        sum1 += w2;                                        \
        sum0 += w1;                                        \
        sum1 += w3;                                        \
        p[2 * i] = pack_two(w0, w1);                       \
        p[2 * i + 1] = pack_two(w2, w3);                   \
    }

#define WEIGH(i)                                                                     \
    WEIGH_THESE(i, fused(s[4 * i], c, -m0), fused(s[4 * i + 1], c, -m0),             \
                fused(s[4 * i + 2], c, -m1), fused(s[4 * i + 3], c, -m1))

// P = exp2(S - m). Returns the row sums.
inlined float2 weigh(uint p[2 * S_PIECES], const float s[4 * S_PIECES], float c, float m0, float m1)
{
    float sum0 = 0.0f, sum1 = 0.0f;
    EACH(S_PIECES, WEIGH)
    return (float2)(sum0, sum1);
}

#define SETTLE(i)                                 \
    s[4 * i] = settled(s[4 * i], c) - m0;         \
    s[4 * i + 1] = settled(s[4 * i + 1], c) - m0; \
    s[4 * i + 2] = settled(s[4 * i + 2], c) - m1; \
    s[4 * i + 3] = settled(s[4 * i + 3], c) - m1;

// In log2 units: finite scores end at the floor. (Fused, so that the compiler does not keep LARGEST's
// products.)
inlined float settled(float s, float c)
{
    const float score = fused(s, c, 0.0f);
    return score < FLOOR_LOG2 && score != -INFINITY ? FLOOR_LOG2 : score;
}

#define LARGEST(i)                                           \
    x0 = larger(x0, larger(s[4 * i] * c, s[4 * i + 1] * c)); \
    x1 = larger(x1, larger(s[4 * i + 2] * c, s[4 * i + 3] * c));

#define RESCALE(i)           \
    o[4 * i] *= shrink0;     \
    o[4 * i + 1] *= shrink0; \
    o[4 * i + 2] *= shrink1; \
    o[4 * i + 3] *= shrink1;

inlined float largest_of_row(float x)
{
    x = larger(x, across(x, 1));
    return larger(x, across(x, 2));
}

inlined int is_coarse(float m) { return !(fabs(m) <= COARSE); }

// The exact step: references move to the largest scores so far, and what was summed up shrinks accordingly. S
// is scratch afterwards.
inlined void weigh_exactly(uint p[2 * S_PIECES], float s[4 * S_PIECES], float o[4 * O_PIECES],
                           row_state rows[2], float c, int is_first)
{
    float x0 = -INFINITY, x1 = -INFINITY;
    EACH(S_PIECES, LARGEST)
    x0 = largest_of_row(x0);
    x1 = largest_of_row(x1);
    const float m0 = larger(rows[0].m, x0), m1 = larger(rows[1].m, x1);
    const float shrink0 = exp2_of(rows[0].m - m0), shrink1 = exp2_of(rows[1].m - m1);
    rows[0].m = m0;
    rows[1].m = m1;
    float2 sums;
    if (any_in_warp((x0 > -INFINITY && is_coarse(m0)) || (x1 > -INFINITY && is_coarse(m1)))) {
        EACH(S_PIECES, SETTLE)
        sums = weigh(p, s, 1.0f, 0.0f, 0.0f);
    } else
        sums = weigh(p, s, c, m0, m1);
    rows[0].sum = fused(rows[0].sum, shrink0, sums.x);
    rows[1].sum = fused(rows[1].sum, shrink1, sums.y);
    if (!is_first) {
        EACH(O_PIECES, RESCALE)
    }
}

// Whether a row has outgrown its reference, or has one that weigh cannot take.
inlined int is_outgrown(float2 sums, const row_state rows[2])
{
    return !(sums.x <= MOST_WEIGHT && sums.y <= MOST_WEIGHT) || is_coarse(rows[0].m) || is_coarse(rows[1].m);
}

inlined void add_sums(row_state rows[2], float2 sums)
{
    rows[0].sum += sums.x;
    rows[1].sum += sums.y;
}

// P, and the rows' sums with it.
inlined void soften(uint p[2 * S_PIECES], float s[4 * S_PIECES], float o[4 * O_PIECES], row_state rows[2],
                    float c)
{
    const float2 sums = weigh(p, s, c, rows[0].m, rows[1].m);
    if (__builtin_expect(any_in_warp(is_outgrown(sums, rows)), 0))
        weigh_exactly(p, s, o, rows, c, 0);
    else
        add_sums(rows, sums);
}

#if SCORE_FORMULA

// Weights straight from products, where nothing but softcap changes them and they are far below the cap
// (src/low_cap.h): the scores need no operations of their own. S stays as it is.
#define SQUARE(x) fused(x, x, -a->low_cap[0])
#define CAP_LESS(x, u, m) fused(x, fused(fused(a->low_cap[3], u, a->low_cap[2]), u, a->low_cap[1]), -(m))
#define WEIGH_CAPPED(i)                                                                          \
    {                                                                                            \
        const float u0 = SQUARE(s[4 * i]), u1 = SQUARE(s[4 * i + 1]);                            \
        const float u2 = SQUARE(s[4 * i + 2]), u3 = SQUARE(s[4 * i + 3]);                        \
        signs &= as_int(u0) & as_int(u1);                                                        \
        signs &= as_int(u2) & as_int(u3);                                                        \
        WEIGH_THESE(i, CAP_LESS(s[4 * i], u0, m0), CAP_LESS(s[4 * i + 1], u1, m0),               \
                    CAP_LESS(s[4 * i + 2], u2, m1), CAP_LESS(s[4 * i + 3], u3, m1))              \
    }

// Returns the sums, and whether all of the work-item's products were low enough.
inlined float2 weigh_capped(uint p[2 * S_PIECES], const float s[4 * S_PIECES], float m0, float m1,
                            const attention_args *a, int *is_low)
{
    float sum0 = 0.0f, sum1 = 0.0f;
    int signs = -1;
    EACH(S_PIECES, WEIGH_CAPPED)
    *is_low = signs < 0;
    return (float2)(sum0, sum1);
}

// Likewise where nothing but ALiBi changes products, and all keys lie on one side of the warp's rows: there scores
// rise by `slope` from column to column.
#define WEIGH_SLOPED(i)                                                                                  \
    WEIGH_THESE(i, fused(s[4 * i], c, fused(slope, 8 * i, from0)),                                       \
                fused(s[4 * i + 1], c, fused(slope, 8 * i + 1, from0)),                                  \
                fused(s[4 * i + 2], c, fused(slope, 8 * i, from1)),                                      \
                fused(s[4 * i + 3], c, fused(slope, 8 * i + 1, from1)))

inlined float2 weigh_sloped(uint p[2 * S_PIECES], const float s[4 * S_PIECES], float c, float m0, float m1,
                            float slope, float distance)
{
    const float from0 = fused(-slope, distance, -m0), from1 = fused(-slope, distance + 8.0f, -m1);
    float sum0 = 0.0f, sum1 = 0.0f;
    EACH(S_PIECES, WEIGH_SLOPED)
    return (float2)(sum0, sum1);
}

// Transforms and softens a block that every row sees whole, the short way where there is one. is_low: whether the
// block before had low scores, and now whether this one had.
inlined void soften_products(uint p[2 * S_PIECES], float s[4 * S_PIECES], float o[4 * O_PIECES],
                             row_state rows[2], float c, int *is_low, const __local query_tile *tile,
                             int block, const attention_args *a)
{
    const changes does = changes_of(a);
    int is_open = 1;
    float2 sums;
    if (!does.slopes) {
        if (*is_low) {
            int were_low;
            sums = weigh_capped(p, s, rows[0].m, rows[1].m, a, &were_low);
            is_open = any_in_warp(!were_low || is_outgrown(sums, rows));
        }
    } else if (!does.caps) {
        const int distance = tile->first_row + tile->offset + row_of_item() - block * BLOCK_K; // of the first key
        if (!any_in_warp(distance < BLOCK_K - 1 && distance > -8)) {
            sums = weigh_sloped(p, s, a->scale_log2, rows[0].m, rows[1].m, distance > 0 ? tile->slope : -tile->slope,
                                (float)(distance - column_of_item()));
            is_open = any_in_warp(is_outgrown(sums, rows));
        }
    }
    if (__builtin_expect(is_open, 0)) {
        *is_low = transform(s, tile, block, a);
        soften(p, s, o, rows, c);
    } else
        add_sums(rows, sums);
}

#else

inlined void soften_products(uint p[2 * S_PIECES], float s[4 * S_PIECES], float o[4 * O_PIECES],
                             row_state rows[2], float c, int *is_low, const __local query_tile *tile,
                             int block, const attention_args *a)
{
    soften(p, s, o, rows, c);
}

#endif

// ---- Results -------------------------------------------------------------------------------------------

#define PACKED(i, r) pack_two(o[4 * i + 2 * r] * inverse, o[4 * i + 2 * r + 1] * inverse)

// A row's 32 columns of four pieces are with four lanes, two of each piece. They change places so that lane t
// has all eight columns of piece t.
inlined uint4 chunk_of_lane(uint w0, uint w1, uint w2, uint w3, int lane)
{
    const int odd = lane & 1, high = lane & 2;
    uint other;
    other = bits_across(odd ? w0 : w1, 1);
    w0 = odd ? other : w0;
    w1 = odd ? w1 : other;
    other = bits_across(odd ? w2 : w3, 1);
    w2 = odd ? other : w2;
    w3 = odd ? w3 : other;
    other = bits_across(high ? w0 : w2, 2);
    w0 = high ? other : w0;
    w2 = high ? w2 : other;
    other = bits_across(high ? w1 : w3, 2);
    w1 = high ? other : w1;
    w3 = high ? w3 : other;
    return (uint4)(w0, w1, w2, w3);
}

inlined void store_pair(__global ushort *row, int column, int head_dim, uint pair)
{
    if (column < head_dim)
        row[column] = (ushort)pair;
    if (column + 1 < head_dim)
        row[column + 1] = (ushort)(pair >> 16);
}

// O / sum and ln(sum exp) of the work-item's rows.
inlined void write_rows(float o[4 * O_PIECES], const row_state rows[2], const __local query_tile *tile,
                        const attention_buffers *in, const attention_args *a)
{
    const int column = column_of_item();
    const int is_aligned = is_chunked(in->o, &a->o) && a->head_dim_v % (CHUNK / 2) == 0;
#pragma unroll
    for (int r = 0; r < 2; r++) {
        float sum = rows[r].sum;
        sum += across(sum, 1);
        sum += across(sum, 2);
        const int is_empty = sum == 0.0f; // no key was allowed
        const float inverse = is_empty ? 0.0f : reciprocal_of(sum);
        const int row = row_of_item() + 8 * r;
        const int exists = tile->first_row + row < tile->q_len;
        if (exists && column == 0 && has(a, FEATURE_LSE)) {
            const float lse = is_empty ? -INFINITY : (rows[r].m + log2_fast(sum)) * LN_2;
            in->lse[tile->lse + row * a->lse.token] = lse * a->lse_unit;
        }
        __global ushort *to = (__global ushort *)in->o + tile->o + row * a->o.token;
        if (is_aligned) {
#pragma unroll
            for (int i = 0; i < O_PIECES; i += 4) {
                const uint4 chunk = chunk_of_lane(PACKED(i, r), PACKED((i + 1), r), PACKED((i + 2), r),
                                                  PACKED((i + 3), r), column / 2);
                if (exists && 8 * i + 4 * column < a->head_dim_v)
                    *(__global uint4 *)(to + 8 * i + 4 * column) = chunk;
            }
        } else if (exists) {
#pragma unroll
            for (int i = 0; i < O_PIECES; i++)
                store_pair(to, 8 * i + column, a->head_dim_v, PACKED(i, r));
        }
    }
}

// ---- Consumers -----------------------------------------------------------------------------------------

inlined void begin_rows(row_state rows[2], const __local query_tile *tile)
{
    rows[0].m = rows[1].m = tile->start_max;
    rows[0].sum = rows[1].sum = column_of_item() == 0 ? tile->start_sum : 0.0f;
}

#define CLEAR(i) o[4 * i] = o[4 * i + 1] = o[4 * i + 2] = o[4 * i + 3] = 0.0f;

inlined void clear(float o[4 * O_PIECES]){EACH(O_PIECES, CLEAR)}

// Matrices in local memory, as the products find them.
inlined ulong q_matrix(uint memory, uint number, uint place)
{
    return matrix_at(memory + place * Q_BYTES + number * Q_CONSUMER_BYTES, CHUNK, 8 * PANEL_ROW);
}

inlined ulong k_matrix(uint memory, uint stage)
{
    return matrix_at(memory + K_BEGIN + stage * K_BYTES, CHUNK, 8 * PANEL_ROW);
}

inlined ulong v_matrix(uint memory, uint stage)
{
    return matrix_at(memory + V_BEGIN + stage * V_BYTES, KV_PANEL_BYTES, 8 * PANEL_ROW);
}

// Whether the products must be shown a block: what the copy engine has written they see.
inlined int is_to_show(const __local query_tile *tile, int block)
{
    return !COPY_ENGINE || tile->is_by_chunks || block < tile->whole_begin || block >= tile->whole_end;
}

// Begins, in the consumer's turn, S = Q K^T of the block at `next` and O += P V of the one before it; waits
// for S.
inlined void multiply(float s[4 * S_PIECES], float o[4 * O_PIECES], const uint p[2 * S_PIECES], ring at,
                      ring next, int show_k, int show_v, uint memory, uint number, uint q_place,
                      int is_leader)
{
    wait_for(memory + K_FULL(next.stage), next.parity);
    if (show_k)
        show_to_products();
    WAIT_AT(TURN_OF(number), TWO_WARPGROUPS);
    begin_qk(s, q_matrix(memory, number, q_place), k_matrix(memory, next.stage));
    wait_for(memory + V_FULL(at.stage), at.parity);
    if (show_v)
        show_to_products();
    begin_pv(o, p, v_matrix(memory, at.stage));
    ARRIVE_AT(TURN_OF(number + 1 == CONSUMERS ? 0 : number + 1), TWO_WARPGROUPS);
    end_qk_before_pv(s);
    release(memory + K_EMPTY(next.stage), is_leader);
}

inlined void consume(uint memory, uint number, const __local query_tile *tiles, const attention_buffers *in,
                     const attention_args *a)
{
    const float c = score_factor(a);
    float s[4 * S_PIECES], o[4 * O_PIECES];
    uint p[2 * S_PIECES];
    row_state rows[2];
    ring at = {0, 0};
    uint count = 0; // of tiles before
    const int is_leader = item() % 32 == 0;

    wait_for(memory + Q_FULL(0), 0);
    if (tiles[0].first_row == NO_TILE)
        return;
    if (number == 0)
        ARRIVE_AT(TURN_OF(0), TWO_WARPGROUPS);
    int block = tiles[0].start_block;
    begin_rows(rows, &tiles[0]);
    clear(o);
    wait_for(memory + K_FULL(0), 0);
    show_to_products();
    begin_qk(s, q_matrix(memory, number, 0), k_matrix(memory, 0));
    end_qk(s);
    release(memory + K_EMPTY(0), is_leader);
    transform(s, &tiles[0], block, a);
    if (block < tiles[0].full_begin || block >= tiles[0].full_end)
        forbid(s, &tiles[0], block, c);
    weigh_exactly(p, s, o, rows, c, 1);
    int show_v = is_to_show(&tiles[0], block);

    // for each block of keys, of one query tile after another:
    //     begin S = Q K^T, and O += P V of the block before
    //     S = -inf where a row may not see a key
    //     if the block is a tile's first: write O / l and m + ln l of the tile before; O, l = 0
    //     P = exp(S - m);  l += row sums of P;  if they outgrow m: m = row maximum, rescale l and O, P again
    // O += P V of the last; write O / l
    for (;;) {
        // Blocks that every row sees whole.
        const int end_block = tiles[count % DESCRIPTIONS].end_block;
        const int full_begin = max(tiles[count % DESCRIPTIONS].full_begin, block >= end_block ? end_block : 0),
                  full_end = tiles[count % DESCRIPTIONS].full_end;
        const int by_chunks = !COPY_ENGINE || tiles[count % DESCRIPTIONS].is_by_chunks;
        int is_low = 1;
        while (block > full_begin && block <= full_end) {
            ring next = at;
            advance(&next);
            block--;
            multiply(s, o, p, at, next, by_chunks, show_v, memory, number, count % Q_PLACES, is_leader);
            end_pv(o);
            release(memory + V_EMPTY(at.stage), is_leader);
            soften_products(p, s, o, rows, c, &is_low, &tiles[count % DESCRIPTIONS], block, a);
            at = next;
            show_v = by_chunks;
        }
        // One that needs a look: at the border of what rows see, or the next tile's first.
        const int is_first = block == tiles[count % DESCRIPTIONS].end_block;
        block = block_after(block, &tiles[count % DESCRIPTIONS]);
        if (is_first) {
            release(memory + Q_EMPTY(count % Q_PLACES), is_leader);
            count++;
            wait_for(memory + Q_FULL(count % Q_PLACES), count / Q_PLACES & 1);
            if (tiles[count % DESCRIPTIONS].first_row == NO_TILE)
                break;
            block = tiles[count % DESCRIPTIONS].start_block;
        }
        const __local query_tile *tile = &tiles[count % DESCRIPTIONS];
        ring next = at;
        advance(&next);
        const int show_k = is_to_show(tile, block);
        multiply(s, o, p, at, next, show_k, show_v, memory, number, count % Q_PLACES, is_leader);
        show_v = show_k;
        transform(s, tile, block, a);
        if (block < tile->full_begin || block >= tile->full_end)
            forbid(s, tile, block, c);
        end_pv(o);
        release(memory + V_EMPTY(at.stage), is_leader);
        if (is_first) {
            write_rows(o, rows, &tiles[(count - 1) % DESCRIPTIONS], in, a);
            begin_rows(rows, tile);
            clear(o);
            weigh_exactly(p, s, o, rows, c, 1);
        } else
            soften(p, s, o, rows, c);
        at = next;
    }
    wait_for(memory + V_FULL(at.stage), at.parity);
    if (show_v)
        show_to_products();
    begin_pv(o, p, v_matrix(memory, at.stage));
    end_pv(o);
    write_rows(o, rows, &tiles[(count - 1) % DESCRIPTIONS], in, a);
}

// ---- The whole -----------------------------------------------------------------------------------------

inlined void begin_barriers(uint memory)
{
#pragma unroll
    for (int i = 0; i < Q_PLACES; i++) {
        barrier_begin(memory + Q_FULL(i), WARPGROUP);
        barrier_begin(memory + Q_EMPTY(i), CONSUMERS * 4);
    }
#pragma unroll
    for (int i = 0; i < STAGES; i++) {
        barrier_begin(memory + K_FULL(i), WARPGROUP);
        barrier_begin(memory + K_EMPTY(i), CONSUMERS * 4);
        barrier_begin(memory + V_FULL(i), WARPGROUP);
        barrier_begin(memory + V_EMPTY(i), CONSUMERS * 4);
    }
    barriers_begun();
}

__kernel __attribute__((reqd_work_group_size(WORK_ITEMS, 1, 1))) void forward(ATTENTION_BUFFERS,
                                                                              attention_args args)
{
    __local __attribute__((aligned(1024))) uchar memory_bytes[MEMORY_BYTES];
    __local query_tile tiles[DESCRIPTIONS];
    __local __attribute__((aligned(128))) ulong scratch[3 * 16];
    __local tile_search search;
    __local ulong maps; // where make_maps has put them
    const attention_buffers buffers = GATHERED_BUFFERS;
    if (args.num_groups == 0)
        return;
    const uint memory = local_address(memory_bytes);
    const uint warpgroup = warp_uniform((uint)get_local_id(0) / WARPGROUP);
    if (get_local_id(0) == 0)
        begin_barriers(memory);
    barrier(CLK_LOCAL_MEM_FENCE);
    if (warpgroup == CONSUMERS) {
        ulong my_maps = 0;
#if COPY_ENGINE
        my_maps = make_maps(scratch, &buffers, &args);
#endif
        if (is_finder()) {
            maps = my_maps;
            begin_search(&search, my_maps == 0, &buffers, &args);
            find_tile(&tiles[0], &search, &buffers, &args);
        }
        meet_warp();
        __asm__ volatile("//@setmaxnreg.dec.sync.aligned.u32 " QUOTED(PRODUCER_REGISTERS) ";\n");
        produce(memory, tiles, &search, &maps, &buffers, &args);
    } else {
        __asm__ volatile("//@setmaxnreg.inc.sync.aligned.u32 " QUOTED(CONSUMER_REGISTERS) ";\n");
        consume(memory, warpgroup, tiles, &buffers, &args);
    }
}
