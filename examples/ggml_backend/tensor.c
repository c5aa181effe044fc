/* tensor.c: types, strides, and views. */
#include "plugin.h"

bool is_view(enum ggml_op op)
{
    return op == GGML_OP_NONE || op == GGML_OP_RESHAPE || op == GGML_OP_VIEW || op == GGML_OP_PERMUTE ||
           op == GGML_OP_TRANSPOSE;
}

int32_t dtype_of(enum ggml_type type)
{
    switch (type) {
    case GGML_TYPE_F32:
        return CLATTN_DTYPE_F32;
    case GGML_TYPE_F16:
        return CLATTN_DTYPE_F16;
    case GGML_TYPE_BF16:
        return CLATTN_DTYPE_BF16;
    case GGML_TYPE_Q8_0:
        return CLATTN_DTYPE_Q8_0;
    case GGML_TYPE_Q4_0:
        return CLATTN_DTYPE_Q4_0;
    case GGML_TYPE_Q4_1:
        return CLATTN_DTYPE_Q4_1;
    case GGML_TYPE_Q5_0:
        return CLATTN_DTYPE_Q5_0;
    case GGML_TYPE_Q5_1:
        return CLATTN_DTYPE_Q5_1;
    case GGML_TYPE_IQ4_NL:
        return CLATTN_DTYPE_IQ4_NL;
    default:
        return CLATTN_DTYPE_DEFAULT;
    }
}

const char *tensor_fault(const struct ggml_tensor *tensor)
{
    const size_t element = ggml_type_size(tensor->type);
    if (tensor->nb[0] != element)
        return "rows are not contiguous";
    for (int axis = 1; axis < GGML_MAX_DIMS; axis++)
        if (tensor->nb[axis] % element != 0)
            return "a stride is not a multiple of the element size";
    if (tensor->view_offs % element != 0)
        return "a view begins within an element";
    return NULL;
}

int64_t tensor_stride(const struct ggml_tensor *tensor, int axis)
{
    return (int64_t)(tensor->nb[axis] / ggml_type_size(tensor->type));
}
