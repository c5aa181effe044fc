#include "numerics_fill.h"

#include "tensor_convert.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- What is not to be read ---- */

static void repeat_pattern(byte_buffer *buffer, const unsigned char *pattern, size_t size)
{
    for (size_t i = 0; i < buffer->size; i++)
        buffer->bytes[i] = pattern[i % size];
}

static void set_unread(const tensor_view *view, unread_values values)
{
    unsigned char pattern[4] = {0, 0, 0, 0};
    if (view->buffer == NULL || values == UNREAD_POISON)
        return;
    if (view->dtype == ELEMENT_BYTE)
        pattern[0] = values == UNREAD_ZERO ? 0 : 1;
    else if (values != UNREAD_ZERO)
        tensor_store(pattern, view->dtype, values == UNREAD_INFINITE ? INFINITY : -INFINITY);
    repeat_pattern(view->buffer, pattern, view_element_size(view));
}

static void set_all_unread(call_data *data)
{
    const int tensors[] = {TENSOR_Q, TENSOR_K, TENSOR_V, TENSOR_BIAS, TENSOR_MASK};
    for (size_t i = 0; i < sizeof tensors / sizeof *tensors; i++)
        set_unread(&data->view[tensors[i]], data->spec.unread);
}

/* ---- Values per head or per entry ---- */

static int tells_positions(const call_spec *spec)
{
    return spec_has(spec, CLATTN_FEATURE_ALIBI) || spec->score_mod != SCORE_MOD_NONE ||
           spec->mask_mod != MASK_MOD_NONE;
}

static float head_scale_value(const call_spec *spec, random_state *random)
{
    const float values[] = {1, 0.5f, 2, 0, -1, random_normal(random)};
    if (spec->bias_values == BIAS_LOWEST) /* the product is to stay a number */
        return (float)random_between(random, 1, 8) / 8;
    return values[random_between(random, 0, 5)];
}

static float slope_value(const call_spec *spec, int64_t head, random_state *random)
{
    const float standard = exp2f(-8 * (float)(head + 1) / (float)spec->heads_q);
    const float values[] = {standard, standard, 0, 0.3f * random_normal(random), -0.05f};
    return values[random_between(random, 0, 4)];
}

static float sink_value(const call_spec *spec, random_state *random)
{
    const float plain = 2 * random_normal(random);
    const float values[] = {plain, plain, plain, -INFINITY, 30, -30, 1e4f, -1e4f, 1e30f};
    return spec->plain_sinks ? plain : values[random_between(random, 0, 8)];
}

static int32_t length_value(int64_t most, random_state *random)
{
    switch (random_between(random, 0, 14)) {
    case 0:
        return 0;
    case 1:
    case 2:
        return (int32_t)most;
    case 3: /* clamped, as those that follow */
        return (int32_t)(most + random_between(random, 1, 100));
    case 4:
        return random_chance(random, 50) ? INT32_MAX : -(int32_t)random_between(random, 1, 100);
    default:
        return (int32_t)random_between(random, 0, most);
    }
}

static int32_t offset_value(const call_spec *spec, random_state *random)
{
    switch (random_between(random, 0, 14)) {
    case 0:
        return (int32_t)(spec->kv_len + random_between(random, 0, 100));
    case 1:
        if (!tells_positions(spec))
            return random_chance(random, 50) ? INT32_MAX : INT32_MIN;
        return -(int32_t)(spec->q_len + random_between(random, 0, 100));
    case 2:
    case 3:
        return (int32_t)(spec->kv_len - spec->q_len);
    default:
        return (int32_t)random_between(random, -spec->q_len / 2, spec->kv_len);
    }
}

static int has(const call_data *data, int tensor) { return data->view[tensor].buffer != NULL; }

/* Entries may share a number. */
static void lengthen_keys(call_data *data)
{
    const reference_call call = data_reference(data);
    for (int64_t b = 0; b < call.batch; b++) {
        const reference_sequence seq = reference_sequence_of(&call, b);
        const reference_call now = data_reference(data);
        if (has(data, TENSOR_KV_LENS) && reference_sequence_of(&now, b).kv_len < seq.q_len)
            view_store_int(&data->view[TENSOR_KV_LENS], b, 0, 0, 0, (int32_t)seq.q_len);
    }
}

static void fill_entries(call_data *data, random_state *random)
{
    const call_spec *spec = &data->spec;
    for (int64_t b = 0; b < spec->batch; b++) {
        if (has(data, TENSOR_Q_LENS))
            view_store_int(&data->view[TENSOR_Q_LENS], b, 0, 0, 0, length_value(spec->q_len, random));
        if (has(data, TENSOR_KV_LENS))
            view_store_int(&data->view[TENSOR_KV_LENS], b, 0, 0, 0, length_value(spec->kv_len, random));
        if (has(data, TENSOR_Q_OFFSETS))
            view_store_int(&data->view[TENSOR_Q_OFFSETS], b, 0, 0, 0, offset_value(spec, random));
        for (int64_t h = 0; h < spec->heads_q; h++) {
            if (has(data, TENSOR_HEAD_SCALE))
                view_store(&data->view[TENSOR_HEAD_SCALE], b, h, 0, 0, head_scale_value(spec, random));
            if (has(data, TENSOR_SLOPES))
                view_store(&data->view[TENSOR_SLOPES], b, h, 0, 0, slope_value(spec, h, random));
            if (has(data, TENSOR_SINKS))
                view_store(&data->view[TENSOR_SINKS], b, h, 0, 0, sink_value(spec, random));
        }
    }
    for (int64_t b = 0; spec->one_long && b < spec->batch; b++)
        view_store_int(&data->view[TENSOR_KV_LENS], b, 0, 0, 0,
                       (int32_t)(b == spec->batch / 2 ? spec->kv_len : random_between(random, 0, 8)));
    if (spec->keys_cover_rows)
        lengthen_keys(data);
}

/* ---- Key tiles ---- */

/* Writes a list of at most `capacity` entries; returns its length. */
static int64_t make_list(int32_t *list, int64_t capacity, int64_t tiles, int percent, random_state *random)
{
    const int32_t junk[] = {-1, (int32_t)tiles, INT32_MAX, INT32_MIN, (int32_t)tiles + 7};
    int64_t count = 0;
    for (int64_t tile = 0; tile < tiles && count < capacity; tile++) {
        if (random_chance(random, 8))
            list[count++] = junk[random_between(random, 0, 4)];
        if (count < capacity && random_chance(random, percent))
            list[count++] = (int32_t)tile;
        if (count > 0 && count < capacity && random_chance(random, 5)) {
            list[count] = list[random_between(random, 0, count - 1)];
            count++;
        }
    }
    for (int64_t n = count - 1; n > 0; n--) {
        const int64_t other = random_between(random, 0, n);
        const int32_t entry = list[n];
        list[n] = list[other];
        list[other] = entry;
    }
    return count;
}

static void fill_list(call_data *data, int64_t b, int64_t h, int64_t t, random_state *random)
{
    const call_spec *spec = &data->spec;
    const int64_t tiles = (spec->kv_len + spec->tile_keys - 1) / spec->tile_keys;
    const int64_t capacity = data_tiles_capacity(spec);
    int32_t *list = malloc((size_t)capacity * sizeof *list);
    if (list == NULL) {
        fputs("numerics: no host memory for a list of key tiles\n", stderr);
        exit(1);
    }
    int64_t count =
        make_list(list, capacity, tiles, random_chance(random, 5) ? 0 : spec->tiles_percent, random);
    for (int64_t n = count; n < capacity; n++)
        list[n] = (int32_t)random_between(random, 0, tiles);
    for (int64_t n = 0; n < capacity; n++)
        view_store_int(&data->view[TENSOR_TILES_INDEX], b, h, t, n, list[n]);
    if (count == capacity && random_chance(random, 30))
        count = random_chance(random, 50) ? INT32_MAX : capacity + 3;
    if (count == 0 && random_chance(random, 30))
        count = -random_between(random, 1, 5);
    view_store_int(&data->view[TENSOR_TILES_COUNT], b, h, t, 0, (int32_t)count);
    free(list);
}

static void fill_lists(call_data *data, random_state *random)
{
    const reference_call call = data_reference(data);
    for (int64_t b = 0; b < call.batch; b++) {
        const int64_t rows = reference_sequence_of(&call, b).q_len;
        for (int64_t h = 0; h < call.heads_q; h++)
            for (int64_t t = 0; t * data->spec.tile_rows < rows; t++)
                fill_list(data, b, h, t, random);
    }
}

/* ---- Mask and bias ---- */

/* A random number that hangs on the place alone. */
static int chance_at(uint64_t seed, int64_t b, int64_t h, int64_t i, int64_t j, int percent)
{
    random_state random = {seed};
    random.state = random_bits(&random) + (uint64_t)b;
    random.state = random_bits(&random) + (uint64_t)h;
    random.state = random_bits(&random) + (uint64_t)i;
    random.state = random_bits(&random) + (uint64_t)j;
    return random_chance(&random, percent);
}

/* Besides blocks at random, some rows and some keys are forbidden altogether. */
static int mask_value(const call_spec *spec, int64_t b, int64_t h, int64_t i, int64_t j)
{
    if (spec->mask_percent < 100 &&
        (chance_at(spec->seed, b, h, i, -1, 4) || chance_at(spec->seed, b, 0, -1, j, 6)))
        return 0;
    return chance_at(spec->seed, b, h, i / spec->mask_block, j / spec->mask_block, spec->mask_percent);
}

static void fill_mask(call_data *data, random_state *random)
{
    const reference_call call = data_reference(data);
    for (int64_t b = 0; b < call.batch; b++)
        for (int64_t h = 0; h < call.heads_q; h++)
            for (int64_t i = 0; i < reference_sequence_of(&call, b).q_len; i++) {
                int64_t begin, end;
                reference_keys_of_row(&call, b, i, &begin, &end);
                for (int64_t j = begin; j < end; j++)
                    view_store_int(
                        &data->view[TENSOR_MASK], b, h, i, j,
                        mask_value(&data->spec, b, h, i, j) ? (int32_t)random_between(random, 1, 255) : 0);
            }
}

static float bias_value(const call_spec *spec, int64_t row, random_state *random)
{
    const float value = 2 * random_normal(random);
    if (spec->bias_values == BIAS_LOWEST && row % 3 == 1)
        return lowest_of(spec->dtype_bias);
    return spec->bias_values != BIAS_NORMAL && random_chance(random, 25) ? -INFINITY : value;
}

static void fill_bias(call_data *data, random_state *random)
{
    reference_call call = data_reference(data);
    call.bias.data = NULL; /* what is allowed by everything else */
    for (int64_t b = 0; b < call.batch; b++)
        for (int64_t h = 0; h < call.heads_q; h++)
            for (int64_t i = 0; i < reference_sequence_of(&call, b).q_len; i++)
                for (int64_t j = 0; j < call.kv_len; j++)
                    if (reference_is_allowed(&call, b, h, i, j))
                        view_store(&data->view[TENSOR_BIAS], b, h, i, j, bias_value(&data->spec, i, random));
}

/* ---- Rows ---- */

static void fill_row(const tensor_view *view, int64_t b, int64_t h, int64_t i, float amplitude,
                     random_state *random)
{
    for (int64_t c = 0; c < view->size[3]; c++)
        view_store(view, b, h, i, c, amplitude * random_normal(random));
}

/* Rows of q of one group of heads, and the keys that they see. */
static void fill_group(call_data *data, int64_t b, int64_t head_kv, unsigned char *is_seen,
                       random_state *random)
{
    const reference_call call = data_reference(data);
    const int64_t group = call.heads_q / call.heads_kv, rows = reference_sequence_of(&call, b).q_len;
    memset(is_seen, 0, (size_t)call.kv_len);
    for (int64_t h = head_kv * group; h < (head_kv + 1) * group; h++)
        for (int64_t i = 0; i < rows; i++) {
            int sees = 0;
            for (int64_t j = 0; j < call.kv_len; j++)
                if (reference_is_allowed(&call, b, h, i, j))
                    sees = is_seen[j] = 1;
            if (sees)
                fill_row(&data->view[TENSOR_Q], b, h, i, data->spec.q_amplitude, random);
        }
    for (int64_t j = 0; j < call.kv_len; j++)
        if (is_seen[j]) {
            fill_row(&data->view[TENSOR_K], b, head_kv, j, 1, random);
            fill_row(&data->view[TENSOR_V], b, head_kv, j, 1, random);
        }
}

/* ---- The whole ---- */

void fill_inputs(call_data *data, random_state *random)
{
    const call_spec *spec = &data->spec;
    unsigned char *is_seen = malloc((size_t)spec->kv_len + 1);
    if (is_seen == NULL) {
        fputs("numerics: no host memory for flags\n", stderr);
        exit(1);
    }
    set_all_unread(data);
    fill_entries(data, random);
    if (has(data, TENSOR_TILES_COUNT))
        fill_lists(data, random);
    if (has(data, TENSOR_USER))
        mods_fill_user(view_element(&data->view[TENSOR_USER], 0, 0, 0, 0), spec->score_mod, spec->mask_mod,
                       spec->batch, spec->heads_q, spec->q_len, spec->kv_len, random);
    if (has(data, TENSOR_MASK))
        fill_mask(data, random);
    if (has(data, TENSOR_BIAS))
        fill_bias(data, random);
    for (int64_t b = 0; b < spec->batch; b++)
        for (int64_t h = 0; h < spec->heads_kv; h++)
            fill_group(data, b, h, is_seen, random);
    free(is_seen);
}
