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

/* A function of the caller's over one score; the arguments are those of clattn_plan_desc's texts. */
typedef struct reference_mod {
    double (*score)(void *user, double score, int64_t batch, int64_t head_q, int64_t head_kv, int64_t query,
                    int64_t position, int64_t key);
    int (*mask)(void *user, int64_t batch, int64_t head_q, int64_t head_kv, int64_t query, int64_t position,
                int64_t key);
    void *user;
} reference_mod;

/* Block-sparse lists, as clattn_forward_args has them. Strides: batch, head, query tile, entry. */
typedef struct reference_tiles {
    const int32_t *count, *index; /* count NULL: absent */
    int64_t count_stride[3], index_stride[4];
    int64_t capacity, rows, keys;
} reference_tiles;

/* One call, with the meaning that clattn.h gives each word. Optional parts take part when they are
 * set: data pointers, causal, has_window, softcap > 0. */
typedef struct reference_call {
    reference_tensor q, k, v;
    int32_t weight_dtype;  /* what the yardstick rounds probabilities to; 0: v's type */
    reference_tensor bias; /* [batch, heads_q, q_len, kv_len] by its strides */
    reference_tensor mask; /* likewise; bytes, whatever its dtype says */
    reference_tensor bias_head_scale, alibi_slopes, sinks; /* [batch, heads_q] by two strides; f32 */
    const int32_t *q_lens, *kv_lens, *q_offsets;           /* [batch]; NULL: absent */
    reference_tiles tiles;
    reference_mod mod;
    int64_t batch, heads_q, heads_kv, q_len, kv_len;
    int64_t head_dim_qk, head_dim_v;
    int causal;
    int32_t position_mode; /* CLATTN_POSITION_* */
    int64_t q_offset;      /* with CLATTN_POSITION_EXPLICIT, unless q_offsets is set */
    int has_window;
    int64_t window_left, window_right; /* -1: unbounded */
    double scale;                      /* 0: 1 / sqrt(head_dim_qk) */
    double softcap;
    int lse_base_2;
} reference_call;

/* One batch entry's lengths, and the position of its row 0. */
typedef struct reference_sequence {
    int64_t q_len, kv_len, offset;
} reference_sequence;

reference_sequence reference_sequence_of(const reference_call *call, int64_t b);

/* The keys that row i of entry b may see by position (lengths, causal bound, window): *begin <= j < *end,
 * within 0 .. kv_len. *end <= *begin: none. */
void reference_keys_of_row(const reference_call *call, int64_t b, int64_t i, int64_t *begin, int64_t *end);

/* Whether row i of head h may see key j at all: position, mask, key tiles and mask_mod; also a bias of
 * -inf, unless score_mod is there to change it. What is false here is in no result. */
int reference_is_allowed(const reference_call *call, int64_t b, int64_t h, int64_t i, int64_t j);

/* From the scaled and capped product to the final score, -inf for a forbidden key. Key j is one of
 * reference_keys_of_row. */
double reference_final_score(const reference_call *call, double score, int64_t b, int64_t h, int64_t i,
                             int64_t j);

/* The sink of a head, -inf if there is none. */
double reference_sink(const reference_call *call, int64_t b, int64_t h);

/* Writes o: [batch, heads_q, q_len, head_dim_v] and lse: [batch, heads_q, q_len], both contiguous;
 * either may be NULL. Rows beyond an entry's q length are left as they are. Extremes as in clattn.h: a score
 * of -inf forbids its key; finite scores act as -1e30 at least; +inf or NaN in an allowed score makes its row
 * NaN; a row without keys is 0 with lse -inf, or its sink. A forbidden key's V is never looked at. Returns 0,
 * or -1 when host memory runs out. */
int reference_forward(const reference_call *call, double *o, double *lse);

/* The yardstick of precision: the textbook computation in three steps, products accumulated in
 * float32, the scores rounded to q's storage type, the probabilities to v's (or weight_dtype), o to dtype_o.
 * Scores so large that rounding them would change weights by more than 6% (beyond 128 in f16, 16 in bf16) are
 * kept as they are: a yardstick without a scale would let everything pass. Written to float arrays of the
 * shapes above; either may be NULL. Returns 0 or -1. */
int reference_naive(const reference_call *call, int32_t dtype_o, float *o, float *lse);

/* Element (b, h, i, c) of a tensor. */
float reference_load(const reference_tensor *tensor, int64_t b, int64_t h, int64_t i, int64_t c);

#endif
