#include "emit.h"

cl_int clattn__set_arguments(const clattn__cl *cl, cl_kernel kernel, const cl_mem *buffers, int num_buffers,
                             const void *args, size_t args_bytes)
{
    for (cl_uint i = 0; i < (cl_uint)num_buffers; i++) {
        const cl_int code =
            cl->clSetKernelArg(kernel, i, sizeof(cl_mem), buffers[i] != NULL ? &buffers[i] : NULL);
        if (code != CL_SUCCESS)
            return code;
    }
    return cl->clSetKernelArg(kernel, (cl_uint)num_buffers, args_bytes, args);
}

cl_int clattn__emit_kernel(clattn__emitter *emitter, cl_kernel kernel, size_t work_items, size_t groups)
{
    const size_t global[2] = {work_items, groups}, local[2] = {work_items, 1};
    const int first = emitter->last == NULL;
    cl_event event = NULL;
    const cl_int code = emitter->cl->clEnqueueNDRangeKernel(emitter->queue, kernel, 2, NULL, global, local,
                                                            first ? emitter->num_wait : 1,
                                                            first ? emitter->wait : &emitter->last, &event);
    if (code != CL_SUCCESS)
        return code;
    if (!first)
        emitter->cl->clReleaseEvent(emitter->last);
    emitter->last = event;
    return CL_SUCCESS;
}

cl_int clattn__emit_end(clattn__emitter *emitter, cl_event *event)
{
    if (emitter->last == NULL && event != NULL)
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
