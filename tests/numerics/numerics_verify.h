/* numerics_verify.h: whether a call's outputs are right.
 *
 * The rule: max-abs error against float64 <= 2 * that of the naive computation in the same storage
 * types + a floor. "Naive" accumulates products in float32, and rounds P and o to the storage
 * types. It may also round S; here it does not, because no path of this version does: that makes
 * the rule stricter. lse is float32 on every path and held against the same computation.
 *
 * The floor is what a computation without any fault may be off, where the naive one is exact by
 * luck (one key, say). With u = 2^-24, and S the size of scores, max(1, max|lse|, scale * sqrt(dim)
 * * rms(q) * rms(k)):
 *
 *   o:   8 u * max|v|              the exponential and the sums in float32
 *        + 2 u * S * max|v|        scores are rounded once more in the scaled q, and in log2 units
 *        + 5 u * softcap * max|v|  OpenCL lets tanh be off by 5 units
 *        + unit(o) * max|o|        one rounding to the type of o
 *        + least(o)                its smallest step
 *   lse: 16 u * S                  likewise; 16-bit q and k give the naive one exact products, but
 *                                  not a kernel that scales q first
 *        + 5 u * softcap
 *
 * S also covers bias_head_scale * bias; S and softcap count as often as score_mod enlarges errors. lse in
 * base 2 has larger units. Rows with |lse| beyond 4096 are not counted, neither in S nor in the naive
 * computation's error; each adds its own, for itself only. Rows of o that are exactly 0 have to be 0.
 */
#ifndef CLATTN_NUMERICS_VERIFY_H
#define CLATTN_NUMERICS_VERIFY_H

#include "numerics_data.h"

enum { VERDICT_CHARS = 320 };

typedef struct verdict {
    char fault[VERDICT_CHARS];         /* empty: all is right */
    double worst_o, worst_lse;         /* error / tolerance; at most 1 if all is right */
    double tolerance_o, tolerance_lse; /* of plain rows: two right results differ by twice that at most */
} verdict;

/* Outputs against the reference, extremes (NaN, -inf, rows without keys) exactly; and that nothing
 * beside the outputs was written, nor rows beyond an entry's q length, nor beside the workspace. */
void verify_call(verdict *out, const call_data *data);

/* Whether two outputs of the same layout hold the same bits. */
int same_bits(const byte_buffer *a, const byte_buffer *b);

#endif
