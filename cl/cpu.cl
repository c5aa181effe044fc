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

#ifndef VECTOR_WIDTH // float lanes of SCORE_T, the vector type
#define VECTOR_WIDTH 1
#endif
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
#define V_STRIDE (HEAD_DIM_V + ROW_PADDING)

typedef SCORE_T float_v;
typedef SCORE_INT_T int_v;

#define INLINE static inline __attribute__((always_inline))
#define UNROLL _Pragma("unroll")

// LLVM uses 256-bit registers on some CPUs with 512-bit ones, where plain code would lower the clock.
#ifdef __has_attribute
#if __has_attribute(min_vector_width)
#define USE_WHOLE_VECTORS __attribute__((min_vector_width(32 * VECTOR_WIDTH)))
#endif
#endif
#ifndef USE_WHOLE_VECTORS
#define USE_WHOLE_VECTORS
#endif

// The running state of PANEL_ROWS query rows.
typedef struct query_panel {
    float_v q[HEAD_DIM_QK][PANEL_VECTORS]; // Q^T, scaled
    float_v o[HEAD_DIM_V][PANEL_VECTORS];  // O^T, relative to max; not yet there without has_keys
    float_v max[PANEL_VECTORS];            // of the scores so far; at least SCORE_FLOOR
    float_v sum[PANEL_VECTORS];            // of exp(score - max)
    int has_keys; // whether some block has been added
    int first_row;
    int last_row; // that exists
} query_panel;

// ---- Vectors --------------------------------------------------------------------------------------

// The larger one. A NaN in b is passed over, a NaN in a stays.
INLINE float_v larger(float_v a, float_v b) { return a < b ? b : a; }

INLINE int any_lane(int_v condition)
{
    return any(condition ? (int_v)(-1) : (int_v)(0)); // any() looks at signs; true is 1 for scalars
}

INLINE int_v lane_numbers(void)
{
    union { int_v v; int lane[VECTOR_WIDTH]; } numbers;
    UNROLL for (int i = 0; i < VECTOR_WIDTH; i++)
        numbers.lane[i] = i;
    return numbers.v;
}

// 2^x for x <= 0 with relative error 2.2e-7, 0 below -127, NaN for NaN. x = n + f, |f| <= 1/2: the magic
// sum's lowest bits are n + 127, which a shift makes the exponent of 2^n.
INLINE float_v exp2_of_negative(float_v x)
{
    const float_v magic = 12583039.0f; // 1.5 * 2^23 + 127
    union { float_v number; int_v bits; } sum;
    x = larger(x, (float_v)(-127.0f));
    sum.number = x + magic;
    const float_v f = x - (sum.number - magic);
    sum.bits = sum.bits << 23;
    float_v power = 1.327647198e-3f * f + 9.675541334e-3f;
    power = power * f + 5.550713274e-2f;
    power = power * f + 2.402211972e-1f;
    power = power * f + 6.931469671e-1f;
    power = power * f + 1.0f;
    return power * sum.number; // a product, so that NaN stays
}

INLINE void transpose4(float4 m[4])
{
    const float4 ab_low = (float4)(m[0].lo, m[1].lo).xzyw, ab_high = (float4)(m[0].hi, m[1].hi).xzyw;
    const float4 cd_low = (float4)(m[2].lo, m[3].lo).xzyw, cd_high = (float4)(m[2].hi, m[3].hi).xzyw;
    m[0] = (float4)(ab_low.lo, cd_low.lo);
    m[1] = (float4)(ab_low.hi, cd_low.hi);
    m[2] = (float4)(ab_high.lo, cd_high.lo);
    m[3] = (float4)(ab_high.hi, cd_high.hi);
}

// ---- Between global memory and scratch --------------------------------------------------------------

INLINE float8 load8_of(int type, const __global void *p, long i)
{
    return type == TYPE_F32 ? load8_1(p, i) : type == TYPE_F16 ? load8_2(p, i) : load8_3(p, i);
}

INLINE float load1_of(int type, const __global void *p, long i)
{
    return type == TYPE_F32 ? load1_1(p, i) : type == TYPE_F16 ? load1_2(p, i) : load1_3(p, i);
}

// Copies `count` rows of K or V to scratch. What fills up the last micro-tile is cleared: its results are
// never used, but it should not be slow (denormal) or differ from run to run.
INLINE void pack_rows(float *rows, int stride, int count, int dim, int type, const __global void *from,
                      const tensor_address *address, long first)
{
    for (int j = 0; j < count; j++, first += address->token, rows += stride) {
        int c = 0;
        for (; c + 8 <= dim; c += 8)
            vstore8(load8_of(type, from, first + c), 0, rows + c);
        for (; c < dim; c++)
            rows[c] = load1_of(type, from, first + c);
        for (; c % DIM_TILE != 0; c++)
            rows[c] = 0.0f;
    }
    for (int j = count; j % KEY_TILE != 0; j++, rows += stride)
        for (int c = 0; c < dim; c++)
            rows[c] = 0.0f;
}

// Where four rows of a tensor are, from `lane` of the panel on. Lanes beyond the last row repeat it.
INLINE void find_rows4(long row[4], const query_panel *panel, int lane, const tensor_address *address,
                       long base)
{
    UNROLL for (int i = 0; i < 4; i++)
        row[i] = base + min(panel->first_row + lane + i, panel->last_row) * address->token;
}

// Q^T of a panel, scaled; no key seen yet.
INLINE void load_queries(query_panel *panel, const __global q_t *q, const attention_args *a, long base)
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
        panel->max[v] = SCORE_FLOOR;
        panel->sum[v] = 0.0f;
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
        log_sums[v] = sum == 0.0f ? (float_v)(-INFINITY) : panel->max[v] * SCORE_TO_NATURAL + log(sum);
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
    if (a->want_lse)
        for (int i = 0; i < rows; i++)
            lse[lse_base + (panel->first_row + i) * a->lse.token] = log_sum[i];
}

// Puts a panel's bias for keys begin .. end-1 of the block where their scores will be.
INLINE void stage_bias(float_v (*scores)[PANEL_VECTORS], const query_panel *panel, int block, key_range keys,
                       const __global bias_t *bias, const attention_args *a, long base)
{
    for (int lane = 0; lane < PANEL_ROWS; lane += 4) {
        long row[4];
        find_rows4(row, panel, lane, &a->bias, base + block * a->bias_key);
        float *const lanes = (float *)scores + lane;
        int j = keys.begin;
        for (; a->bias_key == 1 && j + 4 <= keys.end; j += 4) {
            float4 part[4];
            UNROLL for (int i = 0; i < 4; i++)
                part[i] = LOAD4(BIAS_TYPE)(bias, row[i] + j);
            transpose4(part);
            UNROLL for (int i = 0; i < 4; i++)
                vstore4(part[i], 0, lanes + (j + i) * PANEL_ROWS);
        }
        for (; j < keys.end; j++)
            UNROLL for (int i = 0; i < 4; i++)
                lanes[j * PANEL_ROWS + i] = LOAD1(BIAS_TYPE)(bias, row[i] + j * a->bias_key);
    }
}

// ---- The steps of the main loop ---------------------------------------------------------------------

#if SCORE_FULL
// Softcap and bias for a micro-tile. By way of memory, in a loop that stays one: tanh is long.
INLINE void transform_tile(float_v (*tile)[PANEL_VECTORS], float_v (*bias)[PANEL_VECTORS],
                           const attention_args *a)
{
    float_v scores[KEY_TILE * PANEL_VECTORS];
    UNROLL for (int n = 0; n < KEY_TILE * PANEL_VECTORS; n++)
        scores[n] = tile[n / PANEL_VECTORS][n % PANEL_VECTORS];
    _Pragma("nounroll") for (int n = 0; n < KEY_TILE * PANEL_VECTORS; n++)
        scores[n] = transform_score(scores[n], a->has_bias ? (*bias)[n] : (float_v)(0.0f), a->softcap);
    UNROLL for (int n = 0; n < KEY_TILE * PANEL_VECTORS; n++)
        tile[n / PANEL_VECTORS][n % PANEL_VECTORS] = scores[n];
}
#endif

// S^T = K Q^T: final scores of a panel, forbidden ones as -inf; new_max: the running maximum with them.
// Micro-tiles start at multiples of KEY_TILE, so that none reaches beyond the block; only where some row
// may not see some key are scores compared with the bounds.
INLINE void score_panel(float_v (*scores)[PANEL_VECTORS], float_v new_max[PANEL_VECTORS],
                        const query_panel *panel, const float *k_rows, int block, key_range keys,
                        const attention_args *a)
{
    UNROLL for (int v = 0; v < PANEL_VECTORS; v++)
        new_max[v] = panel->max[v];
    for (int j = keys.begin / KEY_TILE * KEY_TILE; j < keys.end; j += KEY_TILE) {
        float_v tile[KEY_TILE][PANEL_VECTORS];
        UNROLL for (int i = 0; i < KEY_TILE; i++)
            UNROLL for (int v = 0; v < PANEL_VECTORS; v++)
                tile[i][v] = 0.0f;

        const float *k = k_rows + j * K_STRIDE;
        for (int c = 0; c < a->head_dim_qk; c++)
            UNROLL for (int i = 0; i < KEY_TILE; i++)
                UNROLL for (int v = 0; v < PANEL_VECTORS; v++)
                    tile[i][v] += k[i * K_STRIDE + c] * panel->q[c][v];

#if SCORE_FULL
        transform_tile(tile, scores + j, a);
#endif
        if (!tile_is_full(panel->first_row, panel->last_row, block + j, block + j + KEY_TILE - 1,
                          a->kv_len, a->band_begin, a->band_end))
            UNROLL for (int v = 0; v < PANEL_VECTORS; v++) {
                const int_v row = lane_numbers() + (panel->first_row + v * VECTOR_WIDTH);
                const int_v begin = row + a->band_begin, end = min(row + a->band_end, a->kv_len);
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

// P = exp(S - new_max) in place; rescale: what the sum and O so far are to be multiplied by.
INLINE void softmax_panel(float_v (*scores)[PANEL_VECTORS], float_v rescale[PANEL_VECTORS],
                          query_panel *panel, const float_v new_max[PANEL_VECTORS], key_range keys)
{
    float_v sum[PANEL_VECTORS];
    int at_floor = 0;
    UNROLL for (int v = 0; v < PANEL_VECTORS; v++) {
        rescale[v] = exp2_of_negative((panel->max[v] - new_max[v]) * SCORE_TO_LOG2);
        panel->max[v] = new_max[v];
        sum[v] = 0.0f;
        at_floor |= any_lane(new_max[v] <= (float_v)(SCORE_FLOOR));
    }
    // Scores below the floor weigh something only in a row that has no others yet, which is rare. (Those
    // with softcap or bias are settled by transform_score.)
    if (!SCORE_FULL && at_floor)
        for (int j = keys.begin; j < keys.end; j++)
            UNROLL for (int v = 0; v < PANEL_VECTORS; v++)
                scores[j][v] = settle_score(scores[j][v]);

    for (int j = keys.begin; j < keys.end; j++)
        UNROLL for (int v = 0; v < PANEL_VECTORS; v++) {
            scores[j][v] = exp2_of_negative((scores[j][v] - new_max[v]) * SCORE_TO_LOG2);
            sum[v] += scores[j][v];
        }
    UNROLL for (int v = 0; v < PANEL_VECTORS; v++)
        panel->sum[v] = panel->sum[v] * rescale[v] + sum[v];
}

// O^T = O^T * rescale + V^T P^T. A block's product is summed up on its own before it joins O, so that rounding
// errors grow with the number of blocks, not of keys.
INLINE void add_values(query_panel *panel, const float *v_rows, float_v (*weights)[PANEL_VECTORS],
                       const float_v rescale[PANEL_VECTORS], key_range keys, int head_dim)
{
    for (int c = 0; c < head_dim; c += DIM_TILE) {
        float_v tile[DIM_TILE][PANEL_VECTORS];
        UNROLL for (int i = 0; i < DIM_TILE; i++)
            UNROLL for (int v = 0; v < PANEL_VECTORS; v++)
                tile[i][v] = 0.0f;
        for (int j = keys.begin; j < keys.end; j++)
            UNROLL for (int i = 0; i < DIM_TILE; i++)
                UNROLL for (int v = 0; v < PANEL_VECTORS; v++)
                    tile[i][v] += v_rows[j * V_STRIDE + c + i] * weights[j][v];
        UNROLL for (int i = 0; i < DIM_TILE; i++)
            UNROLL for (int v = 0; v < PANEL_VECTORS; v++)
                panel->o[c + i][v] =
                    panel->has_keys ? panel->o[c + i][v] * rescale[v] + tile[i][v] : tile[i][v];
    }
    panel->has_keys = 1;
}

// The keys of block .. block_end-1 that some row of the panel may see, counted from `block`.
INLINE key_range keys_of_panel(const query_panel *panel, int block, int block_end, const attention_args *a)
{
    key_range keys = keys_of_rows(panel->first_row, panel->last_row, a->kv_len, a->band_begin, a->band_end);
    keys.begin = max(keys.begin, block) - block;
    keys.end = min(keys.end, block_end) - block;
    return keys;
}

// A function of its own, not inlined: PoCL (3.1, seen 2026-11-29) compiles a kernel three times.
static __attribute__((noinline)) USE_WHOLE_VECTORS
void forward_tile(int group, const __global q_t *restrict q, const __global k_t *restrict k,
                  const __global v_t *restrict v, __global o_t *restrict o, __global float *restrict lse,
                  const __global bias_t *restrict bias, const attention_args *a)
{
    query_panel panels[PANELS];
    float k_rows[BLOCK_K * K_STRIDE] __attribute__((aligned(64)));
    float v_rows[BLOCK_K * V_STRIDE] __attribute__((aligned(64)));
    float_v scores[BLOCK_K][PANEL_VECTORS], new_max[PANEL_VECTORS], rescale[PANEL_VECTORS];

    const work_place place = place_of_group(group, a);
    const int kv_head = place.head / a->heads_per_kv;
    const long k_base = head_base(&a->k, place.batch, kv_head);
    const long v_base = head_base(&a->v, place.batch, kv_head);
    const long bias_base = head_base(&a->bias, place.batch, place.head);

    // Tiles from both ends in turn: under a causal bound their work differs, and the driver hands out
    // runs of neighbours.
    const int tile = place.q_tile % 2 == 0 ? place.q_tile / 2 : a->q_tiles - 1 - place.q_tile / 2;
    const int first_row = tile * BLOCK_Q;
    const int last_row = min(first_row + BLOCK_Q, a->q_len) - 1;
    const int num_panels = (last_row - first_row) / PANEL_ROWS + 1;
    const key_range seen = keys_of_rows(first_row, last_row, a->kv_len, a->band_begin, a->band_end);

    for (int p = 0; p < num_panels; p++) {
        panels[p].first_row = first_row + p * PANEL_ROWS;
        panels[p].last_row = min(panels[p].first_row + PANEL_ROWS - 1, last_row);
        load_queries(&panels[p], q, a, head_base(&a->q, place.batch, place.head));
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
        pack_rows(k_rows, K_STRIDE, count, a->head_dim_qk, K_TYPE, k, &a->k, k_base + block * a->k.token);
        pack_rows(v_rows, V_STRIDE, count, a->head_dim_v, V_TYPE, v, &a->v, v_base + block * a->v.token);
        for (int p = 0; p < num_panels; p++) {
            const key_range keys = keys_of_panel(&panels[p], block, block + count, a);
            if (keys.end <= keys.begin)
                continue;
            if (SCORE_FULL && a->has_bias)
                stage_bias(scores, &panels[p], block, keys, bias, a, bias_base);
            score_panel(scores, new_max, &panels[p], k_rows, block, keys, a);
            softmax_panel(scores, rescale, &panels[p], new_max, keys);
            add_values(&panels[p], v_rows, scores, rescale, keys, a->head_dim_v);
        }
    }
    for (int p = 0; p < num_panels; p++)
        store_outputs(&panels[p], o, lse, a, head_base(&a->o, place.batch, place.head),
                      head_base(&a->lse, place.batch, place.head));
}

__kernel __attribute__((reqd_work_group_size(1, 1, 1)))
void forward(const __global q_t *restrict q, const __global k_t *restrict k,
             const __global v_t *restrict v, __global o_t *restrict o, __global float *restrict lse,
             const __global bias_t *restrict bias, attention_args args)
{
    if (args.num_groups > 0)
        forward_tile(get_group_id(1) + args.first_group, q, k, v, o, lse, bias, &args);
}
