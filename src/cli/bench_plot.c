/* bench_plot.c: rate against length, drawn by gnuplot. */
#include "bench.h"

#include "cli.h"
#include "cli_platform.h"
#include "tensor_convert.h"

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

static void put_data(FILE *pipe, const bench_results *results, size_t first)
{
    fprintf(pipe, "$series%zu << EOD\n", first);
    for (size_t i = first; i < results->count; i++) {
        const bench_result *r = &results->entry[i];
        if (same_series(r, &results->entry[first]))
            fprintf(pipe, "%lld %.6g\n", (long long)r->shape.kv_len, r->flops / r->time.median * 1e-9);
    }
    fprintf(pipe, "EOD\n");
}

/* The lengths with a margin; gnuplot warns of a range that is one point. */
static void put_range(FILE *pipe, const bench_results *results)
{
    int64_t least = results->entry[0].shape.kv_len, most = least;
    for (size_t i = 1; i < results->count; i++) {
        const int64_t n = results->entry[i].shape.kv_len;
        least = n < least ? n : least;
        most = n > most ? n : most;
    }
    fprintf(pipe, "set xrange [%g:%g]\n", (double)least / 1.5, (double)most * 1.5);
}

static void put_script(FILE *pipe, const bench_results *results, const cli_device *device, const char *path)
{
    for (size_t i = 0; i < results->count; i++)
        if (is_first(results, i))
            put_data(pipe, results, i);
    put_range(pipe, results);
    fprintf(pipe, "set terminal %s size 900,560\nset output ", ends_with(path, ".svg") ? "svg" : "pngcairo");
    put_quoted(pipe, path);
    fprintf(pipe, "\nset title ");
    put_quoted(pipe, device->entry.name);
    fprintf(pipe, " noenhanced\nset xlabel 'keys'\nset ylabel 'GFLOP/s'\nset logscale x 2\n"
                  "set yrange [0:*]\nset grid\nset key outside right noenhanced\nplot ");
    for (size_t i = 0; i < results->count; i++) {
        const bench_result *r = &results->entry[i];
        char title[128];
        if (!is_first(results, i))
            continue;
        cli_format(title, sizeof title, "%s %s D=%d%s", r->path, dtype_name(r->dtype),
                   (int)r->shape.head_dim_qk, r->shape.causal ? " causal" : "");
        fprintf(pipe, "%s$series%zu with linespoints title ", i ? ", " : "", i);
        put_quoted(pipe, title);
    }
    fprintf(pipe, "\n");
}

int bench_write_plot(const bench_results *results, const cli_device *device, const char *path)
{
    if (results->count == 0)
        return CLI_OK;
    FILE *pipe = platform_pipe_open("gnuplot");
    if (!pipe)
        return cli_fail(CLI_FAILED, "--plot: gnuplot cannot be started");
    put_script(pipe, results, device, path);
    if (platform_pipe_close(pipe) != 0)
        return cli_fail(CLI_FAILED, "--plot '%.200s': gnuplot failed", path);
    return CLI_OK;
}
