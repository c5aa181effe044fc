/* bench_measure.c: time by the wall clock.
 *
 * A repetition is a batch of back-to-back calls followed by clFinish, its time divided by the
 * number of calls. The batch is one call where a call takes long, and as many as fill some
 * milliseconds where it is short, so that the cost of clFinish (tens of microseconds) does not
 * count as the call's. Profiling events would measure less than a caller sees, cost time themselves
 * on some drivers, and their clocks differ from device to device. The median is what is reported;
 * the least and the most show the spread. */
#include "bench.h"

#include "cli.h"
#include "cli_platform.h"

#include <math.h>
#include <stdlib.h>

enum { MAX_REPEATS = 1000, MAX_BATCH = 1000 };

static const double batch_seconds = 0.004;

static int run_batch(cl_command_queue queue, bench_enqueue enqueue, void *user, int batch, double *seconds)
{
    const double start = platform_seconds();
    for (int i = 0; i < batch; i++) {
        const int status = enqueue(user);
        if (status != CLI_OK)
            return status;
    }
    const cl_int status = clFinish(queue);
    if (status != CL_SUCCESS)
        return cli_opencl_fail(status, "clFinish");
    *seconds = (platform_seconds() - start) / batch;
    return CLI_OK;
}

static int compare_doubles(const void *a, const void *b)
{
    const double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

double bench_budget(const bench_options *o, double usual)
{
    return o->seconds > 0 ? (double)o->seconds : o->repeat > 0 ? 0 : usual;
}

int bench_measure(bench_time *out, cl_command_queue queue, bench_enqueue enqueue, void *user, int64_t repeat,
                  double budget)
{
    double times[MAX_REPEATS], first = 0;
    /* The first run touches memory and wakes the device; the second tells how long a call takes. */
    int status = run_batch(queue, enqueue, user, 1, &first);
    if (status == CLI_OK && (first < budget / 4 || repeat > 0))
        status = run_batch(queue, enqueue, user, 1, &first);
    if (status != CLI_OK)
        return status;
    const double share = repeat > 0 ? budget / (double)repeat : 0;
    const double wanted =
        ceil((share > batch_seconds ? share : batch_seconds) / (first > 1e-6 ? first : 1e-6));
    const int batch = wanted < 1 ? 1 : wanted > MAX_BATCH ? MAX_BATCH : (int)wanted;
    const double fits = budget / (first * batch);
    int repeats = first > budget ? 1 : fits < 3 ? 3 : fits > 50 ? 50 : (int)fits;
    if (repeat > 0)
        repeats = repeat > MAX_REPEATS ? MAX_REPEATS : (int)repeat;
    for (int i = 0; status == CLI_OK && i < repeats; i++)
        status = run_batch(queue, enqueue, user, batch, &times[i]);
    if (status != CLI_OK)
        return status;
    qsort(times, (size_t)repeats, sizeof times[0], compare_doubles);
    out->median = (times[(repeats - 1) / 2] + times[repeats / 2]) / 2;
    out->least = times[0];
    out->most = times[repeats - 1];
    out->repeats = repeats;
    return CLI_OK;
}
