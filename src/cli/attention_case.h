/* attention_case.h: one attention call on the host: its options, its lengths, and where its tensors
 * come from and how they lie. From a file, from a command's own arrays, and back into a file. */
#ifndef CLATTN_ATTENTION_CASE_H
#define CLATTN_ATTENTION_CASE_H

#include "call_options.h"
#include "clattn.h"
#include "reference.h"
#include "safetensors.h"

typedef struct case_tensor {
    int present;
    int32_t dtype;
    int64_t dim[4];          /* batch, head, token, last; lse: last is 1 */
    const void *values;      /* inputs: borrowed, any alignment */
    int64_t value_stride[4]; /* of `values`, in elements */
    int64_t stride[4];       /* in the device buffer, in elements */
    uint64_t offset;         /* in the device buffer, in bytes */
    uint64_t bytes;          /* of the device buffer up to the last element */
    int64_t shape[4];        /* as in a file */
    int rank;
} case_tensor;

typedef struct attention_case {
    call_options options;
    int64_t batch, heads_q, heads_kv, q_len, kv_len, head_dim_qk, head_dim_v;
    case_tensor tensor[TENSOR_COUNT];
    uint64_t guard_bytes; /* further bytes at the end of every buffer, which nobody may touch */
} attention_case;

/* Reads the tensors' shapes and types; `name` is the file's, for messages. The file must stay open.
 */
int case_from_file(attention_case *out, const safetensors_file *file, const char *name,
                   const call_options *options);

/* Inputs of a case that a command makes itself: in the layout of the options, contiguous.
 * bias_values may be NULL; bias_dim then does not matter, otherwise each entry is full or 1. */
typedef struct case_inputs {
    int64_t batch, heads_q, heads_kv, q_len, kv_len, head_dim_qk, head_dim_v;
    int32_t dtype_q, dtype_k, dtype_v, dtype_bias;
    const void *q, *k, *v, *bias;
    int64_t bias_dim[4];
} case_inputs;

int case_from_inputs(attention_case *out, const case_inputs *inputs, const call_options *options);

/* What a plan for the case says. */
clattn_plan_desc case_plan_desc(const attention_case *c);

/* The case as the reference sees it. */
reference_call case_reference(const attention_case *c);

/* Writes inputs and options, such that `clattn run FILE` repeats the case. */
int case_save(const attention_case *c, const char *path, uint64_t local_bytes);

/* Options that a file written by case_save holds; NULL if it was not. */
const char *case_saved_options(const safetensors_file *file);

/* Elements of a tensor. */
int64_t case_elements(const case_tensor *t);

/* Lays the values out as the device buffer has them (offset, strides, guard), everything else
 * filled with 0xff bytes, which are NaNs in every type. To be freed; NULL after a message. */
unsigned char *case_layout_input(const attention_case *c, int tensor);

/* Whether the device buffer is just the values, so that no copy is needed. */
int case_is_plain(const attention_case *c, int tensor);

#endif
