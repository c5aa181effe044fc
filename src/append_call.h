/* append_call.h: one append, checked. */
#ifndef CLATTN_APPEND_CALL_H
#define CLATTN_APPEND_CALL_H

#include "operation.h"

typedef struct clattn__append_call {
    clattn_plan *plan;
    clattn_append_args args;                          /* the caller's, completed */
    clattn__operand operands[CLATTN__APPEND_BUFFERS]; /* they point into args */
    int64_t groups;
} clattn__append_call;

/* Everything that can be wrong with a call, but its queue. The call must stay where it is. */
clattn_status clattn__check_append(clattn__append_call *call, clattn_plan *plan,
                                   const clattn_append_args *given, const char *where);

clattn_status clattn__launch_append(const clattn__append_call *call, clattn__emitter *emitter,
                                    const char *where);

#endif
