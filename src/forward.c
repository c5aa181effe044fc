/* forward.c: one attention call: everything is checked, then the kernels are launched. */
#include "dtype.h"
#include "emit.h"
#include "operand.h"
#include "plan.h"
#include "tile_map.h"

#include <assert.h>
#include <math.h>
#include <string.h>

#define WHERE "clattn_enqueue_forward"

static_assert(sizeof(attention_args) == 12 * 32 + 6 * 24 + 15 * 8 + 34 * 4, "host and kernel must agree");

/* ---- Tensors ---- */

static clattn_status make_rows_contiguous(clattn_tensor *tensor, const char *name, const clattn__log *log)
{
    RETURN_ERROR_IF(tensor->stride[3] != 0 && tensor->stride[3] != 1, log, CLATTN_INVALID_ARGUMENT,
                    WHERE ": %s.stride[3] = %lld; expected 1 (rows are contiguous), or 0 for short", name,
                    (long long)tensor->stride[3]);
    tensor->stride[3] = 1;
    return CLATTN_SUCCESS;
}

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
static clattn_status check_user(const clattn_plan *plan, const clattn_forward_args *args)
{
    const clattn__log *log = &plan->context->log;
    const int has_mods = plan->has_score_mod || plan->has_mask_mod;
    size_t bytes = 0;
    FORWARD_IF_ERROR(clattn__check_kind(&args->user, WHERE, "user", plan->context));
    RETURN_ERROR_IF(args->user.byte_offset % 16 != 0, log, CLATTN_INVALID_ARGUMENT,
                    WHERE ": user.byte_offset = %llu; expected a multiple of 16",
                    (unsigned long long)args->user.byte_offset);
    for (int i = 0; i < 4; i++)
        RETURN_ERROR_IF(!has_mods && args->user_values[i] != 0.0f, log, CLATTN_INVALID_ARGUMENT,
                        WHERE
                        ": user_values[%d] = %g; expected 0, the plan has neither score_mod nor mask_mod",
                        i, (double)args->user_values[i]);
    if (args->user.handle == NULL)
        return CLATTN_SUCCESS;
    RETURN_ERROR_IF(!has_mods, log, CLATTN_INVALID_ARGUMENT,
                    WHERE ": user.handle is set; expected NULL, the plan has neither score_mod nor mask_mod");
    FORWARD_IF_ERROR(clattn__check_alignment(&args->user, 16, WHERE, "user", log));
    if (args->user.mem_kind != CLATTN_MEM_BUFFER)
        return CLATTN_SUCCESS;
    FORWARD_IF_CL_ERROR(log, WHERE, "clGetMemObjectInfo",
                        plan->context->cl.clGetMemObjectInfo((cl_mem)args->user.handle, CL_MEM_SIZE,
                                                             sizeof bytes, &bytes, NULL));
    RETURN_ERROR_IF(args->user.byte_offset >= bytes, log, CLATTN_BUFFER_TOO_SMALL,
                    WHERE ": user.byte_offset = %llu; expected less than the buffer's %llu bytes",
                    (unsigned long long)args->user.byte_offset, (unsigned long long)bytes);
    return CLATTN_SUCCESS;
}

/* The workspace as one more output; without a handle the call makes its own. */
static clattn_status check_workspace(clattn__operand *workspace, const clattn_plan *plan,
                                     const clattn_forward_args *args, uint64_t bytes)
{
    const clattn__log *log = &plan->context->log;
    const clattn__operand operand = {"workspace", &args->workspace, {1, 1, 1, (int64_t)bytes}, 1, 1, 0, 0, 0};
    *workspace = operand;
    FORWARD_IF_ERROR(clattn__check_kind(&args->workspace, WHERE, "workspace", plan->context));
    if (args->workspace.handle == NULL)
        return CLATTN_SUCCESS;
    RETURN_ERROR_IF(clattn__tile_map_bound(plan, 1, 1, 1).bytes == 0, log, CLATTN_INVALID_ARGUMENT,
                    WHERE ": workspace.handle is set; expected NULL, calls of this plan need none");
    workspace->is_needed = 1;
    return clattn__check_operand(workspace, WHERE, plan->context);
}

/* ---- Scalars ---- */

static clattn_status check_length(const clattn__log *log, const char *where, const char *name, int64_t value,
                                  int64_t most)
{
    RETURN_ERROR_IF(value < 0 || value > most, log, CLATTN_INVALID_ARGUMENT,
                    "%s: %s = %lld; expected 0 to %lld", where, name, (long long)value, (long long)most);
    return CLATTN_SUCCESS;
}

/* batch * heads * tiles is a 32-bit group number inside a kernel. */
static clattn_status check_lengths(const clattn_plan *plan, const char *where, int64_t batch, int64_t q_len,
                                   int64_t kv_len)
{
    const clattn__log *log = &plan->context->log;
    const int32_t block_q = plan->program->tile.block_q;
    FORWARD_IF_ERROR(check_length(log, where, "batch", batch, INT32_MAX));
    FORWARD_IF_ERROR(check_length(log, where, "q_len", q_len, CLATTN_MAX_LENGTH));
    FORWARD_IF_ERROR(check_length(log, where, "kv_len", kv_len, CLATTN_MAX_LENGTH));
    const int64_t tiles = (q_len + block_q - 1) / block_q;
    RETURN_ERROR_IF(tiles > 0 && batch > INT32_MAX / plan->desc.heads_q / tiles, log, CLATTN_INVALID_ARGUMENT,
                    "%s: batch = %lld, heads_q = %d, q_len = %lld; expected fewer than 2^31 query tiles "
                    "of %d rows",
                    where, (long long)batch, (int)plan->desc.heads_q, (long long)q_len, (int)block_q);
    return CLATTN_SUCCESS;
}

static clattn_status check_scalars(const clattn_plan *plan, const clattn_forward_args *args)
{
    const clattn__log *log = &plan->context->log;
    const uint32_t features = plan->desc.features;
    FORWARD_IF_ERROR(check_lengths(plan, WHERE, args->batch, args->q_len, args->kv_len));
    RETURN_ERROR_IF(!isfinite(args->scale), log, CLATTN_INVALID_ARGUMENT,
                    WHERE ": scale = %g; expected a finite number, 0 for 1/sqrt(head_dim_qk)",
                    (double)args->scale);
    RETURN_ERROR_IF((features & CLATTN_FEATURE_SOFTCAP) != 0 &&
                        !(args->softcap > 0.0f && isfinite(args->softcap)),
                    log, CLATTN_INVALID_ARGUMENT,
                    WHERE ": softcap = %g; expected a finite number > 0, the plan has softcap take part",
                    (double)args->softcap);
    RETURN_ERROR_IF(
        (features & CLATTN_FEATURE_SOFTCAP) == 0 && args->softcap != 0.0f, log, CLATTN_INVALID_ARGUMENT,
        WHERE ": softcap = %g; expected 0, the plan's features leave it out", (double)args->softcap);
    if ((features & CLATTN_FEATURE_WINDOW) != 0) {
        RETURN_ERROR_IF(args->window_left < -1 || args->window_right < -1, log, CLATTN_INVALID_ARGUMENT,
                        WHERE ": window = (%lld, %lld); expected each >= 0, or -1 for no bound",
                        (long long)args->window_left, (long long)args->window_right);
    } else {
        RETURN_ERROR_IF(args->window_left != 0 || args->window_right != 0, log, CLATTN_INVALID_ARGUMENT,
                        WHERE ": window = (%lld, %lld); expected (0, 0), the plan's features leave it out",
                        (long long)args->window_left, (long long)args->window_right);
    }
    RETURN_ERROR_IF(plan->desc.position_mode != CLATTN_POSITION_EXPLICIT && args->q_offset != 0, log,
                    CLATTN_INVALID_ARGUMENT,
                    WHERE ": q_offset = %lld; expected 0, the plan's position mode is not explicit",
                    (long long)args->q_offset);
    RETURN_ERROR_IF((features & CLATTN_FEATURE_Q_OFFSETS) != 0 && args->q_offset != 0, log,
                    CLATTN_INVALID_ARGUMENT,
                    WHERE ": q_offset = %lld; expected 0, the plan takes offsets from q_offsets",
                    (long long)args->q_offset);
    const int tells_position =
        (features & CLATTN_FEATURE_ALIBI) != 0 || plan->has_score_mod || plan->has_mask_mod;
    RETURN_ERROR_IF(
        tells_position && (args->q_offset < -CLATTN_MAX_LENGTH || args->q_offset > CLATTN_MAX_LENGTH), log,
        CLATTN_INVALID_ARGUMENT,
        WHERE ": q_offset = %lld; expected -2^30 to 2^30 where ALiBi, score_mod or mask_mod count "
              "positions",
        (long long)args->q_offset);
    RETURN_ERROR_IF((features & CLATTN_FEATURE_KEY_TILES) == 0 && args->tiles_capacity != 0, log,
                    CLATTN_INVALID_ARGUMENT,
                    WHERE ": tiles_capacity = %lld; expected 0, the plan's features leave key tiles out",
                    (long long)args->tiles_capacity);
    RETURN_ERROR_IF(args->tiles_capacity < 0 || args->tiles_capacity > CLATTN_MAX_LENGTH, log,
                    CLATTN_INVALID_ARGUMENT, WHERE ": tiles_capacity = %lld; expected 0 to %d",
                    (long long)args->tiles_capacity, CLATTN_MAX_LENGTH);
    return CLATTN_SUCCESS;
}

static clattn_status check_queue(const clattn_plan *plan, cl_command_queue queue, cl_uint num_wait,
                                 const cl_event *wait)
{
    const clattn_context *context = plan->context;
    const clattn__log *log = &context->log;
    cl_context queue_context = NULL;
    cl_device_id queue_device = NULL;
    RETURN_ERROR_IF(queue == NULL, log, CLATTN_INVALID_ARGUMENT, WHERE ": queue is NULL");
    FORWARD_IF_CL_ERROR(log, WHERE, "clGetCommandQueueInfo",
                        context->cl.clGetCommandQueueInfo(queue, CL_QUEUE_CONTEXT, sizeof queue_context,
                                                          &queue_context, NULL));
    FORWARD_IF_CL_ERROR(
        log, WHERE, "clGetCommandQueueInfo",
        context->cl.clGetCommandQueueInfo(queue, CL_QUEUE_DEVICE, sizeof queue_device, &queue_device, NULL));
    RETURN_ERROR_IF(queue_context != context->cl_context || queue_device != context->device_id, log,
                    CLATTN_INVALID_ARGUMENT, WHERE ": queue belongs to another %s than the plan",
                    queue_context != context->cl_context ? "context" : "device");
    RETURN_ERROR_IF((num_wait == 0) != (wait == NULL), log, CLATTN_INVALID_ARGUMENT,
                    WHERE ": num_wait = %u and wait is %s; expected both or none", (unsigned)num_wait,
                    wait == NULL ? "NULL" : "set");
    for (cl_uint i = 0; i < num_wait; i++)
        RETURN_ERROR_IF(wait[i] == NULL, log, CLATTN_INVALID_ARGUMENT, WHERE ": wait[%u] is NULL",
                        (unsigned)i);
    return CLATTN_SUCCESS;
}

/* ---- What the kernel is told ---- */

static tensor_address tensor_address_of(const clattn__operand *x)
{
    const clattn_tensor *t = x->tensor;
    const tensor_address address = {(cl_long)(t->byte_offset / x->element), x->size[0] > 1 ? t->stride[0] : 0,
                                    t->stride[1], t->stride[2]};
    return address;
}

static number_address number_address_of(const clattn__operand *x)
{
    const clattn_tensor *t = x->tensor;
    const number_address address = {(cl_long)(t->byte_offset / x->element), t->stride[0],
                                    x->size[1] > 1 ? t->stride[1] : 0};
    return address;
}

static int64_t clamp(int64_t value, int64_t limit)
{
    return value < -limit ? -limit : value > limit ? limit : value;
}

/* a + b, or the nearest number that there is. */
static int64_t saturating_add(int64_t a, int64_t b)
{
    if (b > 0 && a > INT64_MAX - b)
        return INT64_MAX;
    if (b < 0 && a < INT64_MIN - b)
        return INT64_MIN;
    return a + b;
}

/* Offset and window may be any numbers, so their sum is taken here as far as it is known: exactly. The kernel
 * adds the clamped offset again. What lies beyond any length stays so far beyond that no sum brings it back.
 */
static void set_positions(attention_args *out, const clattn_plan_desc *desc, const clattn_forward_args *args)
{
    const int64_t far = (int64_t)1 << 50, most_offset = (int64_t)1 << 40;
    const int window = (desc->features & CLATTN_FEATURE_WINDOW) != 0;
    const int causal = (desc->features & CLATTN_FEATURE_CAUSAL) != 0;
    const int64_t left = window ? args->window_left : -1;
    const int64_t right = causal ? 0 : window ? args->window_right : -1;
    const int64_t begin = left < 0 ? INT64_MIN : saturating_add(args->q_offset, -left);
    const int64_t end = right < 0 ? INT64_MAX : saturating_add(saturating_add(args->q_offset, right), 1);
    out->position_mode = desc->position_mode;
    out->q_offset = clamp(args->q_offset, most_offset);
    out->window_begin = clamp(begin, far) - out->q_offset;
    out->window_end = clamp(end, far) - out->q_offset;
}

static void set_tile_map(attention_args *out, const clattn__tile_map *map, const clattn_forward_args *args)
{
    const int64_t plane = map->height * map->width;
    if (map->bytes == 0)
        return;
    out->map_has_bias = map->looks_at_bias;
    out->map_rows = map->rows;
    out->map_keys = map->keys;
    out->map_heads = (cl_int)map->heads;
    out->map_height = (cl_int)map->height;
    out->map_width = (cl_int)map->width;
    out->tile_map.base = (cl_long)args->workspace.byte_offset;
    out->tile_map.batch = map->batches > 1 ? map->heads * plane : 0;
    out->tile_map.head = map->heads > 1 ? plane : 0;
    out->tile_map.token = map->width;
}

static void set_arguments(attention_args *out, const clattn_plan *plan, const clattn_forward_args *args,
                          const clattn__operand *operands, const clattn__tile_map *map)
{
    const clattn_plan_desc *desc = &plan->desc;
    const uint32_t features = desc->features;
    const double scale = args->scale != 0.0f ? (double)args->scale : 1.0 / sqrt((double)desc->head_dim_qk);
    memset(out, 0, sizeof *out);
    out->q = tensor_address_of(&operands[CLATTN__BUFFER_Q]);
    out->k = tensor_address_of(&operands[CLATTN__BUFFER_K]);
    out->v = tensor_address_of(&operands[CLATTN__BUFFER_V]);
    out->o = tensor_address_of(&operands[CLATTN__BUFFER_O]);
    out->lse = tensor_address_of(&operands[CLATTN__BUFFER_LSE]);
    out->bias = tensor_address_of(&operands[CLATTN__BUFFER_BIAS]);
    out->mask = tensor_address_of(&operands[CLATTN__BUFFER_MASK]);
    out->tiles_count = tensor_address_of(&operands[CLATTN__BUFFER_TILES_COUNT]);
    out->tiles_index = tensor_address_of(&operands[CLATTN__BUFFER_TILES_INDEX]);
    out->k_scale = tensor_address_of(&operands[CLATTN__BUFFER_K_SCALE]);
    out->v_scale = tensor_address_of(&operands[CLATTN__BUFFER_V_SCALE]);
    out->bias_head_scale = number_address_of(&operands[CLATTN__BUFFER_BIAS_HEAD_SCALE]);
    out->alibi_slopes = number_address_of(&operands[CLATTN__BUFFER_ALIBI_SLOPES]);
    out->sinks = number_address_of(&operands[CLATTN__BUFFER_SINKS]);
    out->q_lens = number_address_of(&operands[CLATTN__BUFFER_Q_LENS]);
    out->kv_lens = number_address_of(&operands[CLATTN__BUFFER_KV_LENS]);
    out->q_offsets = number_address_of(&operands[CLATTN__BUFFER_Q_OFFSETS]);
    out->cu_seqlens_q = (cl_long)(args->cu_seqlens_q.byte_offset / 4);
    out->cu_seqlens_k = (cl_long)(args->cu_seqlens_k.byte_offset / 4);
    out->block_table = (cl_long)(args->block_table.byte_offset / 4);
    out->block_table_batch = args->block_table.stride[0];
    out->status_words = (cl_long)(args->status_words.byte_offset / 4);
    out->batch = (cl_int)args->batch;
    out->total_q = (cl_int)args->total_q;
    out->total_k = (cl_int)args->total_k;
    out->num_pages = (cl_int)args->num_pages;
    out->bias_key = args->bias.stride[3];
    out->mask_key = args->mask.stride[3];
    out->tiles_entry = args->tiles_index.stride[3];
    out->tiles_capacity = args->tiles_capacity;
    out->user = (cl_long)args->user.byte_offset;
    set_positions(out, desc, args);
    set_tile_map(out, map, args);
    out->q_tiles = (cl_int)((args->q_len + plan->program->tile.block_q - 1) / plan->program->tile.block_q);
    out->heads_q = desc->heads_q;
    out->heads_per_kv = desc->heads_q / desc->heads_kv;
    out->q_len = (cl_int)args->q_len;
    out->kv_len = (cl_int)args->kv_len;
    out->head_dim_qk = desc->head_dim_qk;
    out->head_dim_v = desc->head_dim_v;
    out->features = (cl_int)features;
    out->transforms = plan->has_score_mod ||
                      (features & (CLATTN_FEATURE_SOFTCAP | CLATTN_FEATURE_BIAS | CLATTN_FEATURE_ALIBI)) != 0;
    out->tile_rows = desc->tile_rows;
    out->tile_keys = desc->tile_keys;
    out->scale = (float)scale;
    out->scale_log2 = (float)(scale * 1.4426950408889634);
    out->softcap = args->softcap;
    out->lse_unit = (features & CLATTN_FEATURE_LSE_BASE_2) != 0 ? 1.44269504f : 1.0f;
    memcpy(out->user_values, args->user_values, sizeof out->user_values);
}

static int pick_kernel(const clattn_plan *plan, const clattn__operand *operands)
{
    if (plan->program->path->kernel_aligned == NULL)
        return CLATTN__KERNEL_ANY;
    for (int i = CLATTN__BUFFER_Q; i <= CLATTN__BUFFER_O; i++)
        if (!clattn__rows_are_aligned(&operands[i], &plan->context->cl))
            return CLATTN__KERNEL_ANY;
    return CLATTN__KERNEL_ALIGNED;
}

/* ---- Launching ---- */

/* Groups of one launch, each of `work` multiply-adds: PoCL compiles a kernel again for grids wider than
 * 65534, NVIDIA's second axis ends at 65535, and a watchdog may ask for less. */
static int64_t groups_per_launch(const clattn_plan *plan, uint64_t work)
{
    enum { MOST = 32768 };
    const uint64_t budget = plan->context->max_work_per_launch;
    if (budget == 0 || budget / work >= MOST)
        return MOST;
    return budget >= work ? (int64_t)(budget / work) : 1;
}

/* One kernel over `groups` work-groups, in as many launches as that takes. */
static clattn_status launch(clattn_plan *plan, clattn__emitter *emitter, int kernel, int64_t groups,
                            uint64_t work, const clattn__memory buffers[CLATTN__BUFFERS],
                            attention_args *args)
{
    const char *failed = NULL;
    cl_int code = CL_SUCCESS;
    const int64_t most = groups_per_launch(plan, work);
    const size_t work_items = clattn__work_items(plan->program, kernel);
    const cl_kernel instance = clattn__instance_take(plan->program, kernel);
    for (int64_t first = 0; first < groups && code == CL_SUCCESS; first += most) {
        const int64_t count = groups - first < most ? groups - first : most;
        args->first_group = (cl_int)first;
        args->num_groups = (cl_int)count;
        code = clattn__set_arguments(emitter->cl, instance, buffers, args, &failed);
        if (code == CL_SUCCESS)
            code = clattn__emit_kernel(emitter, instance, work_items, (size_t)count, &failed);
    }
    clattn__instance_return(plan->program, kernel, instance);
    FORWARD_IF_CL_ERROR(&plan->context->log, WHERE, failed, code);
    return CLATTN_SUCCESS;
}

static int64_t map_groups(const clattn__tile_map *map)
{
    return map->bytes == 0 ? 0
                           : map->batches * map->heads * map->height *
                                 ((map->width + CLATTN__MAP_WORK_ITEMS - 1) / CLATTN__MAP_WORK_ITEMS);
}

/* First the tile map, if there is one, then attention. */
static clattn_status launch_all(clattn_plan *plan, clattn__emitter *emitter, const clattn__operand *operands,
                                clattn__memory workspace, const clattn__tile_map *map,
                                const clattn_forward_args *args)
{
    const clattn__tile *tile = &plan->program->tile;
    const int64_t kv_len = args->kv_len;
    clattn__memory buffers[CLATTN__BUFFERS];
    attention_args kernel_args;
    for (int i = 0; i < CLATTN__BUFFERS; i++)
        buffers[i] = clattn__memory_of(operands[i].tensor);
    buffers[CLATTN__BUFFER_WORKSPACE] = workspace;
    set_arguments(&kernel_args, plan, args, operands, map);
    const int64_t groups = kernel_args.q_tiles * (int64_t)plan->desc.heads_q * args->batch;
    clattn__say(&plan->context->log, CLATTN_LOG_DEBUG,
                WHERE ": batch %lld, q_len %lld, kv_len %lld: %lld work-groups, a tile map of %llu bytes",
                (long long)args->batch, (long long)args->q_len, (long long)kv_len, (long long)groups,
                (unsigned long long)map->bytes);
    if (map->bytes > 0)
        FORWARD_IF_ERROR(launch(plan, emitter, CLATTN__KERNEL_TILES, map_groups(map),
                                CLATTN__MAP_WORK_ITEMS * (uint64_t)map->rows * (uint64_t)map->keys, buffers,
                                &kernel_args));
    return launch(plan, emitter, pick_kernel(plan, operands), groups,
                  (uint64_t)tile->block_q * (uint64_t)(kv_len + 1) *
                      (uint64_t)(plan->desc.head_dim_qk + plan->desc.head_dim_v),
                  buffers, &kernel_args);
}

/* With a workspace of the call's own where the map needs one and the caller gave none: the commands keep it
 * alive until they have ended. */
static clattn_status launch_with_workspace(clattn_plan *plan, clattn__emitter *emitter,
                                           const clattn__operand *operands, const clattn__tile_map *map,
                                           const clattn_forward_args *args)
{
    const clattn_context *context = plan->context;
    cl_mem own = NULL;
    cl_int code = CL_SUCCESS;
    if (map->bytes > 0 && args->workspace.handle == NULL) {
        own = context->cl.clCreateBuffer(context->cl_context, CL_MEM_READ_WRITE | CL_MEM_HOST_NO_ACCESS,
                                         (size_t)map->bytes, NULL, &code);
        FORWARD_IF_CL_ERROR(&context->log, WHERE, "clCreateBuffer", code);
    }
    const clattn__memory workspace =
        own != NULL ? (clattn__memory){CLATTN_MEM_BUFFER, own} : clattn__memory_of(&args->workspace);
    const clattn_status status = launch_all(plan, emitter, operands, workspace, map, args);
    if (own != NULL)
        context->cl.clReleaseMemObject(own);
    return status;
}

clattn_status clattn_enqueue_forward(clattn_plan *plan, cl_command_queue queue,
                                     const clattn_forward_args *given, cl_uint num_wait, const cl_event *wait,
                                     cl_event *event)
{
    clattn_forward_args args;
    if (plan == NULL)
        return CLATTN_INVALID_ARGUMENT;
    const clattn_context *context = plan->context;
    const clattn__log *log = &context->log;
    RETURN_ERROR_IF(given == NULL, log, CLATTN_INVALID_ARGUMENT, WHERE ": args is NULL");
    FORWARD_IF_ERROR(clattn__read_struct(&args, sizeof args, given,
                                         offsetof(clattn_forward_args, softcap) + sizeof args.softcap, WHERE,
                                         "args", log));
    RETURN_ERROR_IF(args.reserved != 0, log, CLATTN_INVALID_ARGUMENT,
                    WHERE ": args.reserved = %u; expected 0", (unsigned)args.reserved);
    FORWARD_IF_ERROR(check_queue(plan, queue, num_wait, wait));
    FORWARD_IF_ERROR(check_scalars(plan, &args));

    FORWARD_IF_ERROR(make_rows_contiguous(&args.q, "q", log));
    FORWARD_IF_ERROR(make_rows_contiguous(&args.k, "k", log));
    FORWARD_IF_ERROR(make_rows_contiguous(&args.v, "v", log));
    FORWARD_IF_ERROR(make_rows_contiguous(&args.o, "o", log));
    args.workspace.stride[3] = 1;
    clattn__operand operands[CLATTN__BUFFERS];
    list_operands(operands, &plan->desc, &args);
    for (int i = 0; i < CLATTN__BUFFER_WORKSPACE; i++)
        if (i != CLATTN__BUFFER_USER)
            FORWARD_IF_ERROR(clattn__check_operand(&operands[i], WHERE, context));
    FORWARD_IF_ERROR(check_user(plan, &args));
    const clattn__tile_map map = clattn__tile_map_of(plan, &args);
    RETURN_ERROR_IF(map_groups(&map) > INT32_MAX, log, CLATTN_INVALID_ARGUMENT,
                    WHERE
                    ": key tiles of %d x %d cut the call into %llu map entries; expected fewer than 2^31",
                    (int)plan->desc.tile_rows, (int)plan->desc.tile_keys, (unsigned long long)map.bytes);
    FORWARD_IF_ERROR(check_workspace(&operands[CLATTN__BUFFER_WORKSPACE], plan, &args, map.bytes));
    FORWARD_IF_ERROR(clattn__check_overlap(operands, CLATTN__BUFFERS, WHERE, log));

    clattn__emitter emitter = clattn__emit_to_queue(&context->cl, queue, num_wait, wait);
    const clattn_status status = launch_with_workspace(plan, &emitter, operands, &map, &args);
    if (status != CLATTN_SUCCESS) {
        clattn__emit_abandon(&emitter);
        return status;
    }
    FORWARD_IF_CL_ERROR(log, WHERE, "clEnqueueMarkerWithWaitList", clattn__emit_end(&emitter, event));
    return CLATTN_SUCCESS;
}

clattn_status clattn_forward_workspace(const clattn_plan *plan, const clattn_bounds *given, size_t *bytes)
{
    clattn_bounds bounds;
    if (plan == NULL)
        return CLATTN_INVALID_ARGUMENT;
    const clattn__log *log = &plan->context->log;
    RETURN_ERROR_IF(given == NULL || bytes == NULL, log, CLATTN_INVALID_ARGUMENT,
                    "clattn_forward_workspace: %s is NULL", given == NULL ? "bounds" : "bytes");
    FORWARD_IF_ERROR(clattn__read_struct(&bounds, sizeof bounds, given, sizeof bounds,
                                         "clattn_forward_workspace", "bounds", log));
    RETURN_ERROR_IF(bounds.reserved != 0, log, CLATTN_INVALID_ARGUMENT,
                    "clattn_forward_workspace: bounds.reserved = %u; expected 0", (unsigned)bounds.reserved);
    FORWARD_IF_ERROR(
        check_lengths(plan, "clattn_forward_workspace", bounds.batch, bounds.q_len, bounds.kv_len));
    const uint64_t needed = clattn__tile_map_bound(plan, bounds.batch, bounds.q_len, bounds.kv_len).bytes;
    RETURN_ERROR_IF(needed > SIZE_MAX, log, CLATTN_UNSUPPORTED,
                    "clattn_forward_workspace: %llu bytes; expected no more than an object can have",
                    (unsigned long long)needed);
    *bytes = (size_t)needed;
    return CLATTN_SUCCESS;
}
