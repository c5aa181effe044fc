// cpu.cl: forward attention on CPU devices. A work-group is one work-item that computes a tile of BLOCK_Q
// query rows; the vectors are explicit and there are no barriers.
//
// Everything is transposed: a vector holds one element of VECTOR_WIDTH query rows,
//
//     S^T = K Q^T   [keys][queries]          O^T = V^T P^T   [head_dim_v][queries]
//
// so that the softmax runs down the vectors without a horizontal step, and both products have the same
// inner loop: broadcast a number of K (or V), multiply it by vectors of Q^T (or P^T). PANEL_VECTORS
// vectors of queries stand side by side in a panel. With KEY_TILE keys, or DIM_TILE elements of O, they
// make up a micro-tile whose accumulators stay in registers while the product runs.
//
// K and V are copied block by block to float32 scratch. That makes one loop of all storage types, strides
// and alignments, the rows' padding keeps them out of each other's cache sets, and the copy is used
// BLOCK_Q times.

#ifndef PANEL_VECTORS // vectors of queries in a micro-tile; a panel's rows are a multiple of 4
#define PANEL_VECTORS 4
#endif
#ifndef KEY_TILE // keys in a micro-tile of S^T
#define KEY_TILE 4
#endif
#ifndef DIM_TILE // elements of head_dim_v in a micro-tile of O^T, a divisor of 32
#define DIM_TILE 4
#endif
#ifndef BLOCK_Q // query rows of a work-group, a multiple of the panel
#define BLOCK_Q 32
#endif
#ifndef BLOCK_K // keys of a step, a multiple of KEY_TILE
#define BLOCK_K 32
#endif
#ifndef HEAD_DIM_QK // the largest head dims this program can serve
#define HEAD_DIM_QK 64
#endif
#ifndef HEAD_DIM_V
#define HEAD_DIM_V 64
#endif

#define PANEL_ROWS (PANEL_VECTORS * VECTOR_WIDTH)
#define PANELS (BLOCK_Q / PANEL_ROWS)
#define ROW_PADDING 16
#define K_STRIDE (HEAD_DIM_QK + ROW_PADDING)
#define V_STRIDE (V_IN_K ? K_STRIDE : HEAD_DIM_V + ROW_PADDING)

// The running state of PANEL_ROWS query rows.
typedef struct query_panel {
    float_v q[HEAD_DIM_QK][PANEL_VECTORS]; // Q^T, scaled
    float_v o[HEAD_DIM_V][PANEL_VECTORS];  // O^T, relative to max; not yet there without has_keys
    float_v max[PANEL_VECTORS];            // of the scores so far; at least SCORE_FLOOR
    float_v sum[PANEL_VECTORS];            // of exp(score - max), a sink's included
    int has_keys; // whether some block has been added
    int first_row;
    int last_row; // that exists
} query_panel;

// ---- Between global memory and scratch --------------------------------------------------------------

// Copies rows of K or V to scratch: keys first .. first + count - 1. What fills up the last micro-tile is
// cleared: its results are never used, but it should not be slow (denormal) or differ from run to run.
#define PACK_ROWS(name, TYPE)                                                                            \
    INLINE void name(float *rows, int stride, int count, int dim, const __global STORAGE(TYPE) *from,    \
                     const key_rows *at, const key_scales *scales, int first)                            \
    {                                                                                                    \
        for (int j = 0; j < count; j++, rows += stride) {                                                \
            const long row = row_of_key(at, first + j);                                                  \
            const float scale = IS_SCALED(TYPE) ? scale_of_key(scales, first + j) : 1.0f;                \
            int c = 0;                                                                                   \
            for (; c + 8 <= dim; c += 8)                                                                 \
                vstore8(IS_SCALED(TYPE) ? ROW8(TYPE)(from, row, c) * scale : ROW8(TYPE)(from, row, c),   \
                        0, rows + c);                                                                    \
            for (; c < dim; c++)                                                                         \
                rows[c] = ROW1(TYPE)(from, row, c) * scale;                                              \
            for (; c % DIM_TILE != 0; c++)                                                               \
                rows[c] = 0.0f;                                                                          \
        }                                                                                                \
        for (int j = count; j % KEY_TILE != 0; j++, rows += stride)                                      \
            for (int c = 0; c < dim; c++)                                                                \
                rows[c] = 0.0f;                                                                          \
    }
PACK_ROWS(pack_k, K_TYPE)
PACK_ROWS(pack_v, V_TYPE)

// Where four rows of a tensor are, from `lane` of the panel on. Lanes beyond the last row repeat it.
INLINE void find_rows4(long row[4], const query_panel *panel, int lane, const tensor_address *address,
                       long base)
{
    UNROLL for (int i = 0; i < 4; i++)
        row[i] = base + min(panel->first_row + lane + i, panel->last_row) * address->token;
}

// Q^T of a panel, scaled; no key seen yet.
INLINE void load_queries(query_panel *panel, const __global q_t *q, const row_start *start,
                         const attention_args *a, long base)
{
    const float scale = SCORE_FULL ? a->scale : a->scale_log2;
    for (int lane = 0; lane < PANEL_ROWS; lane += 4) {
        long row[4];
        find_rows4(row, panel, lane, &a->q, base);
        int c = 0;
        for (; c + 4 <= a->head_dim_qk; c += 4) {
            float4 part[4];
            UNROLL for (int i = 0; i < 4; i++)
                part[i] = LOAD4(Q_TYPE)(q, row[i] + c) * scale;
            transpose4(part);
            UNROLL for (int i = 0; i < 4; i++)
                vstore4(part[i], 0, (float *)panel->q[c + i] + lane);
        }
        for (; c < a->head_dim_qk; c++)
            UNROLL for (int i = 0; i < 4; i++)
                ((float *)panel->q[c])[lane + i] = LOAD1(Q_TYPE)(q, row[i] + c) * scale;
    }
    panel->has_keys = 0;
    UNROLL for (int v = 0; v < PANEL_VECTORS; v++) {
        panel->max[v] = start->max;
        panel->sum[v] = start->sum;
    }
}

// O = O^T / sum, and the LSE of each row. The sum of a row without keys is 0.
INLINE void store_outputs(query_panel *panel, __global o_t *o, __global float *lse,
                          const attention_args *a, long o_base, long lse_base)
{
    if (!panel->has_keys)
        for (int c = 0; c < HEAD_DIM_V; c++)
            UNROLL for (int v = 0; v < PANEL_VECTORS; v++)
                panel->o[c][v] = 0.0f;
    const int rows = panel->last_row - panel->first_row + 1;
    float_v factors[PANEL_VECTORS], log_sums[PANEL_VECTORS];
    UNROLL for (int v = 0; v < PANEL_VECTORS; v++) {
        const float_v sum = panel->sum[v];
        factors[v] = sum == 0.0f ? (float_v)(0.0f) : 1.0f / sum;
        log_sums[v] = sum == 0.0f ? (float_v)(-INFINITY)
                               : (panel->max[v] * SCORE_TO_NATURAL + log(sum)) * a->lse_unit;
    }
    const float *factor = (const float *)factors, *log_sum = (const float *)log_sums;
    for (int lane = 0; lane < rows; lane += 4) {
        long row[4];
        find_rows4(row, panel, lane, &a->o, o_base);
        int c = 0;
        for (; c + 4 <= a->head_dim_v; c += 4) {
            float4 part[4];
            UNROLL for (int i = 0; i < 4; i++)
                part[i] = vload4(0, (const float *)panel->o[c + i] + lane) * vload4(0, factor + lane);
            transpose4(part);
            UNROLL for (int i = 0; i < 4; i++)
                if (lane + i < rows)
                    STORE4(O_TYPE)(o, row[i] + c, part[i]);
        }
        for (; c < a->head_dim_v; c++)
            for (int i = lane; i < min(lane + 4, rows); i++)
                STORE1(O_TYPE)(o, row[i - lane] + c, ((const float *)panel->o[c])[i] * factor[i]);
    }
    if (has(a, FEATURE_LSE))
        for (int i = 0; i < rows; i++)
            lse[lse_base + (panel->first_row + i) * a->lse.token] = log_sum[i];
}

// Copies a panel's bias or mask for keys begin .. end-1 of the block to scratch, transposed as the scores are.
INLINE void stage_panel(float_v (*staged)[PANEL_VECTORS], const query_panel *panel, key_range keys, int type,
                        const __global void *from, const tensor_address *address, long base, long key_stride)
{
    for (int lane = 0; lane < PANEL_ROWS; lane += 4) {
        long row[4];
        find_rows4(row, panel, lane, address, base);
        float *const lanes = (float *)staged + lane;
        int j = keys.begin;
        for (; key_stride == 1 && j + 4 <= keys.end; j += 4) {
            float4 part[4];
            UNROLL for (int i = 0; i < 4; i++)
                part[i] = load4_of(type, from, row[i] + j);
            transpose4(part);
            UNROLL for (int i = 0; i < 4; i++)
                vstore4(part[i], 0, lanes + (j + i) * PANEL_ROWS);
        }
        for (; j < keys.end; j++)
            UNROLL for (int i = 0; i < 4; i++)
                lanes[j * PANEL_ROWS + i] = load1_of(type, from, row[i] + j * key_stride);
    }
}

// ---- From products to final scores --------------------------------------------------------------------
//
// One simple pass over a panel's scores for each part that takes part: they stay in cache between the two
// products, so a pass costs little.

// What all scores of a tile have in common.
typedef struct score_inputs {
    const attention_buffers *in;
    const attention_args *a;
    int batch;
    int head;
    sequence seq;
    const __global uchar *map_plane;
} score_inputs;

#define FOR_EACH_SCORE(keys, j, v)                              \
    for (int j = (keys).begin; j < (keys).end; j++)             \
        UNROLL for (int v = 0; v < PANEL_VECTORS; v++)

// The rows of a panel's vector number v.
INLINE int_v rows_of(const query_panel *panel, int v)
{
    return lane_numbers() + (panel->first_row + v * VECTOR_WIDTH);
}

#if SCORE_FULL

INLINE void bias_scores(float_v (*scores)[PANEL_VECTORS], const query_panel *panel, int block, key_range keys,
                        const score_inputs *at)
{
    const attention_args *a = at->a;
    float_v bias[BLOCK_K][PANEL_VECTORS];
    const float head_scale =
        has(a, FEATURE_BIAS_HEAD_SCALE)
            ? at->in->bias_head_scale[number_at(&a->bias_head_scale, at->batch, at->head)]
            : 1.0f;
    stage_panel(bias, panel, keys, BIAS_TYPE, at->in->bias, &a->bias,
                head_base(&a->bias, at->batch, at->head) + block * a->bias_key, a->bias_key);
    FOR_EACH_SCORE(keys, j, v)
        scores[j][v] = add_bias(scores[j][v], bias[j][v], head_scale);
}

INLINE void mask_scores(float_v (*scores)[PANEL_VECTORS], const query_panel *panel, int block, key_range keys,
                        const score_inputs *at)
{
    const attention_args *a = at->a;
    float_v mask[BLOCK_K][PANEL_VECTORS];
    stage_panel(mask, panel, keys, TYPE_BOOL, at->in->mask, &a->mask,
                head_base(&a->mask, at->batch, at->head) + block * a->mask_key, a->mask_key);
    FOR_EACH_SCORE(keys, j, v)
        scores[j][v] = mask[j][v] != 0.0f ? scores[j][v] : (float_v)(-INFINITY);
}

// What the caller's tile lists leave out: whole entries of the map, which lie within their tiles.
INLINE void drop_unlisted_tiles(float_v (*scores)[PANEL_VECTORS], const query_panel *panel, int block,
                                key_range keys, const score_inputs *at)
{
    const attention_args *a = at->a;
    for (int y = panel->first_row / a->map_rows; y <= panel->last_row / a->map_rows; y++)
        for (int x = (block + keys.begin) / a->map_keys; x <= (block + keys.end - 1) / a->map_keys; x++) {
            if (at->map_plane[y * a->tile_map.token + x] != TILE_EMPTY)
                continue;
            const int first = max(y * a->map_rows, panel->first_row) - panel->first_row;
            const int last = min((y + 1) * a->map_rows - 1, panel->last_row) - panel->first_row;
            const int end = min((x + 1) * a->map_keys - block, keys.end);
            for (int j = max(x * a->map_keys - block, keys.begin); j < end; j++)
                for (int i = first; i <= last; i++)
                    ((float *)scores[j])[i] = -INFINITY;
        }
}

// The caller's functions know no vectors. They are asked for rows that exist and keys within the band.
INLINE void apply_mods(float_v (*scores)[PANEL_VECTORS], const query_panel *panel, int block, key_range keys,
                       int class, const score_inputs *at)
{
    const mod_place place = make_mod_place(at->batch, at->head, at->seq.offset, at->in->user, at->a);
    for (int i = 0; i <= panel->last_row - panel->first_row; i++) {
        const int row = panel->first_row + i;
        const key_range seen =
            keys_of_row(row, at->seq.kv_len, at->seq.band_begin, at->seq.band_end);
        const int end = min(keys.end, seen.end - block);
        for (int j = max(keys.begin, seen.begin - block); j < end; j++) {
            float *score = (float *)scores[j] + i;
            *score = apply_score_mod(*score, &place, row, block + j);
            if (class != TILE_FULL && !apply_mask_mod(&place, row, block + j))
                *score = -INFINITY;
        }
    }
}

// From scaled products to final scores, forbidden ones as -inf; new_max: the running maximum with them.
INLINE void finish_scores(float_v (*scores)[PANEL_VECTORS], float_v new_max[PANEL_VECTORS],
                          const query_panel *panel, int block, key_range keys, int class,
                          const score_inputs *at)
{
    const attention_args *a = at->a;
    UNROLL for (int v = 0; v < PANEL_VECTORS; v++)
        new_max[v] = panel->max[v];
    if (a->softcap > 0.0f)
        _Pragma("nounroll") for (int n = keys.begin * PANEL_VECTORS; n < keys.end * PANEL_VECTORS; n++)
            (*scores)[n] = cap_score((*scores)[n], a->softcap); // a loop that stays one: tanh is long
    if (has(a, FEATURE_BIAS))
        bias_scores(scores, panel, block, keys, at);
    if (has(a, FEATURE_ALIBI)) {
        const float slope = at->in->alibi_slopes[number_at(&a->alibi_slopes, at->batch, at->head)];
        const float_v lanes = PASTE(convert_, SCORE_T)(lane_numbers());
        FOR_EACH_SCORE(keys, j, v) {
            const int first = panel->first_row + v * VECTOR_WIDTH + at->seq.offset - (block + j);
            scores[j][v] = add_alibi(scores[j][v], (float)first + lanes, slope);
        }
    }
    if (HAS_SCORE_MOD || HAS_MASK_MOD)
        apply_mods(scores, panel, block, keys, class, at);
    if (has(a, FEATURE_MASK) && class != TILE_FULL)
        mask_scores(scores, panel, block, keys, at);
    if (a->tile_rows > 0 && class != TILE_FULL)
        drop_unlisted_tiles(scores, panel, block, keys, at);
    const int has_all_rows = panel->last_row == panel->first_row + PANEL_ROWS - 1;
    if (!has_all_rows ||
        !tile_is_full(panel->first_row, panel->last_row, block + keys.begin, block + keys.end - 1,
                      at->seq.kv_len, at->seq.band_begin, at->seq.band_end))
        FOR_EACH_SCORE(keys, j, v) {
            const int_v row = rows_of(panel, v);
            const int_v ahead = block + j - row;
            const int_v seen = ahead >= at->seq.band_begin && ahead < at->seq.band_end &&
                               row <= panel->last_row; // other rows must not make a key count as seen
            scores[j][v] = seen ? scores[j][v] : (float_v)(-INFINITY);
        }
    FOR_EACH_SCORE(keys, j, v)
        new_max[v] = larger(new_max[v], scores[j][v]);
}

#endif

// ---- The steps of the main loop ---------------------------------------------------------------------

// S^T = K Q^T for a panel, forbidden ones as -inf; new_max: the running maximum with them. Micro-tiles start
// at multiples of KEY_TILE, so that none reaches beyond the block, though it may beyond `keys`; only where some
// row may not see some key are scores compared with the bounds.
INLINE void score_panel(float_v (*scores)[PANEL_VECTORS], float_v new_max[PANEL_VECTORS],
                        const query_panel *panel, const float *k_rows, int block, key_range keys,
                        const score_inputs *at)
{
    UNROLL for (int v = 0; v < PANEL_VECTORS; v++)
        new_max[v] = panel->max[v];
    for (int j = keys.begin / KEY_TILE * KEY_TILE; j < keys.end; j += KEY_TILE) {
        float_v tile[KEY_TILE][PANEL_VECTORS];
        UNROLL for (int i = 0; i < KEY_TILE; i++)
            UNROLL for (int v = 0; v < PANEL_VECTORS; v++)
                tile[i][v] = 0.0f;

        const float *k = k_rows + j * K_STRIDE;
        for (int c = 0; c < at->a->head_dim_qk; c++)
            UNROLL for (int i = 0; i < KEY_TILE; i++)
                UNROLL for (int v = 0; v < PANEL_VECTORS; v++)
                    tile[i][v] += k[i * K_STRIDE + c] * panel->q[c][v];

        if (j < keys.begin || j + KEY_TILE > keys.end ||
            !tile_is_full(panel->first_row, panel->last_row, block + j, block + j + KEY_TILE - 1,
                          at->seq.kv_len, at->seq.band_begin, at->seq.band_end))
            UNROLL for (int v = 0; v < PANEL_VECTORS; v++) {
                const int_v row = rows_of(panel, v);
                const int_v begin = max(row + at->seq.band_begin, block + keys.begin);
                const int_v end = min(row + at->seq.band_end, block + keys.end);
                UNROLL for (int i = 0; i < KEY_TILE; i++) {
                    const int_v key = block + j + i;
                    tile[i][v] = key >= begin && key < end ? tile[i][v] : (float_v)(-INFINITY);
                }
            }
        UNROLL for (int i = 0; i < KEY_TILE; i++)
            UNROLL for (int v = 0; v < PANEL_VECTORS; v++) {
                new_max[v] = larger(new_max[v], tile[i][v]);
                scores[j + i][v] = tile[i][v];
            }
    }
}

// The keys of a block that some row of a panel may see. By position alone these are one range; masks leave
// holes, whose values must not be touched (0 * NaN is NaN): then they are listed.
typedef struct live_keys {
    key_range range;
    int has_holes;
    int count;
    int key[SCORE_FULL ? BLOCK_K : 1];
} live_keys;

INLINE int is_seen(const float_v scores[PANEL_VECTORS])
{
    int seen = 0;
    UNROLL for (int v = 0; v < PANEL_VECTORS; v++)
        seen |= any_lane(scores[v] != (float_v)(-INFINITY)); // NaN is seen
    return seen;
}

// P = exp(S - new_max) in place; rescale: what the sum and O so far are to be multiplied by.
INLINE void softmax_panel(float_v (*scores)[PANEL_VECTORS], float_v rescale[PANEL_VECTORS],
                          query_panel *panel, const float_v new_max[PANEL_VECTORS], live_keys *live)
{
    const key_range keys = live->range;
    float_v sum[PANEL_VECTORS];
    int at_floor = 0;
    UNROLL for (int v = 0; v < PANEL_VECTORS; v++) {
        rescale[v] = exp2_of_negative((panel->max[v] - new_max[v]) * SCORE_TO_LOG2);
        panel->max[v] = new_max[v];
        sum[v] = 0.0f;
        at_floor |= any_lane(new_max[v] <= (float_v)(SCORE_FLOOR));
    }
    live->count = 0;
    for (int j = keys.begin; SCORE_FULL && live->has_holes && j < keys.end; j++)
        if (is_seen(scores[j]))
            live->key[live->count++] = j;
    // Scores below the floor weigh something only in a row that has no others yet, which is rare.
    if (at_floor)
        for (int j = keys.begin; j < keys.end; j++)
            UNROLL for (int v = 0; v < PANEL_VECTORS; v++)
                scores[j][v] = settle_score(scores[j][v]);

    for (int j = keys.begin; j < keys.end; j++) {
        UNROLL for (int v = 0; v < PANEL_VECTORS; v++) {
            scores[j][v] = exp2_of_negative((scores[j][v] - new_max[v]) * SCORE_TO_LOG2);
            sum[v] += scores[j][v];
        }
    }
    UNROLL for (int v = 0; v < PANEL_VECTORS; v++)
        panel->sum[v] = panel->sum[v] * rescale[v] + sum[v];
}

// O^T = O^T * rescale + V^T P^T. A block's product is summed up on its own before it joins O, so that rounding
// errors grow with the number of blocks, not of keys. is_listed: a constant, as looking keys up costs more
// than a tenth.
INLINE void add_values(query_panel *panel, const float *v_rows, float_v (*weights)[PANEL_VECTORS],
                       const float_v rescale[PANEL_VECTORS], const live_keys *live, const int is_listed,
                       int head_dim)
{
    const int count = is_listed ? live->count : live->range.end - live->range.begin;
    for (int c = 0; c < head_dim; c += DIM_TILE) {
        float_v tile[DIM_TILE][PANEL_VECTORS];
        UNROLL for (int i = 0; i < DIM_TILE; i++)
            UNROLL for (int v = 0; v < PANEL_VECTORS; v++)
                tile[i][v] = 0.0f;
        for (int n = 0; n < count; n++) {
            const int j = is_listed ? live->key[n] : live->range.begin + n;
            UNROLL for (int i = 0; i < DIM_TILE; i++)
                UNROLL for (int v = 0; v < PANEL_VECTORS; v++)
                    tile[i][v] += v_rows[j * V_STRIDE + c + i] * weights[j][v];
        }
        UNROLL for (int i = 0; i < DIM_TILE; i++)
            UNROLL for (int v = 0; v < PANEL_VECTORS; v++)
                panel->o[c + i][v] =
                    panel->has_keys ? panel->o[c + i][v] * rescale[v] + tile[i][v] : tile[i][v];
    }
    panel->has_keys = 1;
}

// The keys of block .. block_end-1 that some row of the panel may see, counted from `block`; class: whether
// masks have to be applied to them.
INLINE key_range keys_of_panel(const query_panel *panel, int block, int block_end, int *class,
                               const score_inputs *at)
{
    const attention_args *a = at->a;
    const sequence *seq = &at->seq;
    key_range keys =
        keys_of_rows(panel->first_row, panel->last_row, seq->kv_len, seq->band_begin, seq->band_end);
    keys.begin = max(keys.begin, block);
    keys.end = min(keys.end, block_end);
    *class = class_without_map(a);
    if (SCORE_FULL && a->map_width > 0) {
        const __global uchar *map = at->map_plane;
        const int first = panel->first_row, last = panel->last_row, step = a->map_keys;
        while (keys.begin < keys.end && tile_class(map, first, last, keys.begin, keys.begin, a) == TILE_EMPTY)
            keys.begin = (keys.begin / step + 1) * step;
        while (keys.begin < keys.end &&
               tile_class(map, first, last, keys.end - 1, keys.end - 1, a) == TILE_EMPTY)
            keys.end = (keys.end - 1) / step * step;
        if (keys.begin < keys.end)
            *class = tile_class(map, first, last, keys.begin, keys.end - 1, a);
    }
    keys.begin -= block;
    keys.end -= block;
    return keys;
}

// A function of its own, not inlined: PoCL (3.1, seen 2026-11-29) compiles a kernel three times.
static __attribute__((noinline)) USE_WHOLE_VECTORS
void forward_tile(int group, const attention_buffers *in, const attention_args *a)
{
    query_panel panels[PANELS];
    key_range keys[PANELS];
    int class[PANELS];
    live_keys live;
    float k_rows[BLOCK_K * K_STRIDE] __attribute__((aligned(64)));
    float v_copy[V_IN_K ? 1 : BLOCK_K * V_STRIDE] __attribute__((aligned(64)));
    float *const v_rows = V_IN_K ? k_rows : v_copy;
    float_v scores[BLOCK_K][PANEL_VECTORS], new_max[PANEL_VECTORS], rescale[PANEL_VECTORS];

    const work_place place = place_of_group(group, in, a);
    const int kv_head = place.head / a->heads_per_kv;
    const row_start start = start_of_rows(place.batch, place.head, in->sinks, a);
    score_inputs at;
    at.in = in;
    at.a = a;
    at.batch = place.batch;
    at.head = place.head;
    at.seq = sequence_of(place.batch, in, a);
    at.map_plane = in->workspace + head_base(&a->tile_map, place.batch, place.head);

    const key_rows k_at = rows_of_keys(&a->k, place.batch, kv_head, &at.seq, in, a);
    const key_rows v_at = rows_of_keys(&a->v, place.batch, kv_head, &at.seq, in, a);
    const key_scales k_scales = scales_of_k(place.batch, kv_head, &at.seq, in, a);
    const key_scales v_scales = scales_of_v(place.batch, kv_head, &at.seq, in, a);

    // Tiles from both ends in turn: under a causal bound their work differs, and the driver hands out
    // runs of neighbours.
    const int tiles = (at.seq.q_len + BLOCK_Q - 1) / BLOCK_Q;
    if (place.q_tile >= tiles)
        return;
    const int tile = place.q_tile % 2 == 0 ? place.q_tile / 2 : tiles - 1 - place.q_tile / 2;
    const int first_row = tile * BLOCK_Q;
    const int last_row = min(first_row + BLOCK_Q, at.seq.q_len) - 1;
    const int num_panels = (last_row - first_row) / PANEL_ROWS + 1;
    const key_range seen =
        keys_of_rows(first_row, last_row, at.seq.kv_len, at.seq.band_begin, at.seq.band_end);

    for (int p = 0; p < num_panels; p++) {
        panels[p].first_row = first_row + p * PANEL_ROWS;
        panels[p].last_row = min(panels[p].first_row + PANEL_ROWS - 1, last_row);
        load_queries(&panels[p], in->q, &start, a, query_base(&a->q, place.batch, place.head, &at.seq));
    }

    // for each block of the keys that the tile's rows may see
    //     copy K and V of the block
    //     for each panel with rows that may see some of them
    //         S = Q K^T, forbidden ones -inf;   m' = max(m, rowmax(S))
    //         P = exp(S - m');   l = l exp(m - m') + rowsum(P)
    //         O = O exp(m - m') + P V
    // O = O / l;   lse = m + ln(l)
    for (int block = seen.begin; block < seen.end; block += BLOCK_K) {
        const int count = min(BLOCK_K, seen.end - block);
        int is_needed = 0;
        for (int p = 0; p < num_panels; p++) {
            keys[p] = keys_of_panel(&panels[p], block, block + count, &class[p], &at);
            is_needed |= keys[p].begin < keys[p].end;
        }
        if (!is_needed)
            continue;
        pack_k(k_rows, K_STRIDE, count, a->head_dim_qk, in->k, &k_at, &k_scales, block);
        if (!V_IN_K)
            pack_v(v_rows, V_STRIDE, count, a->head_dim_v, in->v, &v_at, &v_scales, block);
        for (int p = 0; p < num_panels; p++) {
            if (keys[p].end <= keys[p].begin)
                continue;
            live.range = keys[p];
            live.has_holes = class[p] != TILE_FULL;
            score_panel(scores, new_max, &panels[p], k_rows, block, keys[p], &at);
#if SCORE_FULL
            if (a->transforms || class[p] != TILE_FULL)
                finish_scores(scores, new_max, &panels[p], block, keys[p], class[p], &at);
#endif
            softmax_panel(scores, rescale, &panels[p], new_max, &live);
            if (SCORE_FULL && live.has_holes)
                add_values(&panels[p], v_rows, scores, rescale, &live, 1, a->head_dim_v);
            else
                add_values(&panels[p], v_rows, scores, rescale, &live, 0, a->head_dim_v);
        }
    }
    for (int p = 0; p < num_panels; p++)
        store_outputs(&panels[p], in->o, in->lse, a, query_base(&a->o, place.batch, place.head, &at.seq),
                      query_base(&a->lse, place.batch, place.head, &at.seq));
}

__kernel __attribute__((reqd_work_group_size(1, 1, 1))) void forward(ATTENTION_BUFFERS, attention_args args)
{
    const attention_buffers in = GATHERED_BUFFERS;
    if (args.num_groups > 0)
        forward_tile(get_group_id(1) + args.first_group, &in, &args);
}
