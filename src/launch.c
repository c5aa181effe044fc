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

/* Work-groups to launch for `count`, where those may stay and take several. */
static size_t resident_groups(const clattn__launch *launch, int64_t count)
{
    const clattn__program *program = launch->program;
    const int64_t places = (int64_t)launch->context->device.compute_units * program->tile.groups_per_unit;
    const int is_resident = program->recipe->is_resident && launch->kernel == CLATTN__KERNEL_ANY;
    return count == 0 ? 1 : (size_t)(is_resident && places < count ? places : count);
}

/* Work-groups from `first` on; with a count of 0 one that finds nothing to do. */
static cl_int launch_some(const clattn__launch *launch, clattn__emitter *emitter, clattn__instance *instance,
                          int64_t first, int64_t count, const char **failed)
{
    const clattn__recipe *recipe = launch->program->recipe;
    *launch->first_group = (cl_int)first;
    *launch->num_groups = (cl_int)count;
    const cl_int code = clattn__set_arguments(emitter->cl, instance, launch->buffers, recipe->num_buffers,
                                              launch->args, recipe->args_bytes, failed);
    if (code != CL_SUCCESS)
        return code;
    return clattn__emit_kernel(emitter, instance->kernel, clattn__work_items(launch->program, launch->kernel),
                               resident_groups(launch, count), failed);
}

/* PoCL 3.1 of Debian 12 (seen 2026-11-30) reads a recorded kernel's arguments when the command buffer runs:
 * so each recorded command has an instance of its own, which the command buffer keeps. */
static cl_int record_some(const clattn__launch *launch, clattn__emitter *emitter, int64_t first,
                          int64_t count, const char **failed)
{
    cl_int code = CL_SUCCESS;
    *failed = "clCreateKernel";
    clattn__instance instance = {clattn__instance_create(launch->program, emitter->cl, launch->kernel, &code),
                                 0};
    if (code != CL_SUCCESS)
        return code;
    code = launch_some(launch, emitter, &instance, first, count, failed);
    emitter->cl->clReleaseKernel(instance.kernel);
    return code;
}

clattn_status clattn__launch_kernel(const clattn__launch *launch, clattn__emitter *emitter, const char *where)
{
    const char *failed = NULL;
    cl_int code = CL_SUCCESS;
    const int64_t most = groups_per_launch(launch);
    const int records = clattn__records(emitter);
    clattn__instance *instance = records ? NULL : clattn__instance_take(launch->program, launch->kernel);
    for (int64_t first = 0; first < launch->groups && code == CL_SUCCESS; first += most) {
        const int64_t left = launch->groups - first, count = left < most ? left : most;
        code = records ? record_some(launch, emitter, first, count, &failed)
                       : launch_some(launch, emitter, instance, first, count, &failed);
    }
    if (!records)
        clattn__instance_return(launch->program, launch->kernel, instance);
    FORWARD_IF_CL_ERROR(&launch->context->log, where, failed, code);
    return CLATTN_SUCCESS;
}

clattn_status clattn__record_nothing(const clattn__launch *launch, clattn__emitter *emitter,
                                     const char *where)
{
    const char *failed = NULL;
    const cl_int code = record_some(launch, emitter, 0, 0, &failed);
    FORWARD_IF_CL_ERROR(&launch->context->log, where, failed, code);
    return CLATTN_SUCCESS;
}
