/* emit.h: the one place that produces commands, on a queue or in a command buffer. An emitter chains them:
 * the first waits for what the caller names, each later one for the one before, so that out-of-order queues
 * keep the order. In-order queues do that themselves: there are events only if the caller wants one. */
#ifndef CLATTN_EMIT_H
#define CLATTN_EMIT_H

#include "context.h"
#include "kernel_args.h"

typedef struct clattn__emitter {
    const clattn__cl *cl;
    cl_command_queue queue; /* NULL: recording */
    cl_uint num_wait;
    const cl_event *wait;
    int32_t has_events;
    int32_t has_command; /* whether there was one */
    cl_event last;       /* with events, of the newest command, owned */
    void *command_buffer;
    const cl_uint *sync_wait; /* num_wait of them */
    cl_uint last_point;       /* of the newest command, if has_point */
    int32_t has_point;
} clattn__emitter;

/* For an enqueue: the wait list is events; without events, queues have to keep the order and
 * clattn__emit_end is not asked for one. */
clattn__emitter clattn__emit_to_queue(const clattn__cl *cl, cl_command_queue queue, cl_uint num_wait,
                                      const cl_event *wait, int has_events);

/* For a recording: it is sync points. */
clattn__emitter clattn__emit_to_recording(const clattn__cl *cl, void *command_buffer, cl_uint num_sync,
                                          const cl_uint *sync_wait);

/* What a tensor's handle is, and the handle; NULL: a null pointer. */
typedef struct clattn__memory {
    int32_t kind; /* CLATTN_MEM_* */
    void *handle;
} clattn__memory;

clattn__memory clattn__memory_of(const clattn_tensor *tensor);

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

/* Likewise of APPEND_BUFFERS (cl/append.cl), and of merge and convert_rows. */
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

enum {
    CLATTN__MERGE_O_PARTS,
    CLATTN__MERGE_LSE_PARTS,
    CLATTN__MERGE_O,
    CLATTN__MERGE_LSE,
    CLATTN__MERGE_SINKS,
    CLATTN__MERGE_BUFFERS
};

enum { CLATTN__CONVERT_FROM, CLATTN__CONVERT_TO, CLATTN__CONVERT_SCALE, CLATTN__CONVERT_BUFFERS };

/* A kernel and which of its buffers are null pointers, as bits: most are, call after call, and are not set
 * again. (What else was set cannot be left: another buffer may have the handle of one that is gone.) */
typedef struct clattn__instance {
    cl_kernel kernel;
    uint32_t nulls;
} clattn__instance;

/* The arguments of a kernel: memory, then a struct. On failure *failed names the function. */
cl_int clattn__set_arguments(const clattn__cl *cl, clattn__instance *instance, const clattn__memory *buffers,
                             int num_buffers, const void *args, size_t args_bytes, const char **failed);

/* `groups` work-groups of `work_items` each, numbered along the second axis: the first stays short, so
 * that no driver's limit or specialisation on grid width is met. On failure *failed names the function. */
cl_int clattn__emit_kernel(clattn__emitter *emitter, cl_kernel kernel, size_t work_items, size_t groups,
                           const char **failed);

/* Whether commands go into a command buffer. */
int clattn__records(const clattn__emitter *emitter);

/* Whether a command was emitted. */
int clattn__emitted(const clattn__emitter *emitter);

/* Of an enqueue: hands the last command's event to the caller (`event` may be NULL); a marker if there was
 * none. */
cl_int clattn__emit_end(clattn__emitter *emitter, cl_event *event);

/* After a failure: lets go of what was emitted. */
void clattn__emit_abandon(clattn__emitter *emitter);

#endif
