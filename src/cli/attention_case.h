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
    int32_t dtype;           /* CLATTN_DTYPE_*; 0: bytes or integers */
    const char *file_dtype;  /* as a file spells it: "F32", "BOOL", "I32" */
    size_t element;          /* bytes of one, or of a block; `user` is a single element */
    int64_t dim[4];          /* in the order of clattn_tensor's axes; axes that it has not are 1 */
    const void *values;      /* inputs: borrowed, any alignment, unless owned */
    size_t value_bytes;      /* of them */
    void *owned;             /* values that the case keeps itself: integers (aligned), computed slopes */
    int64_t value_stride[4]; /* of `values`, in elements; 0 repeats */
    int64_t stride[4];       /* in the device buffer, in elements */
    uint64_t offset;         /* in the device buffer, in bytes */
    uint64_t bytes;          /* of the device buffer up to the last element */
    int64_t shape[SAFETENSORS_MAX_RANK]; /* as in a file */
    int rank;
} case_tensor;

typedef struct attention_case {
    call_options options;
    int64_t batch, heads_q, heads_kv, q_len, kv_len, head_dim_qk, head_dim_v;
    int64_t total_q, total_k;                 /* rows of packed tensors; otherwise 0 */
    int64_t page_size, num_pages, max_blocks; /* of caches in pages; otherwise 0 */
    case_tensor tensor[TENSOR_COUNT];
    case_tensor given[2]; /* k and v as floats, where --kv-dtype makes caches of them; then the values of
                             tensor[TENSOR_K] or [TENSOR_V], and the scales that go with them, are NULL */
    int32_t *rows, *keys; /* valid lengths of each entry, where tensors give them; else NULL */
    int checks_numbers;   /* the device notes lengths, rows and pages that it finds wrong */
    uint64_t guard_bytes; /* further bytes at the end of every buffer, which nobody may touch */
    reference_mod mod;    /* what score_mod and mask_mod mean, in C, for the reference; zero: not known */
} attention_case;

/* Checks and takes a file's tensors; `name` is the file's, for messages. The file must stay open. To be
 * released on success. */
int case_from_file(attention_case *out, const safetensors_file *file, const char *name,
                   const call_options *options);

/* Inputs of a case that a command makes itself: q, k and v in the layout of the options, contiguous, k and v
 * of any type; the others as a file would hold them. */
typedef struct case_inputs {
    int64_t batch, heads_q, heads_kv, q_len, kv_len, head_dim_qk, head_dim_v;
    int32_t dtype_q, dtype_k, dtype_v;
    const void *q, *k, *v;
    safetensors_tensor *extra;
    size_t num_extra;
} case_inputs;

int case_from_inputs(attention_case *out, const case_inputs *inputs, const call_options *options);

void case_release(attention_case *c);

/* What a plan for the case says. */
clattn_plan_desc case_plan_desc(const attention_case *c);

/* The case as the reference sees it: lengths, positions and masks always; q, k and v only if they lie in
 * padded tensors of floats. case_dense.h has them otherwise. */
reference_call case_reference(const attention_case *c);

/* Writes inputs and options, such that `clattn run FILE` repeats the case. */
int case_save(const attention_case *c, const char *path, uint64_t local_bytes);

/* Options that a file written by case_save holds, for call_options_from_json; NULL if it was not. */
const char *case_saved_options(const safetensors_file *file);

#endif
