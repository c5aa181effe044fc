// parts.cl: partial results of one row of one head, each over keys of its own, made one:
//     lse = ln(sum_p exp(lse_p)),   o = sum_p exp(lse_p - lse) o_p
// (Dao et al. 2023, "Flash-Decoding"). A part that saw no key has lse_p = -inf and weighs nothing, whatever its
// o holds; if no part saw any, o = 0 and lse = -inf. A NaN among the lse_p makes the row NaN.
//
// A work-group makes one row. Everything is summed in the order of the parts, so that parts without keys, and
// how many of them there are, change no bit.

#define PARTS_ITEMS 64 // work-items of a work-group
#define MAX_PARTS 256 // as CLATTN_MAX_SPLITS

#ifndef PART_TYPE // storage type of the parts' o
#define PART_TYPE TYPE_F32
#endif

typedef STORAGE(PART_TYPE) part_t;

typedef struct row_parts {
    const __global part_t *o; // of the first part
    const __global float *lse;
    long o_step; // from part to part
    long lse_step;
    int count;
    float to_log2; // lse times this is in log2 units
    float sink; // in the unit of lse; -inf: none
} row_parts;

typedef struct row_total {
    float lse; // in the unit of the parts'
    float factor; // of the weighted sum of o
} row_total;

// Relative to the largest lse. The condition keeps (-inf) - (-inf) out.
static inline float part_weight(float lse, float largest, const row_parts *parts)
{
    return lse == -INFINITY ? 0.0f : exp2((lse - largest) * parts->to_log2);
}

// By all work-items of the group: the weights of the parts go to local memory.
static inline row_total weigh_parts(__local float *weights, int id, const row_parts *parts)
{
    float largest = parts->sink;
    for (int p = 0; p < parts->count; p++) // fmax passes over NaN: the weight shows it
        largest = fmax(largest, parts->lse[p * parts->lse_step]);
    for (int p = id; p < parts->count; p += PARTS_ITEMS)
        weights[p] = part_weight(parts->lse[p * parts->lse_step], largest, parts);
    barrier(CLK_LOCAL_MEM_FENCE);
    float sum = part_weight(parts->sink, largest, parts);
    for (int p = 0; p < parts->count; p++)
        sum += weights[p];
    row_total total;
    total.lse = largest + log2(sum) / parts->to_log2;
    total.factor = sum == 0.0f ? 0.0f : 1.0f / sum;
    return total;
}

// What is loaded beside a weight of 0 goes no further: parts without keys may hold anything.
static inline float4 merge_quad(const row_parts *parts, const __local float *weights, float factor, int column)
{
    float4 sum = (float4)(0.0f);
    for (int p = 0; p < parts->count; p++) {
        const float weight = weights[p];
        const float4 x = LOAD4(PART_TYPE)(parts->o + p * parts->o_step, column);
        sum += weight == 0.0f ? (float4)(0.0f) : weight * x;
    }
    return sum * factor;
}

static inline float merge_one(const row_parts *parts, const __local float *weights, float factor, int column)
{
    float sum = 0.0f;
    for (int p = 0; p < parts->count; p++) {
        const float weight = weights[p];
        const float x = LOAD1(PART_TYPE)(parts->o + p * parts->o_step, column);
        sum += weight == 0.0f ? 0.0f : weight * x;
    }
    return sum * factor;
}

// By all work-items of the group: the row of o, `columns` long. Neighbours take neighbouring quads.
static inline void merge_row(__global o_t *o, int columns, int id, const row_parts *parts,
                             const __local float *weights, float factor)
{
    const int quads = columns / 4;
    for (int i = id; i < quads; i += PARTS_ITEMS)
        STORE4(O_TYPE)(o, 4 * i, merge_quad(parts, weights, factor, 4 * i));
    for (int column = 4 * quads + id; column < columns; column += PARTS_ITEMS)
        STORE1(O_TYPE)(o, column, merge_one(parts, weights, factor, column));
}
