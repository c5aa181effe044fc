/* numerics_serving.h: an attention call as serving makes it, in words: a call of numerics_spec.h and how its
 * sequences are stored. */
#ifndef CLATTN_NUMERICS_SERVING_H
#define CLATTN_NUMERICS_SERVING_H

#include "numerics_spec.h"

typedef enum key_storage {
    KEYS_PADDED, /* [batch, heads, kv_len, dim] */
    KEYS_PACKED, /* sequence after sequence */
    KEYS_PAGED
} key_storage;

/* What has a scale of its own; the strides say so to the library. */
typedef enum scale_granularity {
    SCALE_NONE, /* the feature takes no part */
    SCALE_OF_TENSOR,
    SCALE_OF_HEAD,
    SCALE_OF_BATCH, /* of the axis batch: a sequence, or a page */
    SCALE_OF_TOKEN, /* and head */
    SCALE_GRANULARITIES
} scale_granularity;

/* New tokens that an append call writes before attention reads them. */
typedef struct append_spec {
    int takes_part;
    int32_t rope, rotary_dim; /* as in clattn_plan_desc */
    int has_tables, has_slots, has_positions;
    float rope_base, rope_scale;
} append_spec;

typedef struct serving_spec {
    call_spec call;           /* as the reference sees it: padded, k and v dequantised */
    int32_t dtype_k, dtype_v; /* as stored */
    int32_t phase, splits;
    int is_invariant; /* CLATTN_FEATURE_BATCH_INVARIANT */
    int has_status;
    int packed_q;
    int gives_q_lens, gives_kv_lens; /* where the storage alone would say it: besides that */
    key_storage keys;
    int32_t page_size;
    int shared_percent; /* of sequences that begin with another one's pages */
    int64_t slack;      /* pages, rows and table entries beyond those needed, at the most */
    int one_pool;       /* k and v of a page side by side, where their types are the same */
    int v_in_k;
    scale_granularity scale_k, scale_v;
    tensor_layout layout_q, layout_k, layout_v; /* that of o and lse: call.layout_o, layout_lse */
    append_spec append;
} serving_spec;

clattn_plan_desc serving_plan_desc(const serving_spec *spec);

void serving_describe(const serving_spec *spec, char *text, size_t capacity);

#endif
