/* forward.c: one attention call: everything is checked, then the kernels are launched. */
#include "dtype.h"
#include "forward_call.h"
#include "launch.h"
#include "operation.h"
#include "queue_check.h"

#include <string.h>

/* Rows as the kernel for aligned ones takes them; blocks are that anyhow. */
static int is_aligned(const clattn__forward_call *call, int buffer)
{
    const clattn__operand *x = &call->operands[buffer];
    const uint64_t row_bytes = (uint64_t)call->program->recipe->row_bytes;
    const clattn_plan_desc *desc = &call->plan->desc;
    const int32_t dtype = buffer == CLATTN__BUFFER_K   ? desc->dtype_k
                          : buffer == CLATTN__BUFFER_V ? desc->dtype_v
                                                       : desc->dtype_q;
    if (clattn__dtype_of(dtype)->elements > 1)
        return 1;
    if (row_bytes > 0)
        return (uint64_t)x->size[3] * x->element % row_bytes == 0 &&
               clattn__rows_are_aligned(x, row_bytes, &call->plan->context->cl);
    return x->size[3] % 4 == 0 && clattn__rows_are_aligned(x, 4 * x->element, &call->plan->context->cl);
}

static int pick_kernel(const clattn__forward_call *call)
{
    if (call->program->recipe->kernel[CLATTN__KERNEL_ALIGNED] == NULL)
        return CLATTN__KERNEL_ANY;
    for (int i = CLATTN__BUFFER_Q; i <= CLATTN__BUFFER_O; i++)
        if (!is_aligned(call, i))
            return CLATTN__KERNEL_ANY;
    return CLATTN__KERNEL_ALIGNED;
}

/* One kernel over `groups` work-groups, each of `work` multiply-adds. */
static clattn_status launch(const clattn__forward_call *call, clattn__emitter *emitter, int kernel,
                            int64_t groups, uint64_t work, const clattn__memory *buffers,
                            attention_args *args)
{
    const clattn__launch launch = {call->plan->context, call->program,     kernel, groups, work, buffers,
                                   &args->first_group,  &args->num_groups, args};
    return clattn__launch_kernel(&launch, emitter, call->where);
}

/* Lengths and pages are looked through, if asked for; the tile map is made, if there is one; then attention;
 * then what splits gave is combined. */
static clattn_status launch_all(const clattn__forward_call *call, clattn__emitter *emitter,
                                clattn__memory workspace)
{
    const clattn_plan_desc *desc = &call->plan->desc;
    const clattn__tile *tile = &call->program->tile;
    const clattn__tile_map *map = &call->map;
    const int is_decode = call->program->recipe->is_decode;
    const int is_packed = (desc->features & CLATTN_FEATURE_CU_SEQLENS_Q) != 0;
    const int64_t batch = call->args.batch, kv_len = call->args.kv_len;
    const uint64_t dims = (uint64_t)(desc->head_dim_qk + desc->head_dim_v);
    clattn__memory buffers[CLATTN__BUFFERS];
    attention_args args;
    for (int i = 0; i < CLATTN__BUFFERS; i++)
        buffers[i] = clattn__memory_of(call->operands[i].tensor);
    buffers[CLATTN__BUFFER_WORKSPACE] = workspace;
    clattn__forward_args_of(&args, call);
    const int64_t heads = is_decode ? desc->heads_kv : desc->heads_q;
    const int64_t groups = args.q_tiles * heads * (is_packed ? (batch > 0) : batch) * args.num_splits;
    clattn__say(&call->plan->context->log, CLATTN_LOG_DEBUG,
                "%s: batch %lld, q_len %lld, kv_len %lld: %lld work-groups%s, %d splits, a tile map of %llu "
                "bytes",
                call->where, (long long)batch, (long long)call->args.q_len, (long long)kv_len,
                (long long)groups, is_decode ? " (decode)" : "", (int)args.num_splits,
                (unsigned long long)map->bytes);
    if ((desc->features & CLATTN_FEATURE_STATUS) != 0)
        FORWARD_IF_ERROR(launch(call, emitter, CLATTN__KERNEL_CHECK, clattn__flat_groups(batch),
                                CLATTN__FLAT_WORK_ITEMS, buffers, &args));
    if (map->bytes > 0)
        FORWARD_IF_ERROR(launch(call, emitter, CLATTN__KERNEL_TILES, clattn__tile_map_groups(map),
                                CLATTN__FLAT_WORK_ITEMS * (uint64_t)map->rows * (uint64_t)map->keys, buffers,
                                &args));
    FORWARD_IF_ERROR(launch(call, emitter, pick_kernel(call), groups,
                            (uint64_t)tile->block_q * (uint64_t)(kv_len / args.num_splits + 1) * dims,
                            buffers, &args));
    if (args.num_splits == 1 || call->program->recipe->kernel[CLATTN__KERNEL_COMBINE] == NULL)
        return CLATTN_SUCCESS;
    return launch(call, emitter, CLATTN__KERNEL_COMBINE, call->splits.part_rows * desc->heads_q,
                  (uint64_t)args.num_splits * (uint64_t)desc->head_dim_v, buffers, &args);
}

clattn_status clattn__launch_forward(const clattn__forward_call *call, clattn__emitter *emitter)
{
    const clattn_context *context = call->plan->context;
    cl_mem own = NULL;
    cl_int code = CL_SUCCESS;
    if (call->workspace_bytes > 0 && call->args.workspace.handle == NULL) {
        own = context->cl.clCreateBuffer(context->cl_context, CL_MEM_READ_WRITE | CL_MEM_HOST_NO_ACCESS,
                                         (size_t)call->workspace_bytes, NULL, &code);
        FORWARD_IF_CL_ERROR(&context->log, call->where, "clCreateBuffer", code);
    }
    const clattn__memory workspace =
        own != NULL ? (clattn__memory){CLATTN_MEM_BUFFER, own} : clattn__memory_of(&call->args.workspace);
    const clattn_status status = launch_all(call, emitter, workspace);
    if (own != NULL)
        context->cl.clReleaseMemObject(own);
    return status;
}

clattn_status clattn_enqueue_forward(clattn_plan *plan, cl_command_queue queue,
                                     const clattn_forward_args *given, cl_uint num_wait, const cl_event *wait,
                                     cl_event *event)
{
    static const char where[] = "clattn_enqueue_forward";
    clattn__forward_call call;
    int keeps_order = 0;
    if (plan == NULL)
        return CLATTN_INVALID_ARGUMENT;
    const clattn_context *context = plan->context;
    FORWARD_IF_ERROR(clattn__check_queue(context, where, queue, num_wait, wait, &keeps_order));
    FORWARD_IF_ERROR(clattn__check_forward(&call, plan, given, where));
    clattn__emitter emitter =
        clattn__emit_to_queue(&context->cl, queue, num_wait, wait, event != NULL || !keeps_order);
    const clattn_status status = clattn__launch_forward(&call, &emitter);
    return clattn__end_call(context, &emitter, status, event, where);
}

/* Sync points stand for commands: a call without any, whose point is asked for, gets one that does nothing.
 */
static clattn_status record(const clattn__forward_call *call, clattn__emitter *emitter, int needs_point)
{
    const clattn__memory workspace = clattn__memory_of(&call->args.workspace);
    FORWARD_IF_ERROR(launch_all(call, emitter, workspace));
    if (!needs_point || clattn__emitted(emitter))
        return CLATTN_SUCCESS;
    clattn__memory buffers[CLATTN__BUFFERS] = {{CLATTN_MEM_BUFFER, NULL}};
    attention_args args;
    memset(&args, 0, sizeof args);
    const clattn__launch launch = {
        call->plan->context, call->program, CLATTN__KERNEL_ANY, 0, 1, buffers, &args.first_group,
        &args.num_groups,    &args};
    return clattn__record_nothing(&launch, emitter, call->where);
}

clattn_status clattn_record_forward(clattn_plan *plan, void *command_buffer, cl_command_queue queue,
                                    const clattn_forward_args *given, cl_uint num_sync,
                                    const cl_uint *sync_wait, cl_uint *sync_point)
{
    static const char where[] = "clattn_record_forward";
    clattn__forward_call call;
    if (plan == NULL)
        return CLATTN_INVALID_ARGUMENT;
    const clattn_context *context = plan->context;
    FORWARD_IF_ERROR(
        clattn__check_command_buffer(context, where, command_buffer, queue, num_sync, sync_wait));
    FORWARD_IF_ERROR(clattn__check_forward(&call, plan, given, where));
    RETURN_ERROR_IF(call.workspace_bytes > 0 && call.args.workspace.handle == NULL, &context->log,
                    CLATTN_INVALID_ARGUMENT,
                    "%s: workspace.handle is NULL; expected %llu bytes, a recording cannot make its own",
                    where, (unsigned long long)call.workspace_bytes);
    clattn__emitter emitter = clattn__emit_to_recording(&context->cl, command_buffer, num_sync, sync_wait);
    FORWARD_IF_ERROR(record(&call, &emitter, sync_point != NULL));
    if (sync_point != NULL)
        *sync_point = emitter.last_point;
    return CLATTN_SUCCESS;
}

clattn_status clattn_forward_workspace(const clattn_plan *plan, const clattn_bounds *given, size_t *bytes)
{
    static const char where[] = "clattn_forward_workspace";
    clattn_bounds bounds;
    if (plan == NULL)
        return CLATTN_INVALID_ARGUMENT;
    const clattn__log *log = &plan->context->log;
    FORWARD_IF_ERROR(clattn__check_operation(plan, CLATTN_OPERATION_FORWARD, where));
    RETURN_ERROR_IF(given == NULL || bytes == NULL, log, CLATTN_INVALID_ARGUMENT, "%s: %s is NULL", where,
                    given == NULL ? "bounds" : "bytes");
    FORWARD_IF_ERROR(clattn__read_struct(&bounds, sizeof bounds, given,
                                         offsetof(clattn_bounds, kv_len) + sizeof bounds.kv_len, where,
                                         "bounds", log));
    RETURN_ERROR_IF(bounds.reserved != 0, log, CLATTN_INVALID_ARGUMENT,
                    "%s: bounds.reserved = %u; expected 0", where, (unsigned)bounds.reserved);
    FORWARD_IF_ERROR(clattn__check_bounds(plan, where, &bounds));
    const uint64_t map = clattn__tile_map_bound(plan, bounds.batch, bounds.q_len, bounds.kv_len);
    const uint64_t parts =
        clattn__splits_bound(plan, bounds.batch, bounds.q_len, bounds.total_q, bounds.kv_len);
    const uint64_t begin = parts > 0 ? clattn__parts_begin(map) : map;
    RETURN_ERROR_IF(begin > SIZE_MAX || parts > SIZE_MAX - begin, log, CLATTN_UNSUPPORTED,
                    "%s: %llu and %llu bytes; expected no more than an object can have", where,
                    (unsigned long long)map, (unsigned long long)parts);
    *bytes = (size_t)(begin + parts);
    return CLATTN_SUCCESS;
}
