/* forward_check.c: everything that can be wrong with a call is found before anything is enqueued. */
#include "dtype.h"
#include "forward_call.h"
#include "operation.h"

#include <math.h>
#include <string.h>

/* ---- Tensors ---- */

/* All tensors of a call, numbered as CLATTN__BUFFER_*. user and workspace are checked on their own. */
static void list_operands(clattn__operand operands[CLATTN__BUFFERS], const clattn_plan_desc *desc,
                          const clattn_forward_args *args)
{
    const uint32_t features = desc->features;
    const int64_t batch = args->batch, q_len = args->q_len, kv_len = args->kv_len;
    const int64_t heads_q = desc->heads_q, heads_kv = desc->heads_kv;
    const int64_t tile_rows = desc->tile_rows > 0 ? desc->tile_rows : 1;
    const int64_t q_tiles = (q_len + tile_rows - 1) / tile_rows;
    /* Rows of q, and places of keys: packed, paged or padded. */
    const int is_packed_q = (features & CLATTN_FEATURE_CU_SEQLENS_Q) != 0;
    const int is_packed_k = (features & CLATTN_FEATURE_CU_SEQLENS_K) != 0;
    const int is_paged = (features & CLATTN_FEATURE_BLOCK_TABLE) != 0;
    const int64_t q_batch = is_packed_q ? 1 : batch, q_rows = is_packed_q ? args->total_q : q_len;
    const int64_t k_batch = is_paged ? args->num_pages : is_packed_k ? 1 : batch;
    const int64_t k_rows = is_paged ? desc->page_size : is_packed_k ? args->total_k : kv_len;
    const int has_v = (features & CLATTN_FEATURE_V_IN_K) == 0;
    const clattn__dtype *k_type = clattn__dtype_of(desc->dtype_k), *v_type = clattn__dtype_of(desc->dtype_v);
    memset(operands, 0, CLATTN__BUFFERS * sizeof *operands);
    /* clang-format off */
#define HAS(feature) ((features & (feature)) != 0)
#define OPERAND(number, member, bytes, output, needed, ...)                                          \
    {                                                                                                 \
        const clattn__operand operand = {#member, &args->member, {__VA_ARGS__}, (size_t)(bytes), output, \
                                         needed, 0, 0};                                              \
        operands[CLATTN__BUFFER_##number] = operand;                                                  \
    }
    OPERAND(Q, q, clattn__dtype_of(desc->dtype_q)->bytes, 0, 1, q_batch, heads_q, q_rows, desc->head_dim_qk)
    OPERAND(K, k, k_type->bytes, 0, 1, k_batch, heads_kv, k_rows, desc->head_dim_qk / k_type->elements)
    OPERAND(V, v, v_type->bytes, 0, has_v, k_batch, heads_kv, k_rows, desc->head_dim_v / v_type->elements)
    OPERAND(O, o, clattn__dtype_of(desc->dtype_o)->bytes, 1, 1, q_batch, heads_q, q_rows, desc->head_dim_v)
    OPERAND(LSE, lse, 4, 1, HAS(CLATTN_FEATURE_LSE), q_batch, heads_q, q_rows, 1)
    OPERAND(BIAS, bias, clattn__dtype_of(desc->dtype_bias)->bytes, 0, HAS(CLATTN_FEATURE_BIAS), batch, heads_q, q_len, kv_len)
    OPERAND(MASK, mask, 1, 0, HAS(CLATTN_FEATURE_MASK), batch, heads_q, q_len, kv_len)
    OPERAND(BIAS_HEAD_SCALE, bias_head_scale, 4, 0, HAS(CLATTN_FEATURE_BIAS_HEAD_SCALE), batch, heads_q, 1, 1)
    OPERAND(ALIBI_SLOPES, alibi_slopes, 4, 0, HAS(CLATTN_FEATURE_ALIBI), batch, heads_q, 1, 1)
    OPERAND(SINKS, sinks, 4, 0, HAS(CLATTN_FEATURE_SINKS), batch, heads_q, 1, 1)
    OPERAND(Q_LENS, q_lens, 4, 0, HAS(CLATTN_FEATURE_Q_LENS), batch, 1, 1, 1)
    OPERAND(KV_LENS, kv_lens, 4, 0, HAS(CLATTN_FEATURE_KV_LENS), batch, 1, 1, 1)
    OPERAND(Q_OFFSETS, q_offsets, 4, 0, HAS(CLATTN_FEATURE_Q_OFFSETS), batch, 1, 1, 1)
    OPERAND(TILES_COUNT, tiles_count, 4, 0, HAS(CLATTN_FEATURE_KEY_TILES), batch, heads_q, q_tiles, 1)
    OPERAND(TILES_INDEX, tiles_index, 4, 0, HAS(CLATTN_FEATURE_KEY_TILES), batch, heads_q, q_tiles, args->tiles_capacity)
    OPERAND(USER, user, 1, 0, 0, 0, 0, 0, 0)
    OPERAND(K_SCALE, k_scale, 4, 0, HAS(CLATTN_FEATURE_K_SCALE), k_batch, heads_kv, k_rows, 1)
    OPERAND(V_SCALE, v_scale, 4, 0, HAS(CLATTN_FEATURE_V_SCALE), k_batch, heads_kv, k_rows, 1)
    OPERAND(CU_SEQLENS_Q, cu_seqlens_q, 4, 0, HAS(CLATTN_FEATURE_CU_SEQLENS_Q), 1, 1, 1, batch + 1)
    OPERAND(CU_SEQLENS_K, cu_seqlens_k, 4, 0, HAS(CLATTN_FEATURE_CU_SEQLENS_K), 1, 1, 1, batch + 1)
    OPERAND(BLOCK_TABLE, block_table, 4, 0, HAS(CLATTN_FEATURE_BLOCK_TABLE), batch, 1, 1, args->max_blocks)
    OPERAND(STATUS_WORDS, status_words, 4, 1, HAS(CLATTN_FEATURE_STATUS), 1, 1, 1, 4)
    OPERAND(WORKSPACE, workspace, 1, 1, 0, 0, 0, 0, 0)
#undef OPERAND
#undef HAS
    /* clang-format on */
}

/* What the caller's functions read is the caller's concern: only the place is checked. */
static clattn_status check_user(const clattn_plan *plan, const clattn_forward_args *args, const char *where)
{
    const clattn__log *log = &plan->context->log;
    const int has_mods = plan->has_score_mod || plan->has_mask_mod;
    size_t bytes = 0;
    FORWARD_IF_ERROR(clattn__check_kind(&args->user, where, "user", plan->context));
    RETURN_ERROR_IF(args->user.byte_offset % 16 != 0, log, CLATTN_INVALID_ARGUMENT,
                    "%s: user.byte_offset = %llu; expected a multiple of 16", where,
                    (unsigned long long)args->user.byte_offset);
    for (int i = 0; i < 4; i++)
        RETURN_ERROR_IF(!has_mods && args->user_values[i] != 0.0f, log, CLATTN_INVALID_ARGUMENT,
                        "%s: user_values[%d] = %g; expected 0, the plan has neither score_mod nor mask_mod",
                        where, i, (double)args->user_values[i]);
    if (args->user.handle == NULL)
        return CLATTN_SUCCESS;
    RETURN_ERROR_IF(!has_mods, log, CLATTN_INVALID_ARGUMENT,
                    "%s: user.handle is set; expected NULL, the plan has neither score_mod nor mask_mod",
                    where);
    FORWARD_IF_ERROR(clattn__check_alignment(&args->user, 16, where, "user", log));
    if (args->user.mem_kind != CLATTN_MEM_BUFFER)
        return CLATTN_SUCCESS;
    FORWARD_IF_CL_ERROR(log, where, "clGetMemObjectInfo",
                        plan->context->cl.clGetMemObjectInfo((cl_mem)args->user.handle, CL_MEM_SIZE,
                                                             sizeof bytes, &bytes, NULL));
    RETURN_ERROR_IF(args->user.byte_offset >= bytes, log, CLATTN_BUFFER_TOO_SMALL,
                    "%s: user.byte_offset = %llu; expected less than the buffer's %llu bytes", where,
                    (unsigned long long)args->user.byte_offset, (unsigned long long)bytes);
    return CLATTN_SUCCESS;
}

/* Whether calls of the plan ever need a workspace. */
static int may_need_workspace(const clattn_plan *plan)
{
    return clattn__tile_map_bound(plan, 1, 1, 1) > 0 ||
           clattn__splits_bound(plan, 1, 1, 1, CLATTN_MAX_LENGTH) > 0;
}

/* The workspace as one more output; without a handle the call makes its own. */
static clattn_status check_workspace(clattn__forward_call *call, const char *where)
{
    const clattn_plan *plan = call->plan;
    const clattn__log *log = &plan->context->log;
    const clattn_tensor *tensor = &call->args.workspace;
    const clattn__operand operand = {"workspace", tensor, {1, 1, 1, (int64_t)call->workspace_bytes}, 1, 1, 0,
                                     0,           0};
    call->operands[CLATTN__BUFFER_WORKSPACE] = operand;
    FORWARD_IF_ERROR(clattn__check_kind(tensor, where, "workspace", plan->context));
    if (tensor->handle == NULL)
        return CLATTN_SUCCESS;
    RETURN_ERROR_IF(!may_need_workspace(plan), log, CLATTN_INVALID_ARGUMENT,
                    "%s: workspace.handle is set; expected NULL, calls of this plan need none", where);
    RETURN_ERROR_IF(tensor->byte_offset % 4 != 0 && call->splits.bytes > 0, log, CLATTN_INVALID_ARGUMENT,
                    "%s: workspace.byte_offset = %llu; expected a multiple of 4", where,
                    (unsigned long long)tensor->byte_offset);
    if (call->splits.bytes > 0)
        FORWARD_IF_ERROR(clattn__check_alignment(tensor, 4, where, "workspace", log));
    call->operands[CLATTN__BUFFER_WORKSPACE].is_needed = 1;
    return clattn__check_operand(&call->operands[CLATTN__BUFFER_WORKSPACE], where, plan->context);
}

/* ---- Numbers ---- */

/* batch * heads * tiles * splits is a 32-bit group number inside a kernel, and so is a row of all sequences.
 */
clattn_status clattn__check_bounds(const clattn_plan *plan, const char *where, const clattn_bounds *bounds)
{
    const clattn__log *log = &plan->context->log;
    const int is_packed = (plan->desc.features & CLATTN_FEATURE_CU_SEQLENS_Q) != 0;
    const int64_t batch = bounds->batch, q_len = bounds->q_len;
    FORWARD_IF_ERROR(clattn__check_number(log, where, "batch", batch, 0, INT32_MAX));
    FORWARD_IF_ERROR(clattn__check_number(log, where, "q_len", q_len, 0, CLATTN_MAX_LENGTH));
    FORWARD_IF_ERROR(clattn__check_number(log, where, "kv_len", bounds->kv_len, 0, CLATTN_MAX_LENGTH));
    FORWARD_IF_ERROR(
        clattn__check_number(log, where, "total_q", bounds->total_q, 0, is_packed ? CLATTN_MAX_LENGTH : 0));
    const clattn__program *program = clattn__program_of_call(plan, q_len);
    const int is_decode = program->recipe->is_decode;
    const int64_t heads = is_decode ? plan->desc.heads_kv : plan->desc.heads_q;
    const int64_t group = plan->desc.heads_q / plan->desc.heads_kv;
    const int64_t rows = is_packed ? bounds->total_q : q_len;
    RETURN_ERROR_IF(is_decode && rows > CLATTN_MAX_LENGTH / group, log, CLATTN_INVALID_ARGUMENT,
                    "%s: %s = %lld; expected at most 2^30 / %d for decode kernels", where,
                    is_packed ? "total_q" : "q_len", (long long)rows, (int)group);
    const int64_t tiles = clattn__query_tiles(plan, program, batch, q_len, bounds->total_q);
    const int64_t sequences = is_packed ? 1 : batch;
    const int too_many = tiles > 0 && sequences > INT32_MAX / heads / tiles;
    const int64_t splits =
        too_many ? 1 : clattn__splits_of(plan, batch, q_len, bounds->total_q, bounds->kv_len).count;
    RETURN_ERROR_IF(too_many || (tiles > 0 && sequences > INT32_MAX / heads / tiles / splits), log,
                    CLATTN_INVALID_ARGUMENT,
                    "%s: batch = %lld, heads_%s = %d, q_len = %lld; expected fewer than 2^31 query tiles "
                    "of %d rows",
                    where, (long long)batch, is_decode ? "kv" : "q", (int)heads, (long long)q_len,
                    (int)program->tile.block_q);
    RETURN_ERROR_IF(
        splits > 1 && sequences * rows > INT32_MAX / plan->desc.heads_q, log, CLATTN_INVALID_ARGUMENT,
        "%s: batch = %lld, heads_q = %d, q_len = %lld; expected fewer than 2^31 rows of all heads "
        "for decode kernels",
        where, (long long)batch, (int)plan->desc.heads_q, (long long)q_len);
    return CLATTN_SUCCESS;
}

/* Sizes of packed and paged tensors. */
static clattn_status check_storage(const clattn_plan *plan, const clattn_forward_args *args,
                                   const char *where)
{
    const clattn__log *log = &plan->context->log;
    const uint32_t features = plan->desc.features;
    const int is_paged = (features & CLATTN_FEATURE_BLOCK_TABLE) != 0;
    FORWARD_IF_ERROR(
        clattn__check_number(log, where, "total_k", args->total_k, 0,
                             (features & CLATTN_FEATURE_CU_SEQLENS_K) != 0 ? CLATTN_MAX_LENGTH : 0));
    FORWARD_IF_ERROR(
        clattn__check_number(log, where, "num_pages", args->num_pages, 0, is_paged ? INT32_MAX : 0));
    FORWARD_IF_ERROR(clattn__check_number(log, where, "max_blocks", args->max_blocks, 0,
                                          is_paged ? CLATTN_MAX_LENGTH : 0));
    if (!is_paged)
        return CLATTN_SUCCESS;
    RETURN_ERROR_IF(args->kv_len > args->max_blocks * plan->desc.page_size, log, CLATTN_INVALID_ARGUMENT,
                    "%s: kv_len = %lld; expected at most max_blocks * page_size = %lld * %d", where,
                    (long long)args->kv_len, (long long)args->max_blocks, (int)plan->desc.page_size);
    RETURN_ERROR_IF(args->num_pages == 0 && args->kv_len > 0 && args->batch > 0, log, CLATTN_INVALID_ARGUMENT,
                    "%s: num_pages = 0; expected at least one page, kv_len is %lld", where,
                    (long long)args->kv_len);
    return CLATTN_SUCCESS;
}

static clattn_status check_scalars(const clattn_plan *plan, const clattn_forward_args *args,
                                   const char *where)
{
    const clattn__log *log = &plan->context->log;
    const uint32_t features = plan->desc.features;
    const clattn_bounds bounds = {sizeof bounds, 0, args->batch, args->q_len, args->kv_len, args->total_q};
    FORWARD_IF_ERROR(clattn__check_bounds(plan, where, &bounds));
    FORWARD_IF_ERROR(check_storage(plan, args, where));
    RETURN_ERROR_IF(!isfinite(args->scale), log, CLATTN_INVALID_ARGUMENT,
                    "%s: scale = %g; expected a finite number, 0 for 1/sqrt(head_dim_qk)", where,
                    (double)args->scale);
    RETURN_ERROR_IF((features & CLATTN_FEATURE_SOFTCAP) != 0 &&
                        !(args->softcap > 0.0f && isfinite(args->softcap)),
                    log, CLATTN_INVALID_ARGUMENT,
                    "%s: softcap = %g; expected a finite number > 0, the plan has softcap take part", where,
                    (double)args->softcap);
    RETURN_ERROR_IF((features & CLATTN_FEATURE_SOFTCAP) == 0 && args->softcap != 0.0f, log,
                    CLATTN_INVALID_ARGUMENT, "%s: softcap = %g; expected 0, the plan's features leave it out",
                    where, (double)args->softcap);
    if ((features & CLATTN_FEATURE_WINDOW) != 0) {
        RETURN_ERROR_IF(args->window_left < -1 || args->window_right < -1, log, CLATTN_INVALID_ARGUMENT,
                        "%s: window = (%lld, %lld); expected each >= 0, or -1 for no bound", where,
                        (long long)args->window_left, (long long)args->window_right);
    } else {
        RETURN_ERROR_IF(args->window_left != 0 || args->window_right != 0, log, CLATTN_INVALID_ARGUMENT,
                        "%s: window = (%lld, %lld); expected (0, 0), the plan's features leave it out", where,
                        (long long)args->window_left, (long long)args->window_right);
    }
    RETURN_ERROR_IF(plan->desc.position_mode != CLATTN_POSITION_EXPLICIT && args->q_offset != 0, log,
                    CLATTN_INVALID_ARGUMENT,
                    "%s: q_offset = %lld; expected 0, the plan's position mode is not explicit", where,
                    (long long)args->q_offset);
    RETURN_ERROR_IF((features & CLATTN_FEATURE_Q_OFFSETS) != 0 && args->q_offset != 0, log,
                    CLATTN_INVALID_ARGUMENT,
                    "%s: q_offset = %lld; expected 0, the plan takes offsets from q_offsets", where,
                    (long long)args->q_offset);
    const int tells_position =
        (features & CLATTN_FEATURE_ALIBI) != 0 || plan->has_score_mod || plan->has_mask_mod;
    RETURN_ERROR_IF(tells_position &&
                        (args->q_offset < -CLATTN_MAX_LENGTH || args->q_offset > CLATTN_MAX_LENGTH),
                    log, CLATTN_INVALID_ARGUMENT,
                    "%s: q_offset = %lld; expected -2^30 to 2^30 where ALiBi, score_mod or mask_mod count "
                    "positions",
                    where, (long long)args->q_offset);
    RETURN_ERROR_IF((features & CLATTN_FEATURE_KEY_TILES) == 0 && args->tiles_capacity != 0, log,
                    CLATTN_INVALID_ARGUMENT,
                    "%s: tiles_capacity = %lld; expected 0, the plan's features leave key tiles out", where,
                    (long long)args->tiles_capacity);
    RETURN_ERROR_IF(args->tiles_capacity < 0 || args->tiles_capacity > CLATTN_MAX_LENGTH, log,
                    CLATTN_INVALID_ARGUMENT, "%s: tiles_capacity = %lld; expected 0 to %d", where,
                    (long long)args->tiles_capacity, CLATTN_MAX_LENGTH);
    return CLATTN_SUCCESS;
}

/* ---- The whole ---- */

uint64_t clattn__parts_begin(uint64_t map_bytes) { return (map_bytes + 3) / 4 * 4; }

/* V inside K: the same tensor, which the kernels read once. */
static void take_v_from_k(clattn__forward_call *call)
{
    clattn__operand *operands = call->operands;
    operands[CLATTN__BUFFER_V] = operands[CLATTN__BUFFER_K];
    operands[CLATTN__BUFFER_V_SCALE] = operands[CLATTN__BUFFER_K_SCALE];
}

clattn_status clattn__check_forward(clattn__forward_call *call, clattn_plan *plan,
                                    const clattn_forward_args *given, const char *where)
{
    const clattn_context *context = plan->context;
    const clattn__log *log = &context->log;
    clattn_forward_args *args = &call->args;
    call->where = where;
    call->plan = plan;
    FORWARD_IF_ERROR(clattn__check_operation(plan, CLATTN_OPERATION_FORWARD, where));
    RETURN_ERROR_IF(given == NULL, log, CLATTN_INVALID_ARGUMENT, "%s: args is NULL", where);
    FORWARD_IF_ERROR(clattn__read_struct(args, sizeof *args, given,
                                         offsetof(clattn_forward_args, softcap) + sizeof args->softcap, where,
                                         "args", log));
    RETURN_ERROR_IF(args->reserved != 0, log, CLATTN_INVALID_ARGUMENT, "%s: args.reserved = %u; expected 0",
                    where, (unsigned)args->reserved);
    FORWARD_IF_ERROR(check_scalars(plan, args, where));
    call->program = clattn__program_of_call(plan, args->q_len);

    FORWARD_IF_ERROR(clattn__make_rows_contiguous(&args->q, where, "q", log));
    FORWARD_IF_ERROR(clattn__make_rows_contiguous(&args->k, where, "k", log));
    FORWARD_IF_ERROR(clattn__make_rows_contiguous(&args->v, where, "v", log));
    FORWARD_IF_ERROR(clattn__make_rows_contiguous(&args->o, where, "o", log));
    clattn__make_list(&args->cu_seqlens_q);
    clattn__make_list(&args->cu_seqlens_k);
    clattn__make_list(&args->status_words);
    clattn__make_list(&args->workspace);
    clattn__make_table(&args->block_table);
    list_operands(call->operands, &plan->desc, args);
    for (int i = 0; i < CLATTN__BUFFER_WORKSPACE; i++)
        if (i != CLATTN__BUFFER_USER)
            FORWARD_IF_ERROR(clattn__check_operand(&call->operands[i], where, context));
    FORWARD_IF_ERROR(check_user(plan, args, where));

    call->map = clattn__tile_map_of(plan, call->program, args);
    RETURN_ERROR_IF(clattn__tile_map_groups(&call->map) > INT32_MAX, log, CLATTN_INVALID_ARGUMENT,
                    "%s: key tiles of %d x %d cut the call into %llu map entries; expected fewer than 2^31",
                    where, (int)plan->desc.tile_rows, (int)plan->desc.tile_keys,
                    (unsigned long long)call->map.bytes);
    call->splits = clattn__splits_of(plan, args->batch, args->q_len, args->total_q, args->kv_len);
    call->parts_begin = clattn__parts_begin(call->map.bytes);
    call->workspace_bytes = call->splits.bytes > 0 ? call->parts_begin + call->splits.bytes : call->map.bytes;
    FORWARD_IF_ERROR(check_workspace(call, where));
    FORWARD_IF_ERROR(clattn__check_overlap(call->operands, CLATTN__BUFFERS, where, log));
    if ((plan->desc.features & CLATTN_FEATURE_V_IN_K) != 0)
        take_v_from_k(call);
    return CLATTN_SUCCESS;
}
