/* serving_append.h: new keys, values and rotated queries of a serving call, appended before attention reads
 * them; and whether the cache then holds what it should. */
#ifndef CLATTN_SERVING_APPEND_H
#define CLATTN_SERVING_APPEND_H

#include "serving_data.h"

enum {
    APPEND_K_NEW,
    APPEND_V_NEW,
    APPEND_Q,    /* before rotation; with rope */
    APPEND_LENS, /* from here on: int32; keys before the call */
    APPEND_LENS_OUT,
    APPEND_SLOTS,
    APPEND_POSITIONS,
    APPEND_COS, /* float32 */
    APPEND_SIN,
    APPEND_TENSORS
};

typedef struct append_data {
    serving_data *serving;
    tensor_view view[APPEND_TENSORS];
    byte_buffer buffer[APPEND_TENSORS];
    byte_buffer before[STORED_TENSORS]; /* of the cache and its scales */
    int64_t rope_len;
} append_data;

/* New tokens of each sequence: as many as it has rows; its last keys. */
void append_create(append_data *out, serving_data *serving);
void append_destroy(append_data *data);

clattn_plan_desc append_plan_desc(const append_data *data);

/* With the downloaded cache and q: writes what is stored, as numbers, to the reference's rows. Returns NULL,
 * or what is wrong: a row that is not what was appended, or a change anywhere else. The text is static. */
const char *append_check(append_data *data);

#endif
