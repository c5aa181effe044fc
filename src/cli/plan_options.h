/* plan_options.h: what `source` and `bench` need to describe a plan or a shape in one option. */
#ifndef CLATTN_PLAN_OPTIONS_H
#define CLATTN_PLAN_OPTIONS_H

#include <stdint.h>

/* What CLATTN_FEATURE_* bits are called in options and reports. */
typedef struct plan_feature {
    uint32_t bit;
    uint32_t needs; /* other features, without which it has no meaning */
    const char *name;
    const char *help;
} plan_feature;

extern const plan_feature plan_features[];
extern const int num_plan_features;

/* "f16", or one per tensor: "f32,f16,f16" for q,k,v and "f32,f16,f16,f32" for q,k,v,o. */
int option_dtypes(const char *name, const char *value, int32_t dtype[4]);

/* "64", or apart for QK and V: "192,128" or "192:128". */
int option_head_dims(const char *name, const char *value, int32_t *head_dim_qk, int32_t *head_dim_v);

#endif
