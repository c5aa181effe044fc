#include "operand.h"

#define WHERE "clattn_enqueue_forward"

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

clattn_status clattn__check_kind(const clattn_tensor *tensor, const char *name, const clattn__log *log)
{
    RETURN_ERROR_IF(tensor->mem_kind != CLATTN_MEM_BUFFER, log, CLATTN_UNSUPPORTED,
                    WHERE ": %s.mem_kind = %d; expected CLATTN_MEM_BUFFER (0)", name, (int)tensor->mem_kind);
    RETURN_ERROR_IF(tensor->reserved != 0 || tensor->reserved2[0] != 0 || tensor->reserved2[1] != 0, log,
                    CLATTN_INVALID_ARGUMENT, WHERE ": %s has a reserved field that is not 0; expected 0",
                    name);
    return CLATTN_SUCCESS;
}

clattn_status clattn__check_operand(clattn__operand *x, const clattn_context *context)
{
    const clattn__log *log = &context->log;
    const clattn_tensor *t = x->tensor;
    int empty = 0;
    size_t bytes = 0;
    FORWARD_IF_ERROR(clattn__check_kind(t, x->name, log));
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

clattn_status clattn__check_overlap(const clattn__operand *operands, int count, const clattn__log *log)
{
    for (int i = 0; i < count; i++)
        for (int j = 0; j < count; j++) {
            const clattn__operand *x = &operands[i], *y = &operands[j];
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

int clattn__rows_are_aligned(const clattn__operand *x, const clattn__cl *cl)
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
