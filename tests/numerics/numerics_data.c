#include "numerics_data.h"

#include "tensor_convert.h"

#include <math.h>
#include <string.h>

/* ---- Layout ---- */

static void set_view(call_data *data, int tensor, int32_t dtype, int64_t heads, int64_t tokens, int64_t last)
{
    tensor_view *view = &data->view[tensor];
    view->buffer = &data->buffer[tensor];
    view->dtype = dtype;
    view->size[0] = data->spec.batch;
    view->size[1] = heads;
    view->size[2] = tokens;
    view->size[3] = last;
}

/* Each token's row is that of q's heads, k's heads and v's heads. Lengths may differ: then some
 * rows have parts that nobody may touch. */
static void place_interleaved(call_data *data)
{
    const call_spec *spec = &data->spec;
    const int64_t tokens = spec->q_len > spec->kv_len ? spec->q_len : spec->kv_len;
    int64_t row = 0;
    for (int tensor = TENSOR_Q; tensor <= TENSOR_V; tensor++) {
        tensor_view *view = &data->view[tensor];
        view->offset = GUARD_BYTES + (uint64_t)row * dtype_size(view->dtype);
        view->stride[1] = view->size[3];
        view->stride[3] = 1;
        row += view->size[1] * view->size[3];
    }
    for (int tensor = TENSOR_Q; tensor <= TENSOR_V; tensor++) {
        tensor_view *view = &data->view[tensor];
        view->buffer = &data->buffer[TENSOR_Q];
        view->stride[0] = tokens * row;
        view->stride[2] = row;
    }
    buffer_make(&data->buffer[TENSOR_Q],
                2 * GUARD_BYTES + (size_t)(spec->batch * tokens * row) * dtype_size(spec->dtype_q));
}

static int can_interleave(const call_spec *spec)
{
    return spec->dtype_q == spec->dtype_k && spec->dtype_q == spec->dtype_v;
}

static void place_bias(tensor_view *view, const call_spec *spec)
{
    const int order[2][4] = {{3, 2, 1, 0}, {2, 3, 1, 0}}; /* axes from the smallest stride up */
    const int transposed = (spec->bias_axes & BIAS_TRANSPOSED) != 0;
    int64_t stride = 1;
    for (int n = 0; n < 4; n++) {
        const int axis = order[transposed][n];
        const int varies = spec->bias_axes >> axis & 1;
        view->stride[axis] = varies ? stride : 0;
        if (varies)
            stride *= view->size[axis] > 0 ? view->size[axis] : 1;
    }
    view->offset = GUARD_BYTES + 3 * dtype_size(view->dtype);
    view_make_buffer(view);
}

static void place_all(call_data *data, random_state *random)
{
    const call_spec *spec = &data->spec;
    set_view(data, TENSOR_Q, spec->dtype_q, spec->heads_q, spec->q_len, spec->head_dim_qk);
    set_view(data, TENSOR_K, spec->dtype_k, spec->heads_kv, spec->kv_len, spec->head_dim_qk);
    set_view(data, TENSOR_V, spec->dtype_v, spec->heads_kv, spec->kv_len, spec->head_dim_v);
    if (spec->layout_in == LAYOUT_INTERLEAVED && can_interleave(spec))
        place_interleaved(data);
    else
        for (int tensor = TENSOR_Q; tensor <= TENSOR_V; tensor++)
            view_place(&data->view[tensor],
                       spec->layout_in == LAYOUT_INTERLEAVED ? LAYOUT_BSHD : spec->layout_in, random);

    set_view(data, TENSOR_O, spec->dtype_o, spec->heads_q, spec->q_len, spec->head_dim_v);
    view_place(&data->view[TENSOR_O], spec->layout_o, random);
    if (spec->features & CLATTN_FEATURE_LSE) {
        set_view(data, TENSOR_LSE, CLATTN_DTYPE_F32, spec->heads_q, spec->q_len, 1);
        view_place(&data->view[TENSOR_LSE], spec->layout_lse, random);
    }
    if (spec->features & CLATTN_FEATURE_BIAS) {
        set_view(data, TENSOR_BIAS, spec->dtype_bias, spec->heads_q, spec->q_len, spec->kv_len);
        place_bias(&data->view[TENSOR_BIAS], spec);
    }
}

/* ---- Values ---- */

static void fill_rows(const tensor_view *view, int64_t begin, int64_t end, float amplitude,
                      random_state *random)
{
    for (int64_t b = 0; b < view->size[0]; b++)
        for (int64_t h = 0; h < view->size[1]; h++)
            for (int64_t i = begin; i < end; i++)
                for (int64_t c = 0; c < view->size[3]; c++)
                    view_store(view, b, h, i, c, amplitude * random_normal(random));
}

static float bias_value(const call_spec *spec, int64_t row, random_state *random)
{
    const float value = 2 * random_normal(random);
    if (spec->bias_values == BIAS_LOWEST && row % 3 == 1)
        return lowest_of(spec->dtype_bias);
    return spec->bias_values != BIAS_NORMAL && random_chance(random, 25) ? -INFINITY : value;
}

static void fill_bias_row(call_data *data, int64_t row, int64_t begin, int64_t end, random_state *random)
{
    const tensor_view *view = &data->view[TENSOR_BIAS];
    for (int64_t b = 0; b < view->size[0]; b++)
        for (int64_t h = 0; h < view->size[1]; h++)
            for (int64_t j = begin; j < end; j++)
                view_store(view, b, h, row, j, bias_value(&data->spec, row, random));
}

static void fill_inputs(call_data *data, random_state *random)
{
    const reference_call call = data_reference(data);
    int64_t first_key = call.kv_len, end_key = 0;
    for (int64_t i = 0; i < call.q_len; i++) {
        int64_t begin, end;
        reference_keys_of_row(&call, 0, i, &begin, &end);
        if (begin >= end)
            continue;
        first_key = begin < first_key ? begin : first_key;
        end_key = end > end_key ? end : end_key;
        fill_rows(&data->view[TENSOR_Q], i, i + 1, data->spec.q_amplitude, random);
        if (data->view[TENSOR_BIAS].buffer != NULL)
            fill_bias_row(data, i, begin, end, random);
    }
    fill_rows(&data->view[TENSOR_K], first_key, end_key, 1, random);
    fill_rows(&data->view[TENSOR_V], first_key, end_key, 1, random);
}

/* ---- The whole ---- */

void data_create(call_data *out, const call_spec *spec)
{
    random_state random = random_for(spec->seed, "data", 0);
    memset(out, 0, sizeof *out);
    out->spec = *spec;
    place_all(out, &random);
    fill_inputs(out, &random);
}

void data_destroy(call_data *data)
{
    for (int tensor = 0; tensor < TENSORS; tensor++)
        buffer_free(&data->buffer[tensor]);
}

static reference_tensor reference_view(const tensor_view *view)
{
    reference_tensor tensor = {NULL, view->dtype, {0, 0, 0, 0}};
    if (view->buffer == NULL)
        return tensor;
    tensor.data = view->buffer->bytes + view->offset;
    memcpy(tensor.stride, view->stride, sizeof tensor.stride);
    return tensor;
}

reference_call data_reference(const call_data *data)
{
    const call_spec *spec = &data->spec;
    reference_call call;
    memset(&call, 0, sizeof call);
    call.q = reference_view(&data->view[TENSOR_Q]);
    call.k = reference_view(&data->view[TENSOR_K]);
    call.v = reference_view(&data->view[TENSOR_V]);
    call.bias = reference_view(&data->view[TENSOR_BIAS]);
    call.batch = spec->batch;
    call.heads_q = spec->heads_q;
    call.heads_kv = spec->heads_kv;
    call.q_len = spec->q_len;
    call.kv_len = spec->kv_len;
    call.head_dim_qk = spec->head_dim_qk;
    call.head_dim_v = spec->head_dim_v;
    call.causal = (spec->features & CLATTN_FEATURE_CAUSAL) != 0;
    call.position_mode = spec->position_mode;
    call.q_offset = spec->q_offset;
    call.has_window = (spec->features & CLATTN_FEATURE_WINDOW) != 0;
    call.window_left = spec->window_left;
    call.window_right = spec->window_right;
    call.scale = (double)spec->scale;
    call.softcap = (double)spec->softcap;
    return call;
}
