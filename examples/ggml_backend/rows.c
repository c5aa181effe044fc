/* rows.c: new rows for the cache: SET_ROWS, which says where each goes, and CPY.
 *
 * A row may be wider than a head: all heads of a token lie side by side. It is cut into pieces of a head's
 * size. */
#include "plugin.h"

/* The largest piece of a row of whole blocks that divides it; 0: none. */
static int32_t piece_of(int64_t width, int64_t block)
{
    for (int64_t piece = CLATTN_MAX_HEAD_DIM - CLATTN_MAX_HEAD_DIM % block; piece > 0; piece -= block)
        if (width % piece == 0)
            return (int32_t)piece;
    return 0;
}

static clattn_plan_desc rows_desc(const struct ggml_tensor *from, const struct ggml_tensor *to)
{
    const int32_t piece = piece_of(to->ne[0], ggml_blck_size(to->type));
    clattn_plan_desc desc = CLATTN_PLAN_DESC_INIT;
    desc.dtype_q = dtype_of(from->type);
    desc.dtype_k = dtype_of(to->type);
    desc.head_dim_qk = piece;
    desc.heads_q = piece ? (int32_t)(to->ne[0] / piece) : 0;
    desc.heads_kv = desc.heads_q;
    return desc;
}

/* [axis 2, pieces of a row, rows], at one place of axis 3 */
static clattn_tensor rows_tensor(const struct ggml_tensor *t, int32_t piece, int64_t place)
{
    clattn_tensor tensor = memory_of(t);
    tensor.byte_offset += (uint64_t)place * t->nb[3];
    tensor.stride[0] = tensor_stride(t, 2);
    tensor.stride[1] = piece / ggml_blck_size(t->type);
    tensor.stride[2] = tensor_stride(t, 1);
    tensor.stride[3] = 1;
    return tensor;
}

static bool is_float(enum ggml_type type)
{
    return type == GGML_TYPE_F32 || type == GGML_TYPE_F16 || type == GGML_TYPE_BF16;
}

static const char *rows_fault(const struct ggml_tensor *from, const struct ggml_tensor *to)
{
    if (!is_float(from->type) || dtype_of(to->type) == CLATTN_DTYPE_DEFAULT)
        return "a type that the library does not have, or does not convert from";
    const char *fault = tensor_fault(from);
    if (!fault)
        fault = tensor_fault(to);
    if (fault)
        return fault;
    if (piece_of(to->ne[0], ggml_blck_size(to->type)) == 0)
        return "a row length that does not divide into heads";
    if (to->ne[0] / piece_of(to->ne[0], ggml_blck_size(to->type)) > 4096)
        return "a row length that divides into very many heads";
    return NULL;
}

/* ---- SET_ROWS: op is `to` itself, src[0] the rows, src[1] their places ---- */

static clattn_plan_desc set_rows_desc(const struct ggml_tensor *op)
{
    clattn_plan_desc desc = rows_desc(op->src[0], op);
    desc.operation = CLATTN_OPERATION_KV_APPEND;
    desc.features = CLATTN_FEATURE_SLOT_MAPPING | CLATTN_FEATURE_V_IN_K; /* keys alone */
    return desc;
}

const char *set_rows_fault(device *dev, const struct ggml_tensor *op)
{
    const struct ggml_tensor *from = op->src[0], *places = op->src[1];
    const char *fault = rows_fault(from, op);
    if (fault)
        return fault;
    if (places->type != GGML_TYPE_I32 && places->type != GGML_TYPE_I64)
        return "places that are not int32 or int64";
    if (tensor_fault(places))
        return "places that are not contiguous";
    if (op->ne[1] > CLATTN_MAX_LENGTH)
        return "more rows than the library counts";
    if ((places->ne[1] != 1 && places->ne[1] != from->ne[2]) ||
        (places->ne[2] != 1 && places->ne[2] != from->ne[3]))
        return "places repeated over groups of the batch";
    const clattn_plan_desc desc = set_rows_desc(op);
    return plan_fault(dev, &desc);
}

clattn_status set_rows_run(stream *s, const struct ggml_tensor *op)
{
    const struct ggml_tensor *from = op->src[0], *places = op->src[1];
    const clattn_plan_desc desc = set_rows_desc(op);
    clattn_plan *plan = plan_of(s, &desc);
    if (!plan)
        return CLATTN_COMPILE_FAILED;
    /* The library reads int32: of an int64, the lower half (devices are little-endian). */
    const int64_t halves = places->type == GGML_TYPE_I64 ? 2 : 1;
    clattn_append_args args = CLATTN_APPEND_ARGS_INIT;
    args.batch = from->ne[2];
    args.new_len = from->ne[1];
    args.kv_len = op->ne[1];
    for (int64_t i = 0; i < op->ne[3]; i++) {
        args.k_new = rows_tensor(from, desc.head_dim_qk, i);
        args.k = rows_tensor(op, desc.head_dim_qk, i);
        args.slot_mapping = memory_of(places);
        args.slot_mapping.byte_offset += places->ne[2] == 1 ? 0 : (uint64_t)i * places->nb[2];
        args.slot_mapping.stride[0] = places->ne[1] == 1 ? 0 : tensor_stride(places, 1) * halves;
        args.slot_mapping.stride[1] = halves;
        const clattn_status status = clattn_enqueue_kv_append(plan, s->queue, &args, 0, NULL, NULL);
        if (status != CLATTN_SUCCESS)
            return status;
    }
    return CLATTN_SUCCESS;
}

/* ---- CPY: op is a view of src[1], the place that src[0] is copied to ---- */

static clattn_plan_desc copy_desc(const struct ggml_tensor *op)
{
    clattn_plan_desc desc = rows_desc(op->src[0], op);
    desc.operation = CLATTN_OPERATION_CONVERT;
    return desc;
}

const char *copy_fault(device *dev, const struct ggml_tensor *op)
{
    const struct ggml_tensor *from = op->src[0];
    if (!ggml_are_same_shape(from, op))
        return "a copy that changes the shape";
    const char *fault = rows_fault(from, op);
    if (fault)
        return fault;
    /* Halfway between two codes, where numbers of 16 bits often are, ggml's CPU backend rounds to even, its
     * reference, and the library, away from zero. */
    if (ggml_is_quantized(op->type) && from->type != GGML_TYPE_F32)
        return "numbers of 16 bits to a quantised type";
    if (op->ne[1] > CLATTN_MAX_LENGTH)
        return "more rows than the library counts";
    const clattn_plan_desc desc = copy_desc(op);
    return plan_fault(dev, &desc);
}

clattn_status copy_run(stream *s, const struct ggml_tensor *op)
{
    const clattn_plan_desc desc = copy_desc(op);
    clattn_plan *plan = plan_of(s, &desc);
    if (!plan)
        return CLATTN_COMPILE_FAILED;
    clattn_convert_args args = CLATTN_CONVERT_ARGS_INIT;
    args.batch = op->ne[2];
    args.len = op->ne[1];
    for (int64_t i = 0; i < op->ne[3]; i++) {
        args.from = rows_tensor(op->src[0], desc.head_dim_qk, i);
        args.to = rows_tensor(op, desc.head_dim_qk, i);
        const clattn_status status = clattn_enqueue_convert(plan, s->queue, &args, 0, NULL, NULL);
        if (status != CLATTN_SUCCESS)
            return status;
    }
    return CLATTN_SUCCESS;
}
