/* serving_options.h: options of decode, of caches and of appending to them. */
#ifndef CLATTN_SERVING_OPTIONS_H
#define CLATTN_SERVING_OPTIONS_H

#include "cli.h"
#include "options.h"

#include <cjson/cJSON.h>

#define PHASE_GIVEN(phase) (1 + (phase))

typedef struct serving_options {
    int32_t phase; /* PHASE_GIVEN(CLATTN_PHASE_*); 0: not given */
    int64_t splits;
    int batch_invariant;
    int32_t kv_dtype[2]; /* what k and v are to be stored as; 0: as they are given */
    int emit_cache;
    int64_t v_in_k;     /* v is the first columns of k, so many; 0: v is a tensor */
    int32_t rope;       /* CLATTN_ROPE_* */
    float rope_base;    /* 0: 10000 */
    float rope_scale;   /* 0: 1 */
    int64_t rotary_dim; /* 0: the head dim */
} serving_options;

extern const option_row serving_rows[];

/* As call_options_apply. */
int serving_option_apply(serving_options *options, int id, const char *name, const char *value);
int serving_options_check(const serving_options *options);
void serving_options_to_words(cJSON *words, const serving_options *options);

/* Which kernels a call with these options and this many rows is to have: CLATTN_PHASE_*. */
int32_t serving_phase(const serving_options *options, int64_t q_len);

/* Values of options, for `clattn source` too. */
int option_phase(const char *name, const char *value, int32_t *out);
int option_kv_dtypes(const char *name, const char *value, int32_t dtype[2]);
int option_rope(const char *name, const char *value, int32_t *out);

#endif
