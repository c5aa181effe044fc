#include "serving_append.h"

#include "numerics_cache.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { MAX_ROW = CLATTN_MAX_HEAD_DIM };

static const append_spec *spec_of(const append_data *data) { return &data->serving->spec.append; }

/* ---- Placement ---- */

static tensor_view *set_view(append_data *data, int tensor, int32_t dtype, int64_t batch, int64_t heads,
                             int64_t tokens, int64_t last)
{
    tensor_view *view = &data->view[tensor];
    view->buffer = &data->buffer[tensor];
    view->dtype = dtype;
    view->size[0] = batch;
    view->size[1] = heads;
    view->size[2] = tokens;
    view->size[3] = last;
    return view;
}

/* New rows lie as those of q do. */
static void place_new(append_data *data, int tensor, int64_t dim, random_state *random)
{
    const tensor_view *q = &data->serving->view[STORED_Q];
    const tensor_layout layout = (tensor_layout)random_between(random, 0, LAYOUT_OUTPUTS - 1);
    view_place(
        set_view(data, tensor, q->dtype, q->size[0], data->serving->spec.call.heads_kv, q->size[2], dim),
        layout, random);
}

static void place_ints(append_data *data, int tensor, int64_t batch, int64_t tokens, random_state *random)
{
    tensor_view *view = set_view(data, tensor, ELEMENT_INT32, batch, 1, tokens, 1);
    view->offset = GUARD_BYTES + 4 * (uint64_t)random_between(random, 0, 3);
    view->stride[0] = tokens + random_between(random, 0, 2);
    view->stride[1] = view->stride[2] = view->stride[3] = 1;
    view_make_buffer(view);
}

static void place_table(append_data *data, int tensor)
{
    tensor_view *view =
        set_view(data, tensor, CLATTN_DTYPE_F32, data->rope_len, 1, 1, spec_of(data)->rotary_dim / 2);
    view->offset = GUARD_BYTES;
    view->stride[0] = view->size[3] + 1;
    view->stride[1] = view->stride[2] = 0;
    view->stride[3] = 1;
    view_make_buffer(view);
}

/* What is to be rotated is set aside; where the result goes is poison. */
static void move_queries(append_data *data)
{
    tensor_view *from = &data->serving->view[STORED_Q], *to = &data->view[APPEND_Q];
    *to = *from;
    to->buffer = &data->buffer[APPEND_Q];
    buffer_make(to->buffer, from->buffer->size);
    memcpy(to->buffer->bytes, from->buffer->bytes, from->buffer->size);
    buffer_poison(from->buffer);
}

/* ---- Filling ---- */

static int64_t position_of(const append_data *data, int64_t b, int64_t t)
{
    const stored_row row = serving_query_row(data->serving, b, t);
    if (spec_of(data)->has_positions)
        return view_load_int(&data->view[APPEND_POSITIONS], row.b, 0, row.i, 0);
    return serving_settled_keys(data->serving, b) + t;
}

static double angle_of(const append_data *data, int64_t position, int64_t c)
{
    const append_spec *spec = spec_of(data);
    const double base = spec->rope_base != 0 ? (double)spec->rope_base : 10000;
    const double scale = spec->rope_scale != 0 ? (double)spec->rope_scale : 1;
    return (double)position * scale * pow(base, -2 * (double)c / spec->rotary_dim);
}

static void fill_tables(append_data *data)
{
    for (int64_t position = 0; position < data->rope_len; position++)
        for (int64_t c = 0; c < spec_of(data)->rotary_dim / 2; c++) {
            view_store(&data->view[APPEND_COS], position, 0, 0, c, (float)cos(angle_of(data, position, c)));
            view_store(&data->view[APPEND_SIN], position, 0, 0, c, (float)sin(angle_of(data, position, c)));
        }
}

static void fill_row(const tensor_view *to, stored_row row, int64_t h, const tensor_view *from, int64_t b,
                     int64_t j, random_state *random)
{
    const int is_filled = !isnan(view_load(from, b, h, j, 0));
    for (int64_t c = 0; c < to->size[3]; c++)
        view_store(to, row.b, h, row.i, c, is_filled ? view_load(from, b, h, j, c) : random_normal(random));
}

static void fill_entry(append_data *data, int64_t b, random_state *random)
{
    serving_data *serving = data->serving;
    const serving_spec *spec = &serving->spec;
    const int64_t settled = serving_settled_keys(serving, b), rows = serving_sequence(serving, b).q_len;
    view_store_int(&data->view[APPEND_LENS], b, 0, 0, 0, (int32_t)settled);
    for (int64_t t = 0; t < rows; t++) {
        const stored_row row = serving_query_row(serving, b, t);
        const stored_row place = serving_key_row(serving, b, settled + t);
        for (int64_t h = 0; h < spec->call.heads_kv; h++) {
            fill_row(&data->view[APPEND_K_NEW], row, h, &serving->call.view[TENSOR_K], b, settled + t,
                     random);
            if (!spec->v_in_k)
                fill_row(&data->view[APPEND_V_NEW], row, h, &serving->call.view[TENSOR_V], b, settled + t,
                         random);
        }
        if (spec->append.has_slots)
            view_store_int(
                &data->view[APPEND_SLOTS], row.b, 0, row.i, 0,
                (int32_t)(spec->keys == KEYS_PAGED ? place.b * spec->page_size + place.i : place.i));
        if (spec->append.has_positions)
            view_store_int(&data->view[APPEND_POSITIONS], row.b, 0, row.i, 0,
                           (int32_t)random_between(random, 0, 500));
    }
}

static void keep(append_data *data, int tensor)
{
    const byte_buffer *now = &data->serving->buffer[tensor];
    if (now->bytes == NULL)
        return;
    buffer_make(&data->before[tensor], now->size);
    memcpy(data->before[tensor].bytes, now->bytes, now->size);
}

void append_create(append_data *out, serving_data *serving)
{
    const serving_spec *spec = &serving->spec;
    const tensor_view *q = &serving->view[STORED_Q];
    random_state random = random_for(spec->call.seed, "append", 0);
    memset(out, 0, sizeof *out);
    out->serving = serving;
    place_new(out, APPEND_K_NEW, spec->call.head_dim_qk, &random);
    if (!spec->v_in_k)
        place_new(out, APPEND_V_NEW, spec->call.head_dim_v, &random);
    place_ints(out, APPEND_LENS, spec->call.batch, 1, &random);
    if (!spec->append.has_slots)
        place_ints(out, APPEND_LENS_OUT, spec->call.batch, 1, &random);
    if (spec->append.has_slots)
        place_ints(out, APPEND_SLOTS, q->size[0], q->size[2], &random);
    if (spec->append.has_positions)
        place_ints(out, APPEND_POSITIONS, q->size[0], q->size[2], &random);
    for (int64_t b = 0; b < spec->call.batch; b++)
        fill_entry(out, b, &random);
    if (spec->append.has_tables) {
        out->rope_len = spec->call.kv_len > 501 ? spec->call.kv_len : 501;
        place_table(out, APPEND_COS);
        place_table(out, APPEND_SIN);
        fill_tables(out);
    }
    if (spec->append.rope != CLATTN_ROPE_NONE)
        move_queries(out);
    keep(out, STORED_K);
    keep(out, STORED_V);
    keep(out, STORED_K_SCALE);
    keep(out, STORED_V_SCALE);
}

void append_destroy(append_data *data)
{
    for (int tensor = 0; tensor < APPEND_TENSORS; tensor++)
        buffer_free(&data->buffer[tensor]);
    for (int tensor = 0; tensor < STORED_TENSORS; tensor++)
        buffer_free(&data->before[tensor]);
}

clattn_plan_desc append_plan_desc(const append_data *data)
{
    const serving_spec *spec = &data->serving->spec;
    const clattn_plan_desc forward = serving_plan_desc(spec);
    const append_spec *append = &spec->append;
    clattn_plan_desc desc = CLATTN_PLAN_DESC_INIT;
    desc.operation = CLATTN_OPERATION_KV_APPEND;
    desc.dtype_q = forward.dtype_q;
    desc.dtype_k = forward.dtype_k;
    desc.dtype_v = forward.dtype_v;
    desc.heads_q = forward.heads_q;
    desc.heads_kv = forward.heads_kv;
    desc.head_dim_qk = forward.head_dim_qk;
    desc.head_dim_v = forward.head_dim_v;
    desc.page_size = forward.page_size;
    desc.features =
        forward.features &
        (CLATTN_FEATURE_CU_SEQLENS_Q | CLATTN_FEATURE_Q_LENS | CLATTN_FEATURE_BLOCK_TABLE |
         CLATTN_FEATURE_K_SCALE | CLATTN_FEATURE_V_SCALE | CLATTN_FEATURE_V_IN_K | CLATTN_FEATURE_STATUS);
    if (append->has_slots)
        desc.features |= CLATTN_FEATURE_SLOT_MAPPING;
    if (append->has_tables)
        desc.features |= CLATTN_FEATURE_ROPE_TABLES;
    desc.rope = append->rope;
    desc.rotary_dim = append->rotary_dim;
    return desc;
}

/* ---- What should be there ---- */

/* The row as float32, rotated. Returns the largest error that float32 may make of it, in units of its largest
 * element. */
static double rotated_row(const append_data *data, const tensor_view *from, stored_row row, int64_t h,
                          int64_t position, float *out)
{
    const append_spec *spec = spec_of(data);
    const int64_t half = spec->rotary_dim / 2;
    double largest = 0;
    for (int64_t c = 0; c < from->size[3]; c++)
        out[c] = view_load(from, row.b, h, row.i, c);
    if (spec->rope == CLATTN_ROPE_NONE)
        return 0;
    for (int64_t c = 0; c < half; c++) {
        const double angle = angle_of(data, position, c);
        const int64_t first = spec->rope == CLATTN_ROPE_NEOX ? c : 2 * c;
        const int64_t second = spec->rope == CLATTN_ROPE_NEOX ? c + half : 2 * c + 1;
        const double x = (double)out[first], y = (double)out[second];
        out[first] = (float)(x * cos(angle) - y * sin(angle));
        out[second] = (float)(y * cos(angle) + x * sin(angle));
        largest = fmax(largest, fabs(angle));
    }
    return 0x1p-20 * (spec->has_tables ? 1 : 1 + largest);
}

static float largest_of(const float *row, int64_t dim)
{
    float most = 0;
    for (int64_t c = 0; c < dim; c++)
        most = fmaxf(most, fabsf(row[c]));
    return most;
}

/* ---- Comparison ---- */

/* The cache's row may be as far off as the type's own rounding is. Where that is at a tie, or a scale is
 * rounded to half precision, a small error of the row moves it by a step; so errors are compared, not bits.
 */
static int stored_row_is_right(const append_data *data, int tensor, stored_row place, int64_t h,
                               const float *row, int64_t dim, double error)
{
    const tensor_view *view = &data->serving->view[tensor];
    const int scales = tensor == STORED_K ? STORED_K_SCALE : STORED_V_SCALE;
    const tensor_view *scale_view = &data->serving->view[scales];
    const float largest = largest_of(row, dim);
    unsigned char bytes[MAX_ROW * 4];
    byte_buffer buffer = {bytes, sizeof bytes, 0};
    const tensor_view one = {&buffer, view->dtype, {1, 1, 1, view->size[3]}, {0, 0, 0, 1}, 0};
    float scale = 1, expected[MAX_ROW], found[MAX_ROW];
    if (scale_view->buffer != NULL)
        scale = view_load(scale_view, place.b, h, place.i, 0);
    if (view->dtype == CLATTN_DTYPE_I8 && !(fabsf(scale * 127 - largest) <= (1e-6f + (float)error) * largest))
        return 0;
    cache_store_row(&one, 0, 0, 0, row, dim, scale);
    cache_load_row(&one, 0, 0, 0, expected, dim, scale);
    cache_load_row(view, place.b, h, place.i, found, dim, scale);
    error += cache_is_plain(view->dtype) ? 0 : 0x1p-9;
    for (int64_t c = 0; c < dim; c++) {
        const double off = fabs((double)found[c] - (double)row[c]);
        if (!(off <= fabs((double)expected[c] - (double)row[c]) + error * (double)largest))
            return 0;
    }
    return 1;
}

static const char *check_key(append_data *data, int64_t b, int64_t h, int64_t t)
{
    serving_data *serving = data->serving;
    const int64_t j = serving_settled_keys(serving, b) + t;
    const stored_row row = serving_query_row(serving, b, t), place = serving_key_row(serving, b, j);
    const tensor_view *k = &data->view[APPEND_K_NEW], *v = &data->view[APPEND_V_NEW];
    float values[MAX_ROW];
    const double error = rotated_row(data, k, row, h, position_of(data, b, t), values);
    if (!stored_row_is_right(data, STORED_K, place, h, values, k->size[3], error))
        return "append: a row of k is not what was to be stored";
    for (int64_t c = 0; v->buffer != NULL && c < v->size[3]; c++)
        values[c] = view_load(v, row.b, h, row.i, c);
    if (v->buffer != NULL && !stored_row_is_right(data, STORED_V, place, h, values, v->size[3], 0))
        return "append: a row of v is not what was to be stored";
    return NULL;
}

/* Also gives the reference its row. */
static const char *check_query(append_data *data, int64_t b, int64_t h, int64_t i)
{
    serving_data *serving = data->serving;
    const stored_row row = serving_query_row(serving, b, i);
    const tensor_view *from = &data->view[APPEND_Q], *to = &serving->view[STORED_Q];
    const double unit = to->dtype == CLATTN_DTYPE_F32   ? 0x1p-24
                        : to->dtype == CLATTN_DTYPE_F16 ? 0x1p-11
                                                        : 0x1p-8;
    float values[MAX_ROW];
    if (isnan(view_load(from, row.b, h, row.i, 0)))
        return NULL;
    const double error = rotated_row(data, from, row, h, position_of(data, b, i), values);
    const double tolerance = (error + unit) * (double)largest_of(values, from->size[3]) + 0x1p-25;
    for (int64_t c = 0; c < from->size[3]; c++) {
        const float found = view_load(to, row.b, h, row.i, c);
        if (!(fabs((double)found - (double)values[c]) <= tolerance))
            return "append: a row of q_out is not q rotated";
        view_store(&serving->call.view[TENSOR_Q], b, h, i, c, found);
    }
    return NULL;
}

/* ---- What must be left alone ---- */

/* Takes the new rows over into the copy, which then is to be what there is. */
static void accept_rows(append_data *data, int tensor)
{
    serving_data *serving = data->serving;
    tensor_view before = serving->view[tensor];
    if (before.buffer == NULL)
        return;
    const int owner = (int)(before.buffer - serving->buffer);
    const size_t bytes = (size_t)before.size[3] * view_element_size(&before);
    before.buffer = &data->before[owner];
    for (int64_t b = 0; b < serving->spec.call.batch; b++)
        for (int64_t j = serving_settled_keys(serving, b); j < serving_sequence(serving, b).kv_len; j++)
            for (int64_t h = 0; h < before.size[1]; h++) {
                const stored_row place = serving_key_row(serving, b, j);
                memcpy(view_element(&before, place.b, h, place.i, 0),
                       view_element(&serving->view[tensor], place.b, h, place.i, 0), bytes);
            }
}

static int is_unchanged(const append_data *data, int tensor)
{
    const byte_buffer *before = &data->before[tensor], *now = &data->serving->buffer[tensor];
    return before->bytes == NULL || memcmp(before->bytes, now->bytes, now->size) == 0;
}

static int has_written_beside_q(const append_data *data)
{
    const serving_data *serving = data->serving;
    tensor_view view = serving->view[STORED_Q];
    byte_buffer copy;
    int written = 0;
    buffer_make(&copy, view.buffer->size);
    memcpy(copy.bytes, view.buffer->bytes, copy.size);
    view.buffer = &copy;
    for (int64_t b = 0; b < serving->spec.call.batch; b++)
        for (int64_t i = 0; i < serving_sequence(serving, b).q_len; i++)
            for (int64_t h = 0; h < view.size[1]; h++) {
                const stored_row row = serving_query_row(serving, b, i);
                memset(view_element(&view, row.b, h, row.i, 0), POISON_BYTE,
                       (size_t)view.size[3] * view_element_size(&view));
            }
    for (size_t n = 0; n < copy.size; n++)
        written |= copy.bytes[n] != POISON_BYTE;
    buffer_free(&copy);
    return written;
}

static const char *check_surroundings(append_data *data)
{
    accept_rows(data, STORED_K);
    accept_rows(data, STORED_V);
    if (data->serving->spec.dtype_k == CLATTN_DTYPE_I8)
        accept_rows(data, STORED_K_SCALE);
    if (data->serving->spec.dtype_v == CLATTN_DTYPE_I8)
        accept_rows(data, STORED_V_SCALE);
    if (!is_unchanged(data, STORED_K) || !is_unchanged(data, STORED_V))
        return "append: something else of the cache was changed";
    if (!is_unchanged(data, STORED_K_SCALE) || !is_unchanged(data, STORED_V_SCALE))
        return "append: scales beside those of the new rows were changed";
    if (spec_of(data)->rope != CLATTN_ROPE_NONE && has_written_beside_q(data))
        return "append: something was written beside the rows of q_out";
    return NULL;
}

static const char *check_lengths(const append_data *data)
{
    const tensor_view *out = &data->view[APPEND_LENS_OUT];
    for (int64_t b = 0; out->buffer != NULL && b < out->size[0]; b++)
        if (view_load_int(out, b, 0, 0, 0) != serving_sequence(data->serving, b).kv_len)
            return "append: kv_lens_out is not the length after the call";
    if (out->buffer != NULL && !view_surroundings_are_untouched(out))
        return "append: something was written beside kv_lens_out";
    return NULL;
}

const char *append_check(append_data *data)
{
    serving_data *serving = data->serving;
    const call_spec *call = &serving->spec.call;
    const char *wrong = NULL;
    for (int64_t b = 0; b < call->batch; b++)
        for (int64_t t = 0; t < serving_sequence(serving, b).q_len; t++) {
            for (int64_t h = 0; h < call->heads_kv && wrong == NULL; h++) {
                wrong = check_key(data, b, h, t);
                serving_load_key(serving, b, h, serving_settled_keys(serving, b) + t);
            }
            for (int64_t h = 0; h < call->heads_q && wrong == NULL; h++)
                if (spec_of(data)->rope != CLATTN_ROPE_NONE)
                    wrong = check_query(data, b, h, t);
        }
    if (wrong == NULL)
        wrong = check_surroundings(data);
    return wrong != NULL ? wrong : check_lengths(data);
}
