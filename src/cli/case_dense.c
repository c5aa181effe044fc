/* case_dense.c: sequences gathered from wherever they lie, and dequantised. */
#include "case_dense.h"

#include "cache_types.h"
#include "case_serving.h"
#include "cli.h"
#include "tensor_convert.h"

#include <stdlib.h>
#include <string.h>

const int state_tensors[STATE_COUNT] = {TENSOR_Q, TENSOR_K, TENSOR_V, TENSOR_K_SCALE, TENSOR_V_SCALE};

void case_state_release(case_state *state)
{
    for (int i = 0; i < STATE_COUNT; i++)
        free(state->values[i]);
    memset(state, 0, sizeof *state);
}

const unsigned char *case_state_values(const attention_case *c, const case_state *state, int which)
{
    return state && state->values[which] ? state->values[which] : c->tensor[state_tensors[which]].values;
}

/* Element number of (batch, head, token, 0) among the values. */
static int64_t element_of(const case_tensor *t, int64_t batch, int64_t head, int64_t token)
{
    return batch * t->value_stride[0] + head * t->value_stride[1] + token * t->value_stride[2];
}

void case_load_row(const attention_case *c, int tensor, const unsigned char *values, const float *scales,
                   int64_t batch, int64_t head, int64_t token, float *out)
{
    const case_tensor *t = &c->tensor[tensor];
    const case_tensor *s = &c->tensor[tensor == TENSOR_K ? TENSOR_K_SCALE : TENSOR_V_SCALE];
    float scale = 1;
    if (scales) /* in a file they may lie at any address */
        memcpy(&scale, (const char *)scales + (size_t)element_of(s, batch, head, token) * sizeof scale,
               sizeof scale);
    cache_decode_row(t->dtype, values + (size_t)element_of(t, batch, head, token) * t->element,
                     t->dim[3] * dtype_elements(t->dtype), scale, out);
}

static reference_tensor view_of(const void *data, int32_t dtype, int64_t heads, int64_t tokens, int64_t dim)
{
    const reference_tensor view = {data, dtype, {heads * tokens * dim, tokens * dim, dim, 1}};
    return view;
}

/* [batch, heads_q, q_len, dim] in q's own type. */
static unsigned char *gather_q(const attention_case *c, const case_state *state)
{
    const case_tensor *t = &c->tensor[TENSOR_Q];
    const unsigned char *values = case_state_values(c, state, STATE_Q);
    const size_t row = (size_t)c->head_dim_qk * t->element;
    unsigned char *out = calloc((size_t)(c->batch * c->heads_q * c->q_len) + 1, row);
    for (int64_t b = 0; out && b < c->batch; b++)
        for (int64_t h = 0; h < c->heads_q; h++)
            for (int64_t i = 0; i < case_q_len(c, b); i++) {
                int64_t batch, token;
                case_row_place(c, b, i, &batch, &token);
                memcpy(out + (size_t)((b * c->heads_q + h) * c->q_len + i) * row,
                       values + (size_t)element_of(t, batch, h, token) * t->element, row);
            }
    return out;
}

/* [batch, heads_kv, kv_len, dim] in float32. */
static float *gather_kv(const attention_case *c, int tensor, const case_state *state, int64_t dim)
{
    const int is_k = tensor == TENSOR_K;
    const unsigned char *values = case_state_values(c, state, is_k ? STATE_K : STATE_V);
    const void *scales = case_state_values(c, state, is_k ? STATE_K_SCALE : STATE_V_SCALE);
    float *out = calloc((size_t)(c->batch * c->heads_kv * c->kv_len) + 1, (size_t)dim * sizeof *out);
    for (int64_t b = 0; out && b < c->batch; b++)
        for (int64_t h = 0; h < c->heads_kv; h++)
            for (int64_t j = 0; j < case_kv_len(c, b); j++) {
                int64_t batch, token;
                if (case_key_place(c, b, j, &batch, &token))
                    case_load_row(c, tensor, values, scales, batch, h, token,
                                  out + ((b * c->heads_kv + h) * c->kv_len + j) * dim);
            }
    return out;
}

static int is_plain(const attention_case *c)
{
    return case_form(c, TENSOR_Q) < FORM_PACKED && case_form(c, TENSOR_K) < FORM_PACKED && !case_appends(c) &&
           c->tensor[TENSOR_V].present && c->tensor[TENSOR_K].dtype <= CLATTN_DTYPE_BF16 &&
           c->tensor[TENSOR_V].dtype <= CLATTN_DTYPE_BF16 && !c->given[0].present && !c->given[1].present;
}

int case_dense_open(case_dense *out, const attention_case *c, const case_state *state)
{
    memset(out, 0, sizeof *out);
    out->call = case_reference(c);
    if (is_plain(c))
        return CLI_OK;
    const int32_t dtype_q = c->tensor[TENSOR_Q].dtype;
    const int with_v = c->tensor[TENSOR_V].present;
    const int32_t dtype_v = c->tensor[with_v ? TENSOR_V : TENSOR_K].dtype;
    out->owned[0] = gather_q(c, state);
    out->owned[1] = gather_kv(c, TENSOR_K, state, c->head_dim_qk);
    out->owned[2] = with_v ? gather_kv(c, TENSOR_V, state, c->head_dim_v) : NULL;
    if (!out->owned[0] || !out->owned[1] || (with_v && !out->owned[2])) {
        case_dense_close(out);
        return cli_fail(CLI_FAILED, "not enough memory for the reference");
    }
    out->call.q = view_of(out->owned[0], dtype_q, c->heads_q, c->q_len, c->head_dim_qk);
    out->call.k = view_of(out->owned[1], CLATTN_DTYPE_F32, c->heads_kv, c->kv_len, c->head_dim_qk);
    out->call.v = with_v ? view_of(out->owned[2], CLATTN_DTYPE_F32, c->heads_kv, c->kv_len, c->head_dim_v)
                         : out->call.k; /* its first columns */
    out->call.weight_dtype = dtype_v <= CLATTN_DTYPE_BF16 ? dtype_v : dtype_q;
    return CLI_OK;
}

void case_dense_close(case_dense *dense)
{
    for (int i = 0; i < 3; i++)
        free(dense->owned[i]);
    memset(dense, 0, sizeof *dense);
}
