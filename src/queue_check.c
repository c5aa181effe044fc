#include "queue_check.h"

static clattn_status check_owner(const clattn_context *context, const char *where, cl_command_queue queue)
{
    const clattn__log *log = &context->log;
    cl_context queue_context = NULL;
    cl_device_id queue_device = NULL;
    RETURN_ERROR_IF(queue == NULL, log, CLATTN_INVALID_ARGUMENT, "%s: queue is NULL", where);
    FORWARD_IF_CL_ERROR(log, where, "clGetCommandQueueInfo",
                        context->cl.clGetCommandQueueInfo(queue, CL_QUEUE_CONTEXT, sizeof queue_context,
                                                          &queue_context, NULL));
    FORWARD_IF_CL_ERROR(
        log, where, "clGetCommandQueueInfo",
        context->cl.clGetCommandQueueInfo(queue, CL_QUEUE_DEVICE, sizeof queue_device, &queue_device, NULL));
    RETURN_ERROR_IF(queue_context != context->cl_context || queue_device != context->device_id, log,
                    CLATTN_INVALID_ARGUMENT, "%s: queue belongs to another %s than the plan", where,
                    queue_context != context->cl_context ? "context" : "device");
    return CLATTN_SUCCESS;
}

clattn_status clattn__check_queue(const clattn_context *context, const char *where, cl_command_queue queue,
                                  cl_uint num_wait, const cl_event *wait, int *keeps_order)
{
    const clattn__log *log = &context->log;
    cl_command_queue_properties properties = 0;
    FORWARD_IF_ERROR(check_owner(context, where, queue));
    FORWARD_IF_CL_ERROR(
        log, where, "clGetCommandQueueInfo",
        context->cl.clGetCommandQueueInfo(queue, CL_QUEUE_PROPERTIES, sizeof properties, &properties, NULL));
    *keeps_order = (properties & CL_QUEUE_OUT_OF_ORDER_EXEC_MODE_ENABLE) == 0;
    RETURN_ERROR_IF((num_wait == 0) != (wait == NULL), log, CLATTN_INVALID_ARGUMENT,
                    "%s: num_wait = %u and wait is %s; expected both or none", where, (unsigned)num_wait,
                    wait == NULL ? "NULL" : "set");
    for (cl_uint i = 0; i < num_wait; i++)
        RETURN_ERROR_IF(wait[i] == NULL, log, CLATTN_INVALID_ARGUMENT, "%s: wait[%u] is NULL", where,
                        (unsigned)i);
    return CLATTN_SUCCESS;
}

clattn_status clattn__check_command_buffer(const clattn_context *context, const char *where,
                                           const void *command_buffer, cl_command_queue queue,
                                           cl_uint num_sync, const cl_uint *sync_wait)
{
    const clattn__log *log = &context->log;
    RETURN_ERROR_IF(!clattn__is_listed(context->device.extensions, CLATTN__RECORDING_EXTENSION), log,
                    CLATTN_UNSUPPORTED, "%s: the device lacks the extension " CLATTN__RECORDING_EXTENSION,
                    where);
    RETURN_ERROR_IF(context->cl.clCommandNDRangeKernelKHR == NULL, log, CLATTN_UNSUPPORTED,
                    "%s: clCommandNDRangeKernelKHR was not found", where);
    RETURN_ERROR_IF(command_buffer == NULL, log, CLATTN_INVALID_ARGUMENT, "%s: command_buffer is NULL",
                    where);
    FORWARD_IF_ERROR(check_owner(context, where, queue));
    RETURN_ERROR_IF((num_sync == 0) != (sync_wait == NULL), log, CLATTN_INVALID_ARGUMENT,
                    "%s: num_sync = %u and sync_wait is %s; expected both or none", where, (unsigned)num_sync,
                    sync_wait == NULL ? "NULL" : "set");
    return CLATTN_SUCCESS;
}
