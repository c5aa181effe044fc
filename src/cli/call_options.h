/* call_options.h: the options that say what one attention call computes and how its tensors lie. */
#ifndef CLATTN_CALL_OPTIONS_H
#define CLATTN_CALL_OPTIONS_H

#include "options.h"
#include "serving_options.h"

enum {
    TENSOR_Q,
    TENSOR_K,
    TENSOR_V,
    TENSOR_BIAS,
    TENSOR_MASK,
    TENSOR_BIAS_HEAD_SCALE,
    TENSOR_ALIBI_SLOPES,
    TENSOR_SINKS,
    TENSOR_Q_LENS,
    TENSOR_KV_LENS,
    TENSOR_OFFSETS,
    TENSOR_TILES_COUNT,
    TENSOR_TILES_INDEX,
    TENSOR_USER,
    TENSOR_CU_SEQLENS_Q,
    TENSOR_CU_SEQLENS_K,
    TENSOR_BLOCK_TABLE,
    TENSOR_K_SCALE,
    TENSOR_V_SCALE,
    TENSOR_K_NEW,
    TENSOR_V_NEW,
    TENSOR_ROPE_COS,
    TENSOR_ROPE_SIN,
    NUM_INPUTS,
    TENSOR_O = NUM_INPUTS,
    TENSOR_LSE,
    TENSOR_COUNT
};

extern const char *const tensor_names[TENSOR_COUNT];

/* How many strides each has of its own (clattn_tensor); the last axis of q, k, v and o is not counted, being
 * contiguous. */
extern const int tensor_num_strides[TENSOR_COUNT];

typedef struct call_options {
    int causal;
    int alignment_given;   /* --causal=..., which --offset contradicts */
    int32_t position_mode; /* CLATTN_POSITION_* */
    int64_t q_offset;
    int has_window;
    int64_t window_left, window_right;
    float scale;   /* 0: the default */
    float softcap; /* 0: none */
    int layout_bshd;
    int32_t out_dtype; /* 0: q's */
    int32_t path;
    int want_lse;
    int lse_base_given, lse_base_2;
    float alibi_max_bias;             /* 0: slopes come from the tensor, if at all */
    int64_t tile_rows, tile_keys;     /* 0: no key tiles */
    const char *score_mod, *mask_mod; /* borrowed; NULL: none */
    int num_user_values;              /* 0: not given */
    float user_values[4];
    serving_options serving;
    int verify;
    int num_strides[TENSOR_COUNT]; /* 0: contiguous */
    int64_t strides[TENSOR_COUNT][4];
    int64_t offset_bytes[TENSOR_COUNT];
} call_options;

extern const option_row call_rows[];
extern const option_row call_rows_not_offered[];

/* Takes one option of call_rows. Returns an exit status; -1 if it is not one of them. */
int call_options_apply(call_options *options, int id, const char *name, const char *value);

/* What no single option can see. Returns an exit status. */
int call_options_check(const call_options *options);

/* The options that are not at their default, each one word of a command line, as a JSON array of texts; to be
 * freed by cJSON_free, NULL without memory. A `local_bytes` other than 0 becomes a word too. */
char *call_options_to_json(const call_options *options, uint64_t local_bytes);

/* Parses such an array as it stands in a case file; `source` names the file in messages. The options then
 * point into *owner, which is to be given to call_options_free_owner after their last use, whatever is
 * returned. */
int call_options_from_json(call_options *options, common_options *common, const char *json,
                           const char *source, void **owner);
void call_options_free_owner(void *owner);

/* Parses words as main would get them; they must outlive the options. */
int call_options_from_words(call_options *options, common_options *common, const char *const *words,
                            int count);

#endif
