/* case_serving.c: packed sequences, pages, and tokens that are appended. */
#include "case_serving.h"

#include "case_layout.h"
#include "case_tensors.h"
#include "cli.h"
#include "tensor_convert.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

/* ---- How tensors lie ---------------------------------------------------------------------------- */

int case_form(const attention_case *c, int tensor)
{
    const int plain = c->options.layout_bshd ? FORM_BSHD : FORM_BHSD;
    switch (tensor) {
    case TENSOR_K:
    case TENSOR_V:
    case TENSOR_K_SCALE:
    case TENSOR_V_SCALE:
        return c->tensor[TENSOR_BLOCK_TABLE].present    ? FORM_PAGES
               : c->tensor[TENSOR_CU_SEQLENS_K].present ? FORM_PACKED
                                                        : plain;
    default:
        return c->tensor[TENSOR_CU_SEQLENS_Q].present ? FORM_PACKED : plain;
    }
}

const char *case_form_text(int form)
{
    static const char *const texts[] = {"B,H,N,D", "B,N,H,D", "total,H,D", "blocks,page,H,D"};
    return texts[form];
}

int case_appends(const attention_case *c) { return c->tensor[TENSOR_K_NEW].present; }

int64_t case_rotary_dim(const attention_case *c)
{
    const serving_options *o = &c->options.serving;
    return !o->rope ? 0 : o->rotary_dim ? o->rotary_dim : c->head_dim_qk;
}

/* ---- Lengths and places ------------------------------------------------------------------------- */

static int64_t sequence_len(const attention_case *c, int cu_seqlens, int64_t b, int64_t otherwise)
{
    const int32_t *begin = c->tensor[cu_seqlens].values;
    return begin ? (int64_t)begin[b + 1] - begin[b] : otherwise;
}

int64_t case_q_len(const attention_case *c, int64_t b)
{
    const int32_t *lens = c->tensor[TENSOR_Q_LENS].values;
    return lens ? lens[b] : sequence_len(c, TENSOR_CU_SEQLENS_Q, b, c->q_len);
}

int64_t case_old_len(const attention_case *c, int64_t b)
{
    const int32_t *lens = c->tensor[TENSOR_KV_LENS].values;
    return lens ? lens[b] : sequence_len(c, TENSOR_CU_SEQLENS_K, b, c->kv_len);
}

int64_t case_new_len(const attention_case *c, int64_t b)
{
    if (!case_appends(c))
        return 0;
    return c->tensor[TENSOR_Q_LENS].present || c->tensor[TENSOR_CU_SEQLENS_Q].present
               ? case_q_len(c, b)
               : c->tensor[TENSOR_K_NEW].dim[2];
}

int64_t case_kv_len(const attention_case *c, int64_t b) { return case_old_len(c, b) + case_new_len(c, b); }

void case_row_place(const attention_case *c, int64_t b, int64_t i, int64_t *batch, int64_t *token)
{
    const int32_t *begin = c->tensor[TENSOR_CU_SEQLENS_Q].values;
    *batch = begin ? 0 : b;
    *token = begin ? begin[b] + i : i;
}

int case_key_place(const attention_case *c, int64_t b, int64_t j, int64_t *batch, int64_t *token)
{
    const int32_t *begin = c->tensor[TENSOR_CU_SEQLENS_K].values;
    const int32_t *table = c->tensor[TENSOR_BLOCK_TABLE].values;
    *batch = begin ? 0 : b;
    *token = begin ? begin[b] + j : j;
    if (!table)
        return 1;
    if (j / c->page_size >= c->max_blocks)
        return 0;
    *batch = table[b * c->max_blocks + j / c->page_size];
    *token = j % c->page_size;
    return *batch >= 0 && *batch < c->num_pages;
}

/* ---- Packed sequences and pages ----------------------------------------------------------------- */

static int read_integers(attention_case *c, int tensor, int rank, const char *expected,
                         const safetensors_file *file, const char *name)
{
    case_tensor *t = &c->tensor[tensor];
    const safetensors_tensor *source = safetensors_find(file, tensor_names[tensor]);
    char text[160];
    if (!source)
        return CLI_OK;
    const int status = case_read_integers(t, source, name);
    if (status != CLI_OK)
        return status;
    safetensors_shape_text(text, sizeof text, source->shape, source->rank);
    if (source->rank != rank)
        return cli_fail(CLI_USAGE, "%.200s: tensor '%s' has shape %s; expected %s", name, source->name, text,
                        expected);
    t->dim[0] = source->shape[0];
    t->dim[1] = rank > 1 ? source->shape[1] : 1;
    t->dim[2] = t->dim[3] = 1;
    t->value_stride[0] = rank > 1 ? (t->dim[1] > 0 ? t->dim[1] : 1) : 1;
    t->value_stride[1] = rank > 1;
    memcpy(t->stride, t->value_stride, sizeof t->stride);
    return CLI_OK;
}

int case_read_sequences(attention_case *c, const safetensors_file *file, const char *name)
{
    int status = read_integers(c, TENSOR_CU_SEQLENS_Q, 1, "[batch+1]", file, name);
    if (status == CLI_OK)
        status = read_integers(c, TENSOR_CU_SEQLENS_K, 1, "[batch+1]", file, name);
    if (status == CLI_OK)
        status = read_integers(c, TENSOR_BLOCK_TABLE, 2, "[batch,max_blocks]", file, name);
    for (int t = TENSOR_CU_SEQLENS_Q; status == CLI_OK && t <= TENSOR_CU_SEQLENS_K; t++)
        if (c->tensor[t].present && c->tensor[t].dim[0] < 1)
            status = cli_fail(CLI_USAGE, "%.200s: tensor '%s' has shape [0]; expected [batch+1]", name,
                              tensor_names[t]);
    if (status == CLI_OK && c->tensor[TENSOR_BLOCK_TABLE].present) {
        if (c->tensor[TENSOR_CU_SEQLENS_K].present)
            return cli_fail(CLI_USAGE,
                            "%.200s: tensor 'block_table': expected instead of 'cu_seqlens_k', not beside it",
                            name);
        if (!safetensors_find(file, "kv_lens"))
            return cli_fail(CLI_USAGE, "%.200s: tensor 'kv_lens' is missing; expected with 'block_table'",
                            name);
    }
    return status;
}

/* The rows at which sequences begin: never decreasing, within the tensor. */
static int check_rows(const attention_case *c, int cu_seqlens, int tensor, int64_t total, int64_t *longest,
                      const char *name)
{
    const case_tensor *t = &c->tensor[cu_seqlens];
    const int32_t *row = t->values;
    *longest = 0;
    for (int64_t i = 0; i < t->dim[0]; i++) {
        const int64_t least = i > 0 ? row[i - 1] : 0;
        if (row[i] < least || row[i] > total)
            return cli_fail(CLI_USAGE,
                            "%.200s: tensor '%s' holds %d (its element %" PRId64 "); expected %" PRId64
                            " to %" PRId64 ", the rows of '%s', none less than the one before",
                            name, tensor_names[cu_seqlens], (int)row[i], i, least, total,
                            tensor_names[tensor]);
        if (i > 0 && row[i] - least > *longest)
            *longest = row[i] - least;
    }
    return CLI_OK;
}

/* The batch that `tensor` speaks of has to be that of the case. */
static int check_batch(const attention_case *c, int tensor, int64_t batch, const char *name)
{
    char text[160];
    if (batch == c->batch)
        return CLI_OK;
    safetensors_shape_text(text, sizeof text, c->tensor[tensor].shape, c->tensor[tensor].rank);
    return cli_fail(CLI_USAGE, "%.200s: tensor '%s' has shape %s; expected a batch of %" PRId64 ", as %s has",
                    name, tensor_names[tensor], text, c->batch,
                    c->tensor[TENSOR_CU_SEQLENS_Q].present ? "'cu_seqlens_q'" : "'q'");
}

static int set_query_sizes(attention_case *c, const char *name)
{
    const case_tensor *q = &c->tensor[TENSOR_Q], *cu = &c->tensor[TENSOR_CU_SEQLENS_Q];
    c->heads_q = q->dim[1];
    c->head_dim_qk = q->dim[3];
    c->batch = q->dim[0];
    c->q_len = q->dim[2];
    if (!cu->present)
        return CLI_OK;
    c->batch = cu->dim[0] - 1;
    c->total_q = q->dim[2];
    return check_rows(c, TENSOR_CU_SEQLENS_Q, TENSOR_Q, c->total_q, &c->q_len, name);
}

static int set_key_sizes(attention_case *c, const char *name)
{
    const case_tensor *k = &c->tensor[TENSOR_K], *cu = &c->tensor[TENSOR_CU_SEQLENS_K];
    const case_tensor *v = &c->tensor[TENSOR_V], *table = &c->tensor[TENSOR_BLOCK_TABLE];
    c->heads_kv = k->dim[1];
    c->kv_len = k->dim[2];
    c->head_dim_v = v->present ? v->dim[3] * dtype_elements(v->dtype) : c->options.serving.v_in_k;
    if (cu->present) {
        c->total_k = k->dim[2];
        const int status = check_batch(c, TENSOR_CU_SEQLENS_K, cu->dim[0] - 1, name);
        return status != CLI_OK ? status
                                : check_rows(c, TENSOR_CU_SEQLENS_K, TENSOR_K, c->total_k, &c->kv_len, name);
    }
    if (!table->present)
        return check_batch(c, TENSOR_K, k->dim[0], name);
    c->num_pages = k->dim[0];
    c->page_size = k->dim[2];
    c->max_blocks = table->dim[1];
    if (c->page_size < 1)
        return cli_fail(CLI_USAGE, "%.200s: tensor 'k' has pages of 0 tokens; expected 1 or more", name);
    if (c->max_blocks > CLATTN_MAX_LENGTH / c->page_size)
        return cli_fail(CLI_USAGE,
                        "%.200s: tensor 'block_table' has %" PRId64 " pages of %" PRId64
                        " tokens for each entry; expected at most %d tokens",
                        name, c->max_blocks, c->page_size, CLATTN_MAX_LENGTH);
    c->kv_len = c->max_blocks * c->page_size;
    return check_batch(c, TENSOR_BLOCK_TABLE, table->dim[0], name);
}

int case_set_sizes(attention_case *c, const char *name)
{
    const int status = set_query_sizes(c, name);
    return status == CLI_OK ? set_key_sizes(c, name) : status;
}

/* ---- Scales ------------------------------------------------------------------------------------- */

/* The same for everything, one for each head, or one for each token and head as k and v lie. */
static int read_scale(attention_case *c, int tensor, const safetensors_tensor *source, const char *name)
{
    case_tensor *t = &c->tensor[tensor];
    const case_tensor *kv = &c->tensor[tensor == TENSOR_K_SCALE ? TENSOR_K : TENSOR_V];
    const int form = case_form(c, tensor), axes = form == FORM_PACKED ? 2 : 3;
    int64_t full[4];
    char have[160], want[160];
    int status = case_read_f32(t, source, name);
    if (status != CLI_OK)
        return status;
    for (int i = 0; i < 4; i++) {
        t->dim[i] = i < 3 ? kv->dim[i] : 1;
        t->value_stride[i] = 0;
    }
    memcpy(full, kv->shape, sizeof full);
    if (source->rank == axes && memcmp(source->shape, full, (size_t)axes * sizeof *full) == 0)
        status = case_contiguous_strides(t->dim, form != FORM_BHSD, t->value_stride);
    else if (source->rank == 1 && source->shape[0] == kv->dim[1])
        t->value_stride[1] = 1;
    else if (source->rank > 1 || (source->rank == 1 && source->shape[0] != 1)) {
        safetensors_shape_text(have, sizeof have, source->shape, source->rank);
        safetensors_shape_text(want, sizeof want, full, axes);
        return cli_fail(CLI_USAGE, "%.200s: tensor '%s' has shape %s; expected [1], [%" PRId64 "] or %s",
                        name, source->name, have, kv->dim[1], want);
    }
    t->value_stride[3] = 0;
    memcpy(t->stride, t->value_stride, sizeof t->stride);
    return status;
}

/* A scale for each token and head, which the device computes. */
static int make_scale(attention_case *c, int tensor)
{
    case_tensor *t = &c->tensor[tensor];
    const case_tensor *kv = &c->tensor[tensor == TENSOR_K_SCALE ? TENSOR_K : TENSOR_V];
    const int form = case_form(c, tensor);
    memset(t, 0, sizeof *t);
    t->present = 1;
    t->dtype = CLATTN_DTYPE_F32;
    t->file_dtype = "F32";
    t->element = sizeof(float);
    t->rank = form == FORM_PACKED ? 2 : 3;
    memcpy(t->shape, kv->shape, (size_t)t->rank * sizeof *t->shape);
    memcpy(t->dim, kv->dim, 3 * sizeof *t->dim);
    t->dim[3] = 1;
    if (case_contiguous_strides(t->dim, form != FORM_BHSD, t->value_stride) != 0)
        return cli_fail(CLI_USAGE, "'%s' would be too large", tensor_names[tensor]);
    t->value_stride[3] = 0;
    memcpy(t->stride, t->value_stride, sizeof t->stride);
    return CLI_OK;
}

static int read_scale_of(attention_case *c, int kv, const safetensors_file *file, const char *name)
{
    const int tensor = kv == TENSOR_K ? TENSOR_K_SCALE : TENSOR_V_SCALE;
    const safetensors_tensor *source = safetensors_find(file, tensor_names[tensor]);
    const int32_t dtype = c->tensor[kv].dtype;
    const int scaled =
        dtype == CLATTN_DTYPE_I8 || dtype == CLATTN_DTYPE_F8_E4M3 || dtype == CLATTN_DTYPE_F8_E5M2;
    const int converted = c->given[kv - TENSOR_K].present, is_i8 = dtype == CLATTN_DTYPE_I8;
    if (!c->tensor[kv].present)
        return source ? cli_fail(CLI_USAGE, "%.200s: tensor '%s': expected with '%s', which is missing", name,
                                 tensor_names[tensor], tensor_names[kv])
                      : CLI_OK;
    if (source && !scaled)
        return cli_fail(CLI_USAGE,
                        "%.200s: tensor '%s': expected with '%s' of i8, f8_e4m3 or f8_e5m2; it is %s", name,
                        tensor_names[tensor], tensor_names[kv], dtype_name(dtype));
    if (source && converted && is_i8)
        return cli_fail(
            CLI_USAGE,
            "%.200s: tensor '%s': expected with a '%s' that is I8 already; --kv-dtype i8 computes it", name,
            tensor_names[tensor], tensor_names[kv]);
    if (!source && !converted && is_i8)
        return cli_fail(CLI_USAGE, "%.200s: tensor '%s' is missing; expected with '%s' of I8", name,
                        tensor_names[tensor], tensor_names[kv]);
    if (!source)
        return converted && is_i8 ? make_scale(c, tensor) : CLI_OK;
    const int status = read_scale(c, tensor, source, name);
    if (status == CLI_OK && is_i8 && safetensors_find(file, "k_new") && c->tensor[tensor].rank < 2)
        return cli_fail(CLI_USAGE,
                        "%.200s: tensor '%s': expected a scale for each token and head with 'k_new', which "
                        "writes them",
                        name, tensor_names[tensor]);
    return status;
}

/* ---- New tokens --------------------------------------------------------------------------------- */

static int check_new_shape(const attention_case *c, int tensor, const char *name)
{
    const case_tensor *t = &c->tensor[tensor];
    const int packed = case_form(c, tensor) == FORM_PACKED,
              by_q = packed || c->options.serving.rope != 0 || c->tensor[TENSOR_Q_LENS].present;
    const int64_t tokens = packed ? c->total_q : by_q ? c->q_len : c->tensor[TENSOR_K_NEW].dim[2];
    const int64_t dim = tensor == TENSOR_K_NEW ? c->head_dim_qk : c->head_dim_v;
    const int64_t in_order[4][4] = {{c->batch, c->heads_kv, tokens, dim},
                                    {c->batch, tokens, c->heads_kv, dim},
                                    {tokens, c->heads_kv, dim, 0}};
    const int64_t *want = in_order[case_form(c, tensor)];
    char have_text[160], want_text[160];
    if (memcmp(t->shape, want, (size_t)t->rank * sizeof *want) == 0)
        return CLI_OK;
    safetensors_shape_text(have_text, sizeof have_text, t->shape, t->rank);
    safetensors_shape_text(want_text, sizeof want_text, want, t->rank);
    return cli_fail(CLI_USAGE, "%.200s: tensor '%s' has shape %s; expected %s%s", name, tensor_names[tensor],
                    have_text, want_text,
                    !packed && by_q ? ", with as many tokens as 'q', whose lengths or positions it shares"
                                    : "");
}

static int check_new_types(const attention_case *c, const char *name)
{
    const case_tensor *k = &c->tensor[TENSOR_K_NEW], *v = &c->tensor[TENSOR_V_NEW];
    if (v->present && v->dtype != k->dtype)
        return cli_fail(CLI_USAGE, "%.200s: tensor 'v_new' is %s; expected %s, as 'k_new' is", name,
                        v->file_dtype, k->file_dtype);
    if (c->options.serving.rope && c->tensor[TENSOR_Q].dtype != k->dtype)
        return cli_fail(CLI_USAGE, "%.200s: tensor 'k_new' is %s; expected %s with --rope, as 'q' is", name,
                        k->file_dtype, c->tensor[TENSOR_Q].file_dtype);
    return CLI_OK;
}

static int read_new(attention_case *c, const safetensors_file *file, const char *name)
{
    const int with_v = c->tensor[TENSOR_V].present;
    const int has_k = safetensors_find(file, "k_new") != NULL,
              has_v = safetensors_find(file, "v_new") != NULL;
    if (!has_k && !has_v)
        return c->options.serving.rope
                   ? cli_fail(CLI_USAGE, "%.200s: tensor 'k_new' is missing; expected with --rope", name)
                   : CLI_OK;
    if (!has_k || has_v != with_v)
        return cli_fail(CLI_USAGE, "%.200s: tensor '%s' %s; expected k_new and v_new together%s", name,
                        !has_k ? "k_new" : "v_new", has_v && has_k ? "is there" : "is missing",
                        with_v ? "" : ", v_new not with --v-in-k");
    if (c->tensor[TENSOR_CU_SEQLENS_K].present)
        return cli_fail(
            CLI_USAGE,
            "%.200s: tensor 'k_new': expected without 'cu_seqlens_k': packed keys have no room for "
            "more",
            name);
    if (!c->tensor[TENSOR_KV_LENS].present)
        return cli_fail(CLI_USAGE,
                        "%.200s: tensor 'kv_lens' is missing; expected with 'k_new', which is appended there",
                        name);
    int status = case_read_matrix(c, TENSOR_K_NEW, file, name);
    if (status == CLI_OK && with_v)
        status = case_read_matrix(c, TENSOR_V_NEW, file, name);
    if (status == CLI_OK)
        status = check_new_shape(c, TENSOR_K_NEW, name);
    if (status == CLI_OK && with_v)
        status = check_new_shape(c, TENSOR_V_NEW, name);
    return status == CLI_OK ? check_new_types(c, name) : status;
}

static int read_table(attention_case *c, int tensor, const safetensors_file *file, const char *name)
{
    case_tensor *t = &c->tensor[tensor];
    const safetensors_tensor *source = safetensors_find(file, tensor_names[tensor]);
    char text[160];
    const int status = case_read_f32(t, source, name);
    if (status != CLI_OK)
        return status;
    safetensors_shape_text(text, sizeof text, source->shape, source->rank);
    if (source->rank != 2 || source->shape[0] < 1 || source->shape[1] != case_rotary_dim(c) / 2)
        return cli_fail(CLI_USAGE, "%.200s: tensor '%s' has shape %s; expected [positions,%" PRId64 "]", name,
                        source->name, text, case_rotary_dim(c) / 2);
    t->dim[0] = source->shape[0];
    t->dim[1] = t->dim[2] = 1;
    t->dim[3] = source->shape[1];
    t->value_stride[0] = source->shape[1];
    t->value_stride[3] = 1;
    memcpy(t->stride, t->value_stride, sizeof t->stride);
    return CLI_OK;
}

/* Every position has to be in the tables; the library takes the nearest instead. */
static int check_positions(const attention_case *c, const char *name)
{
    const case_tensor *cos_table = &c->tensor[TENSOR_ROPE_COS], *sin_table = &c->tensor[TENSOR_ROPE_SIN];
    if (cos_table->dim[0] != sin_table->dim[0])
        return cli_fail(CLI_USAGE,
                        "%.200s: tensor 'rope_sin' has %" PRId64 " positions; expected %" PRId64
                        ", as 'rope_cos' has",
                        name, sin_table->dim[0], cos_table->dim[0]);
    for (int64_t b = 0; b < c->batch; b++)
        if (case_kv_len(c, b) > cos_table->dim[0])
            return cli_fail(CLI_USAGE,
                            "%.200s: tensor 'rope_cos' has %" PRId64
                            " positions; expected at least the %" PRId64 " keys that entry %" PRId64
                            " has at the end",
                            name, cos_table->dim[0], case_kv_len(c, b), b);
    return CLI_OK;
}

static int read_rope(attention_case *c, const safetensors_file *file, const char *name)
{
    const serving_options *o = &c->options.serving;
    const int has_cos = safetensors_find(file, "rope_cos") != NULL;
    const int has_sin = safetensors_find(file, "rope_sin") != NULL;
    if ((has_cos || has_sin) && !o->rope)
        return cli_fail(CLI_USAGE, "%.200s: tensor '%s': expected with --rope neox or --rope interleaved",
                        name, has_cos ? "rope_cos" : "rope_sin");
    if (has_cos != has_sin)
        return cli_fail(CLI_USAGE, "%.200s: tensor '%s' is missing; expected rope_cos and rope_sin together",
                        name, has_cos ? "rope_sin" : "rope_cos");
    if (o->rope && (case_rotary_dim(c) > c->head_dim_qk || case_rotary_dim(c) % 2 != 0))
        return cli_fail(CLI_USAGE,
                        "--rotary-dim: %" PRId64 " columns of a head dim of %" PRId64
                        "; expected an even number, at most the head dim",
                        case_rotary_dim(c), c->head_dim_qk);
    if (!has_cos)
        return CLI_OK;
    if (o->rope_base != 0 || o->rope_scale != 0)
        return cli_fail(CLI_USAGE, "--%s: expected instead of 'rope_cos' and 'rope_sin', not beside them",
                        o->rope_base != 0 ? "rope-base" : "rope-scale");
    int status = read_table(c, TENSOR_ROPE_COS, file, name);
    if (status == CLI_OK)
        status = read_table(c, TENSOR_ROPE_SIN, file, name);
    return status == CLI_OK ? check_positions(c, name) : status;
}

int case_read_serving(attention_case *c, const safetensors_file *file, const char *name)
{
    int status = read_scale_of(c, TENSOR_K, file, name);
    if (status == CLI_OK)
        status = read_scale_of(c, TENSOR_V, file, name);
    if (status == CLI_OK)
        status = read_new(c, file, name);
    if (status == CLI_OK)
        status = read_rope(c, file, name);
    return status;
}
