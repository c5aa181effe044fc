/* invariants_test.c: what must hold between calls, whatever the numbers are: orders and groupings that do
 * not matter, what must not be seen, and rows whose result is known without a reference. Shapes and features
 * are drawn at random; a failure names the seed and the round. */
#include "numerics_choices.h"
#include "numerics_device.h"
#include "numerics_options.h"
#include "numerics_verify.h"
#include "serving_properties.h"
#include "tensor_convert.h"

#include <float.h>
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

static numerics_options options;
static numerics_device device;

/* ---- What is drawn ---- */

#define MASKS (CLATTN_FEATURE_MASK | CLATTN_FEATURE_BIAS | CLATTN_FEATURE_KEY_TILES)
#define BOUNDS (CLATTN_FEATURE_CAUSAL | CLATTN_FEATURE_WINDOW)
#define LENGTHS (CLATTN_FEATURE_Q_LENS | CLATTN_FEATURE_KV_LENS)
#define EVERYTHING (MASKS | BOUNDS | LENGTHS | CLATTN_FEATURE_ALIBI | CLATTN_FEATURE_SOFTCAP)

static void set_feature(call_spec *spec, uint32_t feature, random_state *random)
{
    spec->features |= feature;
    if (feature & CLATTN_FEATURE_WINDOW) {
        spec->window_left = random_between(random, -1, 40);
        spec->window_right = random_between(random, -1, 40);
    }
    if (feature & CLATTN_FEATURE_SOFTCAP)
        spec->softcap = (float)random_between(random, 1, 50);
    if (feature & CLATTN_FEATURE_BIAS)
        spec->bias_values = BIAS_HOLES;
}

/* A small call with LSE and some of the features of `from`, each for itself. All are of one class of head
 * dims, so that few programs are built. */
static call_spec draw_spec(int32_t dtype, uint32_t from, random_state *random)
{
    static const int32_t tiles[][2] = {{16, 16}, {64, 32}, {7, 5}, {1, 1}};
    const head_choice heads = head_choices[random_between(random, 0, HEAD_CHOICES - 1)];
    call_spec spec = spec_plain(options.path);
    spec_set_dtype(&spec, dtype);
    spec.heads_q = heads.q;
    spec.heads_kv = heads.kv;
    spec.head_dim_qk = spec.head_dim_v = (int32_t)random_between(random, 33, 64);
    spec.batch = random_between(random, 1, 3);
    spec.q_len = random_between(random, 1, 140);
    spec.kv_len = random_between(random, 2, 200);
    spec_keep_cheap(&spec, 4 * 1000 * 1000);
    spec.layout_in = (tensor_layout)random_between(random, 0, LAYOUT_OUTPUTS - 1);
    spec.layout_o = (tensor_layout)random_between(random, 0, LAYOUT_OUTPUTS - 1);
    spec.layout_lse = (tensor_layout)random_between(random, 0, LAYOUT_OUTPUTS - 1);
    spec.position_mode = CLATTN_POSITION_EXPLICIT;
    spec.q_offset = random_between(random, -20, spec.kv_len);
    for (uint32_t bit = 1; bit != 0 && bit <= from; bit <<= 1)
        if ((from & bit) != 0 && random_chance(random, 40))
            set_feature(&spec, bit, random);
    const int64_t size = random_between(random, 0, 3);
    spec.tile_rows = tiles[size][0];
    spec.tile_keys = tiles[size][1];
    spec.tiles_percent = 70;
    spec.mask_percent = (int)random_between(random, 2, 19) * 5;
    spec.mask_block = random_chance(random, 50) ? 1 : random_between(random, 2, 70);
    spec.plain_sinks = 1;
    spec.seed = random_bits(random);
    return spec;
}

/* ---- Running and comparing ---- */

static char current[1400]; /* how to repeat the round, and its call */

static void name_round(const char *property, uint64_t seed, int round)
{
    snprintf(current, sizeof current, "%s, --seed %llu --case %d", property, (unsigned long long)seed, round);
}

static void fault(const call_spec *spec, const char *format, ...)
{
    char text[1024], reason[320];
    va_list values;
    va_start(values, format);
    vsnprintf(reason, sizeof reason, format, values);
    va_end(values);
    spec_describe(spec, text, sizeof text);
    fail_msg("%s: %s\n    %s", current, reason, text);
}

static void run(call_data *data)
{
    const clattn_status status = device_run(&device, data);
    if (status != CLATTN_SUCCESS)
        fault(&data->spec, "the call failed: %s", clattn_status_string(status));
}

static verdict run_and_verify(call_data *data)
{
    verdict found;
    run(data);
    verify_call(&found, data);
    if (found.fault[0] != '\0')
        fault(&data->spec, "%s", found.fault);
    return found;
}

static float o_of(const call_data *data, int64_t b, int64_t h, int64_t i, int64_t c)
{
    return view_load(&data->view[TENSOR_O], b, h, i, c);
}

static float lse_of(const call_data *data, int64_t b, int64_t h, int64_t i)
{
    return view_load(&data->view[TENSOR_LSE], b, h, i, 0);
}

/* NaN agrees with NaN, an infinity with itself. */
static int agree(double a, double b, double tolerance)
{
    if (isnan(a) || isnan(b))
        return isnan(a) && isnan(b);
    return a == b || fabs(a - b) <= tolerance;
}

static int same_float(float a, float b) { return memcmp(&a, &b, sizeof a) == 0; }

static int64_t rows_of(const call_data *data, int64_t b)
{
    const reference_call call = data_reference(data);
    return reference_sequence_of(&call, b).q_len;
}

/* Row (b, h, i) of both: o within the tolerance, lse too, apart from `shift`. A tolerance below 0 asks for
 * the same bits. */
static void compare_row(const call_data *a, const call_data *b_data, int64_t b, int64_t h, int64_t i,
                        double tolerance_o, double tolerance_lse, double shift)
{
    for (int64_t c = 0; c < a->spec.head_dim_v; c++) {
        const float first = o_of(a, b, h, i, c), second = o_of(b_data, b, h, i, c);
        if (tolerance_o < 0 ? !same_float(first, second) : !agree((double)first, (double)second, tolerance_o))
            fault(&a->spec, "o[%d, %d, %d, %d] is %.9g and %.9g; may differ by %.3g", (int)b, (int)h, (int)i,
                  (int)c, (double)first, (double)second, tolerance_o);
    }
    const float first = lse_of(a, b, h, i), second = lse_of(b_data, b, h, i);
    if (tolerance_lse < 0 ? !same_float(first, second)
                          : !agree((double)first + shift, (double)second, tolerance_lse))
        fault(&a->spec, "lse[%d, %d, %d] is %.9g and %.9g; may differ by %.3g (after %g)", (int)b, (int)h,
              (int)i, (double)first, (double)second, tolerance_lse, shift);
}

static void compare_calls(const call_data *a, const call_data *b_data, double tolerance_o,
                          double tolerance_lse, double shift)
{
    for (int64_t b = 0; b < a->spec.batch; b++)
        for (int64_t h = 0; h < a->spec.heads_q; h++)
            for (int64_t i = 0; i < rows_of(a, b); i++)
                compare_row(a, b_data, b, h, i, tolerance_o, tolerance_lse, shift);
}

/* How many keys a row may see, and one of them. */
static int64_t allowed_keys(const reference_call *call, int64_t b, int64_t h, int64_t i, int64_t *key)
{
    int64_t count = 0;
    for (int64_t j = 0; j < call->kv_len; j++)
        if (reference_is_allowed(call, b, h, i, j)) {
            count++;
            *key = j;
        }
    return count;
}

/* ---- Editing ---- */

static void copy_element(const tensor_view *to, const tensor_view *from, int64_t b, int64_t h, int64_t i,
                         int64_t c, int64_t from_i, int64_t from_c)
{
    memcpy(view_element(to, b, h, i, c), view_element(from, b, h, from_i, from_c), view_element_size(to));
}

static void multiply_row(const tensor_view *view, int64_t b, int64_t h, int64_t i, float factor)
{
    for (int64_t c = 0; c < view->size[3]; c++)
        view_store(view, b, h, i, c, factor * view_load(view, b, h, i, c));
}

static void multiply_all(const call_data *data, int tensor, float factor)
{
    const tensor_view *view = &data->view[tensor];
    for (int64_t b = 0; b < view->size[0]; b++)
        for (int64_t h = 0; h < view->size[1]; h++)
            for (int64_t i = 0; i < view->size[2]; i++)
                multiply_row(view, b, h, i, factor);
}

/* ---- Orders and groupings that do not matter ---- */

static void permute_rows(const call_data *to, const call_data *from, int tensor, const int64_t *order)
{
    const tensor_view *view = &to->view[tensor];
    for (int64_t b = 0; b < view->size[0]; b++)
        for (int64_t h = 0; h < view->size[1]; h++)
            for (int64_t j = 0; j < view->size[2]; j++)
                for (int64_t c = 0; c < view->size[3]; c++)
                    copy_element(view, &from->view[tensor], b, h, j, c, order[j], c);
}

static void permute_columns(const call_data *to, const call_data *from, int tensor, const int64_t *order)
{
    const tensor_view *view = &to->view[tensor];
    if (view->buffer == NULL)
        return;
    for (int64_t b = 0; b < view->size[0]; b++)
        for (int64_t h = 0; h < view->size[1]; h++)
            for (int64_t i = 0; i < view->size[2]; i++)
                for (int64_t j = 0; j < view->size[3]; j++)
                    copy_element(view, &from->view[tensor], b, h, i, j, i, order[j]);
}

static void keys_in_any_order(int32_t dtype, random_state *random)
{
    const uint32_t features = CLATTN_FEATURE_MASK | CLATTN_FEATURE_BIAS | CLATTN_FEATURE_SINKS |
                              CLATTN_FEATURE_SOFTCAP | CLATTN_FEATURE_Q_LENS;
    const call_spec spec = draw_spec(dtype, features, random);
    int64_t order[256];
    call_data first, second;
    data_create(&first, &spec);
    data_create(&second, &spec);
    for (int64_t j = 0; j < spec.kv_len; j++)
        order[j] = j;
    for (int64_t j = spec.kv_len - 1; j > 0; j--) {
        const int64_t other = random_between(random, 0, j), key = order[j];
        order[j] = order[other];
        order[other] = key;
    }
    permute_rows(&second, &first, TENSOR_K, order);
    permute_rows(&second, &first, TENSOR_V, order);
    permute_columns(&second, &first, TENSOR_MASK, order);
    permute_columns(&second, &first, TENSOR_BIAS, order);
    const verdict found = run_and_verify(&first);
    run(&second);
    compare_calls(&first, &second, 2 * found.tolerance_o, 2 * found.tolerance_lse, 0);
    data_destroy(&first);
    data_destroy(&second);
}

/* A call on keys begin .. begin + count - 1 of another. Both have the same features and seed, so that their
 * tensors have the same axes. */
static void make_part(call_data *part, const call_data *whole, int64_t begin, int64_t count)
{
    call_spec spec = whole->spec;
    spec.kv_len = count;
    spec.q_offset -= begin;
    data_create(part, &spec);
    for (int tensor = 0; tensor < TENSORS; tensor++) {
        const tensor_view *view = &part->view[tensor];
        const int64_t row = tensor == TENSOR_K || tensor == TENSOR_V ? begin : 0;
        const int64_t column = tensor == TENSOR_BIAS || tensor == TENSOR_MASK ? begin : 0;
        if (view->buffer == NULL || tensor == TENSOR_O || tensor == TENSOR_LSE)
            continue;
        for (int64_t b = 0; b < view->size[0]; b++)
            for (int64_t h = 0; h < view->size[1]; h++)
                for (int64_t i = 0; i < view->size[2]; i++)
                    for (int64_t c = 0; c < view->size[3]; c++)
                        copy_element(view, &whole->view[tensor], b, h, i, c, i + row, c + column);
    }
    const reference_call call = data_reference(whole);
    for (int64_t b = 0; b < spec.batch && part->view[TENSOR_KV_LENS].buffer != NULL; b++)
        view_store_int(&part->view[TENSOR_KV_LENS], b, 0, 0, 0,
                       (int32_t)(reference_sequence_of(&call, b).kv_len - begin));
}

static void remove_sinks(const call_data *data)
{
    for (int64_t b = 0; b < data->spec.batch && data->view[TENSOR_SINKS].buffer != NULL; b++)
        for (int64_t h = 0; h < data->spec.heads_q; h++)
            view_store(&data->view[TENSOR_SINKS], b, h, 0, 0, -INFINITY);
}

static void merge_row(const call_data *whole, const call_data *a, const call_data *z, int64_t b, int64_t h,
                      int64_t i, double tolerance_o, double tolerance_lse)
{
    const double lse_a = (double)lse_of(a, b, h, i), lse_z = (double)lse_of(z, b, h, i);
    const double largest = fmax(lse_a, lse_z);
    const double weight_a = largest == -INFINITY ? 0 : exp(lse_a - largest);
    const double weight_z = largest == -INFINITY ? 0 : exp(lse_z - largest);
    const double sum = weight_a + weight_z, lse = largest == -INFINITY ? largest : largest + log(sum);
    if (!agree(lse, (double)lse_of(whole, b, h, i), tolerance_lse))
        fault(&whole->spec, "lse[%d, %d, %d] is %.9g, of parts merged %.9g", (int)b, (int)h, (int)i,
              (double)lse_of(whole, b, h, i), lse);
    for (int64_t c = 0; c < whole->spec.head_dim_v; c++) {
        const double parts = weight_a * (double)o_of(a, b, h, i, c) + weight_z * (double)o_of(z, b, h, i, c);
        const double merged = sum == 0 ? 0 : parts / sum;
        if (!agree(merged, (double)o_of(whole, b, h, i, c), tolerance_o))
            fault(&whole->spec, "o[%d, %d, %d, %d] is %.9g, of parts merged %.9g", (int)b, (int)h, (int)i,
                  (int)c, (double)o_of(whole, b, h, i, c), merged);
    }
}

static void parts_merge_by_lse(int32_t dtype, random_state *random)
{
    const uint32_t features = (EVERYTHING & ~CLATTN_FEATURE_KEY_TILES) | CLATTN_FEATURE_SINKS;
    const call_spec spec = draw_spec(dtype, features, random);
    const int64_t cut = random_between(random, 1, spec.kv_len - 1);
    call_data whole, first, second;
    data_create(&whole, &spec);
    make_part(&first, &whole, 0, cut);
    make_part(&second, &whole, cut, spec.kv_len - cut);
    remove_sinks(random_chance(random, 50) ? &first : &second);
    const verdict found[] = {run_and_verify(&whole), run_and_verify(&first), run_and_verify(&second)};
    const double tolerance_o = found[0].tolerance_o + found[1].tolerance_o + found[2].tolerance_o;
    const double tolerance_lse = found[0].tolerance_lse + found[1].tolerance_lse + found[2].tolerance_lse;
    for (int64_t b = 0; b < spec.batch; b++)
        for (int64_t h = 0; h < spec.heads_q; h++)
            for (int64_t i = 0; i < rows_of(&whole, b); i++)
                merge_row(&whole, &first, &second, b, h, i, tolerance_o, tolerance_lse);
    data_destroy(&whole);
    data_destroy(&first);
    data_destroy(&second);
}

/* A number added to all scores of a row moves its lse, and nothing else. */
static void shift_by_bias(int32_t dtype, random_state *random)
{
    call_spec spec = draw_spec(dtype, EVERYTHING, random);
    call_data first, second;
    set_feature(&spec, CLATTN_FEATURE_BIAS, random);
    data_create(&first, &spec);
    data_create(&second, &spec);
    const tensor_view *bias = &second.view[TENSOR_BIAS];
    for (int64_t b = 0; b < spec.batch; b++)
        for (int64_t h = 0; h < spec.heads_q; h++)
            for (int64_t i = 0; i < spec.q_len; i++)
                for (int64_t j = 0; j < spec.kv_len; j++)
                    view_store(bias, b, h, i, j, view_load(bias, b, h, i, j) + (float)(i % 17 - 8));
    const verdict found[] = {run_and_verify(&first), run_and_verify(&second)};
    for (int64_t b = 0; b < spec.batch; b++)
        for (int64_t h = 0; h < spec.heads_q; h++)
            for (int64_t i = 0; i < rows_of(&first, b); i++)
                compare_row(&first, &second, b, h, i, found[0].tolerance_o + found[1].tolerance_o,
                            found[0].tolerance_lse + found[1].tolerance_lse, (double)(i % 17 - 8));
    data_destroy(&first);
    data_destroy(&second);
}

static void shift_by_score_mod(int32_t dtype, random_state *random)
{
    call_spec spec = draw_spec(dtype, EVERYTHING, random), shifted;
    call_data first, second;
    spec.score_mod = SCORE_MOD_SHIFT;
    shifted = spec;
    shifted.user_values[3] = (float)random_between(random, -50, 50) / 2;
    data_create(&first, &spec);
    data_create(&second, &shifted);
    const verdict found[] = {run_and_verify(&first), run_and_verify(&second)};
    compare_calls(&first, &second, found[0].tolerance_o + found[1].tolerance_o,
                  found[0].tolerance_lse + found[1].tolerance_lse, (double)shifted.user_values[3]);
    data_destroy(&first);
    data_destroy(&second);
}

/* ---- What must not be seen ---- */

/* Other rows of the tile get other queries, or are forbidden some keys; other entries get other numbers. */
static void change_others(const call_data *data, int64_t entry, random_state *random)
{
    const call_spec *spec = &data->spec;
    const tensor_view *mask = &data->view[TENSOR_MASK];
    for (int64_t b = 0; b < spec->batch; b++) {
        for (int64_t h = 0; h < spec->heads_q; h++)
            for (int64_t i = 0; i < spec->q_len; i++) {
                if (b == entry && i % 3 == 0)
                    continue;
                multiply_row(&data->view[TENSOR_Q], b, h, i, (float)random_between(random, -3, 3));
                for (int64_t j = 0; j < spec->kv_len && mask->buffer != NULL; j++)
                    if (random_chance(random, 30))
                        view_store_int(mask, b, h, i, j, 0);
            }
        for (int64_t h = 0; b != entry && h < spec->heads_kv; h++)
            for (int64_t j = 0; j < spec->kv_len; j++) {
                multiply_row(&data->view[TENSOR_K], b, h, j, -2);
                multiply_row(&data->view[TENSOR_V], b, h, j, 3);
            }
    }
}

/* The same bits on the CPU path. On the portable one all rows of a tile decide together when to rescale. */
static void rows_are_independent(int32_t dtype, random_state *random)
{
    const call_spec spec = draw_spec(dtype, EVERYTHING | CLATTN_FEATURE_SINKS, random);
    call_data first, second;
    const int64_t entry = random_between(random, 0, spec.batch - 1);
    const int exact = options.path == CLATTN_PATH_CPU;
    data_create(&first, &spec);
    data_create(&second, &spec);
    change_others(&second, entry, random);
    const verdict found = run_and_verify(&first);
    run(&second);
    for (int64_t h = 0; h < spec.heads_q; h++)
        for (int64_t i = 0; i < rows_of(&first, entry); i += 3)
            compare_row(&first, &second, entry, h, i, exact ? -1 : 2 * found.tolerance_o,
                        exact ? -1 : 2 * found.tolerance_lse, 0);
    data_destroy(&first);
    data_destroy(&second);
}

typedef struct forbidding {
    uint32_t features;
    mask_mod mask;
} forbidding;

/* Each kind of mask alone, then several at once. */
static const forbidding forbiddings[] = {{CLATTN_FEATURE_CAUSAL, MASK_MOD_NONE},
                                         {CLATTN_FEATURE_WINDOW, MASK_MOD_NONE},
                                         {CLATTN_FEATURE_Q_LENS, MASK_MOD_NONE},
                                         {CLATTN_FEATURE_KV_LENS, MASK_MOD_NONE},
                                         {CLATTN_FEATURE_MASK, MASK_MOD_NONE},
                                         {CLATTN_FEATURE_BIAS, MASK_MOD_NONE},
                                         {CLATTN_FEATURE_KEY_TILES, MASK_MOD_NONE},
                                         {0, MASK_MOD_STRIPES},
                                         {0, MASK_MOD_DIAGONAL},
                                         {CLATTN_FEATURE_KEY_TILES | LENGTHS, MASK_MOD_STRIPES},
                                         {EVERYTHING, MASK_MOD_NONE}};

enum { FORBIDDINGS = sizeof forbiddings / sizeof *forbiddings };

static call_spec draw_forbidding(int32_t dtype, const forbidding *by, random_state *random)
{
    call_spec spec = draw_spec(dtype, CLATTN_FEATURE_SINKS | CLATTN_FEATURE_ALIBI, random);
    const int axes[] = {BIAS_BATCH | BIAS_HEAD | BIAS_ROW | BIAS_KEY, BIAS_BATCH | BIAS_KEY,
                        BIAS_ROW | BIAS_KEY | BIAS_TRANSPOSED, BIAS_HEAD | BIAS_ROW | BIAS_KEY | BIAS_GAPS};
    for (uint32_t bit = 1; bit != 0 && bit <= by->features; bit <<= 1)
        if (by->features & bit)
            set_feature(&spec, bit, random);
    spec.layout_in = (tensor_layout)random_between(random, 0, LAYOUTS - 1);
    spec.mask_axes = axes[random_between(random, 0, 3)];
    spec.bias_axes = axes[random_between(random, 0, 3)];
    spec.mask_mod = by->mask;
    if (by->mask != MASK_MOD_NONE) {
        spec.user_values[0] = (float)random_between(random, 1, spec.kv_len);
        spec.user_values[1] = (float)random_between(random, 0, spec.kv_len - 1);
    }
    return spec;
}

/* What lies beyond lengths, between rows and at keys that no row may see changes no bit. */
static void unread_values_change_nothing(int32_t dtype, random_state *random)
{
    for (int n = 0; n < FORBIDDINGS; n++) {
        call_spec spec = draw_forbidding(dtype, &forbiddings[n], random);
        call_data zeros;
        spec.unread = UNREAD_ZERO;
        data_create(&zeros, &spec);
        run_and_verify(&zeros);
        for (int values = 0; values < UNREAD_VALUES; values++) {
            call_data other;
            if (values == UNREAD_ZERO)
                continue;
            spec.unread = (unread_values)values;
            data_create(&other, &spec);
            run(&other);
            if (!same_bits(&zeros.buffer[TENSOR_O], &other.buffer[TENSOR_O]))
                fault(&spec, "o differs from that with zeros where nobody may look");
            if (!same_bits(&zeros.buffer[TENSOR_LSE], &other.buffer[TENSOR_LSE]))
                fault(&spec, "lse differs from that with zeros where nobody may look");
            data_destroy(&other);
        }
        data_destroy(&zeros);
    }
}

/* A value in K at one key: if it is NaN, the rows that may see it become NaN; to the others it is as if it
 * were not there, to the bit where rows do not decide together when to rescale. */
static void break_key(call_spec *spec, int64_t key, float value, random_state *random)
{
    const int exact = options.path == CLATTN_PATH_CPU;
    call_data clean, broken;
    if (spec->layout_in == LAYOUT_BROADCAST) /* there one key is several */
        spec->layout_in = LAYOUT_BSHD;
    data_create(&clean, spec);
    data_create(&broken, spec);
    const tensor_view *k = &broken.view[TENSOR_K];
    for (int64_t b = 0; b < spec->batch; b++)
        for (int64_t h = 0; h < spec->heads_kv; h++)
            view_store(k, b, h, key, random_between(random, 0, spec->head_dim_qk - 1), value);
    const verdict found = run_and_verify(&clean);
    run(&broken);
    const reference_call call = data_reference(&clean);
    for (int64_t b = 0; b < spec->batch; b++)
        for (int64_t h = 0; h < spec->heads_q; h++)
            for (int64_t i = 0; i < rows_of(&clean, b); i++)
                if (!reference_is_allowed(&call, b, h, i, key))
                    compare_row(&clean, &broken, b, h, i, exact ? -1 : 2 * found.tolerance_o,
                                exact ? -1 : 2 * found.tolerance_lse, 0);
                else if (isnan(value) && !isnan(lse_of(&broken, b, h, i)))
                    fault(spec, "lse[%d, %d, %d] is no NaN, though the row sees key %d", (int)b, (int)h,
                          (int)i, (int)key);
    data_destroy(&clean);
    data_destroy(&broken);
}

static void broken_keys_stay_where_they_are(int32_t dtype, random_state *random)
{
    const float values[] = {NAN, INFINITY, -INFINITY};
    for (int n = 0; n < FORBIDDINGS; n++) {
        call_spec spec = draw_forbidding(dtype, &forbiddings[n], random);
        break_key(&spec, random_between(random, 0, spec.kv_len - 1), values[random_between(random, 0, 2)],
                  random);
    }
}

/* Likewise beside borders of listed tiles, where kernels compute more scores than the rows may see. */
static void broken_keys_beside_listed_tiles(int32_t dtype, random_state *random)
{
    for (int n = 0; n < 6; n++) {
        call_spec spec = draw_spec(dtype, 0, random);
        set_feature(&spec, CLATTN_FEATURE_KEY_TILES, random);
        spec.batch = 1;
        spec.q_len = spec.tile_rows = 140;
        spec.kv_len = 200;
        spec.tile_keys = 2 * (int32_t)random_between(random, 8, 24) + 1;
        spec.tiles_percent = 50;
        const int64_t border = spec.tile_keys * random_between(random, 1, spec.kv_len / spec.tile_keys - 1);
        break_key(&spec, border + random_between(random, -3, 2), n % 2 == 0 ? INFINITY : 1e30f, random);
    }
}

/* ---- Rows whose result is known ---- */

/* Whether o is this row of V in the type of o: exactly on the CPU path; on the portable one the row's weight
 * need not be 1, which costs a rounding or two. */
static void expect_row_of_v(const call_data *data, int64_t b, int64_t h, int64_t i, int64_t key)
{
    const call_spec *spec = &data->spec;
    const int64_t head_kv = h / (spec->heads_q / spec->heads_kv);
    const double unit = spec->dtype_o == CLATTN_DTYPE_F32   ? 0x1p-21
                        : spec->dtype_o == CLATTN_DTYPE_F16 ? 0x1p-10
                                                            : 0x1p-7;
    for (int64_t c = 0; c < spec->head_dim_v; c++) {
        const float v = view_load(&data->view[TENSOR_V], b, head_kv, key, c);
        const float expected = dtype_round(v, spec->dtype_o), found = o_of(data, b, h, i, c);
        const double tolerance = options.path == CLATTN_PATH_CPU ? 0 : unit * fabs((double)v);
        if (!agree((double)expected, (double)found, tolerance))
            fault(spec, "o[%d, %d, %d, %d] is %.9g; its only key %d has %.9g", (int)b, (int)h, (int)i, (int)c,
                  (double)found, (int)key, (double)expected);
    }
}

/* All rows with one key or none. Returns how many there were. */
static int64_t check_known_rows(const call_data *data)
{
    const call_spec *spec = &data->spec;
    const reference_call call = data_reference(data);
    int64_t known = 0, key = 0;
    for (int64_t b = 0; b < spec->batch; b++)
        for (int64_t h = 0; h < spec->heads_q; h++)
            for (int64_t i = 0; i < rows_of(data, b); i++) {
                const int64_t keys = allowed_keys(&call, b, h, i, &key);
                const double sink = reference_sink(&call, b, h), lse = (double)lse_of(data, b, h, i);
                known += keys <= 1;
                if (keys == 1 && sink == -INFINITY)
                    expect_row_of_v(data, b, h, i, key);
                if (keys != 0)
                    continue;
                if (!agree(lse, sink, 4 * 0x1p-24 * fabs(sink)))
                    fault(spec, "lse[%d, %d, %d] is %.9g, not the sink %.9g", (int)b, (int)h, (int)i, lse,
                          sink);
                for (int64_t c = 0; c < spec->head_dim_v; c++)
                    if (o_of(data, b, h, i, c) != 0)
                        fault(spec, "o[%d, %d, %d, %d] is not 0, though the row sees nothing", (int)b, (int)h,
                              (int)i, (int)c);
            }
    return known;
}

/* One random key for each row of the mask; lists of one tile of one key; and so on. */
static void leave_one_key(const call_data *data, random_state *random)
{
    const tensor_view *mask = &data->view[TENSOR_MASK], *count = &data->view[TENSOR_TILES_COUNT];
    for (int64_t b = 0; b < data->spec.batch; b++)
        for (int64_t h = 0; h < data->spec.heads_q; h++) {
            for (int64_t i = 0; mask->buffer != NULL && i < data->spec.q_len; i++) {
                const int64_t key = random_between(random, 0, data->spec.kv_len - 1);
                for (int64_t j = 0; j < data->spec.kv_len; j++)
                    view_store_int(mask, b, h, i, j, j == key);
            }
            for (int64_t t = 0; count->buffer != NULL && t < count->size[2]; t++)
                if (view_load_int(count, b, h, t, 0) > 1)
                    view_store_int(count, b, h, t, 0, 1);
        }
}

static void rows_with_one_key(int32_t dtype, random_state *random)
{
    static const forbidding kinds[] = {{CLATTN_FEATURE_MASK, MASK_MOD_NONE},
                                       {CLATTN_FEATURE_WINDOW, MASK_MOD_NONE},
                                       {CLATTN_FEATURE_KEY_TILES, MASK_MOD_NONE},
                                       {0, MASK_MOD_DIAGONAL}};
    for (size_t n = 0; n < sizeof kinds / sizeof *kinds; n++) {
        call_spec spec = draw_spec(dtype, CLATTN_FEATURE_ALIBI | CLATTN_FEATURE_SOFTCAP | LENGTHS, random);
        call_data data;
        set_feature(&spec, kinds[n].features, random);
        spec.window_left = spec.window_right = 0;
        spec.tile_rows = spec.tile_keys = 1;
        spec.mask_percent = 100;
        spec.mask_mod = kinds[n].mask;
        if (spec.mask_mod != MASK_MOD_NONE) {
            spec.user_values[0] = (float)spec.kv_len;
            spec.user_values[1] = (float)random_between(random, 0, spec.kv_len);
        }
        data_create(&data, &spec);
        leave_one_key(&data, random);
        run_and_verify(&data);
        check_known_rows(&data);
        data_destroy(&data);
    }
}

/* Rows that no key is left to, for each reason: o is 0, lse -inf or the sink. */
static void rows_without_keys(int32_t dtype, random_state *random)
{
    for (int sinks = 0; sinks < 2; sinks++)
        for (int n = 0; n < FORBIDDINGS; n++) {
            call_spec spec = draw_forbidding(dtype, &forbiddings[n], random);
            call_data data;
            spec.features &= ~CLATTN_FEATURE_SINKS;
            spec.features |= sinks ? CLATTN_FEATURE_SINKS : 0;
            spec.q_offset = random_chance(random, 50) ? -spec.q_len / 2 : spec.kv_len - spec.q_len / 2;
            spec.mask_percent = 5;
            spec.tiles_percent = 20;
            data_create(&data, &spec);
            for (int64_t j = 0; spec_has(&spec, CLATTN_FEATURE_BIAS) && j < spec.kv_len; j++)
                view_store(&data.view[TENSOR_BIAS], 0, 0, spec.q_len / 2, j, -INFINITY);
            run_and_verify(&data);
            check_known_rows(&data);
            data_destroy(&data);
        }
}

/* A bias row of the type's lowest number: below -1e30 all weights are the same. (f16 has no such number:
 * there the scores' differences remain.) */
static void lowest_bias_is_uniform(int32_t dtype, random_state *random)
{
    call_spec spec = draw_spec(dtype, CLATTN_FEATURE_MASK | BOUNDS | LENGTHS, random);
    call_data data;
    set_feature(&spec, CLATTN_FEATURE_BIAS, random);
    spec.bias_values = BIAS_LOWEST;
    data_create(&data, &spec);
    const verdict found = run_and_verify(&data);
    const reference_call call = data_reference(&data);
    for (int64_t b = 0; b < spec.batch; b++)
        for (int64_t h = 0; h < spec.heads_q; h++)
            for (int64_t i = 1; i < rows_of(&data, b); i += 3)
                for (int64_t c = 0; c < spec.head_dim_v; c++) {
                    double sum = 0;
                    int64_t keys = 0;
                    for (int64_t j = 0; j < spec.kv_len; j++)
                        if (reference_is_allowed(&call, b, h, i, j)) {
                            sum += (double)view_load(&data.view[TENSOR_V], b,
                                                     h / (spec.heads_q / spec.heads_kv), j, c);
                            keys++;
                        }
                    const double mean = keys > 0 ? sum / (double)keys : 0;
                    if (!agree(mean, (double)o_of(&data, b, h, i, c), 2 * found.tolerance_o))
                        fault(&spec, "o[%d, %d, %d, %d] is %.9g; the mean of its keys is %.9g", (int)b,
                              (int)h, (int)i, (int)c, (double)o_of(&data, b, h, i, c), mean);
                }
    data_destroy(&data);
}

/* Scores at +-3e4 and beyond, from numbers that f16 holds. */
static void huge_scores(int32_t dtype, random_state *random)
{
    const call_spec spec = draw_spec(dtype, EVERYTHING, random);
    call_data data;
    data_create(&data, &spec);
    for (int64_t b = 0; b < spec.batch; b++) {
        for (int64_t h = 0; h < spec.heads_kv; h++)
            for (int64_t j = 0; j < spec.kv_len; j++)
                if (!isnan(view_load(&data.view[TENSOR_K], b, h, j, 0)))
                    view_store(&data.view[TENSOR_K], b, h, j, 0, (float)random_between(random, -1, 1) * 3e4f);
        for (int64_t h = 0; h < spec.heads_q; h++)
            for (int64_t i = 0; i < spec.q_len; i++)
                if (!isnan(view_load(&data.view[TENSOR_Q], b, h, i, 0)))
                    view_store(&data.view[TENSOR_Q], b, h, i, 0, (float)random_between(random, -8, 8));
    }
    run_and_verify(&data);
    data_destroy(&data);
}

/* Numbers below the type's normal range in q, k or v, or in all of them. */
static void subnormal_inputs(int32_t dtype, random_state *random)
{
    const float step = dtype == CLATTN_DTYPE_F16 ? 0x1p-24f : 0x1p-126f;
    const int tensors[] = {TENSOR_Q, TENSOR_K, TENSOR_V};
    for (int which = 0; which < 4; which++) {
        const call_spec spec = draw_spec(dtype, EVERYTHING | CLATTN_FEATURE_SINKS, random);
        call_data data;
        data_create(&data, &spec);
        for (int n = 0; n < 3; n++)
            if (which == n || which == 3)
                multiply_all(&data, tensors[n], 20 * step);
        run_and_verify(&data);
        data_destroy(&data);
    }
}

/* ---- The list ---- */

typedef struct property {
    const char *name;
    void (*check)(int32_t dtype, random_state *random);
    int mods; /* texts take part: one type only, to save programs */
} property;

static const property properties[] = {
    {"keys_in_any_order", keys_in_any_order, 0},
    {"parts_merge_by_lse", parts_merge_by_lse, 0},
    {"shift_by_bias", shift_by_bias, 0},
    {"shift_by_score_mod", shift_by_score_mod, 1},
    {"rows_are_independent", rows_are_independent, 0},
    {"unread_values_change_nothing", unread_values_change_nothing, 1},
    {"broken_keys_stay_where_they_are", broken_keys_stay_where_they_are, 1},
    {"broken_keys_beside_listed_tiles", broken_keys_beside_listed_tiles, 0},
    {"rows_with_one_key", rows_with_one_key, 1},
    {"rows_without_keys", rows_without_keys, 1},
    {"lowest_bias_is_uniform", lowest_bias_is_uniform, 0},
    {"huge_scores", huge_scores, 0},
    {"subnormal_inputs", subnormal_inputs, 0},
};

enum { PROPERTIES = sizeof properties / sizeof *properties };

static void run_property(const property *subject, int32_t dtype)
{
    for (int n = 0; n < options.num_seeds; n++)
        for (int round = 1; round <= options.cases; round++) {
            random_state random = random_for(options.seeds[n], subject->name, (uint64_t)round);
            if (options.only_case != 0 && options.only_case != round)
                continue;
            name_round(subject->name, options.seeds[n], round);
            subject->check(dtype, &random);
        }
}

static void test_property(void **state)
{
    const property *subject = *state;
    if (options.types & TYPES_F32)
        run_property(subject, CLATTN_DTYPE_F32);
    if ((options.types & TYPES_F16) != 0 && (!subject->mods || options.all))
        run_property(subject, CLATTN_DTYPE_F16);
    if ((options.types & TYPES_BF16) != 0 && (!subject->mods || options.all))
        run_property(subject, CLATTN_DTYPE_BF16);
}

/* Their programs are many: f32, and with --all the 16-bit types. */
static void test_serving_property(void **state)
{
    const serving_property *subject = *state;
    const int32_t dtypes[] = {CLATTN_DTYPE_F32, CLATTN_DTYPE_F16, CLATTN_DTYPE_BF16};
    for (int type = 0; type < (options.all ? 3 : 1); type++)
        for (int n = 0; n < options.num_seeds; n++)
            for (int round = 1; round <= options.cases; round++) {
                random_state random = random_for(options.seeds[n], subject->name, (uint64_t)round);
                property_fault fault = {""};
                if (options.only_case != 0 && options.only_case != round)
                    continue;
                name_round(subject->name, options.seeds[n], round);
                subject->check(&device, options.path, dtypes[type], &random, &fault);
                if (fault.text[0] != '\0')
                    fail_msg("%s: %s", current, fault.text);
            }
}

int main(int argc, char **argv)
{
    struct CMUnitTest tests[PROPERTIES + SERVING_PROPERTIES];
    if (options_read(&options, argc, argv) != 0)
        return 1;
    if (options.cases == 0)
        options.cases = 4;
    const int opened = device_open(&device);
    if (opened != 0)
        return opened;
    if (!device_has_path(&device, options.path)) {
        print_message("the device does not have the path\n");
        device_close(&device);
        return EXIT_SKIPPED;
    }
    for (size_t i = 0; i < PROPERTIES; i++) {
        const struct CMUnitTest test = {properties[i].name, test_property, NULL, NULL,
                                        (void *)&properties[i]};
        tests[i] = test;
    }
    for (size_t i = 0; i < SERVING_PROPERTIES; i++) {
        const struct CMUnitTest test = {serving_properties[i].name, test_serving_property, NULL, NULL,
                                        (void *)&serving_properties[i]};
        tests[PROPERTIES + i] = test;
    }
    const int failed =
        _cmocka_run_group_tests("invariants", tests, PROPERTIES + SERVING_PROPERTIES, NULL, NULL);
    device_close(&device);
    return failed;
}
