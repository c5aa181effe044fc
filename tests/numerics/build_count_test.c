/* build_count_test.c: how many programs are built. What changes from call to call, or from layer to
 * layer of a model, is no part of what is compiled. Runs under the fake-device layer, which counts.
 */
#include "fakedev.h"
#include "numerics_device.h"
#include "numerics_options.h"
#include "serving_run.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <string.h>

#include <cmocka.h>

static numerics_options options;
static numerics_device device;

static int open_fresh(void **state)
{
    (void)state;
    clattn_fakedev_reset();
    return device_open(&device);
}

static int close_again(void **state)
{
    (void)state;
    device_close(&device);
    return 0;
}

static void run(const call_spec *spec)
{
    call_data data;
    data_create(&data, spec);
    assert_int_equal(device_run(&device, &data), CLATTN_SUCCESS);
    data_destroy(&data);
}

static void expect_builds(unsigned expected)
{
    struct clattn_fakedev_counters counters;
    clattn_fakedev_counters(&counters);
    assert_int_equal(counters.builds_from_source, expected);
    assert_int_equal(counters.builds_from_binary, 0);
}

/* Everything that a call may vary while nothing changes single scores, head dims of the same class included.
 */
static void run_lean_calls(void)
{
    const int64_t lengths[] = {1, 31, 64, 129, 0};
    const int32_t dims[] = {33, 40, 59, 64};
    const uint32_t features[] = {0, CLATTN_FEATURE_CAUSAL, CLATTN_FEATURE_WINDOW,
                                 CLATTN_FEATURE_CAUSAL | CLATTN_FEATURE_WINDOW | CLATTN_FEATURE_LSE};
    const uint32_t more[] = {0, CLATTN_FEATURE_SINKS, CLATTN_FEATURE_Q_LENS | CLATTN_FEATURE_KV_LENS,
                             CLATTN_FEATURE_LSE | CLATTN_FEATURE_LSE_BASE_2};
    for (int i = 0; i < 40; i++) {
        call_spec spec = spec_plain(options.path);
        spec.batch = 1 + i % 3;
        spec.q_len = lengths[i % 5];
        spec.kv_len = lengths[i / 2 % 5];
        spec.heads_kv = 1 + i % 2;
        spec.heads_q = spec.heads_kv * (1 + i % 4);
        spec.head_dim_qk = dims[i % 4];
        spec.head_dim_v = dims[i / 3 % 4];
        spec.features = features[i / 5 % 4] | more[i / 7 % 4];
        spec.position_mode = i % 3;
        if (spec.position_mode == CLATTN_POSITION_EXPLICIT && i % 2 == 0)
            spec.features |= CLATTN_FEATURE_Q_OFFSETS;
        else if (spec.position_mode == CLATTN_POSITION_EXPLICIT)
            spec.q_offset = i - 20;
        if (spec.features & CLATTN_FEATURE_WINDOW) {
            spec.window_left = i % 7 - 1;
            spec.window_right = i % 5 - 1;
        }
        spec.scale = (float)(i % 4) / 8;
        spec.layout_in = (tensor_layout)(i % LAYOUTS);
        spec.layout_o = spec.layout_lse = (tensor_layout)(i % LAYOUT_OUTPUTS);
        run(&spec);
    }
}

static void run_full_calls(void)
{
    const uint32_t more[] = {0, CLATTN_FEATURE_MASK | CLATTN_FEATURE_SINKS, CLATTN_FEATURE_ALIBI,
                             CLATTN_FEATURE_KEY_TILES | CLATTN_FEATURE_KV_LENS};
    for (int i = 0; i < 9; i++) {
        call_spec spec = spec_plain(options.path);
        spec.layout_in = (tensor_layout)(i % LAYOUTS);
        if (i % 3 != 0) {
            spec.features |= CLATTN_FEATURE_SOFTCAP;
            spec.softcap = (float)(i + 1);
        }
        if (i % 3 != 1)
            spec.features |= CLATTN_FEATURE_BIAS;
        spec.bias_axes = i % 2 == 0 ? BIAS_KEY : BIAS_ROW | BIAS_KEY | BIAS_TRANSPOSED;
        spec.features |= more[i % 4];
        spec.mask_axes = BIAS_KEY;
        spec.mask_percent = 70;
        spec.mask_block = 1;
        if (spec_has(&spec, CLATTN_FEATURE_KEY_TILES)) {
            spec.tile_rows = 16 << i % 3;
            spec.tile_keys = 64;
            spec.tiles_percent = 50;
        }
        run(&spec);
    }
}

static void run_mod_calls(void)
{
    for (int i = 0; i < 3; i++) {
        call_spec spec = spec_plain(options.path);
        spec.mask_mod = MASK_MOD_PREFIX;
        spec.user_values[0] = spec.user_values[1] = (float)(i + 3);
        spec.features |= i == 2 ? CLATTN_FEATURE_SOFTCAP : 0;
        spec.softcap = i == 2 ? 3.0f : 0.0f;
        run(&spec);
    }
}

/* One program for all calls whose single scores nothing changes, a second one for softcap, bias, mask, ALiBi
 * and key tiles, and one for each pair of texts. */
static void test_programs_of_a_model(void **state)
{
    (void)state;
    run_lean_calls();
    expect_builds(1);
    run_full_calls();
    expect_builds(2);
    run_lean_calls();
    expect_builds(2);
    run_mod_calls();
    expect_builds(3);
}

/* ---- Serving ---- */

static void run_serving(const serving_spec *spec)
{
    serving_data data;
    const char *fault;
    serving_create(&data, spec);
    assert_int_equal(serving_run(&device, &data, &fault), CLATTN_SUCCESS);
    assert_null(fault);
    serving_destroy(&data);
}

/* A model's layers and steps: windows, scales, strides, batches; caches that grow; splits. */
static void run_steps(int32_t phase, key_storage keys, int is_packed)
{
    for (int i = 0; i < 12; i++) {
        const int32_t splits[] = {0, 1, 5};
        serving_spec spec;
        memset(&spec, 0, sizeof spec);
        spec.call = spec_plain(options.path);
        spec.call.batch = 1 + i % 4;
        spec.call.q_len = phase == CLATTN_PHASE_BOTH ? (i % 3 == 2 ? 60 : 1) : 1 + i % 3;
        spec.call.kv_len = 64 + 37 * i;
        spec.call.heads_q = 4;
        spec.call.features |= CLATTN_FEATURE_Q_LENS | CLATTN_FEATURE_KV_LENS;
        if (i % 2 == 0)
            spec.call.features |= CLATTN_FEATURE_CAUSAL | CLATTN_FEATURE_WINDOW;
        spec.call.window_left = i % 2 == 0 ? 10 * i : 0;
        spec.call.scale = 0.1f * (float)i;
        spec.dtype_k = spec.dtype_v = CLATTN_DTYPE_F32;
        spec.phase = phase;
        spec.splits = splits[i % 3];
        spec.packed_q = is_packed;
        spec.keys = keys;
        spec.page_size = 16;
        spec.layout_q = spec.layout_k = spec.layout_v = (tensor_layout)(i % LAYOUT_OUTPUTS);
        run_serving(&spec);
    }
}

/* Padded and packed sequences share the programs of a plan: one of prefill and one of decode kernels, and on
 * the portable path one more for few rows. Pages have their own. */
static void test_programs_of_serving(void **state)
{
    const unsigned programs = options.path == CLATTN_PATH_CPU ? 2 : 3;
    (void)state;
    run_steps(CLATTN_PHASE_BOTH, KEYS_PADDED, 0);
    expect_builds(programs);
    run_steps(CLATTN_PHASE_DECODE, KEYS_PACKED, 1);
    run_steps(CLATTN_PHASE_BOTH, KEYS_PACKED, 0);
    expect_builds(programs);
    run_steps(CLATTN_PHASE_BOTH, KEYS_PAGED, 1);
    expect_builds(2 * programs);
}

/* The other operations: one program each. */
static void test_programs_of_operations(void **state)
{
    const int32_t operations[] = {CLATTN_OPERATION_KV_APPEND, CLATTN_OPERATION_MERGE,
                                  CLATTN_OPERATION_CONVERT};
    (void)state;
    for (unsigned n = 0; n < 3; n++)
        for (int again = 0; again < 2; again++) {
            clattn_plan_desc desc = CLATTN_PLAN_DESC_INIT;
            clattn_plan *plan = NULL;
            desc.operation = operations[n];
            desc.heads_q = 4;
            desc.heads_kv = 2;
            desc.head_dim_qk = desc.head_dim_v = 64;
            assert_int_equal(clattn_plan_create(&plan, device.context, &desc), CLATTN_SUCCESS);
            clattn_plan_release(plan);
            expect_builds(n + 1);
        }
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_programs_of_a_model, open_fresh, close_again),
        cmocka_unit_test_setup_teardown(test_programs_of_serving, open_fresh, close_again),
        cmocka_unit_test_setup_teardown(test_programs_of_operations, open_fresh, close_again),
    };
    if (options_read(&options, argc, argv) != 0)
        return 1;
    const int opened = device_open(&device);
    if (opened != 0)
        return opened;
    const int has_path = device_has_path(&device, options.path);
    device_close(&device);
    if (!has_path)
        return EXIT_SKIPPED;
    if (!clattn_fakedev_active()) {
        print_error("the fake-device layer is not loaded: OPENCL_LAYERS has to name it\n");
        return 1;
    }
    return cmocka_run_group_tests_name("builds", tests, NULL, NULL);
}
