/* numerics_data.h: the tensors of a call on the host, as they lie in the device's buffers. */
#ifndef CLATTN_NUMERICS_DATA_H
#define CLATTN_NUMERICS_DATA_H

#include "numerics_spec.h"
#include "reference.h"

enum {
    TENSOR_Q,
    TENSOR_K,
    TENSOR_V,
    TENSOR_O,
    TENSOR_LSE,
    TENSOR_BIAS,
    TENSOR_MASK,
    TENSOR_HEAD_SCALE, /* from here to the sinks: [batch, heads_q] */
    TENSOR_SLOPES,
    TENSOR_SINKS,
    TENSOR_Q_LENS, /* from here to the offsets: [batch] */
    TENSOR_KV_LENS,
    TENSOR_Q_OFFSETS,
    TENSOR_TILES_COUNT,
    TENSOR_TILES_INDEX,
    TENSOR_USER, /* words, as numerics_mods.h lays them out */
    TENSORS
};

typedef struct call_data {
    call_spec spec;
    tensor_view view[TENSORS];   /* buffer NULL: the tensor takes no part */
    byte_buffer buffer[TENSORS]; /* q, k and v interleaved: all in that of q */
    mods_state mods;
    int32_t *packed;       /* [3][batch]: q_lens, kv_lens, q_offsets as the reference wants them; owned */
    int workspace_overrun; /* the last run wrote beside the workspace it was given */
} call_data;

/* Lays the tensors out and fills the inputs from the seed (numerics_fill.h). The struct must not move
 * afterwards. */
void data_create(call_data *out, const call_spec *spec);
void data_destroy(call_data *data);

/* Length of the last axis of the tile lists. */
int64_t data_tiles_capacity(const call_spec *spec);

/* The call as the reference sees it; valid until `data` changes. */
reference_call data_reference(const call_data *data);

#endif
