/* case_dense.h: a case whose tensors are packed, in pages, of cache types, or rotated and appended to by the
 * call, as the reference reads it: padded, in floats. */
#ifndef CLATTN_CASE_DENSE_H
#define CLATTN_CASE_DENSE_H

#include "attention_case.h"

enum { STATE_Q, STATE_K, STATE_V, STATE_K_SCALE, STATE_V_SCALE, STATE_COUNT };

extern const int state_tensors[STATE_COUNT]; /* TENSOR_* of each */

/* What the call left in tensors that it may change: as in a file, whatever strides the device has. NULL: what
 * the case gives. */
typedef struct case_state {
    unsigned char *values[STATE_COUNT];
} case_state;

void case_state_release(case_state *state);

const unsigned char *case_state_values(const attention_case *c, const case_state *state, int which);

typedef struct case_dense {
    reference_call call;
    void *owned[3];
} case_dense;

/* `state` may be NULL. Returns an exit status; to be closed on success. */
int case_dense_open(case_dense *out, const attention_case *c, const case_state *state);
void case_dense_close(case_dense *dense);

/* One row of k or v in floats: `values` are those of the tensor, `scales` of its scale (NULL: none). */
void case_load_row(const attention_case *c, int tensor, const unsigned char *values, const float *scales,
                   int64_t batch, int64_t head, int64_t token, float *out);

#endif
