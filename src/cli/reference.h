/* reference.h: attention in double precision, written for clarity: what every kernel is held
 * against.
 *
 * Knows nothing of OpenCL or of the command; the tests use it too (with tensor_convert.c, and
 * libm).
 */
#ifndef CLATTN_REFERENCE_H
#define CLATTN_REFERENCE_H

#include <stdint.h>

/* A tensor in host memory. Strides are in elements: batch, head, token, last. Stride 0 repeats. */
typedef struct reference_tensor {
    const void *data; /* of element (0, 0, 0, 0); NULL: absent */
    int32_t dtype;    /* CLATTN_DTYPE_* */
    int64_t stride[4];
} reference_tensor;

/* One call, with the meaning that clattn.h gives each word. Optional parts take part when they are
 * set: bias.data, causal, has_window, softcap > 0. */
typedef struct reference_call {
    reference_tensor q, k, v;
    reference_tensor bias; /* [batch, heads_q, q_len, kv_len] by its strides */
    int64_t batch, heads_q, heads_kv, q_len, kv_len;
    int64_t head_dim_qk, head_dim_v;
    int causal;
    int32_t position_mode; /* CLATTN_POSITION_* */
    int64_t q_offset;      /* with CLATTN_POSITION_EXPLICIT */
    int has_window;
    int64_t window_left, window_right; /* -1: unbounded */
    double scale;                      /* 0: 1 / sqrt(head_dim_qk) */
    double softcap;
} reference_call;

/* The keys that row i may see by position (causal bound and window): *begin <= j < *end, within
 * 0 .. kv_len. *end <= *begin: none. */
void reference_keys_of_row(const reference_call *call, int64_t i, int64_t *begin, int64_t *end);

/* Writes o: [batch, heads_q, q_len, head_dim_v] and lse: [batch, heads_q, q_len], both contiguous;
 * either may be NULL. Extremes as in clattn.h: a score of -inf forbids its key; finite scores act
 * as -1e30 at least; +inf or NaN in an allowed score makes its row NaN; a row without keys is 0
 * with lse -inf. A forbidden key's V is never looked at. Returns 0, or -1 when host memory runs
 * out. */
int reference_forward(const reference_call *call, double *o, double *lse);

/* The yardstick of precision: the textbook computation in three steps, products accumulated in
 * float32, the scores rounded to q's storage type, the probabilities to v's, o to dtype_o. Scores
 * so large that rounding them would change weights by more than 6% (beyond 128 in f16, 16 in bf16)
 * are kept as they are: a yardstick without a scale would let everything pass. Written to float
 * arrays of the shapes above; either may be NULL. Returns 0 or -1. */
int reference_naive(const reference_call *call, int32_t dtype_o, float *o, float *lse);

/* Element (b, h, i, c) of a tensor. */
float reference_load(const reference_tensor *tensor, int64_t b, int64_t h, int64_t i, int64_t c);

#endif
