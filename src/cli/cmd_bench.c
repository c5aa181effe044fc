/* cmd_bench.c: what `clattn bench` measures: shapes, and the presets that are plain lists of them. */
#include "bench.h"

#include "cli.h"
#include "progress.h"
#include "tensor_convert.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

/* ---- Shapes -------------------------------------------------------------------------------------
 */

int bench_need_naive(bench_state *state)
{
    const int32_t dtype = state->options->dtype[0];
    if (state->naive_open && state->naive_dtype == dtype)
        return CLI_OK;
    if (state->naive_open)
        naive_program_close(&state->naive);
    const int status = naive_program_open(&state->naive, &state->device, dtype);
    state->naive_open = status == CLI_OK;
    state->naive_dtype = dtype;
    return status;
}

static void print_heading(void)
{
    printf("%-5s %-22s %-7s %-7s %-9s %10s %10s %7s %9s %6s %8s %11s\n", "type", "B,Hq/Hkv,Nq/Nk", "D",
           "causal", "path", "median ms", "min ms", "spread", "GFLOP/s", "of", "GB/s", "memory");
    printf("%-5s %-22s %-7s %-7s %-9s %10s %10s %7s %9s %6s %8s %11s\n", "", "", "", "", "", "", "", "", "",
           "peak", "", "");
}

static void print_row(const bench_result *r)
{
    char shape[64], dims[16], memory[24];
    cli_format(shape, sizeof shape, "%" PRId64 ",%" PRId64 "/%" PRId64 ",%" PRId64 "/%" PRId64,
               r->shape.batch, r->shape.heads_q, r->shape.heads_kv, r->shape.q_len, r->shape.kv_len);
    if (r->shape.head_dim_qk == r->shape.head_dim_v)
        cli_format(dims, sizeof dims, "%d", (int)r->shape.head_dim_qk);
    else
        cli_format(dims, sizeof dims, "%d:%d", (int)r->shape.head_dim_qk, (int)r->shape.head_dim_v);
    bench_format_bytes(memory, sizeof memory, r->peak_bytes);
    printf("%-5s %-22s %-7s %-7s %-9s %10.3f %10.3f %6.1f%% %9.1f %5.1f%% %8.2f %11s\n", dtype_name(r->dtype),
           shape, dims, r->shape.causal ? "yes" : "no", r->path, r->time.median * 1e3, r->time.least * 1e3,
           100 * (r->time.most - r->time.least) / r->time.median, r->flops / r->time.median * 1e-9,
           100 * r->ceiling_fraction, r->bytes / r->time.median * 1e-9, memory);
    fflush(stdout);
}

static int measure(bench_state *state, bench_call *call, int naive)
{
    bench_time time;
    int status = bench_measure(&time, state->device.queue, naive ? bench_enqueue_naive : bench_enqueue_flash,
                               call, state->options->repeat, bench_budget(state->options, 1.0));
    if (status == CLI_OK)
        status = bench_results_add(&state->results, call, naive, &time, &state->ceiling);
    progress_clear();
    if (status == CLI_OK && !state->quiet)
        print_row(&state->results.entry[state->results.count - 1]);
    return status;
}

int bench_run_shape(bench_state *state, const bench_shape *shape)
{
    bench_call call;
    progress_show("%" PRId64 " keys, head dim %d", shape->kv_len, (int)shape->head_dim_qk);
    int status = bench_call_open(&call, &state->device, state->options, shape);
    if (status != CLI_OK)
        return status;
    status = measure(state, &call, 0);
    if (status == CLI_OK && state->options->naive) {
        if (bench_naive_fits(&call)) {
            status = bench_need_naive(state);
            if (status == CLI_OK)
                status = bench_naive_open(&call, &state->naive);
            if (status == CLI_OK)
                status = measure(state, &call, 1);
        } else {
            char memory[24];
            bench_format_bytes(memory, sizeof memory, call.naive_bytes);
            printf("%-5s naive needs %s, which does not fit\n", "", memory);
        }
    }
    bench_call_close(&call);
    return status;
}

static int run_prefill(bench_state *state)
{
    const int cpu = (state->device.entry.type & CL_DEVICE_TYPE_CPU) != 0;
    const int64_t lengths[2][3] = {{1024, 4096, 8192}, {512, 1024, 2048}};
    int status = CLI_OK;
    for (int causal = 0; causal <= 1; causal++)
        for (int d = 64; d <= 128; d += 64)
            for (int i = 0; status == CLI_OK && i < 3; i++) {
                const int64_t n = lengths[cpu][i];
                const bench_shape shape = {1, 8, 8, n, n, d, d, causal};
                status = bench_run_shape(state, &shape);
            }
    const bench_shape grouped = {1, 32, 8, lengths[cpu][1], lengths[cpu][1], 128, 128, 1};
    return status == CLI_OK ? bench_run_shape(state, &grouped) : status;
}

/* What holds for every row. */
static void print_conditions(const bench_options *o)
{
    if (o->has_window)
        printf("window    %" PRId64 ",%" PRId64 "\n", o->window[0], o->window[1]);
    if (o->block_sparse > 0)
        printf("key tiles %d x %d, for each head and query tile %.3g of those it may see\n", BENCH_TILE,
               BENCH_TILE, (double)o->block_sparse);
    if (o->num_seqlens > 0)
        printf("packed    %d sequences\n", o->num_seqlens);
    if (o->has_window || o->block_sparse > 0 || o->num_seqlens > 0)
        printf("\n");
}

/* With packed sequences their number and the longest are what the shape says of batch and lengths. */
static bench_shape shape_of(const bench_options *o, const shape_option *s)
{
    bench_shape shape = {s->size[0], s->size[1],     s->size[2],    s->size[3],
                         s->size[4], s->head_dim_qk, s->head_dim_v, o->causal};
    if (o->num_seqlens > 0) {
        shape.batch = o->num_seqlens;
        shape.q_len = 0;
        for (int b = 0; b < o->num_seqlens; b++)
            shape.q_len = o->seqlens[b] > shape.q_len ? o->seqlens[b] : shape.q_len;
        shape.kv_len = shape.q_len;
    }
    return shape;
}

int bench_run_list(bench_state *state)
{
    const bench_options *o = state->options;
    if (o->paper)
        return bench_run_paper(state);
    print_conditions(o);
    if (o->decode)
        return bench_run_decode_preset(state);
    if (bench_is_decode(o))
        bench_print_decode_heading();
    else
        print_heading();
    if (o->num_shapes == 0)
        return run_prefill(state);
    int status = CLI_OK;
    for (int i = 0; status == CLI_OK && i < o->num_shapes; i++) {
        const bench_shape shape = shape_of(o, &o->shape[i]);
        status = bench_is_decode(o) ? bench_run_decode(state, &shape, o->page_size)
                                    : bench_run_shape(state, &shape);
    }
    return status;
}

/* ---- The command --------------------------------------------------------------------------------
 */

static void print_ceiling(const bench_ceiling *c)
{
    printf("ceilings  ");
    for (int u = 0; u < NUM_BENCH_UNITS; u++)
        if (c->flops[u] > 0)
            printf("%.1f GFLOP/s by %s, ", c->flops[u] * 1e-9, bench_unit_name((bench_unit)u));
    printf("%.1f GB/s by copying, %.1f GB/s by reading\n\n", c->copy_bytes * 1e-9, c->read_bytes * 1e-9);
}

static int run_all(bench_state *state)
{
    const bench_options *o = state->options;
    printf("device    %s (%s, %s)\n", state->device.entry.name, state->device.entry.platform_name,
           state->device.driver);
    fflush(stdout);
    progress_show("measuring the device's ceilings");
    int status = bench_measure_ceiling(&state->ceiling, &state->device);
    progress_clear();
    if (status != CLI_OK)
        return status;
    print_ceiling(&state->ceiling);
    status = o->lines ? bench_run_lines(state) : bench_run_list(state);
    progress_clear();
    if (status == CLI_OK && o->json)
        status = bench_write_json(&state->results, &state->device, &state->ceiling, o->json);
    if (status == CLI_OK && o->plot)
        status = bench_write_plot(&state->results, &state->device, &state->ceiling, o->plot);
    return status;
}

int cmd_bench(int argc, char **argv)
{
    bench_options o;
    bench_state state = {0};
    int status = bench_options_parse(&o, argc, argv);
    if (status != CLI_OK || o.common.help)
        return status;
    state.options = &o;
    status = cli_device_open(&state.device, &o.common);
    if (status != CLI_OK)
        return status;
    status = run_all(&state);
    if (state.naive_open)
        naive_program_close(&state.naive);
    bench_results_release(&state.results);
    cli_device_close(&state.device);
    return status;
}
