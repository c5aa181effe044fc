/* numerics_spec.h: one attention call in words: everything about it but the numbers in its tensors,
 * which follow from the seed. */
#ifndef CLATTN_NUMERICS_SPEC_H
#define CLATTN_NUMERICS_SPEC_H

#include "clattn.h"
#include "numerics_view.h"

/* Axes along which the bias varies; it is repeated (stride 0) along the others. */
enum {
    BIAS_BATCH = 1,
    BIAS_HEAD = 2,
    BIAS_ROW = 4,
    BIAS_KEY = 8,
    BIAS_TRANSPOSED = 16 /* rows, not keys, are neighbours in memory */
};

typedef enum bias_values {
    BIAS_NORMAL,
    BIAS_HOLES, /* some entries -inf */
    BIAS_LOWEST /* some rows filled with the type's most negative number, the others with holes */
} bias_values;

typedef struct call_spec {
    int32_t path; /* CLATTN_PATH_* */
    int32_t dtype_q, dtype_k, dtype_v, dtype_o, dtype_bias;
    int32_t heads_q, heads_kv, head_dim_qk, head_dim_v;
    int64_t batch, q_len, kv_len;
    uint32_t features; /* CLATTN_FEATURE_* */
    int32_t position_mode;
    int64_t q_offset, window_left, window_right;
    float scale, softcap;
    float q_amplitude; /* standard deviation of q; that of k and v is 1 */
    tensor_layout layout_in, layout_o, layout_lse;
    int bias_axes; /* BIAS_* */
    bias_values bias_values;
    uint64_t seed; /* of the numbers and of what the layouts leave open */
} call_spec;

/* A small plain call: f32, two heads of 64, one sequence of 65 queries and 97 keys, LSE. */
call_spec spec_plain(int32_t path);

/* q, k, v and o of one type. */
void spec_set_dtype(call_spec *spec, int32_t dtype);

clattn_plan_desc spec_plan_desc(const call_spec *spec);

/* The most negative finite number of a type. */
float lowest_of(int32_t dtype);

/* One line that names all that matters. */
void spec_describe(const call_spec *spec, char *text, size_t capacity);

#endif
