#include "device.h"

#include <stdio.h>
#include <string.h>

#define WHERE "clattn_context_create"

/* cl_nv_device_attribute_query */
#define COMPUTE_CAPABILITY_MAJOR_NV 0x4000
#define COMPUTE_CAPABILITY_MINOR_NV 0x4001

/* CL_DEVICE_SVM_CAPABILITIES of OpenCL 2.0 */
#define DEVICE_SVM_CAPABILITIES 0x1053

static clattn_status read_info(const clattn__cl *cl, cl_device_id id, cl_device_info what, const char *name,
                               void *out, size_t size, const clattn__log *log)
{
    const cl_int code = cl->clGetDeviceInfo(id, what, size, out, NULL);
    if (code != CL_SUCCESS)
        return clattn__fail(log, code, WHERE ": clGetDeviceInfo(%s) failed with %s (%d)", name,
                            clattn_status_string(code), (int)code);
    return CLATTN_SUCCESS;
}

/* Texts of any length are cut: they only name things. */
static clattn_status read_text(const clattn__cl *cl, cl_device_id id, cl_device_info what, const char *name,
                               char *out, size_t capacity, const clattn__log *log)
{
    char text[4096] = "";
    size_t needed = 0;
    cl_int code = cl->clGetDeviceInfo(id, what, 0, NULL, &needed);
    if (code == CL_SUCCESS && needed <= sizeof text)
        code = cl->clGetDeviceInfo(id, what, sizeof text, text, NULL);
    if (code != CL_SUCCESS)
        return clattn__fail(log, code, WHERE ": clGetDeviceInfo(%s) failed with %s (%d)", name,
                            clattn_status_string(code), (int)code);
    text[sizeof text - 1] = '\0';
    snprintf(out, capacity, "%.*s", (int)capacity - 1, text);
    return CLATTN_SUCCESS;
}

static void read_platform(const clattn__cl *cl, cl_device_id id, clattn__device *out)
{
    char name[120] = "", version[120] = "";
    if (cl->clGetDeviceInfo(id, CL_DEVICE_PLATFORM, sizeof out->platform_id, &out->platform_id, NULL) ==
        CL_SUCCESS) {
        cl->clGetPlatformInfo(out->platform_id, CL_PLATFORM_NAME, sizeof name - 1, name, NULL);
        cl->clGetPlatformInfo(out->platform_id, CL_PLATFORM_VERSION, sizeof version - 1, version, NULL);
    }
    snprintf(out->platform, sizeof out->platform, "%s, %s", name, version);
}

/* What only some calls need: without an answer it counts as not there. Devices before OpenCL 2.0 refuse to
 * say what shared virtual memory they have. */
static void read_options(const clattn__cl *cl, cl_device_id id, clattn__device *out)
{
    cl_ulong svm = 0;
    if (cl->clGetDeviceInfo(id, CL_DEVICE_EXTENSIONS, sizeof out->extensions - 1, out->extensions, NULL) !=
        CL_SUCCESS)
        out->extensions[0] = '\0';
    out->has_svm =
        cl->clGetDeviceInfo(id, DEVICE_SVM_CAPABILITIES, sizeof svm, &svm, NULL) == CL_SUCCESS && svm != 0;
}

/* NVIDIA's driver reports 48 KiB, but takes static local arrays as large as the hardware has (seen with
 * 580.159.04 on an H200, 2026-11-29; a larger one fails to build, and the next table row is taken). The
 * limits per work-group are those of the CUDA C Programming Guide, table "Technical Specifications per
 * Compute Capability", less 1 KiB that the driver keeps. */
static uint64_t nvidia_local_bytes(uint32_t compute_capability)
{
    const struct {
        uint32_t compute_capability;
        uint64_t kib;
    } table[] = {{70, 95}, {75, 63},  {80, 162},  {86, 98}, {87, 162},
                 {89, 98}, {90, 226}, {100, 226}, {120, 98}};
    for (size_t i = 0; i < sizeof table / sizeof *table; i++)
        if (table[i].compute_capability == compute_capability)
            return table[i].kib * 1024;
    return 0;
}

/* 0 where the driver does not say. */
static uint32_t read_compute_capability(const clattn__cl *cl, cl_device_id id)
{
    cl_uint major = 0, minor = 0;
    if (cl->clGetDeviceInfo(id, COMPUTE_CAPABILITY_MAJOR_NV, sizeof major, &major, NULL) != CL_SUCCESS ||
        cl->clGetDeviceInfo(id, COMPUTE_CAPABILITY_MINOR_NV, sizeof minor, &minor, NULL) != CL_SUCCESS)
        return 0;
    return 10 * major + minor;
}

clattn_status clattn__device_read(clattn__device *out, const clattn__cl *cl, cl_device_id id,
                                  uint64_t max_local_bytes, const clattn__log *log)
{
    cl_ulong local = 0;
    cl_uint width = 0, units = 0;
    size_t items[16] = {0}; /* the driver may have more than three axes */
    size_t items_size = 0;
    memset(out, 0, sizeof *out);
#define READ(what, variable) \
    FORWARD_IF_ERROR(read_info(cl, id, what, #what, &(variable), sizeof(variable), log))
    READ(CL_DEVICE_TYPE, out->type);
    READ(CL_DEVICE_LOCAL_MEM_SIZE, local);
    READ(CL_DEVICE_MAX_WORK_GROUP_SIZE, out->max_work_group);
    READ(CL_DEVICE_NATIVE_VECTOR_WIDTH_FLOAT, width);
    READ(CL_DEVICE_MAX_COMPUTE_UNITS, units);
#undef READ
    if (cl->clGetDeviceInfo(id, CL_DEVICE_MAX_WORK_ITEM_SIZES, sizeof items, items, &items_size) !=
        CL_SUCCESS)
        items[0] = out->max_work_group;
#define READ_TEXT(what, member) \
    FORWARD_IF_ERROR(read_text(cl, id, what, #what, out->member, sizeof out->member, log))
    READ_TEXT(CL_DEVICE_NAME, name);
    READ_TEXT(CL_DEVICE_VENDOR, vendor);
    READ_TEXT(CL_DRIVER_VERSION, driver);
    READ_TEXT(CL_DEVICE_VERSION, version);
#undef READ_TEXT
    read_platform(cl, id, out);
    read_options(cl, id, out);

    out->max_work_items_0 = items[0];
    out->compute_units = units > 0 ? units : 1;
    out->vector_width = width > 0 ? width : 1;
    out->local_reported = local;
    out->local_bytes = local;
    if (strstr(out->vendor, "NVIDIA") != NULL) {
        out->compute_capability = read_compute_capability(cl, id);
        const uint64_t usable = nvidia_local_bytes(out->compute_capability);
        if (usable > local)
            out->local_bytes = usable;
    }
    if (max_local_bytes != 0 && max_local_bytes < out->local_bytes)
        out->local_bytes = max_local_bytes;
    return CLATTN_SUCCESS;
}
