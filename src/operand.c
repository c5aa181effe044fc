#include "operand.h"

static int is_pointer(const clattn_tensor *tensor) { return tensor->mem_kind != CLATTN_MEM_BUFFER; }

/* Where a pointer leads; buffers are places of their own. */
static uint64_t address_of(const clattn_tensor *tensor)
{
    return is_pointer(tensor) ? (uint64_t)(uintptr_t)tensor->handle : 0;
}

/* The largest power of two that divides an element's size, for plain types the size itself: what kernels
 * count on. */
static uint64_t alignment_of(size_t element) { return (uint64_t)element & (~(uint64_t)element + 1); }

/* Elements from the first to the last one, inclusive; -1 if that overflows. */
static int64_t extent(const clattn__operand *x)
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
static int rows_are_disjoint(const clattn__operand *x)
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

/* Why pointers of a kind cannot be taken, or NULL. */
static const char *missing_for(int32_t kind, const clattn_context *context)
{
    if (kind == CLATTN_MEM_SVM)
        return !context->device.has_svm                       ? "the device has no shared virtual memory"
               : context->cl.clSetKernelArgSVMPointer == NULL ? "clSetKernelArgSVMPointer was not found"
                                                              : NULL;
    if (kind == CLATTN_MEM_USM)
        return !clattn__is_listed(context->device.extensions, CLATTN__USM_EXTENSION)
                   ? "the device lacks the extension " CLATTN__USM_EXTENSION
               : context->cl.clSetKernelArgMemPointerINTEL == NULL
                   ? "clSetKernelArgMemPointerINTEL was not found"
                   : NULL;
    return NULL;
}

clattn_status clattn__check_kind(const clattn_tensor *tensor, const char *where, const char *name,
                                 const clattn_context *context)
{
    const clattn__log *log = &context->log;
    const int32_t kind = tensor->mem_kind;
    RETURN_ERROR_IF(kind != CLATTN_MEM_BUFFER && kind != CLATTN_MEM_SVM && kind != CLATTN_MEM_USM, log,
                    CLATTN_UNSUPPORTED,
                    "%s: %s.mem_kind = %d; expected CLATTN_MEM_BUFFER (0), CLATTN_MEM_SVM (1) or "
                    "CLATTN_MEM_USM (2)",
                    where, name, (int)kind);
    const char *missing = missing_for(kind, context);
    RETURN_ERROR_IF(missing != NULL, log, CLATTN_UNSUPPORTED, "%s: %s.mem_kind = %s, but %s", where, name,
                    kind == CLATTN_MEM_SVM ? "CLATTN_MEM_SVM (1)" : "CLATTN_MEM_USM (2)", missing);
    RETURN_ERROR_IF(tensor->reserved != 0 || tensor->reserved2[0] != 0 || tensor->reserved2[1] != 0, log,
                    CLATTN_INVALID_ARGUMENT, "%s: %s has a reserved field that is not 0; expected 0", where,
                    name);
    return CLATTN_SUCCESS;
}

clattn_status clattn__check_alignment(const clattn_tensor *tensor, uint64_t alignment, const char *where,
                                      const char *name, const clattn__log *log)
{
    const uint64_t place = address_of(tensor) + tensor->byte_offset;
    RETURN_ERROR_IF(is_pointer(tensor) && place % alignment != 0, log, CLATTN_INVALID_ARGUMENT,
                    "%s: %s.handle + byte_offset = 0x%llx; expected a multiple of %u", where, name,
                    (unsigned long long)place, (unsigned)alignment);
    return CLATTN_SUCCESS;
}

/* Of buffers the driver knows how far they reach; of pointers nobody does. */
static clattn_status check_reach(const clattn__operand *x, const char *where, const clattn_context *context)
{
    const clattn__log *log = &context->log;
    size_t bytes = 0;
    if (is_pointer(x->tensor))
        return CLATTN_SUCCESS;
    FORWARD_IF_CL_ERROR(
        log, where, "clGetMemObjectInfo",
        context->cl.clGetMemObjectInfo((cl_mem)x->tensor->handle, CL_MEM_SIZE, sizeof bytes, &bytes, NULL));
    RETURN_ERROR_IF(x->end > bytes, log, CLATTN_BUFFER_TOO_SMALL,
                    "%s: %s: the buffer has %llu bytes; expected at least %llu for its offset, strides and "
                    "lengths",
                    where, x->name, (unsigned long long)bytes, (unsigned long long)x->end);
    return CLATTN_SUCCESS;
}

clattn_status clattn__check_operand(clattn__operand *x, const char *where, const clattn_context *context)
{
    const clattn__log *log = &context->log;
    const clattn_tensor *t = x->tensor;
    int empty = 0;
    FORWARD_IF_ERROR(clattn__check_kind(t, where, x->name, context));
    for (int axis = 0; axis < 4; axis++)
        empty |= x->size[axis] == 0;
    if (t->handle == NULL) {
        RETURN_ERROR_IF(
            x->is_needed && !empty, log, CLATTN_INVALID_ARGUMENT,
            "%s: %s.handle is NULL; expected a cl_mem or pointer, the plan has this tensor take part", where,
            x->name);
        return CLATTN_SUCCESS;
    }
    RETURN_ERROR_IF(!x->is_needed, log, CLATTN_INVALID_ARGUMENT,
                    "%s: %s.handle is set; expected NULL, the plan's features leave it out", where, x->name);
    static const char *const axes[] = {"batch", "head", "token", "last"};
    for (int axis = 0; axis < 4; axis++)
        RETURN_ERROR_IF(t->stride[axis] < 0, log, CLATTN_INVALID_ARGUMENT,
                        "%s: %s.stride[%d] (%s) = %lld; expected >= 0", where, x->name, axis, axes[axis],
                        (long long)t->stride[axis]);
    const uint64_t alignment = alignment_of(x->element);
    RETURN_ERROR_IF(t->byte_offset % alignment != 0, log, CLATTN_INVALID_ARGUMENT,
                    "%s: %s.byte_offset = %llu; expected a multiple of %u", where, x->name,
                    (unsigned long long)t->byte_offset, (unsigned)alignment);
    FORWARD_IF_ERROR(clattn__check_alignment(t, alignment, where, x->name, log));
    if (empty)
        return CLATTN_SUCCESS;
    const int64_t elements = extent(x);
    RETURN_ERROR_IF(elements < 0 || t->byte_offset > INT64_MAX / 2, log, CLATTN_INVALID_ARGUMENT,
                    "%s: %s: strides and lengths reach beyond 2^60 elements", where, x->name);
    RETURN_ERROR_IF(x->is_output && !rows_are_disjoint(x), log, CLATTN_INVALID_ARGUMENT,
                    "%s: %s.stride = {%lld, %lld, %lld}; expected rows of an output not to overlap", where,
                    x->name, (long long)t->stride[0], (long long)t->stride[1], (long long)t->stride[2]);
    x->begin = t->byte_offset;
    x->end = t->byte_offset + (uint64_t)elements * x->element;
    return check_reach(x, where, context);
}

/* Bytes from the first to behind the last one of the axes that are left. */
static uint64_t bytes_of_axes(const clattn__operand *x, const int left[4])
{
    uint64_t last = 0;
    for (int axis = 0; axis < 4; axis++)
        if (left[axis])
            last += (uint64_t)(x->size[axis] - 1) * (uint64_t)x->tensor->stride[axis];
    return (last + 1) * x->element;
}

static uint64_t step_of_axis(const clattn__operand *x, int axis)
{
    return x->size[axis] > 1 ? (uint64_t)x->tensor->stride[axis] * x->element : 0;
}

/* Whether tensors whose ranges overlap have no byte in common, as K and V side by side in each page, or q, k
 * and v of one projection: if along the axis of the largest stride both take the same steps, and one step
 * leads past what both have of the other axes, then it is enough that they are apart in those. */
static int are_interleaved(const clattn__operand *x, const clattn__operand *y, uint64_t x_begin,
                           uint64_t y_begin)
{
    int left[4] = {1, 1, 1, 1};
    for (;;) {
        const uint64_t x_end = x_begin + bytes_of_axes(x, left), y_end = y_begin + bytes_of_axes(y, left);
        const uint64_t begin = x_begin < y_begin ? x_begin : y_begin;
        uint64_t step = 0;
        int next = -1;
        if (x_end <= y_begin || y_end <= x_begin)
            return 1;
        for (int axis = 0; axis < 4; axis++) {
            const uint64_t a = step_of_axis(x, axis), b = step_of_axis(y, axis);
            if (left[axis] && (a > step || b > step)) {
                step = a > b ? a : b;
                next = axis;
            }
        }
        if (next < 0 || (x->size[next] > 1 && step_of_axis(x, next) != step) ||
            (y->size[next] > 1 && step_of_axis(y, next) != step))
            return 0;
        left[next] = 0;
        const uint64_t x_rest = x_begin + bytes_of_axes(x, left), y_rest = y_begin + bytes_of_axes(y, left);
        if ((x_rest > y_rest ? x_rest : y_rest) - begin > step)
            return 0;
    }
}

/* Bytes of one buffer, or addresses. */
static int overlap(const clattn__operand *x, const clattn__operand *y)
{
    static const int all[4] = {1, 1, 1, 1};
    const clattn_tensor *a = x->tensor, *b = y->tensor;
    if (a->handle == NULL || b->handle == NULL || is_pointer(a) != is_pointer(b) ||
        (!is_pointer(a) && a->handle != b->handle) || x->begin == x->end || y->begin == y->end)
        return 0;
    const uint64_t x_begin = address_of(a) + x->begin, y_begin = address_of(b) + y->begin;
    if (x_begin >= address_of(b) + y->end || y_begin >= address_of(a) + x->end)
        return 0;
    /* Ranges that someone has widened say more than the strides. */
    const int as_strides_say =
        x->end - x->begin == bytes_of_axes(x, all) && y->end - y->begin == bytes_of_axes(y, all);
    return !as_strides_say || !are_interleaved(x, y, x_begin, y_begin);
}

clattn_status clattn__check_overlap(const clattn__operand *operands, int count, const char *where,
                                    const clattn__log *log)
{
    for (int i = 0; i < count; i++)
        for (int j = 0; j < count; j++) {
            const clattn__operand *x = &operands[i], *y = &operands[j];
            RETURN_ERROR_IF(i != j && x->is_output && overlap(x, y), log, CLATTN_INVALID_ARGUMENT,
                            "%s: output %s and %s overlap in one %s (bytes %llu to %llu and %llu to %llu%s)",
                            where, x->name, y->name, is_pointer(x->tensor) ? "memory" : "buffer",
                            (unsigned long long)x->begin, (unsigned long long)x->end,
                            (unsigned long long)y->begin, (unsigned long long)y->end,
                            is_pointer(x->tensor) ? " of their handles" : "");
        }
    return CLATTN_SUCCESS;
}

int clattn__rows_are_aligned(const clattn__operand *x, uint64_t bytes, const clattn__cl *cl)
{
    const clattn_tensor *t = x->tensor;
    void *host = NULL;
    cl_mem_flags flags = 0;
    if (t->handle == NULL)
        return 1;
    if (t->byte_offset % bytes != 0)
        return 0;
    for (int axis = 0; axis < 3; axis++)
        if (x->size[axis] > 1 && (uint64_t)t->stride[axis] * x->element % bytes != 0)
            return 0;
    if (is_pointer(t))
        return address_of(t) % bytes == 0;
    if (cl->clGetMemObjectInfo((cl_mem)t->handle, CL_MEM_FLAGS, sizeof flags, &flags, NULL) != CL_SUCCESS)
        return 0;
    if ((flags & CL_MEM_USE_HOST_PTR) != 0 &&
        (cl->clGetMemObjectInfo((cl_mem)t->handle, CL_MEM_HOST_PTR, sizeof host, &host, NULL) != CL_SUCCESS ||
         (uintptr_t)host % bytes != 0))
        return 0;
    return 1;
}
