/* emit.h: the one place that produces commands. An emitter chains them: the first waits for the caller's
 * events, each later one for the one before, so that out-of-order queues keep the order. */
#ifndef CLATTN_EMIT_H
#define CLATTN_EMIT_H

#include "context.h"
#include "kernel_args.h"

typedef struct clattn__emitter {
    const clattn__cl *cl;
    cl_command_queue queue;
    cl_uint num_wait;
    const cl_event *wait;
    cl_event last; /* of the newest command, owned; NULL before the first */
} clattn__emitter;

/* The buffers of every kernel, in the order of ATTENTION_BUFFERS (cl/address.cl). */
enum {
    CLATTN__BUFFER_Q,
    CLATTN__BUFFER_K,
    CLATTN__BUFFER_V,
    CLATTN__BUFFER_O,
    CLATTN__BUFFER_LSE,
    CLATTN__BUFFER_BIAS,
    CLATTN__BUFFER_MASK,
    CLATTN__BUFFER_BIAS_HEAD_SCALE,
    CLATTN__BUFFER_ALIBI_SLOPES,
    CLATTN__BUFFER_SINKS,
    CLATTN__BUFFER_Q_LENS,
    CLATTN__BUFFER_KV_LENS,
    CLATTN__BUFFER_Q_OFFSETS,
    CLATTN__BUFFER_TILES_COUNT,
    CLATTN__BUFFER_TILES_INDEX,
    CLATTN__BUFFER_USER,
    CLATTN__BUFFER_K_SCALE,
    CLATTN__BUFFER_V_SCALE,
    CLATTN__BUFFER_CU_SEQLENS_Q,
    CLATTN__BUFFER_CU_SEQLENS_K,
    CLATTN__BUFFER_BLOCK_TABLE,
    CLATTN__BUFFER_STATUS_WORDS,
    CLATTN__BUFFER_WORKSPACE,
    CLATTN__BUFFERS
};

/* The arguments of a kernel: buffers, a NULL one as a null pointer, then a struct. */
cl_int clattn__set_arguments(const clattn__cl *cl, cl_kernel kernel, const cl_mem *buffers, int num_buffers,
                             const void *args, size_t args_bytes);

/* `groups` work-groups of `work_items` each, numbered along the second axis: the first stays short, so
 * that no driver's limit or specialisation on grid width is met. */
cl_int clattn__emit_kernel(clattn__emitter *emitter, cl_kernel kernel, size_t work_items, size_t groups);

/* Hands the last command's event to the caller (`event` may be NULL); a marker if there was none. */
cl_int clattn__emit_end(clattn__emitter *emitter, cl_event *event);

/* After a failure: lets go of what was emitted. */
void clattn__emit_abandon(clattn__emitter *emitter);

#endif
