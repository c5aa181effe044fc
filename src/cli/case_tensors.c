/* case_tensors.c: q, k and v of a file, and which names a file may hold. */
#include "case_tensors.h"

#include "case_layout.h"
#include "cli.h"
#include "tensor_convert.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

static const char *const known_later[] = {
    "cu_seqlens_q", "cu_seqlens_k", "block_table", "dout",     "dlse",     "k_scale",
    "v_scale",      "k_new",        "v_new",       "rope_cos", "rope_sin",
};

int case_check_names(const safetensors_file *file, const char *name)
{
    for (size_t i = 0; i < file->count; i++) {
        const char *tensor = file->tensor[i].name;
        int known = 0;
        for (int t = 0; t < NUM_INPUTS; t++)
            known |= strcmp(tensor, tensor_names[t]) == 0;
        for (size_t k = 0; k < sizeof known_later / sizeof known_later[0]; k++)
            if (strcmp(tensor, known_later[k]) == 0)
                return cli_fail(CLI_USAGE, "%.200s: tensor '%.64s' is not offered by this version", name,
                                tensor);
        if (!known)
            return cli_fail(CLI_USAGE,
                            "%.200s: unknown tensor '%.64s'; expected q, k, v and others that "
                            "`clattn run --help` names",
                            name, tensor);
    }
    return CLI_OK;
}

static void set_values(case_tensor *t, const safetensors_tensor *source)
{
    t->present = 1;
    t->dtype = dtype_from_safetensors_name(source->dtype);
    t->file_dtype = source->dtype;
    t->values = source->data;
    t->value_bytes = source->bytes;
    t->rank = source->rank;
    memcpy(t->shape, source->shape, sizeof t->shape);
}

int case_read_floats(case_tensor *t, const safetensors_tensor *source, const char *name)
{
    set_values(t, source);
    t->element = dtype_size(t->dtype);
    return dtype_is_plain(t->dtype)
               ? CLI_OK
               : cli_fail(CLI_USAGE, "%.200s: tensor '%s' is %s; expected F32, F16 or BF16", name,
                          source->name, source->dtype);
}

int case_read_f32(case_tensor *t, const safetensors_tensor *source, const char *name)
{
    set_values(t, source);
    t->element = 4;
    return t->dtype == CLATTN_DTYPE_F32 ? CLI_OK
                                        : cli_fail(CLI_USAGE, "%.200s: tensor '%s' is %s; expected F32", name,
                                                   source->name, source->dtype);
}

int case_read_bools(case_tensor *t, const safetensors_tensor *source, const char *name)
{
    set_values(t, source);
    t->element = 1;
    return strcmp(source->dtype, "BOOL") == 0 || strcmp(source->dtype, "U8") == 0
               ? CLI_OK
               : cli_fail(CLI_USAGE, "%.200s: tensor '%s' is %s; expected BOOL or U8", name, source->name,
                          source->dtype);
}

/* Integers get a copy, because in a file they may lie at any address. */
int case_read_integers(case_tensor *t, const safetensors_tensor *source, const char *name)
{
    set_values(t, source);
    t->element = sizeof(int32_t);
    if (strcmp(source->dtype, "I32") != 0)
        return cli_fail(CLI_USAGE, "%.200s: tensor '%s' is %s; expected I32", name, source->name,
                        source->dtype);
    t->owned = malloc(source->bytes + 1);
    if (!t->owned)
        return cli_fail(CLI_FAILED, "not enough memory for '%s'", source->name);
    if (source->bytes > 0)
        memcpy(t->owned, source->data, source->bytes);
    t->values = t->owned;
    return CLI_OK;
}

int case_read_raw(case_tensor *t, const safetensors_tensor *source, const char *name)
{
    (void)name;
    set_values(t, source);
    t->dtype = 0;
    t->element = source->bytes;
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
    const int status = case_read_floats(t, source, name);
    if (status != CLI_OK)
        return status;
    char text[160];
    safetensors_shape_text(text, sizeof text, source->shape, source->rank);
    if (source->rank != 4)
        return cli_fail(CLI_USAGE, "%.200s: tensor '%s' has shape %s; expected 4 dimensions [%s]", name,
                        source->name, text, bshd ? "B,N,H,D" : "B,H,N,D");
    t->dim[0] = source->shape[0];
    t->dim[1] = source->shape[bshd ? 2 : 1];
    t->dim[2] = source->shape[bshd ? 1 : 2];
    t->dim[3] = source->shape[3];
    if (case_contiguous_strides(t->dim, bshd, t->value_stride) != 0)
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

void case_set_sizes(attention_case *c)
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

int case_read_matrices(attention_case *c, const safetensors_file *file, const char *name)
{
    int status = CLI_OK;
    for (int t = TENSOR_Q; status == CLI_OK && t <= TENSOR_V; t++)
        status = read_matrix(c, t, file, name);
    if (status == CLI_OK)
        status = check_shapes(c, name);
    if (status == CLI_OK)
        case_set_sizes(c);
    return status;
}
