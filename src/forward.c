/* forward.c: one attention call: everything is checked, then the kernel is launched. */
#include "emit.h"
#include "plan.h"

#include <assert.h>
#include <math.h>
#include <string.h>

#define WHERE "clattn_enqueue_forward"

static_assert(sizeof(attention_args) == 6 * 32 + 8 + 16 * 4, "host and kernel must agree");

/* One tensor of a call, with the lengths of its axes. */
typedef struct operand {
    const char *name;
    const clattn_tensor *tensor;
    int64_t size[4]; /* batch, head, token, last */
    size_t element;  /* bytes */
    int is_output;
    int is_needed;
    uint64_t begin, end; /* bytes of the buffer that the call may touch; set by check_operand */
} operand;

enum { Q, K, V, O, LSE, BIAS, OPERANDS };

/* ---- Tensors ---- */

static clattn_status make_rows_contiguous(clattn_tensor *tensor, const char *name, const clattn__log *log)
{
    RETURN_ERROR_IF(tensor->stride[3] != 0 && tensor->stride[3] != 1, log, CLATTN_INVALID_ARGUMENT,
                    WHERE ": %s.stride[3] = %lld; expected 1 (rows are contiguous), or 0 for short", name,
                    (long long)tensor->stride[3]);
    tensor->stride[3] = 1;
    return CLATTN_SUCCESS;
}

/* Elements from the first to the last one, inclusive; -1 if that overflows. */
static int64_t extent(const operand *x)
{
    int64_t last = 0;
    for (int axis = 0; axis < 4; axis++) {
        const int64_t steps = x->size[axis] - 1, stride = x->tensor->stride[axis];
        if (steps > 0 && stride > (INT64_MAX / 16 - last) / steps)
            return -1;
        last += steps * stride;
    }
    return last + 1;
}

/* Whether no two rows of an output can share an element: sorted by stride, each axis must step over all
 * that the smaller ones span. */
static int rows_are_disjoint(const operand *x)
{
    int64_t span = 1;
    int done[4] = {0};
    for (int round = 0; round < 4; round++) {
        int next = -1;
        for (int axis = 0; axis < 4; axis++)
            if (!done[axis] &&
                (next < 0 || x->tensor->stride[axis] < x->tensor->stride[next] ||
                 (x->tensor->stride[axis] == x->tensor->stride[next] && x->size[axis] < x->size[next])))
                next = axis;
        done[next] = 1;
        if (x->size[next] > 1 && x->tensor->stride[next] < span)
            return 0;
        span += (x->size[next] - 1) * x->tensor->stride[next];
    }
    return 1;
}

static clattn_status check_kind(const clattn_tensor *tensor, const char *name, const clattn__log *log)
{
    RETURN_ERROR_IF(tensor->mem_kind != CLATTN_MEM_BUFFER, log, CLATTN_UNSUPPORTED,
                    WHERE ": %s.mem_kind = %d; expected CLATTN_MEM_BUFFER (0)", name, (int)tensor->mem_kind);
    RETURN_ERROR_IF(tensor->reserved != 0 || tensor->reserved2[0] != 0 || tensor->reserved2[1] != 0, log,
                    CLATTN_INVALID_ARGUMENT, WHERE ": %s has a reserved field that is not 0; expected 0",
                    name);
    return CLATTN_SUCCESS;
}

static clattn_status check_operand(operand *x, const clattn_context *context)
{
    const clattn__log *log = &context->log;
    const clattn_tensor *t = x->tensor;
    int empty = 0;
    size_t bytes = 0;
    FORWARD_IF_ERROR(check_kind(t, x->name, log));
    for (int axis = 0; axis < 4; axis++)
        empty |= x->size[axis] == 0;
    if (t->handle == NULL) {
        RETURN_ERROR_IF(x->is_needed && !empty, log, CLATTN_INVALID_ARGUMENT,
                        WHERE ": %s.handle is NULL; expected a cl_mem, the plan has this tensor take part",
                        x->name);
        return CLATTN_SUCCESS;
    }
    RETURN_ERROR_IF(!x->is_needed, log, CLATTN_INVALID_ARGUMENT,
                    WHERE ": %s.handle is set; expected NULL, the plan's features leave it out", x->name);
    static const char *const axes[] = {"batch", "head", "token", "last"};
    for (int axis = 0; axis < 4; axis++)
        RETURN_ERROR_IF(t->stride[axis] < 0, log, CLATTN_INVALID_ARGUMENT,
                        WHERE ": %s.stride[%d] (%s) = %lld; expected >= 0", x->name, axis, axes[axis],
                        (long long)t->stride[axis]);
    RETURN_ERROR_IF(t->byte_offset % x->element != 0, log, CLATTN_INVALID_ARGUMENT,
                    WHERE ": %s.byte_offset = %llu; expected a multiple of the element size %u", x->name,
                    (unsigned long long)t->byte_offset, (unsigned)x->element);
    if (empty)
        return CLATTN_SUCCESS;
    const int64_t elements = extent(x);
    RETURN_ERROR_IF(elements < 0 || t->byte_offset > INT64_MAX / 2, log, CLATTN_INVALID_ARGUMENT,
                    WHERE ": %s: strides and lengths reach beyond 2^60 elements", x->name);
    RETURN_ERROR_IF(x->is_output && !rows_are_disjoint(x), log, CLATTN_INVALID_ARGUMENT,
                    WHERE ": %s.stride = {%lld, %lld, %lld}; expected rows of an output not to overlap",
                    x->name, (long long)t->stride[0], (long long)t->stride[1], (long long)t->stride[2]);
    x->begin = t->byte_offset;
    x->end = t->byte_offset + (uint64_t)elements * x->element;
    FORWARD_IF_CL_ERROR(
        log, WHERE, "clGetMemObjectInfo",
        context->cl.clGetMemObjectInfo((cl_mem)t->handle, CL_MEM_SIZE, sizeof bytes, &bytes, NULL));
    RETURN_ERROR_IF(x->end > bytes, log, CLATTN_BUFFER_TOO_SMALL,
                    WHERE ": %s: the buffer has %llu bytes; expected at least %llu for its offset, "
                          "strides and lengths",
                    x->name, (unsigned long long)bytes, (unsigned long long)x->end);
    return CLATTN_SUCCESS;
}

static clattn_status check_overlap(const operand *operands, const clattn__log *log)
{
    for (int i = 0; i < OPERANDS; i++)
        for (int j = 0; j < OPERANDS; j++) {
            const operand *x = &operands[i], *y = &operands[j];
            RETURN_ERROR_IF(i != j && x->is_output && x->tensor->handle != NULL &&
                                x->tensor->handle == y->tensor->handle && x->begin < y->end &&
                                y->begin < x->end,
                            log, CLATTN_INVALID_ARGUMENT,
                            WHERE ": output %s and %s overlap in one buffer (bytes %llu to %llu and %llu "
                                  "to %llu)",
                            x->name, y->name, (unsigned long long)x->begin, (unsigned long long)x->end,
                            (unsigned long long)y->begin, (unsigned long long)y->end);
        }
    return CLATTN_SUCCESS;
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

static tensor_address address_of(const operand *x)
{
    const clattn_tensor *t = x->tensor;
    const tensor_address address = {(cl_long)(t->byte_offset / x->element), t->stride[0], t->stride[1],
                                    t->stride[2]};
    return address;
}

static int64_t clamp(int64_t value, int64_t least, int64_t most)
{
    return value < least ? least : value > most ? most : value;
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

/* Causal bound, window and offset as one band of keys relative to the row (cl/bounds.cl). Offset and
 * window may be any numbers; the band is clamped to +-2^30, beyond which every or no key is seen anyway. */
static void set_band(attention_args *out, const clattn_plan_desc *desc, const clattn_forward_args *args)
{
    const int64_t limit = CLATTN_MAX_LENGTH;
    const int64_t offset = desc->position_mode == CLATTN_POSITION_BOTTOM_RIGHT ? args->kv_len - args->q_len
                           : desc->position_mode == CLATTN_POSITION_TOP_LEFT   ? 0
                                                                               : args->q_offset;
    const int window = (desc->features & CLATTN_FEATURE_WINDOW) != 0;
    const int causal = (desc->features & CLATTN_FEATURE_CAUSAL) != 0;
    const int64_t left = window ? args->window_left : -1;
    const int64_t right = causal ? 0 : window ? args->window_right : -1;
    const int64_t begin = left < 0 ? -limit : saturating_add(offset, -left);
    const int64_t end = right < 0 ? limit : saturating_add(saturating_add(offset, right), 1);
    out->band_begin = (cl_int)clamp(begin, -limit, limit);
    out->band_end = (cl_int)clamp(end, -limit, limit);
}

static void set_arguments(attention_args *out, const clattn_plan *plan, const clattn_forward_args *args,
                          const operand *operands)
{
    const clattn_plan_desc *desc = &plan->desc;
    const double scale = args->scale != 0.0f ? (double)args->scale : 1.0 / sqrt((double)desc->head_dim_qk);
    memset(out, 0, sizeof *out);
    out->q = address_of(&operands[Q]);
    out->k = address_of(&operands[K]);
    out->v = address_of(&operands[V]);
    out->o = address_of(&operands[O]);
    out->lse = address_of(&operands[LSE]);
    out->bias = address_of(&operands[BIAS]);
    out->bias_key = operands[BIAS].tensor->stride[3];
    out->q_tiles = (cl_int)((args->q_len + plan->program->tile.block_q - 1) / plan->program->tile.block_q);
    out->heads_q = desc->heads_q;
    out->heads_per_kv = desc->heads_q / desc->heads_kv;
    out->q_len = (cl_int)args->q_len;
    out->kv_len = (cl_int)args->kv_len;
    out->head_dim_qk = desc->head_dim_qk;
    out->head_dim_v = desc->head_dim_v;
    set_band(out, desc, args);
    out->want_lse = (desc->features & CLATTN_FEATURE_LSE) != 0;
    out->scale = (float)scale;
    out->scale_log2 = (float)(scale * 1.4426950408889634);
    out->softcap = args->softcap;
    out->has_bias = (desc->features & CLATTN_FEATURE_BIAS) != 0;
}

/* Whether a tensor's rows can be read in groups of four elements. A buffer over host memory is only as
 * aligned as that memory is. */
static int rows_are_aligned(const operand *x, const clattn__cl *cl)
{
    const clattn_tensor *t = x->tensor;
    const uint64_t group = 4 * x->element;
    void *host = NULL;
    cl_mem_flags flags = 0;
    if (t->handle == NULL)
        return 1;
    if (t->byte_offset % group != 0 || x->size[3] % 4 != 0)
        return 0;
    for (int axis = 0; axis < 3; axis++)
        if (x->size[axis] > 1 && t->stride[axis] % 4 != 0)
            return 0;
    if (cl->clGetMemObjectInfo((cl_mem)t->handle, CL_MEM_FLAGS, sizeof flags, &flags, NULL) != CL_SUCCESS)
        return 0;
    if ((flags & CL_MEM_USE_HOST_PTR) != 0 &&
        (cl->clGetMemObjectInfo((cl_mem)t->handle, CL_MEM_HOST_PTR, sizeof host, &host, NULL) != CL_SUCCESS ||
         (uintptr_t)host % group != 0))
        return 0;
    return 1;
}

static int pick_kernel(const clattn_plan *plan, const operand *operands)
{
    const clattn__cl *cl = &plan->context->cl;
    if (plan->program->path->kernel_aligned == NULL)
        return CLATTN__KERNEL_ANY;
    for (int i = Q; i <= O; i++)
        if (!rows_are_aligned(&operands[i], cl))
            return CLATTN__KERNEL_ANY;
    return CLATTN__KERNEL_ALIGNED;
}

/* ---- Launching ---- */

/* Groups of one launch: PoCL compiles a kernel again for grids wider than 65534, NVIDIA's second axis
 * ends at 65535, and a watchdog may ask for less. */
static int64_t groups_per_launch(const clattn_plan *plan, const clattn_forward_args *args)
{
    enum { MOST = 32768 };
    const uint64_t budget = plan->context->max_work_per_launch;
    const uint64_t work = (uint64_t)plan->program->tile.block_q * (uint64_t)(args->kv_len + 1) *
                          (uint64_t)(plan->desc.head_dim_qk + plan->desc.head_dim_v);
    if (budget == 0 || budget / work >= MOST)
        return MOST;
    return budget >= work ? (int64_t)(budget / work) : 1;
}

static clattn_status launch(clattn_plan *plan, clattn__emitter *emitter, const operand *operands,
                            const clattn_forward_args *args)
{
    const clattn__log *log = &plan->context->log;
    cl_mem buffers[CLATTN__BUFFERS];
    attention_args kernel_args;
    for (int i = 0; i < OPERANDS; i++)
        buffers[i] = (cl_mem)operands[i].tensor->handle;
    set_arguments(&kernel_args, plan, args, operands);

    const int64_t groups = kernel_args.q_tiles * (int64_t)plan->desc.heads_q * args->batch;
    const int64_t most = groups_per_launch(plan, args);
    const int kernel = pick_kernel(plan, operands);
    clattn__say(log, CLATTN_LOG_DEBUG,
                WHERE ": batch %lld, q_len %lld, kv_len %lld: %lld work-groups, at most %lld a launch",
                (long long)args->batch, (long long)args->q_len, (long long)args->kv_len, (long long)groups,
                (long long)most);
    const char *failed = NULL;
    cl_int code = CL_SUCCESS;
    const cl_kernel instance = clattn__instance_take(plan->program, kernel);
    for (int64_t first = 0; first < groups && failed == NULL; first += most) {
        const int64_t count = groups - first < most ? groups - first : most;
        kernel_args.first_group = (cl_int)first;
        kernel_args.num_groups = (cl_int)count;
        code = clattn__set_arguments(emitter->cl, instance, buffers, &kernel_args);
        if (code != CL_SUCCESS) {
            failed = "clSetKernelArg";
            break;
        }
        code = clattn__emit_kernel(emitter, instance, (size_t)plan->program->tile.work_items, (size_t)count);
        if (code != CL_SUCCESS)
            failed = "clEnqueueNDRangeKernel";
    }
    clattn__instance_return(plan->program, kernel, instance);
    FORWARD_IF_CL_ERROR(log, WHERE, failed, code);
    return CLATTN_SUCCESS;
}

clattn_status clattn_enqueue_forward(clattn_plan *plan, cl_command_queue queue,
                                     const clattn_forward_args *given, cl_uint num_wait, const cl_event *wait,
                                     cl_event *event)
{
    clattn_forward_args args;
    if (plan == NULL)
        return CLATTN_INVALID_ARGUMENT;
    const clattn_context *context = plan->context;
    const clattn_plan_desc *desc = &plan->desc;
    const clattn__log *log = &context->log;
    RETURN_ERROR_IF(given == NULL, log, CLATTN_INVALID_ARGUMENT, WHERE ": args is NULL");
    FORWARD_IF_ERROR(clattn__read_struct(&args, sizeof args, given, sizeof args, WHERE, "args", log));
    RETURN_ERROR_IF(args.reserved != 0, log, CLATTN_INVALID_ARGUMENT,
                    WHERE ": args.reserved = %u; expected 0", (unsigned)args.reserved);
    FORWARD_IF_ERROR(check_queue(plan, queue, num_wait, wait));
    FORWARD_IF_ERROR(check_scalars(plan, &args));

    FORWARD_IF_ERROR(make_rows_contiguous(&args.q, "q", log));
    FORWARD_IF_ERROR(make_rows_contiguous(&args.k, "k", log));
    FORWARD_IF_ERROR(make_rows_contiguous(&args.v, "v", log));
    FORWARD_IF_ERROR(make_rows_contiguous(&args.o, "o", log));

    const int64_t batch = args.batch, q_len = args.q_len, kv_len = args.kv_len;
    const int64_t heads_q = desc->heads_q, heads_kv = desc->heads_kv;
    const int want_lse = (desc->features & CLATTN_FEATURE_LSE) != 0;
    const int has_bias = (desc->features & CLATTN_FEATURE_BIAS) != 0;
    operand operands[OPERANDS] = {
        {"q",
         &args.q,
         {batch, heads_q, q_len, desc->head_dim_qk},
         clattn__dtype_size(desc->dtype_q),
         0,
         1,
         0,
         0},
        {"k",
         &args.k,
         {batch, heads_kv, kv_len, desc->head_dim_qk},
         clattn__dtype_size(desc->dtype_k),
         0,
         1,
         0,
         0},
        {"v",
         &args.v,
         {batch, heads_kv, kv_len, desc->head_dim_v},
         clattn__dtype_size(desc->dtype_v),
         0,
         1,
         0,
         0},
        {"o",
         &args.o,
         {batch, heads_q, q_len, desc->head_dim_v},
         clattn__dtype_size(desc->dtype_o),
         1,
         1,
         0,
         0},
        {"lse", &args.lse, {batch, heads_q, q_len, 1}, sizeof(float), 1, want_lse, 0, 0},
        {"bias",
         &args.bias,
         {batch, heads_q, q_len, kv_len},
         clattn__dtype_size(desc->dtype_bias),
         0,
         has_bias,
         0,
         0},
    };
    for (int i = 0; i < OPERANDS; i++)
        FORWARD_IF_ERROR(check_operand(&operands[i], context));
    FORWARD_IF_ERROR(check_overlap(operands, log));
    FORWARD_IF_ERROR(check_kind(&args.workspace, "workspace", log));
    RETURN_ERROR_IF(args.workspace.handle != NULL, log, CLATTN_INVALID_ARGUMENT,
                    WHERE ": workspace.handle is set; expected NULL, clattn_forward_workspace is 0");

    clattn__emitter emitter = {&context->cl, queue, num_wait, wait, NULL};
    const clattn_status status = launch(plan, &emitter, operands, &args);
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
    *bytes = 0;
    return CLATTN_SUCCESS;
}
