/* nobuild_layer.c: an OpenCL layer (OPENCL_LAYERS) under which programs build at once, because
 * nothing is compiled. `clattn source` builds what it prints, as the choice of tiles may depend on
 * it; with PoCL that takes half a minute of a core for each program, and the gate asks for dozens.
 * Under this layer every build succeeds, every kernel takes every argument, and a launch is a
 * marker.
 *
 * With CLATTN_ISA_PROGRAMS=DIRECTORY in the environment every program that is built is written there, as
 * 0.cl, 1.cl and so on, its options in a comment of the first line: a plan may have several.
 *
 * CLATTN_ISA_VENDOR in the environment makes the device a GPU of that vendor and platform, so that
 * tiles and options for it are the ones printed; CLATTN_ISA_CAPABILITY is an NVIDIA device's, 10 * major +
 * minor. The local memory size comes from clattn's own --local-memory. */
#include "../layer/layer.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* cl_nv_device_attribute_query */
enum { COMPUTE_CAPABILITY_MAJOR_NV = 0x4000, COMPUTE_CAPABILITY_MINOR_NV = 0x4001 };

const char layer_name[] = "clattn_nobuild";

/* Programs and kernels are never looked into: one address serves for all of them. */
static int nothing;

static cl_int CL_API_CALL get_device_info(cl_device_id device, cl_device_info what, size_t size, void *value,
                                          size_t *size_ret)
{
    const char *vendor = getenv("CLATTN_ISA_VENDOR");
    const char *capability = getenv("CLATTN_ISA_CAPABILITY");
    const cl_device_type type = CL_DEVICE_TYPE_GPU;
    if (what == CL_DEVICE_VENDOR && vendor)
        return layer_answer(vendor, strlen(vendor) + 1, size, value, size_ret);
    if (what == CL_DEVICE_TYPE && vendor)
        return layer_answer(&type, sizeof type, size, value, size_ret);
    if ((what == COMPUTE_CAPABILITY_MAJOR_NV || what == COMPUTE_CAPABILITY_MINOR_NV) && capability) {
        const cl_uint number = (cl_uint)atoi(capability);
        const cl_uint digit = what == COMPUTE_CAPABILITY_MAJOR_NV ? number / 10 : number % 10;
        return layer_answer(&digit, sizeof digit, size, value, size_ret);
    }
    return layer_below->clGetDeviceInfo(device, what, size, value, size_ret);
}

static cl_int CL_API_CALL get_platform_info(cl_platform_id platform, cl_platform_info what, size_t size,
                                            void *value, size_t *size_ret)
{
    const char *vendor = getenv("CLATTN_ISA_VENDOR");
    if (what == CL_PLATFORM_NAME && vendor)
        return layer_answer(vendor, strlen(vendor) + 1, size, value, size_ret);
    return layer_below->clGetPlatformInfo(platform, what, size, value, size_ret);
}

/* Source of the program that was created last; the next build is its. */
static char *source;

static cl_program CL_API_CALL create_program_with_source(cl_context context, cl_uint count,
                                                         const char **strings, const size_t *lengths,
                                                         cl_int *errcode_ret)
{
    (void)context;
    free(source);
    source = layer_join(count, strings, lengths);
    if (errcode_ret)
        *errcode_ret = source ? CL_SUCCESS : CL_OUT_OF_HOST_MEMORY;
    return source ? (cl_program)&nothing : NULL;
}

/* Returns whether there was nothing to write or it is written. */
static int write_program(const char *options)
{
    static int number;
    char path[1024];
    const char *directory = getenv("CLATTN_ISA_PROGRAMS");
    if (!directory || !source)
        return 1;
    snprintf(path, sizeof path, "%s/%d.cl", directory, number++);
    FILE *file = fopen(path, "w");
    if (!file)
        return 0;
    const int written = fprintf(file, "// options: %s\n%s", options ? options : "", source) > 0;
    return fclose(file) == 0 && written;
}

static cl_int CL_API_CALL build_program(cl_program program, cl_uint count, const cl_device_id *devices,
                                        const char *options, void(CL_CALLBACK *notify)(cl_program, void *),
                                        void *user)
{
    (void)count, (void)devices;
    if (!write_program(options))
        return CL_BUILD_PROGRAM_FAILURE;
    if (notify)
        notify(program, user);
    return CL_SUCCESS;
}

/* There is no binary to keep in a cache. */
static cl_int CL_API_CALL get_program_info(cl_program program, cl_program_info what, size_t size, void *value,
                                           size_t *size_ret)
{
    (void)program, (void)what, (void)size, (void)value, (void)size_ret;
    return CL_INVALID_PROGRAM_EXECUTABLE;
}

static cl_int CL_API_CALL get_program_build_info(cl_program program, cl_device_id device,
                                                 cl_program_build_info what, size_t size, void *value,
                                                 size_t *size_ret)
{
    (void)program, (void)device, (void)what;
    return layer_answer("", 1, size, value, size_ret);
}

static cl_int CL_API_CALL release_program(cl_program program)
{
    (void)program;
    return CL_SUCCESS;
}

static cl_kernel CL_API_CALL create_kernel(cl_program program, const char *name, cl_int *errcode_ret)
{
    (void)program, (void)name;
    if (errcode_ret)
        *errcode_ret = CL_SUCCESS;
    return (cl_kernel)&nothing;
}

static cl_int CL_API_CALL release_kernel(cl_kernel kernel)
{
    (void)kernel;
    return CL_SUCCESS;
}

static cl_int CL_API_CALL set_kernel_arg(cl_kernel kernel, cl_uint index, size_t size, const void *value)
{
    (void)kernel, (void)index, (void)size, (void)value;
    return CL_SUCCESS;
}

static cl_int CL_API_CALL get_kernel_work_group_info(cl_kernel kernel, cl_device_id device,
                                                     cl_kernel_work_group_info what, size_t size, void *value,
                                                     size_t *size_ret)
{
    const cl_ulong bytes = 0;
    (void)kernel;
    if (what == CL_KERNEL_WORK_GROUP_SIZE)
        return layer_below->clGetDeviceInfo(device, CL_DEVICE_MAX_WORK_GROUP_SIZE, size, value, size_ret);
    if (what == CL_KERNEL_LOCAL_MEM_SIZE || what == CL_KERNEL_PRIVATE_MEM_SIZE)
        return layer_answer(&bytes, sizeof bytes, size, value, size_ret);
    return CL_INVALID_VALUE;
}

static cl_int CL_API_CALL enqueue_kernel(cl_command_queue queue, cl_kernel kernel, cl_uint dimensions,
                                         const size_t *offset, const size_t *global, const size_t *local,
                                         cl_uint num_events, const cl_event *wait_list, cl_event *event)
{
    (void)kernel, (void)dimensions, (void)offset, (void)global, (void)local;
    return layer_below->clEnqueueMarkerWithWaitList(queue, num_events, wait_list, event);
}

void layer_replace(cl_icd_dispatch *table)
{
    table->clGetPlatformInfo = get_platform_info;
    table->clGetDeviceInfo = get_device_info;
    table->clCreateProgramWithSource = create_program_with_source;
    table->clCreateProgramWithBinary = layer_refuse_binary; /* cached ones */
    table->clBuildProgram = build_program;
    table->clGetProgramInfo = get_program_info;
    table->clGetProgramBuildInfo = get_program_build_info;
    table->clReleaseProgram = release_program;
    table->clCreateKernel = create_kernel;
    table->clReleaseKernel = release_kernel;
    table->clSetKernelArg = set_kernel_arg;
    table->clGetKernelWorkGroupInfo = get_kernel_work_group_info;
    table->clEnqueueNDRangeKernel = enqueue_kernel;
}
