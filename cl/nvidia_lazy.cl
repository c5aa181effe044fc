// nvidia_lazy.cl: the lazy softmax of the kernels for NVIDIA's matrix units. Exact online softmax finds each row's
// maximum and rescales O at every step (Dao 2023, FlashAttention-2, section 3.1). Any reference near the maximum serves
// as well, because the result does not depend on it. So weights are taken against the row's old reference at once; only
// if their sum, in some work-item of the warp, passes this limit (or is NaN), the warp moves its references to the
// maxima, rescales, and takes the weights again. Weights then end far within what 16 bits hold.
#define LARGEST_SUM 8192.0f

// The reference of a row as an exponent of two, or NaN where it is no number that scores may be lowered by in one
// rounding: rows that have seen no key yet, and such large scores that the product's rounding would matter.
#define LARGEST_EXPONENT 16384.0f

inlined float exponent_of(float m)
{
    const float exponent = m * LOG2_E;
    return fabs(exponent) <= LARGEST_EXPONENT ? exponent : NAN;
}

// What a finished score is multiplied by to be an exponent of two, and to be natural: full ones are natural, those by
// formula are exponents, plain ones have not been scaled yet.
#define SCORE_TO_EXPONENT(a) (SCORE_FULL ? LOG2_E : SCORE_FORMULA ? 1.0f : fabs((a)->scale_log2))
#define SCORE_TO_NATURAL_UNIT(a) (SCORE_FULL ? 1.0f : SCORE_FORMULA ? LN_2 : fabs((a)->scale))

// A score as settle_score (score.cl) does it, natural.
inlined float settled(float s, const attention_args *a)
{
    const float natural = s * SCORE_TO_NATURAL_UNIT(a);
    return natural == -INFINITY ? SCORE_FORBIDDEN : natural < -1e30f ? -1e30f : natural;
}
