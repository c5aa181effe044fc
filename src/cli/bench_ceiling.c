/* bench_ceiling.c: the device's own limits, measured by ceiling.cl. */
#include "bench.h"

#include "cli.h"
#include "cli_program.h"

#include <string.h>

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

static int is_cpu(const cli_device *device) { return (device->entry.type & CL_DEVICE_TYPE_CPU) != 0; }

static int build(cl_program *program, cl_kernel *kernel, cli_device *device, const char *options,
                 const char *name)
{
    cl_int error;
    *kernel = NULL;
    *program = cli_program_build(device, clattn_ceiling_cl, clattn_ceiling_cl_size, options, "ceiling.cl");
    if (!*program)
        return CLI_FAILED;
    *kernel = clCreateKernel(*program, name, &error);
    return error == CL_SUCCESS ? CLI_OK : cli_opencl_fail(error, name);
}

static int measure_fma(double *best, cli_device *device, int chains)
{
    char options[64];
    cl_int error;
    cl_program program;
    cl_kernel kernel;
    cl_mem out = NULL;
    double flops = 0;
    const size_t items = (size_t)device->compute_units * (is_cpu(device) ? 16 : 1024);
    cli_format(options, sizeof options, "-cl-std=CL1.2 -DCHAINS=%d", chains);
    int status = build(&program, &kernel, device, options, "fma_rate");
    if (status == CLI_OK) {
        out = clCreateBuffer(device->context, CL_MEM_WRITE_ONLY, items * sizeof(cl_float), NULL, &error);
        status = error == CL_SUCCESS ? time_fma(&flops, device, kernel, out, items, chains)
                                     : cli_opencl_fail(error, "fma_rate");
    }
    if (flops > *best)
        *best = flops;
    if (out)
        clReleaseMemObject(out);
    if (kernel)
        clReleaseKernel(kernel);
    if (program)
        clReleaseProgram(program);
    return status;
}

static int time_copy(double *rate, cli_device *device, cl_kernel kernel, cl_mem from, cl_mem to, size_t bytes)
{
    bench_time time;
    launch l = {device->queue, kernel, bytes / (is_cpu(device) ? sizeof(cl_float16) : sizeof(cl_float4))};
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
    launch l = {device->queue, kernel, items};
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
    cl_program program;
    cl_kernel kernel;
    cl_mem from = NULL, to = NULL;
    int status = build(&program, &kernel, device, options, name);
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
    if (program)
        clReleaseProgram(program);
    return status;
}

int bench_measure_ceiling(bench_ceiling *out, cli_device *device)
{
    memset(out, 0, sizeof *out);
    int status = measure_fma(&out->fma_flops, device, 6);
    if (status == CLI_OK)
        status = measure_fma(&out->fma_flops, device, 12);
    if (status == CLI_OK)
        status = measure_memory(&out->copy_bytes, device, "copy_rate", time_copy);
    if (status == CLI_OK)
        status = measure_memory(&out->read_bytes, device, "read_rate", time_read);
    return status;
}
