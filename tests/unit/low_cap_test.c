/* src/low_cap.h, evaluated as kernels do, against the math library's tanh. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>

#include <cmocka.h>

#include "../../src/low_cap.h"

/* How far the polynomial should serve at most, in units of the cap. */
static const double most = 0.25;

/* Checks that the polynomial serves up to one product and not beyond, as far as it should at least, and
 * nowhere off by more than it may. Returns how far it serves, in units of the cap. */
static double checked_end(double scale, double softcap)
{
    enum { STEPS = 100000 };
    const double log2_e = 1.4426950408889634;
    double end = 0.0, largest = 0.0;
    float low[3];
    clattn__low_cap(low, scale, softcap);
    for (int i = 1; i <= 2 * STEPS; i++) {
        const double y = most * (double)i / STEPS;
        const float x = (float)(y * softcap / scale), u = fmaf(x, x, -low[0]);
        assert_int_equal(signbit(u), signbit(fmaf(-x, -x, -low[0])));
        if (u < 0.0f) {
            const double natural = (double)fmaf(x, fmaf(low[2], u, low[1]), 0.0f) / log2_e;
            const double error = fabs(natural - softcap * tanh(scale * (double)x / softcap));
            assert_true(end == most * (double)(i - 1) / STEPS);
            assert_true(error <= LOW_CAP_ERROR + 1e-6 * fabs(natural));
            largest = fmax(largest, error);
            end = y;
        }
    }
    print_message("scale %g, softcap %g: to %.3f of the cap, %.1e off\n", scale, softcap, end, largest);
    return end;
}

static void test_is_near_tanh(void **state)
{
    static const double cases[][3] = {{0.125, 50.0, 0.185},  {0.088388, 30.0, 0.205}, {1.0, 15.0, 0.235},
                                      {-0.125, 50.0, 0.185}, {1e-4, 1.0, 0.2499},     {1e-3, 1e4, 0.064},
                                      {64.0, 2.0, 0.2499},   {1.0, 1.0, 0.2499},      {0.125, 1e6, 0.025}};
    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        const double end = checked_end(cases[i][0], cases[i][1]);
        assert_true(end > cases[i][2] && end <= most);
    }
}

/* No product is near where a step would leave the range of float. */
static void test_serves_nowhere(void **state)
{
    static const double cases[][2] = {{0.125, 0.0}, {0.0, 50.0},  {1.0, 1e19}, {1e-13, 50.0},
                                      {1e11, 1e-3}, {1.0, 1e-30}, {1.0, 3e38}, {3e38, 1.0}};
    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        float low[3];
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
