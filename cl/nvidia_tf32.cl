// nvidia_tf32.cl: both products of nvidia_mma.cl for q, k and v of float32, by mma.m16n8k8 on TF32 numbers, which keep
// 10 bits of the fraction. Each number is the sum of two such, high + low, and the product of two numbers that of three
// terms; the fourth, low times low, lies below what float32 holds. (nvidia_half.cl says what is given to the path.)
//
// The units round their sums towards zero, which would add up over many of them: so a score is summed up from parts of
// PART_STEPS steps, and each tile's part of O by itself before it is added.

#if K_TYPE == TYPE_F32

#define QK_STEPS (HEAD_DIM_QK / 8)
#define PART_STEPS 8
#define K_AT_ONCE (KEY_GROUPS % 2 == 0 ? 2 : KEY_GROUPS % 3 == 0 ? 3 : 1) // groups of keys
#if ROW_TILES > 1
#define V_AT_ONCE 2 // groups of columns
#else
#define V_AT_ONCE 4
#endif
#define PV_FIRST 1 // weights are as large as scores, and take their registers

// Rounded: what is left for `low` then has a bit more than it keeps, not two.
#define HIGH(x) (((x) + 0x1000u) & 0xffffe000u)
#define LOW(x) as_uint(as_float(x) - as_float(HIGH(x)))

inlined void split(uint high[4], uint low[4], const uint x[4])
{
#pragma unroll
    for (int i = 0; i < 4; i++) {
        high[i] = HIGH(x[i]);
        low[i] = LOW(x[i]);
    }
}

// d += A B for all row tiles and `count` groups of B's columns; d[t * stride + n] for row tile t and group n. The small terms
// come first, and each for all products: one term's product with a number waits for that of the term before.
inlined void multiply_terms(float (*d)[4], const int stride, uint high[ROW_TILES][4], uint low[ROW_TILES][4], uint b[][2],
                            const int count)
{
#pragma unroll
    for (int term = 0; term < 3; term++)
#pragma unroll
        for (int n = 0; n < count; n++) {
            const uint b0 = term == 1 ? LOW(b[n][0]) : HIGH(b[n][0]), b1 = term == 1 ? LOW(b[n][1]) : HIGH(b[n][1]);
#pragma unroll
            for (int t = 0; t < ROW_TILES; t++)
                multiply_1(d[t * stride + n], term == 0 ? low[t] : high[t], b0, b1);
        }
}

#define WEIGHTS(p) float p[ROW_TILES][KEY_GROUPS][4]

inlined void set_weights(WEIGHTS(p), int t, int n, const float w[4])
{
#pragma unroll
    for (int i = 0; i < 4; i++)
        p[t][n][i] = w[i];
}

// Matrices of 8 x 16 bytes are 8 x 4 numbers: of Q 16 rows by 8 columns, of K 8 rows by 16 columns. Of V a work-item
// reads rows 2c and 2c+1, V_AT_ONCE columns each.
inlined uint q_lane(int lane) { return (lane & 15) * K_PITCH + (lane >> 4) * 16; }
inlined uint k_lane(int lane) { return (lane & 7) * K_PITCH + (lane >> 3) * 16; }
inlined uint v_lane(int lane) { return (lane & 3) * 2 * V_PITCH + (lane >> 2) * 4 * V_AT_ONCE; }

inlined void load_q(uint q[ROW_TILES][4], uint address, int step)
{
#pragma unroll
    for (int t = 0; t < ROW_TILES; t++)
        load_matrices(q[t], address + step * 32 + t * 16 * K_PITCH);
}

// s += Q K^T over steps begin .. end - 1.
inlined void add_qk(float s[ROW_TILES][KEY_GROUPS][4], uint held[Q_HELD + 1][ROW_TILES][4], uint q_address,
                    uint k_address, const int begin, const int end)
{
#pragma unroll
    for (int step = begin; step < end; step += 2) {
        uint high[2][ROW_TILES][4], low[2][ROW_TILES][4];
#pragma unroll
        for (int half_step = 0; half_step < 2; half_step++) {
            const int at = step + half_step;
            if (at >= Q_HELD)
                load_q(held[Q_HELD], q_address, at);
#pragma unroll
            for (int t = 0; t < ROW_TILES; t++)
                split(high[half_step][t], low[half_step][t], held[at < Q_HELD ? at : Q_HELD][t]);
        }
#pragma unroll
        for (int n = 0; n < KEY_GROUPS; n += K_AT_ONCE) {
            uint k[2][K_AT_ONCE][2];
#pragma unroll
            for (int i = 0; i < K_AT_ONCE; i++) {
                uint x[4];
                load_matrices(x, k_address + step * 32 + (n + i) * 8 * K_PITCH);
#pragma unroll
                for (int at = 0; at < 4; at++)
                    k[at / 2][i][at % 2] = x[at];
            }
#pragma unroll
            for (int half_step = 0; half_step < 2; half_step++)
                multiply_terms(&s[0][n], KEY_GROUPS, high[half_step], low[half_step], k[half_step], K_AT_ONCE);
        }
    }
}

inlined void multiply_qk(float s[ROW_TILES][KEY_GROUPS][4], uint held[Q_HELD + 1][ROW_TILES][4], uint q_address,
                         uint k_address)
{
    float part[ROW_TILES][KEY_GROUPS][4];
#pragma unroll
    for (int begin = 0; begin < QK_STEPS; begin += PART_STEPS) {
#pragma unroll
        for (int at = 0; at < ROW_TILES * KEY_GROUPS * 4; at++)
            part[at / 4 / KEY_GROUPS][at / 4 % KEY_GROUPS][at % 4] = 0.0f;
        add_qk(part, held, q_address, k_address, begin,
               begin + PART_STEPS < QK_STEPS ? begin + PART_STEPS : QK_STEPS);
#pragma unroll
        for (int at = 0; at < ROW_TILES * KEY_GROUPS * 4; at++) {
            float *const x = &s[at / 4 / KEY_GROUPS][at / 4 % KEY_GROUPS][at % 4];
            *x = (begin == 0 ? 0.0f : *x) + part[at / 4 / KEY_GROUPS][at / 4 % KEY_GROUPS][at % 4];
        }
    }
}

inlined void load_v(uint v[V_AT_ONCE], uint address)
{
#if V_AT_ONCE == 2
    load_local_pair(v, address);
#else
    load_local(v, address);
#endif
}

// A step takes 8 keys, in an order that lets accumulators be operands as they are: keys 2c before 2c+1. Column
// n = 2c + e of the product's group q + i is column 8 q + V_AT_ONCE n + i of V: so that a work-item loads those at once.
inlined void multiply_pv(float o[ROW_TILES][COLUMN_GROUPS][4], WEIGHTS(p), uint v_address, const int all_seen,
                         uint seen)
{
#pragma unroll
    for (int q = 0; q < COLUMN_GROUPS; q += V_AT_ONCE) {
        float part[ROW_TILES][V_AT_ONCE][4];
#pragma unroll
        for (int at = 0; at < ROW_TILES * V_AT_ONCE * 4; at++)
            part[at / 4 / V_AT_ONCE][at / 4 % V_AT_ONCE][at % 4] = 0.0f;
#pragma unroll
        for (int step = 0; step < KEY_GROUPS; step++) {
            uint v0[V_AT_ONCE], v1[V_AT_ONCE], v[V_AT_ONCE][2], high[ROW_TILES][4], low[ROW_TILES][4];
            load_v(v0, v_address + step * 8 * V_PITCH + q * 32);
            load_v(v1, v_address + step * 8 * V_PITCH + V_PITCH + q * 32);
#pragma unroll
            for (int t = 0; t < ROW_TILES; t++) {
                const uint a[4] = {as_uint(p[t][step][0]), as_uint(p[t][step][2]), as_uint(p[t][step][1]),
                                   as_uint(p[t][step][3])};
                split(high[t], low[t], a);
            }
#pragma unroll
            for (int n = 0; n < V_AT_ONCE; n++) { // 0 times what lies at keys that no row sees need not be 0
                v[n][0] = all_seen || seen >> 2 * step & 1 ? v0[n] : 0u;
                v[n][1] = all_seen || seen >> 2 * step & 2 ? v1[n] : 0u;
            }
            multiply_terms(part[0], V_AT_ONCE, high, low, v, V_AT_ONCE);
        }
#pragma unroll
        for (int at = 0; at < ROW_TILES * V_AT_ONCE * 4; at++) {
            float *const sum = &o[at / 4 / V_AT_ONCE][q + at / 4 % V_AT_ONCE][at % 4];
            *sum += part[at / 4 / V_AT_ONCE][at / 4 % V_AT_ONCE][at % 4];
            keep_here(sum);
        }
    }
}

// Row r (0 or 1) of a row tile, if it exists, times `factor`; aligned (a constant): four columns are stored at once.
inlined void store_o(__global o_t *row, float o[COLUMN_GROUPS][4], int r, float factor, int exists, int lane, int columns,
                     const int aligned)
{
    if (!exists)
        return;
#pragma unroll
    for (int q = 0; q < COLUMN_GROUPS; q += V_AT_ONCE)
#pragma unroll
        for (int at = 0; at < 2 * V_AT_ONCE; at += 4) { // of the work-item's columns of these groups
            const int column = 8 * q + lane % 4 * 2 * V_AT_ONCE + at;
            float x[4];
#pragma unroll
            for (int i = 0; i < 4; i++)
                x[i] = o[q + (at + i) % V_AT_ONCE][2 * r + (at + i) / V_AT_ONCE] * factor;
            if (aligned && column + 3 < columns) {
                STORE4(O_TYPE)(row, column, (float4)(x[0], x[1], x[2], x[3]));
            } else {
#pragma unroll
                for (int i = 0; i < 4; i++)
                    if (column + i < columns)
                        STORE1(O_TYPE)(row, column + i, x[i]);
            }
        }
}

#endif
