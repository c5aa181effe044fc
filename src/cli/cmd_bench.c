/* cmd_bench.c: options of `clattn bench`, and the presets that are plain lists of shapes. */
#include "bench.h"

#include "cli.h"
#include "plan_options.h"
#include "progress.h"
#include "serving_options.h"
#include "tensor_convert.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

enum {
    BENCH_PRESET = OPTION_COMMAND,
    BENCH_SHAPE,
    BENCH_DTYPE,
    BENCH_CAUSAL,
    BENCH_BLOCK_SPARSE,
    BENCH_REPEAT,
    BENCH_NAIVE,
    BENCH_PHASE,
    BENCH_KV_DTYPE,
    BENCH_PAGE_SIZE,
    BENCH_SPLITS,
    BENCH_SETS,
    BENCH_JSON,
    BENCH_PLOT,
    BENCH_INPUT
};

static const option_row bench_rows[] = {
    {BENCH_PRESET, "preset", 0, ARGUMENT_REQUIRED, "NAME", "prefill (default), decode or paper"},
    {BENCH_SHAPE, "shape", 0, ARGUMENT_REQUIRED, "B,Hq,Hkv,Nq,Nk,D",
     "a shape, may be repeated; D also as QK:V, like 576:512"},
    {BENCH_DTYPE, "dtype", 0, ARGUMENT_REQUIRED, "TYPE", "f32 (default), f16 (of decode) or bf16"},
    {BENCH_CAUSAL, "causal", 0, ARGUMENT_NONE, NULL, "with --shape: causal (presets show both)"},
    {OPTION_WINDOW, "window", 0, ARGUMENT_REQUIRED, "L,R", "keys seen left and right of the row; -1: all"},
    {BENCH_BLOCK_SPARSE, "block-sparse", 0, ARGUMENT_REQUIRED, "DENSITY",
     "random lists of key tiles (128 x 128), this share of them"},
    {OPTION_PATH, "path", 0, ARGUMENT_REQUIRED, "NAME", "auto, portable, cpu, nvidia_mma or nvidia_wgmma"},
    {BENCH_REPEAT, "repeat", 0, ARGUMENT_REQUIRED, "N", "repetitions; default: for about a second"},
    {BENCH_NAIVE, "naive", 0, ARGUMENT_NONE, NULL, "also three kernels and an N x N buffer"},
    {BENCH_PHASE, "phase", 0, ARGUMENT_REQUIRED, "NAME",
     "prefill, decode or both; with --shape decode is the default for Nq <= 64"},
    {BENCH_KV_DTYPE, "kv-dtype", 0, ARGUMENT_REQUIRED, "TYPE",
     "decode: type of the cache: f16, i8, f8_e4m3, q8_0, q4_0, ...; or K,V apart"},
    {BENCH_PAGE_SIZE, "page-size", 0, ARGUMENT_REQUIRED, "N", "decode: K and V in pages of N tokens"},
    {BENCH_SPLITS, "splits", 0, ARGUMENT_REQUIRED, "N",
     "decode: splits of the keys; default: chosen by the library"},
    {BENCH_SETS, "sets", 0, ARGUMENT_REQUIRED, "N",
     "decode: sets of K and V in turns; default: more than caches hold"},
    {BENCH_JSON, "json", 0, ARGUMENT_REQUIRED, "FILE", "write the results as JSON"},
    {BENCH_PLOT, "plot", 0, ARGUMENT_REQUIRED, "FILE", "draw them by gnuplot: .svg or .png"},
    {BENCH_INPUT, "input", 0, ARGUMENT_REQUIRED, "FILE",
     "paper: q, k, v (safetensors) to show the deviation on"},
    {OPTION_END, NULL, 0, 0, NULL, NULL},
};

static const command_text bench_text = {
    "bench [--preset NAME | --shape B,Hq,Hkv,Nq,Nk,D] [options]",
    "Time (median; least; spread), rate and memory. GFLOP/s count 2*B*Hq*pairs*(D+Dv), pairs being those\n"
    "of query and key that causal bound, window and key tiles allow. The ceiling is the rate of plain\n"
    "multiply-adds on the same device, measured before. Preset paper shows naive against flash:\n"
    "deviation, memory, time. Decode is timed by the bytes of K and V that it reads, against the rates of\n"
    "copying and reading: the mean of calls back to back, over sets of K and V that caches do not hold.",
};

static int apply_preset(bench_options *o, const char *value)
{
    o->paper = strcmp(value, "paper") == 0;
    o->decode = strcmp(value, "decode") == 0;
    if (o->paper || o->decode || strcmp(value, "prefill") == 0)
        return CLI_OK;
    if (strcmp(value, "backward") == 0)
        return cli_fail(CLI_USAGE, "--preset %s is not offered by this version", value);
    return cli_fail(CLI_USAGE, "--preset '%.60s': expected prefill, decode or paper", value);
}

/* Five numbers, then the head dims. */
static int apply_shape(bench_options *o, const char *value)
{
    char numbers[160];
    const char *last = strrchr(value, ',');
    int count;
    if (!last || last - value >= (int)sizeof numbers)
        return cli_fail(CLI_USAGE, "--shape '%.60s': expected B,Hq,Hkv,Nq,Nk,D", value);
    if (o->num_shapes == BENCH_MAX_SHAPES)
        return cli_fail(CLI_USAGE, "--shape: expected at most %d times", BENCH_MAX_SHAPES);
    shape_option *shape = &o->shape[o->num_shapes++];
    cli_format(numbers, sizeof numbers, "%.*s", (int)(last - value), value);
    int status = option_integers("shape", numbers, ',', shape->size, 5, 5, &count);
    if (status == CLI_OK)
        status = option_head_dims("shape", last + 1, &shape->head_dim_qk, &shape->head_dim_v);
    if (status != CLI_OK)
        return status;
    const int64_t most[5] = {1 << 20, 1 << 20, 1 << 20, CLATTN_MAX_LENGTH, CLATTN_MAX_LENGTH};
    for (int i = 0; i < 5; i++)
        if (shape->size[i] < 1 || shape->size[i] > most[i])
            return cli_fail(CLI_USAGE, "--shape '%.60s': expected numbers from 1 to %" PRId64, value,
                            most[i]);
    if (shape->size[1] % shape->size[2] != 0)
        return cli_fail(CLI_USAGE, "--shape '%.60s': expected Hq to be a multiple of Hkv", value);
    return CLI_OK;
}

static int apply_window(bench_options *o, const char *name, const char *value)
{
    int count;
    const int status = option_integers(name, value, ',', o->window, 2, 2, &count);
    if (status == CLI_OK && (o->window[0] < -1 || o->window[1] < -1))
        return cli_fail(CLI_USAGE, "--window '%.60s': expected numbers >= -1", value);
    o->has_window = 1;
    return status;
}

static int apply_block_sparse(bench_options *o, const char *name, const char *value)
{
    const int status = option_number(name, value, &o->block_sparse);
    if (status == CLI_OK && !(o->block_sparse > 0 && o->block_sparse <= 1))
        return cli_fail(CLI_USAGE, "--block-sparse '%.60s': expected a number above 0, at most 1", value);
    return status;
}

static int apply_count(const char *name, const char *value, int64_t most, int64_t *out)
{
    const int status = option_integer(name, value, out);
    if (status == CLI_OK && (*out < 1 || *out > most))
        return cli_fail(CLI_USAGE, "--%s '%.60s': expected 1 to %" PRId64, name, value, most);
    return status;
}

static int apply(void *user, int id, const char *name, const char *value)
{
    bench_options *o = user;
    switch (id) {
    case BENCH_PRESET:
        return apply_preset(o, value);
    case BENCH_SHAPE:
        return apply_shape(o, value);
    case BENCH_DTYPE:
        return option_dtypes(name, value, o->dtype);
    case BENCH_CAUSAL:
        o->causal = 1;
        return CLI_OK;
    case OPTION_WINDOW:
        return apply_window(o, name, value);
    case BENCH_BLOCK_SPARSE:
        return apply_block_sparse(o, name, value);
    case OPTION_PATH:
        return option_path(name, value, &o->path);
    case BENCH_REPEAT:
        return apply_count(name, value, 1000, &o->repeat);
    case BENCH_NAIVE:
        o->naive = 1;
        return CLI_OK;
    case BENCH_PHASE:
        o->has_phase = 1;
        return option_phase(name, value, &o->phase);
    case BENCH_KV_DTYPE:
        return option_kv_dtypes(name, value, o->kv_dtype);
    case BENCH_PAGE_SIZE:
        return apply_count(name, value, 1 << 20, &o->page_size);
    case BENCH_SPLITS:
        return apply_count(name, value, CLATTN_MAX_SPLITS, &o->splits);
    case BENCH_SETS:
        return apply_count(name, value, BENCH_MAX_SETS, &o->sets);
    case BENCH_JSON:
        o->json = value;
        return CLI_OK;
    case BENCH_PLOT:
        o->plot = value;
        return bench_plot_check(value);
    default:
        o->input = value;
        return CLI_OK;
    }
}

/* Whether the bytes of K and V are what counts. */
static int is_decode(const bench_options *o)
{
    const int serving = o->kv_dtype[0] || o->page_size || o->splits || o->sets;
    int few_rows = o->num_shapes > 0 && !o->naive && !(o->block_sparse > 0);
    for (int i = 0; i < o->num_shapes; i++)
        few_rows = few_rows && o->shape[i].size[3] <= BENCH_DECODE_ROWS;
    return o->decode || serving || (o->has_phase ? o->phase != CLATTN_PHASE_PREFILL : few_rows);
}

static int check_options(const bench_options *o)
{
    const int uniform =
        o->dtype[0] == o->dtype[1] && o->dtype[0] == o->dtype[2] && o->dtype[0] == o->dtype[3];
    if (o->paper && o->num_shapes)
        return cli_fail(CLI_USAGE, "--shape: expected instead of --preset paper, not beside it");
    if (o->decode && o->num_shapes)
        return cli_fail(CLI_USAGE, "--shape: expected instead of --preset decode, not beside it");
    if (is_decode(o) && !o->decode && !o->num_shapes)
        return cli_fail(CLI_USAGE,
                        "--phase, --kv-dtype, --page-size, --splits, --sets: expected with --preset "
                        "decode or --shape");
    if (is_decode(o) && (o->naive || o->block_sparse > 0 || o->plot))
        return cli_fail(CLI_USAGE, "--%s: not offered for decode",
                        o->naive  ? "naive"
                        : o->plot ? "plot"
                                  : "block-sparse");
    if (o->input && !o->paper)
        return cli_fail(CLI_USAGE, "--input: expected with --preset paper only");
    if ((o->naive || o->paper) && (o->has_window || o->block_sparse > 0))
        return cli_fail(CLI_USAGE, "--%s: naive attention is offered without it only",
                        o->has_window ? "window" : "block-sparse");
    if ((o->naive || o->paper) && !uniform)
        return cli_fail(CLI_USAGE, "--dtype: naive attention is offered with one type for all tensors only");
    return CLI_OK;
}

/* ---- Shapes -------------------------------------------------------------------------------------
 */

int bench_need_naive(bench_state *state)
{
    if (state->naive_open)
        return CLI_OK;
    const int status = naive_program_open(&state->naive, &state->device, state->options->dtype[0]);
    state->naive_open = status == CLI_OK;
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
                               call, state->options->repeat, 1.0);
    if (status == CLI_OK)
        status = bench_results_add(&state->results, call, naive, &time, &state->ceiling);
    progress_clear();
    if (status == CLI_OK)
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
    if (o->has_window || o->block_sparse > 0)
        printf("\n");
}

static int run_list(bench_state *state)
{
    const bench_options *o = state->options;
    print_conditions(o);
    if (o->decode)
        return bench_run_decode_preset(state);
    if (is_decode(o))
        bench_print_decode_heading();
    else
        print_heading();
    if (o->num_shapes == 0)
        return run_prefill(state);
    int status = CLI_OK;
    for (int i = 0; status == CLI_OK && i < o->num_shapes; i++) {
        const shape_option *s = &o->shape[i];
        const bench_shape shape = {s->size[0], s->size[1],     s->size[2],    s->size[3],
                                   s->size[4], s->head_dim_qk, s->head_dim_v, o->causal};
        status =
            is_decode(o) ? bench_run_decode(state, &shape, o->page_size) : bench_run_shape(state, &shape);
    }
    return status;
}

/* ---- The command --------------------------------------------------------------------------------
 */

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
    printf("ceilings  %.1f GFLOP/s by multiply-adds in f32, %.1f GB/s by copying, %.1f GB/s by reading\n\n",
           state->ceiling.fma_flops * 1e-9, state->ceiling.copy_bytes * 1e-9,
           state->ceiling.read_bytes * 1e-9);
    status = o->paper ? bench_run_paper(state) : run_list(state);
    progress_clear();
    if (status == CLI_OK && o->json)
        status = bench_write_json(&state->results, &state->device, &state->ceiling, o->json);
    if (status == CLI_OK && o->plot)
        status = bench_write_plot(&state->results, &state->device, o->plot);
    return status;
}

int cmd_bench(int argc, char **argv)
{
    bench_options o = {0};
    bench_state state = {0};
    const option_set set = {{bench_rows}, apply, &o};
    int operands;
    int status = options_parse(&set, &o.common, argc, argv, &operands);
    for (int i = 0; i < 4; i++) /* without --dtype */
        if (!o.dtype[i])
            o.dtype[i] = is_decode(&o) ? CLATTN_DTYPE_F16 : CLATTN_DTYPE_F32;
    if (status != CLI_OK)
        return status;
    if (o.common.help) {
        options_print_help(&set, &bench_text);
        return CLI_OK;
    }
    if (operands > 0)
        return cli_fail(CLI_USAGE, "unexpected argument '%.100s'", argv[0]);
    status = check_options(&o);
    if (status != CLI_OK)
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
