#include "serving_data.h"

#include "numerics_cache.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { MAX_ROW = CLATTN_MAX_HEAD_DIM };

static void *array_of(int64_t count, size_t element)
{
    void *array = calloc((size_t)count + 1, element);
    if (array == NULL) {
        fputs("numerics: no host memory for a table\n", stderr);
        exit(1);
    }
    return array;
}

reference_sequence serving_sequence(const serving_data *data, int64_t b)
{
    const reference_call call = data_reference(&data->call);
    return reference_sequence_of(&call, b);
}

static int64_t most(int64_t a, int64_t b) { return a > b ? a : b; }
static int64_t least(int64_t a, int64_t b) { return a < b ? a : b; }

static int is_outside(const serving_data *data, int tensor, int64_t b, int64_t most_rows)
{
    const tensor_view *view = &data->call.view[tensor];
    const int64_t number = view_load_int(view, b, 0, 0, 0);
    return number < 0 || number > most_rows;
}

int32_t serving_bad_length(const serving_data *data)
{
    const call_spec *call = &data->spec.call;
    const uint32_t features = serving_plan_desc(&data->spec).features;
    int32_t bad = 0;
    for (int64_t b = 0; b < call->batch; b++) {
        if (((features & CLATTN_FEATURE_Q_LENS) != 0 && is_outside(data, TENSOR_Q_LENS, b, call->q_len)) ||
            ((features & CLATTN_FEATURE_KV_LENS) != 0 && is_outside(data, TENSOR_KV_LENS, b, call->kv_len)) ||
            (data->spec.packed_q && data->first_q[b + 1] - data->first_q[b] > call->q_len) ||
            (data->spec.keys == KEYS_PACKED && data->first_k[b + 1] - data->first_k[b] > call->kv_len))
            bad = (int32_t)b + 1;
    }
    return bad;
}

/* ---- Packed sequences ---- */

/* Begins of sequences of at least these lengths. Longer ones are cut to the valid length by the lengths given
 * besides, or by the longest length that the call names. */
static int64_t pack_sequences(const serving_data *data, int keys, int64_t *first, random_state *random)
{
    const serving_spec *spec = &data->spec;
    const int gives_lens = keys ? spec->gives_kv_lens : spec->gives_q_lens;
    const int64_t longest = keys ? spec->call.kv_len : spec->call.q_len;
    int64_t row = random_chance(random, 20) ? random_between(random, 0, spec->slack) : 0;
    for (int64_t b = 0; b < spec->call.batch; b++) {
        const reference_sequence seq = serving_sequence(data, b);
        const int64_t length = keys ? seq.kv_len : seq.q_len;
        const int may_be_longer = gives_lens || length == longest;
        first[b] = row;
        row += length +
               (may_be_longer && random_chance(random, 30) ? random_between(random, 0, spec->slack) : 0);
    }
    first[spec->call.batch] = row;
    return row + (random_chance(random, 50) ? random_between(random, 0, spec->slack) : 0);
}

/* ---- Pages ---- */

static int64_t pages_of(const serving_data *data, int64_t b)
{
    const int64_t page = data->spec.page_size;
    return (serving_sequence(data, b).kv_len + page - 1) / page;
}

int64_t serving_settled_keys(const serving_data *data, int64_t b)
{
    const reference_sequence seq = serving_sequence(data, b);
    return data->spec.append.takes_part ? seq.kv_len - seq.q_len : seq.kv_len;
}

/* How many of its first pages sequence b takes from `from`. */
static int64_t choose_shared(const serving_data *data, int64_t b, int64_t from, random_state *random)
{
    const int64_t full =
        least(serving_settled_keys(data, b), serving_settled_keys(data, from)) / data->spec.page_size;
    return random_chance(random, data->spec.shared_percent) ? random_between(random, 0, full) : 0;
}

static void shuffle(int32_t *numbers, int64_t count, random_state *random)
{
    for (int64_t n = count - 1; n > 0; n--) {
        const int64_t other = random_between(random, 0, n);
        const int32_t number = numbers[n];
        numbers[n] = numbers[other];
        numbers[other] = number;
    }
}

/* The filled one of two rows of shared keys stands for both. */
static void share_row(const tensor_view *view, int64_t b, int64_t from, int64_t h, int64_t j)
{
    unsigned char *mine = view_element(view, b, h, j, 0), *theirs = view_element(view, from, h, j, 0);
    const size_t bytes = (size_t)view->size[3] * view_element_size(view);
    if (isnan(view_load(view, from, h, j, 0)))
        memcpy(theirs, mine, bytes);
    else
        memcpy(mine, theirs, bytes);
}

/* Entry b takes the first pages of an earlier one; their keys become alike, in all sequences that have them.
 */
static void share_pages(serving_data *data, int64_t b, int64_t from, int64_t count)
{
    const int64_t blocks = data->max_blocks, keys = count * data->spec.page_size;
    memcpy(data->pages + b * blocks, data->pages + from * blocks, (size_t)count * sizeof *data->pages);
    for (int64_t h = 0; h < data->spec.call.heads_kv; h++)
        for (int64_t j = 0; j < keys; j++) {
            share_row(&data->call.view[TENSOR_K], b, from, h, j);
            share_row(&data->call.view[TENSOR_V], b, from, h, j);
        }
}

/* All sequences share with sequence 0 alone, so that each key has one owner. */
static void allot_pages(serving_data *data, random_state *random)
{
    const serving_spec *spec = &data->spec;
    const int64_t batch = spec->call.batch, page = spec->page_size;
    int64_t needed = 0, used = 0;
    data->max_blocks = (spec->call.kv_len + page - 1) / page + random_between(random, 0, spec->slack);
    data->pages = array_of(batch * data->max_blocks, sizeof *data->pages);
    for (int64_t b = 0; b < batch; b++)
        needed += pages_of(data, b);
    data->num_pages = most(1, needed + random_between(random, 0, spec->slack));
    int32_t *ids = array_of(data->num_pages, sizeof *ids);
    for (int64_t n = 0; n < data->num_pages; n++)
        ids[n] = (int32_t)n;
    shuffle(ids, data->num_pages, random);
    for (int64_t b = 0; b < batch; b++) {
        const int64_t shared = b > 0 ? choose_shared(data, b, 0, random) : 0;
        for (int64_t n = shared; n < pages_of(data, b); n++)
            data->pages[b * data->max_blocks + n] = ids[used++];
        if (shared > 0)
            share_pages(data, b, 0, shared);
    }
    free(ids);
}

static void fill_table(serving_data *data, random_state *random)
{
    const tensor_view *table = &data->view[STORED_TABLE];
    const int32_t junk[] = {-1, INT32_MIN, INT32_MAX, (int32_t)data->num_pages, (int32_t)data->num_pages + 5};
    for (int64_t b = 0; b < data->spec.call.batch; b++)
        for (int64_t n = 0; n < data->max_blocks; n++)
            view_store_int(table, b, 0, 0, n,
                           n < pages_of(data, b) ? data->pages[b * data->max_blocks + n]
                                                 : junk[random_between(random, 0, 4)]);
}

/* ---- Placement ---- */

static tensor_view *set_view(serving_data *data, int tensor, int32_t dtype, int64_t batch, int64_t heads,
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

static void place_queries(serving_data *data, random_state *random)
{
    const serving_spec *spec = &data->spec;
    const call_spec *call = &spec->call;
    const int64_t batch = spec->packed_q ? 1 : call->batch;
    const int64_t rows = spec->packed_q ? data->total_q : call->q_len;
    view_place(set_view(data, STORED_Q, call->dtype_q, batch, call->heads_q, rows, call->head_dim_qk),
               spec->layout_q, random);
    view_place(set_view(data, STORED_O, call->dtype_o, batch, call->heads_q, rows, call->head_dim_v),
               call->layout_o, random);
    if (spec_has(call, CLATTN_FEATURE_LSE))
        view_place(set_view(data, STORED_LSE, CLATTN_DTYPE_F32, batch, call->heads_q, rows, 1),
                   call->layout_lse, random);
}

/* v behind k in each page of one buffer. */
static void place_in_one_pool(serving_data *data)
{
    tensor_view *k = &data->view[STORED_K], *v = &data->view[STORED_V];
    const int64_t tokens = k->size[2], heads = k->size[1];
    const int64_t page = tokens * heads * (k->size[3] + v->size[3]);
    const int64_t unit = (int64_t)view_element_size(k);
    for (int n = 0; n < 2; n++) {
        tensor_view *view = n == 0 ? k : v;
        const int heads_outside = data->spec.layout_k != LAYOUT_BSHD;
        view->stride[0] = page;
        view->stride[1] = heads_outside ? tokens * view->size[3] : view->size[3];
        view->stride[2] = heads_outside ? view->size[3] : heads * view->size[3];
        view->stride[3] = 1;
    }
    k->offset = view_guard(k);
    v->offset = k->offset + (uint64_t)(tokens * heads * k->size[3] * unit);
    v->buffer = k->buffer;
    buffer_make(k->buffer, k->offset + (size_t)(k->size[0] * page * unit) + GUARD_BYTES);
}

static void place_scale(serving_data *data, int tensor, scale_granularity granularity, random_state *random)
{
    const tensor_view *k = &data->view[STORED_K];
    if (granularity == SCALE_NONE)
        return;
    tensor_view *view = set_view(data, tensor, CLATTN_DTYPE_F32, k->size[0], k->size[1], k->size[2], 1);
    if (granularity == SCALE_OF_TOKEN) {
        view_place(view, random_chance(random, 50) ? LAYOUT_BSHD : LAYOUT_RAGGED, random);
        return;
    }
    view->offset = GUARD_BYTES + 4 * (uint64_t)random_between(random, 0, 3);
    view->stride[0] = granularity == SCALE_OF_BATCH ? 1 : 0;
    view->stride[1] = granularity == SCALE_OF_HEAD ? random_between(random, 1, 3) : 0;
    view->stride[2] = 0;
    view->stride[3] = 1;
    view_make_buffer(view);
}

static void place_keys(serving_data *data, random_state *random)
{
    const serving_spec *spec = &data->spec;
    const call_spec *call = &spec->call;
    const int64_t batch = spec->keys == KEYS_PAGED    ? data->num_pages
                          : spec->keys == KEYS_PACKED ? 1
                                                      : call->batch;
    const int64_t rows = spec->keys == KEYS_PAGED    ? spec->page_size
                         : spec->keys == KEYS_PACKED ? data->total_k
                                                     : call->kv_len;
    tensor_view *k = set_view(data, STORED_K, spec->dtype_k, batch, call->heads_kv, rows,
                              call->head_dim_qk / cache_unit_elements(spec->dtype_k));
    tensor_view *v = set_view(data, STORED_V, spec->dtype_v, batch, call->heads_kv, rows,
                              call->head_dim_v / cache_unit_elements(spec->dtype_v));
    if (spec->v_in_k) {
        view_place(k, spec->layout_k, random);
        v->buffer = NULL;
    } else if (spec->one_pool) {
        place_in_one_pool(data);
    } else {
        view_place(k, spec->layout_k, random);
        view_place(v, spec->layout_v, random);
    }
    place_scale(data, STORED_K_SCALE, spec->scale_k, random);
    place_scale(data, STORED_V_SCALE, spec->scale_v, random);
}

/* [batch + 1] or [batch][max_blocks] numbers, rows possibly apart. */
static void place_ints(serving_data *data, int tensor, int64_t rows, int64_t columns, random_state *random)
{
    tensor_view *view = set_view(data, tensor, ELEMENT_INT32, rows, 1, 1, columns);
    view->offset = GUARD_BYTES + 4 * (uint64_t)random_between(random, 0, 3);
    view->stride[0] = columns + random_between(random, 0, 2);
    view->stride[1] = view->stride[2] = 0;
    view->stride[3] = 1;
    view_make_buffer(view);
}

static void place_numbers(serving_data *data, random_state *random)
{
    const serving_spec *spec = &data->spec;
    const int64_t batch = spec->call.batch;
    const int64_t *first[] = {data->first_q, data->first_k};
    const int packed[] = {spec->packed_q, spec->keys == KEYS_PACKED};
    for (int n = 0; n < 2; n++) {
        if (!packed[n])
            continue;
        place_ints(data, STORED_CU_Q + n, 1, batch + 1, random);
        for (int64_t b = 0; b <= batch; b++)
            view_store_int(&data->view[STORED_CU_Q + n], 0, 0, 0, b, (int32_t)first[n][b]);
    }
    if (spec->keys == KEYS_PAGED) {
        place_ints(data, STORED_TABLE, batch, data->max_blocks, random);
        fill_table(data, random);
    }
    if (spec->has_status) {
        place_ints(data, STORED_STATUS, 1, 4, random);
        for (int64_t n = 0; n < 4; n++)
            view_store_int(&data->view[STORED_STATUS], 0, 0, 0, n, 0);
    }
}

/* ---- Rows ---- */

stored_row serving_query_row(const serving_data *data, int64_t b, int64_t i)
{
    const stored_row packed = {0, data->spec.packed_q ? data->first_q[b] + i : 0}, padded = {b, i};
    return data->spec.packed_q ? packed : padded;
}

stored_row serving_key_row(const serving_data *data, int64_t b, int64_t j)
{
    stored_row row = {b, j};
    if (data->spec.keys == KEYS_PACKED) {
        row.b = 0;
        row.i = data->first_k[b] + j;
    } else if (data->spec.keys == KEYS_PAGED) {
        row.b = data->pages[b * data->max_blocks + j / data->spec.page_size];
        row.i = j % data->spec.page_size;
    }
    return row;
}

int serving_key_is_filled(const serving_data *data, int64_t b, int64_t h, int64_t j)
{
    return !isnan(view_load(&data->call.view[TENSOR_K], b, h, j, 0));
}

/* The scale that a row is stored with. One of its own follows the row; it is stored, too. */
static float scale_of_row(serving_data *data, int tensor, stored_row row, int64_t h, const float *values,
                          int64_t dim, int is_new)
{
    const tensor_view *view = &data->view[tensor];
    const scale_granularity granularity = tensor == STORED_K_SCALE ? data->spec.scale_k : data->spec.scale_v;
    if (view->buffer == NULL)
        return 1;
    if (is_new && granularity == SCALE_OF_TOKEN) {
        float largest = 0;
        for (int64_t c = 0; c < dim; c++)
            largest = fmaxf(largest, fabsf(values[c]));
        view_store(view, row.b, h, row.i, 0, largest / 127);
    }
    return view_load(view, row.b, h, row.i, 0);
}

static void load_row(serving_data *data, int tensor, int64_t b, int64_t h, int64_t j)
{
    const tensor_view *to = &data->call.view[tensor == STORED_K ? TENSOR_K : TENSOR_V];
    const int scales = tensor == STORED_K ? STORED_K_SCALE : STORED_V_SCALE;
    const stored_row row = serving_key_row(data, b, j);
    float values[MAX_ROW];
    cache_load_row(&data->view[tensor], row.b, h, row.i, values, to->size[3],
                   scale_of_row(data, scales, row, h, NULL, 0, 0));
    for (int64_t c = 0; c < to->size[3]; c++)
        view_store(to, b, h, j, c, values[c]);
}

static void store_row(serving_data *data, int tensor, int64_t b, int64_t h, int64_t j)
{
    const tensor_view *from = &data->call.view[tensor == STORED_K ? TENSOR_K : TENSOR_V];
    const int scales = tensor == STORED_K ? STORED_K_SCALE : STORED_V_SCALE;
    const stored_row row = serving_key_row(data, b, j);
    float values[MAX_ROW];
    for (int64_t c = 0; c < from->size[3]; c++)
        values[c] = view_load(from, b, h, j, c);
    cache_store_row(&data->view[tensor], row.b, h, row.i, values, from->size[3],
                    scale_of_row(data, scales, row, h, values, from->size[3], 1));
}

/* v is the first columns of k. */
static void copy_v_from_k(serving_data *data, int64_t b, int64_t h, int64_t j)
{
    const tensor_view *v = &data->call.view[TENSOR_V];
    for (int64_t c = 0; c < v->size[3]; c++)
        view_store(v, b, h, j, c, view_load(&data->call.view[TENSOR_K], b, h, j, c));
}

void serving_load_key(serving_data *data, int64_t b, int64_t h, int64_t j)
{
    load_row(data, STORED_K, b, h, j);
    if (data->spec.v_in_k)
        copy_v_from_k(data, b, h, j);
    else
        load_row(data, STORED_V, b, h, j);
}

void serving_store_key(serving_data *data, int64_t b, int64_t h, int64_t j)
{
    store_row(data, STORED_K, b, h, j);
    if (!data->spec.v_in_k)
        store_row(data, STORED_V, b, h, j);
    serving_load_key(data, b, h, j);
}

/* ---- Filling ---- */

/* Scales that several rows have in common: some 5 standard deviations are the largest number of the type. */
static void fill_common_scales(serving_data *data, int tensor, scale_granularity granularity,
                               random_state *random)
{
    const tensor_view *view = &data->view[tensor];
    if (view->buffer == NULL || granularity == SCALE_OF_TOKEN)
        return;
    for (int64_t b = 0; b < view->size[0]; b++)
        for (int64_t h = 0; h < view->size[1]; h++)
            view_store(view, b, h, 0, 0, (float)random_between(random, 20, 60) / 1000);
}

/* F8 takes the scales of new tokens as they are. */
static void fill_scales_of_new_keys(serving_data *data, int tensor, int32_t dtype,
                                    scale_granularity granularity)
{
    const tensor_view *view = &data->view[tensor];
    if (granularity != SCALE_OF_TOKEN || dtype == CLATTN_DTYPE_I8)
        return;
    for (int64_t b = 0; b < data->spec.call.batch; b++)
        for (int64_t j = serving_settled_keys(data, b); j < serving_sequence(data, b).kv_len; j++)
            for (int64_t h = 0; h < view->size[1]; h++) {
                const stored_row row = serving_key_row(data, b, j);
                view_store(view, row.b, h, row.i, 0, 0.03f);
            }
}

static void fill_queries(serving_data *data)
{
    const call_spec *call = &data->spec.call;
    const tensor_view *from = &data->call.view[TENSOR_Q], *to = &data->view[STORED_Q];
    for (int64_t b = 0; b < call->batch; b++)
        for (int64_t h = 0; h < call->heads_q; h++)
            for (int64_t i = 0; i < serving_sequence(data, b).q_len; i++) {
                const stored_row row = serving_query_row(data, b, i);
                memcpy(view_element(to, row.b, h, row.i, 0), view_element(from, b, h, i, 0),
                       (size_t)from->size[3] * view_element_size(from));
            }
}

static void fill_keys(serving_data *data)
{
    const call_spec *call = &data->spec.call;
    for (int64_t b = 0; b < call->batch; b++)
        for (int64_t h = 0; h < call->heads_kv; h++)
            for (int64_t j = 0; j < serving_settled_keys(data, b); j++)
                if (serving_key_is_filled(data, b, h, j))
                    serving_store_key(data, b, h, j);
}

/* ---- Sequences of another call ---- */

static void copy_numbers(const call_data *to, const call_data *from, int64_t b, int64_t entry)
{
    const int tensors[] = {TENSOR_HEAD_SCALE, TENSOR_SLOPES, TENSOR_SINKS};
    for (size_t n = 0; n < sizeof tensors / sizeof *tensors; n++)
        for (int64_t h = 0; to->view[tensors[n]].buffer != NULL && h < to->spec.heads_q; h++)
            view_store(&to->view[tensors[n]], b, h, 0, 0, view_load(&from->view[tensors[n]], entry, h, 0, 0));
    if (to->view[TENSOR_Q_OFFSETS].buffer != NULL)
        view_store_int(&to->view[TENSOR_Q_OFFSETS], b, 0, 0, 0,
                       view_load_int(&from->view[TENSOR_Q_OFFSETS], entry, 0, 0, 0));
}

static void copy_lengths(const call_data *to, const reference_sequence *seq, int64_t b)
{
    if (to->view[TENSOR_Q_LENS].buffer != NULL)
        view_store_int(&to->view[TENSOR_Q_LENS], b, 0, 0, 0, (int32_t)seq->q_len);
    if (to->view[TENSOR_KV_LENS].buffer != NULL)
        view_store_int(&to->view[TENSOR_KV_LENS], b, 0, 0, 0, (int32_t)seq->kv_len);
}

static void copy_elements(const tensor_view *to, const tensor_view *from, int64_t b, int64_t entry,
                          int64_t rows, int64_t columns)
{
    for (int64_t h = 0; to->buffer != NULL && h < to->size[1]; h++)
        for (int64_t i = 0; i < rows; i++)
            for (int64_t c = 0; c < columns; c++)
                memcpy(view_element(to, b, h, i, c), view_element(from, entry, h, i, c),
                       view_element_size(to));
}

static void copy_entry(serving_data *to, const serving_data *from, int64_t b, int64_t entry)
{
    const reference_sequence seq = serving_sequence(from, entry);
    const call_spec *call = &from->spec.call;
    copy_numbers(&to->call, &from->call, b, entry);
    copy_lengths(&to->call, &seq, b);
    const tensor_view *views = to->call.view, *others = from->call.view;
    copy_elements(&views[TENSOR_Q], &others[TENSOR_Q], b, entry, seq.q_len, call->head_dim_qk);
    copy_elements(&views[TENSOR_K], &others[TENSOR_K], b, entry, seq.kv_len, call->head_dim_qk);
    copy_elements(&views[TENSOR_V], &others[TENSOR_V], b, entry, seq.kv_len, call->head_dim_v);
    copy_elements(&views[TENSOR_BIAS], &others[TENSOR_BIAS], b, entry, seq.q_len, seq.kv_len);
    copy_elements(&views[TENSOR_MASK], &others[TENSOR_MASK], b, entry, seq.q_len, seq.kv_len);
}

static void copy_stored_keys(serving_data *to, const serving_data *from, int64_t b, int64_t entry)
{
    const int tensors[] = {STORED_K, STORED_V, STORED_K_SCALE, STORED_V_SCALE};
    for (size_t n = 0; n < sizeof tensors / sizeof *tensors; n++) {
        const tensor_view *view = &to->view[tensors[n]], *other = &from->view[tensors[n]];
        const size_t bytes = view->buffer == NULL ? 0 : (size_t)view->size[3] * view_element_size(view);
        for (int64_t j = 0; bytes > 0 && j < serving_sequence(to, b).kv_len; j++) {
            const stored_row row = serving_key_row(to, b, j), source = serving_key_row(from, entry, j);
            for (int64_t h = 0; h < view->size[1]; h++)
                memcpy(view_element(view, row.b, h, row.i, 0), view_element(other, source.b, h, source.i, 0),
                       bytes);
        }
    }
}

/* ---- The whole ---- */

static void place_all(serving_data *out, random_state *random)
{
    const serving_spec *spec = &out->spec;
    out->first_q = array_of(spec->call.batch, sizeof *out->first_q);
    out->first_k = array_of(spec->call.batch, sizeof *out->first_k);
    if (spec->packed_q)
        out->total_q = pack_sequences(out, 0, out->first_q, random);
    if (spec->keys == KEYS_PACKED)
        out->total_k = pack_sequences(out, 1, out->first_k, random);
    if (spec->keys == KEYS_PAGED)
        allot_pages(out, random);
    place_queries(out, random);
    place_keys(out, random);
    place_numbers(out, random);
}

void serving_create(serving_data *out, const serving_spec *spec)
{
    random_state random = random_for(spec->call.seed, "storage", 0);
    memset(out, 0, sizeof *out);
    out->spec = *spec;
    data_create(&out->call, &spec->call);
    place_all(out, &random);
    fill_common_scales(out, STORED_K_SCALE, spec->scale_k, &random);
    fill_common_scales(out, STORED_V_SCALE, spec->scale_v, &random);
    fill_queries(out);
    fill_keys(out);
    if (spec->append.takes_part) {
        fill_scales_of_new_keys(out, STORED_K_SCALE, spec->dtype_k, spec->scale_k);
        fill_scales_of_new_keys(out, STORED_V_SCALE, spec->dtype_v, spec->scale_v);
    }
}

void serving_create_from(serving_data *out, const serving_spec *spec, const serving_data *from,
                         const int64_t *entries)
{
    random_state random = random_for(spec->call.seed, "storage", 0);
    memset(out, 0, sizeof *out);
    out->spec = *spec;
    data_create(&out->call, &spec->call);
    for (int tensor = TENSOR_Q; tensor <= TENSOR_MASK; tensor++)
        if (out->call.buffer[tensor].bytes != NULL)
            buffer_poison(&out->call.buffer[tensor]);
    for (int64_t b = 0; b < spec->call.batch; b++)
        copy_entry(out, from, b, entries[b]);
    place_all(out, &random);
    fill_queries(out);
    for (int64_t b = 0; b < spec->call.batch; b++)
        copy_stored_keys(out, from, b, entries[b]);
}

void serving_destroy(serving_data *data)
{
    for (int tensor = 0; tensor < STORED_TENSORS; tensor++)
        buffer_free(&data->buffer[tensor]);
    free(data->first_q);
    free(data->first_k);
    free(data->pages);
    data_destroy(&data->call);
}

/* ---- Outputs ---- */

/* Moves the valid rows to the call's view and sees whether all else of the buffer is still poison. */
static int unpack(serving_data *data, int stored, int tensor)
{
    const tensor_view *from = &data->view[stored], *to = &data->call.view[tensor];
    const size_t bytes = (size_t)from->size[3] * view_element_size(from);
    int untouched = 1;
    buffer_poison(to->buffer);
    for (int64_t b = 0; b < data->spec.call.batch; b++) {
        const int64_t rows = serving_sequence(data, b).q_len;
        for (int64_t h = 0; h < from->size[1]; h++)
            for (int64_t i = 0; i < rows; i++) {
                const stored_row row = serving_query_row(data, b, i);
                unsigned char *element = view_element(from, row.b, h, row.i, 0);
                memcpy(view_element(to, b, h, i, 0), element, bytes);
                memset(element, POISON_BYTE, bytes);
            }
    }
    for (size_t n = 0; n < from->buffer->size; n++)
        untouched &= from->buffer->bytes[n] == POISON_BYTE;
    return untouched;
}

const char *serving_unpack_outputs(serving_data *data)
{
    const int o_is_right = unpack(data, STORED_O, TENSOR_O);
    if (data->view[STORED_LSE].buffer != NULL && !unpack(data, STORED_LSE, TENSOR_LSE))
        return "something was written between, beside or beyond the rows of lse";
    return o_is_right ? NULL : "something was written between, beside or beyond the rows of o";
}
