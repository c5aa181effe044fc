// score.cl: from the raw product q.k to the final score, for one value or a vector of them. A path sets
// SCORE_T and its integer twin SCORE_INT_T (true is 1 for scalars and -1 for vectors: ?: hides it).
//
// The order is softcap, bias, ALiBi, score_mod, masks: so -inf stays -inf. The sentinels are finite, so that
// no difference of two of them is NaN:
//     SCORE_FLOOR      finite scores below -1e30 act as -1e30
//     SCORE_FORBIDDEN  a key that the row may not see; weighs nothing even against SCORE_FLOOR

#ifndef SCORE_T
#define SCORE_T float
#define SCORE_INT_T int
#endif

#ifndef SCORE_FULL // 1: what changes single scores can take part (run-time branches); 0: scale and band alone
#define SCORE_FULL 0
#endif

#define LOG2_E 1.44269504088896340736f
#define LN_2 0.69314718055994530942f
#define SCORE_FORBIDDEN (-4e30f)

// The unit of scores. Plain ones are in log2 units: the change of unit hides in the scale of q. Full ones are
// natural, and their differences change unit: a second rounding of scores like a mask's -65504 would cost
// digits.
#if SCORE_FULL
#define SCORE_FLOOR (-1e30f)
#define SCORE_TO_LOG2 LOG2_E
#define SCORE_TO_NATURAL 1.0f
#define NATURAL_TO_SCORE 1.0f
#else
#define SCORE_FLOOR (-1e30f * LOG2_E)
#define SCORE_TO_LOG2 1.0f
#define SCORE_TO_NATURAL LN_2
#define NATURAL_TO_SCORE LOG2_E
#endif

// Forbids keys: -inf becomes the sentinel, finite scores end at the floor, NaN stays.
static inline SCORE_T settle_score(SCORE_T score)
{
    const SCORE_T floored = score < (SCORE_T)(SCORE_FLOOR) ? (SCORE_T)(SCORE_FLOOR) : score;
    return score == (SCORE_T)(-INFINITY) ? (SCORE_T)(SCORE_FORBIDDEN) : floored;
}

static inline SCORE_T cap_score(SCORE_T score, float softcap)
{
    return softcap * tanh(score * (1.0f / softcap));
}

// A bias of -inf makes the score -inf even where the product is NaN: such a key is masked.
static inline SCORE_T add_bias(SCORE_T score, SCORE_T bias, float head_scale)
{
    return bias == (SCORE_T)(-INFINITY) ? (SCORE_T)(-INFINITY) : score + bias * head_scale;
}

// distance: the row's position minus the key.
static inline SCORE_T add_alibi(SCORE_T score, SCORE_T distance, float slope)
{
    return score - slope * (distance < (SCORE_T)(0.0f) ? -distance : distance);
}

// ---- The caller's functions -----------------------------------------------------------------------------

// The host puts the caller's texts before all files as score_mod_text and mask_mod_text (src/mods.c).
#ifndef HAS_SCORE_MOD
#define HAS_SCORE_MOD 0
#endif
#ifndef HAS_MASK_MOD
#define HAS_MASK_MOD 0
#endif

// What they are told beside the score's own place.
typedef struct mod_place {
    int batch;
    int head_q;
    int head_kv;
    int offset;
    const __global uchar *user;
    float4 values;
} mod_place;

static inline mod_place make_mod_place(int batch, int head, int offset, const __global uchar *user,
                                       const attention_args *a)
{
    mod_place place;
    place.batch = batch;
    place.head_q = head;
    place.head_kv = head / a->heads_per_kv;
    place.offset = offset;
    place.user = user == 0 ? user : user + a->user;
    place.values = (float4)(a->user_values[0], a->user_values[1], a->user_values[2], a->user_values[3]);
    return place;
}

static inline float apply_score_mod(float score, const mod_place *at, int row, int key)
{
#if HAS_SCORE_MOD
    return score_mod_text(score, at->batch, at->head_q, at->head_kv, row, row + at->offset, key, at->user,
                          at->values);
#else
    return score;
#endif
}

static inline int apply_mask_mod(const mod_place *at, int row, int key)
{
#if HAS_MASK_MOD
    return mask_mod_text(at->batch, at->head_q, at->head_kv, row, row + at->offset, key, at->user,
                         at->values);
#else
    return 1;
#endif
}

// ---- Sinks ----------------------------------------------------------------------------------------------

// A sink is a score without a key: a row begins as if it had seen that score alone, and without a value.
typedef struct row_start {
    float max; // of the scores so far, in their unit
    float sum; // of exp(score - max)
} row_start;

static inline row_start start_of_rows(int batch, int head, const __global float *sinks,
                                      const attention_args *a)
{
    const row_start none = {SCORE_FLOOR, 0.0f};
    if (!has(a, FEATURE_SINKS))
        return none;
    const float sink = sinks[number_at(&a->sinks, batch, head)];
    if (sink == -INFINITY)
        return none;
    row_start start;
    start.max = sink < -1e30f ? SCORE_FLOOR : sink * NATURAL_TO_SCORE;
    start.sum = 1.0f + (start.max - start.max); // NaN for inf and NaN
    return start;
}
