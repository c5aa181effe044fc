#include "launch.h"

/* PoCL compiles a kernel again for grids wider than 65534, NVIDIA's second axis ends at 65535, and a watchdog
 * may ask for less. */
static int64_t groups_per_launch(const clattn__launch *launch)
{
    enum { MOST = 32768 };
    const uint64_t budget = launch->context->max_work_per_launch;
    if (budget == 0 || budget / launch->work >= MOST)
        return MOST;
    return budget >= launch->work ? (int64_t)(budget / launch->work) : 1;
}

clattn_status clattn__launch_kernel(const clattn__launch *launch, clattn__emitter *emitter, const char *where)
{
    const char *failed = NULL;
    cl_int code = CL_SUCCESS;
    const clattn__recipe *recipe = launch->program->recipe;
    const int64_t most = groups_per_launch(launch);
    const size_t work_items = clattn__work_items(launch->program, launch->kernel);
    const cl_kernel instance = clattn__instance_take(launch->program, launch->kernel);
    for (int64_t first = 0; first < launch->groups && failed == NULL; first += most) {
        const int64_t count = launch->groups - first < most ? launch->groups - first : most;
        *launch->first_group = (cl_int)first;
        *launch->num_groups = (cl_int)count;
        code = clattn__set_arguments(emitter->cl, instance, launch->buffers, recipe->num_buffers,
                                     launch->args, recipe->args_bytes);
        if (code != CL_SUCCESS) {
            failed = "clSetKernelArg";
            break;
        }
        code = clattn__emit_kernel(emitter, instance, work_items, (size_t)count);
        if (code != CL_SUCCESS)
            failed = "clEnqueueNDRangeKernel";
    }
    clattn__instance_return(launch->program, launch->kernel, instance);
    FORWARD_IF_CL_ERROR(&launch->context->log, where, failed, code);
    return CLATTN_SUCCESS;
}
