/* cmd_check.c: every path of the device against the reference. */
#include "check_run.h"
#include "cli.h"
#include "cli_device.h"
#include "cli_platform.h"
#include "progress.h"
#include "serving_options.h"
#include "tensor_convert.h"

#include <cjson/cJSON.h>

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum { CHECK_QUICK = OPTION_COMMAND, CHECK_SEED, CHECK_CASES, CHECK_VARIANTS, CHECK_REPEAT, CHECK_SECONDS };

static const option_row check_rows[] = {
    {CHECK_QUICK, "quick", 0, ARGUMENT_NONE, NULL,
     "a few programs only (on CPUs, portable with small tiles)"},
    {OPTION_PATH, "path", 0, ARGUMENT_REQUIRED, "NAME",
     "only this path: portable, cpu, nvidia_mma or nvidia_wgmma"},
    {OPTION_PHASE, "phase", 0, ARGUMENT_REQUIRED, "NAME", "only these kernels: prefill or decode"},
    {CHECK_VARIANTS, "variants", 0, ARGUMENT_REQUIRED, "NAME",
     "only these groups: lean, full, dims, mods, sequences or pages"},
    {CHECK_REPEAT, "repeat", 0, ARGUMENT_REQUIRED, "N",
     "runs of every case, which have to give the same bits"},
    {CHECK_SECONDS, "seconds", 0, ARGUMENT_REQUIRED, "S", "stop after so long, with what was run"},
    {CHECK_SEED, "seed", 0, ARGUMENT_REQUIRED, "N", "repeats the random inputs of an earlier check"},
    {CHECK_CASES, "save-cases", 0, ARGUMENT_REQUIRED, "DIR", "where failing cases go; default: here"},
    {OPTION_JSON, "json", 0, ARGUMENT_NONE, NULL, "print the result as JSON"},
    {OPTION_END, NULL, 0, 0, NULL, NULL},
};

static const command_text check_text = {
    "check [--quick] [options]",
    "Runs every path that the device offers over a grid of shapes, types and features and compares with\n"
    "a double-precision reference: error <= 2 x that of the textbook computation in the same precision\n"
    "(inputs, scores and weights rounded to the storage type) + a floor of 2^-18 (f32), 2^-10 (f16) or\n"
    "2^-7 (bf16) of the largest value, and 2^-22 more for each unit of the largest score. Outputs are\n"
    "poisoned and lie between guard zones; k and v hold NaN and infinity at keys that no row may see;\n"
    "in some cases a seventh of the keys is 10 or 200 times as large.\n"
    "Of caches that tokens are appended to, every row is looked at.\n"
    "Each failure is saved, with the command that repeats it.",
};

enum { MAX_SAVED = 10 };

typedef struct check_state {
    cli_device device, small;
    cli_device *used;     /* by the path at hand: one of the two */
    uint64_t local_bytes; /* its limit, 0: none; so that a saved case has it too */
    int32_t path;         /* CLATTN_PATH_AUTO: all */
    int32_t phase;        /* CLATTN_PHASE_BOTH: all */
    int variants;         /* CHECK_* of groups; -1: all */
    int quick;
    int json;
    int64_t seed;
    int64_t repeat; /* runs of a case */
    float seconds;  /* 0: all cases are run */
    double begin;
    const char *directory;
    int cases, failed, saved;
    cJSON *groups, *failures; /* with --json */
} check_state;

static const char *const variant_names[] = {"lean", "full",      "dims",
                                            "mods", "sequences", "pages"}; /* as CHECK_* */

static int apply_variants(check_state *s, const char *value)
{
    for (int i = CHECK_LEAN; i <= CHECK_PAGES; i++)
        if (strcmp(variant_names[i], value) == 0) {
            s->variants = i;
            return CLI_OK;
        }
    return cli_fail(CLI_USAGE, "--variants '%.60s': expected lean, full, dims, mods, sequences or pages",
                    value);
}

static int apply(void *user, int id, const char *name, const char *value)
{
    check_state *s = user;
    switch (id) {
    case CHECK_QUICK:
        s->quick = 1;
        return CLI_OK;
    case CHECK_CASES:
        s->directory = value;
        return CLI_OK;
    case CHECK_SEED: {
        const int status = option_integer(name, value, &s->seed);
        return status == CLI_OK && s->seed < 1
                   ? cli_fail(CLI_USAGE, "--seed '%.60s': expected a number >= 1", value)
                   : status;
    }
    case OPTION_PATH:
        return option_path(name, value, &s->path);
    case CHECK_SECONDS: {
        const int status = option_number(name, value, &s->seconds);
        return status == CLI_OK && !(s->seconds > 0)
                   ? cli_fail(CLI_USAGE, "--seconds '%.60s': expected a number above 0", value)
                   : status;
    }
    case CHECK_REPEAT: {
        const int status = option_integer(name, value, &s->repeat);
        return status == CLI_OK && (s->repeat < 1 || s->repeat > 1000)
                   ? cli_fail(CLI_USAGE, "--repeat '%.60s': expected 1 to 1000", value)
                   : status;
    }
    case CHECK_VARIANTS:
        return apply_variants(s, value);
    case OPTION_PHASE:
        return option_phase(name, value, &s->phase);
    default:
        s->json = 1;
        return CLI_OK;
    }
}

/* ---- Failures -----------------------------------------------------------------------------------
 */

static void report_failure(check_state *s, const check_case *check, const char *reason)
{
    char path[600], command[640] = "";
    if (s->saved < MAX_SAVED) {
        cli_format(path, sizeof path, "%.400s/clattn-check-%" PRId64 "-%d.safetensors", s->directory, s->seed,
                   s->failed);
        if (case_save(&check->c, path, s->local_bytes) == CLI_OK) {
            s->saved++;
            cli_format(command, sizeof command, "clattn run %s", path);
        }
    }
    progress_clear();
    if (s->json) {
        cJSON *entry = cJSON_CreateObject();
        cJSON_AddStringToObject(entry, "path", path_name(check->c.options.path));
        cJSON_AddStringToObject(entry, "case", check->name);
        cJSON_AddStringToObject(entry, "reason", reason);
        cJSON_AddStringToObject(entry, "command", command);
        cJSON_AddItemToArray(s->failures, entry);
    } else {
        printf("  FAILED  %s: %s\n", check->name, reason);
        if (command[0])
            printf("          repeat: %s\n", command);
        fflush(stdout);
    }
}

/* ---- One group ----------------------------------------------------------------------------------
 */

typedef struct group_result {
    int cases, failed;
    double share, seconds;
} group_result;

static void group_types(const check_group *group, char *out, size_t capacity)
{
    const int32_t *t = group->dtype;
    if (t[0] == t[1] && t[1] == t[2] && t[2] == t[3])
        cli_format(out, capacity, "%s", dtype_name(t[0]));
    else
        cli_format(out, capacity, "%s,%s,%s,%s", dtype_name(t[0]), dtype_name(t[1]), dtype_name(t[2]),
                   dtype_name(t[3]));
}

static const char *phase_of(const check_group *group)
{
    return group->phase == CLATTN_PHASE_DECODE ? "decode" : "prefill";
}

static void report_group(const check_state *s, const check_group *group, int32_t path, const group_result *r)
{
    char types[32], dims[24];
    group_types(group, types, sizeof types);
    if (group->head_dim_qk == group->head_dim_v)
        cli_format(dims, sizeof dims, "%d", (int)group->head_dim_qk);
    else
        cli_format(dims, sizeof dims, "%d/%d", (int)group->head_dim_qk, (int)group->head_dim_v);
    if (s->json) {
        cJSON *entry = cJSON_CreateObject();
        cJSON_AddStringToObject(entry, "path", path_name(path));
        cJSON_AddStringToObject(entry, "phase", phase_of(group));
        cJSON_AddStringToObject(entry, "dtype", types);
        cJSON_AddStringToObject(entry, "head_dim", dims);
        cJSON_AddStringToObject(entry, "scores", variant_names[group->variants]);
        cJSON_AddNumberToObject(entry, "cases", r->cases);
        cJSON_AddNumberToObject(entry, "failed", r->failed);
        cJSON_AddNumberToObject(entry, "worst", r->share);
        cJSON_AddItemToArray(s->groups, entry);
        return;
    }
    printf("%-12s %-8s %-17s %8s   %-9s %6d %7d   %7.2f   %7.2f\n", path_name(path), phase_of(group), types,
           dims, variant_names[group->variants], r->cases, r->failed, r->share, r->seconds);
    fflush(stdout);
}

/* Paths for some devices leave a part of what plans can ask for to other paths; the two for any device may
 * not. */
static int is_taken(const check_state *s, const check_case *check)
{
    const clattn_plan_desc desc = case_plan_desc(&check->c);
    return desc.path == CLATTN_PATH_PORTABLE || desc.path == CLATTN_PATH_CPU ||
           clattn_plan_supported(s->used->clattn, &desc, NULL, 0) != CLATTN_UNSUPPORTED;
}

static int is_late(const check_state *s)
{
    return s->seconds > 0 && platform_seconds() - s->begin > (double)s->seconds;
}

static int run_group(check_state *s, const check_group *group, int32_t path)
{
    const int count = check_case_count(group, s->quick);
    const double start = platform_seconds();
    group_result r = {0, 0, 0, 0};
    char types[32];
    group_types(group, types, sizeof types);
    for (int i = 0; i < count && !is_late(s); i++) {
        check_case check;
        char reason[400];
        double share;
        progress_show("%s, %s, head dim %d: case %d of %d", path_name(path), types, (int)group->head_dim_qk,
                      i + 1, count);
        /* Every case has numbers of its own, whatever else was run before it. */
        const uint64_t seed =
            (uint64_t)s->seed * 1000003u + (uint64_t)(group - check_groups) * 1009u + (uint64_t)i;
        int status = check_case_make(&check, group, s->quick, i, path, seed);
        if (status != CLI_OK)
            return status;
        if (!is_taken(s, &check)) {
            check_case_release(&check);
            continue;
        }
        s->cases++;
        r.cases++;
        status = check_run(s->used, &check, s->repeat, reason, sizeof reason, &share);
        if (status == CLI_OK && reason[0]) {
            s->failed++;
            r.failed++;
            report_failure(s, &check, reason);
        }
        if (share > r.share)
            r.share = share;
        check_case_release(&check);
        if (status != CLI_OK)
            return status;
    }
    r.seconds = platform_seconds() - start;
    progress_clear();
    if (r.cases == 0) /* of a path that leaves them all to another one */
        return CLI_OK;
    report_group(s, group, path, &r);
    return CLI_OK;
}

/* ---- All ----------------------------------------------------------------------------------------
 */

static int is_wanted(const check_state *s, const check_group *group)
{
    return (s->phase == CLATTN_PHASE_BOTH || s->phase == group->phase) &&
           (s->variants < 0 || s->variants == group->variants) &&
           (!s->quick || group->quick == QUICK || (group->quick == QUICK_MEANT && s->used != &s->small));
}

static int run_path(check_state *s, int32_t path)
{
    for (int g = 0; g < num_check_groups; g++) {
        if (!is_wanted(s, &check_groups[g]))
            continue;
        const int status = run_group(s, &check_groups[g], path);
        if (status != CLI_OK)
            return status;
    }
    return CLI_OK;
}

/* PoCL (3.1, seen 2026-11-30) compiles the portable path's large tiles for 15 s and more, its
 * smallest for 4 s. So that a quick check stays quick from the first time on, CPUs, for which that
 * path is not meant anyway, check it on the tiles of a 16 KiB device. */
static int run_portable_small(check_state *s, const common_options *common)
{
    common_options limited = *common;
    limited.local_bytes = 16384;
    int status = cli_device_open(&s->small, &limited);
    if (status != CLI_OK)
        return status;
    s->used = &s->small;
    s->local_bytes = limited.local_bytes;
    status = run_path(s, CLATTN_PATH_PORTABLE);
    s->used = &s->device;
    s->local_bytes = common->local_bytes;
    cli_device_close(&s->small);
    return status;
}

static int run_paths(check_state *s, const common_options *common)
{
    const int small = s->quick && !common->local_bytes && (s->device.entry.type & CL_DEVICE_TYPE_CPU) != 0;
    int paths = 0;
    s->used = &s->device;
    s->local_bytes = common->local_bytes;
    for (int32_t path = CLATTN_PATH_PORTABLE; path <= CLATTN_PATH_NVIDIA_WGMMA; path++) {
        if ((s->path && s->path != path) || !cli_device_has_path(&s->device, path))
            continue;
        paths++;
        const int status =
            small && path == CLATTN_PATH_PORTABLE ? run_portable_small(s, common) : run_path(s, path);
        if (status != CLI_OK)
            return status;
    }
    if (paths == 0)
        return cli_fail(CLI_USAGE, "--path %s: expected a path that this device offers", path_name(s->path));
    return CLI_OK;
}

static void print_json(const check_state *s)
{
    cJSON *json = cJSON_CreateObject();
    cJSON_AddNumberToObject(json, "schema_version", 1);
    cJSON_AddStringToObject(json, "device", s->device.entry.name);
    cJSON_AddNumberToObject(json, "seed", (double)s->seed);
    cJSON_AddBoolToObject(json, "quick", s->quick);
    cJSON_AddBoolToObject(json, "complete", !is_late(s));
    cJSON_AddNumberToObject(json, "cases", s->cases);
    cJSON_AddNumberToObject(json, "failed", s->failed);
    cJSON_AddItemReferenceToObject(json, "groups", s->groups);
    cJSON_AddItemReferenceToObject(json, "failures", s->failures);
    char *text = cJSON_Print(json);
    if (text)
        puts(text);
    cJSON_free(text);
    cJSON_Delete(json);
}

static int check_device(check_state *s, const common_options *common)
{
    if (!s->json) {
        printf("device  %s (%s)\n", s->device.entry.name, s->device.entry.platform_name);
        printf("seed    %" PRId64 "\n\n", s->seed);
        printf("path         kernels  types             head dim   variants   cases  failed   error /   "
               "seconds\n"
               "                                                                             allowed\n");
        fflush(stdout);
    }
    s->begin = platform_seconds();
    const int status = run_paths(s, common);
    if (status != CLI_OK)
        return status;
    if (s->json)
        print_json(s);
    else if (s->failed)
        printf("\n%d of %d cases FAILED\n", s->failed, s->cases);
    else
        printf("\nall %d cases %spassed\n", s->cases, is_late(s) ? "that were run in time " : "");
    return s->failed ? CLI_FAILED : CLI_OK;
}

int cmd_check(int argc, char **argv)
{
    check_state s = {0};
    common_options common = {0};
    const option_set set = {{check_rows}, apply, &s};
    int operands;
    s.directory = ".";
    s.phase = CLATTN_PHASE_BOTH;
    s.variants = -1;
    s.repeat = 1;
    int status = options_parse(&set, &common, argc, argv, &operands);
    if (status != CLI_OK)
        return status;
    if (common.help) {
        options_print_help(&set, &check_text);
        return CLI_OK;
    }
    if (operands > 0)
        return cli_fail(CLI_USAGE, "unexpected argument '%.100s'", argv[0]);
    if (!s.seed)
        s.seed = (int64_t)(time(NULL) % 100000000) + 1;
    status = cli_device_open(&s.device, &common);
    if (status != CLI_OK)
        return status;
    s.groups = cJSON_CreateArray();
    s.failures = cJSON_CreateArray();
    status = check_device(&s, &common);
    cJSON_Delete(s.groups);
    cJSON_Delete(s.failures);
    cli_device_close(&s.device);
    return status;
}
