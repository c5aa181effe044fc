#include "operation.h"

clattn_status clattn__check_operation(const clattn_plan *plan, int32_t operation, const char *where)
{
    static const char *const names[] = {"FORWARD", "KV_APPEND", "MERGE", "CONVERT"};
    RETURN_ERROR_IF(plan->desc.operation != operation, &plan->context->log, CLATTN_INVALID_ARGUMENT,
                    "%s: plan has operation = %d; expected CLATTN_OPERATION_%s (%d)", where,
                    (int)plan->desc.operation, names[operation], (int)operation);
    return CLATTN_SUCCESS;
}

clattn_status clattn__check_number(const clattn__log *log, const char *where, const char *name, int64_t value,
                                   int64_t least, int64_t most)
{
    RETURN_ERROR_IF((value < least || value > most) && least == most, log, CLATTN_INVALID_ARGUMENT,
                    "%s: %s = %lld; expected %lld, the plan's features leave it out", where, name,
                    (long long)value, (long long)most);
    RETURN_ERROR_IF(value < least || value > most, log, CLATTN_INVALID_ARGUMENT,
                    "%s: %s = %lld; expected %lld to %lld", where, name, (long long)value, (long long)least,
                    (long long)most);
    return CLATTN_SUCCESS;
}

clattn_status clattn__check_groups(const clattn__log *log, const char *where, const char *what, int64_t lines,
                                   int64_t rows)
{
    RETURN_ERROR_IF(lines > 0 && rows > INT32_MAX / lines, log, CLATTN_INVALID_ARGUMENT,
                    "%s: %s = %lld * %lld; expected fewer than 2^31", where, what, (long long)lines,
                    (long long)rows);
    return CLATTN_SUCCESS;
}

clattn_status clattn__make_rows_contiguous(clattn_tensor *tensor, const char *where, const char *name,
                                           const clattn__log *log)
{
    RETURN_ERROR_IF(tensor->stride[3] != 0 && tensor->stride[3] != 1, log, CLATTN_INVALID_ARGUMENT,
                    "%s: %s.stride[3] = %lld; expected 1 (rows are contiguous), or 0 for short", where, name,
                    (long long)tensor->stride[3]);
    tensor->stride[3] = 1;
    return CLATTN_SUCCESS;
}

void clattn__make_list(clattn_tensor *tensor)
{
    tensor->stride[0] = tensor->stride[1] = tensor->stride[2] = 0;
    tensor->stride[3] = 1;
}

void clattn__make_table(clattn_tensor *tensor)
{
    tensor->stride[1] = tensor->stride[2] = 0;
    tensor->stride[3] = 1;
}

tensor_address clattn__tensor_address_of(const clattn__operand *x)
{
    const clattn_tensor *t = x->tensor;
    const tensor_address address = {(cl_long)(t->byte_offset / x->element), x->size[0] > 1 ? t->stride[0] : 0,
                                    x->size[1] > 1 ? t->stride[1] : 0, t->stride[2]};
    return address;
}

cl_long clattn__lead_of(const clattn__operand *x) { return (cl_long)(x->tensor->byte_offset % x->element); }

number_address clattn__number_address_of(const clattn__operand *x)
{
    const clattn_tensor *t = x->tensor;
    const number_address address = {(cl_long)(t->byte_offset / x->element), x->size[0] > 1 ? t->stride[0] : 0,
                                    x->size[1] > 1 ? t->stride[1] : 0};
    return address;
}

clattn_status clattn__end_call(const clattn_context *context, clattn__emitter *emitter, clattn_status status,
                               cl_event *event, const char *where)
{
    if (status != CLATTN_SUCCESS) {
        clattn__emit_abandon(emitter);
        return status;
    }
    FORWARD_IF_CL_ERROR(&context->log, where, "clEnqueueMarkerWithWaitList",
                        clattn__emit_end(emitter, event));
    return CLATTN_SUCCESS;
}
