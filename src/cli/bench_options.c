/* bench_options.c: what `clattn bench` is told. */
#include "bench.h"

#include "cli.h"
#include "plan_options.h"
#include "serving_options.h"
#include "tensor_convert.h"

#include <inttypes.h>
#include <string.h>

enum {
    BENCH_PRESET = OPTION_COMMAND,
    BENCH_SHAPE,
    BENCH_DTYPE,
    BENCH_CAUSAL,
    BENCH_BLOCK_SPARSE,
    BENCH_SINKS,
    BENCH_LENS,
    BENCH_SEQLENS,
    BENCH_REPEAT,
    BENCH_SECONDS,
    BENCH_NAIVE,
    BENCH_PHASE,
    BENCH_KV_DTYPE,
    BENCH_PAGE_SIZE,
    BENCH_SPLITS,
    BENCH_SETS,
    BENCH_JSON,
    BENCH_LINES,
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
    {OPTION_LAYOUT, "layout", 0, ARGUMENT_REQUIRED, "bhsd|bshd", "of q, k, v and o; default: bhsd"},
    {OPTION_LSE, "lse", 0, ARGUMENT_NONE, NULL, "also the log-sum-exp of every row"},
    {OPTION_SOFTCAP, "softcap", 0, ARGUMENT_REQUIRED, "X", "scores become X * tanh(score / X)"},
    {OPTION_ALIBI_MAX_BIAS, "alibi-max-bias", 0, ARGUMENT_REQUIRED, "M",
     "ALiBi with the standard slopes (8 is usual)"},
    {BENCH_SINKS, "sinks", 0, ARGUMENT_NONE, NULL, "a logit of each head in the denominator"},
    {BENCH_LENS, "lens", 0, ARGUMENT_NONE, NULL,
     "lengths of each batch entry in device memory: the whole ones"},
    {BENCH_SEQLENS, "seqlens", 0, ARGUMENT_REQUIRED, "N,N,...",
     "packed sequences of these lengths; of the shape, heads and D count"},
    {BENCH_REPEAT, "repeat", 0, ARGUMENT_REQUIRED, "N", "repetitions; default: for about a second"},
    {BENCH_SECONDS, "seconds", 0, ARGUMENT_REQUIRED, "S",
     "time for a measurement, shared by the repetitions if their number is given"},
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
    {BENCH_LINES, "lines", 0, ARGUMENT_NONE, NULL,
     "read options of measurements from standard input, a line each; results as lines of JSON"},
    {BENCH_PLOT, "plot", 0, ARGUMENT_REQUIRED, "FILE", "draw them by gnuplot: .svg or .png"},
    {BENCH_INPUT, "input", 0, ARGUMENT_REQUIRED, "FILE",
     "paper: q, k, v (safetensors) to show the deviation on"},
    {OPTION_END, NULL, 0, 0, NULL, NULL},
};

static const command_text bench_text = {
    "bench [--preset NAME | --shape B,Hq,Hkv,Nq,Nk,D] [options]",
    "Time (median; least; spread), rate and memory. GFLOP/s count 2*B*Hq*pairs*(D+Dv), pairs being those\n"
    "of query and key that causal bound, window and key tiles allow. The ceiling is the device's rate of\n"
    "multiply-adds in f32, or of its matrix units for paths that use them, measured before. Preset paper\n"
    "shows naive against flash: deviation, memory, time. Decode is timed by the bytes of K and V that it\n"
    "reads, against the rates of copying and reading: the mean of calls back to back, over sets of K and V\n"
    "that caches do not hold.",
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

int bench_option_shape(bench_options *o, const char *value)
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

static int apply_seqlens(bench_options *o, const char *name, const char *value)
{
    const int status = option_integers(name, value, ',', o->seqlens, 1, BENCH_MAX_SEQLENS, &o->num_seqlens);
    for (int i = 0; status == CLI_OK && i < o->num_seqlens; i++)
        if (o->seqlens[i] < 0 || o->seqlens[i] > CLATTN_MAX_LENGTH)
            return cli_fail(CLI_USAGE, "--seqlens '%.60s': expected numbers from 0 to %d", value,
                            CLATTN_MAX_LENGTH);
    return status;
}

static int apply_seconds(bench_options *o, const char *name, const char *value)
{
    const int status = option_number(name, value, &o->seconds);
    if (status == CLI_OK && !(o->seconds > 0 && o->seconds <= 600))
        return cli_fail(CLI_USAGE, "--seconds '%.60s': expected a number above 0, at most 600", value);
    return status;
}

static int apply(void *user, int id, const char *name, const char *value)
{
    bench_options *o = user;
    switch (id) {
    case BENCH_PRESET:
        return apply_preset(o, value);
    case BENCH_SHAPE:
        return bench_option_shape(o, value);
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
    case OPTION_LAYOUT:
    case OPTION_LSE:
    case OPTION_SOFTCAP:
    case OPTION_ALIBI_MAX_BIAS:
        return call_options_apply(&o->call, id, name, value);
    case BENCH_SINKS:
        o->sinks = 1;
        return CLI_OK;
    case BENCH_LENS:
        o->lens = 1;
        return CLI_OK;
    case BENCH_SEQLENS:
        return apply_seqlens(o, name, value);
    case BENCH_SECONDS:
        return apply_seconds(o, name, value);
    case BENCH_LINES:
        o->lines = 1;
        return CLI_OK;
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

/* What neither decode nor naive attention knows; NULL: nothing of it. */
static const char *flash_option(const bench_options *o)
{
    return o->block_sparse > 0          ? "block-sparse"
           : o->call.layout_bshd        ? "layout"
           : o->call.want_lse           ? "lse"
           : o->call.softcap > 0        ? "softcap"
           : o->call.alibi_max_bias > 0 ? "alibi-max-bias"
           : o->sinks                   ? "sinks"
           : o->lens                    ? "lens"
           : o->num_seqlens > 0         ? "seqlens"
                                        : NULL;
}

static const char *prefill_option(const bench_options *o)
{
    return o->naive ? "naive" : o->plot ? "plot" : flash_option(o);
}

int bench_is_decode(const bench_options *o)
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
    if (bench_is_decode(o) && !o->decode && !o->num_shapes)
        return cli_fail(CLI_USAGE,
                        "--phase, --kv-dtype, --page-size, --splits, --sets: expected with --preset "
                        "decode or --shape");
    if (bench_is_decode(o) && prefill_option(o))
        return cli_fail(CLI_USAGE, "--%s: not offered for decode", prefill_option(o));
    if (o->input && !o->paper)
        return cli_fail(CLI_USAGE, "--input: expected with --preset paper only");
    if ((o->naive || o->paper) && (o->has_window || flash_option(o)))
        return cli_fail(CLI_USAGE, "--%s: naive attention is offered without it only",
                        o->has_window ? "window" : flash_option(o));
    if (o->num_seqlens > 0 && (!o->num_shapes || o->lens || o->block_sparse > 0))
        return cli_fail(CLI_USAGE, "--seqlens: expected with --shape, without --lens and --block-sparse");
    if (o->lines && (o->num_shapes || o->paper || o->decode || o->json || o->plot || o->input))
        return cli_fail(CLI_USAGE, "--lines: expected without options that say what is measured");
    if ((o->naive || o->paper) && !uniform)
        return cli_fail(CLI_USAGE, "--dtype: naive attention is offered with one type for all tensors only");
    return CLI_OK;
}

int bench_options_parse(bench_options *out, int argc, char **argv)
{
    memset(out, 0, sizeof *out);
    const option_set set = {{bench_rows}, apply, out};
    int operands;
    const int status = options_parse(&set, &out->common, argc, argv, &operands);
    for (int i = 0; i < 4; i++) /* without --dtype */
        if (!out->dtype[i])
            out->dtype[i] = bench_is_decode(out) ? CLATTN_DTYPE_F16 : CLATTN_DTYPE_F32;
    if (status != CLI_OK)
        return status;
    if (out->common.help) {
        options_print_help(&set, &bench_text);
        return CLI_OK;
    }
    if (operands > 0)
        return cli_fail(CLI_USAGE, "unexpected argument '%.100s'", argv[0]);
    return check_options(out);
}
