#include "context.h"

#include "hash.h"
#include "program.h"
#include "tuning.h"

#include <string.h>

#define WHERE "clattn_context_create"

static clattn_status check_device(const clattn__cl *cl, cl_context context, cl_device_id device,
                                  const clattn_allocator *allocator, const clattn__log *log)
{
    size_t size = 0;
    FORWARD_IF_CL_ERROR(log, WHERE, "clGetContextInfo",
                        cl->clGetContextInfo(context, CL_CONTEXT_DEVICES, 0, NULL, &size));
    cl_device_id *devices = clattn__allocate(allocator, size);
    RETURN_ERROR_IF(devices == NULL, log, CLATTN_OUT_OF_HOST_MEMORY, WHERE ": out of host memory");
    const cl_int code = cl->clGetContextInfo(context, CL_CONTEXT_DEVICES, size, devices, NULL);
    int found = 0;
    for (size_t i = 0; i < size / sizeof *devices; i++)
        found |= devices[i] == device;
    clattn__release(allocator, devices);
    FORWARD_IF_CL_ERROR(log, WHERE, "clGetContextInfo", code);
    RETURN_ERROR_IF(!found, log, CLATTN_INVALID_ARGUMENT,
                    WHERE ": device is not one of the context's devices");
    return CLATTN_SUCCESS;
}

/* Everything that can fail after the object exists. What is set is released by context_destroy. */
static clattn_status context_open(clattn_context *c, cl_context context, cl_device_id device,
                                  const clattn_context_options *options)
{
    const clattn__log *log = &c->log;
    cl_int code = CL_SUCCESS;
    FORWARD_IF_ERROR(check_device(&c->cl, context, device, &c->allocator, log));
    FORWARD_IF_ERROR(clattn__device_read(&c->device, &c->cl, device, options->max_local_bytes, log));
    FORWARD_IF_ERROR(clattn__tuning_read(c, options->tuning, options->tuning_bytes));
    clattn__cl_load_extensions(&c->cl, c->device.platform_id, c->device.extensions);
    FORWARD_IF_CL_ERROR(log, WHERE, "clRetainContext", c->cl.clRetainContext(context));
    c->cl_context = context;
    FORWARD_IF_CL_ERROR(log, WHERE, "clRetainDevice", c->cl.clRetainDevice(device));
    c->device_id = device;
    c->warm_queue = c->cl.clCreateCommandQueue(context, device, 0, &code);
    FORWARD_IF_CL_ERROR(log, WHERE, "clCreateCommandQueue", code);
    return CLATTN_SUCCESS;
}

static void context_destroy(clattn_context *c)
{
    const clattn_allocator allocator = c->allocator;
    clattn__programs_release(c);
    if (c->warm_queue != NULL)
        c->cl.clReleaseCommandQueue(c->warm_queue);
    if (c->device_id != NULL)
        c->cl.clReleaseDevice(c->device_id);
    if (c->cl_context != NULL)
        c->cl.clReleaseContext(c->cl_context);
    clattn__condition_destroy(&c->program_settled);
    clattn__mutex_destroy(&c->mutex);
    clattn__release(&allocator, c->tuning);
    clattn__release(&allocator, c);
}

clattn_status clattn_context_create(clattn_context **out, cl_context context, cl_device_id device,
                                    const clattn_context_options *given)
{
    clattn_context_options options = CLATTN_CONTEXT_OPTIONS_INIT;
    const size_t least = offsetof(clattn_context_options, tuning);
    clattn__log log = {NULL, NULL, CLATTN_LOG_ERROR};
    if (out != NULL)
        *out = NULL;
    if (given != NULL) {
        if (given->struct_size >= least) { /* else the callback may not be there to be read */
            log.write = given->log;
            log.user = given->log_user;
        }
        FORWARD_IF_ERROR(clattn__read_struct(&options, sizeof options, given, least, WHERE, "options", &log));
    }
    log.level = options.log_level != 0 ? options.log_level : CLATTN_LOG_WARNING;
    RETURN_ERROR_IF(out == NULL, &log, CLATTN_INVALID_ARGUMENT, WHERE ": out is NULL");
    RETURN_ERROR_IF(context == NULL, &log, CLATTN_INVALID_ARGUMENT, WHERE ": context is NULL");
    RETURN_ERROR_IF(device == NULL, &log, CLATTN_INVALID_ARGUMENT, WHERE ": device is NULL");
    RETURN_ERROR_IF((options.allocator.allocate == NULL) != (options.allocator.release == NULL), &log,
                    CLATTN_INVALID_ARGUMENT,
                    WHERE ": options.allocator has one of allocate and release; expected both or none");
    RETURN_ERROR_IF((options.cache.load == NULL) != (options.cache.store == NULL), &log,
                    CLATTN_INVALID_ARGUMENT,
                    WHERE ": options.cache has one of load and store; expected both or none");

    clattn__cl cl;
    const char *missing;
    RETURN_ERROR_IF(clattn__cl_load(&cl, options.get_proc, options.get_proc_user, &missing) != CLATTN_SUCCESS,
                    &log, CLATTN_UNSUPPORTED, WHERE ": OpenCL function %s was not found%s", missing,
                    options.get_proc == NULL ? " (this library is not linked to a loader: set "
                                               "options.get_proc)"
                                             : " by options.get_proc");

    clattn_context *c = clattn__allocate(&options.allocator, sizeof *c);
    RETURN_ERROR_IF(c == NULL, &log, CLATTN_OUT_OF_HOST_MEMORY, WHERE ": out of host memory");
    if (clattn__mutex_init(&c->mutex) != 0) {
        clattn__release(&options.allocator, c);
        return clattn__fail(&log, CLATTN_OUT_OF_HOST_MEMORY, WHERE ": no mutex could be made");
    }
    if (clattn__condition_init(&c->program_settled) != 0) {
        clattn__mutex_destroy(&c->mutex);
        clattn__release(&options.allocator, c);
        return clattn__fail(&log, CLATTN_OUT_OF_HOST_MEMORY, WHERE ": no condition could be made");
    }
    c->cl = cl;
    c->allocator = options.allocator;
    c->log = log;
    c->cache = options.cache;
    c->max_work_per_launch = options.max_work_per_launch;
    c->references = 1;

    const clattn_status status = context_open(c, context, device, &options);
    if (status != CLATTN_SUCCESS) {
        context_destroy(c);
        return status;
    }
    *out = c;
    return CLATTN_SUCCESS;
}

void clattn__context_retain(clattn_context *context)
{
    clattn__mutex_lock(&context->mutex);
    context->references++;
    clattn__mutex_unlock(&context->mutex);
}

uint64_t clattn__context_ticket(clattn_context *context)
{
    const uint64_t mask = (UINT64_C(1) << 40) - 1;
    clattn__mutex_lock(&context->mutex);
    if (context->tickets == 0) {
        const double now = clattn__seconds();
        context->tickets =
            clattn__hash(clattn__hash(CLATTN__HASH_START, &now, sizeof now), &context, sizeof context);
    }
    do
        context->tickets++;
    while ((context->tickets & mask) == 0);
    const uint64_t ticket = context->tickets & mask;
    clattn__mutex_unlock(&context->mutex);
    return ticket;
}

void clattn_context_release(clattn_context *context)
{
    if (context == NULL)
        return;
    clattn__mutex_lock(&context->mutex);
    const int left = --context->references;
    clattn__mutex_unlock(&context->mutex);
    if (left == 0)
        context_destroy(context);
}

clattn_status clattn_context_builds(clattn_context *context, clattn_builds *builds)
{
    if (context == NULL)
        return CLATTN_INVALID_ARGUMENT;
    RETURN_ERROR_IF(builds == NULL, &context->log, CLATTN_INVALID_ARGUMENT,
                    "clattn_context_builds: builds is NULL");
    RETURN_ERROR_IF(builds->struct_size < sizeof *builds, &context->log, CLATTN_INVALID_ARGUMENT,
                    "clattn_context_builds: builds.struct_size = %u; expected at least %u, as by "
                    "CLATTN_BUILDS_INIT",
                    (unsigned)builds->struct_size, (unsigned)sizeof *builds);
    const uint32_t struct_size = builds->struct_size;
    clattn__mutex_lock(&context->mutex);
    *builds = context->builds;
    clattn__mutex_unlock(&context->mutex);
    builds->struct_size = struct_size;
    return CLATTN_SUCCESS;
}
