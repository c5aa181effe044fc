/* bench_report.c: the results as JSON. */
#include "bench.h"

#include "cli.h"
#include "file_write.h"
#include "plan_options.h"
#include "tensor_convert.h"

#include <cjson/cJSON.h>

#include <stdlib.h>
#include <string.h>

int bench_results_append(bench_results *results, const bench_result *result)
{
    bench_result *grown = realloc(results->entry, (results->count + 1) * sizeof *grown);
    if (!grown)
        return cli_fail(CLI_FAILED, "out of memory");
    results->entry = grown;
    grown[results->count++] = *result;
    return CLI_OK;
}

int bench_results_add(bench_results *results, const bench_call *call, int naive, const bench_time *time,
                      const bench_ceiling *ceiling)
{
    bench_result result = {0}, *r = &result;
    r->op = "forward";
    r->splits = 1;
    r->shape = call->shape;
    r->dtype = call->c.tensor[TENSOR_Q].dtype;
    r->time = *time;
    r->flops = bench_flops(call);
    r->bytes = bench_bytes(call);
    r->features = case_plan_desc(&call->c).features;
    if (naive) {
        cli_format(r->path, sizeof r->path, "naive");
        cli_format(r->tiles, sizeof r->tiles, "%dx%d", (int)(4 * call->naive->side),
                   (int)(8 * call->naive->side));
        r->peak_bytes = call->naive_bytes;
    } else {
        char text[1024];
        device_call_describe(&call->call, text, sizeof text);
        plan_path_and_tiles(text, r->path, r->tiles);
        r->tuned = strstr(text, "tuned ") != NULL;
        r->peak_bytes = call->call.device_bytes;
        r->plan = call->call.plan_seconds;
    }
    r->ceiling_fraction = r->flops / time->median / ceiling->flops[bench_unit_of(ceiling, r->path, r->dtype)];
    return bench_results_append(results, r);
}

void bench_results_release(bench_results *results)
{
    free(results->entry);
    memset(results, 0, sizeof *results);
}

static cJSON *json_device(const cli_device *d, const bench_ceiling *ceiling)
{
    static const char *const keys[NUM_BENCH_UNITS] = {"fma_tflops", "matrix_16_tflops", "matrix_32_tflops"};
    cJSON *json = cJSON_CreateObject();
    cJSON_AddStringToObject(json, "name", d->entry.name);
    cJSON_AddStringToObject(json, "platform", d->entry.platform_name);
    cJSON_AddStringToObject(json, "type", device_type_name(d->entry.type));
    cJSON_AddStringToObject(json, "version", d->version);
    cJSON_AddNumberToObject(json, "compute_units", d->compute_units);
    cJSON_AddNumberToObject(json, "clock_mhz", d->clock_mhz);
    cJSON_AddNumberToObject(json, "global_bytes", (double)d->global_bytes);
    cJSON_AddNumberToObject(json, "local_bytes", (double)d->local_bytes);
    for (int u = 0; u < NUM_BENCH_UNITS; u++)
        if (ceiling->flops[u] > 0)
            cJSON_AddNumberToObject(json, keys[u], ceiling->flops[u] * 1e-12);
    cJSON_AddNumberToObject(json, "copy_gbps", ceiling->copy_bytes * 1e-9);
    cJSON_AddNumberToObject(json, "read_gbps", ceiling->read_bytes * 1e-9);
    return json;
}

/* What decode measurements tell beside that. */
static void add_decode(cJSON *json, const bench_result *r)
{
    static const char *const phases[] = {"prefill", "decode", "both"};
    cJSON_AddStringToObject(json, "dtype_k", dtype_name(r->dtype_k));
    cJSON_AddStringToObject(json, "dtype_v", dtype_name(r->dtype_v));
    cJSON_AddStringToObject(json, "phase", phases[r->phase]);
    cJSON_AddNumberToObject(json, "page_size", (double)r->page_size);
    cJSON_AddNumberToObject(json, "sets", r->sets);
    cJSON_AddNumberToObject(json, "calls", r->calls);
    cJSON_AddNumberToObject(json, "latency_ms", r->latency * 1e3);
    cJSON_AddNumberToObject(json, "enqueue_us", r->enqueue * 1e6);
}

static cJSON *json_result(const bench_result *r)
{
    cJSON *json = cJSON_CreateObject();
    cJSON_AddStringToObject(json, "op", r->op);
    cJSON_AddStringToObject(json, "dtype", dtype_name(r->dtype));
    cJSON_AddNumberToObject(json, "batch", (double)r->shape.batch);
    cJSON_AddNumberToObject(json, "heads_q", (double)r->shape.heads_q);
    cJSON_AddNumberToObject(json, "heads_kv", (double)r->shape.heads_kv);
    cJSON_AddNumberToObject(json, "q_len", (double)r->shape.q_len);
    cJSON_AddNumberToObject(json, "kv_len", (double)r->shape.kv_len);
    cJSON_AddNumberToObject(json, "head_dim", r->shape.head_dim_qk);
    cJSON_AddNumberToObject(json, "head_dim_v", r->shape.head_dim_v);
    cJSON_AddBoolToObject(json, "causal", r->shape.causal);
    cJSON_AddStringToObject(json, "path", r->path);
    cJSON_AddNumberToObject(json, "time_ms_median", r->time.median * 1e3);
    cJSON_AddNumberToObject(json, "time_ms_min", r->time.least * 1e3);
    cJSON_AddNumberToObject(json, "flops", r->flops);
    cJSON_AddNumberToObject(json, "bytes", r->bytes);
    cJSON_AddNumberToObject(json, "tflops", r->flops / r->time.median * 1e-12);
    cJSON_AddNumberToObject(json, "gbps", r->bytes / r->time.median * 1e-9);
    cJSON_AddNumberToObject(json, "ceiling_fraction", r->ceiling_fraction);
    cJSON_AddStringToObject(json, "tiles", r->tiles);
    cJSON_AddNumberToObject(json, "splits", (double)r->splits);
    cJSON_AddNumberToObject(json, "peak_bytes", (double)r->peak_bytes);
    cJSON *features = cJSON_AddArrayToObject(json, "features");
    for (int i = 0; i < num_plan_features; i++)
        if (r->features & plan_features[i].bit)
            cJSON_AddItemToArray(features, cJSON_CreateString(plan_features[i].name));
    cJSON_AddNumberToObject(json, "plan_ms", r->plan * 1e3);
    if (strcmp(r->op, "decode") == 0)
        add_decode(json, r);
    return json;
}

static void add_results(cJSON *json, const bench_results *results)
{
    cJSON *array = cJSON_AddArrayToObject(json, "results");
    for (size_t i = 0; i < results->count; i++)
        cJSON_AddItemToArray(array, json_result(&results->entry[i]));
}

int bench_print_json(const bench_results *results, int status)
{
    cJSON *json = cJSON_CreateObject();
    cJSON_AddNumberToObject(json, "status", status);
    add_results(json, results);
    char *text = cJSON_PrintUnformatted(json);
    cJSON_Delete(json);
    if (text) {
        puts(text);
        fflush(stdout);
    }
    cJSON_free(text);
    return text ? CLI_OK : cli_fail(CLI_FAILED, "out of memory");
}

int bench_write_json(const bench_results *results, const cli_device *device, const bench_ceiling *ceiling,
                     const char *path)
{
    char library[32];
    const unsigned version = clattn_version();
    cli_format(library, sizeof library, "clattn %u.%u.%u", version / 1000000u, version / 1000u % 1000u,
               version % 1000u);
    cJSON *json = cJSON_CreateObject();
    cJSON_AddNumberToObject(json, "schema_version", 1);
    cJSON_AddStringToObject(json, "library", library);
    cJSON_AddItemToObject(json, "device", json_device(device, ceiling));
    cJSON_AddStringToObject(json, "driver", device->driver);
    add_results(json, results);
    char *text = cJSON_Print(json);
    cJSON_Delete(json);

    file_writer writer;
    int status = text ? file_write_open(&writer, path) : -1;
    if (status == 0) {
        file_write_bytes(&writer, text, strlen(text));
        file_write_bytes(&writer, "\n", 1);
        status = file_write_commit(&writer);
    }
    cJSON_free(text);
    return status == 0 ? CLI_OK : cli_fail(CLI_FAILED, "%.200s: cannot be written", path);
}

void bench_format_bytes(char *out, size_t capacity, uint64_t bytes)
{
    static const char *const units[] = {"B", "KiB", "MiB", "GiB", "TiB"};
    double value = (double)bytes;
    int unit = 0;
    while (value >= 1024 && unit < 4) {
        value /= 1024;
        unit++;
    }
    cli_format(out, capacity, unit == 0 ? "%.0f %s" : "%.1f %s", value, units[unit]);
}
