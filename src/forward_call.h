/* forward_call.h: one attention call, checked and cut into work. */
#ifndef CLATTN_FORWARD_CALL_H
#define CLATTN_FORWARD_CALL_H

#include "emit.h"
#include "operand.h"
#include "splits.h"
#include "tile_map.h"

typedef struct clattn__forward_call {
    const char *where; /* the function of the API, for messages */
    clattn_plan *plan;
    clattn__program *program;
    clattn_forward_args args;                  /* the caller's, completed */
    clattn__operand operands[CLATTN__BUFFERS]; /* numbered as CLATTN__BUFFER_*; they point into args */
    clattn__tile_map map;
    clattn__splits splits;
    uint64_t workspace_bytes; /* first the map, then from parts_begin on what the splits give */
    uint64_t parts_begin;
} clattn__forward_call;

/* Everything that can be wrong with a call, but its queue. The call must stay where it is. */
clattn_status clattn__check_forward(clattn__forward_call *call, clattn_plan *plan,
                                    const clattn_forward_args *given, const char *where);

/* With a workspace of the call's own where one is needed and the caller gave none: the commands keep it alive
 * until they have ended. */
clattn_status clattn__launch_forward(const clattn__forward_call *call, clattn__emitter *emitter);

/* Lengths alone. */
clattn_status clattn__check_bounds(const clattn_plan *plan, const char *where, const clattn_bounds *bounds);

/* Where in a workspace with a map of so many bytes the parts begin. */
uint64_t clattn__parts_begin(uint64_t map_bytes);

/* What the kernels are told; the first group and the number of groups are each launch's. */
void clattn__forward_args_of(attention_args *out, const clattn__forward_call *call);

#endif
