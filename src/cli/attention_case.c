/* attention_case.c: one call, from a file or from arrays, and what library, reference and file make of it. */
#include "attention_case.h"

#include "case_layout.h"
#include "case_serving.h"
#include "case_tensors.h"
#include "cli.h"
#include "tensor_convert.h"

#include <cjson/cJSON.h>

#include <stdlib.h>
#include <string.h>

#define OPTIONS_KEY "clattn_options"

/* ---- From a file or from arrays ----------------------------------------------------------------- */

static void set_form(case_tensor *t, int32_t dtype, const int64_t dim[4])
{
    t->present = 1;
    t->dtype = dtype;
    t->file_dtype = dtype_safetensors_name(dtype);
    t->element = dtype_size(dtype);
    memcpy(t->dim, dim, sizeof t->dim);
}

/* Whether the call reads numbers that the device may find wrong. */
static int reads_numbers(const attention_case *c)
{
    static const int numbers[] = {TENSOR_Q_LENS, TENSOR_KV_LENS, TENSOR_CU_SEQLENS_Q, TENSOR_CU_SEQLENS_K,
                                  TENSOR_BLOCK_TABLE};
    int any = 0;
    for (size_t i = 0; i < sizeof numbers / sizeof numbers[0]; i++)
        any |= c->tensor[numbers[i]].present;
    return any;
}

/* Valid lengths, however they are given. */
static int take_lengths(attention_case *c)
{
    const int by_rows = c->tensor[TENSOR_Q_LENS].present || c->tensor[TENSOR_CU_SEQLENS_Q].present;
    const int by_keys = c->tensor[TENSOR_KV_LENS].present || c->tensor[TENSOR_CU_SEQLENS_K].present;
    const size_t bytes = (size_t)c->batch * sizeof *c->rows + 1;
    c->rows = by_rows ? malloc(bytes) : NULL;
    c->keys = by_keys ? malloc(bytes) : NULL;
    if ((by_rows && !c->rows) || (by_keys && !c->keys))
        return cli_fail(CLI_FAILED, "out of memory");
    for (int64_t b = 0; b < c->batch; b++) {
        if (by_rows)
            c->rows[b] = (int32_t)case_q_len(c, b);
        if (by_keys)
            c->keys[b] = (int32_t)case_kv_len(c, b);
    }
    return CLI_OK;
}

/* Outputs and layouts, once the inputs are known. */
static int complete(attention_case *c)
{
    const call_options *o = &c->options;
    case_tensor *out = &c->tensor[TENSOR_O], *lse = &c->tensor[TENSOR_LSE];
    const int form = case_form(c, TENSOR_O), packed = form == FORM_PACKED;
    const int64_t batch = packed ? 1 : c->batch, tokens = packed ? c->total_q : c->q_len;
    const int64_t o_dim[4] = {batch, c->heads_q, tokens, c->head_dim_v};
    const int64_t lse_dim[4] = {batch, c->heads_q, tokens, 1};

    set_form(out, o->out_dtype ? o->out_dtype : c->tensor[TENSOR_Q].dtype, o_dim);
    out->rank = packed ? 3 : 4;
    const int64_t o_shape[4] = {c->batch, form == FORM_BSHD ? tokens : c->heads_q,
                                form == FORM_BSHD ? c->heads_q : tokens, c->head_dim_v};
    const int64_t packed_shape[4] = {tokens, c->heads_q, c->head_dim_v, 0};
    memcpy(out->shape, packed ? packed_shape : o_shape, sizeof o_shape);
    set_form(lse, CLATTN_DTYPE_F32, lse_dim);
    lse->present = o->want_lse;
    lse->rank = packed ? 2 : 3;
    memcpy(lse->shape, lse_dim + packed, sizeof *lse_dim * (size_t)lse->rank);
    if (case_contiguous_strides(o_dim, form != FORM_BHSD, out->value_stride) != 0 ||
        case_contiguous_strides(lse_dim, 0, lse->value_stride) != 0)
        return cli_fail(CLI_USAGE, "output 'o' would be too large");
    lse->value_stride[3] = 0;
    memcpy(out->stride, out->value_stride, sizeof out->stride);
    memcpy(lse->stride, lse->value_stride, sizeof lse->stride);
    c->checks_numbers = reads_numbers(c);
    const int status = take_lengths(c);
    return status == CLI_OK ? case_lay_out(c) : status;
}

int case_from_file(attention_case *out, const safetensors_file *file, const char *name,
                   const call_options *options)
{
    memset(out, 0, sizeof *out);
    out->options = *options;
    int status = case_check_names(file, name);
    if (status == CLI_OK)
        status = case_read_matrices(out, file, name);
    if (status == CLI_OK)
        status = case_read_extras(out, file, name);
    if (status == CLI_OK)
        status = complete(out);
    if (status != CLI_OK)
        case_release(out);
    return status;
}

/* A tensor as a file would hold it. */
static safetensors_tensor matrix(const char *name, const void *values, int32_t dtype, int64_t heads,
                                 int64_t length, int64_t dim, const case_inputs *in, int bshd)
{
    const int32_t unit = dtype_elements(dtype);
    const int64_t columns = unit > 1 ? dim / unit * (int64_t)dtype_size(dtype) : dim;
    const safetensors_tensor t = {
        name,   dtype_safetensors_name(dtype),
        4,      {in->batch, bshd ? length : heads, bshd ? heads : length, columns},
        values, (size_t)(in->batch * heads * length * (dim / unit)) * dtype_size(dtype)};
    return t;
}

int case_from_inputs(attention_case *out, const case_inputs *in, const call_options *options)
{
    safetensors_tensor tensor[NUM_INPUTS + 3];
    const safetensors_file file = {tensor, in->num_extra + 3, NULL, NULL};
    call_options with_types = *options;
    const int bshd = options->layout_bshd;
    tensor[0] = matrix("q", in->q, in->dtype_q, in->heads_q, in->q_len, in->head_dim_qk, in, bshd);
    tensor[1] = matrix("k", in->k, in->dtype_k, in->heads_kv, in->kv_len, in->head_dim_qk, in, bshd);
    tensor[2] = matrix("v", in->v, in->dtype_v, in->heads_kv, in->kv_len, in->head_dim_v, in, bshd);
    if (in->num_extra > 0)
        memcpy(tensor + 3, in->extra, in->num_extra * sizeof *tensor);
    for (int i = 0; i < 2; i++) /* what blocks are is told by an option */
        if (dtype_elements(i ? in->dtype_v : in->dtype_k) > 1)
            with_types.serving.kv_dtype[i] = i ? in->dtype_v : in->dtype_k;
    return case_from_file(out, &file, "inputs", &with_types);
}

void case_release(attention_case *c)
{
    for (int t = 0; t < TENSOR_COUNT; t++)
        free(c->tensor[t].owned);
    free(c->rows);
    free(c->keys);
    memset(c, 0, sizeof *c);
}

/* ---- To the library, the reference, a file ------------------------------------------------------ */

static int32_t position_mode(const attention_case *c)
{
    return c->tensor[TENSOR_OFFSETS].present ? CLATTN_POSITION_EXPLICIT : c->options.position_mode;
}

static uint32_t features(const attention_case *c)
{
    static const uint32_t of_tensor[NUM_INPUTS] = {
        [TENSOR_BIAS] = CLATTN_FEATURE_BIAS,
        [TENSOR_MASK] = CLATTN_FEATURE_MASK,
        [TENSOR_BIAS_HEAD_SCALE] = CLATTN_FEATURE_BIAS_HEAD_SCALE,
        [TENSOR_ALIBI_SLOPES] = CLATTN_FEATURE_ALIBI,
        [TENSOR_SINKS] = CLATTN_FEATURE_SINKS,
        [TENSOR_Q_LENS] = CLATTN_FEATURE_Q_LENS,
        [TENSOR_KV_LENS] = CLATTN_FEATURE_KV_LENS,
        [TENSOR_OFFSETS] = CLATTN_FEATURE_Q_OFFSETS,
        [TENSOR_TILES_COUNT] = CLATTN_FEATURE_KEY_TILES,
        [TENSOR_CU_SEQLENS_Q] = CLATTN_FEATURE_CU_SEQLENS_Q,
        [TENSOR_CU_SEQLENS_K] = CLATTN_FEATURE_CU_SEQLENS_K,
        [TENSOR_BLOCK_TABLE] = CLATTN_FEATURE_BLOCK_TABLE,
        [TENSOR_K_SCALE] = CLATTN_FEATURE_K_SCALE,
        [TENSOR_V_SCALE] = CLATTN_FEATURE_V_SCALE,
    };
    const call_options *o = &c->options;
    uint32_t set = (o->causal ? CLATTN_FEATURE_CAUSAL : 0) | (o->has_window ? CLATTN_FEATURE_WINDOW : 0) |
                   (o->softcap > 0 ? CLATTN_FEATURE_SOFTCAP : 0) | (o->want_lse ? CLATTN_FEATURE_LSE : 0) |
                   (o->lse_base_2 ? CLATTN_FEATURE_LSE_BASE_2 : 0) |
                   (o->serving.v_in_k ? CLATTN_FEATURE_V_IN_K : 0) |
                   (o->serving.batch_invariant ? CLATTN_FEATURE_BATCH_INVARIANT : 0) |
                   (c->checks_numbers ? CLATTN_FEATURE_STATUS : 0);
    for (int t = 0; t < NUM_INPUTS; t++)
        if (c->tensor[t].present)
            set |= of_tensor[t];
    return set;
}

clattn_plan_desc case_plan_desc(const attention_case *c)
{
    clattn_plan_desc desc = CLATTN_PLAN_DESC_INIT;
    desc.dtype_q = c->tensor[TENSOR_Q].dtype;
    desc.dtype_k = c->tensor[TENSOR_K].dtype;
    desc.dtype_v = c->tensor[TENSOR_V].present ? c->tensor[TENSOR_V].dtype : desc.dtype_k;
    desc.dtype_o = c->tensor[TENSOR_O].dtype;
    desc.dtype_bias = c->tensor[TENSOR_BIAS].dtype;
    desc.heads_q = (int32_t)c->heads_q;
    desc.heads_kv = (int32_t)c->heads_kv;
    desc.head_dim_qk = (int32_t)c->head_dim_qk;
    desc.head_dim_v = (int32_t)c->head_dim_v;
    desc.features = features(c);
    desc.position_mode = position_mode(c);
    desc.path = c->options.path;
    desc.tile_rows = (int32_t)c->options.tile_rows;
    desc.tile_keys = (int32_t)c->options.tile_keys;
    desc.score_mod = c->options.score_mod;
    desc.mask_mod = c->options.mask_mod;
    desc.phase = serving_phase(&c->options.serving, c->q_len);
    desc.page_size = (int32_t)c->page_size;
    desc.splits = (int32_t)c->options.serving.splits;
    return desc;
}

static reference_tensor reference_view(const attention_case *c, int tensor)
{
    const case_tensor *t = &c->tensor[tensor];
    reference_tensor view = {t->present ? t->values : NULL, t->dtype, {0, 0, 0, 0}};
    memcpy(view.stride, t->value_stride, sizeof view.stride);
    return view;
}

static reference_tiles reference_tiles_of(const attention_case *c)
{
    const case_tensor *count = &c->tensor[TENSOR_TILES_COUNT], *index = &c->tensor[TENSOR_TILES_INDEX];
    reference_tiles tiles = {count->values,        index->values,       {0}, {0}, index->dim[3],
                             c->options.tile_rows, c->options.tile_keys};
    memcpy(tiles.count_stride, count->value_stride, sizeof tiles.count_stride);
    memcpy(tiles.index_stride, index->value_stride, sizeof tiles.index_stride);
    return tiles;
}

reference_call case_reference(const attention_case *c)
{
    const call_options *o = &c->options;
    reference_call call = {0};
    call.q = reference_view(c, TENSOR_Q);
    call.k = reference_view(c, TENSOR_K);
    call.v = reference_view(c, TENSOR_V);
    call.bias = reference_view(c, TENSOR_BIAS);
    call.mask = reference_view(c, TENSOR_MASK);
    call.bias_head_scale = reference_view(c, TENSOR_BIAS_HEAD_SCALE);
    call.alibi_slopes = reference_view(c, TENSOR_ALIBI_SLOPES);
    call.sinks = reference_view(c, TENSOR_SINKS);
    call.q_lens = c->rows;
    call.kv_lens = c->keys;
    call.q_offsets = c->tensor[TENSOR_OFFSETS].values;
    call.tiles = reference_tiles_of(c);
    call.mod = c->mod;
    call.batch = c->batch;
    call.heads_q = c->heads_q;
    call.heads_kv = c->heads_kv;
    call.q_len = c->q_len;
    call.kv_len = c->kv_len;
    call.head_dim_qk = c->head_dim_qk;
    call.head_dim_v = c->head_dim_v;
    call.causal = o->causal;
    call.position_mode = position_mode(c);
    call.q_offset = o->q_offset;
    call.has_window = o->has_window;
    call.window_left = o->window_left;
    call.window_right = o->window_right;
    call.scale = (double)o->scale;
    call.softcap = (double)o->softcap;
    call.lse_base_2 = o->lse_base_2;
    return call;
}

int case_save(const attention_case *c, const char *path, uint64_t local_bytes)
{
    safetensors_tensor tensors[NUM_INPUTS];
    size_t count = 0;
    for (int i = 0; i < NUM_INPUTS; i++) {
        const case_tensor *given = &c->given[i == TENSOR_V];
        const case_tensor *t = (i == TENSOR_K || i == TENSOR_V) && given->present ? given : &c->tensor[i];
        const int computed =
            (i == TENSOR_K_SCALE || i == TENSOR_V_SCALE) && !t->values && t->value_bytes == 0;
        if (!t->present || computed || (i == TENSOR_ALIBI_SLOPES && c->options.alibi_max_bias != 0))
            continue; /* --alibi-max-bias computes them again */
        safetensors_tensor *out = &tensors[count++];
        memset(out, 0, sizeof *out);
        out->name = tensor_names[i];
        out->dtype = t->file_dtype;
        out->rank = t->rank;
        memcpy(out->shape, t->shape, sizeof out->shape);
        out->data = t->values;
        out->bytes = t->value_bytes;
    }
    char version[32], error[400];
    cli_format(version, sizeof version, "%u", (unsigned)clattn_version());
    char *options = call_options_to_json(&c->options, local_bytes);
    if (!options)
        return cli_fail(CLI_FAILED, "out of memory");
    const safetensors_pair metadata[] = {{OPTIONS_KEY, options}, {"clattn_version", version}};
    const int status = safetensors_write(path, tensors, count, metadata, 2, error, sizeof error);
    cJSON_free(options);
    return status == 0 ? CLI_OK : cli_fail(CLI_FAILED, "%s", error);
}

const char *case_saved_options(const safetensors_file *file)
{
    return safetensors_metadata(file, OPTIONS_KEY);
}
