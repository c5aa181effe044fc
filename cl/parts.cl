// parts.cl: partial results of one row of one head, each over keys of its own, made one:
//     lse = ln(sum_p exp(lse_p)),   o = sum_p exp(lse_p - lse) o_p
// (Dao et al. 2023, "Flash-Decoding"). A part that saw no key has lse_p = -inf and weighs nothing, whatever its
// o holds; if no part saw any, o = 0 and lse = -inf. A NaN among the lse_p makes the row NaN.
//
// A part is (max, sum) for its ln(sum exp(s)) = max + ln(sum): an lse is a max with a sum of 1. Splits of decode
// calls keep both, as an lse of scores at the floor (-1e30) would lose how many of them there are.
//
// A work-group makes one row. Everything is summed in the order of the parts, so that parts without keys, and
// how many of them there are, change no bit. Weights are computed where they are used: parts are few, or rows
// are.

#define PARTS_ITEMS 64 // work-items of a work-group

#ifndef PART_TYPE // storage type of the parts' o
#define PART_TYPE TYPE_F32
#endif

typedef STORAGE(PART_TYPE) part_t;

typedef struct row_parts {
    const __global part_t *o; // of the first part
    const __global float *max;
    const __global float *sum; // 0: all sums are 1
    long o_step; // from part to part
    long step; // of max and sum
    int count;
    float to_log2; // max times this is in log2 units
    float sink; // in the unit of max; -inf: none
} row_parts;

typedef struct row_total {
    float max; // of the parts' and the sink
    float sum; // of exp(s - max)
} row_total;

// exp(max) * sum relative to the largest max. The condition keeps (-inf) - (-inf) out.
static inline float weight_of(float max, float sum, float largest, const row_parts *parts)
{
    return max == -INFINITY || sum == 0.0f ? 0.0f : sum * exp2((max - largest) * parts->to_log2);
}

static inline float part_weight(int p, float largest, const row_parts *parts)
{
    const float sum = parts->sum == 0 ? 1.0f : parts->sum[p * parts->step];
    return weight_of(parts->max[p * parts->step], sum, largest, parts);
}

static inline row_total total_of(const row_parts *parts)
{
    row_total total;
    total.max = parts->sink;
    for (int p = 0; p < parts->count; p++) // fmax passes over NaN: the weight shows it
        total.max = fmax(total.max, parts->max[p * parts->step]);
    total.sum = weight_of(parts->sink, 1.0f, total.max, parts);
    for (int p = 0; p < parts->count; p++)
        total.sum += part_weight(p, total.max, parts);
    return total;
}

// In the unit of max.
static inline float lse_of(const row_total *total, const row_parts *parts)
{
    return total->sum == 0.0f ? -INFINITY : total->max + log2(total->sum) / parts->to_log2;
}

// What is loaded beside a weight of 0 goes no further: parts without keys may hold anything.
static inline float4 merge_quad(const row_parts *parts, const row_total *total, int column)
{
    float4 sum = (float4)(0.0f);
    for (int p = 0; p < parts->count; p++) {
        const float weight = part_weight(p, total->max, parts);
        const float4 x = LOAD4(PART_TYPE)(parts->o + p * parts->o_step, column);
        sum += weight == 0.0f ? (float4)(0.0f) : weight * x;
    }
    return total->sum == 0.0f ? sum : sum * (1.0f / total->sum);
}

static inline float merge_one(const row_parts *parts, const row_total *total, int column)
{
    float sum = 0.0f;
    for (int p = 0; p < parts->count; p++) {
        const float weight = part_weight(p, total->max, parts);
        const float x = LOAD1(PART_TYPE)(parts->o + p * parts->o_step, column);
        sum += weight == 0.0f ? 0.0f : weight * x;
    }
    return total->sum == 0.0f ? sum : sum * (1.0f / total->sum);
}

// By all work-items of the group: the row of o, `columns` long. Neighbours take neighbouring quads. (All take the
// same number of steps: rows.cl says why.)
static inline void merge_row(__global o_t *o, int columns, int id, const row_parts *parts,
                             const row_total *total)
{
    const int quads = columns / 4, column = 4 * quads + id;
    for (int first = 0; first < quads; first += PARTS_ITEMS)
        if (first + id < quads)
            STORE4(O_TYPE)(o, 4 * (first + id), merge_quad(parts, total, 4 * (first + id)));
    if (column < columns)
        STORE1(O_TYPE)(o, column, merge_one(parts, total, column));
}
