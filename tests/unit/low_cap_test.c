/* src/low_cap.h, evaluated as kernels do, against the math library's tanh. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>

#include <cmocka.h>

#include "../../src/kernel_args.h"
#include "../../src/low_cap.h"

static const double log2_e = 1.4426950408889634;

/* Returns the largest relative error where the polynomial serves, over products up to twice as far; checks
 * that it serves where it should. */
static double largest_error(double scale, double softcap)
{
    enum { STEPS = 100000 };
    double largest = 0.0;
    float low[4];
    clattn__low_cap(low, scale, softcap);
    for (int i = -2 * STEPS; i <= 2 * STEPS; i++) {
        const double y = LOW_CAP * (double)i / STEPS;
        const float x = (float)(y * softcap / scale), u = fmaf(x, x, -low[0]);
        if (i == 0 || abs(i) == STEPS)
            continue;
        assert_int_equal(signbit(u) != 0, abs(i) < STEPS);
        if (u < 0.0f) {
            const float factor = fmaf(fmaf(low[3], u, low[2]), u, low[1]);
            const double right = softcap * tanh(scale * (double)x / softcap) * log2_e;
            largest = fmax(largest, fabs((double)x * (double)factor / right - 1.0));
        }
    }
    return largest;
}

static void test_is_near_tanh(void **state)
{
    static const double cases[][2] = {{0.125, 50.0}, {0.088388, 30.0}, {1.0, 15.0}, {-0.125, 50.0},
                                      {1e-4, 1.0},   {1e-3, 1e4},      {64.0, 2.0}, {1.0, 1.0}};
    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        const double error = largest_error(cases[i][0], cases[i][1]);
        print_message("scale %g, softcap %g: %.2e\n", cases[i][0], cases[i][1], error);
        assert_true(error < 6e-7);
    }
}

/* No product is near where a step would leave the range of float. */
static void test_serves_nowhere(void **state)
{
    static const double cases[][2] = {{0.125, 0.0}, {0.0, 50.0},  {1.0, 1e9},  {1e-9, 50.0},
                                      {1e9, 1e-3},  {1.0, 1e-30}, {1.0, 3e38}, {3e38, 1.0}};
    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        float low[4];
        clattn__low_cap(low, cases[i][0], cases[i][1]);
        for (int power = -149; power < 128; power++) {
            const float x = ldexpf(1.0f, power), u = fmaf(x, x, -low[0]);
            assert_false(signbit(u));
        }
        assert_false(signbit(fmaf(0.0f, 0.0f, -low[0])));
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_is_near_tanh),
        cmocka_unit_test(test_serves_nowhere),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
