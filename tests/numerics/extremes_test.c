/* extremes_test.c: what the header promises at the edges: poison, infinities, huge and tiny
 * numbers, rows that see nothing, lengths of zero, and that rows keep out of each other's way.
 * Small calls whose inputs are set by hand, for each storage type. */
#include "numerics_device.h"
#include "numerics_options.h"
#include "numerics_verify.h"

#include <float.h>
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

static numerics_options options;
static numerics_device device;

/* ---- Tools ---- */

static int32_t dtype_of(void **state) { return *(const int32_t *)*state; }

static call_spec plain(void **state)
{
    call_spec spec = spec_plain(options.path);
    spec_set_dtype(&spec, dtype_of(state));
    spec.seed = options.seeds[options.num_seeds - 1];
    return spec;
}

static void set_feature(call_spec *spec, uint32_t feature) { spec->features |= feature; }

static void set_causal(call_spec *spec, int32_t position_mode, int64_t offset)
{
    set_feature(spec, CLATTN_FEATURE_CAUSAL);
    spec->position_mode = position_mode;
    spec->q_offset = offset;
}

static void set_row(const call_data *data, int tensor, int64_t head, int64_t row, float value)
{
    const tensor_view *view = &data->view[tensor];
    for (int64_t c = 0; c < view->size[3]; c++)
        view_store(view, 0, head, row, c, value);
}

static void scale_row(const call_data *data, int tensor, int64_t head, int64_t row, float factor)
{
    const tensor_view *view = &data->view[tensor];
    for (int64_t c = 0; c < view->size[3]; c++)
        view_store(view, 0, head, row, c, factor * view_load(view, 0, head, row, c));
}

static void scale_all(const call_data *data, int tensor, float factor)
{
    for (int64_t h = 0; h < data->view[tensor].size[1]; h++)
        for (int64_t i = 0; i < data->view[tensor].size[2]; i++)
            scale_row(data, tensor, h, i, factor);
}

static void run(call_data *data) { assert_int_equal(device_run(&device, data), CLATTN_SUCCESS); }

static void run_and_verify(call_data *data)
{
    char text[512];
    verdict found;
    run(data);
    verify_call(&found, data);
    spec_describe(&data->spec, text, sizeof text);
    if (found.fault[0] != '\0')
        fail_msg("%s\n    %s", found.fault, text);
}

static float lse_of(const call_data *data, int64_t head, int64_t row)
{
    return view_load(&data->view[TENSOR_LSE], 0, head, row, 0);
}

static int same_float(float a, float b) { return memcmp(&a, &b, sizeof a) == 0; }

/* Whether row `row` of head 0 has the same bits in both. */
static int same_row(const call_data *a, const call_data *b, int64_t row)
{
    int same = same_float(lse_of(a, 0, row), lse_of(b, 0, row));
    for (int64_t c = 0; c < a->spec.head_dim_v; c++)
        same &= same_float(view_load(&a->view[TENSOR_O], 0, 0, row, c),
                           view_load(&b->view[TENSOR_O], 0, 0, row, c));
    return same;
}

/* Whether a row keeps its bits when scores of other rows change. Only where each row decides for
 * itself when to rescale: on the portable path all rows of a tile do so together, and a row may
 * then differ within the tolerance. */
static int rows_keep_their_bits(void) { return options.path == CLATTN_PATH_CPU; }

/* ---- Poison ---- */

/* NaN in K at a key that a row may not see never reaches that row; those that see it become NaN. */
static void test_nan_key_under_causal_bound(void **state)
{
    call_spec spec = plain(state);
    call_data clean, poisoned;
    const int64_t key = 50;
    spec.layout_in = LAYOUT_RAGGED;
    set_causal(&spec, CLATTN_POSITION_TOP_LEFT, 0);
    data_create(&clean, &spec);
    data_create(&poisoned, &spec);
    set_row(&poisoned, TENSOR_K, 0, key, NAN);
    run_and_verify(&clean);
    run(&poisoned);
    for (int64_t i = 0; i < spec.q_len; i++) {
        if (i < key)
            assert_true(same_row(&clean, &poisoned, i));
        else
            assert_true(isnan(lse_of(&poisoned, 0, i)));
    }
    data_destroy(&clean);
    data_destroy(&poisoned);
}

static void test_nan_key_under_window(void **state)
{
    call_spec spec = plain(state);
    call_data clean, poisoned;
    set_feature(&spec, CLATTN_FEATURE_WINDOW);
    spec.window_left = 5;
    spec.window_right = 3;
    data_create(&clean, &spec);
    data_create(&poisoned, &spec);
    const int64_t key = 60, offset = spec.kv_len - spec.q_len;
    set_row(&poisoned, TENSOR_K, 0, key, NAN);
    run_and_verify(&clean);
    run(&poisoned);
    for (int64_t i = 0; i < spec.q_len; i++) {
        const int sees = i + offset - 5 <= key && key <= i + offset + 3;
        if (sees)
            assert_true(isnan(lse_of(&poisoned, 0, i)));
        else
            assert_true(same_row(&clean, &poisoned, i));
    }
    data_destroy(&clean);
    data_destroy(&poisoned);
}

/* A -inf in the bias forbids the key, whatever its product is. */
static void test_nan_key_under_infinite_bias(void **state)
{
    call_spec spec = plain(state);
    call_data data;
    set_feature(&spec, CLATTN_FEATURE_BIAS);
    data_create(&data, &spec);
    set_row(&data, TENSOR_K, 0, 10, NAN);
    view_store(&data.view[TENSOR_BIAS], 0, 0, 3, 10, -INFINITY);
    run_and_verify(&data);
    assert_false(isnan(lse_of(&data, 0, 3)));
    assert_true(isnan(lse_of(&data, 0, 4)));
    data_destroy(&data);
}

/* One row's scores become NaN, +inf and so on; the others do not notice. */
static void test_broken_query_rows(void **state)
{
    const call_spec spec = plain(state);
    call_data clean, broken;
    data_create(&clean, &spec);
    data_create(&broken, &spec);
    view_store(&broken.view[TENSOR_Q], 0, 0, 7, 3, NAN);
    for (int64_t c = 0; c < spec.head_dim_qk; c++)
        view_store(&broken.view[TENSOR_Q], 0, 0, 33, c, c == 0 ? INFINITY : 0);
    run_and_verify(&clean);
    run_and_verify(&broken);
    assert_true(isnan(lse_of(&broken, 0, 7)));
    assert_true(isnan(lse_of(&broken, 0, 33)));
    for (int64_t i = 0; i < spec.q_len; i++)
        if (i != 7 && i != 33 && rows_keep_their_bits())
            assert_true(same_row(&clean, &broken, i));
    data_destroy(&clean);
    data_destroy(&broken);
}

/* +inf as bias, early and late in the sequence. */
static void test_infinite_bias(void **state)
{
    call_spec spec = plain(state);
    call_data data;
    set_feature(&spec, CLATTN_FEATURE_BIAS);
    data_create(&data, &spec);
    view_store(&data.view[TENSOR_BIAS], 0, 0, 2, 0, INFINITY);
    view_store(&data.view[TENSOR_BIAS], 0, 0, 40, spec.kv_len - 1, INFINITY);
    view_store(&data.view[TENSOR_BIAS], 0, 1, 64, 48, NAN);
    run_and_verify(&data);
    assert_true(isnan(lse_of(&data, 0, 2)));
    assert_true(isnan(lse_of(&data, 0, 40)));
    assert_true(isnan(lse_of(&data, 1, 64)));
    data_destroy(&data);
}

/* A row's result does not hang on what the other rows of its tile hold. */
static void test_rows_are_independent(void **state)
{
    call_spec spec = plain(state);
    call_data first, second;
    set_causal(&spec, CLATTN_POSITION_BOTTOM_RIGHT, 0);
    data_create(&first, &spec);
    data_create(&second, &spec);
    for (int64_t i = 0; i < spec.q_len; i += 2)
        scale_row(&second, TENSOR_Q, 0, i, -3);
    run_and_verify(&first);
    run_and_verify(&second);
    for (int64_t i = 1; i < spec.q_len; i += 2)
        assert_true(!rows_keep_their_bits() || same_row(&first, &second, i));
    data_destroy(&first);
    data_destroy(&second);
}

/* ---- Large, small and changing scores ---- */

static void test_large_keys(void **state)
{
    const call_spec spec = plain(state);
    call_data data;
    data_create(&data, &spec);
    scale_all(&data, TENSOR_K, 200);
    run_and_verify(&data);
    data_destroy(&data);
}

/* q.k at +-3e4 and more, from numbers that f16 holds. */
static void test_huge_scores(void **state)
{
    call_spec spec = plain(state);
    call_data data;
    data_create(&data, &spec);
    for (int64_t j = 0; j < spec.kv_len; j++)
        view_store(&data.view[TENSOR_K], 0, 0, j, 0, j % 3 == 0 ? 3e4f : -3e4f);
    for (int64_t i = 0; i < spec.q_len; i++)
        view_store(&data.view[TENSOR_Q], 0, 0, i, 0, i % 2 == 0 ? 8 : -8);
    run_and_verify(&data);
    data_destroy(&data);
}

/* The maximum jumps at every step of the key loop, upwards, downwards, and once near the end: a
 * softmax that puts off its rescaling must not miss it. */
static void jump(call_data *data, float (*factor)(int64_t key, int64_t kv_len))
{
    const tensor_view *q = &data->view[TENSOR_Q], *k = &data->view[TENSOR_K];
    for (int64_t i = 0; i < data->spec.q_len; i++)
        view_store(q, 0, 0, i, 1, 8);
    for (int64_t j = 0; j < data->spec.kv_len; j++)
        view_store(k, 0, 0, j, 1, factor(j, data->spec.kv_len));
}

static float rising(int64_t key, int64_t kv_len) { return (float)(key * 100) / (float)kv_len; }
static float falling(int64_t key, int64_t kv_len) { return (float)(-key * 100) / (float)kv_len; }
static float late_jump(int64_t key, int64_t kv_len) { return key == kv_len - 2 ? 120 : 0; }
static float low_start(int64_t key, int64_t kv_len)
{
    (void)kv_len;
    return key < 70 ? -2e4f : 0;
}

static void test_jumping_scores(void **state)
{
    float (*const factors[])(int64_t, int64_t) = {rising, falling, late_jump, low_start};
    call_spec spec = plain(state);
    spec.kv_len = 301;
    for (size_t i = 0; i < sizeof factors / sizeof *factors; i++) {
        call_data data;
        data_create(&data, &spec);
        jump(&data, factors[i]);
        run_and_verify(&data);
        data_destroy(&data);
    }
}

/* Two keys, of which one counts: o is a plain function of their distance, so that an error of the
 * exponential shows undiluted. */
static void test_two_keys(void **state)
{
    call_spec spec = plain(state);
    call_data data;
    spec.q_len = 500;
    spec.kv_len = 2;
    spec.scale = 1;
    data_create(&data, &spec);
    for (int64_t key = 0; key < 2; key++) {
        set_row(&data, TENSOR_V, 0, key, (float)key);
        set_row(&data, TENSOR_K, 0, key, 0);
        view_store(&data.view[TENSOR_K], 0, 0, key, 0, -(float)key);
    }
    for (int64_t i = 0; i < spec.q_len; i++) {
        set_row(&data, TENSOR_Q, 0, i, 0);
        view_store(&data.view[TENSOR_Q], 0, 0, i, 0, (float)(i - 50) / 32);
    }
    run_and_verify(&data);
    data_destroy(&data);
}

/* Numbers below the normal range of the type count as what they are (f16), or at worst as 0. */
static void test_subnormal_numbers(void **state)
{
    const int32_t dtype = dtype_of(state);
    const float step = dtype == CLATTN_DTYPE_F16 ? 0x1p-24f : 0x1p-126f;
    const call_spec spec = plain(state);
    call_data data;
    data_create(&data, &spec);
    scale_all(&data, TENSOR_V, 40 * step);
    scale_all(&data, TENSOR_Q, 100 * step);
    if (dtype == CLATTN_DTYPE_F16)
        scale_all(&data, TENSOR_K, 2000); /* scores that matter */
    run_and_verify(&data);
    data_destroy(&data);
}

/* Finite scores below -1e30 act as -1e30: such a row is the mean of V. f16 cannot hold them. */
static void test_scores_below_the_floor(void **state)
{
    call_spec spec = plain(state);
    call_data data;
    if (dtype_of(state) == CLATTN_DTYPE_F16)
        return;
    spec.scale = 1;
    data_create(&data, &spec);
    for (int64_t j = 0; j < spec.kv_len; j++) {
        set_row(&data, TENSOR_K, 0, j, 0);
        view_store(&data.view[TENSOR_K], 0, 0, j, 0, j == 90 ? -1e14f : -1e16f * (float)(j + 1));
    }
    for (int64_t i = 0; i < spec.q_len; i++) {
        set_row(&data, TENSOR_Q, 0, i, 0);
        /* all below the floor; most above; far above 0, at up to 1e36; small */
        const float lead[] = {1e18f, 1e13f, -1e18f, 1e-16f};
        view_store(&data.view[TENSOR_Q], 0, 0, i, 0, lead[i % 4]);
    }
    run_and_verify(&data);
    data_destroy(&data);
}

/* ---- Rows without keys, lengths of zero ---- */

static void test_rows_that_see_nothing(void **state)
{
    const struct {
        int32_t mode;
        int64_t offset;
    } bounds[] = {{CLATTN_POSITION_BOTTOM_RIGHT, 0},
                  {CLATTN_POSITION_EXPLICIT, -30},
                  {CLATTN_POSITION_EXPLICIT, -1000},
                  {CLATTN_POSITION_EXPLICIT, INT64_MIN}};
    for (size_t i = 0; i < sizeof bounds / sizeof *bounds; i++) {
        call_spec spec = plain(state);
        call_data data;
        spec.q_len = 150;
        spec.kv_len = 40;
        spec.layout_o = spec.layout_lse = LAYOUT_RAGGED;
        set_causal(&spec, bounds[i].mode, bounds[i].offset);
        data_create(&data, &spec);
        run_and_verify(&data);
        assert_true(lse_of(&data, 0, 0) == -INFINITY);
        data_destroy(&data);
    }
}

static void test_window_beyond_the_keys(void **state)
{
    call_spec spec = plain(state);
    call_data data;
    set_feature(&spec, CLATTN_FEATURE_WINDOW);
    spec.position_mode = CLATTN_POSITION_EXPLICIT;
    spec.q_offset = 500;
    spec.window_left = 2;
    spec.window_right = 10;
    data_create(&data, &spec);
    run_and_verify(&data);
    assert_true(lse_of(&data, 0, 0) == -INFINITY);
    data_destroy(&data);
}

/* Rows whose keys are all forbidden by the bias; and rows that a framework filled with its lowest
 * number, which are uniform. */
static void test_rows_of_bias(void **state)
{
    const int32_t dtypes[] = {CLATTN_DTYPE_F32, CLATTN_DTYPE_F16, CLATTN_DTYPE_BF16};
    for (size_t n = 0; n < sizeof dtypes / sizeof *dtypes; n++) {
        call_spec spec = plain(state);
        call_data data;
        if (dtypes[n] != CLATTN_DTYPE_F32 && dtypes[n] != spec.dtype_q)
            continue; /* saves programs; the grid has the other pairs */
        set_feature(&spec, CLATTN_FEATURE_BIAS);
        spec.dtype_bias = dtypes[n];
        data_create(&data, &spec);
        for (int64_t j = 0; j < spec.kv_len; j++) {
            view_store(&data.view[TENSOR_BIAS], 0, 0, 5, j, -INFINITY);
            view_store(&data.view[TENSOR_BIAS], 0, 1, 6, j, lowest_of(spec.dtype_bias));
            view_store(&data.view[TENSOR_BIAS], 0, 0, 20, j, j < 80 ? -INFINITY : 1);
            view_store(&data.view[TENSOR_BIAS], 0, 0, 21, j, j < 80 ? lowest_of(spec.dtype_bias) : 1);
        }
        run_and_verify(&data);
        assert_true(lse_of(&data, 0, 5) == -INFINITY);
        data_destroy(&data);
    }
}

static void test_zero_lengths(void **state)
{
    const struct {
        int64_t batch, q_len, kv_len;
    } shapes[] = {{0, 5, 7}, {2, 0, 7}, {2, 5, 0}, {0, 0, 0}};
    for (size_t i = 0; i < sizeof shapes / sizeof *shapes; i++)
        for (int causal = 0; causal < 2; causal++) {
            call_spec spec = plain(state);
            call_data data;
            spec.batch = shapes[i].batch;
            spec.q_len = shapes[i].q_len;
            spec.kv_len = shapes[i].kv_len;
            if (causal)
                set_causal(&spec, CLATTN_POSITION_TOP_LEFT, 0);
            data_create(&data, &spec);
            run_and_verify(&data);
            if (spec.kv_len == 0) { /* k and v may then be absent */
                buffer_free(&data.buffer[TENSOR_K]);
                buffer_free(&data.buffer[TENSOR_V]);
                data.view[TENSOR_K].buffer = data.view[TENSOR_V].buffer = NULL;
                run(&data);
                for (int64_t row = 0; spec.batch > 0 && row < spec.q_len; row++)
                    assert_true(lse_of(&data, 0, row) == -INFINITY);
            }
            data_destroy(&data);
        }
}

/* ---- Repetition ---- */

static void test_same_bits_every_time(void **state)
{
    call_spec spec = plain(state);
    call_data first, again;
    spec.batch = 2;
    spec.q_len = 203;
    spec.kv_len = 301;
    data_create(&first, &spec);
    data_create(&again, &spec);
    run_and_verify(&first);
    for (int i = 0; i < 4; i++) {
        run(&again);
        assert_true(same_bits(&first.buffer[TENSOR_O], &again.buffer[TENSOR_O]));
        assert_true(same_bits(&first.buffer[TENSOR_LSE], &again.buffer[TENSOR_LSE]));
    }
    data_destroy(&first);
    data_destroy(&again);
}

/* ---- The list ---- */

typedef struct extreme {
    const char *name;
    CMUnitTestFunction run;
} extreme;

#define EXTREME(function)   \
    {                       \
#function, function \
    }

static const extreme extremes[] = {
    EXTREME(test_nan_key_under_causal_bound),
    EXTREME(test_nan_key_under_window),
    EXTREME(test_nan_key_under_infinite_bias),
    EXTREME(test_broken_query_rows),
    EXTREME(test_infinite_bias),
    EXTREME(test_rows_are_independent),
    EXTREME(test_large_keys),
    EXTREME(test_huge_scores),
    EXTREME(test_jumping_scores),
    EXTREME(test_two_keys),
    EXTREME(test_subnormal_numbers),
    EXTREME(test_scores_below_the_floor),
    EXTREME(test_rows_that_see_nothing),
    EXTREME(test_window_beyond_the_keys),
    EXTREME(test_rows_of_bias),
    EXTREME(test_zero_lengths),
    EXTREME(test_same_bits_every_time),
};

enum { EXTREMES = sizeof extremes / sizeof *extremes };

static int run_type(int32_t dtype, const char *name)
{
    struct CMUnitTest tests[EXTREMES];
    for (size_t i = 0; i < EXTREMES; i++) {
        const struct CMUnitTest test = {extremes[i].name, extremes[i].run, NULL, NULL, &dtype};
        tests[i] = test;
    }
    return _cmocka_run_group_tests(name, tests, EXTREMES, NULL, NULL);
}

int main(int argc, char **argv)
{
    if (options_read(&options, argc, argv) != 0)
        return 1;
    const int opened = device_open(&device);
    if (opened != 0)
        return opened;
    if (!device_has_path(&device, options.path)) {
        print_message("the device does not have the path\n");
        device_close(&device);
        return EXIT_SKIPPED;
    }
    int failed = 0;
    if (options.types & TYPES_F32)
        failed += run_type(CLATTN_DTYPE_F32, "f32");
    if (options.types & TYPES_F16)
        failed += run_type(CLATTN_DTYPE_F16, "f16");
    if (options.types & TYPES_BF16)
        failed += run_type(CLATTN_DTYPE_BF16, "bf16");
    device_close(&device);
    return failed;
}
