// score.cl: from the raw product q.k to the final score, for one value or a vector of them. A path sets
// SCORE_T and its integer twin SCORE_INT_T (true is 1 for scalars and -1 for vectors: select() hides it).
//
// The sentinels are finite, so that no difference of two of them is NaN:
//     SCORE_FLOOR      finite scores below -1e30 act as -1e30
//     SCORE_FORBIDDEN  a key that the row may not see; weighs nothing even against SCORE_FLOOR

#ifndef SCORE_T
#define SCORE_T float
#define SCORE_INT_T int
#endif

#ifndef SCORE_FULL // 1: softcap and bias can take part (run-time branches); 0: scale and mask alone
#define SCORE_FULL 0
#endif

#define LOG2_E 1.44269504088896340736f
#define LN_2 0.69314718055994530942f
#define SCORE_FORBIDDEN (-4e30f)

// The unit of scores. Plain ones are in log2 units: the change of unit hides in the scale of q. With softcap
// or bias they are natural, and their differences change unit: a second rounding of scores like a mask's
// -65504 would cost digits.
#if SCORE_FULL
#define SCORE_FLOOR (-1e30f)
#define SCORE_TO_LOG2 LOG2_E
#define SCORE_TO_NATURAL 1.0f
#else
#define SCORE_FLOOR (-1e30f * LOG2_E)
#define SCORE_TO_LOG2 1.0f
#define SCORE_TO_NATURAL LN_2
#endif

// Forbids keys: -inf becomes the sentinel, finite scores end at the floor, NaN stays.
static inline SCORE_T settle_score(SCORE_T score)
{
    const SCORE_T floored = score < (SCORE_T)(SCORE_FLOOR) ? (SCORE_T)(SCORE_FLOOR) : score;
    return score == (SCORE_T)(-INFINITY) ? (SCORE_T)(SCORE_FORBIDDEN) : floored;
}

#if SCORE_FULL
// score: scale * q.k. Returns the final score, keys forbidden by -inf settled. Softcap comes before the bias,
// so that -inf stays -inf.
static inline SCORE_T transform_score(SCORE_T score, SCORE_T bias, float softcap)
{
    if (softcap > 0.0f)
        score = softcap * tanh(score * (1.0f / softcap));
    return settle_score(score + bias);
}
#endif
