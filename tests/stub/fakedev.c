/* The layer itself: stands between the OpenCL loader and the driver, tells the faked facts, refuses
 * what breaks the faked limits, and reports every call and object to fakedev_state.c. The loader
 * calls the layer and the layer the driver; what a driver does within itself does not pass here. */
#include "fakedev_state.h"

#include <CL/cl_ext.h>
#include <CL/cl_layer.h>

#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const cl_icd_dispatch *next;

/* ---- Shared by the wrappers ----------------------------------------------------------------- */

/* Gives up a call that would have created something. */
static void *fail(cl_int status, cl_int *errcode_ret)
{
    if (errcode_ret)
        *errcode_ret = status;
    return NULL;
}

static cl_int refuse(cl_int status)
{
    fakedev_count_refusal();
    return status;
}

/* The answer of a clGet*Info function. */
static cl_int answer(const void *fact, size_t fact_size, size_t size, void *value, size_t *size_ret)
{
    if (value && size < fact_size)
        return CL_INVALID_VALUE;
    if (value)
        memcpy(value, fact, fact_size);
    if (size_ret)
        *size_ret = fact_size;
    return CL_SUCCESS;
}

static void created_memory_object(cl_mem object, enum fakedev_call by)
{
    size_t size = 0;
    cl_mem_flags flags = 0;
    cl_mem parent = NULL;
    next->clGetMemObjectInfo(object, CL_MEM_SIZE, sizeof size, &size, NULL);
    next->clGetMemObjectInfo(object, CL_MEM_FLAGS, sizeof flags, &flags, NULL);
    next->clGetMemObjectInfo(object, CL_MEM_ASSOCIATED_MEMOBJECT, sizeof parent, &parent, NULL);
    const struct fakedev_memory memory = {
        .bytes = parent ? 0 : size,
        .in_host_memory = (flags & CL_MEM_USE_HOST_PTR) != 0,
        .parent = parent,
    };
    fakedev_created(CLATTN_FAKEDEV_BUFFER, object, by, &memory);
}

static void created(enum clattn_fakedev_kind kind, void *handle, enum fakedev_call by)
{
    if (!handle)
        return;
    if (kind == CLATTN_FAKEDEV_BUFFER)
        created_memory_object(handle, by);
    else
        fakedev_created(kind, handle, by, NULL);
}

/* The event of a command that was enqueued, if the application asked for one. */
static void created_event(cl_int status, const cl_event *event, enum fakedev_call by)
{
    if (status == CL_SUCCESS && event)
        created(CLATTN_FAKEDEV_EVENT, *event, by);
}

/* ---- The wrappers that the table describes in full ------------------------------------------ */

#define STATUS(name, params, args)                              \
    static cl_int CL_API_CALL fake_##name params                \
    {                                                           \
        cl_int status = fakedev_begin(CALL_##name);             \
        return status != CL_SUCCESS ? status : next->name args; \
    }

#define CREATE(name, kind, type, params, args)      \
    static type CL_API_CALL fake_##name params      \
    {                                               \
        cl_int status = fakedev_begin(CALL_##name); \
        if (status != CL_SUCCESS)                   \
            return fail(status, errcode_ret);       \
        type handle = next->name args;              \
        created(kind, handle, CALL_##name);         \
        return handle;                              \
    }

#define RETAIN(name, kind, type)                         \
    static cl_int CL_API_CALL fake_##name(type handle)   \
    {                                                    \
        cl_int status = fakedev_begin(CALL_##name);      \
        if (status == CL_SUCCESS)                        \
            status = next->name(handle);                 \
        if (status == CL_SUCCESS)                        \
            fakedev_retained(kind, handle, CALL_##name); \
        return status;                                   \
    }

#define RELEASE(name, kind, type)                      \
    static cl_int CL_API_CALL fake_##name(type handle) \
    {                                                  \
        cl_int status = fakedev_begin(CALL_##name);    \
        if (status != CL_SUCCESS)                      \
            return status;                             \
        fakedev_released(kind, handle);                \
        return next->name(handle);                     \
    }

#define ENQUEUE(name, params, args)                 \
    static cl_int CL_API_CALL fake_##name params    \
    {                                               \
        cl_int status = fakedev_begin(CALL_##name); \
        if (status == CL_SUCCESS)                   \
            status = next->name args;               \
        created_event(status, event, CALL_##name);  \
        return status;                              \
    }

#define BLOCKING(name, params, args)                \
    static cl_int CL_API_CALL fake_##name params    \
    {                                               \
        cl_int status = fakedev_begin(CALL_##name); \
        if (status != CL_SUCCESS)                   \
            return status;                          \
        if (blocking)                               \
            fakedev_count_blocking();               \
        status = next->name args;                   \
        created_event(status, event, CALL_##name);  \
        return status;                              \
    }

#define CUSTOM(name)
#define EXTENSION(name)

#include "fakedev_calls.h"

/* ---- Devices -------------------------------------------------------------------------------- */

/* With a faked type, every device has that type and no other. The driver picks the default device,
 * as always. 0: no device is of that type. */
static cl_device_type true_type(cl_device_type wanted)
{
    cl_device_type faked = fakedev_number(FAKE_TYPE);
    if (faked == 0)
        return wanted;
    return wanted & faked ? CL_DEVICE_TYPE_ALL : wanted & CL_DEVICE_TYPE_DEFAULT;
}

static cl_int CL_API_CALL fake_clGetDeviceIDs(cl_platform_id platform, cl_device_type type,
                                              cl_uint num_entries, cl_device_id *devices,
                                              cl_uint *num_devices)
{
    cl_int status = fakedev_begin(CALL_clGetDeviceIDs);
    if (status != CL_SUCCESS)
        return status;
    if (type != 0 && true_type(type) == 0) {
        if (num_devices)
            *num_devices = 0;
        return CL_DEVICE_NOT_FOUND;
    }
    return next->clGetDeviceIDs(platform, true_type(type), num_entries, devices, num_devices);
}

static cl_context CL_API_CALL
fake_clCreateContextFromType(const cl_context_properties *properties, cl_device_type type,
                             void(CL_CALLBACK *notify)(const char *, const void *, size_t, void *),
                             void *user_data, cl_int *errcode_ret)
{
    cl_int status = fakedev_begin(CALL_clCreateContextFromType);
    if (status == CL_SUCCESS && type != 0 && true_type(type) == 0)
        status = CL_DEVICE_NOT_FOUND;
    if (status != CL_SUCCESS)
        return fail(status, errcode_ret);
    cl_context context =
        next->clCreateContextFromType(properties, true_type(type), notify, user_data, errcode_ret);
    created(CLATTN_FAKEDEV_CONTEXT, context, CALL_clCreateContextFromType);
    return context;
}

enum fact_form { AS_TEXT, AS_UINT, AS_ULONG, AS_SIZE };

static const struct {
    cl_device_info info;
    enum fakedev_setting setting;
    enum fact_form form;
} device_facts[] = {
    {CL_DEVICE_NAME, FAKE_NAME, AS_TEXT},
    {CL_DEVICE_VENDOR, FAKE_VENDOR, AS_TEXT},
    {CL_DEVICE_VENDOR_ID, FAKE_VENDOR_ID, AS_UINT},
    {CL_DRIVER_VERSION, FAKE_DRIVER, AS_TEXT},
    {CL_DEVICE_VERSION, FAKE_VERSION, AS_TEXT},
    {CL_DEVICE_OPENCL_C_VERSION, FAKE_OPENCL_C_VERSION, AS_TEXT},
    {CL_DEVICE_EXTENSIONS, FAKE_EXTENSIONS, AS_TEXT},
    {CL_DEVICE_LOCAL_MEM_SIZE, FAKE_LOCAL_MEM, AS_ULONG},
    {CL_DEVICE_LOCAL_MEM_TYPE, FAKE_LOCAL_MEM_TYPE, AS_UINT},
    {CL_DEVICE_GLOBAL_MEM_SIZE, FAKE_GLOBAL_MEM, AS_ULONG},
    {CL_DEVICE_MAX_MEM_ALLOC_SIZE, FAKE_MAX_ALLOC, AS_ULONG},
    {CL_DEVICE_MAX_WORK_GROUP_SIZE, FAKE_WORK_GROUP, AS_SIZE},
    {CL_DEVICE_PREFERRED_WORK_GROUP_SIZE_MULTIPLE, FAKE_WORK_GROUP_MULTIPLE, AS_SIZE},
    {CL_DEVICE_MAX_COMPUTE_UNITS, FAKE_COMPUTE_UNITS, AS_UINT},
    {CL_DEVICE_PREFERRED_VECTOR_WIDTH_FLOAT, FAKE_VECTOR_WIDTH, AS_UINT},
    {CL_DEVICE_NATIVE_VECTOR_WIDTH_FLOAT, FAKE_VECTOR_WIDTH, AS_UINT},
};

/* "OpenCL 1.2 ..." after the prefix "OpenCL ": 1.2 as a cl_version; 0 if the text does not read so.
 */
static cl_version parse_version(const char *text, const char *prefix)
{
    unsigned major, minor;
    if (!text || strncmp(text, prefix, strlen(prefix)) != 0 ||
        sscanf(text + strlen(prefix), "%u.%u", &major, &minor) != 2)
        return 0;
    return CL_MAKE_VERSION(major, minor, 0);
}

static cl_version faked_opencl_c(void)
{
    return parse_version(fakedev_text(FAKE_OPENCL_C_VERSION), "OpenCL C ");
}

/* Whether a name is in a setting that is a list; not if nothing is faked. */
static bool is_listed(enum fakedev_setting setting, const char *name)
{
    const char *list = fakedev_text(setting);
    size_t length = strlen(name);
    for (const char *at = list ? list : ""; *at; at += strspn(at, " ")) {
        size_t word = strcspn(at, " ");
        if (word == length && strncmp(at, name, length) == 0)
            return true;
        at += word;
    }
    return false;
}

/* What derives from the faked extensions has to agree with them. */
static bool extension_hidden(const char *name)
{
    return fakedev_text(FAKE_EXTENSIONS) && !is_listed(FAKE_EXTENSIONS, name);
}

static cl_int answer_extensions_with_version(size_t size, void *value, size_t *size_ret)
{
    cl_name_version list[256];
    size_t count = 0;
    memset(list, 0, sizeof list);
    const char *at = fakedev_text(FAKE_EXTENSIONS);
    for (at += strspn(at, " "); *at && count < sizeof list / sizeof *list; at += strspn(at, " ")) {
        size_t word = strcspn(at, " ");
        if (word < CL_NAME_VERSION_MAX_NAME_SIZE) {
            memcpy(list[count].name, at, word);
            list[count++].version = CL_MAKE_VERSION(1, 0, 0);
        }
        at += word;
    }
    return answer(list, count * sizeof *list, size, value, size_ret);
}

/* The driver's versions of OpenCL C up to the faked one. */
static cl_int answer_opencl_c_versions(cl_device_id device, size_t size, void *value, size_t *size_ret)
{
    cl_name_version list[32];
    size_t bytes = 0, count = 0;
    cl_int status = next->clGetDeviceInfo(device, CL_DEVICE_OPENCL_C_ALL_VERSIONS, sizeof list, list, &bytes);
    if (status != CL_SUCCESS)
        return status;
    for (size_t i = 0; i < bytes / sizeof *list; i++)
        if (list[i].version <= faked_opencl_c())
            list[count++] = list[i];
    return answer(list, count * sizeof *list, size, value, size_ret);
}

static cl_int answer_work_item_sizes(cl_device_id device, size_t size, void *value, size_t *size_ret)
{
    size_t sizes[16];
    size_t bytes = 0, limit = (size_t)fakedev_number(FAKE_WORK_GROUP);
    cl_int status = next->clGetDeviceInfo(device, CL_DEVICE_MAX_WORK_ITEM_SIZES, sizeof sizes, sizes, &bytes);
    if (status != CL_SUCCESS)
        return status;
    for (size_t i = 0; i < bytes / sizeof *sizes; i++)
        if (sizes[i] > limit)
            sizes[i] = limit;
    return answer(sizes, bytes, size, value, size_ret);
}

static cl_int answer_number(uint64_t number, enum fact_form form, size_t size, void *value, size_t *size_ret)
{
    const cl_uint as_uint = (cl_uint)number;
    const cl_ulong as_ulong = number;
    const size_t as_size = (size_t)number;
    switch (form) {
    case AS_UINT:
        return answer(&as_uint, sizeof as_uint, size, value, size_ret);
    case AS_ULONG:
        return answer(&as_ulong, sizeof as_ulong, size, value, size_ret);
    default:
        return answer(&as_size, sizeof as_size, size, value, size_ret);
    }
}

/* cl_nv_device_attribute_query; the setting is 10 * major + minor. */
enum { COMPUTE_CAPABILITY_MAJOR_NV = 0x4000, COMPUTE_CAPABILITY_MINOR_NV = 0x4001 };

/* Facts that take more than copying a setting. */
static cl_int derived_device_info(cl_device_id device, cl_device_info info, size_t size, void *value,
                                  size_t *size_ret)
{
    const cl_version version = parse_version(fakedev_text(FAKE_VERSION), "OpenCL ");
    const cl_device_fp_config no_arithmetic = 0;
    const cl_uint no_vectors = 0;

    switch (info) {
    case CL_DEVICE_TYPE:
        if (fakedev_number(FAKE_TYPE)) {
            cl_device_type type = 0;
            next->clGetDeviceInfo(device, info, sizeof type, &type, NULL);
            type = fakedev_number(FAKE_TYPE) | (type & CL_DEVICE_TYPE_DEFAULT);
            return answer(&type, sizeof type, size, value, size_ret);
        }
        break;
    case CL_DEVICE_MAX_WORK_ITEM_SIZES:
        if (fakedev_number(FAKE_WORK_GROUP))
            return answer_work_item_sizes(device, size, value, size_ret);
        break;
    case CL_DEVICE_NUMERIC_VERSION:
        if (version)
            return answer(&version, sizeof version, size, value, size_ret);
        break;
    case CL_DEVICE_OPENCL_C_ALL_VERSIONS:
        if (faked_opencl_c())
            return answer_opencl_c_versions(device, size, value, size_ret);
        break;
    case CL_DEVICE_EXTENSIONS_WITH_VERSION:
        if (fakedev_text(FAKE_EXTENSIONS))
            return answer_extensions_with_version(size, value, size_ret);
        break;
    case CL_DEVICE_SVM_CAPABILITIES:
        if (version && version < CL_MAKE_VERSION(2, 0, 0))
            return CL_INVALID_VALUE; /* that device has never heard of it */
        if (fakedev_number(FAKE_SVM)) {
            const cl_device_svm_capabilities svm = fakedev_number(FAKE_SVM) & ~FAKEDEV_NO_SVM;
            return answer(&svm, sizeof svm, size, value, size_ret);
        }
        break;
    case COMPUTE_CAPABILITY_MAJOR_NV:
        if (fakedev_number(FAKE_COMPUTE_CAPABILITY))
            return answer_number(fakedev_number(FAKE_COMPUTE_CAPABILITY) / 10, AS_UINT, size, value,
                                 size_ret);
        break;
    case COMPUTE_CAPABILITY_MINOR_NV:
        if (fakedev_number(FAKE_COMPUTE_CAPABILITY))
            return answer_number(fakedev_number(FAKE_COMPUTE_CAPABILITY) % 10, AS_UINT, size, value,
                                 size_ret);
        break;
    case CL_DEVICE_HALF_FP_CONFIG:
        if (extension_hidden("cl_khr_fp16"))
            return answer(&no_arithmetic, sizeof no_arithmetic, size, value, size_ret);
        break;
    case CL_DEVICE_DOUBLE_FP_CONFIG:
        if (extension_hidden("cl_khr_fp64"))
            return answer(&no_arithmetic, sizeof no_arithmetic, size, value, size_ret);
        break;
    case CL_DEVICE_PREFERRED_VECTOR_WIDTH_HALF:
    case CL_DEVICE_NATIVE_VECTOR_WIDTH_HALF:
        if (extension_hidden("cl_khr_fp16"))
            return answer(&no_vectors, sizeof no_vectors, size, value, size_ret);
        break;
    case CL_DEVICE_PREFERRED_VECTOR_WIDTH_DOUBLE:
    case CL_DEVICE_NATIVE_VECTOR_WIDTH_DOUBLE:
        if (extension_hidden("cl_khr_fp64"))
            return answer(&no_vectors, sizeof no_vectors, size, value, size_ret);
        break;
    }
    return next->clGetDeviceInfo(device, info, size, value, size_ret);
}

static cl_int CL_API_CALL fake_clGetDeviceInfo(cl_device_id device, cl_device_info info, size_t size,
                                               void *value, size_t *size_ret)
{
    cl_int status = fakedev_begin(CALL_clGetDeviceInfo);
    if (status != CL_SUCCESS)
        return status;
    for (size_t i = 0; i < sizeof device_facts / sizeof *device_facts; i++) {
        if (device_facts[i].info != info)
            continue;
        const char *text = fakedev_text(device_facts[i].setting);
        uint64_t number = fakedev_number(device_facts[i].setting);
        if (text)
            return answer(text, strlen(text) + 1, size, value, size_ret);
        if (number)
            return answer_number(number, device_facts[i].form, size, value, size_ret);
    }
    return derived_device_info(device, info, size, value, size_ret);
}

static cl_int CL_API_CALL fake_clCreateSubDevices(cl_device_id device,
                                                  const cl_device_partition_property *properties,
                                                  cl_uint num_entries, cl_device_id *devices,
                                                  cl_uint *num_devices)
{
    cl_uint count = 0;
    cl_int status = fakedev_begin(CALL_clCreateSubDevices);
    if (status == CL_SUCCESS)
        status = next->clCreateSubDevices(device, properties, num_entries, devices, &count);
    if (status != CL_SUCCESS)
        return status;
    for (cl_uint i = 0; devices && i < count; i++)
        created(CLATTN_FAKEDEV_DEVICE, devices[i], CALL_clCreateSubDevices);
    if (num_devices)
        *num_devices = count;
    return CL_SUCCESS;
}

/* ---- Memory --------------------------------------------------------------------------------- */

/* Two threads that allocate at once may together pass the limit of global memory. */
static cl_int check_allocation(uint64_t size, bool on_device)
{
    uint64_t largest = fakedev_number(FAKE_MAX_ALLOC), total = fakedev_number(FAKE_GLOBAL_MEM);
    struct clattn_fakedev_counters counters;
    if (largest && size > largest)
        return refuse(CL_INVALID_BUFFER_SIZE);
    if (total == 0 || !on_device)
        return CL_SUCCESS;
    clattn_fakedev_counters(&counters);
    if (counters.memory_now > total || size > total - counters.memory_now)
        return refuse(CL_MEM_OBJECT_ALLOCATION_FAILURE);
    return CL_SUCCESS;
}

static cl_mem CL_API_CALL fake_clCreateBuffer(cl_context context, cl_mem_flags flags, size_t size,
                                              void *host_ptr, cl_int *errcode_ret)
{
    cl_int status = fakedev_begin(CALL_clCreateBuffer);
    if (status == CL_SUCCESS)
        status = check_allocation(size, !(flags & CL_MEM_USE_HOST_PTR));
    if (status != CL_SUCCESS)
        return fail(status, errcode_ret);
    cl_mem buffer = next->clCreateBuffer(context, flags, size, host_ptr, errcode_ret);
    created(CLATTN_FAKEDEV_BUFFER, buffer, CALL_clCreateBuffer);
    return buffer;
}

static cl_mem CL_API_CALL fake_clCreateBufferWithProperties(cl_context context,
                                                            const cl_mem_properties *properties,
                                                            cl_mem_flags flags, size_t size, void *host_ptr,
                                                            cl_int *errcode_ret)
{
    cl_int status = fakedev_begin(CALL_clCreateBufferWithProperties);
    if (status == CL_SUCCESS)
        status = check_allocation(size, !(flags & CL_MEM_USE_HOST_PTR));
    if (status != CL_SUCCESS)
        return fail(status, errcode_ret);
    cl_mem buffer =
        next->clCreateBufferWithProperties(context, properties, flags, size, host_ptr, errcode_ret);
    created(CLATTN_FAKEDEV_BUFFER, buffer, CALL_clCreateBufferWithProperties);
    return buffer;
}

static void *CL_API_CALL fake_clSVMAlloc(cl_context context, cl_svm_mem_flags flags, size_t size,
                                         cl_uint alignment)
{
    cl_int status = fakedev_begin(CALL_clSVMAlloc);
    if (status == CL_SUCCESS)
        status = check_allocation(size, true);
    if (status != CL_SUCCESS)
        return NULL;
    void *memory = next->clSVMAlloc(context, flags, size, alignment);
    if (memory)
        fakedev_created(CLATTN_FAKEDEV_SVM, memory, CALL_clSVMAlloc, &(struct fakedev_memory){.bytes = size});
    return memory;
}

static void CL_API_CALL fake_clSVMFree(cl_context context, void *memory)
{
    fakedev_begin(CALL_clSVMFree); /* it has no way to fail */
    if (memory)
        fakedev_released(CLATTN_FAKEDEV_SVM, memory);
    next->clSVMFree(context, memory);
}

/* Without a callback, the memory counts as freed from here on, though the driver frees it when the
 * command runs. With one, the callback frees it, by calls that are watched as any other. */
static cl_int CL_API_CALL
fake_clEnqueueSVMFree(cl_command_queue queue, cl_uint num_pointers, void *pointers[],
                      void(CL_CALLBACK *notify)(cl_command_queue, cl_uint, void *[], void *), void *user_data,
                      cl_uint num_wait, const cl_event *wait, cl_event *event)
{
    cl_int status = fakedev_begin(CALL_clEnqueueSVMFree);
    if (status != CL_SUCCESS)
        return status;
    for (cl_uint i = 0; !notify && pointers && i < num_pointers; i++)
        fakedev_released(CLATTN_FAKEDEV_SVM, pointers[i]);
    status = next->clEnqueueSVMFree(queue, num_pointers, pointers, notify, user_data, num_wait, wait, event);
    created_event(status, event, CALL_clEnqueueSVMFree);
    return status;
}

static void *CL_API_CALL fake_clEnqueueMapBuffer(cl_command_queue queue, cl_mem buffer, cl_bool blocking,
                                                 cl_map_flags flags, size_t offset, size_t size,
                                                 cl_uint num_wait, const cl_event *wait, cl_event *event,
                                                 cl_int *errcode_ret)
{
    cl_int status = fakedev_begin(CALL_clEnqueueMapBuffer);
    if (status != CL_SUCCESS)
        return fail(status, errcode_ret);
    if (blocking)
        fakedev_count_blocking();
    void *mapped = next->clEnqueueMapBuffer(queue, buffer, blocking, flags, offset, size, num_wait, wait,
                                            event, &status);
    created_event(status, event, CALL_clEnqueueMapBuffer);
    if (errcode_ret)
        *errcode_ret = status;
    return mapped;
}

static void *CL_API_CALL fake_clEnqueueMapImage(cl_command_queue queue, cl_mem image, cl_bool blocking,
                                                cl_map_flags flags, const size_t *origin,
                                                const size_t *region, size_t *row_pitch, size_t *slice_pitch,
                                                cl_uint num_wait, const cl_event *wait, cl_event *event,
                                                cl_int *errcode_ret)
{
    cl_int status = fakedev_begin(CALL_clEnqueueMapImage);
    if (status != CL_SUCCESS)
        return fail(status, errcode_ret);
    if (blocking)
        fakedev_count_blocking();
    void *mapped = next->clEnqueueMapImage(queue, image, blocking, flags, origin, region, row_pitch,
                                           slice_pitch, num_wait, wait, event, &status);
    created_event(status, event, CALL_clEnqueueMapImage);
    if (errcode_ret)
        *errcode_ret = status;
    return mapped;
}

/* ---- Programs and kernels ------------------------------------------------------------------- */

/* A build for a newer OpenCL C than the device has fails as a build of faulty source does. */
static bool standard_too_new(const char *options)
{
    static const char option[] = "-cl-std=";
    const char *standard = options ? strstr(options, option) : NULL;
    if (!standard || !faked_opencl_c())
        return false;
    return parse_version(standard + strlen(option), "CL") > faked_opencl_c();
}

static cl_int CL_API_CALL fake_clBuildProgram(cl_program program, cl_uint num_devices,
                                              const cl_device_id *devices, const char *options,
                                              void(CL_CALLBACK *notify)(cl_program, void *), void *user_data)
{
    cl_int status = fakedev_begin(CALL_clBuildProgram);
    if (status != CL_SUCCESS)
        return status;
    if (standard_too_new(options))
        return refuse(CL_BUILD_PROGRAM_FAILURE);
    fakedev_count_build(program);
    return next->clBuildProgram(program, num_devices, devices, options, notify, user_data);
}

static cl_int CL_API_CALL fake_clCompileProgram(cl_program program, cl_uint num_devices,
                                                const cl_device_id *devices, const char *options,
                                                cl_uint num_headers, const cl_program *headers,
                                                const char **header_names,
                                                void(CL_CALLBACK *notify)(cl_program, void *),
                                                void *user_data)
{
    cl_int status = fakedev_begin(CALL_clCompileProgram);
    if (status != CL_SUCCESS)
        return status;
    if (standard_too_new(options))
        return refuse(CL_COMPILE_PROGRAM_FAILURE);
    return next->clCompileProgram(program, num_devices, devices, options, num_headers, headers, header_names,
                                  notify, user_data);
}

static cl_int CL_API_CALL fake_clCreateKernelsInProgram(cl_program program, cl_uint num_kernels,
                                                        cl_kernel *kernels, cl_uint *num_kernels_ret)
{
    cl_uint count = 0;
    cl_int status = fakedev_begin(CALL_clCreateKernelsInProgram);
    if (status == CL_SUCCESS)
        status = next->clCreateKernelsInProgram(program, num_kernels, kernels, &count);
    if (status != CL_SUCCESS)
        return status;
    for (cl_uint i = 0; kernels && i < count; i++)
        created(CLATTN_FAKEDEV_KERNEL, kernels[i], CALL_clCreateKernelsInProgram);
    if (num_kernels_ret)
        *num_kernels_ret = count;
    return CL_SUCCESS;
}

/* The largest work-group that the faked limits allow; 0 if none is faked. */
static size_t faked_group_limit(void)
{
    return (size_t)fakedev_smaller(FAKE_WORK_GROUP, FAKE_KERNEL_WORK_GROUP);
}

static cl_int CL_API_CALL fake_clGetKernelWorkGroupInfo(cl_kernel kernel, cl_device_id device,
                                                        cl_kernel_work_group_info info, size_t size,
                                                        void *value, size_t *size_ret)
{
    size_t fact = 0, limit = faked_group_limit();
    size_t multiple = (size_t)fakedev_number(FAKE_WORK_GROUP_MULTIPLE);
    cl_int status = fakedev_begin(CALL_clGetKernelWorkGroupInfo);
    if (status != CL_SUCCESS)
        return status;

    if (info == CL_KERNEL_WORK_GROUP_SIZE && limit) {
        status = next->clGetKernelWorkGroupInfo(kernel, device, info, sizeof fact, &fact, NULL);
        if (status != CL_SUCCESS)
            return status;
        if (fact > limit)
            fact = limit;
        return answer(&fact, sizeof fact, size, value, size_ret);
    }
    if (info == CL_KERNEL_PREFERRED_WORK_GROUP_SIZE_MULTIPLE && multiple)
        return answer(&multiple, sizeof multiple, size, value, size_ret);
    return next->clGetKernelWorkGroupInfo(kernel, device, info, size, value, size_ret);
}

/* ---- Launches ------------------------------------------------------------------------------- */

struct launch_facts {
    cl_ulong local_mem; /* variables of the kernel, and local arguments as set by clSetKernelArg */
    size_t required[3]; /* reqd_work_group_size; zeros if the kernel has none */
};

/* False if the launch is wrong in ways that have nothing to do with limits; the driver will tell.
 */
static bool get_launch_facts(cl_command_queue queue, cl_kernel kernel, cl_uint work_dim,
                             struct launch_facts *facts)
{
    cl_device_id device;
    return work_dim >= 1 && work_dim <= 3 &&
           next->clGetCommandQueueInfo(queue, CL_QUEUE_DEVICE, sizeof device, &device, NULL) == CL_SUCCESS &&
           next->clGetKernelWorkGroupInfo(kernel, device, CL_KERNEL_LOCAL_MEM_SIZE, sizeof facts->local_mem,
                                          &facts->local_mem, NULL) == CL_SUCCESS &&
           next->clGetKernelWorkGroupInfo(kernel, device, CL_KERNEL_COMPILE_WORK_GROUP_SIZE,
                                          sizeof facts->required, facts->required, NULL) == CL_SUCCESS;
}

/* Divides rather than multiplies, as the product of the sizes may wrap. */
static bool group_exceeds(const size_t *local, cl_uint work_dim, size_t limit)
{
    for (cl_uint i = 0; i < work_dim; i++) {
        if (local[i] == 0)
            return false;
        limit /= local[i];
    }
    return limit == 0;
}

static cl_int check_launch(const struct launch_facts *facts, cl_uint work_dim, const size_t *local)
{
    size_t group_limit = faked_group_limit();
    cl_ulong local_mem_limit = fakedev_number(FAKE_LOCAL_MEM);
    if (group_limit && (group_exceeds(facts->required, 3, group_limit) ||
                        (local && group_exceeds(local, work_dim, group_limit))))
        return refuse(CL_INVALID_WORK_GROUP_SIZE);
    if (local_mem_limit && facts->local_mem > local_mem_limit)
        return refuse(CL_OUT_OF_RESOURCES);
    return CL_SUCCESS;
}

/* A driver that is left to choose the work-group must not choose beyond the faked limit either, so
 * the layer chooses: the largest divisor of the first dimension that fits. False if there is
 * nothing to choose. */
static bool choose_group(const struct launch_facts *facts, const size_t *global, size_t chosen[3])
{
    size_t limit = faked_group_limit();
    if (limit == 0 || facts->required[0] != 0 || !global || global[0] == 0)
        return false;
    chosen[0] = global[0] < limit ? global[0] : limit;
    while (global[0] % chosen[0] != 0)
        chosen[0]--;
    chosen[1] = chosen[2] = 1;
    return true;
}

static cl_int CL_API_CALL fake_clEnqueueNDRangeKernel(cl_command_queue queue, cl_kernel kernel,
                                                      cl_uint work_dim, const size_t *offset,
                                                      const size_t *global, const size_t *local,
                                                      cl_uint num_wait, const cl_event *wait, cl_event *event)
{
    struct launch_facts facts;
    size_t chosen[3];
    cl_int status = fakedev_begin(CALL_clEnqueueNDRangeKernel);
    if (status == CL_SUCCESS && get_launch_facts(queue, kernel, work_dim, &facts)) {
        status = check_launch(&facts, work_dim, local);
        if (!local && choose_group(&facts, global, chosen))
            local = chosen;
    }
    if (status == CL_SUCCESS)
        status = next->clEnqueueNDRangeKernel(queue, kernel, work_dim, offset, global, local, num_wait, wait,
                                              event);
    created_event(status, event, CALL_clEnqueueNDRangeKernel);
    return status;
}

static cl_int CL_API_CALL fake_clEnqueueTask(cl_command_queue queue, cl_kernel kernel, cl_uint num_wait,
                                             const cl_event *wait, cl_event *event)
{
    struct launch_facts facts;
    cl_int status = fakedev_begin(CALL_clEnqueueTask);
    if (status == CL_SUCCESS && get_launch_facts(queue, kernel, 1, &facts))
        status = check_launch(&facts, 1, NULL);
    if (status == CL_SUCCESS)
        status = next->clEnqueueTask(queue, kernel, num_wait, wait, event);
    created_event(status, event, CALL_clEnqueueTask);
    return status;
}

/* ---- Functions of extensions ---------------------------------------------------------------- */

/* The driver's, of the platform that was asked last. */
static _Atomic(clSetKernelArgMemPointerINTEL_fn) next_set_usm_pointer;
static _Atomic(clCommandNDRangeKernelKHR_fn) next_command_kernel;

/* Where unified shared memory is faked, its pointers are those of clSVMAlloc. */
static cl_int CL_API_CALL fake_clSetKernelArgMemPointerINTEL(cl_kernel kernel, cl_uint index,
                                                             const void *value)
{
    cl_int status = fakedev_begin(CALL_clSetKernelArgMemPointerINTEL);
    clSetKernelArgMemPointerINTEL_fn set = atomic_load(&next_set_usm_pointer);
    if (status != CL_SUCCESS)
        return status;
    return set ? set(kernel, index, value) : next->clSetKernelArgSVMPointer(kernel, index, value);
}

static cl_int CL_API_CALL fake_clCommandNDRangeKernelKHR(
    cl_command_buffer_khr buffer, cl_command_queue queue,
    const cl_ndrange_kernel_command_properties_khr *properties, cl_kernel kernel, cl_uint work_dim,
    const size_t *offset, const size_t *global, const size_t *local, cl_uint num_sync,
    const cl_sync_point_khr *sync_wait, cl_sync_point_khr *sync_point, cl_mutable_command_khr *command)
{
    cl_int status = fakedev_begin(CALL_clCommandNDRangeKernelKHR);
    if (status != CL_SUCCESS)
        return status;
    return atomic_load(&next_command_kernel)(buffer, queue, properties, kernel, work_dim, offset, global,
                                             local, num_sync, sync_wait, sync_point, command);
}

/* ISO C has no conversion between the two; POSIX has, and the copy is it. */
typedef void (*function)(void);
static void *address_of(function f)
{
    void *address;
    memcpy(&address, &f, sizeof address);
    return address;
}
static function function_at(void *address)
{
    function f;
    memcpy(&f, &address, sizeof f);
    return f;
}

static void *CL_API_CALL fake_clGetExtensionFunctionAddressForPlatform(cl_platform_id platform,
                                                                       const char *name)
{
    if (fakedev_begin(CALL_clGetExtensionFunctionAddressForPlatform) != CL_SUCCESS ||
        is_listed(FAKE_HIDDEN_FUNCTIONS, name))
        return NULL;
    void *address = next->clGetExtensionFunctionAddressForPlatform(platform, name);
    if (strcmp(name, "clSetKernelArgMemPointerINTEL") == 0 &&
        (address || is_listed(FAKE_EXTENSIONS, "cl_intel_unified_shared_memory"))) {
        atomic_store(&next_set_usm_pointer, (clSetKernelArgMemPointerINTEL_fn)function_at(address));
        return address_of((function)fake_clSetKernelArgMemPointerINTEL);
    }
    if (strcmp(name, "clCommandNDRangeKernelKHR") == 0 && address) {
        atomic_store(&next_command_kernel, (clCommandNDRangeKernelKHR_fn)function_at(address));
        return address_of((function)fake_clCommandNDRangeKernelKHR);
    }
    return address;
}

/* ---- What the loader asks for --------------------------------------------------------------- */

/* An entry left NULL is filled by the loader with the driver's. */
static const cl_icd_dispatch layer = {
#define CALL(name) .name = fake_##name,
#define EXTENSION(name)
#include "fakedev_calls.h"
};

CLATTN_FAKEDEV_API CL_API_ENTRY cl_int CL_API_CALL clGetLayerInfo(cl_layer_info info, size_t size,
                                                                  void *value, size_t *size_ret)
{
    static const cl_layer_api_version version = CL_LAYER_API_VERSION_100;
    static const char name[] = "clattn_fakedev";
    switch (info) {
    case CL_LAYER_API_VERSION:
        return answer(&version, sizeof version, size, value, size_ret);
    case CL_LAYER_NAME:
        return answer(name, sizeof name, size, value, size_ret);
    default:
        return CL_INVALID_VALUE;
    }
}

CLATTN_FAKEDEV_API CL_API_ENTRY cl_int CL_API_CALL clInitLayer(cl_uint num_entries,
                                                               const cl_icd_dispatch *target,
                                                               cl_uint *num_entries_ret,
                                                               const cl_icd_dispatch **layer_ret)
{
    (void)num_entries; /* the loader calls none of our entries that it has no function for */
    if (!target || !num_entries_ret || !layer_ret)
        return CL_INVALID_VALUE;
    /* A loader goes on without a layer that fails, and the test would pass for the wrong reason. */
    if (!fakedev_read_environment())
        _Exit(EXIT_FAILURE);
    next = target;
    fakedev_set_active();
    *num_entries_ret = sizeof layer / sizeof(void (*)(void));
    *layer_ret = &layer;
    return CL_SUCCESS;
}
