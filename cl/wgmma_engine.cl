// wgmma_engine.cl: the producers of nvidia_wgmma.cl by the copy engine, which copies boxes of mapped tensors. A warp each
// sees to K, to V and to Q, and waits for nothing but the places that it fills: what a warp does between a place's being
// empty and its next copy, all consumers wait for.

#if COPY_ENGINE

// ---- Maps of tensors -----------------------------------------------------------------------------------

// Keys that the copy engine copies at a time: a block, or what a page has of it (src/tune_nvidia_wgmma.c sees to it
// that pages and blocks divide each other).
#define KEY_BOX (PAGE_SIZE > 0 && PAGE_SIZE < BLOCK_K ? PAGE_SIZE : BLOCK_K)

#define BOXES (BLOCK_K / KEY_BOX)

#define MAPS 3 // of k, v and q, in the order of the warps that see to them
#define MAP_WORDS 16 // of 64 bits
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

inlined ulong map_of(ulong maps, uint which) { return maps + which * 8 * MAP_WORDS; }

// The copy engine reads maps from global memory. Each multiprocessor has a place in the program's own memory:
// only one work-group, which takes all its registers, is there at a time. Returns that place, or 0: no maps.
inlined ulong make_maps(__local ulong *scratch, const attention_buffers *in, const attention_args *a)
{
    const uint place = multiprocessor();
    if (!is_aligned(in, a) || !is_mappable(&a->q) || !is_mappable(&a->k) || !is_mappable(&a->v) ||
        place >= MAP_PLACES)
        return 0;
    const ulong maps = program_memory() + place * MAPS_BYTES;
    const uint which = producer_warp();
    if (is_leader() && which < MAPS) {
        const int is_q = which == WARP_OF_Q, is_v = which == WARP_OF_V;
        const tensor_address *t = is_q ? &a->q : is_v ? &a->v : &a->k;
        const __global void *buffer = is_q   ? (const __global void *)in->q
                                      : is_v ? (const __global void *)in->v
                                             : (const __global void *)in->k;
        const int rows_q = has(a, FEATURE_CU_SEQLENS_Q) ? a->total_q : a->q_len;
        const int rows_k = PAGE_SIZE > 0 ? PAGE_SIZE : mapped_keys(a);
        make_map(map_of(maps, which), scratch + which * MAP_WORDS, buffer, t, is_v ? a->head_dim_v : a->head_dim_qk,
                 is_q ? rows_q : rows_k, is_q ? 64 : KEY_BOX, is_q ? a->heads_q : a->heads_q / a->heads_per_kv,
                 !is_q && PAGE_SIZE > 0 ? a->num_pages : a->batch);
        acquire_map(map_of(maps, which));
    }
    return maps;
}

// ---- K and V -------------------------------------------------------------------------------------------

// The ring of K or V, and where its blocks come from.
typedef struct key_ring {
    uint memory; // of the first place
    uint place_bytes;
    uint full; // barriers of the first place
    uint empty;
    int panels;
    ulong map;
    const tensor_address *t;
    int lane; // of the warp that sees to it
} key_ring;

// Where a tile's keys are in the map.
typedef struct key_place {
    int row; // of the first key
    int head;
    int batch;
} key_place;

inlined key_place place_of_keys(const key_ring *keys, const __local query_tile *tile)
{
    const key_place place = {tile->first_key, keys->t->head == 0 ? 0 : tile->head_kv,
                             keys->t->batch == 0 ? 0 : tile->batch};
    return place;
}

// The page of a box. Entries of the table that no key of the sequence needs are not read.
inlined int page_of_box(int key, const __local query_tile *tile, const attention_buffers *in,
                        const attention_args *a)
{
    const int seen = clamp(key, tile->seen_begin, max(tile->seen_end, 1) - 1);
    return clamp(in->block_table[tile->table + seen / PAGE_SIZE], 0, a->num_pages - 1);
}

// Tells a barrier of the block to come, and begins its copies: each of the first lanes has a box. page: the box's.
inlined void copy_block(uint to, uint full, uint arrivals, const key_ring *keys, const key_place *from, int page,
                        int block)
{
    const int key = block * BLOCK_K;
    if (keys->lane == 0)
        arrive_for_bytes(full, arrivals, keys->panels * KV_PANEL_BYTES);
    meet_warp();
    if (keys->lane < BOXES)
#pragma unroll
        for (int p = 0; p < keys->panels; p++)
            copy_box(to + p * KV_PANEL_BYTES + keys->lane * KEY_BOX * PANEL_ROW, keys->map, 64 * p,
                     PAGE_SIZE > 0 ? key % PAGE_SIZE : from->row + key, from->head,
                     PAGE_SIZE > 0 ? page : from->batch, full);
}

// Rows that no row of the sequence sees become zero, whatever V has there: a weight of 0 does not hide a NaN.
inlined void clear_unseen(uint to, int panels, int block, const __local query_tile *tile)
{
    const int lane = item() % WARP;
    to += lane % 8 * CHUNK;
#pragma unroll 1
    for (int row = lane / 8; row < BLOCK_K; row += WARP / 8) {
        const int key = block * BLOCK_K + row;
        if (key < tile->seen_begin || key >= tile->seen_end)
            for (int p = 0; p < panels; p++)
                clear_chunk(to + p * KV_PANEL_BYTES + row * PANEL_ROW);
    }
}

// A block of V that has such rows: the warp shows it to the consumers when it is as it should be.
inlined void produce_border(uint memory, uint to, uint full, uint parity, const key_ring *keys,
                            const key_place *from, int page, int block, const __local query_tile *tile)
{
    if (tile->seen_end > 0) {
        copy_block(to, memory + V_COPIED, 1, keys, from, page, block);
        wait_for(memory + V_COPIED, parity);
    }
    clear_unseen(to, keys->panels, block, tile);
    show_to_products();
    meet_warp();
    if (keys->lane == 0)
        arrive_for_bytes(full, WARPGROUP, 0);
}

// All blocks of all tiles, by one warp. Scores of keys that no row sees are replaced, whatever K has there.
inlined void produce_keys(uint memory, const key_ring *keys, int is_v, const __local query_tile *tiles,
                          const attention_buffers *in, const attention_args *a)
{
    ring at = {0, 1}; // places are empty at first
    uint borders = 0;
#pragma unroll 1
    for (uint count = 0;; count++) {
        const __local query_tile *tile = &tiles[count % DESCRIPTIONS];
        wait_for(memory + TILE_FOUND(count % DESCRIPTIONS), count / DESCRIPTIONS & 1);
        if (tile->first_row == NO_TILE)
            return;
        const key_place from = place_of_keys(keys, tile);
        const int is_empty = tile->seen_end == 0, end_block = tile->end_block;
        int block = tile->start_block;
#pragma unroll 1
        for (;;) {
            const uint to = keys->memory + at.stage * keys->place_bytes, full = keys->full + 8 * at.stage;
            const int is_border = is_v && (block < tile->whole_begin || block >= tile->whole_end);
            int page = 0;
#if PAGE_SIZE > 0
            if (keys->t->batch != 0 && keys->lane < BOXES)
                page = page_of_box(block * BLOCK_K + keys->lane * KEY_BOX, tile, in, a);
#endif
            wait_for(keys->empty + 8 * at.stage, at.parity);
            if (is_border)
                produce_border(memory, to, full, borders & 1, keys, &from, page, block, tile);
            else if (!is_empty)
                copy_block(to, full, WARPGROUP, keys, &from, page, block);
            else if (keys->lane == 0)
                arrive_for_bytes(full, WARPGROUP, 0);
            borders += is_border && !is_empty;
            advance(&at);
            if (block == end_block)
                break;
            block = block_after(block, tile);
        }
    }
}

inlined void produce_k(uint memory, ulong map, const __local query_tile *tiles, const attention_buffers *in,
                       const attention_args *a)
{
    const key_ring keys = {memory + K_BEGIN,     K_BYTES, memory + K_FULL(0), memory + K_EMPTY(0),
                           PANELS(HEAD_DIM_QK), map,     &a->k,              item() % WARP};
    produce_keys(memory, &keys, 0, tiles, in, a);
}

inlined void produce_v(uint memory, ulong map, const __local query_tile *tiles, const attention_buffers *in,
                       const attention_args *a)
{
    const key_ring keys = {memory + V_BEGIN,    V_BYTES, memory + V_FULL(0), memory + V_EMPTY(0),
                           PANELS(HEAD_DIM_V), map,     &a->v,              item() % WARP};
    produce_keys(memory, &keys, 1, tiles, in, a);
}

// ---- Q -------------------------------------------------------------------------------------------------

inlined void copy_tile(uint to, uint full, ulong map, const __local query_tile *tile, const attention_args *a)
{
    arrive_for_bytes(full, WARPGROUP, Q_BYTES);
#pragma unroll
    for (int i = 0; i < CONSUMERS; i++)
#pragma unroll
        for (int p = 0; p < PANELS(HEAD_DIM_QK); p++)
            copy_box(to + i * Q_CONSUMER_BYTES + p * Q_PANEL_BYTES, map, 64 * p, tile->q_row + 64 * i,
                     a->q.head == 0 ? 0 : tile->head, a->q.batch == 0 ? 0 : tile->batch, full);
}

// Q of all tiles, by one work-item.
inlined void produce_q(uint memory, ulong map, const __local query_tile *tiles, const attention_args *a)
{
#pragma unroll 1
    for (uint count = 0;; count++) {
        const __local query_tile *tile = &tiles[count % DESCRIPTIONS];
        const uint place = count % Q_PLACES, full = memory + Q_FULL(place);
        wait_for(memory + TILE_FOUND(count % DESCRIPTIONS), count / DESCRIPTIONS & 1);
        wait_for(memory + Q_EMPTY(place), (count / Q_PLACES & 1) ^ 1);
        if (tile->first_row == NO_TILE) {
            arrive_for_bytes(full, WARPGROUP, 0);
            return;
        }
        copy_tile(memory + place * Q_BYTES, full, map, tile, a);
    }
}

// Finds all tiles, by one work-item: the first has been found, and others are when there will be room for their Q.
inlined void produce_tiles(uint memory, __local query_tile *tiles, __local tile_search *search,
                           const attention_buffers *in, const attention_args *a)
{
    __local query_tile *tile = tiles;
#pragma unroll 1
    for (uint count = 0;; count++) {
        arrive(memory + TILE_FOUND(count % DESCRIPTIONS));
        if (tile->first_row == NO_TILE)
            return;
        wait_for(memory + Q_EMPTY(count % Q_PLACES), (count / Q_PLACES & 1) ^ 1);
        tile = &tiles[(count + 1) % DESCRIPTIONS];
        find_tile(tile, search, in, a);
    }
}

inlined void produce_by_engine(uint memory, ulong maps, __local query_tile *tiles, __local tile_search *search,
                               const attention_buffers *in, const attention_args *a)
{
    const uint warp = producer_warp();
    const ulong map = map_of(maps, warp);
    if (warp == WARP_OF_K)
        produce_k(memory, map, tiles, in, a);
    else if (warp == WARP_OF_V)
        produce_v(memory, map, tiles, in, a);
    else if (is_finder())
        produce_tiles(memory, tiles, search, in, a);
    else if (warp == WARP_OF_Q && is_leader())
        produce_q(memory, map, tiles, a);
}

#endif
