/* append_check.c: everything that can be wrong with an append is found before anything is enqueued. */
#include "append_call.h"
#include "dtype.h"

#include <math.h>
#include <string.h>

static int has(const clattn_plan *plan, uint32_t feature) { return (plan->desc.features & feature) != 0; }

/* ---- Numbers ---- */

static clattn_status check_lengths(clattn__append_call *call, const char *where)
{
    const clattn_plan *plan = call->plan;
    const clattn__log *log = &plan->context->log;
    const clattn_append_args *args = &call->args;
    const int is_packed = has(plan, CLATTN_FEATURE_CU_SEQLENS_Q);
    const int is_paged = has(plan, CLATTN_FEATURE_BLOCK_TABLE);
    const int has_table = is_paged && !has(plan, CLATTN_FEATURE_SLOT_MAPPING);
    const int has_tables = has(plan, CLATTN_FEATURE_ROPE_TABLES);
    FORWARD_IF_ERROR(clattn__check_number(log, where, "batch", args->batch, 0, INT32_MAX));
    FORWARD_IF_ERROR(clattn__check_number(log, where, "new_len", args->new_len, 0, CLATTN_MAX_LENGTH));
    FORWARD_IF_ERROR(
        clattn__check_number(log, where, "total_new", args->total_new, 0, is_packed ? CLATTN_MAX_LENGTH : 0));
    FORWARD_IF_ERROR(clattn__check_number(log, where, "kv_len", args->kv_len, 0, CLATTN_MAX_LENGTH));
    FORWARD_IF_ERROR(
        clattn__check_number(log, where, "num_pages", args->num_pages, 0, is_paged ? INT32_MAX : 0));
    FORWARD_IF_ERROR(clattn__check_number(log, where, "max_blocks", args->max_blocks, 0,
                                          has_table ? CLATTN_MAX_LENGTH : 0));
    FORWARD_IF_ERROR(clattn__check_number(log, where, "rope_len", args->rope_len, has_tables,
                                          has_tables ? CLATTN_MAX_LENGTH : 0));
    RETURN_ERROR_IF(has_table && args->kv_len > args->max_blocks * plan->desc.page_size, log,
                    CLATTN_INVALID_ARGUMENT,
                    "%s: kv_len = %lld; expected at most max_blocks * page_size = %lld * %d", where,
                    (long long)args->kv_len, (long long)args->max_blocks, (int)plan->desc.page_size);
    return CLATTN_SUCCESS;
}

static clattn_status check_rope(const clattn__append_call *call, const char *where)
{
    const clattn__log *log = &call->plan->context->log;
    const float base = call->args.rope_base, scale = call->args.rope_scale;
    RETURN_ERROR_IF(!(base >= 0.0f && isfinite(base)), log, CLATTN_INVALID_ARGUMENT,
                    "%s: rope_base = %g; expected a finite number > 0, or 0 for 10000", where, (double)base);
    RETURN_ERROR_IF(!isfinite(scale), log, CLATTN_INVALID_ARGUMENT,
                    "%s: rope_scale = %g; expected a finite number, 0 for 1", where, (double)scale);
    RETURN_ERROR_IF(
        (call->plan->desc.rope == CLATTN_ROPE_NONE || has(call->plan, CLATTN_FEATURE_ROPE_TABLES)) &&
            (base != 0.0f || scale != 0.0f),
        log, CLATTN_INVALID_ARGUMENT, "%s: rope_base = %g, rope_scale = %g; expected 0 and 0, the plan %s",
        where, (double)base, (double)scale,
        call->plan->desc.rope == CLATTN_ROPE_NONE ? "has no rope" : "takes angles from tables");
    return CLATTN_SUCCESS;
}

/* ---- Tensors ---- */

static clattn_status complete_strides(clattn_append_args *args, const char *where, const clattn__log *log)
{
    struct {
        clattn_tensor *tensor;
        const char *name;
    } rows[] = {{&args->k_new, "k_new"}, {&args->v_new, "v_new"}, {&args->k, "k"},
                {&args->v, "v"},         {&args->q, "q"},         {&args->q_out, "q_out"}};
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++)
        FORWARD_IF_ERROR(clattn__make_rows_contiguous(rows[i].tensor, where, rows[i].name, log));
    clattn__make_list(&args->cu_seqlens_q);
    clattn__make_list(&args->status_words);
    clattn__make_table(&args->block_table);
    clattn__make_table(&args->rope_cos);
    clattn__make_table(&args->rope_sin);
    return CLATTN_SUCCESS;
}

static void list_operands(clattn__append_call *call)
{
    const clattn_plan *plan = call->plan;
    const clattn_plan_desc *desc = &plan->desc;
    const clattn_append_args *args = &call->args;
    const clattn__dtype *new_type = clattn__dtype_of(desc->dtype_q);
    const clattn__dtype *k_type = clattn__dtype_of(desc->dtype_k), *v_type = clattn__dtype_of(desc->dtype_v);
    const int64_t batch = args->batch, heads_kv = desc->heads_kv, heads_q = desc->heads_q;
    const int is_packed = has(plan, CLATTN_FEATURE_CU_SEQLENS_Q);
    const int is_paged = has(plan, CLATTN_FEATURE_BLOCK_TABLE);
    const int is_mapped = has(plan, CLATTN_FEATURE_SLOT_MAPPING);
    const int has_v = !has(plan, CLATTN_FEATURE_V_IN_K);
    const int has_rope = desc->rope != CLATTN_ROPE_NONE;
    const int64_t new_batch = is_packed ? 1 : batch, tokens = is_packed ? args->total_new : args->new_len;
    const int64_t planes = is_paged ? args->num_pages : batch;
    const int64_t places = is_paged ? desc->page_size : args->kv_len;
    /* Those that the call may leave out. */
    const int gives_q = has_rope && (args->q.handle != NULL || args->q_out.handle != NULL);
    const int gives_positions = has_rope && args->positions.handle != NULL;
    const int gives_lens_out = args->kv_lens_out.handle != NULL;
    const int needs_lens = !is_mapped || (has_rope && !gives_positions) || gives_lens_out;
    memset(call->operands, 0, sizeof call->operands);
    /* clang-format off */
#define OPERAND(number, member, bytes, output, needed, ...)                                            \
    {                                                                                                   \
        const clattn__operand operand = {#member, &args->member, {__VA_ARGS__}, (size_t)(bytes), output, \
                                         needed, 0, 0};                                                \
        call->operands[CLATTN__APPEND_##number] = operand;                                              \
    }
    OPERAND(K_NEW, k_new, new_type->bytes, 0, 1, new_batch, heads_kv, tokens, desc->head_dim_qk)
    OPERAND(V_NEW, v_new, new_type->bytes, 0, has_v, new_batch, heads_kv, tokens, desc->head_dim_v)
    OPERAND(K, k, k_type->bytes, 1, 1, planes, heads_kv, places, desc->head_dim_qk / k_type->elements)
    OPERAND(V, v, v_type->bytes, 1, has_v, planes, heads_kv, places, desc->head_dim_v / v_type->elements)
    OPERAND(K_SCALE, k_scale, 4, desc->dtype_k == CLATTN_DTYPE_I8, has(plan, CLATTN_FEATURE_K_SCALE), planes, heads_kv, places, 1)
    OPERAND(V_SCALE, v_scale, 4, desc->dtype_v == CLATTN_DTYPE_I8, has(plan, CLATTN_FEATURE_V_SCALE), planes, heads_kv, places, 1)
    OPERAND(Q, q, new_type->bytes, 0, gives_q, new_batch, heads_q, tokens, desc->head_dim_qk)
    OPERAND(Q_OUT, q_out, new_type->bytes, 1, gives_q, new_batch, heads_q, tokens, desc->head_dim_qk)
    OPERAND(KV_LENS, kv_lens, 4, 0, needs_lens || args->kv_lens.handle != NULL, batch, 1, 1, 1)
    OPERAND(KV_LENS_OUT, kv_lens_out, 4, 1, gives_lens_out, batch, 1, 1, 1)
    OPERAND(Q_LENS, q_lens, 4, 0, has(plan, CLATTN_FEATURE_Q_LENS), batch, 1, 1, 1)
    OPERAND(CU_SEQLENS_Q, cu_seqlens_q, 4, 0, is_packed, 1, 1, 1, batch + 1)
    OPERAND(BLOCK_TABLE, block_table, 4, 0, is_paged && !is_mapped, batch, 1, 1, args->max_blocks)
    OPERAND(SLOT_MAPPING, slot_mapping, 4, 0, is_mapped, new_batch, tokens, 1, 1)
    OPERAND(POSITIONS, positions, 4, 0, gives_positions, new_batch, tokens, 1, 1)
    OPERAND(ROPE_COS, rope_cos, 4, 0, has(plan, CLATTN_FEATURE_ROPE_TABLES), args->rope_len, 1, 1, desc->rotary_dim / 2)
    OPERAND(ROPE_SIN, rope_sin, 4, 0, has(plan, CLATTN_FEATURE_ROPE_TABLES), args->rope_len, 1, 1, desc->rotary_dim / 2)
    OPERAND(STATUS_WORDS, status_words, 4, 1, has(plan, CLATTN_FEATURE_STATUS), 1, 1, 1, 4)
#undef OPERAND
    /* clang-format on */
}

/* Whether two tensors are one and the same, so that each element is read before it is written. */
static int is_in_place(const clattn__operand *out, const clattn__operand *in)
{
    const clattn_tensor *x = out->tensor, *y = in->tensor;
    if (x->handle == NULL || x->handle != y->handle || x->mem_kind != y->mem_kind ||
        x->byte_offset != y->byte_offset)
        return 0;
    for (int axis = 0; axis < 4; axis++)
        if (out->size[axis] > 1 && x->stride[axis] != y->stride[axis])
            return 0;
    return 1;
}

static clattn_status check_overlap(const clattn__append_call *call, const char *where)
{
    clattn__operand others[CLATTN__APPEND_BUFFERS];
    int count = 0;
    for (int i = 0; i < CLATTN__APPEND_BUFFERS; i++) {
        const clattn__operand *x = &call->operands[i];
        if ((i == CLATTN__APPEND_Q && is_in_place(&call->operands[CLATTN__APPEND_Q_OUT], x)) ||
            (i == CLATTN__APPEND_KV_LENS && is_in_place(&call->operands[CLATTN__APPEND_KV_LENS_OUT], x)))
            continue;
        others[count++] = *x;
    }
    return clattn__check_overlap(others, count, where, &call->plan->context->log);
}

clattn_status clattn__check_append(clattn__append_call *call, clattn_plan *plan,
                                   const clattn_append_args *given, const char *where)
{
    const clattn__log *log = &plan->context->log;
    clattn_append_args *args = &call->args;
    call->plan = plan;
    FORWARD_IF_ERROR(clattn__check_operation(plan, CLATTN_OPERATION_KV_APPEND, where));
    RETURN_ERROR_IF(given == NULL, log, CLATTN_INVALID_ARGUMENT, "%s: args is NULL", where);
    FORWARD_IF_ERROR(clattn__read_struct(args, sizeof *args, given, sizeof *args, where, "args", log));
    RETURN_ERROR_IF(args->reserved != 0, log, CLATTN_INVALID_ARGUMENT, "%s: args.reserved = %u; expected 0",
                    where, (unsigned)args->reserved);
    FORWARD_IF_ERROR(check_lengths(call, where));
    FORWARD_IF_ERROR(check_rope(call, where));
    FORWARD_IF_ERROR(complete_strides(args, where, log));
    list_operands(call);
    for (int i = 0; i < CLATTN__APPEND_BUFFERS; i++)
        FORWARD_IF_ERROR(clattn__check_operand(&call->operands[i], where, plan->context));
    FORWARD_IF_ERROR(check_overlap(call, where));

    const int64_t lines = (int64_t)plan->desc.heads_kv * (has(plan, CLATTN_FEATURE_V_IN_K) ? 1 : 2) +
                          (call->operands[CLATTN__APPEND_Q].is_needed ? plan->desc.heads_q : 0);
    const int is_packed = has(plan, CLATTN_FEATURE_CU_SEQLENS_Q);
    const int64_t sequences = is_packed ? args->batch > 0 : args->batch;
    const int64_t tokens = is_packed ? args->total_new : args->new_len;
    FORWARD_IF_ERROR(clattn__check_groups(log, where, "batch * new tokens", tokens, sequences));
    FORWARD_IF_ERROR(clattn__check_groups(log, where, "tokens * heads", lines, sequences * tokens));
    call->groups = sequences * tokens * lines;
    return CLATTN_SUCCESS;
}
