#include "numerics_data.h"

#include "numerics_fill.h"
#include "tensor_convert.h"

#include <stdio.h>
#include <stdlib.h>
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

/* Bias or mask: [batch, heads_q, q_len, kv_len] with the axes that vary, at an odd offset. */
static void place_scores(tensor_view *view, int axes)
{
    const int order[2][4] = {{3, 2, 1, 0}, {2, 3, 1, 0}}; /* axes from the smallest stride up */
    const int transposed = (axes & BIAS_TRANSPOSED) != 0;
    int64_t stride = 1;
    for (int n = 0; n < 4; n++) {
        const int axis = order[transposed][n];
        const int varies = axes >> axis & 1;
        view->stride[axis] = varies ? stride : 0;
        if (varies)
            stride *= view->size[axis] > 0 ? view->size[axis] : 1;
        if (varies && n == 0 && (axes & BIAS_GAPS) != 0)
            stride += 5;
    }
    view->offset = GUARD_BYTES + 3 * view_element_size(view);
    view_make_buffer(view);
}

/* Small tensors, `axes` of them in order; batch and heads may be repeated, apart, or swapped. */
static void place_small(tensor_view *view, int axes, int is_shared, random_state *random)
{
    int64_t stride = random_chance(random, 20) ? 3 : 1;
    memset(view->stride, 0, sizeof view->stride);
    view->offset = GUARD_BYTES + (uint64_t)random_between(random, 0, 3) * view_element_size(view);
    const int swapped = axes == 2 && random_chance(random, 20);
    for (int n = axes - 1; n >= 0; n--) {
        const int axis = swapped ? 1 - n : n;
        if (axis < 2 && random_chance(random, 15) && is_shared)
            continue;
        view->stride[axis] = stride;
        stride *= view->size[axis] > 0 ? view->size[axis] : 1;
    }
    view_make_buffer(view);
}

static void place_lists(call_data *data, random_state *random)
{
    const call_spec *spec = &data->spec;
    const struct {
        uint32_t feature;
        int tensor, axes;
        int32_t dtype;
    } table[] = {{CLATTN_FEATURE_BIAS_HEAD_SCALE, TENSOR_HEAD_SCALE, 2, CLATTN_DTYPE_F32},
                 {CLATTN_FEATURE_ALIBI, TENSOR_SLOPES, 2, CLATTN_DTYPE_F32},
                 {CLATTN_FEATURE_SINKS, TENSOR_SINKS, 2, CLATTN_DTYPE_F32},
                 {CLATTN_FEATURE_Q_LENS, TENSOR_Q_LENS, 1, ELEMENT_INT32},
                 {CLATTN_FEATURE_KV_LENS, TENSOR_KV_LENS, 1, ELEMENT_INT32},
                 {CLATTN_FEATURE_Q_OFFSETS, TENSOR_Q_OFFSETS, 1, ELEMENT_INT32},
                 {CLATTN_FEATURE_KEY_TILES, TENSOR_TILES_COUNT, 3, ELEMENT_INT32},
                 {CLATTN_FEATURE_KEY_TILES, TENSOR_TILES_INDEX, 4, ELEMENT_INT32}};
    for (size_t i = 0; i < sizeof table / sizeof *table; i++) {
        if (!spec_has(spec, table[i].feature))
            continue;
        const int64_t heads = table[i].axes > 1 ? spec->heads_q : 1;
        const int64_t tiles = table[i].axes > 2 ? (spec->q_len + spec->tile_rows - 1) / spec->tile_rows : 1;
        const int64_t entries = table[i].axes > 3 ? data_tiles_capacity(spec) : 1;
        set_view(data, table[i].tensor, table[i].dtype, heads, tiles, entries);
        place_small(&data->view[table[i].tensor], table[i].axes, !spec->has_own_numbers, random);
    }
    if (mods_need_user(spec->score_mod, spec->mask_mod)) {
        tensor_view *user = &data->view[TENSOR_USER];
        set_view(data, TENSOR_USER, ELEMENT_INT32, 1, 1, MODS_WORDS);
        user->offset = GUARD_BYTES;
        user->size[0] = user->stride[3] = 1;
        view_make_buffer(user);
    }
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
        place_scores(&data->view[TENSOR_BIAS], spec->bias_axes);
    }
    if (spec->features & CLATTN_FEATURE_MASK) {
        set_view(data, TENSOR_MASK, ELEMENT_BYTE, spec->heads_q, spec->q_len, spec->kv_len);
        place_scores(&data->view[TENSOR_MASK], spec->mask_axes);
    }
    place_lists(data, random);
}

/* ---- The whole ---- */

void data_create(call_data *out, const call_spec *spec)
{
    random_state random = random_for(spec->seed, "data", 0);
    memset(out, 0, sizeof *out);
    out->spec = *spec;
    place_all(out, &random);
    out->packed = calloc(3 * (size_t)spec->batch + 1, sizeof *out->packed);
    if (out->packed == NULL) {
        fputs("numerics: no host memory for lengths\n", stderr);
        exit(1);
    }
    memcpy(out->mods.values, spec->user_values, sizeof out->mods.values);
    if (out->view[TENSOR_USER].buffer != NULL)
        out->mods.words = view_element(&out->view[TENSOR_USER], 0, 0, 0, 0);
    fill_inputs(out, &random);
}

void data_destroy(call_data *data)
{
    for (int tensor = 0; tensor < TENSORS; tensor++)
        buffer_free(&data->buffer[tensor]);
    free(data->packed);
}

int64_t data_tiles_capacity(const call_spec *spec)
{
    const int64_t tiles = (spec->kv_len + spec->tile_keys - 1) / spec->tile_keys;
    return (tiles > 0 ? tiles : 1) + spec->tiles_slack;
}

static const int32_t *reference_ints(const tensor_view *view)
{
    return view->buffer == NULL ? NULL : (const int32_t *)(view->buffer->bytes + view->offset);
}

/* Lengths and offsets side by side, wherever they lie in their buffer. */
static const int32_t *pack_entries(const call_data *data, int tensor)
{
    const tensor_view *view = &data->view[tensor];
    int32_t *packed = data->packed + (tensor - TENSOR_Q_LENS) * data->spec.batch;
    if (view->buffer == NULL)
        return NULL;
    for (int64_t b = 0; b < data->spec.batch; b++)
        packed[b] = view_load_int(view, b, 0, 0, 0);
    return packed;
}

static reference_tiles reference_tiles_of(const call_data *data)
{
    const tensor_view *count = &data->view[TENSOR_TILES_COUNT], *index = &data->view[TENSOR_TILES_INDEX];
    reference_tiles tiles = {reference_ints(count), reference_ints(index), {0}, {0}, 0, 0, 0};
    if (tiles.count == NULL)
        return tiles;
    memcpy(tiles.count_stride, count->stride, sizeof tiles.count_stride);
    memcpy(tiles.index_stride, index->stride, sizeof tiles.index_stride);
    tiles.capacity = data_tiles_capacity(&data->spec);
    tiles.rows = data->spec.tile_rows;
    tiles.keys = data->spec.tile_keys;
    return tiles;
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
    call.mask = reference_view(&data->view[TENSOR_MASK]);
    call.bias_head_scale = reference_view(&data->view[TENSOR_HEAD_SCALE]);
    call.alibi_slopes = reference_view(&data->view[TENSOR_SLOPES]);
    call.sinks = reference_view(&data->view[TENSOR_SINKS]);
    call.q_lens = pack_entries(data, TENSOR_Q_LENS);
    call.kv_lens = pack_entries(data, TENSOR_KV_LENS);
    call.q_offsets = pack_entries(data, TENSOR_Q_OFFSETS);
    call.tiles = reference_tiles_of(data);
    call.mod = mods_reference(&data->mods, spec->score_mod, spec->mask_mod);
    call.lse_base_2 = spec_has(spec, CLATTN_FEATURE_LSE_BASE_2);
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
