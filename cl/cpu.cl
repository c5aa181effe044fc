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
#ifndef DIM_TILE // elements of head_dim_v in a micro-tile of O^T, at most 32
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
    float_v o[HEAD_DIM_V][PANEL_VECTORS];  // O^T, relative to max
    float_v max[PANEL_VECTORS];            // of the scores so far, in log2 units; at least SCORE_FLOOR
    float_v sum[PANEL_VECTORS];            // of exp2(score - max)
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

// Copies `count` rows of K or V to scratch and clears the rows that fill up the last micro-tile.
INLINE void pack_rows(float *rows, int stride, int count, int dim, int type, const __global void *from,
                      const tensor_address *address, long first)
{
    for (int j = 0; j < count; j++, first += address->token, rows += stride) {
        int c = 0;
        for (; c + 8 <= dim; c += 8)
            vstore8(load8_of(type, from, first + c), 0, rows + c);
        for (; c < dim; c++)
            rows[c] = load1_of(type, from, first + c);
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
    for (int c = 0; c < HEAD_DIM_V; c++)
        UNROLL for (int v = 0; v < PANEL_VECTORS; v++)
            panel->o[c][v] = 0.0f;
    UNROLL for (int v = 0; v < PANEL_VECTORS; v++) {
        panel->max[v] = SCORE_FLOOR;
        panel->sum[v] = 0.0f;
    }
}

// O = O^T / sum, and the LSE of each row. The sum of a row without keys is 0.
INLINE void store_outputs(const query_panel *panel, __global o_t *o, __global float *lse,
                          const attention_args *a, long o_base, long lse_base)
{
    const int rows = panel->last_row - panel->first_row + 1;
    float_v factors[PANEL_VECTORS], log_sums[PANEL_VECTORS];
    UNROLL for (int v = 0; v < PANEL_VECTORS; v++) {
        const float_v sum = panel->sum[v];
        factors[v] = sum == 0.0f ? (float_v)(0.0f) : 1.0f / sum;
        log_sums[v] = sum == 0.0f ? (float_v)(-INFINITY) : panel->max[v] * LN_2 + log(sum);
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

// Puts a panel's bias for the keys of a block where their scores will be.
INLINE void stage_bias(float_v (*scores)[PANEL_VECTORS], const query_panel *panel, key_range keys,
                       int block, const __global bias_t *bias, const attention_args *a, long base)
{
    float *const lanes = (float *)scores;
    for (int lane = 0; lane < PANEL_ROWS; lane += 4) {
        long row[4];
        find_rows4(row, panel, lane, &a->bias, base);
        int key = keys.begin;
        for (; a->bias_key == 1 && key + 4 <= keys.end; key += 4) {
            float4 part[4];
            UNROLL for (int i = 0; i < 4; i++)
                part[i] = LOAD4(BIAS_TYPE)(bias, row[i] + key);
            transpose4(part);
            UNROLL for (int i = 0; i < 4; i++)
                vstore4(part[i], 0, lanes + (key + i - block) * PANEL_ROWS + lane);
        }
        for (; key < keys.end; key++)
            UNROLL for (int i = 0; i < 4; i++)
                lanes[(key - block) * PANEL_ROWS + lane + i] =
                    LOAD1(BIAS_TYPE)(bias, row[i] + key * a->bias_key);
    }
}

// ---- The steps of the main loop ---------------------------------------------------------------------

// S^T = K Q^T for a panel and a block's keys, as final scores; forbidden ones are -inf. `max` is raised
// to the running maximum. Micro-tiles start at multiples of KEY_TILE in the block.
INLINE void score_panel(float_v (*scores)[PANEL_VECTORS], float_v max[PANEL_VECTORS],
                        const query_panel *panel, const float *k_rows, key_range keys, int block,
                        const attention_args *a)
{
    const int begin = (keys.begin - block) / KEY_TILE * KEY_TILE;
    for (int j = begin; j < keys.end - block; j += KEY_TILE) {
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
        UNROLL for (int i = 0; i < KEY_TILE; i++)
            UNROLL for (int v = 0; v < PANEL_VECTORS; v++)
                tile[i][v] = transform_score(tile[i][v], a->has_bias ? scores[j + i][v] : (float_v)(0.0f),
                                             a->softcap);
#endif
        if (!tile_is_full(panel->first_row, panel->last_row, block + j, block + j + KEY_TILE - 1,
                          a->kv_len, a->band_begin, a->band_end))
            UNROLL for (int v = 0; v < PANEL_VECTORS; v++) {
                const int_v row = lane_numbers() + (panel->first_row + v * VECTOR_WIDTH);
                const int_v first = row + a->band_begin, end = min(row + a->band_end, a->kv_len);
                UNROLL for (int i = 0; i < KEY_TILE; i++) {
                    const int_v key = block + j + i;
                    tile[i][v] = key >= first && key < end ? tile[i][v] : (float_v)(-INFINITY);
                }
            }
        UNROLL for (int i = 0; i < KEY_TILE; i++)
            UNROLL for (int v = 0; v < PANEL_VECTORS; v++) {
                max[v] = larger(max[v], tile[i][v]);
                scores[j + i][v] = tile[i][v];
            }
    }
}

// P = exp2(S - max) in place, for keys begin .. end-1 of the block. Returns in `rescale` what the sums
// and O so far are to be multiplied by.
INLINE void softmax_panel(float_v (*scores)[PANEL_VECTORS], float_v rescale[PANEL_VECTORS],
                          query_panel *panel, const float_v max[PANEL_VECTORS], int begin, int end)
{
    float_v sum[PANEL_VECTORS];
    int at_floor = 0;
    UNROLL for (int v = 0; v < PANEL_VECTORS; v++) {
        rescale[v] = exp2_of_negative(panel->max[v] - max[v]);
        panel->max[v] = max[v];
        sum[v] = 0.0f;
        at_floor |= any_lane(max[v] <= (float_v)(SCORE_FLOOR));
    }
    // Scores below the floor have to count only where the row has no others. (Those with softcap or bias
    // have been settled.)
    if (!SCORE_FULL && at_floor)
        for (int j = begin; j < end; j++)
            UNROLL for (int v = 0; v < PANEL_VECTORS; v++)
                scores[j][v] = settle_score(scores[j][v]);

    for (int j = begin; j < end; j++)
        UNROLL for (int v = 0; v < PANEL_VECTORS; v++) {
            scores[j][v] = exp2_of_negative(scores[j][v] - max[v]);
            sum[v] += scores[j][v];
        }
    UNROLL for (int v = 0; v < PANEL_VECTORS; v++)
        panel->sum[v] = panel->sum[v] * rescale[v] + sum[v];
}

// O^T = O^T * rescale + V^T P^T for keys begin .. end-1 of the block.
INLINE void add_values(query_panel *panel, const float *v_rows, float_v (*weights)[PANEL_VECTORS],
                       const float_v rescale[PANEL_VECTORS], int begin, int end, int head_dim)
{
    for (int c = 0; c < head_dim; c += DIM_TILE) {
        float_v tile[DIM_TILE][PANEL_VECTORS];
        UNROLL for (int i = 0; i < DIM_TILE; i++)
            UNROLL for (int v = 0; v < PANEL_VECTORS; v++)
                tile[i][v] = panel->o[c + i][v] * rescale[v];
        for (int j = begin; j < end; j++)
            UNROLL for (int i = 0; i < DIM_TILE; i++)
                UNROLL for (int v = 0; v < PANEL_VECTORS; v++)
                    tile[i][v] += v_rows[j * V_STRIDE + c + i] * weights[j][v];
        UNROLL for (int i = 0; i < DIM_TILE; i++)
            UNROLL for (int v = 0; v < PANEL_VECTORS; v++)
                panel->o[c + i][v] = tile[i][v];
    }
}

// for each block of the keys that the tile's rows may see
//     copy K, V of the block
//     for each panel of rows that may see some of them
//         S = Q K^T, with what is forbidden at -inf
//         m' = max(m, rowmax(S)),   P = exp(S - m'),   l = l exp(m - m') + rowsum(P)
//         O = O exp(m - m') + P V
// O = O / l,   lse = m + ln(l)
static __attribute__((noinline)) USE_WHOLE_VECTORS
void run_tile(int group, const __global q_t *restrict q, const __global k_t *restrict k,
             const __global v_t *restrict v, __global o_t *restrict o, __global float *restrict lse,
             const __global bias_t *restrict bias, const attention_args *a)
{
    query_panel panels[PANELS];
    float k_rows[BLOCK_K * K_STRIDE] __attribute__((aligned(64)));
    float v_rows[BLOCK_K * V_STRIDE] __attribute__((aligned(64)));
    float_v scores[BLOCK_K][PANEL_VECTORS];

    const work_place place = place_of_group(group, a);
    const int kv_head = place.head / a->heads_per_kv;
    const long k_base = head_base(&a->k, place.batch, kv_head);
    const long v_base = head_base(&a->v, place.batch, kv_head);

    // Tiles from both ends in turn: with a causal bound their work differs, and the driver hands out
    // runs of neighbours.
    const int tile = place.q_tile % 2 == 0 ? place.q_tile / 2 : a->q_tiles - 1 - place.q_tile / 2;
    const int first_row = tile * BLOCK_Q;
    const int rows = min(BLOCK_Q, a->q_len - first_row);
    const int num_panels = (rows + PANEL_ROWS - 1) / PANEL_ROWS;
    for (int p = 0; p < num_panels; p++) {
        panels[p].first_row = first_row + p * PANEL_ROWS;
        panels[p].last_row = first_row + min((p + 1) * PANEL_ROWS, rows) - 1;
        load_queries(&panels[p], q, a, head_base(&a->q, place.batch, place.head));
    }
    for (int i = 0; i < BLOCK_K * V_STRIDE; i++)
        v_rows[i] = 0.0f; // what lies beyond head_dim_v is added to what is never stored

    const key_range all = keys_of_rows(first_row, first_row + rows - 1, a->kv_len, a->band_begin,
                                       a->band_end);
    for (int block = all.begin; block < all.end; block += BLOCK_K) {
        const int block_end = min(block + BLOCK_K, all.end);
        pack_rows(k_rows, K_STRIDE, block_end - block, a->head_dim_qk, K_TYPE, k, &a->k,
                  k_base + block * a->k.token);
        pack_rows(v_rows, V_STRIDE, block_end - block, a->head_dim_v, V_TYPE, v, &a->v,
                  v_base + block * a->v.token);
        for (int p = 0; p < num_panels; p++) {
            query_panel *panel = &panels[p];
            key_range keys = keys_of_rows(panel->first_row, panel->last_row, a->kv_len,
                                          a->band_begin, a->band_end);
            keys.begin = max(keys.begin, block);
            keys.end = min(keys.end, block_end);
            if (keys.end <= keys.begin)
                continue;
            float_v max[PANEL_VECTORS], rescale[PANEL_VECTORS];
            UNROLL for (int i = 0; i < PANEL_VECTORS; i++)
                max[i] = panel->max[i];
            if (SCORE_FULL && a->has_bias)
                stage_bias(scores, panel, keys, block, bias, a,
                           head_base(&a->bias, place.batch, place.head));
            score_panel(scores, max, panel, k_rows, keys, block, a);
            softmax_panel(scores, rescale, panel, max, keys.begin - block, keys.end - block);
            add_values(panel, v_rows, scores, rescale, keys.begin - block, keys.end - block,
                       a->head_dim_v);
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
    if (args.num_groups == 0)
        return;
    run_tile(get_group_id(1) + args.first_group, q, k, v, o, lse, bias, &args);
}
