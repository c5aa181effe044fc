/* nvidia_emulation.c: an OpenCL layer (OPENCL_LAYERS) under which the device is an NVIDIA GPU whose programs
 * with instructions for matrix units (cl/nvidia_ptx.cl) run on the CPU: clang compiles them to a shared
 * library, with emulated_ptx.cl in that file's place, and warp.c runs their work-groups. Everything else goes
 * to the driver below (PoCL). So fragments, masks, softmax and the order of copies are tested where no such
 * GPU is; speed, registers and the vendor's compiler are not.
 *
 *     CLATTN_EMULATION_CAPABILITY   10 * major + minor; 80 without
 *     CLATTN_EMULATION_LOCAL        CL_DEVICE_LOCAL_MEM_SIZE; without, what such a device has
 *     CLATTN_EMULATION_CACHE        a directory where compiled programs stay
 *     CLATTN_EMULATION_CLANG        the compiler; "clang" without
 *
 * For x86-64 with AVX2 and F16C. */
#define _GNU_SOURCE
#undef CL_TARGET_OPENCL_VERSION
#define CL_TARGET_OPENCL_VERSION 300 /* only for it the dispatch table is declared in full */
#include "warp.h"

#include <CL/cl.h>
#include <CL/cl_layer.h>

#include <dlfcn.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

extern const unsigned char emulated_ptx[];
extern const size_t emulated_ptx_size;

enum { MOST_BUFFERS = 32, MOST_ARGS = 1024 };

typedef struct program {
    struct program *next;
    char *source;
    void *library;
} program;

typedef struct kernel {
    struct kernel *next;
    warp_kernel run;
    void *buffer[MOST_BUFFERS];
    int is_pointer[MOST_BUFFERS];
    unsigned char args[MOST_ARGS];
} kernel;

static const cl_icd_dispatch *below;
static cl_icd_dispatch layer;
static program *programs;
static kernel *kernels;

static program *program_of(cl_program handle)
{
    program *p = programs;
    while (p && (cl_program)p != handle)
        p = p->next;
    return p;
}

static kernel *kernel_of(cl_kernel handle)
{
    kernel *k = kernels;
    while (k && (cl_kernel)k != handle)
        k = k->next;
    return k;
}

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

/* ---- The device ---- */

static cl_uint number_of(const char *variable, cl_uint otherwise)
{
    const char *text = getenv(variable);
    return text ? (cl_uint)strtoul(text, NULL, 10) : otherwise;
}

static cl_int CL_API_CALL get_device_info(cl_device_id device, cl_device_info what, size_t size, void *value,
                                          size_t *size_ret)
{
    enum { COMPUTE_CAPABILITY_MAJOR_NV = 0x4000, COMPUTE_CAPABILITY_MINOR_NV = 0x4001 };
    const char vendor[] = "NVIDIA Corporation";
    const cl_device_type type = CL_DEVICE_TYPE_GPU;
    const cl_uint capability = number_of("CLATTN_EMULATION_CAPABILITY", 80);
    const cl_uint major = capability / 10, minor = capability % 10;
    const cl_ulong local = number_of("CLATTN_EMULATION_LOCAL", 48 * 1024);
    switch (what) {
    case CL_DEVICE_VENDOR:
        return answer(vendor, sizeof vendor, size, value, size_ret);
    case CL_DEVICE_TYPE:
        return answer(&type, sizeof type, size, value, size_ret);
    case COMPUTE_CAPABILITY_MAJOR_NV:
        return answer(&major, sizeof major, size, value, size_ret);
    case COMPUTE_CAPABILITY_MINOR_NV:
        return answer(&minor, sizeof minor, size, value, size_ret);
    case CL_DEVICE_LOCAL_MEM_SIZE:
        return answer(&local, sizeof local, size, value, size_ret);
    default:
        return below->clGetDeviceInfo(device, what, size, value, size_ret);
    }
}

/* Buffers that the host may not touch are touched here all the same. */
static cl_mem CL_API_CALL create_buffer(cl_context context, cl_mem_flags flags, size_t size, void *host,
                                        cl_int *errcode_ret)
{
    return below->clCreateBuffer(context, flags & ~(cl_mem_flags)CL_MEM_HOST_NO_ACCESS, size, host,
                                 errcode_ret);
}

/* ---- Programs ---- */

static const char piece[] = "#line 1 \"cl/nvidia_ptx.cl\"\n";

static char *join(cl_uint count, const char **strings, const size_t *lengths)
{
    size_t total = 0;
    for (cl_uint i = 0; i < count; i++)
        total += lengths && lengths[i] ? lengths[i] : strlen(strings[i]);
    char *text = malloc(total + 1), *at = text;
    for (cl_uint i = 0; text && i < count; i++) {
        const size_t length = lengths && lengths[i] ? lengths[i] : strlen(strings[i]);
        memcpy(at, strings[i], length);
        at += length;
    }
    if (text)
        *at = 0;
    return text;
}

static cl_program CL_API_CALL create_program_with_source(cl_context context, cl_uint count,
                                                         const char **strings, const size_t *lengths,
                                                         cl_int *errcode_ret)
{
    char *source = join(count, strings, lengths);
    if (!source || !strstr(source, piece)) {
        free(source);
        return below->clCreateProgramWithSource(context, count, strings, lengths, errcode_ret);
    }
    program *p = calloc(1, sizeof *p);
    if (p) {
        p->source = source;
        p->next = programs;
        programs = p;
    }
    if (errcode_ret)
        *errcode_ret = p ? CL_SUCCESS : CL_OUT_OF_HOST_MEMORY;
    return (cl_program)p;
}

/* So that every program is made from source. */
static cl_program CL_API_CALL create_program_with_binary(cl_context context, cl_uint count,
                                                         const cl_device_id *devices, const size_t *lengths,
                                                         const unsigned char **binaries, cl_int *status,
                                                         cl_int *errcode_ret)
{
    (void)context, (void)devices, (void)lengths, (void)binaries;
    for (cl_uint i = 0; status && i < count; i++)
        status[i] = CL_INVALID_BINARY;
    if (errcode_ret)
        *errcode_ret = CL_INVALID_BINARY;
    return NULL;
}

/* Of each kernel a function that takes its arguments from memory. */
static const char *const kernel_names[] = {"forward_any", "forward_aligned", "classify_tiles",
                                           "check_sequences"};

static void write_kernel(FILE *file, const char *source, const char *name)
{
    char in_macro[80], in_text[80];
    snprintf(in_macro, sizeof in_macro, "KERNEL(%s,", name);
    snprintf(in_text, sizeof in_text, "%s(ATTENTION_BUFFERS", name);
    if (!strstr(source, in_macro) && !strstr(source, in_text))
        return;
    if (strcmp(name, "classify_tiles") == 0)
        fprintf(file, "#if SCORE_FULL\n");
    else if (strcmp(name, "check_sequences") == 0)
        fprintf(file, "#if HAS_STATUS\n");
    else
        fprintf(file, "#if 1\n");
    fprintf(file, "void emulated_%s(__global void *const *b, const attention_args *args)\n{\n    %s(", name,
            name);
    for (int i = 0; i < 23; i++)
        fprintf(file, "b[%d], ", i);
    fprintf(file, "*args);\n}\n#endif\n");
}

static int write_source(const char *path, const char *source)
{
    FILE *file = fopen(path, "w");
    const char *begin = strstr(source, piece);
    const char *end = strstr(begin + sizeof piece - 1, "#line 1 ");
    if (!file || !end)
        return 0;
    fwrite(source, 1, (size_t)(begin - source), file);
    fwrite(emulated_ptx, 1, emulated_ptx_size, file);
    fputs(end, file);
    fputs("\n#line 1 \"kernels\"\n", file);
    for (size_t i = 0; i < sizeof kernel_names / sizeof *kernel_names; i++)
        write_kernel(file, source, kernel_names[i]);
    return fclose(file) == 0;
}

static uint64_t hash(uint64_t h, const char *text)
{
    for (; *text; text++)
        h = (h ^ (unsigned char)*text) * UINT64_C(1099511628211);
    return h;
}

/* The library's functions are found by those that it is compiled to. */
static void offer_functions(void)
{
    Dl_info info;
    if (dladdr((void *)(uintptr_t)clGetLayerInfo, &info))
        dlopen(info.dli_fname, RTLD_NOW | RTLD_GLOBAL | RTLD_NOLOAD);
}

static void *compile(const char *source, const char *options)
{
    char folder[512] = "/tmp/clattn-emulation-XXXXXX", base[600], text[700], library[700], command[4096];
    const char *clang = getenv("CLATTN_EMULATION_CLANG"), *cache = getenv("CLATTN_EMULATION_CACHE");
    if (cache)
        snprintf(folder, sizeof folder, "%s", cache);
    else if (!mkdtemp(folder))
        return NULL;
    const uint64_t key =
        hash(hash(hash(UINT64_C(14695981039346656037), source), options), (const char *)emulated_ptx);
    snprintf(base, sizeof base, "%s/%016llx", folder, (unsigned long long)key);
    snprintf(text, sizeof text, "%s.cl", base);
    snprintf(library, sizeof library, "%s.so", base);
    snprintf(
        command, sizeof command,
        "%s -x cl %s -w -Xclang -finclude-default-header -target x86_64-pc-linux-gnu -mavx2 -mf16c -mfma "
        "-ffp-contract=off -fno-math-errno -O1 -fPIC -shared %s -o %s.part -lm && mv %s.part %s",
        clang ? clang : "clang", options, text, base, base, library);
    if (access(library, R_OK) != 0 && (!write_source(text, source) || system(command) != 0))
        return NULL;
    void *handle = dlopen(library, RTLD_NOW | RTLD_LOCAL);
    if (!handle)
        fprintf(stderr, "%s\n", dlerror());
    if (!cache) {
        remove(text);
        remove(library);
        rmdir(folder);
    }
    return handle;
}

static cl_int CL_API_CALL build_program(cl_program handle, cl_uint count, const cl_device_id *devices,
                                        const char *options, void(CL_CALLBACK *notify)(cl_program, void *),
                                        void *user)
{
    program *p = program_of(handle);
    if (!p)
        return below->clBuildProgram(handle, count, devices, options, notify, user);
    offer_functions();
    p->library = compile(p->source, options ? options : "");
    if (notify)
        notify(handle, user);
    return p->library ? CL_SUCCESS : CL_BUILD_PROGRAM_FAILURE;
}

static cl_int CL_API_CALL get_program_info(cl_program handle, cl_program_info what, size_t size, void *value,
                                           size_t *size_ret)
{
    if (program_of(handle))
        return CL_INVALID_PROGRAM_EXECUTABLE; /* there is no binary to keep */
    return below->clGetProgramInfo(handle, what, size, value, size_ret);
}

static cl_int CL_API_CALL get_program_build_info(cl_program handle, cl_device_id device,
                                                 cl_program_build_info what, size_t size, void *value,
                                                 size_t *size_ret)
{
    if (program_of(handle))
        return answer("", 1, size, value, size_ret);
    return below->clGetProgramBuildInfo(handle, device, what, size, value, size_ret);
}

/* What was built stays: kernels may still be there. */
static cl_int CL_API_CALL release_program(cl_program handle)
{
    return program_of(handle) ? CL_SUCCESS : below->clReleaseProgram(handle);
}

/* ---- Kernels ---- */

static cl_kernel CL_API_CALL create_kernel(cl_program handle, const char *name, cl_int *errcode_ret)
{
    char symbol[128];
    program *p = program_of(handle);
    if (!p)
        return below->clCreateKernel(handle, name, errcode_ret);
    snprintf(symbol, sizeof symbol, "emulated_%s", name);
    kernel *k = calloc(1, sizeof *k);
    void *function = dlsym(p->library, symbol);
    if (k && function) {
        memcpy(&k->run, &function, sizeof k->run);
        k->next = kernels;
        kernels = k;
    }
    if (errcode_ret)
        *errcode_ret = !k ? CL_OUT_OF_HOST_MEMORY : function ? CL_SUCCESS : CL_INVALID_KERNEL_NAME;
    return function ? (cl_kernel)k : NULL;
}

static cl_int CL_API_CALL release_kernel(cl_kernel handle)
{
    return kernel_of(handle) ? CL_SUCCESS : below->clReleaseKernel(handle);
}

static cl_int CL_API_CALL set_kernel_arg(cl_kernel handle, cl_uint index, size_t size, const void *value)
{
    kernel *k = kernel_of(handle);
    if (!k)
        return below->clSetKernelArg(handle, index, size, value);
    if (size == sizeof(cl_mem) && index < MOST_BUFFERS) {
        k->buffer[index] = NULL;
        k->is_pointer[index] = 0;
        if (value)
            memcpy(&k->buffer[index], value, size);
    } else if (size <= MOST_ARGS && value) {
        memcpy(k->args, value, size);
    } else {
        return CL_INVALID_ARG_SIZE;
    }
    return CL_SUCCESS;
}

static cl_int CL_API_CALL set_kernel_arg_pointer(cl_kernel handle, cl_uint index, const void *value)
{
    kernel *k = kernel_of(handle);
    if (!k)
        return below->clSetKernelArgSVMPointer(handle, index, value);
    if (index >= MOST_BUFFERS)
        return CL_INVALID_ARG_INDEX;
    memcpy(&k->buffer[index], &value, sizeof value);
    k->is_pointer[index] = 1;
    return CL_SUCCESS;
}

static cl_int CL_API_CALL get_kernel_work_group_info(cl_kernel handle, cl_device_id device,
                                                     cl_kernel_work_group_info what, size_t size, void *value,
                                                     size_t *size_ret)
{
    const size_t items = 1024;
    const cl_ulong bytes = 0;
    if (!kernel_of(handle))
        return below->clGetKernelWorkGroupInfo(handle, device, what, size, value, size_ret);
    if (what == CL_KERNEL_WORK_GROUP_SIZE)
        return answer(&items, sizeof items, size, value, size_ret);
    if (what == CL_KERNEL_LOCAL_MEM_SIZE || what == CL_KERNEL_PRIVATE_MEM_SIZE)
        return answer(&bytes, sizeof bytes, size, value, size_ret);
    return CL_INVALID_VALUE;
}

static cl_int CL_API_CALL enqueue_kernel(cl_command_queue queue, cl_kernel handle, cl_uint dimensions,
                                         const size_t *offset, const size_t *global, const size_t *local,
                                         cl_uint num_events, const cl_event *wait_list, cl_event *event)
{
    void *pointers[MOST_BUFFERS] = {NULL};
    kernel *k = kernel_of(handle);
    cl_int status = CL_SUCCESS;
    if (!k)
        return below->clEnqueueNDRangeKernel(queue, handle, dimensions, offset, global, local, num_events,
                                             wait_list, event);
    if (num_events > 0)
        below->clWaitForEvents(num_events, wait_list);
    below->clFinish(queue);
    for (int i = 0; i < MOST_BUFFERS && status == CL_SUCCESS; i++) {
        size_t bytes = 0;
        pointers[i] = k->buffer[i];
        if (!k->buffer[i] || k->is_pointer[i])
            continue;
        below->clGetMemObjectInfo(k->buffer[i], CL_MEM_SIZE, sizeof bytes, &bytes, NULL);
        pointers[i] = below->clEnqueueMapBuffer(queue, k->buffer[i], CL_TRUE, CL_MAP_READ | CL_MAP_WRITE, 0,
                                                bytes, 0, NULL, NULL, &status);
    }
    for (size_t group = 0; status == CL_SUCCESS && group < global[1]; group++)
        warp_run_group(k->run, pointers, k->args, local[0], group);
    for (int i = 0; i < MOST_BUFFERS; i++)
        if (k->buffer[i] && !k->is_pointer[i] && pointers[i])
            below->clEnqueueUnmapMemObject(queue, k->buffer[i], pointers[i], 0, NULL, NULL);
    return status == CL_SUCCESS ? below->clEnqueueMarkerWithWaitList(queue, 0, NULL, event) : status;
}

/* ---- The layer ---- */

CL_API_ENTRY cl_int CL_API_CALL clGetLayerInfo(cl_layer_info what, size_t size, void *value, size_t *size_ret)
{
    const cl_layer_api_version version = CL_LAYER_API_VERSION_100;
    const char name[] = "clattn_nvidia_emulation";
    if (what == CL_LAYER_API_VERSION)
        return answer(&version, sizeof version, size, value, size_ret);
    if (what == CL_LAYER_NAME)
        return answer(name, sizeof name, size, value, size_ret);
    return CL_INVALID_VALUE;
}

CL_API_ENTRY cl_int CL_API_CALL clInitLayer(cl_uint num_entries, const cl_icd_dispatch *target,
                                            cl_uint *num_entries_ret, const cl_icd_dispatch **layer_ret)
{
    const size_t bytes = num_entries * sizeof(void *);
    below = target;
    memcpy(&layer, target, bytes < sizeof layer ? bytes : sizeof layer);
    layer.clGetDeviceInfo = get_device_info;
    layer.clCreateBuffer = create_buffer;
    layer.clCreateProgramWithSource = create_program_with_source;
    layer.clCreateProgramWithBinary = create_program_with_binary;
    layer.clBuildProgram = build_program;
    layer.clGetProgramInfo = get_program_info;
    layer.clGetProgramBuildInfo = get_program_build_info;
    layer.clReleaseProgram = release_program;
    layer.clCreateKernel = create_kernel;
    layer.clReleaseKernel = release_kernel;
    layer.clSetKernelArg = set_kernel_arg;
    layer.clSetKernelArgSVMPointer = set_kernel_arg_pointer;
    layer.clGetKernelWorkGroupInfo = get_kernel_work_group_info;
    layer.clEnqueueNDRangeKernel = enqueue_kernel;
    *num_entries_ret = sizeof layer / sizeof(void *);
    *layer_ret = &layer;
    return CL_SUCCESS;
}
