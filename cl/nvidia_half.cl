// nvidia_half.cl: both products of nvidia_mma.cl for q, k and v of 16 bits, by mma.m16n8k16. What it gives to its
// path, as nvidia_tf32.cl does for f32:
//     QK_STEPS                     steps that the head dim of q and k is multiplied in
//     PV_FIRST                     whether O += P V goes before the next S = Q K^T
//     WEIGHTS, set_weights         softmax weights as the second product takes them
//     q_lane, k_lane, v_lane       what a work-item adds to addresses of Q, K and V in local memory
//     load_q, multiply_qk          S = Q K^T
//     multiply_pv                  O += P V
//     operands, begin_both, load_step, multiply_step
//                                  steps of both, if ALTERNATES (here alone)
//     store_o                      a row of O

#if K_TYPE != TYPE_F32

#define QK_STEPS (HEAD_DIM_QK / 16)
#define PV_FIRST 0

#define MULTIPLY_AS(type) PASTE(multiply_, type)
#define PACK_AS(type) PASTE(pack_, type)

// The accumulators of 16 keys are, rounded, the operand of one step of the second product.
#define WEIGHTS(p) uint p[ROW_TILES][KEY_GROUPS / 2][4]

inlined void set_weights(WEIGHTS(p), int t, int n, const float w[4])
{
    p[t][n / 2][n % 2 * 2] = PACK_AS(V_TYPE)(w[0], w[1]);
    p[t][n / 2][n % 2 * 2 + 1] = PACK_AS(V_TYPE)(w[2], w[3]);
}

// Where a work-item's rows are within a tile: of Q, and of V transposed, 16 rows by 16 columns; of K likewise, with
// the second and third matrix changed over.
inlined uint q_lane(int lane) { return (lane & 15) * K_PITCH + (lane >> 4) * 16; }
inlined uint k_lane(int lane) { return ((lane & 7) + (lane >> 4) * 8) * K_PITCH + (lane >> 3 & 1) * 16; }
inlined uint v_lane(int lane) { return (lane & 15) * V_PITCH + (lane >> 4) * 16; }

inlined void load_q(uint q[ROW_TILES][4], uint address, int step)
{
#pragma unroll
    for (int t = 0; t < ROW_TILES; t++)
        load_matrices(q[t], address + step * 32 + t * 16 * K_PITCH);
}

inlined void clear_scores(float s[ROW_TILES][KEY_GROUPS][4])
{
#pragma unroll
    for (int t = 0; t < ROW_TILES; t++)
#pragma unroll
        for (int n = 0; n < KEY_GROUPS; n++)
#pragma unroll
            for (int i = 0; i < 4; i++)
                s[t][n][i] = 0.0f;
}

inlined void multiply_qk(float s[ROW_TILES][KEY_GROUPS][4], uint held[Q_HELD + 1][ROW_TILES][4], uint q_address,
                         uint k_address)
{
    clear_scores(s);
#pragma unroll
    for (int step = 0; step < QK_STEPS; step++) {
        if (step >= Q_HELD)
            load_q(held[Q_HELD], q_address, step);
        uint(*const q)[4] = held[step < Q_HELD ? step : Q_HELD];
#pragma unroll
        for (int n = 0; n < KEY_GROUPS; n += 2) {
            uint k[4];
            load_matrices(k, k_address + step * 32 + n * 8 * K_PITCH);
#pragma unroll
            for (int t = 0; t < ROW_TILES; t++) {
                MULTIPLY_AS(K_TYPE)(s[t][n], q[t], k[0], k[1]);
                MULTIPLY_AS(K_TYPE)(s[t][n + 1], q[t], k[2], k[3]);
            }
        }
    }
}

// The halves of a register of V that keys seen by some row of the warp lie in. seen: bit 2 n + e for key 8 n + 2 c + e.
inlined uint seen_halves(uint seen, int n)
{
    return (seen >> 2 * n & 1 ? 0xffffu : 0u) | (seen >> 2 * n & 2 ? 0xffff0000u : 0u);
}

// all_seen (a constant): whether V is multiplied as it is; otherwise only at the keys seen, because 0 times what lies
// at the others need not be 0.
inlined void multiply_pv(float o[ROW_TILES][COLUMN_GROUPS][4], WEIGHTS(p), uint v_address, const int all_seen,
                         uint seen)
{
#pragma unroll
    for (int step = 0; step < KEY_GROUPS / 2; step++)
#pragma unroll
        for (int n = 0; n < COLUMN_GROUPS; n += 2) {
            uint v[4];
            load_matrices_transposed(v, v_address + n * 16 + step * 16 * V_PITCH);
            if (!all_seen) {
                v[0] &= seen_halves(seen, 2 * step);
                v[1] &= seen_halves(seen, 2 * step + 1);
                v[2] &= seen_halves(seen, 2 * step);
                v[3] &= seen_halves(seen, 2 * step + 1);
            }
#pragma unroll
            for (int t = 0; t < ROW_TILES; t++) {
                MULTIPLY_AS(V_TYPE)(o[t][n], p[t][step], v[0], v[1]);
                MULTIPLY_AS(V_TYPE)(o[t][n + 1], p[t][step], v[2], v[3]);
            }
        }
}

// Pieces of V, 16 rows by 16 columns, of which a step of the first product has its share beside it.
#define PIECES (KEY_GROUPS / 2 * (COLUMN_GROUPS / 2))
#define PIECES_BEFORE(step) (PIECES * (step) / QK_STEPS)
#define MOST_PIECES ((PIECES + QK_STEPS - 1) / QK_STEPS) // of a step

// What a step multiplies, but for P.
typedef struct operands {
    uint q[ROW_TILES][4];
    uint k[KEY_GROUPS / 2][4];
    uint v[MOST_PIECES][4];
} operands;

inlined void load_q_and_k(operands *x, int step, uint held[Q_HELD + 1][ROW_TILES][4], uint q_address, uint k_address)
{
    if (step >= Q_HELD)
        load_q(x->q, q_address, step);
#pragma unroll
    for (int t = 0; t < ROW_TILES && step < Q_HELD; t++)
#pragma unroll
        for (int i = 0; i < 4; i++)
            x->q[t][i] = held[step < Q_HELD ? step : Q_HELD][t][i];
#pragma unroll
    for (int n = 0; n < KEY_GROUPS / 2; n++)
        load_matrices(x->k[n], k_address + step * 32 + n * 16 * K_PITCH);
}

inlined void load_v(operands *x, int step, uint v_address)
{
#pragma unroll
    for (int i = PIECES_BEFORE(step); i < PIECES_BEFORE(step + 1); i++)
        load_matrices_transposed(x->v[i - PIECES_BEFORE(step)], v_address + i % (COLUMN_GROUPS / 2) * 32 +
                                                                    i / (COLUMN_GROUPS / 2) * 16 * V_PITCH);
}

// Both products step by step: each has the units busy while what the other needs next comes from local memory, where by
// itself it would wait for that. Q and K come a step ahead, V half of one.
inlined void begin_both(float s[ROW_TILES][KEY_GROUPS][4], operands x[2], uint held[Q_HELD + 1][ROW_TILES][4],
                        uint q_address, uint k_address)
{
    clear_scores(s);
    load_q_and_k(&x[0], 0, held, q_address, k_address);
}

inlined void load_step(operands x[2], int step, uint held[Q_HELD + 1][ROW_TILES][4], uint q_address, uint k_address,
                       uint v_address)
{
    load_v(&x[step % 2], step, v_address);
    if (step + 1 < QK_STEPS)
        load_q_and_k(&x[(step + 1) % 2], step + 1, held, q_address, k_address);
}

inlined void multiply_step(float s[ROW_TILES][KEY_GROUPS][4], float o[ROW_TILES][COLUMN_GROUPS][4], WEIGHTS(p),
                           const operands *now, int step)
{
#pragma unroll
    for (int n = 0; n < KEY_GROUPS; n += 2)
#pragma unroll
        for (int t = 0; t < ROW_TILES; t++) {
            MULTIPLY_AS(K_TYPE)(s[t][n], now->q[t], now->k[n / 2][0], now->k[n / 2][1]);
            MULTIPLY_AS(K_TYPE)(s[t][n + 1], now->q[t], now->k[n / 2][2], now->k[n / 2][3]);
        }
#pragma unroll
    for (int i = PIECES_BEFORE(step); i < PIECES_BEFORE(step + 1); i++) {
        const uint *v = now->v[i - PIECES_BEFORE(step)];
        const int keys = i / (COLUMN_GROUPS / 2), n = i % (COLUMN_GROUPS / 2) * 2;
#pragma unroll
        for (int t = 0; t < ROW_TILES; t++) {
            MULTIPLY_AS(V_TYPE)(o[t][n], p[t][keys], v[0], v[1]);
            MULTIPLY_AS(V_TYPE)(o[t][n + 1], p[t][keys], v[2], v[3]);
        }
    }
}

// Of x and y, one of two lanes keeps x, the other, which is `odd`, y; each gets what the other does not keep.
#define CHANGE_OVER(x, y, odd, mask)                         \
    {                                                        \
        const uint other = bits_across((odd) ? x : y, mask); \
        y = (odd) ? y : other;                               \
        x = (odd) ? other : x;                               \
    }

// Four column groups of a row are with four lanes, two columns of each. Lanes change over, so that each has a whole group:
// that of its own number.
inlined uint4 group_of_lane(uint4 pairs, int lane)
{
    CHANGE_OVER(pairs.x, pairs.y, lane & 1, 1)
    CHANGE_OVER(pairs.z, pairs.w, lane & 1, 1)
    CHANGE_OVER(pairs.x, pairs.z, lane & 2, 2)
    CHANGE_OVER(pairs.y, pairs.w, lane & 2, 2)
    return pairs;
}

// Row r (0 or 1) of a row tile, if it exists, times `factor`. aligned (a constant): columns are stored as whole chunks, or
// in pairs of f32.
inlined void store_o(__global o_t *row, float o[COLUMN_GROUPS][4], int r, float factor, int exists, int lane, int columns,
                     const int aligned)
{
#if O_TYPE != TYPE_F32
    if (aligned) {
#define PAIR(i) PACK_AS(O_TYPE)(o[n + i][2 * r] * factor, o[n + i][2 * r + 1] * factor)
#pragma unroll
        for (int n = 0; n < COLUMN_GROUPS; n += 4) {
            const uint4 chunk = group_of_lane((uint4)(PAIR(0), PAIR(1), PAIR(2), PAIR(3)), lane);
            const int column = 8 * (n + lane % 4);
            if (exists && column < columns)
                *(__global uint4 *)(row + column) = chunk;
        }
#undef PAIR
        return;
    }
#endif
    if (!exists)
        return;
#pragma unroll
    for (int n = 0; n < COLUMN_GROUPS; n++) {
        const int column = 8 * n + lane % 4 * 2;
        const float x = o[n][2 * r] * factor, y = o[n][2 * r + 1] * factor;
        if (O_TYPE == TYPE_F32 && aligned && column + 1 < columns) {
            *(__global float2 *)(row + column) = (float2)(x, y);
        } else {
            if (column < columns)
                STORE1(O_TYPE)(row, column, x);
            if (column + 1 < columns)
                STORE1(O_TYPE)(row, column + 1, y);
        }
    }
}

#endif
