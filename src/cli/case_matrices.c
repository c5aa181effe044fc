/* case_matrices.c: q, k and v of a file, whatever form they have: types and shapes. */
#include "case_layout.h"
#include "case_serving.h"
#include "case_tensors.h"
#include "cli.h"
#include "tensor_convert.h"

#include <inttypes.h>
#include <string.h>

/* ---- Types -------------------------------------------------------------------------------------- */

/* k or v, of any type that caches have. Blocks are bytes to a file: --kv-dtype tells which. */
static int read_cache(case_tensor *t, const safetensors_tensor *source, int32_t wanted, const char *name)
{
    const int is_bytes = strcmp(source->dtype, "U8") == 0;
    const int32_t have =
        is_bytes && dtype_elements(wanted) > 1 ? wanted : dtype_from_safetensors_name(source->dtype);
    case_read_raw(t, source, name);
    if (!have && is_bytes)
        return cli_fail(
            CLI_USAGE,
            "%.200s: tensor '%s' is U8; expected with a --kv-dtype of blocks, such as q8_0 or q4_0", name,
            source->name);
    if (!have)
        return cli_fail(
            CLI_USAGE,
            "%.200s: tensor '%s' is %s; expected F32, F16, BF16, I8, F8_E4M3, F8_E5M2 or U8 (blocks)", name,
            source->name, source->dtype);
    if (wanted && wanted != have && !dtype_is_plain(have))
        return cli_fail(
            CLI_USAGE,
            "%.200s: tensor '%s' is %s; expected F32, F16 or BF16, to be stored as %s by --kv-dtype", name,
            source->name, source->dtype, dtype_name(wanted));
    t->dtype = have;
    t->element = dtype_size(have);
    return CLI_OK;
}

static int read_type(attention_case *c, int tensor, const safetensors_tensor *source, const char *name)
{
    case_tensor *t = &c->tensor[tensor];
    const int32_t *wanted = c->options.serving.kv_dtype;
    return tensor == TENSOR_K || tensor == TENSOR_V ? read_cache(t, source, wanted[tensor - TENSOR_K], name)
                                                    : case_read_floats(t, source, name);
}

/* ---- Shapes ------------------------------------------------------------------------------------- */

/* From the axes of a file to those of the case, in units of the type. */
static int take_shape(attention_case *c, int tensor, const char *name)
{
    case_tensor *t = &c->tensor[tensor];
    const int form = case_form(c, tensor), rank = form == FORM_PACKED ? 3 : 4;
    const size_t unit = dtype_elements(t->dtype) > 1 ? t->element : 1; /* of the last axis of a file */
    char text[160];
    safetensors_shape_text(text, sizeof text, t->shape, t->rank);
    if (t->rank != rank)
        return cli_fail(CLI_USAGE, "%.200s: tensor '%s' has shape %s; expected %d dimensions [%s]", name,
                        tensor_names[tensor], text, rank, case_form_text(form));
    if (t->shape[rank - 1] % (int64_t)unit != 0)
        return cli_fail(CLI_USAGE,
                        "%.200s: tensor '%s' has shape %s; expected a last axis of %s blocks of %d bytes",
                        name, tensor_names[tensor], text, dtype_name(t->dtype), (int)unit);
    t->dim[0] = form == FORM_PACKED ? 1 : t->shape[0];
    t->dim[1] = t->shape[form == FORM_BHSD || form == FORM_PACKED ? 1 : 2];
    t->dim[2] = t->shape[form == FORM_BHSD ? 2 : form == FORM_PACKED ? 0 : 1];
    t->dim[3] = t->shape[rank - 1] / (int64_t)unit;
    if (case_contiguous_strides(t->dim, form != FORM_BHSD, t->value_stride) != 0)
        return cli_fail(CLI_USAGE, "%.200s: tensor '%s' has shape %s, which is too large", name,
                        tensor_names[tensor], text);
    memcpy(t->stride, t->value_stride, sizeof t->stride);
    return CLI_OK;
}

int case_read_matrix(attention_case *c, int tensor, const safetensors_file *file, const char *name)
{
    const safetensors_tensor *source = safetensors_find(file, tensor_names[tensor]);
    if (!source)
        return cli_fail(CLI_USAGE, "%.200s: tensor '%s' is missing", name, tensor_names[tensor]);
    const int status = read_type(c, tensor, source, name);
    return status == CLI_OK ? take_shape(c, tensor, name) : status;
}

static int64_t head_dim(const case_tensor *t) { return t->dim[3] * dtype_elements(t->dtype); }

/* Whether two tensors agree in something; the message shows both shapes. */
static int expect_same(const attention_case *c, const char *name, int a, int b, int same, const char *what)
{
    const case_tensor *x = &c->tensor[a], *y = &c->tensor[b];
    if (same)
        return CLI_OK;
    char x_text[160], y_text[160];
    safetensors_shape_text(x_text, sizeof x_text, x->shape, x->rank);
    safetensors_shape_text(y_text, sizeof y_text, y->shape, y->rank);
    return cli_fail(CLI_USAGE,
                    "%.200s: tensor '%s' has shape %s; expected the %s of '%s', which has shape %s", name,
                    tensor_names[b], y_text, what, tensor_names[a], x_text);
}

static const char *tokens_text(int form)
{
    return form == FORM_PAGES ? "page size" : form == FORM_PACKED ? "rows" : "length";
}

static int check_agreement(const attention_case *c, const char *name)
{
    const case_tensor *q = &c->tensor[TENSOR_Q], *k = &c->tensor[TENSOR_K], *v = &c->tensor[TENSOR_V];
    const int form_q = case_form(c, TENSOR_Q), form_k = case_form(c, TENSOR_K);
    int status = CLI_OK;
    if (form_q < FORM_PACKED && form_k < FORM_PACKED)
        status = expect_same(c, name, TENSOR_Q, TENSOR_K, q->dim[0] == k->dim[0], "batch");
    if (status == CLI_OK && v->present)
        status = expect_same(c, name, form_q < FORM_PACKED && form_k < FORM_PACKED ? TENSOR_Q : TENSOR_K,
                             TENSOR_V, k->dim[0] == v->dim[0], form_k == FORM_PAGES ? "pages" : "batch");
    if (status == CLI_OK)
        status = expect_same(c, name, TENSOR_Q, TENSOR_K, q->dim[3] == head_dim(k), "head dim");
    if (status == CLI_OK && v->present)
        status = expect_same(c, name, TENSOR_K, TENSOR_V, k->dim[1] == v->dim[1], "heads");
    if (status == CLI_OK && v->present)
        status = expect_same(c, name, TENSOR_K, TENSOR_V, k->dim[2] == v->dim[2], tokens_text(form_k));
    return status;
}

static int check_limits(const attention_case *c, int tensor, const char *name)
{
    const case_tensor *t = &c->tensor[tensor];
    char text[160];
    safetensors_shape_text(text, sizeof text, t->shape, t->rank);
    if (head_dim(t) < 1 || head_dim(t) > CLATTN_MAX_HEAD_DIM)
        return cli_fail(CLI_USAGE, "%.200s: tensor '%s' has shape %s; expected a head dim of 1 to %d", name,
                        tensor_names[tensor], text, CLATTN_MAX_HEAD_DIM);
    if (t->dim[2] > CLATTN_MAX_LENGTH)
        return cli_fail(CLI_USAGE, "%.200s: tensor '%s' has shape %s; expected a length of at most %d", name,
                        tensor_names[tensor], text, CLATTN_MAX_LENGTH);
    if (t->dim[1] < 1 || t->dim[1] > INT32_MAX)
        return cli_fail(CLI_USAGE, "%.200s: tensor '%s' has shape %s; expected 1 to %d heads", name,
                        tensor_names[tensor], text, INT32_MAX);
    return CLI_OK;
}

static int check_shapes(const attention_case *c, const char *name)
{
    const case_tensor *q = &c->tensor[TENSOR_Q], *k = &c->tensor[TENSOR_K];
    int status = check_agreement(c, name);
    for (int t = TENSOR_Q; status == CLI_OK && t <= TENSOR_V; t++)
        if (c->tensor[t].present)
            status = check_limits(c, t, name);
    if (status == CLI_OK && c->options.serving.v_in_k > head_dim(k))
        status = cli_fail(CLI_USAGE,
                          "--v-in-k: %" PRId64 " columns; expected at most the head dim of 'k', %" PRId64,
                          c->options.serving.v_in_k, head_dim(k));
    if (status == CLI_OK && q->dim[1] % k->dim[1] != 0)
        status = cli_fail(CLI_USAGE,
                          "%.200s: tensor 'q' has %" PRId64 " heads; expected a multiple of the %" PRId64
                          " heads of 'k'",
                          name, q->dim[1], k->dim[1]);
    return status;
}

/* ---- Floats that are to be stored otherwise ------------------------------------------------------ */

/* The given tensor is put aside; what attention reads has its shape in the other type. */
static int replace_by_cache(attention_case *c, int tensor, const char *name)
{
    case_tensor *t = &c->tensor[tensor], *given = &c->given[tensor - TENSOR_K];
    const int32_t wanted = c->options.serving.kv_dtype[tensor - TENSOR_K];
    if (!t->present || !wanted || wanted == t->dtype)
        return CLI_OK;
    if (t->dim[3] % dtype_elements(wanted) != 0)
        return cli_fail(CLI_USAGE,
                        "%.200s: tensor '%s' has a head dim of %" PRId64
                        "; expected a multiple of 32, the block of %s",
                        name, tensor_names[tensor], t->dim[3], dtype_name(wanted));
    *given = *t;
    t->dtype = wanted;
    t->file_dtype = dtype_safetensors_name(wanted);
    t->element = dtype_size(wanted);
    t->values = NULL;
    t->dim[3] /= dtype_elements(wanted);
    t->value_bytes = (size_t)case_elements(t) * t->element;
    t->shape[t->rank - 1] = dtype_elements(wanted) > 1 ? t->dim[3] * (int64_t)dtype_size(wanted) : t->dim[3];
    case_contiguous_strides(t->dim, case_form(c, tensor) != FORM_BHSD, t->value_stride);
    memcpy(t->stride, t->value_stride, sizeof t->stride);
    return CLI_OK;
}

int case_read_matrices(attention_case *c, const safetensors_file *file, const char *name)
{
    int status = case_read_sequences(c, file, name);
    for (int t = TENSOR_Q; status == CLI_OK && t <= TENSOR_V; t++)
        if (t != TENSOR_V || !c->options.serving.v_in_k)
            status = case_read_matrix(c, t, file, name);
        else if (safetensors_find(file, "v"))
            status =
                cli_fail(CLI_USAGE, "%.200s: tensor 'v': expected instead of --v-in-k, not beside it", name);
    if (status == CLI_OK)
        status = check_shapes(c, name);
    if (status == CLI_OK)
        status = case_set_sizes(c, name);
    for (int t = TENSOR_K; status == CLI_OK && t <= TENSOR_V; t++)
        status = replace_by_cache(c, t, name);
    return status;
}
