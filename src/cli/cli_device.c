/* cli_device.c: device selection and the objects that every command needs. */
#include "cli_device.h"

#include "cli.h"
#include "cli_platform.h"
#include "file_read.h"

#include <ctype.h>
#include <stdlib.h>
#include <string.h>

const char *device_type_name(cl_device_type type)
{
    return type & CL_DEVICE_TYPE_GPU           ? "GPU"
           : type & CL_DEVICE_TYPE_CPU         ? "CPU"
           : type & CL_DEVICE_TYPE_ACCELERATOR ? "accelerator"
                                               : "other";
}

/* ---- The list -----------------------------------------------------------------------------------
 */

static void read_entry(device_entry *entry, cl_platform_id platform, cl_device_id device)
{
    memset(entry, 0, sizeof *entry);
    entry->platform = platform;
    entry->device = device;
    clGetPlatformInfo(platform, CL_PLATFORM_NAME, sizeof entry->platform_name - 1, entry->platform_name,
                      NULL);
    clGetDeviceInfo(device, CL_DEVICE_NAME, sizeof entry->name - 1, entry->name, NULL);
    clGetDeviceInfo(device, CL_DEVICE_TYPE, sizeof entry->type, &entry->type, NULL);
}

device_entry *device_list(int *count)
{
    enum { MAX_PLATFORMS = 32, MAX_DEVICES = 64 };
    cl_platform_id platforms[MAX_PLATFORMS];
    cl_uint num_platforms = 0;
    *count = 0;
    if (clGetPlatformIDs(MAX_PLATFORMS, platforms, &num_platforms) != CL_SUCCESS)
        num_platforms = 0;
    if (num_platforms > MAX_PLATFORMS)
        num_platforms = MAX_PLATFORMS;
    device_entry *list = calloc((size_t)num_platforms * MAX_DEVICES + 1, sizeof *list);
    for (cl_uint p = 0; list && p < num_platforms; p++) {
        cl_device_id devices[MAX_DEVICES];
        cl_uint found = 0;
        if (clGetDeviceIDs(platforms[p], CL_DEVICE_TYPE_ALL, MAX_DEVICES, devices, &found) != CL_SUCCESS)
            continue;
        for (cl_uint d = 0; d < found && d < MAX_DEVICES; d++)
            read_entry(&list[(*count)++], platforms[p], devices[d]);
    }
    return list;
}

/* ---- The choice ---------------------------------------------------------------------------------
 */

static int contains(const char *text, const char *part)
{
    const size_t length = strlen(part);
    for (; *text; text++) {
        size_t i = 0;
        while (i < length && tolower((unsigned char)text[i]) == tolower((unsigned char)part[i]))
            i++;
        if (i == length)
            return 1;
    }
    return 0;
}

static int only_digits(const char *text)
{
    const size_t length = strlen(text);
    return length > 0 && length < 7 && strspn(text, "0123456789") == length;
}

int device_select(const device_entry *list, int count, const char *selection)
{
    if (!selection)
        selection = getenv("CLATTN_DEVICE");
    if (count == 0) {
        cli_note("no OpenCL device found (is a driver installed? `clinfo -l` lists them)");
        return -1;
    }
    if (!selection || !*selection) {
        for (int i = 0; i < count; i++)
            if (list[i].type & CL_DEVICE_TYPE_GPU)
                return i;
        return 0;
    }
    if (only_digits(selection) && atoi(selection) < count)
        return atoi(selection);
    for (int i = 0; i < count && !only_digits(selection); i++)
        if (contains(list[i].name, selection) || contains(list[i].platform_name, selection))
            return i;
    cli_note("no device matches '%.100s' (%d device%s found: see `clattn info`)", selection, count,
             count == 1 ? "" : "s");
    return -1;
}

/* ---- What is opened on it -----------------------------------------------------------------------
 */

/* The first line of a compiler's words that is about a text of the caller's: "mask_mod:2:5: error: ..." */
static void note_text_error(cli_device *device, const char *message)
{
    while (*message && !device->text_error[0]) {
        const size_t line = strcspn(message, "\n");
        cli_format(device->text_error, sizeof device->text_error, "%.*s", (int)line, message);
        if (!strstr(device->text_error, "score_mod:") && !strstr(device->text_error, "mask_mod:"))
            device->text_error[0] = 0;
        message += line + (message[line] == '\n');
    }
}

static void log_message(void *user, int32_t level, const char *message)
{
    cli_device *device = user;
    if (level == CLATTN_LOG_ERROR) {
        const size_t line = strcspn(message, "\n");
        cli_format(device->last_error, sizeof device->last_error, "%.*s", (int)line, message);
        note_text_error(device, message);
    }
    /* Without --verbose an error is told once, by cli_library_fail. */
    if (device->verbose || level == CLATTN_LOG_WARNING) {
        while (*message) {
            const size_t line = strcspn(message, "\n");
            cli_note("%.*s", (int)line, message);
            message += line + (message[line] == '\n');
        }
    }
}

static void read_limits(cli_device *d)
{
    const cl_device_id id = d->entry.device;
    cl_ulong bytes = 0;
    clGetDeviceInfo(id, CL_DEVICE_VERSION, sizeof d->version - 1, d->version, NULL);
    clGetDeviceInfo(id, CL_DRIVER_VERSION, sizeof d->driver - 1, d->driver, NULL);
    if (clGetDeviceInfo(id, CL_DEVICE_GLOBAL_MEM_SIZE, sizeof bytes, &bytes, NULL) == CL_SUCCESS)
        d->global_bytes = bytes;
    if (clGetDeviceInfo(id, CL_DEVICE_MAX_MEM_ALLOC_SIZE, sizeof bytes, &bytes, NULL) == CL_SUCCESS)
        d->max_alloc_bytes = bytes;
    if (clGetDeviceInfo(id, CL_DEVICE_LOCAL_MEM_SIZE, sizeof bytes, &bytes, NULL) == CL_SUCCESS)
        d->local_bytes = bytes;
    clGetDeviceInfo(id, CL_DEVICE_MAX_WORK_GROUP_SIZE, sizeof d->max_work_group, &d->max_work_group, NULL);
    clGetDeviceInfo(id, CL_DEVICE_MAX_COMPUTE_UNITS, sizeof d->compute_units, &d->compute_units, NULL);
    clGetDeviceInfo(id, CL_DEVICE_MAX_CLOCK_FREQUENCY, sizeof d->clock_mhz, &d->clock_mhz, NULL);
    clGetDeviceInfo(id, CL_DEVICE_NATIVE_VECTOR_WIDTH_FLOAT, sizeof d->vector_width, &d->vector_width, NULL);
}

/* A cache that cannot be opened is no error of the command: programs are compiled instead. PoCL has one of
 * its own (see clattn_cache_hooks): there it takes an explicit --cache-dir. */
static void open_cache(cli_device *d, const common_options *options)
{
    const int caches_itself = strcmp(d->entry.platform_name, "Portable Computing Language") == 0;
    char path[4096];
    if (options->no_cache)
        return;
    if (options->cache_dir)
        cli_format(path, sizeof path, "%s", options->cache_dir);
    else if (caches_itself || platform_cache_directory(path, sizeof path) != 0)
        return;
    if (clattn_directory_cache_open(&d->cache, path) != CLATTN_SUCCESS) {
        memset(&d->cache, 0, sizeof d->cache);
        if (options->cache_dir)
            cli_note("warning: no cache: '%.200s' cannot be opened", path);
    }
}

static int open_opencl(cli_device *d)
{
    cl_int status;
    const cl_context_properties properties[] = {CL_CONTEXT_PLATFORM, (cl_context_properties)d->entry.platform,
                                                0};
    d->context = clCreateContext(properties, 1, &d->entry.device, NULL, NULL, &status);
    if (status != CL_SUCCESS)
        return cli_fail(CLI_NO_DEVICE, "%.100s: clCreateContext: %s", d->entry.name,
                        clattn_status_string(status));
    d->queue = clCreateCommandQueue(d->context, d->entry.device, 0, &status);
    if (status != CL_SUCCESS)
        return cli_fail(CLI_NO_DEVICE, "%.100s: clCreateCommandQueue: %s", d->entry.name,
                        clattn_status_string(status));
    return CLI_OK;
}

int cli_device_open_library(cli_device *d, char *tuning, size_t tuning_bytes)
{
    clattn_context_options o = CLATTN_CONTEXT_OPTIONS_INIT;
    o.log = log_message;
    o.log_user = d;
    o.log_level = d->verbose > 1 ? CLATTN_LOG_DEBUG : d->verbose > 0 ? CLATTN_LOG_INFO : CLATTN_LOG_WARNING;
    o.cache = d->cache;
    o.max_local_bytes = d->max_local_bytes;
    o.tuning = tuning;
    o.tuning_bytes = tuning_bytes;
    free(d->tuning);
    d->tuning = tuning;
    d->tuning_bytes = tuning_bytes;
    clattn_context_release(d->clattn);
    d->clattn = NULL;
    const clattn_status status = clattn_context_create(&d->clattn, d->context, d->entry.device, &o);
    if (status == CLATTN_UNSUPPORTED)
        return cli_fail(CLI_NO_DEVICE, "%s", d->last_error);
    return status == CLATTN_SUCCESS ? CLI_OK : cli_library_fail(d, status, "clattn_context_create");
}

static int open_library(cli_device *d, const common_options *options)
{
    char *tuning = NULL;
    size_t bytes = 0;
    d->max_local_bytes = options->local_bytes;
    if (options->tuning && file_read(options->tuning, &tuning, &bytes) != 0)
        return cli_fail(CLI_USAGE, "--tuning: %.200s cannot be read", options->tuning);
    /* An empty file is no tuning text; without bytes the library would not look at it. */
    if (options->tuning && bytes == 0) {
        free(tuning);
        return cli_fail(CLI_USAGE, "--tuning: %.200s is empty", options->tuning);
    }
    return cli_device_open_library(d, tuning, bytes);
}

int cli_device_open(cli_device *out, const common_options *options)
{
    memset(out, 0, sizeof *out);
    out->verbose = options->verbose;
    int count;
    device_entry *list = device_list(&count);
    if (!list)
        return cli_fail(CLI_FAILED, "out of memory");
    out->index = device_select(list, count, options->device);
    if (out->index >= 0)
        out->entry = list[out->index];
    free(list);
    if (out->index < 0)
        return CLI_NO_DEVICE;
    read_limits(out);
    int status = open_opencl(out);
    if (status == CLI_OK) {
        open_cache(out, options);
        status = open_library(out, options);
    }
    if (status != CLI_OK)
        cli_device_close(out);
    return status;
}

void cli_device_close(cli_device *d)
{
    clattn_context_release(d->clattn);
    clattn_directory_cache_close(&d->cache);
    free(d->tuning);
    d->tuning = NULL;
    if (d->queue)
        clReleaseCommandQueue(d->queue);
    if (d->context)
        clReleaseContext(d->context);
    d->clattn = NULL;
    d->queue = NULL;
    d->context = NULL;
}

int cli_library_fail(const cli_device *d, clattn_status status, const char *what)
{
    const int exit_status =
        status == CLATTN_INVALID_ARGUMENT || status == CLATTN_UNSUPPORTED || status == CLATTN_BUFFER_TOO_SMALL
            ? CLI_USAGE
            : CLI_FAILED;
    if (status == CLATTN_COMPILE_FAILED && d->text_error[0])
        return cli_fail(CLI_USAGE, "the text does not compile: %s", d->text_error);
    if (d->last_error[0])
        return cli_fail(exit_status, "%s", d->last_error);
    return cli_fail(exit_status, "%s: %s", what, clattn_status_string(status));
}

int cli_opencl_fail(cl_int status, const char *what)
{
    return cli_fail(CLI_FAILED, "%s: %s", what, clattn_status_string(status));
}

int cli_device_has_path(const cli_device *device, int32_t path)
{
    clattn_plan_desc desc = CLATTN_PLAN_DESC_INIT;
    desc.dtype_q = CLATTN_DTYPE_F16; /* which every path takes */
    desc.heads_q = 1;
    desc.head_dim_qk = 64;
    desc.path = path;
    return clattn_plan_supported(device->clattn, &desc, NULL, 0) == CLATTN_SUCCESS;
}
