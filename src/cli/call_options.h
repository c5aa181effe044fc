/* call_options.h: the options that say what one attention call computes and how its tensors lie. */
#ifndef CLATTN_CALL_OPTIONS_H
#define CLATTN_CALL_OPTIONS_H

#include "options.h"

enum { TENSOR_Q, TENSOR_K, TENSOR_V, TENSOR_BIAS, TENSOR_O, TENSOR_LSE, TENSOR_COUNT };

extern const char *const tensor_names[TENSOR_COUNT];

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

/* The options as command-line text, without those that are at their default. */
void call_options_text(const call_options *options, char *out, size_t capacity);

/* Parses such a text as it stands in a case file; `source` names the file in messages (NULL: none).
 */
int call_options_from_text(call_options *options, common_options *common, const char *text,
                           const char *source);

#endif
