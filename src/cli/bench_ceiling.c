/* bench_ceiling.c: the device's own limits, measured by ceiling.cl and, of NVIDIA's matrix units, by
 * ceiling_nvidia.cl and ceiling_wgmma.ptx. */
#include "bench.h"

#include "cli.h"
#include "cli_program.h"

#include <string.h>

extern const unsigned char clattn_ceiling_cl[], clattn_ceiling_nvidia_cl[], clattn_ceiling_wgmma_ptx[];
extern const size_t clattn_ceiling_cl_size, clattn_ceiling_nvidia_cl_size, clattn_ceiling_wgmma_ptx_size;

/* One kernel with its launch, for bench_measure. */
typedef struct launch {
    cl_command_queue queue;
    cl_kernel kernel;
    size_t global, local; /* local 0: any */
} launch;

static int enqueue_launch(void *user)
{
    const launch *l = user;
    const cl_int status = clEnqueueNDRangeKernel(l->queue, l->kernel, 1, NULL, &l->global,
                                                 l->local != 0 ? &l->local : NULL, 0, NULL, NULL);
    return status == CL_SUCCESS ? CLI_OK : cli_opencl_fail(status, "clEnqueueNDRangeKernel");
}

/* ---- Operations ---- */

/* A kernel that repeats a step with numbers in registers: its work-items, and the operations of each in a
 * step. */
typedef struct rate_kernel {
    const char *name;
    size_t global, local; /* local 0: any */
    double flops;
} rate_kernel;

static int time_steps(bench_time *out, const launch *l, cl_int steps, int64_t repeats)
{
    launch copy = *l;
    const cl_int error = clSetKernelArg(l->kernel, 1, sizeof steps, &steps);
    return error == CL_SUCCESS ? bench_measure(out, l->queue, enqueue_launch, &copy, repeats, 0)
                               : cli_opencl_fail(error, "clSetKernelArg");
}

static int find_rate(double *flops, cli_device *device, cl_kernel kernel, cl_mem out, const rate_kernel *rate)
{
    const cl_float factor = 0.999f, addend = 0.001f;
    const launch l = {device->queue, kernel, rate->global, rate->local};
    cl_int steps = 64, error = clSetKernelArg(kernel, 0, sizeof out, &out);
    if (error == CL_SUCCESS)
        error = clSetKernelArg(kernel, 2, sizeof factor, &factor);
    if (error == CL_SUCCESS)
        error = clSetKernelArg(kernel, 3, sizeof addend, &addend);
    if (error != CL_SUCCESS)
        return cli_opencl_fail(error, "clSetKernelArg");
    /* More steps until a launch takes 20 ms, so that its cost does not count. */
    bench_time time;
    int status = time_steps(&time, &l, steps, 1);
    while (status == CLI_OK && time.least <= 0.02 && steps < 1 << 22) {
        steps *= time.least > 0.004 ? 4 : 16;
        status = time_steps(&time, &l, steps, 1);
    }
    if (status == CLI_OK)
        status = time_steps(&time, &l, steps, 15);
    if (status == CLI_OK)
        *flops = rate->flops * (double)steps * (double)rate->global / time.least;
    return status;
}

/* Takes the program (NULL: it was not built). *best stays if it is more. */
static int measure_rate(double *best, cli_device *device, cl_program program, const rate_kernel *rate)
{
    cl_int error = CL_SUCCESS;
    double flops = 0;
    if (!program)
        return CLI_FAILED;
    cl_mem out = NULL;
    const cl_kernel kernel = clCreateKernel(program, rate->name, &error);
    if (error == CL_SUCCESS)
        out =
            clCreateBuffer(device->context, CL_MEM_WRITE_ONLY, rate->global * sizeof(cl_float), NULL, &error);
    const int status = error == CL_SUCCESS ? find_rate(&flops, device, kernel, out, rate)
                                           : cli_opencl_fail(error, rate->name);
    if (flops > *best)
        *best = flops;
    if (out)
        clReleaseMemObject(out);
    if (kernel)
        clReleaseKernel(kernel);
    clReleaseProgram(program);
    return status;
}

static int is_cpu(const cli_device *device) { return (device->entry.type & CL_DEVICE_TYPE_CPU) != 0; }

static int measure_fma(double *best, cli_device *device, int chains)
{
    char options[64];
    const rate_kernel rate = {"fma_rate", (size_t)device->compute_units * (is_cpu(device) ? 16 : 1024), 0,
                              2.0 * 16 * chains};
    cli_format(options, sizeof options, "-cl-std=CL1.2 -DCHAINS=%d", chains);
    return measure_rate(
        best, device,
        cli_program_build(device, clattn_ceiling_cl, clattn_ceiling_cl_size, options, "ceiling.cl"), &rate);
}

/* Of a warp's 8 products in a step: 16 x 8 results over 16, or 8, numbers. */
static int measure_mma(double *best, cli_device *device, const char *options, int depth)
{
    const rate_kernel rate = {"matrix_rate", (size_t)device->compute_units * 2048, 256,
                              8 * 2.0 * 16 * 8 * depth / 32};
    return measure_rate(best, device,
                        cli_program_build(device, clattn_ceiling_nvidia_cl, clattn_ceiling_nvidia_cl_size,
                                          options, "ceiling_nvidia.cl"),
                        &rate);
}

/* Of a warpgroup's product in a step: 64 x 256 results over 16 numbers. Three work-groups have room at a
 * time. */
static int measure_wgmma(double *best, cli_device *device)
{
    enum { WARPGROUP = 128 };
    const rate_kernel rate = {"matrix_rate", (size_t)device->compute_units * 3 * WARPGROUP, WARPGROUP,
                              2.0 * 64 * 256 * 16 / WARPGROUP};
    return measure_rate(best, device,
                        cli_program_load(device, clattn_ceiling_wgmma_ptx, clattn_ceiling_wgmma_ptx_size,
                                         "ceiling_wgmma.ptx"),
                        &rate);
}

/* Rates that are not found are 0; what was amiss is told, but ends nothing. */
static void measure_matrix_units(bench_ceiling *out, cli_device *device)
{
    double tf32 = 0;
    if (!cli_device_has_path(device, CLATTN_PATH_NVIDIA_MMA))
        return;
    measure_mma(&out->flops[BENCH_MATRIX_16], device, "-cl-std=CL1.2", 16);
    if (cli_device_has_path(device, CLATTN_PATH_NVIDIA_WGMMA))
        measure_wgmma(&out->flops[BENCH_MATRIX_16], device);
    measure_mma(&tf32, device, "-cl-std=CL1.2 -DTF32", 8);
    out->flops[BENCH_MATRIX_32] = tf32 / 3;
}

/* ---- Memory ---- */

static int time_copy(double *rate, cli_device *device, cl_kernel kernel, cl_mem from, cl_mem to, size_t bytes)
{
    bench_time time;
    launch l = {device->queue, kernel, bytes / (is_cpu(device) ? sizeof(cl_float16) : sizeof(cl_float4)), 0};
    cl_int error = clSetKernelArg(kernel, 0, sizeof from, &from);
    if (error == CL_SUCCESS)
        error = clSetKernelArg(kernel, 1, sizeof to, &to);
    if (error != CL_SUCCESS)
        return cli_opencl_fail(error, "copy_rate");
    const int status = bench_measure(&time, device->queue, enqueue_launch, &l, 0, 0.2);
    if (status == CLI_OK)
        *rate = 2.0 * (double)bytes / time.least;
    return status;
}

/* Work-items of GPUs read side by side, those of CPUs each a piece of their own. */
static int time_read(double *rate, cli_device *device, cl_kernel kernel, cl_mem from, cl_mem to, size_t bytes)
{
    bench_time time;
    const size_t elements = bytes / (is_cpu(device) ? sizeof(cl_float16) : sizeof(cl_float4));
    size_t items = (size_t)device->compute_units * (is_cpu(device) ? 1 : 2048);
    while (items > elements / 4)
        items /= 2;
    const cl_uint count = (cl_uint)(elements / items / 4 * 4), step = is_cpu(device) ? 1 : (cl_uint)items;
    const cl_uint first = is_cpu(device) ? count : 1;
    launch l = {device->queue, kernel, items, 0};
    cl_int error = clSetKernelArg(kernel, 0, sizeof from, &from);
    if (error == CL_SUCCESS)
        error = clSetKernelArg(kernel, 1, sizeof to, &to);
    if (error == CL_SUCCESS)
        error = clSetKernelArg(kernel, 2, sizeof first, &first);
    if (error == CL_SUCCESS)
        error = clSetKernelArg(kernel, 3, sizeof step, &step);
    if (error == CL_SUCCESS)
        error = clSetKernelArg(kernel, 4, sizeof count, &count);
    if (error != CL_SUCCESS)
        return cli_opencl_fail(error, "read_rate");
    const int status = bench_measure(&time, device->queue, enqueue_launch, &l, 0, 0.2);
    if (status == CLI_OK)
        *rate = (double)items * count * ((double)bytes / (double)elements) / time.least;
    return status;
}

typedef int (*time_memory)(double *rate, cli_device *device, cl_kernel kernel, cl_mem from, cl_mem to,
                           size_t bytes);

static int measure_memory(double *rate, cli_device *device, const char *name, time_memory measure)
{
    const char *options = is_cpu(device) ? "-cl-std=CL1.2 -DCOPY_T=float16 -DCOPY_WIDTH=16" : "-cl-std=CL1.2";
    const cl_float zero = 0;
    cl_int error;
    /* Larger than caches: 256 MiB, less on small devices. */
    uint64_t bytes = (uint64_t)256 << 20;
    while (bytes > device->max_alloc_bytes / 4 || bytes > device->global_bytes / 16)
        bytes /= 2;
    cl_mem from = NULL, to = NULL;
    const cl_program program =
        cli_program_build(device, clattn_ceiling_cl, clattn_ceiling_cl_size, options, "ceiling.cl");
    if (!program)
        return CLI_FAILED;
    const cl_kernel kernel = clCreateKernel(program, name, &error);
    int status = error == CL_SUCCESS ? CLI_OK : cli_opencl_fail(error, name);
    if (status == CLI_OK) {
        from = clCreateBuffer(device->context, CL_MEM_READ_ONLY, (size_t)bytes, NULL, &error);
        if (error == CL_SUCCESS)
            to = clCreateBuffer(device->context, CL_MEM_WRITE_ONLY, (size_t)bytes, NULL, &error);
        /* Pages that were never written may all be the same one. */
        if (error == CL_SUCCESS)
            error =
                clEnqueueFillBuffer(device->queue, from, &zero, sizeof zero, 0, (size_t)bytes, 0, NULL, NULL);
        status = error == CL_SUCCESS ? measure(rate, device, kernel, from, to, (size_t)bytes)
                                     : cli_opencl_fail(error, name);
    }
    if (to)
        clReleaseMemObject(to);
    if (from)
        clReleaseMemObject(from);
    if (kernel)
        clReleaseKernel(kernel);
    clReleaseProgram(program);
    return status;
}

int bench_measure_ceiling(bench_ceiling *out, cli_device *device)
{
    memset(out, 0, sizeof *out);
    int status = measure_fma(&out->flops[BENCH_MULTIPLY_ADDS], device, 6);
    if (status == CLI_OK)
        status = measure_fma(&out->flops[BENCH_MULTIPLY_ADDS], device, 12);
    if (status == CLI_OK)
        measure_matrix_units(out, device);
    if (status == CLI_OK)
        status = measure_memory(&out->copy_bytes, device, "copy_rate", time_copy);
    if (status == CLI_OK)
        status = measure_memory(&out->read_bytes, device, "read_rate", time_read);
    return status;
}
