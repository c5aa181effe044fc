/* bench_ceiling.c: the device's own limits, measured by ceiling.cl. */
#include "bench.h"

#include "cli.h"
#include "cli_program.h"

#include <math.h>

extern const unsigned char clattn_ceiling_cl[];
extern const size_t clattn_ceiling_cl_size;

/* One kernel with its launch, for bench_measure. */
typedef struct launch {
    cl_command_queue queue;
    cl_kernel kernel;
    size_t global;
} launch;

static int enqueue_launch(void *user)
{
    const launch *l = user;
    const cl_int status =
        clEnqueueNDRangeKernel(l->queue, l->kernel, 1, NULL, &l->global, NULL, 0, NULL, NULL);
    return status == CL_SUCCESS ? CLI_OK : cli_opencl_fail(status, "clEnqueueNDRangeKernel");
}

static int time_fma(double *flops, cli_device *device, cl_kernel kernel, cl_mem out, size_t items, int chains)
{
    const cl_float factor = 0.999f, addend = 0.001f;
    cl_int steps = 64;
    const launch l = {device->queue, kernel, items};
    cl_int error = clSetKernelArg(kernel, 0, sizeof out, &out);
    if (error == CL_SUCCESS)
        error = clSetKernelArg(kernel, 2, sizeof factor, &factor);
    if (error == CL_SUCCESS)
        error = clSetKernelArg(kernel, 3, sizeof addend, &addend);
    *flops = 0;
    /* More steps until a launch takes 20 ms, so that its cost does not count. */
    for (;;) {
        bench_time time;
        if (error == CL_SUCCESS)
            error = clSetKernelArg(kernel, 1, sizeof steps, &steps);
        if (error != CL_SUCCESS)
            return cli_opencl_fail(error, "clSetKernelArg");
        launch copy = l;
        const int status = bench_measure(&time, device->queue, enqueue_launch, &copy, 15, 0.2);
        if (status != CLI_OK)
            return status;
        *flops = 2.0 * 16 * chains * (double)steps * (double)items / time.least;
        if (time.least > 0.02 || steps >= 1 << 22)
            return CLI_OK;
        steps *= time.least > 0.004 ? 4 : 16;
    }
}

static int measure_fma(double *best, cli_device *device, int chains)
{
    char options[64];
    cl_int error;
    cli_format(options, sizeof options, "-cl-std=CL1.2 -DCHAINS=%d", chains);
    cl_program program =
        cli_program_build(device, clattn_ceiling_cl, clattn_ceiling_cl_size, options, "ceiling.cl");
    if (!program)
        return CLI_FAILED;
    const int cpu = (device->entry.type & CL_DEVICE_TYPE_CPU) != 0;
    const size_t items = (size_t)device->compute_units * (cpu ? 16 : 1024);
    cl_kernel kernel = clCreateKernel(program, "fma_rate", &error);
    cl_mem out = NULL;
    if (error == CL_SUCCESS)
        out = clCreateBuffer(device->context, CL_MEM_WRITE_ONLY, items * sizeof(cl_float), NULL, &error);
    double flops = 0;
    const int status = error == CL_SUCCESS ? time_fma(&flops, device, kernel, out, items, chains)
                                           : cli_opencl_fail(error, "fma_rate");
    if (flops > *best)
        *best = flops;
    if (out)
        clReleaseMemObject(out);
    if (kernel)
        clReleaseKernel(kernel);
    clReleaseProgram(program);
    return status;
}

static int time_copy(double *rate, cli_device *device, cl_kernel kernel, cl_mem from, cl_mem to, size_t bytes,
                     size_t item_bytes)
{
    bench_time time;
    launch l = {device->queue, kernel, bytes / item_bytes};
    const cl_float zero = 0;
    cl_int error = clSetKernelArg(kernel, 0, sizeof from, &from);
    if (error == CL_SUCCESS)
        error = clSetKernelArg(kernel, 1, sizeof to, &to);
    /* Pages that were never written may all be the same one. */
    if (error == CL_SUCCESS)
        error = clEnqueueFillBuffer(device->queue, from, &zero, sizeof zero, 0, bytes, 0, NULL, NULL);
    if (error != CL_SUCCESS)
        return cli_opencl_fail(error, "copy_rate");
    const int status = bench_measure(&time, device->queue, enqueue_launch, &l, 0, 0.2);
    if (status == CLI_OK)
        *rate = 2.0 * (double)bytes / time.least;
    return status;
}

static int measure_copy(double *rate, cli_device *device)
{
    const int cpu = (device->entry.type & CL_DEVICE_TYPE_CPU) != 0;
    const char *options = cpu ? "-cl-std=CL1.2 -DCOPY_T=float16" : "-cl-std=CL1.2";
    const size_t item_bytes = cpu ? sizeof(cl_float16) : sizeof(cl_float4);
    cl_int error;
    /* Larger than caches: 256 MiB, less on small devices. */
    uint64_t bytes = (uint64_t)256 << 20;
    while (bytes > device->max_alloc_bytes / 4 || bytes > device->global_bytes / 16)
        bytes /= 2;
    cl_program program =
        cli_program_build(device, clattn_ceiling_cl, clattn_ceiling_cl_size, options, "ceiling.cl");
    if (!program)
        return CLI_FAILED;
    cl_mem from = NULL, to = NULL;
    cl_kernel kernel = clCreateKernel(program, "copy_rate", &error);
    if (error == CL_SUCCESS)
        from = clCreateBuffer(device->context, CL_MEM_READ_ONLY, (size_t)bytes, NULL, &error);
    if (error == CL_SUCCESS)
        to = clCreateBuffer(device->context, CL_MEM_WRITE_ONLY, (size_t)bytes, NULL, &error);
    const int status = error == CL_SUCCESS
                           ? time_copy(rate, device, kernel, from, to, (size_t)bytes, item_bytes)
                           : cli_opencl_fail(error, "copy_rate");
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
    out->fma_flops = 0;
    out->copy_bytes = 0;
    int status = measure_fma(&out->fma_flops, device, 6);
    if (status == CLI_OK)
        status = measure_fma(&out->fma_flops, device, 12);
    if (status == CLI_OK)
        status = measure_copy(&out->copy_bytes, device);
    return status;
}
