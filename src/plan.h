/* plan.h: what is fixed for a model, resolved: no zero stands for a default any more. */
#ifndef CLATTN_PLAN_H
#define CLATTN_PLAN_H

#include "program.h"

struct clattn_plan {
    clattn_context *context; /* retained */
    clattn_plan_desc desc;   /* defaults filled in; the texts are not kept */
    int has_score_mod, has_mask_mod;
    clattn__kernel_shape shape;                 /* likewise */
    clattn__program *program[CLATTN__PROGRAMS]; /* the context's; NULL: not needed, or not there */
    int is_tuned[CLATTN__PROGRAMS];             /* its tile is one that a tuning text chose */
    char description[1536];
};

/* Reads a description and finds the path that its plan would have. */
clattn_status clattn__plan_path(const clattn__path **path, clattn_plan_desc *desc,
                                clattn__kernel_shape *shape, const clattn_context *context,
                                const clattn_plan_desc *given, const char *where);

/* Whether a plan has that program, if its path does. */
int clattn__plan_wants(const clattn_plan_desc *desc, int program);

/* The program of a forward call whose longest q has q_len rows. */
clattn__program *clattn__program_of_call(const clattn_plan *plan, int64_t q_len);

#endif
