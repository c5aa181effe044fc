// lazy.cl: what kernels with a lazy softmax share. Exact online softmax (Milakov and Gimelshein 2018; Dao 2023,
// FlashAttention-2, section 3.1) finds each row's maximum and rescales O at every step. Any reference m near the
// maximum serves as well, because the result does not depend on it; so exp(score - m) is taken at once, and only if
// some score outgrows its row's reference does the work-group take the exact step.

// The built-in needs no more than a few ulp here: its relative error goes straight to a weight that is positive
// and at most 2^16. NVIDIA documents 2 ulp, AMD 1, Intel 4.
#ifndef EXP2
#define EXP2 native_exp2
#endif
#define WEIGHT(difference) EXP2((difference) * SCORE_TO_LOG2)

// A score may exceed its row's reference by this before the reference moves: weights reach 2^16. Any exponent
// far from float's 127 and above the usual drift does.
#define LAZY_LIMIT (16.0f / SCORE_TO_LOG2)
