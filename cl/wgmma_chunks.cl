// wgmma_chunks.cl: the producers of nvidia_wgmma.cl without the copy engine: all four warps copy chunks of 16 bytes, any
// strides and alignment. A whole block goes the short way, without a look; programs for the copy engine, whose tensors
// are rarely so, have the long way alone. That is for blocks at the border, where keys that no row of the sequence sees
// become zero and are not read, and for rows that are not made of whole chunks.

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
} key_copy;

inlined key_copy copy_of_k(const __local query_tile *tile, const attention_buffers *in,
                           const attention_args *a)
{
    const key_copy copy = {
        (const __global ushort *)in->k, &a->k, &tile->k, a->head_dim_qk, PANELS(HEAD_DIM_QK)};
    return copy;
}

inlined key_copy copy_of_v(const __local query_tile *tile, const attention_buffers *in,
                           const attention_args *a)
{
    const key_copy copy = {
        (const __global ushort *)in->v, &a->v, &tile->v, a->head_dim_v, PANELS(HEAD_DIM_V)};
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

// One block of K or V, once its place is empty; it then arrives at its barrier.
inlined void copy_block_by_chunks(uint to, uint full, uint empty, uint parity, const key_copy *copy, int block,
                                  const __local query_tile *tile, const attention_buffers *in,
                                  const attention_args *a)
{
    const int is_aligned = tile->is_aligned;
    wait_for(empty, parity);
    if (!COPY_ENGINE && is_aligned && block >= tile->whole_begin && block < tile->whole_end)
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

// Q of tile number `count` of the work-group, which has been found, or that there is none. Meanwhile the
// finder looks for the next one.
inlined void copy_tile_by_chunks(uint memory, __local query_tile *tiles, uint count, __local tile_search *search,
                                 const attention_buffers *in, const attention_args *a)
{
    const uint place = count % Q_PLACES, full = memory + Q_FULL(place);
    const __local query_tile *tile = &tiles[count % DESCRIPTIONS];
    meet_producers();
    const int exists = tile->first_row != NO_TILE;
    wait_for(memory + Q_EMPTY(place), (count / Q_PLACES & 1) ^ 1);
    if (exists)
        copy_queries(memory + place * Q_BYTES, tile, in, a);
    if (exists && tile->is_aligned)
        arrive_after_copies(full);
    else
        arrive(full);
    if (exists && is_finder())
        find_tile(&tiles[(count + 1) % DESCRIPTIONS], search, in, a);
}

inlined void produce_by_chunks(uint memory, __local query_tile *tiles, __local tile_search *search,
                               const attention_buffers *in, const attention_args *a)
{
    uint blocks = 0; // produced so far
    uint next = 0;   // tile whose K and V are produced
    clear_beyond(memory + K_BEGIN, PANELS(HEAD_DIM_QK), a->head_dim_qk);
    clear_beyond(memory + V_BEGIN, PANELS(HEAD_DIM_V), a->head_dim_v);
    int block = -1; // of it; -1: none yet
    int is_due = 1; // Q of the next tile
    for (;;) {
        if (is_due)
            copy_tile_by_chunks(memory, tiles, block < 0 ? next : next + 1, search, in, a);
        const __local query_tile *tile = &tiles[next % DESCRIPTIONS];
        if (tile->first_row == NO_TILE)
            break;
        if (block < 0)
            block = tile->start_block;
        const uint stage = blocks % STAGES, parity = (blocks / STAGES & 1) ^ 1;
        const key_copy k = copy_of_k(tile, in, a);
        copy_block_by_chunks(memory + K_BEGIN + stage * K_BYTES, memory + K_FULL(stage), memory + K_EMPTY(stage),
                             parity, &k, block, tile, in, a);
        const key_copy v = copy_of_v(tile, in, a);
        copy_block_by_chunks(memory + V_BEGIN + stage * V_BYTES, memory + V_FULL(stage), memory + V_EMPTY(stage),
                             parity, &v, block, tile, in, a);
        settle_memory();
        blocks++;
        is_due = block == tile->due_block;
        const int is_last = block == tile->end_block;
        block = is_last ? -1 : block_after(block, tile);
        next += is_last;
    }
    end_copies();
}
