/* attention.c: FLASH_ATTN_EXT in the library's terms.
 *
 *     q     [head_dim_qk, q_len,  heads_q,  batch]   float
 *     k     [head_dim_qk, kv_len, heads_kv, batch]   any type of the library's, any strides; so is
 *     v     [head_dim_v,  kv_len, heads_kv, batch]
 *     mask  [kv_len, >= q_len, 1 or heads_q, 1 or batch]  float16, added to the scores; -inf forbids a key
 *     sinks [heads_q]                                float32
 *     op    [head_dim_v, heads_q, q_len, batch]      float32
 *
 * ggml writes sizes from the innermost on. The op's parameters are scale, ALiBi's largest bias (a factor of
 * the mask for each head) and the soft cap; a bound of the finite mask entries of a row, which is a hint, is
 * not used. */
#include "plugin.h"

#include <math.h>
#include <string.h>

typedef struct parameters {
    float scale, max_bias, softcap;
} parameters;

static parameters parameters_of(const struct ggml_tensor *op)
{
    parameters p;
    memcpy(&p, op->op_params, sizeof p);
    return p;
}

/* MLA's cache: V is the front of K's rows. */
static bool v_is_in_k(const struct ggml_tensor *k, const struct ggml_tensor *v)
{
    const struct ggml_tensor *k_root = k->view_src ? k->view_src : k;
    return v->view_src == k_root && v->view_offs == k->view_offs && v->type == k->type &&
           v->ne[0] <= k->ne[0] && v->nb[1] == k->nb[1] && v->nb[2] == k->nb[2] && v->nb[3] == k->nb[3];
}

static clattn_plan_desc desc_of(const struct ggml_tensor *op)
{
    const struct ggml_tensor *q = op->src[0], *k = op->src[1], *v = op->src[2], *mask = op->src[3];
    const parameters p = parameters_of(op);
    clattn_plan_desc desc = CLATTN_PLAN_DESC_INIT;
    desc.phase = CLATTN_PHASE_BOTH;
    desc.dtype_q = dtype_of(q->type);
    desc.dtype_k = dtype_of(k->type);
    desc.dtype_v = dtype_of(v->type);
    desc.dtype_o = CLATTN_DTYPE_F32;
    desc.heads_q = (int32_t)q->ne[2];
    desc.heads_kv = (int32_t)k->ne[2];
    desc.head_dim_qk = (int32_t)q->ne[0];
    desc.head_dim_v = (int32_t)v->ne[0];
    if (mask) {
        desc.features |= CLATTN_FEATURE_BIAS | (p.max_bias > 0.0f ? CLATTN_FEATURE_BIAS_HEAD_SCALE : 0);
        desc.dtype_bias = CLATTN_DTYPE_F16;
    }
    if (p.softcap != 0.0f)
        desc.features |= CLATTN_FEATURE_SOFTCAP;
    if (op->src[4])
        desc.features |= CLATTN_FEATURE_SINKS;
    if (v_is_in_k(k, v))
        desc.features |= CLATTN_FEATURE_V_IN_K;
    return desc;
}

static const char *shape_fault(const struct ggml_tensor *op)
{
    const struct ggml_tensor *q = op->src[0], *k = op->src[1], *v = op->src[2], *mask = op->src[3];
    const parameters p = parameters_of(op);
    const struct ggml_tensor *rows[] = {q, k, v, op};
    for (int i = 0; i < 4; i++) {
        if (dtype_of(rows[i]->type) == CLATTN_DTYPE_DEFAULT)
            return "a type that the library does not have";
        const char *fault = tensor_fault(rows[i]);
        if (fault)
            return fault;
    }
    if (op->type != GGML_TYPE_F32)
        return "the result is not float32";
    if (q->ne[0] > CLATTN_MAX_HEAD_DIM || v->ne[0] > CLATTN_MAX_HEAD_DIM)
        return "a head dim beyond the library's";
    if (q->ne[2] > INT32_MAX || k->ne[2] != v->ne[2] || q->ne[2] % k->ne[2] != 0)
        return "heads of K and V that do not go into those of Q alike";
    if (k->ne[3] != q->ne[3] || v->ne[3] != q->ne[3])
        return "K or V broadcast over the batch";
    if (p.scale == 0.0f || !isfinite(p.scale) || !isfinite(p.softcap) || !isfinite(p.max_bias) ||
        p.max_bias < 0.0f)
        return "a scale of 0, or a parameter that is not finite";
    if (mask) {
        if (mask->type != GGML_TYPE_F16 || mask->nb[0] != sizeof(ggml_fp16_t) || tensor_fault(mask))
            return "a mask that is not contiguous float16";
        if (mask->ne[0] < k->ne[1] || mask->ne[1] < q->ne[1])
            return "a mask smaller than the scores";
        if ((mask->ne[2] != 1 && mask->ne[2] != q->ne[2]) || (mask->ne[3] != 1 && mask->ne[3] != q->ne[3]))
            return "a mask repeated over groups of heads or of batch entries";
    }
    if (op->src[4] && (op->src[4]->type != GGML_TYPE_F32 || tensor_fault(op->src[4])))
        return "sinks that are not contiguous float32";
    return NULL;
}

const char *attention_fault(device *dev, const struct ggml_tensor *op)
{
    const char *fault = shape_fault(op);
    if (fault)
        return fault;
    const clattn_plan_desc desc = desc_of(op);
    return plan_fault(dev, &desc);
}

/* ---- One call ---- */

/* Strides of a [head_dim, tokens, heads, batch] tensor. */
static clattn_tensor rows_of(const struct ggml_tensor *t)
{
    clattn_tensor tensor = memory_of(t);
    tensor.stride[0] = tensor_stride(t, 3);
    tensor.stride[1] = tensor_stride(t, 2);
    tensor.stride[2] = tensor_stride(t, 1);
    tensor.stride[3] = 1;
    return tensor;
}

static clattn_tensor output_of(const struct ggml_tensor *op)
{
    clattn_tensor tensor = memory_of(op);
    tensor.stride[0] = tensor_stride(op, 3);
    tensor.stride[1] = tensor_stride(op, 1);
    tensor.stride[2] = tensor_stride(op, 2);
    tensor.stride[3] = 1;
    return tensor;
}

static clattn_tensor mask_of(const struct ggml_tensor *mask)
{
    clattn_tensor tensor = memory_of(mask);
    tensor.stride[0] = mask->ne[3] == 1 ? 0 : tensor_stride(mask, 3);
    tensor.stride[1] = mask->ne[2] == 1 ? 0 : tensor_stride(mask, 2);
    tensor.stride[2] = tensor_stride(mask, 1);
    tensor.stride[3] = 1;
    return tensor;
}

/* Grown to what the call needs; the driver keeps the old one for calls under way. */
static clattn_status reserve_workspace(stream *s, const clattn_plan *plan, const clattn_forward_args *args)
{
    clattn_bounds bounds = CLATTN_BOUNDS_INIT;
    bounds.batch = args->batch;
    bounds.q_len = args->q_len;
    bounds.kv_len = args->kv_len;
    size_t bytes = 0;
    const clattn_status status = clattn_forward_workspace(plan, &bounds, &bytes);
    if (status != CLATTN_SUCCESS || bytes <= s->workspace_bytes)
        return status;
    cl_int error;
    cl_mem larger = clCreateBuffer(s->dev->context, CL_MEM_READ_WRITE, bytes, NULL, &error);
    if (error != CL_SUCCESS)
        return error;
    if (s->workspace)
        clReleaseMemObject(s->workspace);
    s->workspace = larger;
    s->workspace_bytes = bytes;
    return CLATTN_SUCCESS;
}

clattn_status attention_run(stream *s, const struct ggml_tensor *op)
{
    const struct ggml_tensor *q = op->src[0], *k = op->src[1], *mask = op->src[3], *sinks = op->src[4];
    const parameters p = parameters_of(op);
    const clattn_plan_desc desc = desc_of(op);
    clattn_plan *plan = plan_of(s, &desc);
    if (!plan)
        return CLATTN_COMPILE_FAILED;

    clattn_forward_args args = CLATTN_FORWARD_ARGS_INIT;
    args.batch = q->ne[3];
    args.q_len = q->ne[1];
    args.kv_len = k->ne[1];
    args.scale = p.scale;
    args.softcap = fabsf(p.softcap); /* tanh is odd */
    args.q = rows_of(q);
    args.k = rows_of(k);
    if ((desc.features & CLATTN_FEATURE_V_IN_K) == 0)
        args.v = rows_of(op->src[2]);
    args.o = output_of(op);
    if (mask)
        args.bias = mask_of(mask);
    if ((desc.features & CLATTN_FEATURE_BIAS_HEAD_SCALE) != 0) {
        args.bias_head_scale = plan_alibi_slopes(s->dev, desc.heads_q, p.max_bias);
        if (!args.bias_head_scale.handle)
            return CLATTN_OUT_OF_HOST_MEMORY;
    }
    if (sinks) {
        args.sinks = memory_of(sinks);
        args.sinks.stride[1] = 1;
    }
    const clattn_status status = reserve_workspace(s, plan, &args);
    if (status != CLATTN_SUCCESS)
        return status;
    args.workspace.handle = s->workspace;
    return clattn_enqueue_forward(plan, s->queue, &args, 0, NULL, NULL);
}
