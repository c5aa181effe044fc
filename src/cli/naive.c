/* naive.c: launches naive.cl. */
#include "naive.h"

#include "cli.h"
#include "cli_program.h"
#include "tensor_convert.h"

#include <math.h>
#include <string.h>

extern const unsigned char clattn_naive_cl[];
extern const size_t clattn_naive_cl_size;

static int create_kernel(const naive_program *p, cl_kernel *out, const char *name)
{
    cl_int status;
    *out = clCreateKernel(p->program, name, &status);
    return status == CL_SUCCESS ? CLI_OK : cli_opencl_fail(status, name);
}

int naive_program_open(naive_program *out, cli_device *device, int32_t dtype)
{
    char options[128];
    memset(out, 0, sizeof *out);
    out->device = device;
    out->dtype = dtype;
    /* 64 x 128 tiles where work-groups of 256 are possible; CPUs prefer the smaller ones. */
    const int wide = device->max_work_group >= 256 && !(device->entry.type & CL_DEVICE_TYPE_CPU);
    out->side = wide ? 16 : 8;
    out->width = wide ? 256 : 64;
    cli_format(options, sizeof options, "-cl-std=CL1.2 -DTYPE=%d -DSIDE=%d -DWIDTH=%d", (int)dtype,
               (int)out->side, (int)out->width);
    out->program = cli_program_build(device, clattn_naive_cl, clattn_naive_cl_size, options, "naive.cl");
    int status = out->program ? CLI_OK : CLI_FAILED;
    if (status == CLI_OK)
        status = create_kernel(out, &out->scores, "naive_scores");
    if (status == CLI_OK)
        status = create_kernel(out, &out->softmax, "naive_softmax");
    if (status == CLI_OK)
        status = create_kernel(out, &out->weighted, "naive_weighted");
    if (status != CLI_OK)
        naive_program_close(out);
    return status;
}

void naive_program_close(naive_program *p)
{
    if (p->scores)
        clReleaseKernel(p->scores);
    if (p->softmax)
        clReleaseKernel(p->softmax);
    if (p->weighted)
        clReleaseKernel(p->weighted);
    if (p->program)
        clReleaseProgram(p->program);
    memset(p, 0, sizeof *p);
}

uint64_t naive_scores_bytes(const naive_shape *s, int32_t dtype)
{
    return (uint64_t)(s->batch * s->heads_q) * (uint64_t)s->q_len * (uint64_t)s->kv_len * dtype_size(dtype);
}

/* Sets the arguments from number `first` on. */
static cl_int set_buffers(cl_kernel kernel, const cl_mem *buffers, cl_uint count)
{
    cl_int status = CL_SUCCESS;
    for (cl_uint i = 0; i < count && status == CL_SUCCESS; i++)
        status = clSetKernelArg(kernel, i, sizeof buffers[i], &buffers[i]);
    return status;
}

static cl_int set_ints(cl_kernel kernel, cl_uint first, const cl_int *values, cl_uint count)
{
    cl_int status = CL_SUCCESS;
    for (cl_uint i = 0; i < count && status == CL_SUCCESS; i++)
        status = clSetKernelArg(kernel, first + i, sizeof values[i], &values[i]);
    return status;
}

static cl_int launch_tiles(const naive_program *p, cl_kernel kernel, int64_t rows, int64_t columns,
                           int64_t heads)
{
    const size_t tile_rows = 4 * p->side, tile_columns = 8 * p->side;
    const size_t local[3] = {p->side, p->side, 1};
    const size_t global[3] = {((size_t)columns + tile_columns - 1) / tile_columns * p->side,
                              ((size_t)rows + tile_rows - 1) / tile_rows * p->side, (size_t)heads};
    return clEnqueueNDRangeKernel(p->device->queue, kernel, 3, NULL, global, local, 0, NULL, NULL);
}

int naive_enqueue(naive_program *p, const naive_shape *s, cl_mem q, cl_mem k, cl_mem v, cl_mem scores,
                  cl_mem o)
{
    const cl_mem for_scores[] = {q, k, scores}, for_weighted[] = {scores, v, o};
    const cl_int band_end = s->causal ? (cl_int)(s->kv_len - s->q_len + 1) : (cl_int)s->kv_len;
    const cl_int lengths[] = {(cl_int)s->heads_q, (cl_int)s->heads_kv,    (cl_int)s->q_len,
                              (cl_int)s->kv_len,  (cl_int)s->head_dim_qk, band_end};
    const cl_int lengths_v[] = {(cl_int)s->heads_q, (cl_int)s->heads_kv, (cl_int)s->q_len, (cl_int)s->kv_len,
                                (cl_int)s->head_dim_v};
    const cl_float scale = 1 / sqrtf((float)s->head_dim_qk);
    const int64_t heads = s->batch * s->heads_q;

    cl_int status = set_buffers(p->scores, for_scores, 3);
    if (status == CL_SUCCESS)
        status = set_ints(p->scores, 3, lengths, 6);
    if (status == CL_SUCCESS)
        status = clSetKernelArg(p->scores, 9, sizeof scale, &scale);
    if (status == CL_SUCCESS)
        status = set_buffers(p->softmax, &scores, 1);
    if (status == CL_SUCCESS)
        status = set_ints(p->softmax, 1, lengths + 2, 2);
    if (status == CL_SUCCESS)
        status = set_buffers(p->weighted, for_weighted, 3);
    if (status == CL_SUCCESS)
        status = set_ints(p->weighted, 3, lengths_v, 5);

    const size_t row_local[3] = {p->width, 1, 1};
    const size_t row_global[3] = {p->width, (size_t)s->q_len, (size_t)heads};
    if (status == CL_SUCCESS)
        status = launch_tiles(p, p->scores, s->q_len, s->kv_len, heads);
    if (status == CL_SUCCESS)
        status = clEnqueueNDRangeKernel(p->device->queue, p->softmax, 3, NULL, row_global, row_local, 0, NULL,
                                        NULL);
    if (status == CL_SUCCESS)
        status = launch_tiles(p, p->weighted, s->q_len, s->head_dim_v, heads);
    return status == CL_SUCCESS ? CLI_OK : cli_opencl_fail(status, "naive attention");
}
