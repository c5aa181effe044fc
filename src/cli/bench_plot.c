/* bench_plot.c: two pictures by gnuplot: rate against length, a line for each path; and the roofline
 * (Williams, Waterman and Patterson 2009): rate against operations for each byte that has to be moved, under
 * what the device was measured to do. */
#include "bench.h"

#include "cli.h"
#include "cli_platform.h"
#include "tensor_convert.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

static int ends_with(const char *text, const char *end)
{
    const size_t length = strlen(text), part = strlen(end);
    return length >= part && strcmp(text + length - part, end) == 0;
}

int bench_plot_check(const char *path)
{
    if (!ends_with(path, ".svg") && !ends_with(path, ".png"))
        return cli_fail(CLI_USAGE, "--plot '%.200s': expected a name that ends in .svg or .png", path);
    if (strpbrk(path, "\r\n"))
        return cli_fail(CLI_USAGE, "--plot: expected a name in one line");
    if (!platform_has_gnuplot())
        return cli_fail(CLI_FAILED, "--plot: gnuplot does not run; it has to be installed");
    return CLI_OK;
}

/* In gnuplot's single quotes nothing is special but the quote, which is doubled. */
static void put_quoted(FILE *pipe, const char *text)
{
    fputc('\'', pipe);
    for (; *text; text++) {
        if (*text == '\'')
            fputc('\'', pipe);
        if ((unsigned char)*text >= 0x20)
            fputc(*text, pipe);
    }
    fputc('\'', pipe);
}

static int same_series(const bench_result *a, const bench_result *b)
{
    return strcmp(a->path, b->path) == 0 && a->dtype == b->dtype &&
           a->shape.head_dim_qk == b->shape.head_dim_qk && a->shape.causal == b->shape.causal &&
           a->shape.heads_q == b->shape.heads_q && a->shape.heads_kv == b->shape.heads_kv;
}

/* Whether no earlier result belongs to the same line. */
static int is_first(const bench_results *results, size_t i)
{
    for (size_t j = 0; j < i; j++)
        if (same_series(&results->entry[j], &results->entry[i]))
            return 0;
    return 1;
}

/* TFLOP/s from one on, GFLOP/s below. */
typedef struct rate_unit {
    double factor;
    const char *name;
} rate_unit;

static rate_unit unit_of(const bench_results *results)
{
    const rate_unit tera = {1e-12, "TFLOP/s"}, giga = {1e-9, "GFLOP/s"};
    double most = 0;
    for (size_t i = 0; i < results->count; i++)
        if (results->entry[i].flops / results->entry[i].time.median > most)
            most = results->entry[i].flops / results->entry[i].time.median;
    return most >= 1e12 ? tera : giga;
}

/* Keys, rate, operations for a byte. */
static void put_data(FILE *pipe, const bench_results *results, size_t first, rate_unit unit)
{
    fprintf(pipe, "$series%zu << EOD\n", first);
    for (size_t i = first; i < results->count; i++) {
        const bench_result *r = &results->entry[i];
        if (same_series(r, &results->entry[first]))
            fprintf(pipe, "%lld %.6g %.6g\n", (long long)r->shape.kv_len,
                    r->flops / r->time.median * unit.factor, r->flops / r->bytes);
    }
    fprintf(pipe, "EOD\n");
}

/* A line of points for each series; columns as put_data has them. */
static void put_series(FILE *pipe, const bench_results *results, const char *columns, const char *style)
{
    int number = 0; /* of the series: the same colour in both pictures */
    for (size_t i = 0; i < results->count; i++) {
        const bench_result *r = &results->entry[i];
        char title[128];
        if (!is_first(results, i))
            continue;
        cli_format(title, sizeof title, "%s %s D=%d%s", r->path, dtype_name(r->dtype),
                   (int)r->shape.head_dim_qk, r->shape.causal ? " causal" : "");
        fprintf(pipe, "%s$series%zu using %s with %s linetype %d title ", number ? ", " : "", i, columns,
                style, number + 1);
        number++;
        put_quoted(pipe, title);
    }
}

/* The lengths with a margin; gnuplot warns of a range that is one point. */
static void put_rates(FILE *pipe, const bench_results *results, rate_unit unit)
{
    int64_t least = results->entry[0].shape.kv_len, most = least;
    for (size_t i = 1; i < results->count; i++) {
        const int64_t n = results->entry[i].shape.kv_len;
        least = n < least ? n : least;
        most = n > most ? n : most;
    }
    fprintf(
        pipe,
        "set xrange [%g:%g]\nset yrange [0:*]\nset logscale x 2\nset xlabel 'keys'\nset ylabel '%s'\nplot ",
        (double)least / 1.5, (double)most * 1.5, unit.name);
    put_series(pipe, results, "1:2", "linespoints");
    fprintf(pipe, "\n");
}

static int is_used(bench_unit unit, const bench_results *results, const bench_ceiling *ceiling)
{
    for (size_t i = 0; i < results->count; i++)
        if (bench_unit_of(ceiling, results->entry[i].path, results->entry[i].dtype) == unit)
            return 1;
    return 0;
}

/* A roof for each kind of unit that some result is of. */
static void put_roofline(FILE *pipe, const bench_results *results, const bench_ceiling *ceiling,
                         rate_unit unit)
{
    double lowest = INFINITY, least = INFINITY, most = 0.0;
    for (int u = 0; u < NUM_BENCH_UNITS; u++) {
        const double x = ceiling->flops[u] / ceiling->copy_bytes; /* where it bends */
        if (!is_used((bench_unit)u, results, ceiling))
            continue;
        least = x < least ? x : least;
        most = x > most ? x : most;
        lowest = ceiling->flops[u] < lowest ? ceiling->flops[u] : lowest;
    }
    for (size_t i = 0; i < results->count; i++) {
        const bench_result *r = &results->entry[i];
        const double x = r->flops / r->bytes, y = r->flops / r->time.median;
        least = x < least ? x : least;
        most = x > most ? x : most;
        lowest = y < lowest ? y : lowest;
    }
    fprintf(pipe,
            "set key above vertical maxrows 4\nset xrange [%g:%g]\nset yrange [%g:*]\nset logscale x 2\nset "
            "logscale y 10\n"
            "set xlabel 'operations for a byte of q, k, v and o'\nset ylabel '%s'\n"
            "roof(x, most) = x * %g < most ? x * %g : most\nplot ",
            least / 2, most * 2, lowest / 2 * unit.factor, unit.name, ceiling->copy_bytes * unit.factor,
            ceiling->copy_bytes * unit.factor);
    for (int u = 0; u < NUM_BENCH_UNITS; u++)
        if (is_used((bench_unit)u, results, ceiling))
            fprintf(
                pipe,
                "roof(x, %g) with lines linecolor black linewidth 2 dashtype %d title 'copying %.4g GB/s, "
                "%s %.4g', ",
                ceiling->flops[u] * unit.factor, u + 1, ceiling->copy_bytes * 1e-9,
                bench_unit_name((bench_unit)u), ceiling->flops[u] * unit.factor);
    put_series(pipe, results, "3:2", "points");
    fprintf(pipe, "\nunset logscale y\n");
}

static void put_script(FILE *pipe, const bench_results *results, const cli_device *device,
                       const bench_ceiling *ceiling, const char *path)
{
    const rate_unit unit = unit_of(results);
    for (size_t i = 0; i < results->count; i++)
        if (is_first(results, i))
            put_data(pipe, results, i, unit);
    fprintf(pipe, "set terminal %s size 900,1000\nset output ", ends_with(path, ".svg") ? "svg" : "pngcairo");
    put_quoted(pipe, path);
    fprintf(pipe,
            "\nset grid\nset key outside right noenhanced\nset samples 500\nset multiplot layout 2,1 title ");
    put_quoted(pipe, device->entry.name);
    fprintf(pipe, " noenhanced\n");
    put_rates(pipe, results, unit);
    put_roofline(pipe, results, ceiling, unit);
    fprintf(pipe, "unset multiplot\n");
}

int bench_write_plot(const bench_results *results, const cli_device *device, const bench_ceiling *ceiling,
                     const char *path)
{
    if (results->count == 0)
        return CLI_OK;
    FILE *pipe = platform_pipe_open("gnuplot");
    if (!pipe)
        return cli_fail(CLI_FAILED, "--plot: gnuplot cannot be started");
    put_script(pipe, results, device, ceiling, path);
    if (platform_pipe_close(pipe) != 0)
        return cli_fail(CLI_FAILED, "--plot '%.200s': gnuplot failed", path);
    return CLI_OK;
}
