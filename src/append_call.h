/* append_call.h: one append, checked. */
#ifndef CLATTN_APPEND_CALL_H
#define CLATTN_APPEND_CALL_H

#include "operation.h"

/* In the order of APPEND_BUFFERS (cl/append.cl). */
enum {
    CLATTN__APPEND_K_NEW,
    CLATTN__APPEND_V_NEW,
    CLATTN__APPEND_K,
    CLATTN__APPEND_V,
    CLATTN__APPEND_K_SCALE,
    CLATTN__APPEND_V_SCALE,
    CLATTN__APPEND_Q,
    CLATTN__APPEND_Q_OUT,
    CLATTN__APPEND_KV_LENS,
    CLATTN__APPEND_KV_LENS_OUT,
    CLATTN__APPEND_Q_LENS,
    CLATTN__APPEND_CU_SEQLENS_Q,
    CLATTN__APPEND_BLOCK_TABLE,
    CLATTN__APPEND_SLOT_MAPPING,
    CLATTN__APPEND_POSITIONS,
    CLATTN__APPEND_ROPE_COS,
    CLATTN__APPEND_ROPE_SIN,
    CLATTN__APPEND_STATUS_WORDS,
    CLATTN__APPEND_BUFFERS
};

/* Kernels of the program. */
enum { CLATTN__APPEND_ROWS, CLATTN__APPEND_LENGTHS };

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
