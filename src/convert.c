/* convert.c: floats to a cache type. */
#include "dtype.h"
#include "operation.h"
#include "queue_check.h"

#include <assert.h>
#include <string.h>

#define WHERE "clattn_enqueue_convert"

static_assert(sizeof(convert_args) == 3 * 32 + 8 + 6 * 4, "host and kernel must agree");

static clattn_status check(clattn__operand operands[CLATTN__CONVERT_BUFFERS], clattn_convert_args *args,
                           const clattn_plan *plan)
{
    const clattn_context *context = plan->context;
    const clattn__log *log = &context->log;
    const clattn_plan_desc *desc = &plan->desc;
    const clattn__dtype *from = clattn__dtype_of(desc->dtype_q), *to = clattn__dtype_of(desc->dtype_k);
    const int64_t batch = args->batch, heads = desc->heads_kv, len = args->len, dim = desc->head_dim_qk;
    const int has_scale = (desc->features & CLATTN_FEATURE_K_SCALE) != 0;
    FORWARD_IF_ERROR(clattn__check_number(log, WHERE, "batch", batch, 0, INT32_MAX));
    FORWARD_IF_ERROR(clattn__check_number(log, WHERE, "len", len, 0, CLATTN_MAX_LENGTH));
    FORWARD_IF_ERROR(clattn__check_groups(log, WHERE, "heads * len", heads, len));
    FORWARD_IF_ERROR(clattn__check_groups(log, WHERE, "batch * rows", heads * len, batch));
    FORWARD_IF_ERROR(clattn__make_rows_contiguous(&args->from, WHERE, "from", log));
    FORWARD_IF_ERROR(clattn__make_rows_contiguous(&args->to, WHERE, "to", log));
    const clattn__operand list[CLATTN__CONVERT_BUFFERS] = {
        {"from", &args->from, {batch, heads, len, dim}, (size_t)from->bytes, 0, 1, 0, 0},
        {"to", &args->to, {batch, heads, len, dim / to->elements}, (size_t)to->bytes, 1, 1, 0, 0},
        {"scale",
         &args->scale,
         {batch, heads, len, 1},
         4,
         desc->dtype_k == CLATTN_DTYPE_I8,
         has_scale,
         0,
         0}};
    memcpy(operands, list, sizeof list);
    for (int i = 0; i < CLATTN__CONVERT_BUFFERS; i++)
        FORWARD_IF_ERROR(clattn__check_operand(&operands[i], WHERE, context));
    return clattn__check_overlap(operands, CLATTN__CONVERT_BUFFERS, WHERE, log);
}

static clattn_status launch(clattn_plan *plan, clattn__emitter *emitter, const clattn__operand *operands,
                            const clattn_convert_args *given)
{
    const clattn_plan_desc *desc = &plan->desc;
    clattn__memory buffers[CLATTN__CONVERT_BUFFERS];
    convert_args args;
    memset(&args, 0, sizeof args);
    args.from = clattn__tensor_address_of(&operands[CLATTN__CONVERT_FROM]);
    args.to = clattn__tensor_address_of(&operands[CLATTN__CONVERT_TO]);
    args.scale = clattn__tensor_address_of(&operands[CLATTN__CONVERT_SCALE]);
    args.to_lead = clattn__lead_of(&operands[CLATTN__CONVERT_TO]);
    args.heads = desc->heads_kv;
    args.len = (cl_int)given->len;
    args.head_dim = desc->head_dim_qk;
    args.features = (cl_int)desc->features;
    for (int i = 0; i < CLATTN__CONVERT_BUFFERS; i++)
        buffers[i] = clattn__memory_of(operands[i].tensor);
    const clattn__launch launch = {plan->context,
                                   plan->program[0],
                                   0,
                                   given->batch * desc->heads_kv * given->len,
                                   4 * (uint64_t)desc->head_dim_qk,
                                   buffers,
                                   &args.first_group,
                                   &args.num_groups,
                                   &args};
    return clattn__launch_kernel(&launch, emitter, WHERE);
}

clattn_status clattn_enqueue_convert(clattn_plan *plan, cl_command_queue queue,
                                     const clattn_convert_args *given, cl_uint num_wait, const cl_event *wait,
                                     cl_event *event)
{
    clattn_convert_args args;
    clattn__operand operands[CLATTN__CONVERT_BUFFERS];
    int keeps_order = 0;
    if (plan == NULL)
        return CLATTN_INVALID_ARGUMENT;
    const clattn_context *context = plan->context;
    const clattn__log *log = &context->log;
    FORWARD_IF_ERROR(clattn__check_operation(plan, CLATTN_OPERATION_CONVERT, WHERE));
    FORWARD_IF_ERROR(clattn__check_queue(context, WHERE, queue, num_wait, wait, &keeps_order));
    RETURN_ERROR_IF(given == NULL, log, CLATTN_INVALID_ARGUMENT, WHERE ": args is NULL");
    FORWARD_IF_ERROR(clattn__read_struct(&args, sizeof args, given, sizeof args, WHERE, "args", log));
    RETURN_ERROR_IF(args.reserved != 0, log, CLATTN_INVALID_ARGUMENT,
                    WHERE ": args.reserved = %u; expected 0", (unsigned)args.reserved);
    FORWARD_IF_ERROR(check(operands, &args, plan));
    clattn__emitter emitter =
        clattn__emit_to_queue(&context->cl, queue, num_wait, wait, event != NULL || !keeps_order);
    const clattn_status status = launch(plan, &emitter, operands, &args);
    return clattn__end_call(context, &emitter, status, event, WHERE);
}
