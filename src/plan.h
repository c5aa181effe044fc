/* plan.h: what is fixed for a model, resolved: no zero stands for a default any more. */
#ifndef CLATTN_PLAN_H
#define CLATTN_PLAN_H

#include "program.h"

struct clattn_plan {
    clattn_context *context; /* retained */
    clattn_plan_desc desc;   /* defaults filled in; the texts are not kept */
    int has_score_mod, has_mask_mod;
    clattn__kernel_shape shape; /* likewise */
    clattn__program *program;   /* the context's */
    char description[1024];
};

#endif
