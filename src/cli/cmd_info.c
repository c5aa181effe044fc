/* cmd_info.c: what is there, and what clattn would do with it. */
#include "cli.h"
#include "cli_device.h"
#include "device_call.h"
#include "progress.h"
#include "tensor_convert.h"

#include <cjson/cJSON.h>

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const option_row info_rows[] = {
    {OPTION_JSON, "json", 0, ARGUMENT_NONE, NULL, "print everything as JSON"},
    {OPTION_END, NULL, 0, 0, NULL, NULL},
};

static const command_text info_text = {
    "info [options]",
    "Platforms and devices; for the chosen device (marked *) its limits, and the path and tiles "
    "that\n"
    "prefill and decode calls would take. Compiles what the cache does not hold yet.",
};

static int apply(void *user, int id, const char *name, const char *value)
{
    (void)id;
    (void)name;
    (void)value;
    *(int *)user = 1;
    return CLI_OK;
}

/* ---- Devices and limits -------------------------------------------------------------------------
 */

static void print_devices(const device_entry *list, int count, int chosen)
{
    printf("clattn %u.%u.%u\n\n", (unsigned)(clattn_version() / 1000000u),
           (unsigned)(clattn_version() / 1000u % 1000u), (unsigned)(clattn_version() % 1000u));
    printf("  index  type         platform / device\n");
    for (int i = 0; i < count; i++)
        printf("%c %5d  %-11s  %s / %s\n", i == chosen ? '*' : ' ', i, device_type_name(list[i].type),
               list[i].platform_name, list[i].name);
}

static void print_limits(const cli_device *d)
{
    printf("\nlimits of device %d\n", d->index);
    printf("  version          %s\n", d->version);
    printf("  driver           %s\n", d->driver);
    printf("  compute units    %u at %u MHz\n", (unsigned)d->compute_units, (unsigned)d->clock_mhz);
    printf("  global memory    %.1f MiB, largest buffer %.1f MiB\n", (double)d->global_bytes / 1048576.0,
           (double)d->max_alloc_bytes / 1048576.0);
    printf("  local memory     %.1f KiB\n", (double)d->local_bytes / 1024.0);
    printf("  work-group       %zu work-items\n", d->max_work_group);
    printf("  vector width     %u floats\n", (unsigned)d->vector_width);
}

static cJSON *json_devices(const device_entry *list, int count, int chosen)
{
    cJSON *array = cJSON_CreateArray();
    for (int i = 0; i < count; i++) {
        cJSON *entry = cJSON_CreateObject();
        cJSON_AddNumberToObject(entry, "index", i);
        cJSON_AddBoolToObject(entry, "chosen", i == chosen);
        cJSON_AddStringToObject(entry, "type", device_type_name(list[i].type));
        cJSON_AddStringToObject(entry, "platform", list[i].platform_name);
        cJSON_AddStringToObject(entry, "name", list[i].name);
        cJSON_AddItemToArray(array, entry);
    }
    return array;
}

static cJSON *json_limits(const cli_device *d)
{
    cJSON *limits = cJSON_CreateObject();
    cJSON_AddStringToObject(limits, "version", d->version);
    cJSON_AddStringToObject(limits, "driver", d->driver);
    cJSON_AddNumberToObject(limits, "compute_units", d->compute_units);
    cJSON_AddNumberToObject(limits, "clock_mhz", d->clock_mhz);
    cJSON_AddNumberToObject(limits, "global_bytes", (double)d->global_bytes);
    cJSON_AddNumberToObject(limits, "max_alloc_bytes", (double)d->max_alloc_bytes);
    cJSON_AddNumberToObject(limits, "local_bytes", (double)d->local_bytes);
    cJSON_AddNumberToObject(limits, "max_work_group", (double)d->max_work_group);
    cJSON_AddNumberToObject(limits, "vector_width", d->vector_width);
    return limits;
}

/* ---- Plans --------------------------------------------------------------------------------------
 */

static const int32_t info_dtypes[] = {CLATTN_DTYPE_F32, CLATTN_DTYPE_F16, CLATTN_DTYPE_BF16};
static const int32_t info_dims[] = {64, 128};

static const struct {
    int32_t phase;
    const char *name;
} info_phases[] = {{CLATTN_PHASE_PREFILL, "prefill"}, {CLATTN_PHASE_DECODE, "decode"}};

enum { NUM_PHASES = sizeof info_phases / sizeof info_phases[0] };

static clattn_plan_desc desc_of(int32_t phase, int32_t dtype, int32_t head_dim, int32_t path)
{
    clattn_plan_desc desc = CLATTN_PLAN_DESC_INIT;
    desc.phase = phase;
    desc.dtype_q = dtype;
    desc.heads_q = 1;
    desc.head_dim_qk = head_dim;
    desc.path = path;
    return desc;
}

/* The description of the plan, or why there is none. Returns whether there is one. */
static int describe(cli_device *d, int phase, int32_t dtype, int32_t head_dim, char *text, size_t capacity)
{
    const clattn_plan_desc desc = desc_of(info_phases[phase].phase, dtype, head_dim, CLATTN_PATH_AUTO);
    clattn_plan *plan;
    progress_show("compiling %s, %s, head dim %d", info_phases[phase].name, dtype_name(dtype), (int)head_dim);
    const clattn_status status = clattn_plan_create(&plan, d->clattn, &desc);
    progress_clear();
    if (status != CLATTN_SUCCESS) {
        cli_format(text, capacity, "none: %s",
                   d->last_error[0] ? d->last_error : clattn_status_string(status));
        return 0;
    }
    plan_text(plan, text, capacity);
    clattn_plan_release(plan);
    return 1;
}

/* Every path that cannot be had, with the reason. */
static void print_paths(cli_device *d, cJSON *json)
{
    for (int32_t path = CLATTN_PATH_PORTABLE; path <= CLATTN_PATH_NVIDIA_WGMMA; path++) {
        char why[256] = "";
        const clattn_plan_desc desc = desc_of(CLATTN_PHASE_PREFILL, CLATTN_DTYPE_F16, 64, path);
        const int applies = clattn_plan_supported(d->clattn, &desc, why, sizeof why) == CLATTN_SUCCESS;
        if (json) {
            cJSON *entry = cJSON_CreateObject();
            cJSON_AddStringToObject(entry, "path", path_name(path));
            cJSON_AddBoolToObject(entry, "applies", applies);
            cJSON_AddStringToObject(entry, "why_not", why);
            cJSON_AddItemToArray(json, entry);
        } else {
            printf("  %-12s %s\n", path_name(path), applies ? "applies" : why);
        }
    }
}

/* Text (json NULL) or array entries. Returns whether every plan could be made. */
static int print_plans(cli_device *d, int phase, cJSON *json)
{
    int all = 1;
    for (size_t i = 0; i < sizeof info_dtypes / sizeof info_dtypes[0]; i++)
        for (size_t j = 0; j < sizeof info_dims / sizeof info_dims[0]; j++) {
            char text[1024];
            const int made = describe(d, phase, info_dtypes[i], info_dims[j], text, sizeof text);
            all &= made;
            if (json) {
                char path[32], tiles[96];
                cJSON *entry = cJSON_CreateObject();
                plan_path_and_tiles(text, path, tiles);
                cJSON_AddStringToObject(entry, "phase", info_phases[phase].name);
                cJSON_AddStringToObject(entry, "dtype", dtype_name(info_dtypes[i]));
                cJSON_AddNumberToObject(entry, "head_dim", info_dims[j]);
                cJSON_AddStringToObject(entry, "path", made ? path : "none");
                cJSON_AddStringToObject(entry, "tiles", made ? tiles : "");
                cJSON_AddStringToObject(entry, "plan", text);
                cJSON_AddItemToArray(json, entry);
            } else {
                printf("  %-4s %4d   %s\n", dtype_name(info_dtypes[i]), (int)info_dims[j], text);
                fflush(stdout); /* the next one may have to be compiled */
            }
        }
    return all;
}

static int print_chosen_text(cli_device *d)
{
    int all = 1;
    print_limits(d);
    printf("\npaths\n");
    print_paths(d, NULL);
    for (int phase = 0; phase < NUM_PHASES; phase++) {
        printf("\n%s: type, head dim, plan\n", info_phases[phase].name);
        fflush(stdout);
        all &= print_plans(d, phase, NULL);
    }
    return all ? CLI_OK : CLI_FAILED;
}

static int print_chosen_json(cli_device *d, cJSON *json)
{
    int all = 1;
    cJSON_AddItemToObject(json, "limits", json_limits(d));
    print_paths(d, cJSON_AddArrayToObject(json, "paths"));
    cJSON *plans = cJSON_AddArrayToObject(json, "plans");
    for (int phase = 0; phase < NUM_PHASES; phase++)
        all &= print_plans(d, phase, plans);
    char *text = cJSON_Print(json);
    if (text)
        puts(text);
    cJSON_free(text);
    return all ? CLI_OK : CLI_FAILED;
}

int cmd_info(int argc, char **argv)
{
    int as_json = 0, operands, count;
    common_options common = {0};
    const option_set set = {{info_rows}, apply, &as_json};
    int status = options_parse(&set, &common, argc, argv, &operands);
    if (status != CLI_OK)
        return status;
    if (common.help) {
        options_print_help(&set, &info_text);
        return CLI_OK;
    }
    if (operands > 0)
        return cli_fail(CLI_USAGE, "unexpected argument '%.100s'", argv[0]);

    cli_device device;
    status = cli_device_open(&device, &common);
    if (status != CLI_OK)
        return status;
    device_entry *list = device_list(&count);
    if (as_json) {
        cJSON *json = cJSON_CreateObject();
        cJSON_AddNumberToObject(json, "version", clattn_version());
        cJSON_AddItemToObject(json, "devices", json_devices(list, list ? count : 0, device.index));
        status = print_chosen_json(&device, json);
        cJSON_Delete(json);
    } else {
        print_devices(list, list ? count : 0, device.index);
        status = print_chosen_text(&device);
    }
    free(list);
    cli_device_close(&device);
    return status;
}
