/* numerics_spec.h: one attention call in words: everything about it but the numbers in its tensors,
 * which follow from the seed. */
#ifndef CLATTN_NUMERICS_SPEC_H
#define CLATTN_NUMERICS_SPEC_H

#include "clattn.h"
#include "numerics_mods.h"
#include "numerics_view.h"

/* Axes along which bias or mask vary; they are repeated (stride 0) along the others. */
enum {
    BIAS_BATCH = 1,
    BIAS_HEAD = 2,
    BIAS_ROW = 4,
    BIAS_KEY = 8,
    BIAS_TRANSPOSED = 16, /* rows, not keys, are neighbours in memory */
    BIAS_GAPS = 32        /* rows lie apart */
};

typedef enum bias_values {
    BIAS_NORMAL,
    BIAS_HOLES, /* some entries -inf */
    BIAS_LOWEST /* some rows filled with the type's most negative number, the others with holes */
} bias_values;

/* What inputs hold where nobody may look: nothing of it is to be seen in a result. */
typedef enum unread_values {
    UNREAD_POISON, /* bytes of 0xff: NaN */
    UNREAD_ZERO,
    UNREAD_INFINITE,
    UNREAD_MINUS_INFINITE,
    UNREAD_VALUES
} unread_values;

typedef enum workspace_choice {
    WORKSPACE_NONE, /* the library makes its own */
    WORKSPACE_GIVEN /* of the size that it asks for, between guard zones */
} workspace_choice;

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
    int mask_axes;                /* likewise */
    int mask_percent;             /* of the mask that is true */
    int64_t mask_block;           /* rows and keys that are alike; 1: each for itself */
    int32_t tile_rows, tile_keys; /* with KEY_TILES */
    int tiles_percent;            /* of them that are listed */
    int64_t tiles_slack;          /* entries that lists may have beyond the number of tiles */
    int plain_sinks;              /* finite, and about as large as scores */
    int keys_cover_rows;          /* sequences have as many keys as rows at least */
    int one_long;                 /* one sequence has all keys, the others a few */
    int has_own_numbers;          /* no two entries or heads share a length, a slope, a sink and the like */
    score_mod score_mod;          /* SCORE_MOD_*; 0: none */
    mask_mod mask_mod;            /* likewise */
    float user_values[4];
    workspace_choice workspace;
    unread_values unread;
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

/* Whether a feature takes part. */
int spec_has(const call_spec *spec, uint32_t feature);

#endif
