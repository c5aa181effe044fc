/* bench_unit.c: which of the device's units a path multiplies by, so that its rate is compared with theirs.
 */
#include "bench.h"

#include <string.h>

const char *bench_unit_name(bench_unit unit)
{
    static const char *const names[NUM_BENCH_UNITS] = {"multiply-adds in f32", "matrix units in f16",
                                                       "matrix units in f32 (three TF32 products)"};
    return names[unit];
}

bench_unit bench_unit_of(const bench_ceiling *ceiling, const char *path, int32_t dtype)
{
    static const char by_matrix_units[] = "nvidia_";
    const bench_unit matrix = dtype == CLATTN_DTYPE_F32 ? BENCH_MATRIX_32 : BENCH_MATRIX_16;
    return strncmp(path, by_matrix_units, strlen(by_matrix_units)) == 0 && ceiling->flops[matrix] > 0
               ? matrix
               : BENCH_MULTIPLY_ADDS;
}
