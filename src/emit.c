#include "emit.h"

#include <assert.h>
#include <string.h>

clattn__emitter clattn__emit_to_queue(const clattn__cl *cl, cl_command_queue queue, cl_uint num_wait,
                                      const cl_event *wait, int has_events)
{
    clattn__emitter emitter;
    memset(&emitter, 0, sizeof emitter);
    emitter.cl = cl;
    emitter.queue = queue;
    emitter.num_wait = num_wait;
    emitter.wait = wait;
    emitter.has_events = has_events;
    return emitter;
}

clattn__emitter clattn__emit_to_recording(const clattn__cl *cl, void *command_buffer, cl_uint num_sync,
                                          const cl_uint *sync_wait)
{
    clattn__emitter emitter;
    memset(&emitter, 0, sizeof emitter);
    emitter.cl = cl;
    emitter.command_buffer = command_buffer;
    emitter.num_wait = num_sync;
    emitter.sync_wait = sync_wait;
    return emitter;
}

clattn__memory clattn__memory_of(const clattn_tensor *tensor)
{
    const clattn__memory memory = {tensor->mem_kind, tensor->handle};
    return memory;
}

static cl_int set_memory(const clattn__cl *cl, cl_kernel kernel, cl_uint index, const clattn__memory *memory,
                         const char **failed)
{
    if (memory->handle != NULL && memory->kind == CLATTN_MEM_SVM) {
        *failed = "clSetKernelArgSVMPointer";
        return cl->clSetKernelArgSVMPointer(kernel, index, memory->handle);
    }
    if (memory->handle != NULL && memory->kind == CLATTN_MEM_USM) {
        *failed = "clSetKernelArgMemPointerINTEL";
        return cl->clSetKernelArgMemPointerINTEL(kernel, index, memory->handle);
    }
    const cl_mem buffer = (cl_mem)memory->handle;
    *failed = "clSetKernelArg";
    return cl->clSetKernelArg(kernel, index, sizeof buffer, buffer != NULL ? &buffer : NULL);
}

static_assert(CLATTN__BUFFERS <= 32 && CLATTN__APPEND_BUFFERS <= 32, "bits of clattn__instance.nulls");

cl_int clattn__set_arguments(const clattn__cl *cl, clattn__instance *instance, const clattn__memory *buffers,
                             int num_buffers, const void *args, size_t args_bytes, const char **failed)
{
    for (cl_uint i = 0; i < (cl_uint)num_buffers; i++) {
        const uint32_t bit = UINT32_C(1) << i;
        if (buffers[i].handle == NULL && (instance->nulls & bit) != 0)
            continue;
        instance->nulls &= ~bit;
        const cl_int code = set_memory(cl, instance->kernel, i, &buffers[i], failed);
        if (code != CL_SUCCESS)
            return code;
        instance->nulls |= buffers[i].handle == NULL ? bit : 0;
    }
    *failed = "clSetKernelArg";
    return cl->clSetKernelArg(instance->kernel, (cl_uint)num_buffers, args_bytes, args);
}

static cl_int enqueue(clattn__emitter *emitter, cl_kernel kernel, const size_t *global, const size_t *local)
{
    const int first = !emitter->has_command, chained = !first && emitter->has_events;
    cl_event event = NULL;
    const cl_uint num_wait = first ? emitter->num_wait : (cl_uint)chained;
    const cl_event *wait = first ? emitter->wait : chained ? &emitter->last : NULL;
    const cl_int code = emitter->cl->clEnqueueNDRangeKernel(
        emitter->queue, kernel, 2, NULL, global, local, num_wait, wait, emitter->has_events ? &event : NULL);
    if (code != CL_SUCCESS)
        return code;
    if (chained)
        emitter->cl->clReleaseEvent(emitter->last);
    emitter->last = event;
    emitter->has_command = 1;
    return CL_SUCCESS;
}

/* The queue is that of the command buffer; where there is only one, the extension wants it left out. */
static cl_int record(clattn__emitter *emitter, cl_kernel kernel, const size_t *global, const size_t *local)
{
    cl_uint point = 0;
    const int first = !emitter->has_point;
    const cl_int code = emitter->cl->clCommandNDRangeKernelKHR(
        emitter->command_buffer, NULL, NULL, kernel, 2, NULL, global, local, first ? emitter->num_wait : 1,
        first ? emitter->sync_wait : &emitter->last_point, &point, NULL);
    if (code != CL_SUCCESS)
        return code;
    emitter->last_point = point;
    emitter->has_point = 1;
    return CL_SUCCESS;
}

int clattn__records(const clattn__emitter *emitter) { return emitter->command_buffer != NULL; }

cl_int clattn__emit_kernel(clattn__emitter *emitter, cl_kernel kernel, size_t work_items, size_t groups,
                           const char **failed)
{
    const size_t global[2] = {work_items, groups}, local[2] = {work_items, 1};
    *failed = clattn__records(emitter) ? "clCommandNDRangeKernelKHR" : "clEnqueueNDRangeKernel";
    return clattn__records(emitter) ? record(emitter, kernel, global, local)
                                    : enqueue(emitter, kernel, global, local);
}

int clattn__emitted(const clattn__emitter *emitter) { return emitter->has_command || emitter->has_point; }

cl_int clattn__emit_end(clattn__emitter *emitter, cl_event *event)
{
    if (!emitter->has_command && event != NULL)
        return emitter->cl->clEnqueueMarkerWithWaitList(emitter->queue, emitter->num_wait, emitter->wait,
                                                        event);
    if (event != NULL)
        *event = emitter->last;
    else if (emitter->last != NULL)
        emitter->cl->clReleaseEvent(emitter->last);
    emitter->last = NULL;
    return CL_SUCCESS;
}

void clattn__emit_abandon(clattn__emitter *emitter)
{
    if (emitter->last != NULL)
        emitter->cl->clReleaseEvent(emitter->last);
    emitter->last = NULL;
}
