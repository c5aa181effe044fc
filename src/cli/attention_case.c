/* attention_case.c: shapes, types and layouts of one call, all checked here so that messages can
 * name the tensor and what was expected. */
#include "attention_case.h"

#include "cli.h"
#include "tensor_convert.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#define OPTIONS_KEY "clattn_options"

/* ---- Layouts ------------------------------------------------------------------------------------
 */

int64_t case_elements(const case_tensor *t) { return t->dim[0] * t->dim[1] * t->dim[2] * t->dim[3]; }

/* Multiplies, unless the result would leave 62 bits. */
static int multiply(int64_t *product, int64_t factor)
{
    if (factor != 0 && *product > ((int64_t)1 << 62) / factor)
        return -1;
    *product *= factor;
    return 0;
}

/* Strides of a contiguous tensor, [B,H,N,D] or [B,N,H,D]. Fails on overflow, zeros counted as ones.
 */
static int contiguous_strides(const int64_t dim[4], int bshd, int64_t stride[4])
{
    const int order[2][4] = {{3, 2, 1, 0}, {3, 1, 2, 0}};
    int64_t product = 1;
    for (int i = 0; i < 4; i++) {
        const int axis = order[bshd][i];
        stride[axis] = product;
        if (multiply(&product, dim[axis] > 0 ? dim[axis] : 1) != 0)
            return -1;
    }
    return multiply(&product, 8); /* bytes have to fit as well */
}

/* The buffer's size: offset and everything up to the last element. */
static int span_bytes(case_tensor *t)
{
    int64_t last = 0;
    for (int i = 0; i < 4; i++) {
        int64_t reach = t->dim[i] > 0 ? t->dim[i] - 1 : 0;
        if (multiply(&reach, t->stride[i]) != 0 || reach > ((int64_t)1 << 59) - last)
            return -1;
        last += reach;
    }
    const uint64_t size = case_elements(t) > 0 ? ((uint64_t)last + 1) * dtype_size(t->dtype) : 0;
    if (t->offset > ((uint64_t)1 << 61))
        return -1;
    t->bytes = t->offset + size;
    return 0;
}

/* Where an axis is only repeated, a stride of 0 is right; elsewhere different values would share a
 * place. Only inputs are looked at: the library refuses outputs that overlap themselves. */
static int check_overlap(const attention_case *c, int tensor)
{
    const case_tensor *t = &c->tensor[tensor];
    if (!t->values || case_is_plain(c, tensor) || case_elements(t) == 0)
        return CLI_OK;
    unsigned char *buffer = case_layout_input(c, tensor);
    if (!buffer)
        return CLI_FAILED;
    const size_t size = dtype_size(t->dtype);
    int same = 1;
    for (int64_t b = 0; b < t->dim[0]; b++)
        for (int64_t h = 0; h < t->dim[1]; h++)
            for (int64_t i = 0; same && i < t->dim[2]; i++)
                for (int64_t e = 0; same && e < t->dim[3]; e++) {
                    const int64_t from = b * t->value_stride[0] + h * t->value_stride[1] +
                                         i * t->value_stride[2] + e * t->value_stride[3];
                    const int64_t to =
                        b * t->stride[0] + h * t->stride[1] + i * t->stride[2] + e * t->stride[3];
                    same = memcmp((const unsigned char *)t->values + (size_t)from * size,
                                  buffer + t->offset + (size_t)to * size, size) == 0;
                }
    free(buffer);
    if (!same)
        return cli_fail(CLI_USAGE, "--strides %s=...: different elements of '%s' share a place",
                        tensor_names[tensor], tensor_names[tensor]);
    return CLI_OK;
}

static int lay_out(attention_case *c, int tensor)
{
    case_tensor *t = &c->tensor[tensor];
    const call_options *o = &c->options;
    if (!t->present) {
        if (o->num_strides[tensor] || o->offset_bytes[tensor])
            return cli_fail(CLI_USAGE, "a layout is given for '%s', which takes no part",
                            tensor_names[tensor]);
        return CLI_OK;
    }
    for (int i = 0; i < o->num_strides[tensor]; i++)
        t->stride[i] = o->strides[tensor][i];
    t->offset = (uint64_t)o->offset_bytes[tensor];
    if (t->offset % dtype_size(t->dtype) != 0)
        return cli_fail(CLI_USAGE,
                        "--offset-bytes %s=%" PRIu64 ": expected a multiple of the element's %d bytes",
                        tensor_names[tensor], t->offset, (int)dtype_size(t->dtype));
    if (span_bytes(t) != 0)
        return cli_fail(CLI_USAGE, "--strides or --offset-bytes of '%s' reach beyond any buffer",
                        tensor_names[tensor]);
    return CLI_OK;
}

/* Outputs and layouts, once the inputs are known. */
static int complete(attention_case *c)
{
    const call_options *o = &c->options;
    case_tensor *out = &c->tensor[TENSOR_O], *lse = &c->tensor[TENSOR_LSE];
    const int64_t o_dim[4] = {c->batch, c->heads_q, c->q_len, c->head_dim_v};
    const int64_t lse_dim[4] = {c->batch, c->heads_q, c->q_len, 1};

    out->present = 1;
    out->dtype = o->out_dtype ? o->out_dtype : c->tensor[TENSOR_Q].dtype;
    memcpy(out->dim, o_dim, sizeof o_dim);
    out->rank = 4;
    out->shape[0] = c->batch;
    out->shape[1] = o->layout_bshd ? c->q_len : c->heads_q;
    out->shape[2] = o->layout_bshd ? c->heads_q : c->q_len;
    out->shape[3] = c->head_dim_v;
    lse->present = o->want_lse;
    lse->dtype = CLATTN_DTYPE_F32;
    memcpy(lse->dim, lse_dim, sizeof lse_dim);
    lse->rank = 3;
    memcpy(lse->shape, lse_dim, sizeof lse_dim);
    if (contiguous_strides(o_dim, o->layout_bshd, out->stride) != 0 ||
        contiguous_strides(lse_dim, 0, lse->stride) != 0)
        return cli_fail(CLI_USAGE, "output 'o' would be too large");

    int status = CLI_OK;
    for (int t = 0; status == CLI_OK && t < TENSOR_COUNT; t++)
        status = lay_out(c, t);
    for (int t = 0; status == CLI_OK && t <= TENSOR_BIAS; t++)
        status = check_overlap(c, t);
    return status;
}

unsigned char *case_layout_input(const attention_case *c, int tensor)
{
    const case_tensor *t = &c->tensor[tensor];
    const size_t size = dtype_size(t->dtype);
    const uint64_t total = t->bytes + c->guard_bytes;
    unsigned char *buffer = total < SIZE_MAX ? malloc((size_t)total + 1) : NULL;
    if (!buffer) {
        cli_note("not enough memory for the %" PRIu64 " bytes of '%s'", total, tensor_names[tensor]);
        return NULL;
    }
    memset(buffer, 0xff, (size_t)total);
    if (case_elements(t) == 0)
        return buffer; /* the other dimensions may be astronomic */
    for (int64_t b = 0; b < t->dim[0]; b++)
        for (int64_t h = 0; h < t->dim[1]; h++)
            for (int64_t i = 0; i < t->dim[2]; i++) {
                const int64_t from = b * t->value_stride[0] + h * t->value_stride[1] + i * t->value_stride[2];
                const int64_t to = b * t->stride[0] + h * t->stride[1] + i * t->stride[2];
                for (int64_t e = 0; e < t->dim[3]; e++)
                    memcpy(buffer + t->offset + (size_t)(to + e * t->stride[3]) * size,
                           (const unsigned char *)t->values + (size_t)(from + e * t->value_stride[3]) * size,
                           size);
            }
    return buffer;
}

int case_is_plain(const attention_case *c, int tensor)
{
    const case_tensor *t = &c->tensor[tensor];
    return t->offset == 0 && c->guard_bytes == 0 && memcmp(t->stride, t->value_stride, sizeof t->stride) == 0;
}

/* ---- From a file --------------------------------------------------------------------------------
 */

static const char *const known_later[] = {
    "bias_head_scale", "mask",         "alibi_slopes", "sinks",    "kv_lens",  "q_lens", "offsets",
    "cu_seqlens_q",    "cu_seqlens_k", "block_table",  "dout",     "dlse",     "user",   "k_scale",
    "v_scale",         "k_new",        "v_new",        "rope_cos", "rope_sin",
};

static int check_names(const safetensors_file *file, const char *name)
{
    for (size_t i = 0; i < file->count; i++) {
        const char *tensor = file->tensor[i].name;
        int known = 0;
        for (int t = TENSOR_Q; t <= TENSOR_BIAS; t++)
            known |= strcmp(tensor, tensor_names[t]) == 0;
        if (known)
            continue;
        int later = strncmp(tensor, "tiles_", 6) == 0;
        for (size_t k = 0; k < sizeof known_later / sizeof known_later[0]; k++)
            later |= strcmp(tensor, known_later[k]) == 0;
        if (later)
            return cli_fail(CLI_USAGE, "%.200s: tensor '%.64s' is not offered by this version", name, tensor);
        return cli_fail(CLI_USAGE, "%.200s: unknown tensor '%.64s'; expected q, k, v and bias", name, tensor);
    }
    return CLI_OK;
}

static int read_dtype(case_tensor *t, const safetensors_tensor *source, const char *name)
{
    t->dtype = dtype_from_safetensors_name(source->dtype);
    if (!t->dtype)
        return cli_fail(CLI_USAGE, "%.200s: tensor '%s' is %s; expected F32, F16 or BF16", name, source->name,
                        source->dtype);
    t->present = 1;
    t->values = source->data;
    t->rank = source->rank;
    return CLI_OK;
}

/* q, k or v: four dimensions in the layout of the options. */
static int read_matrix(attention_case *c, int tensor, const safetensors_file *file, const char *name)
{
    case_tensor *t = &c->tensor[tensor];
    const safetensors_tensor *source = safetensors_find(file, tensor_names[tensor]);
    const int bshd = c->options.layout_bshd;
    if (!source)
        return cli_fail(CLI_USAGE, "%.200s: tensor '%s' is missing", name, tensor_names[tensor]);
    const int status = read_dtype(t, source, name);
    if (status != CLI_OK)
        return status;
    char text[160];
    safetensors_shape_text(text, sizeof text, source->shape, source->rank);
    if (source->rank != 4)
        return cli_fail(CLI_USAGE, "%.200s: tensor '%s' has shape %s; expected 4 dimensions [%s]", name,
                        source->name, text, bshd ? "B,N,H,D" : "B,H,N,D");
    memcpy(t->shape, source->shape, sizeof t->shape);
    t->dim[0] = source->shape[0];
    t->dim[1] = source->shape[bshd ? 2 : 1];
    t->dim[2] = source->shape[bshd ? 1 : 2];
    t->dim[3] = source->shape[3];
    if (contiguous_strides(t->dim, bshd, t->value_stride) != 0)
        return cli_fail(CLI_USAGE, "%.200s: tensor '%s' has shape %s, which is too large", name, source->name,
                        text);
    memcpy(t->stride, t->value_stride, sizeof t->stride);
    return CLI_OK;
}

/* Whether axis `axis` of two tensors is alike; the message shows both shapes. */
static int expect_same(const attention_case *c, const char *name, int a, int b, int axis, const char *what)
{
    const case_tensor *x = &c->tensor[a], *y = &c->tensor[b];
    if (x->dim[axis] == y->dim[axis])
        return CLI_OK;
    char x_text[160], y_text[160];
    safetensors_shape_text(x_text, sizeof x_text, x->shape, 4);
    safetensors_shape_text(y_text, sizeof y_text, y->shape, 4);
    return cli_fail(CLI_USAGE,
                    "%.200s: tensor '%s' has shape %s; expected the %s of '%s', which has shape %s", name,
                    tensor_names[b], y_text, what, tensor_names[a], x_text);
}

static int check_shapes(const attention_case *c, const char *name)
{
    const case_tensor *q = &c->tensor[TENSOR_Q], *k = &c->tensor[TENSOR_K];
    int status = expect_same(c, name, TENSOR_Q, TENSOR_K, 0, "batch");
    if (status == CLI_OK)
        status = expect_same(c, name, TENSOR_Q, TENSOR_V, 0, "batch");
    if (status == CLI_OK)
        status = expect_same(c, name, TENSOR_Q, TENSOR_K, 3, "head dim");
    if (status == CLI_OK)
        status = expect_same(c, name, TENSOR_K, TENSOR_V, 1, "heads");
    if (status == CLI_OK)
        status = expect_same(c, name, TENSOR_K, TENSOR_V, 2, "length");
    for (int t = TENSOR_Q; status == CLI_OK && t <= TENSOR_V; t++) {
        char text[160];
        safetensors_shape_text(text, sizeof text, c->tensor[t].shape, 4);
        if (c->tensor[t].dim[3] < 1 || c->tensor[t].dim[3] > CLATTN_MAX_HEAD_DIM)
            status = cli_fail(CLI_USAGE, "%.200s: tensor '%s' has shape %s; expected a head dim of 1 to %d",
                              name, tensor_names[t], text, CLATTN_MAX_HEAD_DIM);
        else if (c->tensor[t].dim[2] > CLATTN_MAX_LENGTH)
            status = cli_fail(CLI_USAGE, "%.200s: tensor '%s' has shape %s; expected a length of at most %d",
                              name, tensor_names[t], text, CLATTN_MAX_LENGTH);
        else if (c->tensor[t].dim[1] < 1 || c->tensor[t].dim[1] > INT32_MAX)
            status = cli_fail(CLI_USAGE, "%.200s: tensor '%s' has shape %s; expected 1 to %d heads", name,
                              tensor_names[t], text, INT32_MAX);
    }
    if (status == CLI_OK && q->dim[1] % k->dim[1] != 0)
        status = cli_fail(CLI_USAGE,
                          "%.200s: tensor 'q' has %" PRId64 " heads; expected a multiple of the %" PRId64
                          " heads of 'k'",
                          name, q->dim[1], k->dim[1]);
    return status;
}

static void set_sizes(attention_case *c)
{
    const case_tensor *q = &c->tensor[TENSOR_Q], *k = &c->tensor[TENSOR_K];
    c->batch = q->dim[0];
    c->heads_q = q->dim[1];
    c->q_len = q->dim[2];
    c->head_dim_qk = q->dim[3];
    c->heads_kv = k->dim[1];
    c->kv_len = k->dim[2];
    c->head_dim_v = c->tensor[TENSOR_V].dim[3];
}

/* The bias: aligned right to [B,Hq,Nq,Nk], each axis full or 1; axes of 1 are repeated by stride 0.
 */
static int read_bias(attention_case *c, const safetensors_tensor *source, const char *name)
{
    case_tensor *t = &c->tensor[TENSOR_BIAS];
    const int64_t full[4] = {c->batch, c->heads_q, c->q_len, c->kv_len};
    const int status = read_dtype(t, source, name);
    if (status != CLI_OK)
        return status;
    int fits = source->rank >= 1 && source->rank <= 4;
    int64_t stride = 1;
    for (int i = 3; fits && i >= 0; i--) {
        const int axis = i - (4 - source->rank);
        const int64_t size = axis >= 0 ? source->shape[axis] : 1;
        fits = size == full[i] || size == 1;
        t->dim[i] = full[i];
        t->value_stride[i] = size == 1 ? 0 : stride;
        stride *= size > 0 ? size : 1; /* within 62 bits: checked against the file's size */
        if (axis >= 0)
            t->shape[axis] = size;
    }
    if (!fits) {
        char have[160], want[160];
        safetensors_shape_text(have, sizeof have, source->shape, source->rank);
        safetensors_shape_text(want, sizeof want, full, 4);
        return cli_fail(CLI_USAGE, "%.200s: tensor 'bias' has shape %s; expected one that broadcasts to %s",
                        name, have, want);
    }
    memcpy(t->stride, t->value_stride, sizeof t->stride);
    return CLI_OK;
}

int case_from_file(attention_case *out, const safetensors_file *file, const char *name,
                   const call_options *options)
{
    memset(out, 0, sizeof *out);
    out->options = *options;
    int status = check_names(file, name);
    for (int t = TENSOR_Q; status == CLI_OK && t <= TENSOR_V; t++)
        status = read_matrix(out, t, file, name);
    if (status == CLI_OK)
        status = check_shapes(out, name);
    if (status != CLI_OK)
        return status;
    set_sizes(out);
    const safetensors_tensor *bias = safetensors_find(file, "bias");
    if (bias)
        status = read_bias(out, bias, name);
    return status == CLI_OK ? complete(out) : status;
}

/* ---- From arrays --------------------------------------------------------------------------------
 */

static void set_input(attention_case *c, int tensor, const void *values, int32_t dtype, int64_t heads,
                      int64_t length, int64_t dim)
{
    case_tensor *t = &c->tensor[tensor];
    const int bshd = c->options.layout_bshd;
    const int64_t dims[4] = {c->batch, heads, length, dim};
    t->present = 1;
    t->dtype = dtype;
    t->values = values;
    t->rank = 4;
    memcpy(t->dim, dims, sizeof dims);
    t->shape[0] = c->batch;
    t->shape[1] = bshd ? length : heads;
    t->shape[2] = bshd ? heads : length;
    t->shape[3] = dim;
    contiguous_strides(dims, bshd, t->value_stride);
    memcpy(t->stride, t->value_stride, sizeof t->stride);
}

int case_from_inputs(attention_case *out, const case_inputs *in, const call_options *options)
{
    memset(out, 0, sizeof *out);
    out->options = *options;
    out->batch = in->batch;
    set_input(out, TENSOR_Q, in->q, in->dtype_q, in->heads_q, in->q_len, in->head_dim_qk);
    set_input(out, TENSOR_K, in->k, in->dtype_k, in->heads_kv, in->kv_len, in->head_dim_qk);
    set_input(out, TENSOR_V, in->v, in->dtype_v, in->heads_kv, in->kv_len, in->head_dim_v);
    set_sizes(out);
    if (in->bias) {
        safetensors_tensor bias = {
            "bias",   dtype_safetensors_name(in->dtype_bias),
            4,        {in->bias_dim[0], in->bias_dim[1], in->bias_dim[2], in->bias_dim[3]},
            in->bias, 0};
        const int status = read_bias(out, &bias, "bias");
        if (status != CLI_OK)
            return status;
    }
    return complete(out);
}

/* ---- To the library, the reference, a file ------------------------------------------------------
 */

clattn_plan_desc case_plan_desc(const attention_case *c)
{
    const call_options *o = &c->options;
    clattn_plan_desc desc = CLATTN_PLAN_DESC_INIT;
    desc.dtype_q = c->tensor[TENSOR_Q].dtype;
    desc.dtype_k = c->tensor[TENSOR_K].dtype;
    desc.dtype_v = c->tensor[TENSOR_V].dtype;
    desc.dtype_o = c->tensor[TENSOR_O].dtype;
    desc.dtype_bias = c->tensor[TENSOR_BIAS].present ? c->tensor[TENSOR_BIAS].dtype : 0;
    desc.heads_q = (int32_t)c->heads_q;
    desc.heads_kv = (int32_t)c->heads_kv;
    desc.head_dim_qk = (int32_t)c->head_dim_qk;
    desc.head_dim_v = (int32_t)c->head_dim_v;
    desc.features = (o->causal ? CLATTN_FEATURE_CAUSAL : 0) | (o->has_window ? CLATTN_FEATURE_WINDOW : 0) |
                    (o->softcap > 0 ? CLATTN_FEATURE_SOFTCAP : 0) |
                    (c->tensor[TENSOR_BIAS].present ? CLATTN_FEATURE_BIAS : 0) |
                    (o->want_lse ? CLATTN_FEATURE_LSE : 0);
    desc.position_mode = o->position_mode;
    desc.path = o->path;
    return desc;
}

static reference_tensor reference_view(const case_tensor *t)
{
    reference_tensor view = {t->values, t->dtype, {0, 0, 0, 0}};
    memcpy(view.stride, t->value_stride, sizeof view.stride);
    return view;
}

reference_call case_reference(const attention_case *c)
{
    const call_options *o = &c->options;
    reference_call call = {0};
    call.q = reference_view(&c->tensor[TENSOR_Q]);
    call.k = reference_view(&c->tensor[TENSOR_K]);
    call.v = reference_view(&c->tensor[TENSOR_V]);
    if (c->tensor[TENSOR_BIAS].present)
        call.bias = reference_view(&c->tensor[TENSOR_BIAS]);
    call.batch = c->batch;
    call.heads_q = c->heads_q;
    call.heads_kv = c->heads_kv;
    call.q_len = c->q_len;
    call.kv_len = c->kv_len;
    call.head_dim_qk = c->head_dim_qk;
    call.head_dim_v = c->head_dim_v;
    call.causal = o->causal;
    call.position_mode = o->position_mode;
    call.q_offset = o->q_offset;
    call.has_window = o->has_window;
    call.window_left = o->window_left;
    call.window_right = o->window_right;
    call.scale = (double)o->scale;
    call.softcap = (double)o->softcap;
    return call;
}

int case_save(const attention_case *c, const char *path, uint64_t local_bytes)
{
    safetensors_tensor tensors[TENSOR_BIAS + 1];
    size_t count = 0;
    for (int i = TENSOR_Q; i <= TENSOR_BIAS; i++) {
        const case_tensor *t = &c->tensor[i];
        if (!t->present)
            continue;
        safetensors_tensor *out = &tensors[count++];
        memset(out, 0, sizeof *out);
        out->name = tensor_names[i];
        out->dtype = dtype_safetensors_name(t->dtype);
        out->rank = t->rank;
        int64_t elements = 1;
        for (int axis = 0; axis < t->rank; axis++) {
            out->shape[axis] = t->shape[axis];
            elements *= t->shape[axis];
        }
        out->data = t->values;
        out->bytes = (size_t)elements * dtype_size(t->dtype);
    }
    char text[1536], version[32], error[400];
    call_options_text(&c->options, text, sizeof text);
    if (local_bytes) {
        const size_t used = strlen(text);
        cli_format(text + used, sizeof text - used, "%s--local-memory=%" PRIu64, used ? " " : "",
                   local_bytes);
    }
    cli_format(version, sizeof version, "%u", (unsigned)clattn_version());
    const safetensors_pair metadata[] = {{OPTIONS_KEY, text}, {"clattn_version", version}};
    if (safetensors_write(path, tensors, count, metadata, 2, error, sizeof error) != 0)
        return cli_fail(CLI_FAILED, "%s", error);
    return CLI_OK;
}

const char *case_saved_options(const safetensors_file *file)
{
    return safetensors_metadata(file, OPTIONS_KEY);
}
