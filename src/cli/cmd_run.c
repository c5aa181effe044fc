/* cmd_run.c: one attention call on tensors from a file. */
#include "attention_case.h"
#include "case_layout.h"
#include "cli.h"
#include "cli_device.h"
#include "cli_platform.h"
#include "device_call.h"
#include "device_serving.h"
#include "progress.h"
#include "tensor_convert.h"
#include "verify.h"

#include <cjson/cJSON.h>

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { RUN_OUTPUT = OPTION_COMMAND, RUN_REPEAT, RUN_SAVE_CASE };

static const option_row run_rows[] = {
    {RUN_OUTPUT, "output", 'o', ARGUMENT_REQUIRED, "FILE", "where o (and lse) go"},
    {RUN_REPEAT, "repeat", 0, ARGUMENT_REQUIRED, "N", "run N times and print the median time"},
    {RUN_SAVE_CASE, "save-case", 0, ARGUMENT_REQUIRED, "FILE",
     "write inputs and options, for `clattn run FILE`"},
    {OPTION_JSON, "json", 0, ARGUMENT_NONE, NULL, "print what was done as JSON"},
    {OPTION_END, NULL, 0, 0, NULL, NULL},
};

static const command_text run_text = {
    "run IN.safetensors -o OUT.safetensors [options]",
    "Runs one attention call on the tensors of IN:\n"
    "  q [B,Hq,Nq,D]   k [B,Hkv,Nk,D]   v [B,Hkv,Nk,Dv]     F32, F16 or BF16, each its own\n"
    "and, each if it is there:\n"
    "  bias, mask           broadcastable to [B,Hq,Nq,Nk]: rank 1 to 4, aligned right; mask BOOL or U8\n"
    "  bias_head_scale      [Hq] F32, multiplies the bias\n"
    "  alibi_slopes         [Hq] or [B,Hq] F32 (or --alibi-max-bias)\n"
    "  sinks                [Hq] F32\n"
    "  q_lens, kv_lens      [B] I32, valid lengths\n"
    "  offsets              [B] I32, positions of row 0 (instead of --offset)\n"
    "  tiles_count          [B|1,Hq|1,T] I32, and\n"
    "  tiles_index          [B|1,Hq|1,T,capacity] I32, with --tiles: which key tiles may be seen\n"
    "  user                 any type and shape, for --score-mod and --mask-mod\n"
    "Packed sequences, pages and caches:\n"
    "  cu_seqlens_q         [B+1] I32: q is [total,Hq,D], likewise o and k_new; lse is [Hq,total]\n"
    "  cu_seqlens_k         [B+1] I32: k and v are [total,Hkv,D]\n"
    "  block_table          [B,blocks] I32, with kv_lens: k and v are [pages,page,Hkv,D], whatever --layout\n"
    "                       says (--strides lays them out otherwise on the device)\n"
    "  k, v                 also I8, F8_E4M3, F8_E5M2, or U8 holding blocks of 32 elements: then\n"
    "                       --kv-dtype tells their type, and the last axis counts bytes\n"
    "  k_scale, v_scale     F32, with I8 and F8: [1], [Hkv], or k's shape without its last axis\n"
    "  k_new, v_new         [B,Hkv,Nn,D], appended to k and v at kv_lens; attention then sees both\n"
    "  rope_cos, rope_sin   [positions,rotary_dim/2] F32, with --rope (without them: --rope-base)\n"
    "Bias and mask of packed sequences and pages count rows and keys within their sequence, up to the "
    "longest.\n"
    "OUT gets o and, with --lse, lse; with --emit-cache also k, v and their scales. A file made by "
    "--save-case\n"
    "needs no options and no -o.",
};

typedef struct run_options {
    call_options call;
    const char *output, *save_case;
    int64_t repeat;
    int json;
    void *saved; /* owns texts that came from the file; NULL: none */
} run_options;

static int apply(void *user, int id, const char *name, const char *value)
{
    run_options *o = user;
    switch (id) {
    case RUN_OUTPUT:
        o->output = value;
        return CLI_OK;
    case RUN_SAVE_CASE:
        o->save_case = value;
        return CLI_OK;
    case RUN_REPEAT: {
        const int status = option_integer(name, value, &o->repeat);
        if (status == CLI_OK && (o->repeat < 1 || o->repeat > 1000000))
            return cli_fail(CLI_USAGE, "--repeat '%.60s': expected 1 to 1000000", value);
        return status;
    }
    case OPTION_JSON:
        o->json = 1;
        return CLI_OK;
    default:
        return call_options_apply(&o->call, id, name, value);
    }
}

/* The file's own options first, so that those of the command line overrule them. */
static int read_options(run_options *o, common_options *common, const option_set *set, int argc, char **argv,
                        const safetensors_file *file, const char *path)
{
    const char *saved = case_saved_options(file);
    int operands, status = CLI_OK;
    memset(o, 0, sizeof *o);
    memset(common, 0, sizeof *common);
    if (saved)
        status = call_options_from_json(&o->call, common, saved, path, &o->saved);
    if (status == CLI_OK)
        status = options_parse(set, common, argc, argv, &operands);
    if (status == CLI_OK)
        status = call_options_check(&o->call);
    if (status == CLI_OK && !o->output && !saved && !o->save_case && !o->repeat)
        return cli_fail(CLI_USAGE, "-o OUT.safetensors is missing");
    return status;
}

/* What came back from the device. */
typedef struct run_results {
    unsigned char *o;
    float *lse; /* NULL without --lse */
    case_state state;
    char wrong[256]; /* rows that were not written, writes where none belong; empty: none */
} run_results;

static void results_release(run_results *results)
{
    free(results->o);
    free(results->lse);
    case_state_release(&results->state);
}

static int fetch_results(device_call *call, run_results *out)
{
    memset(out, 0, sizeof *out);
    int status = device_call_fetch(call, &out->o, &out->lse, out->wrong, sizeof out->wrong);
    if (status == CLI_OK)
        status = device_serving_fetch(call, &out->state, out->wrong, sizeof out->wrong);
    if (status != CLI_OK)
        results_release(out);
    return status;
}

static int compare_doubles(const void *a, const void *b)
{
    const double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

/* Runs once; or --repeat times after one that warms up. *median in seconds, 0 if nothing was timed.
 */
static int run_call(device_call *call, int64_t repeat, double *median)
{
    *median = 0;
    int status = device_call_poison(call);
    if (status == CLI_OK)
        status = device_call_enqueue(call);
    if (status == CLI_OK)
        status = device_call_finish(call);
    if (status != CLI_OK || repeat == 0)
        return status;
    double *times = malloc((size_t)repeat * sizeof *times);
    if (!times)
        return cli_fail(CLI_FAILED, "out of memory");
    for (int64_t i = 0; status == CLI_OK && i < repeat; i++) {
        progress_show("run %" PRId64 " of %" PRId64, i + 1, repeat);
        const double start = platform_seconds();
        status = device_call_enqueue(call);
        if (status == CLI_OK)
            status = device_call_finish(call);
        times[i] = platform_seconds() - start;
    }
    progress_clear();
    qsort(times, (size_t)repeat, sizeof *times, compare_doubles);
    *median = (times[(repeat - 1) / 2] + times[repeat / 2]) / 2;
    free(times);
    return status;
}

static void add_tensor(safetensors_tensor *out, const case_tensor *t, const char *name, const void *values)
{
    memset(out, 0, sizeof *out);
    out->name = name;
    out->dtype = t->file_dtype;
    out->rank = t->rank;
    memcpy(out->shape, t->shape, sizeof out->shape);
    out->data = values;
    out->bytes = (size_t)case_elements(t) * t->element;
}

/* k, v and their scales, as the call left them. Scales that stand for many keep the shape that they had. */
static size_t add_caches(safetensors_tensor *out, const attention_case *c, const case_state *state)
{
    size_t count = 0;
    for (int i = STATE_K; i < STATE_COUNT; i++) {
        const case_tensor *t = &c->tensor[state_tensors[i]];
        if (!t->present)
            continue;
        add_tensor(&out[count], t, tensor_names[state_tensors[i]], case_state_values(c, state, i));
        if (!state->values[i])
            out[count].bytes = t->value_bytes;
        count++;
    }
    return count;
}

static int write_output(const run_options *o, const attention_case *c, const run_results *results)
{
    safetensors_tensor tensors[2 + STATE_COUNT];
    size_t count = 0;
    add_tensor(&tensors[count++], &c->tensor[TENSOR_O], tensor_names[TENSOR_O], results->o);
    if (results->lse)
        add_tensor(&tensors[count++], &c->tensor[TENSOR_LSE], tensor_names[TENSOR_LSE], results->lse);
    if (o->call.serving.emit_cache)
        count += add_caches(tensors + count, c, &results->state);
    char error[400];
    if (safetensors_write(o->output, tensors, count, NULL, 0, error, sizeof error) != 0)
        return cli_fail(CLI_FAILED, "%s", error);
    return CLI_OK;
}

/* What is told at the end. */
typedef struct run_report {
    double median;
    const verdict *verdict; /* NULL without --verify */
} run_report;

static void print_text(const run_options *o, const device_call *call, const run_report *report)
{
    char plan[1024], shape[128];
    const case_tensor *out = &call->c->tensor[TENSOR_O];
    device_call_describe(call, plan, sizeof plan);
    safetensors_shape_text(shape, sizeof shape, out->shape, out->rank);
    printf("device   %s\n", call->device->entry.name);
    printf("plan     %s\n", plan);
    printf("output   o %s %s%s%s%s\n", dtype_name(out->dtype), shape, o->call.want_lse ? ", lse" : "",
           o->output ? " -> " : "", o->output ? o->output : "");
    printf("memory   %" PRIu64 " bytes on the device\n", call->device_bytes);
    if (report->median > 0)
        printf("time     %.4f ms (median of %" PRId64 ")\n", report->median * 1e3, o->repeat);
    if (report->verdict)
        printf("verify   %s: o off by %.3g (allowed %.3g)%s\n", report->verdict->passed ? "passed" : "FAILED",
               report->verdict->error, report->verdict->allowed,
               report->verdict->passed ? "" : "; see stderr");
}

static void print_json(const run_options *o, const device_call *call, const run_report *report)
{
    char plan[1024];
    const case_tensor *out = &call->c->tensor[TENSOR_O];
    device_call_describe(call, plan, sizeof plan);
    cJSON *json = cJSON_CreateObject();
    cJSON_AddStringToObject(json, "device", call->device->entry.name);
    cJSON_AddStringToObject(json, "plan", plan);
    cJSON_AddStringToObject(json, "dtype", dtype_name(out->dtype));
    cJSON *shape = cJSON_AddArrayToObject(json, "shape");
    for (int i = 0; i < out->rank; i++)
        cJSON_AddItemToArray(shape, cJSON_CreateNumber((double)out->shape[i]));
    cJSON_AddNumberToObject(json, "device_bytes", (double)call->device_bytes);
    if (o->output)
        cJSON_AddStringToObject(json, "output", o->output);
    if (report->median > 0)
        cJSON_AddNumberToObject(json, "time_ms_median", report->median * 1e3);
    if (report->verdict) {
        cJSON_AddBoolToObject(json, "verified", report->verdict->passed);
        cJSON_AddNumberToObject(json, "error", report->verdict->error);
        cJSON_AddNumberToObject(json, "allowed", report->verdict->allowed);
    }
    char *text = cJSON_Print(json);
    if (text)
        puts(text);
    cJSON_free(text);
    cJSON_Delete(json);
}

static int verify(verdict *v, device_call *call, const run_results *r)
{
    const call_options *o = &call->c->options;
    mod_evaluator mods;
    if (!o->score_mod && !o->mask_mod)
        return verify_result(v, call->c, &r->state, r->o, r->lse, NULL);
    int status = mod_evaluator_open(&mods, call->device, call->c);
    if (status == CLI_OK) {
        status = verify_result(v, call->c, &r->state, r->o, r->lse, &mods);
        mod_evaluator_close(&mods);
    }
    return status;
}

/* The part with results in hand: checks, file, report. */
static int deliver(const run_options *o, device_call *call, double median, const run_results *results)
{
    verdict v;
    run_report report = {median, NULL};
    int status = CLI_OK;
    if (results->wrong[0])
        return cli_fail(CLI_FAILED, "%s", results->wrong);
    if (o->call.verify) {
        status = verify(&v, call, results);
        if (status != CLI_OK)
            return status;
        report.verdict = &v;
    }
    if (o->output)
        status = write_output(o, call->c, results);
    if (status == CLI_OK && o->json)
        print_json(o, call, &report);
    else if (status == CLI_OK)
        print_text(o, call, &report);
    if (status == CLI_OK && report.verdict && !v.passed) {
        fflush(stdout);
        return cli_fail(CLI_FAILED, "%s", v.reason);
    }
    return status;
}

/* Numbers of the file that only the device could find wrong. */
static int refuse_trouble(device_call *call, const char *path)
{
    char trouble[300];
    const int status = device_serving_trouble(call, trouble, sizeof trouble);
    return status == CLI_OK && trouble[0] ? cli_fail(CLI_USAGE, "%.200s: %s", path, trouble) : status;
}

static int run_opened(const run_options *o, device_call *call, const char *path)
{
    double median;
    run_results results;
    int status = run_call(call, o->repeat, &median);
    if (status == CLI_OK)
        status = refuse_trouble(call, path);
    if (status == CLI_OK)
        status = fetch_results(call, &results);
    if (status != CLI_OK)
        return status;
    status = deliver(o, call, median, &results);
    results_release(&results);
    return status;
}

static int run_on_device(const run_options *o, const common_options *common, const attention_case *c,
                         const char *path)
{
    cli_device device;
    device_call call;
    int status = cli_device_open(&device, common);
    if (status != CLI_OK)
        return status;
    status = device_call_open(&call, &device, c);
    if (status == CLI_OK) {
        status = run_opened(o, &call, path);
        device_call_close(&call);
    }
    cli_device_close(&device);
    return status;
}

static int run_file(const option_set *set, run_options *o, int argc, char **argv, const char *path)
{
    char error[800];
    safetensors_file file;
    common_options common;
    attention_case c;
    if (safetensors_read(&file, path, error, sizeof error) != 0)
        return cli_fail(CLI_USAGE, "%s", error);
    int status = read_options(o, &common, set, argc, argv, &file, path);
    if (status == CLI_OK)
        status = case_from_file(&c, &file, path, &o->call);
    if (status == CLI_OK) {
        if (o->save_case)
            status = case_save(&c, o->save_case, common.local_bytes);
        if (status == CLI_OK)
            status = run_on_device(o, &common, &c, path);
        case_release(&c);
    }
    call_options_free_owner(o->saved);
    safetensors_close(&file);
    return status;
}

int cmd_run(int argc, char **argv)
{
    run_options o = {0};
    common_options common = {0};
    const option_set set = {{run_rows, call_rows, serving_rows, call_rows_not_offered}, apply, &o};
    int operands;
    /* A first pass finds the file, whose own options come before those of the command line; it
     * works on a copy, because parsing moves the arguments. */
    char **words = malloc((size_t)argc * sizeof *words);
    if (!words)
        return cli_fail(CLI_FAILED, "out of memory");
    memcpy(words, argv, (size_t)argc * sizeof *words);
    int status = options_parse(&set, &common, argc, words, &operands);
    const char *path = status == CLI_OK && operands > 0 ? words[0] : NULL;
    if (status == CLI_OK && common.help)
        options_print_help(&set, &run_text);
    else if (status == CLI_OK && !path)
        status = cli_fail(CLI_USAGE, "IN.safetensors is missing");
    else if (status == CLI_OK && operands > 1)
        status = cli_fail(CLI_USAGE, "unexpected argument '%.100s'", words[1]);
    else if (status == CLI_OK)
        status = run_file(&set, &o, argc, argv, path);
    free(words);
    return status;
}
