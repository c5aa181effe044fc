/* merge.c: partial states of the same rows into one. */
#include "dtype.h"
#include "operation.h"
#include "queue_check.h"

#include <assert.h>
#include <string.h>

#define WHERE "clattn_enqueue_merge"

static_assert(sizeof(merge_args) == 4 * 32 + 24 + 2 * 8 + 8 * 4, "host and kernel must agree");

static clattn_status check_numbers(const clattn_merge_args *args, const clattn_plan *plan)
{
    const clattn__log *log = &plan->context->log;
    const int is_packed = (plan->desc.features & CLATTN_FEATURE_CU_SEQLENS_Q) != 0;
    const int64_t far = (int64_t)1 << 48; /* elements; with CLATTN_MAX_SPLITS steps within 2^60 bytes */
    FORWARD_IF_ERROR(clattn__check_number(log, WHERE, "batch", args->batch, 0, is_packed ? 0 : INT32_MAX));
    FORWARD_IF_ERROR(
        clattn__check_number(log, WHERE, "q_len", args->q_len, 0, is_packed ? 0 : CLATTN_MAX_LENGTH));
    FORWARD_IF_ERROR(
        clattn__check_number(log, WHERE, "total_q", args->total_q, 0, is_packed ? CLATTN_MAX_LENGTH : 0));
    FORWARD_IF_ERROR(clattn__check_number(log, WHERE, "num_parts", args->num_parts, 1, CLATTN_MAX_SPLITS));
    FORWARD_IF_ERROR(clattn__check_number(log, WHERE, "o_part_stride", args->o_part_stride, 0, far));
    return clattn__check_number(log, WHERE, "lse_part_stride", args->lse_part_stride, 0, far);
}

/* All parts: the last one reaches farthest. */
static clattn_status check_parts(clattn__operand *first, int64_t num_parts, int64_t stride,
                                 const clattn_context *context)
{
    clattn_tensor tensor = *first->tensor;
    clattn__operand last = *first;
    FORWARD_IF_ERROR(clattn__check_operand(first, WHERE, context));
    tensor.byte_offset += (uint64_t)(num_parts - 1) * (uint64_t)stride * first->element;
    last.tensor = &tensor;
    FORWARD_IF_ERROR(clattn__check_operand(&last, WHERE, context));
    first->end = last.end;
    return CLATTN_SUCCESS;
}

static clattn_status check(clattn__operand operands[CLATTN__MERGE_BUFFERS], clattn_merge_args *args,
                           const clattn_plan *plan)
{
    const clattn_context *context = plan->context;
    const clattn__log *log = &context->log;
    const clattn_plan_desc *desc = &plan->desc;
    const int is_packed = (desc->features & CLATTN_FEATURE_CU_SEQLENS_Q) != 0;
    FORWARD_IF_ERROR(check_numbers(args, plan));
    const int64_t batch = is_packed ? 1 : args->batch, rows = is_packed ? args->total_q : args->q_len;
    const int64_t heads = desc->heads_q, dim = desc->head_dim_v;
    const size_t part_bytes = (size_t)clattn__dtype_of(desc->dtype_q)->bytes;
    const size_t o_bytes = (size_t)clattn__dtype_of(desc->dtype_o)->bytes;
    const int has_lse = (desc->features & CLATTN_FEATURE_LSE) != 0;
    const int has_sinks = (desc->features & CLATTN_FEATURE_SINKS) != 0;
    FORWARD_IF_ERROR(clattn__check_groups(log, WHERE, "heads_q * rows", heads, rows));
    FORWARD_IF_ERROR(clattn__check_groups(log, WHERE, "batch * rows", heads * rows, batch));
    FORWARD_IF_ERROR(clattn__make_rows_contiguous(&args->o_parts, WHERE, "o_parts", log));
    FORWARD_IF_ERROR(clattn__make_rows_contiguous(&args->o, WHERE, "o", log));
    const clattn__operand list[CLATTN__MERGE_BUFFERS] = {
        {"o_parts", &args->o_parts, {batch, heads, rows, dim}, part_bytes, 0, 1, 0, 0},
        {"lse_parts", &args->lse_parts, {batch, heads, rows, 1}, 4, 0, 1, 0, 0},
        {"o", &args->o, {batch, heads, rows, dim}, o_bytes, 1, 1, 0, 0},
        {"lse", &args->lse, {batch, heads, rows, 1}, 4, 1, has_lse, 0, 0},
        {"sinks", &args->sinks, {batch, heads, 1, 1}, 4, 0, has_sinks, 0, 0}};
    memcpy(operands, list, sizeof list);
    FORWARD_IF_ERROR(
        check_parts(&operands[CLATTN__MERGE_O_PARTS], args->num_parts, args->o_part_stride, context));
    FORWARD_IF_ERROR(
        check_parts(&operands[CLATTN__MERGE_LSE_PARTS], args->num_parts, args->lse_part_stride, context));
    for (int i = CLATTN__MERGE_O; i < CLATTN__MERGE_BUFFERS; i++)
        FORWARD_IF_ERROR(clattn__check_operand(&operands[i], WHERE, context));
    return clattn__check_overlap(operands, CLATTN__MERGE_BUFFERS, WHERE, log);
}

static clattn_status launch(clattn_plan *plan, clattn__emitter *emitter, const clattn__operand *operands,
                            const clattn_merge_args *given)
{
    const clattn_plan_desc *desc = &plan->desc;
    const int64_t batch = operands[CLATTN__MERGE_O].size[0], rows = operands[CLATTN__MERGE_O].size[2];
    clattn__memory buffers[CLATTN__MERGE_BUFFERS];
    merge_args args;
    memset(&args, 0, sizeof args);
    args.o_parts = clattn__tensor_address_of(&operands[CLATTN__MERGE_O_PARTS]);
    args.lse_parts = clattn__tensor_address_of(&operands[CLATTN__MERGE_LSE_PARTS]);
    args.o = clattn__tensor_address_of(&operands[CLATTN__MERGE_O]);
    args.lse = clattn__tensor_address_of(&operands[CLATTN__MERGE_LSE]);
    args.sinks = clattn__number_address_of(&operands[CLATTN__MERGE_SINKS]);
    args.o_step = given->o_part_stride;
    args.lse_step = given->lse_part_stride;
    args.heads = desc->heads_q;
    args.rows = (cl_int)rows;
    args.head_dim_v = desc->head_dim_v;
    args.num_parts = (cl_int)given->num_parts;
    args.features = (cl_int)desc->features;
    args.lse_unit = (desc->features & CLATTN_FEATURE_LSE_BASE_2) != 0 ? 1.44269504f : 1.0f;
    for (int i = 0; i < CLATTN__MERGE_BUFFERS; i++)
        buffers[i] = clattn__memory_of(operands[i].tensor);
    const clattn__launch launch = {plan->context,
                                   plan->program[0],
                                   0,
                                   batch * desc->heads_q * rows,
                                   (uint64_t)given->num_parts * (uint64_t)desc->head_dim_v,
                                   buffers,
                                   &args.first_group,
                                   &args.num_groups,
                                   &args};
    return clattn__launch_kernel(&launch, emitter, WHERE);
}

clattn_status clattn_enqueue_merge(clattn_plan *plan, cl_command_queue queue, const clattn_merge_args *given,
                                   cl_uint num_wait, const cl_event *wait, cl_event *event)
{
    clattn_merge_args args;
    clattn__operand operands[CLATTN__MERGE_BUFFERS];
    int keeps_order = 0;
    if (plan == NULL)
        return CLATTN_INVALID_ARGUMENT;
    const clattn_context *context = plan->context;
    const clattn__log *log = &context->log;
    FORWARD_IF_ERROR(clattn__check_operation(plan, CLATTN_OPERATION_MERGE, WHERE));
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
