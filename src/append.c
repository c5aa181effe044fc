/* append.c: new keys and values into a cache: the kernels are told and launched. */
#include "append_call.h"
#include "forward_call.h"
#include "queue_check.h"

#include <assert.h>
#include <math.h>
#include <string.h>

static_assert(sizeof(append_args) == 8 * 32 + 5 * 24 + 10 * 8 + 22 * 4, "host and kernel must agree");

static void set_rope(append_args *out, const clattn__append_call *call)
{
    const clattn_append_args *args = &call->args;
    const double base = args->rope_base != 0.0f ? (double)args->rope_base : 10000.0;
    out->rope = call->plan->desc.rope;
    out->rotary_dim = call->plan->desc.rotary_dim;
    out->rope_len = (cl_int)args->rope_len;
    if (out->rope == CLATTN_ROPE_NONE)
        return;
    out->rope_step = (float)(-2.0 * log2(base) / out->rotary_dim);
    out->rope_scale = args->rope_scale != 0.0f ? args->rope_scale : 1.0f;
}

static void set_arguments(append_args *out, const clattn__append_call *call)
{
    const clattn_plan_desc *desc = &call->plan->desc;
    const clattn_append_args *args = &call->args;
    const clattn__operand *x = call->operands;
    memset(out, 0, sizeof *out);
    out->k_new = clattn__tensor_address_of(&x[CLATTN__APPEND_K_NEW]);
    out->v_new = clattn__tensor_address_of(&x[CLATTN__APPEND_V_NEW]);
    out->k = clattn__tensor_address_of(&x[CLATTN__APPEND_K]);
    out->v = clattn__tensor_address_of(&x[CLATTN__APPEND_V]);
    out->k_scale = clattn__tensor_address_of(&x[CLATTN__APPEND_K_SCALE]);
    out->v_scale = clattn__tensor_address_of(&x[CLATTN__APPEND_V_SCALE]);
    out->q = clattn__tensor_address_of(&x[CLATTN__APPEND_Q]);
    out->q_out = clattn__tensor_address_of(&x[CLATTN__APPEND_Q_OUT]);
    out->slot_mapping = clattn__number_address_of(&x[CLATTN__APPEND_SLOT_MAPPING]);
    out->positions = clattn__number_address_of(&x[CLATTN__APPEND_POSITIONS]);
    out->kv_lens = clattn__number_address_of(&x[CLATTN__APPEND_KV_LENS]);
    out->kv_lens_out = clattn__number_address_of(&x[CLATTN__APPEND_KV_LENS_OUT]);
    out->q_lens = clattn__number_address_of(&x[CLATTN__APPEND_Q_LENS]);
    out->cu_seqlens_q = (cl_long)(args->cu_seqlens_q.byte_offset / 4);
    out->block_table = (cl_long)(args->block_table.byte_offset / 4);
    out->block_table_batch = args->block_table.stride[0];
    out->rope_cos = (cl_long)(args->rope_cos.byte_offset / 4);
    out->rope_cos_row = args->rope_cos.stride[0];
    out->rope_sin = (cl_long)(args->rope_sin.byte_offset / 4);
    out->rope_sin_row = args->rope_sin.stride[0];
    out->k_lead = clattn__lead_of(&x[CLATTN__APPEND_K]);
    out->v_lead = clattn__lead_of(&x[CLATTN__APPEND_V]);
    out->status_words = (cl_long)(args->status_words.byte_offset / 4);
    out->batch = (cl_int)args->batch;
    out->new_len = (cl_int)args->new_len;
    out->total_new = (cl_int)args->total_new;
    out->kv_len = (cl_int)args->kv_len;
    out->num_pages = (cl_int)args->num_pages;
    out->page_size = desc->page_size;
    out->heads_kv = desc->heads_kv;
    out->rows_v = x[CLATTN__APPEND_V_NEW].is_needed ? desc->heads_kv : 0;
    out->rows_q = x[CLATTN__APPEND_Q].is_needed ? desc->heads_q : 0;
    out->head_dim_qk = desc->head_dim_qk;
    out->head_dim_v = desc->head_dim_v;
    out->features = (cl_int)desc->features;
    out->has_kv_lens = args->kv_lens.handle != NULL;
    out->has_kv_lens_out = args->kv_lens_out.handle != NULL;
    out->has_positions = args->positions.handle != NULL;
    set_rope(out, call);
}

clattn_status clattn__launch_append(const clattn__append_call *call, clattn__emitter *emitter,
                                    const char *where)
{
    const clattn_plan_desc *desc = &call->plan->desc;
    const int has_status = (desc->features & CLATTN_FEATURE_STATUS) != 0;
    clattn__memory buffers[CLATTN__APPEND_BUFFERS];
    append_args args;
    for (int i = 0; i < CLATTN__APPEND_BUFFERS; i++)
        buffers[i] = clattn__memory_of(call->operands[i].tensor);
    set_arguments(&args, call);
    clattn__say(&call->plan->context->log, CLATTN_LOG_DEBUG, "%s: batch %lld, %lld new tokens: %lld rows",
                where, (long long)call->args.batch, (long long)call->args.new_len, (long long)call->groups);
    clattn__launch launch = {call->plan->context,
                             call->plan->program[0],
                             CLATTN__APPEND_ROWS,
                             call->groups,
                             4 * (uint64_t)desc->head_dim_qk,
                             buffers,
                             &args.first_group,
                             &args.num_groups,
                             &args};
    FORWARD_IF_ERROR(clattn__launch_kernel(&launch, emitter, where));
    if (!has_status && !args.has_kv_lens_out)
        return CLATTN_SUCCESS;
    launch.kernel = CLATTN__APPEND_LENGTHS;
    launch.groups = clattn__flat_groups(call->args.batch);
    return clattn__launch_kernel(&launch, emitter, where);
}

clattn_status clattn_enqueue_kv_append(clattn_plan *plan, cl_command_queue queue,
                                       const clattn_append_args *args, cl_uint num_wait, const cl_event *wait,
                                       cl_event *event)
{
    static const char where[] = "clattn_enqueue_kv_append";
    clattn__append_call call;
    int keeps_order = 0;
    if (plan == NULL)
        return CLATTN_INVALID_ARGUMENT;
    const clattn_context *context = plan->context;
    FORWARD_IF_ERROR(clattn__check_queue(context, where, queue, num_wait, wait, &keeps_order));
    FORWARD_IF_ERROR(clattn__check_append(&call, plan, args, where));
    clattn__emitter emitter =
        clattn__emit_to_queue(&context->cl, queue, num_wait, wait, event != NULL || !keeps_order);
    const clattn_status status = clattn__launch_append(&call, &emitter, where);
    return clattn__end_call(context, &emitter, status, event, where);
}

clattn_status clattn_enqueue_append_forward(clattn_plan *append_plan, const clattn_append_args *append_args_,
                                            clattn_plan *plan, const clattn_forward_args *args,
                                            cl_command_queue queue, cl_uint num_wait, const cl_event *wait,
                                            cl_event *event)
{
    static const char where[] = "clattn_enqueue_append_forward";
    clattn__append_call append;
    clattn__forward_call forward;
    int keeps_order = 0;
    if (append_plan == NULL || plan == NULL)
        return CLATTN_INVALID_ARGUMENT;
    const clattn_context *context = plan->context;
    RETURN_ERROR_IF(append_plan->context != context, &context->log, CLATTN_INVALID_ARGUMENT,
                    "%s: plan belongs to another context than append_plan", where);
    FORWARD_IF_ERROR(clattn__check_queue(context, where, queue, num_wait, wait, &keeps_order));
    FORWARD_IF_ERROR(clattn__check_append(&append, append_plan, append_args_, where));
    FORWARD_IF_ERROR(clattn__check_forward(&forward, plan, args, where));
    clattn__emitter emitter =
        clattn__emit_to_queue(&context->cl, queue, num_wait, wait, event != NULL || !keeps_order);
    clattn_status status = clattn__launch_append(&append, &emitter, where);
    if (status == CLATTN_SUCCESS)
        status = clattn__launch_forward(&forward, &emitter);
    return clattn__end_call(context, &emitter, status, event, where);
}
