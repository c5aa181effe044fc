/* serving_data.h: the tensors of a serving call as they lie in the device's buffers: q packed or padded, keys
 * packed, padded or in pages, in the types of a cache; beside the call that the reference sees. */
#ifndef CLATTN_SERVING_DATA_H
#define CLATTN_SERVING_DATA_H

#include "numerics_data.h"
#include "numerics_serving.h"

enum {
    STORED_Q,
    STORED_K,
    STORED_V,
    STORED_O,
    STORED_LSE,
    STORED_K_SCALE,
    STORED_V_SCALE,
    STORED_CU_Q, /* from here on: int32 */
    STORED_CU_K,
    STORED_TABLE,
    STORED_STATUS,
    STORED_TENSORS
};

typedef struct serving_data {
    serving_spec spec;
    call_data call;                   /* padded and dequantised; its o and lse are filled after a run */
    tensor_view view[STORED_TENSORS]; /* buffer NULL: the tensor takes no part */
    byte_buffer buffer[STORED_TENSORS];
    int64_t *first_q, *first_k; /* [batch + 1], of packed sequences; owned */
    int32_t *pages;             /* [batch][max_blocks]: what the table says where it is read; owned */
    int64_t total_q, total_k, num_pages, max_blocks;
} serving_data;

/* Lays the tensors out and fills them from the seed. What no row may see is poison: unseen keys, pages that
 * no sequence has, rows beyond lengths; unused entries of the table name no page. Keys of shared pages are
 * the same for all sequences that have them. The struct must not move afterwards. */
void serving_create(serving_data *out, const serving_spec *spec);
void serving_destroy(serving_data *data);

/* The same with sequences of another call: sequence b is entries[b] of `from`, with all its numbers and the
 * very bytes of its keys; lengths are as valid there. Both calls have the features of the reference's call in
 * common (lengths apart), the types, and numbers of their own for each entry; scales are those of tokens. */
void serving_create_from(serving_data *out, const serving_spec *spec, const serving_data *from,
                         const int64_t *entries);

/* Valid rows and keys of a sequence, whatever the device is told beyond them. */
reference_sequence serving_sequence(const serving_data *data, int64_t b);

/* Keys of a sequence that are in the cache before the call: all, or all but those that it appends. */
int64_t serving_settled_keys(const serving_data *data, int64_t b);

/* What status_words.bad_length is to become: 1 + the highest entry whose numbers lie outside their bounds. */
int32_t serving_bad_length(const serving_data *data);

/* Where a query's row, or a key's, lies: the first and the third index of the stored views. */
typedef struct stored_row {
    int64_t b, i;
} stored_row;

stored_row serving_query_row(const serving_data *data, int64_t b, int64_t i);
stored_row serving_key_row(const serving_data *data, int64_t b, int64_t j);

/* Stores a key's rows of one head from the reference's, then rounds those to what is stored. */
void serving_store_key(serving_data *data, int64_t b, int64_t h, int64_t j);

/* Sets the reference's rows of a key to what is stored. */
void serving_load_key(serving_data *data, int64_t b, int64_t h, int64_t j);

/* Whether the reference's row of this key is filled: some row of q may see it. */
int serving_key_is_filled(const serving_data *data, int64_t b, int64_t h, int64_t j);

/* From the stored outputs to the call's. Returns NULL, or what was written that had to be left alone. */
const char *serving_unpack_outputs(serving_data *data);

#endif
