/* verify.h: a result against the reference, by the rule that the whole project uses:
 *
 *     max |result - reference| <= 2 * max |naive - reference| + floor
 *
 * with naive the textbook computation in the same precision (reference_naive). The floor keeps the
 * rule fair where naive happens to be exact (a single key) or lucky: for o, the largest |reference|
 * times 2^-18, 2^-10 or 2^-7 (o in f32, f16, bf16) plus 2^-22 for each unit of the largest score,
 * because a float32 score of size s is uncertain by about s * 2^-23, and so is its weight; for lse,
 * the largest |lse|, at least 1, times 2^-18. NaN and infinity must agree element by element. */
#ifndef CLATTN_VERIFY_H
#define CLATTN_VERIFY_H

#include "attention_case.h"
#include "case_dense.h"
#include "mod_evaluate.h"

typedef struct verdict {
    int passed;
    double error, allowed;         /* of o */
    double lse_error, lse_allowed; /* 0 without lse */
    double worst;                  /* the larger of error / allowed and its like for lse */
    char reason[256];              /* why it did not pass */
} verdict;

/* `o` and `lse` (or NULL) in the order of the case's shapes; `state` is what the call left in tensors that it
 * writes into, which is checked first (verify_cache.h), NULL if there are none. What score_mod and mask_mod
 * mean is told by `mods`, or (NULL) by the case. Returns an exit status: 0 also if the result did not pass.
 */
int verify_result(verdict *out, const attention_case *c, const case_state *state, const unsigned char *o,
                  const float *lse, mod_evaluator *mods);

#endif
