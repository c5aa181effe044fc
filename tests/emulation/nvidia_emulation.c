/* nvidia_emulation.c: an OpenCL layer (OPENCL_LAYERS) under which the device is an NVIDIA GPU whose programs
 * with instructions for matrix units (cl/nvidia_ptx.cl, cl/hopper.cl) run on the CPU: clang compiles them to
 * a shared library, in which inline assembly is calls (translate.h), and warp.c runs their work-groups, PTX
 * statement by PTX statement. Everything else goes to the driver below (PoCL). So fragments, masks, softmax
 * and the order of copies and products are tested where no such GPU is; speed, registers and the vendor's
 * compiler are not.
 *
 * The binary of a program is PTX text as far as the library looks at it (src/ptx_route.h): the statements of
 * inline assembly, which come back from it if it is handed in changed.
 *
 *     CLATTN_EMULATION_CAPABILITY   10 * major + minor; 80 without
 *     CLATTN_EMULATION_LOCAL        CL_DEVICE_LOCAL_MEM_SIZE; without, what such a device has
 *     CLATTN_EMULATION_CACHE        a directory where compiled programs stay
 *     CLATTN_EMULATION_CLANG        the compiler; "clang" without
 *     CLATTN_EMULATION_WITHOUT      text in instructions that the device does not know: what falls back is
 * run
 *
 * For x86-64 with AVX2 and F16C. */
#define _GNU_SOURCE
#include "../layer/layer.h"
#include "program.h"
#include "warp.h"

#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { MOST_BUFFERS = 32, MOST_ARGS = 1024 };

const char layer_name[] = "clattn_nvidia_emulation";

typedef struct kernel {
    struct kernel *next;
    const emulated_program *program;
    warp_kernel run;
    void *buffer[MOST_BUFFERS];
    int is_pointer[MOST_BUFFERS];
    unsigned char args[MOST_ARGS];
} kernel;

static emulated_program *programs;
static kernel *kernels;

static emulated_program *program_of(cl_program handle)
{
    emulated_program *p = programs;
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

/* ---- The device ---- */

static cl_uint number_of(const char *variable, cl_uint otherwise)
{
    const char *text = getenv(variable);
    return text ? (cl_uint)strtoul(text, NULL, 10) : otherwise;
}

static cl_uint capability(void) { return number_of("CLATTN_EMULATION_CAPABILITY", 80); }

static cl_int CL_API_CALL get_device_info(cl_device_id device, cl_device_info what, size_t size, void *value,
                                          size_t *size_ret)
{
    enum { COMPUTE_CAPABILITY_MAJOR_NV = 0x4000, COMPUTE_CAPABILITY_MINOR_NV = 0x4001 };
    const char vendor[] = "NVIDIA Corporation";
    const cl_device_type type = CL_DEVICE_TYPE_GPU;
    const cl_uint units = 3; /* few, so that work-groups that stay have several tiles */
    const cl_uint major = capability() / 10, minor = capability() % 10;
    const cl_ulong local = number_of("CLATTN_EMULATION_LOCAL", 48 * 1024);
    switch (what) {
    case CL_DEVICE_VENDOR:
        return layer_answer(vendor, sizeof vendor, size, value, size_ret);
    case CL_DEVICE_TYPE:
        return layer_answer(&type, sizeof type, size, value, size_ret);
    case COMPUTE_CAPABILITY_MAJOR_NV:
        return layer_answer(&major, sizeof major, size, value, size_ret);
    case COMPUTE_CAPABILITY_MINOR_NV:
        return layer_answer(&minor, sizeof minor, size, value, size_ret);
    case CL_DEVICE_MAX_COMPUTE_UNITS:
        return layer_answer(&units, sizeof units, size, value, size_ret);
    case CL_DEVICE_LOCAL_MEM_SIZE:
        return layer_answer(&local, sizeof local, size, value, size_ret);
    default:
        return layer_below->clGetDeviceInfo(device, what, size, value, size_ret);
    }
}

/* Buffers that the host may not touch are touched here all the same. */
static cl_mem CL_API_CALL create_buffer(cl_context context, cl_mem_flags flags, size_t size, void *host,
                                        cl_int *errcode_ret)
{
    return layer_below->clCreateBuffer(context, flags & ~(cl_mem_flags)CL_MEM_HOST_NO_ACCESS, size, host,
                                       errcode_ret);
}

/* ---- Programs ---- */

static cl_program add_program(emulated_program *p, cl_context context, cl_int *errcode_ret)
{
    if (p) {
        layer_below->clGetContextInfo(context, CL_CONTEXT_DEVICES, sizeof p->device, &p->device, NULL);
        p->capability = (int)capability();
        p->next = programs;
        programs = p;
    }
    if (errcode_ret)
        *errcode_ret = p ? CL_SUCCESS : CL_OUT_OF_HOST_MEMORY;
    return (cl_program)p;
}

static cl_program CL_API_CALL create_program_with_source(cl_context context, cl_uint count,
                                                         const char **strings, const size_t *lengths,
                                                         cl_int *errcode_ret)
{
    char *source = layer_join(count, strings, lengths);
    if (!source || !strstr(source, "#line 1 \"cl/nvidia_ptx.cl\"\n")) {
        const int is_foreign = source && strstr(source, "__asm__"); /* which nothing here can run */
        free(source);
        if (is_foreign) {
            if (errcode_ret)
                *errcode_ret = CL_COMPILER_NOT_AVAILABLE;
            return NULL;
        }
        return layer_below->clCreateProgramWithSource(context, count, strings, lengths, errcode_ret);
    }
    return add_program(program_from_source(source), context, errcode_ret);
}

/* Binaries of this process's programs; others are made from source. */
static cl_program CL_API_CALL create_program_with_binary(cl_context context, cl_uint count,
                                                         const cl_device_id *devices, const size_t *lengths,
                                                         const unsigned char **binaries, cl_int *status,
                                                         cl_int *errcode_ret)
{
    emulated_program *p =
        count == 1 ? program_from_ptx(programs, (const char *)binaries[0], lengths[0]) : NULL;
    if (!p)
        return layer_refuse_binary(context, count, devices, lengths, binaries, status, errcode_ret);
    if (status)
        *status = CL_SUCCESS;
    return add_program(p, context, errcode_ret);
}

static cl_int CL_API_CALL build_program(cl_program handle, cl_uint count, const cl_device_id *devices,
                                        const char *options, void(CL_CALLBACK *notify)(cl_program, void *),
                                        void *user)
{
    emulated_program *p = program_of(handle);
    if (!p)
        return layer_below->clBuildProgram(handle, count, devices, options, notify, user);
    const int is_built = program_build(p, options ? options : "");
    if (!is_built && !getenv("CLATTN_EMULATION_WITHOUT"))
        fprintf(stderr, "%s\n", p->log);
    if (notify)
        notify(handle, user);
    return is_built ? CL_SUCCESS : CL_BUILD_PROGRAM_FAILURE;
}

static cl_int CL_API_CALL get_program_info(cl_program handle, cl_program_info what, size_t size, void *value,
                                           size_t *size_ret)
{
    const emulated_program *p = program_of(handle);
    if (!p)
        return layer_below->clGetProgramInfo(handle, what, size, value, size_ret);
    const cl_uint one = 1;
    const size_t bytes = p->ptx ? strlen(p->ptx) + 1 : 0;
    switch (what) {
    case CL_PROGRAM_NUM_DEVICES:
        return layer_answer(&one, sizeof one, size, value, size_ret);
    case CL_PROGRAM_DEVICES:
        return layer_answer(&p->device, sizeof p->device, size, value, size_ret);
    case CL_PROGRAM_BINARY_SIZES:
        return layer_answer(&bytes, sizeof bytes, size, value, size_ret);
    case CL_PROGRAM_BINARIES:
        if (value && *(char **)value)
            memcpy(*(char **)value, p->ptx, bytes);
        return CL_SUCCESS;
    default:
        return CL_INVALID_VALUE;
    }
}

static cl_int CL_API_CALL get_program_build_info(cl_program handle, cl_device_id device,
                                                 cl_program_build_info what, size_t size, void *value,
                                                 size_t *size_ret)
{
    const emulated_program *p = program_of(handle);
    if (p)
        return layer_answer(p->log, strlen(p->log) + 1, size, value, size_ret);
    return layer_below->clGetProgramBuildInfo(handle, device, what, size, value, size_ret);
}

/* What was built stays: kernels may still be there. */
static cl_int CL_API_CALL release_program(cl_program handle)
{
    return program_of(handle) ? CL_SUCCESS : layer_below->clReleaseProgram(handle);
}

/* ---- Kernels ---- */

static cl_kernel CL_API_CALL create_kernel(cl_program handle, const char *name, cl_int *errcode_ret)
{
    const emulated_program *p = program_of(handle);
    if (!p)
        return layer_below->clCreateKernel(handle, name, errcode_ret);
    kernel *k = calloc(1, sizeof *k);
    const warp_kernel function = program_kernel(p, name);
    if (k && function) {
        k->run = function;
        k->program = p;
        k->next = kernels;
        kernels = k;
    }
    if (errcode_ret)
        *errcode_ret = !k ? CL_OUT_OF_HOST_MEMORY : function ? CL_SUCCESS : CL_INVALID_KERNEL_NAME;
    return function ? (cl_kernel)k : NULL;
}

static cl_int CL_API_CALL release_kernel(cl_kernel handle)
{
    return kernel_of(handle) ? CL_SUCCESS : layer_below->clReleaseKernel(handle);
}

static cl_int CL_API_CALL set_kernel_arg(cl_kernel handle, cl_uint index, size_t size, const void *value)
{
    kernel *k = kernel_of(handle);
    if (!k)
        return layer_below->clSetKernelArg(handle, index, size, value);
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
        return layer_below->clSetKernelArgSVMPointer(handle, index, value);
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
        return layer_below->clGetKernelWorkGroupInfo(handle, device, what, size, value, size_ret);
    if (what == CL_KERNEL_WORK_GROUP_SIZE)
        return layer_answer(&items, sizeof items, size, value, size_ret);
    if (what == CL_KERNEL_LOCAL_MEM_SIZE || what == CL_KERNEL_PRIVATE_MEM_SIZE)
        return layer_answer(&bytes, sizeof bytes, size, value, size_ret);
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
        return layer_below->clEnqueueNDRangeKernel(queue, handle, dimensions, offset, global, local,
                                                   num_events, wait_list, event);
    if (num_events > 0)
        layer_below->clWaitForEvents(num_events, wait_list);
    layer_below->clFinish(queue);
    for (int i = 0; i < MOST_BUFFERS && status == CL_SUCCESS; i++) {
        size_t bytes = 0;
        pointers[i] = k->buffer[i];
        if (!k->buffer[i] || k->is_pointer[i])
            continue;
        layer_below->clGetMemObjectInfo(k->buffer[i], CL_MEM_SIZE, sizeof bytes, &bytes, NULL);
        pointers[i] = layer_below->clEnqueueMapBuffer(
            queue, k->buffer[i], CL_TRUE, CL_MAP_READ | CL_MAP_WRITE, 0, bytes, 0, NULL, NULL, &status);
    }
    const warp_launch launch = {&k->program->warp, k->run, pointers, k->args, local[0], global[1]};
    for (size_t group = 0; status == CL_SUCCESS && group < global[1]; group++)
        warp_run_group(&launch, group);
    for (int i = 0; i < MOST_BUFFERS; i++)
        if (k->buffer[i] && !k->is_pointer[i] && pointers[i])
            layer_below->clEnqueueUnmapMemObject(queue, k->buffer[i], pointers[i], 0, NULL, NULL);
    return status == CL_SUCCESS ? layer_below->clEnqueueMarkerWithWaitList(queue, 0, NULL, event) : status;
}

/* ---- The layer ---- */

void layer_replace(cl_icd_dispatch *table)
{
    table->clGetDeviceInfo = get_device_info;
    table->clCreateBuffer = create_buffer;
    table->clCreateProgramWithSource = create_program_with_source;
    table->clCreateProgramWithBinary = create_program_with_binary;
    table->clBuildProgram = build_program;
    table->clGetProgramInfo = get_program_info;
    table->clGetProgramBuildInfo = get_program_build_info;
    table->clReleaseProgram = release_program;
    table->clCreateKernel = create_kernel;
    table->clReleaseKernel = release_kernel;
    table->clSetKernelArg = set_kernel_arg;
    table->clSetKernelArgSVMPointer = set_kernel_arg_pointer;
    table->clGetKernelWorkGroupInfo = get_kernel_work_group_info;
    table->clEnqueueNDRangeKernel = enqueue_kernel;
}
