/* numerics_data.h: the tensors of a call on the host, as they lie in the device's buffers. */
#ifndef CLATTN_NUMERICS_DATA_H
#define CLATTN_NUMERICS_DATA_H

#include "numerics_spec.h"
#include "reference.h"

enum { TENSOR_Q, TENSOR_K, TENSOR_V, TENSOR_O, TENSOR_LSE, TENSOR_BIAS, TENSORS };

typedef struct call_data {
    call_spec spec;
    tensor_view view[TENSORS];   /* buffer NULL: the tensor takes no part */
    byte_buffer buffer[TENSORS]; /* q, k and v interleaved: all in that of q */
} call_data;

/* Lays the tensors out and fills the inputs from the seed. Only what a call may read is filled:
 * rows of q that see some key, rows of k and v that some row of the call sees, bias where the key
 * is allowed by position. All else stays poison. The struct must not move afterwards. */
void data_create(call_data *out, const call_spec *spec);
void data_destroy(call_data *data);

/* The call as the reference sees it. */
reference_call data_reference(const call_data *data);

#endif
