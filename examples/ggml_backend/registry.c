/* registry.c: what ggml loads.
 *
 * Environment: CLATTN_GGML_DEVICE, a part of the names of the platforms and devices to take (default: all);
 * CLATTN_GGML_CACHE, the folder where compiled programs are kept (default: clattn in the user's cache folder,
 * on PoCL, which has a cache of its own, none; empty: none); CLATTN_GGML_MEMORY=device, no shared memory;
 * CLATTN_GGML_EXPLAIN=1, why an operation is not taken, on stderr; CLATTN_GGML_STATS=1, calls, host time and
 * builds, when a stream ends. */
#include "plugin.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define MOST_DEVICES 16

static device devices[MOST_DEVICES];
static int device_count;

/* ---- The program cache ---- */

static void open_cache(clattn_cache_hooks *hooks)
{
    char path[1024] = "";
    const char *asked = getenv("CLATTN_GGML_CACHE"), *xdg = getenv("XDG_CACHE_HOME");
#ifdef _WIN32
    const char *home = getenv("LOCALAPPDATA"), *below = "";
#else
    const char *home = getenv("HOME"), *below = "/.cache";
#endif
    memset(hooks, 0, sizeof *hooks);
    if (asked)
        snprintf(path, sizeof path, "%s", asked);
    else if (xdg && xdg[0])
        snprintf(path, sizeof path, "%s/clattn", xdg);
    else if (home && home[0])
        snprintf(path, sizeof path, "%s%s/clattn", home, below);
    if (path[0] && clattn_directory_cache_open(hooks, path) != CLATTN_SUCCESS)
        GGML_LOG_WARN("clattn: no cache of compiled programs at %s\n", path);
}

/* ---- Devices ---- */

static bool is_wanted(cl_platform_id platform, cl_device_id id)
{
    char names[2][256] = {"", ""};
    const char *part = getenv("CLATTN_GGML_DEVICE");
    if (!part)
        return true;
    clGetPlatformInfo(platform, CL_PLATFORM_NAME, sizeof names[0], names[0], NULL);
    clGetDeviceInfo(id, CL_DEVICE_NAME, sizeof names[1], names[1], NULL);
    return strstr(names[0], part) || strstr(names[1], part);
}

/* See clattn_cache_hooks. */
static bool caches_itself(cl_platform_id platform)
{
    char name[256] = "";
    clGetPlatformInfo(platform, CL_PLATFORM_NAME, sizeof name, name, NULL);
    return strcmp(name, "Portable Computing Language") == 0 && !getenv("CLATTN_GGML_CACHE");
}

static void open_devices(cl_platform_id platform, cl_device_type type, const clattn_cache_hooks *cache)
{
    static const clattn_cache_hooks none;
    cl_device_id ids[MOST_DEVICES];
    cl_uint count = 0;
    if (caches_itself(platform))
        cache = &none;
    if (clGetDeviceIDs(platform, type, MOST_DEVICES, ids, &count) != CL_SUCCESS)
        return;
    for (cl_uint i = 0; i < count && i < MOST_DEVICES && device_count < MOST_DEVICES; i++)
        if (is_wanted(platform, ids[i]) && device_open(&devices[device_count], device_count, ids[i], cache))
            device_count++;
}

/* GPUs first: ggml prefers what comes first. */
static void open_all(void)
{
    static clattn_cache_hooks cache; /* as long as the devices, which ggml never lets go */
    const cl_device_type types[] = {CL_DEVICE_TYPE_GPU, CL_DEVICE_TYPE_ACCELERATOR, CL_DEVICE_TYPE_CPU};
    cl_platform_id platforms[MOST_DEVICES];
    cl_uint count = 0;
    if (clGetPlatformIDs(MOST_DEVICES, platforms, &count) != CL_SUCCESS)
        return;
    open_cache(&cache);
    for (int type = 0; type < 3; type++)
        for (cl_uint i = 0; i < count && i < MOST_DEVICES; i++)
            open_devices(platforms[i], types[type], &cache);
}

/* ---- What ggml asks ---- */

static const char *get_name(ggml_backend_reg_t reg)
{
    (void)reg;
    return "CLATTN";
}

static size_t get_device_count(ggml_backend_reg_t reg)
{
    (void)reg;
    return (size_t)device_count;
}

static ggml_backend_dev_t get_device(ggml_backend_reg_t reg, size_t index)
{
    (void)reg;
    return &devices[index].ggml;
}

static void *get_proc_address(ggml_backend_reg_t reg, const char *name)
{
    (void)reg;
    (void)name;
    return NULL;
}

/* ggml calls this once, under its lock, when it loads the library. */
static ggml_backend_reg_t register_devices(void)
{
    static struct ggml_backend_reg reg;
    if (reg.api_version == 0) {
        reg.api_version = GGML_BACKEND_API_VERSION;
        reg.iface.get_name = get_name;
        reg.iface.get_device_count = get_device_count;
        reg.iface.get_device = get_device;
        reg.iface.get_proc_address = get_proc_address;
        open_all();
        for (int i = 0; i < device_count; i++)
            devices[i].ggml.reg = &reg;
    }
    return &reg;
}

GGML_BACKEND_DL_IMPL(register_devices)
