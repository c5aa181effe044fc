/* src/cli/bench_unit.c: what a rate is compared with. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "../../src/cli/bench.h"

static void test_units_of_paths(void **state)
{
    static const struct {
        const char *path;
        int32_t dtype;
        bench_unit unit;
    } cases[] = {
        {"nvidia_wgmma", CLATTN_DTYPE_F16, BENCH_MATRIX_16},
        {"nvidia_wgmma", CLATTN_DTYPE_BF16, BENCH_MATRIX_16},
        {"nvidia_mma", CLATTN_DTYPE_F16, BENCH_MATRIX_16},
        {"nvidia_mma", CLATTN_DTYPE_F32, BENCH_MATRIX_32},
        {"portable", CLATTN_DTYPE_F16, BENCH_MULTIPLY_ADDS},
        {"portable", CLATTN_DTYPE_F32, BENCH_MULTIPLY_ADDS},
        {"cpu", CLATTN_DTYPE_BF16, BENCH_MULTIPLY_ADDS},
        {"naive", CLATTN_DTYPE_F16, BENCH_MULTIPLY_ADDS},
    };
    static const bench_ceiling all = {.flops = {1, 2, 3}}, no_matrix_units = {.flops = {1, 0, 0}};
    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        assert_int_equal(bench_unit_of(&all, cases[i].path, cases[i].dtype), cases[i].unit);
        assert_int_equal(bench_unit_of(&no_matrix_units, cases[i].path, cases[i].dtype), BENCH_MULTIPLY_ADDS);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_units_of_paths)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
