/* bench_cache.c: KV caches of any type on the device, filled with random values. */
#include "bench.h"

#include "cli.h"
#include "random_values.h"
#include "tensor_convert.h"

#include <stdlib.h>
#include <string.h>

size_t bench_cache_row_bytes(int32_t dtype, int32_t head_dim)
{
    return (size_t)(head_dim / dtype_elements(dtype)) * dtype_size(dtype);
}

/* ---- Values -------------------------------------------------------------------------------------
 */

static void put_f16(unsigned char *at, float value) { tensor_store(at, CLATTN_DTYPE_F16, value); }

/* The scale d of blocks whose values are about -2 to 2; m is -2 where there is one. */
static float scale_of(int32_t dtype)
{
    switch (dtype) {
    case CLATTN_DTYPE_Q4_0:
    case CLATTN_DTYPE_Q4_1:
        return 1.0f / 4;
    case CLATTN_DTYPE_Q5_0:
    case CLATTN_DTYPE_Q5_1:
        return 1.0f / 8;
    default:
        return 1.0f / 64;
    }
}

/* Any codes make a valid block. */
static void make_block(unsigned char *block, int32_t dtype, random_state *random)
{
    for (size_t i = 0; i < dtype_size(dtype); i++)
        block[i] = (unsigned char)random_bits(random);
    put_f16(block, scale_of(dtype));
    if (dtype == CLATTN_DTYPE_Q4_1 || dtype == CLATTN_DTYPE_Q5_1)
        put_f16(block + 2, -2.0f);
}

static void make_element(unsigned char *element, int32_t dtype, random_state *random)
{
    const unsigned bits = (unsigned)random_bits(random);
    switch (dtype) {
    case CLATTN_DTYPE_I8: /* times 1/64 */
        *element = (unsigned char)(signed char)((int)(bits % 255) - 127);
        break;
    case CLATTN_DTYPE_F8_E4M3: /* a sign, an exponent of -3 to 0, three bits of mantissa */
        *element = (unsigned char)((bits & 0x87) | (4 + (bits >> 3 & 3)) << 3);
        break;
    case CLATTN_DTYPE_F8_E5M2:
        *element = (unsigned char)((bits & 0x83) | (12 + (bits >> 2 & 3)) << 2);
        break;
    default:
        tensor_store(element, dtype, random_normal(random));
        break;
    }
}

/* Repeats the first `known` bytes up to `bytes`, by copies that double what there is. */
static int repeat_bytes(cli_device *device, cl_mem buffer, size_t known, size_t bytes)
{
    for (; known < bytes; known *= 2) {
        const size_t part = bytes - known < known ? bytes - known : known;
        const cl_int status =
            clEnqueueCopyBuffer(device->queue, buffer, buffer, 0, known, part, 0, NULL, NULL);
        if (status != CL_SUCCESS)
            return cli_opencl_fail(status, "clEnqueueCopyBuffer");
    }
    return CLI_OK;
}

/* The values repeat, a prime number of them apart: time does not depend on it. */
static int fill_values(cli_device *device, cl_mem buffer, size_t bytes, int32_t dtype)
{
    const size_t size = dtype_size(dtype);
    random_state random = {1};
    size_t blocks = 99991;
    if (blocks * size > bytes)
        blocks = bytes / size;
    const size_t known = blocks * size;
    unsigned char *values = malloc(known + 1);
    if (!values)
        return cli_fail(CLI_FAILED, "not enough memory for the inputs");
    for (size_t i = 0; i < blocks; i++) {
        if (dtype_elements(dtype) > 1)
            make_block(values + i * size, dtype, &random);
        else
            make_element(values + i * size, dtype, &random);
    }
    const cl_int status =
        clEnqueueWriteBuffer(device->queue, buffer, CL_TRUE, 0, known, values, 0, NULL, NULL);
    free(values);
    if (status != CL_SUCCESS)
        return cli_opencl_fail(status, "clEnqueueWriteBuffer");
    return repeat_bytes(device, buffer, known, bytes);
}

int bench_cache_tensor(cl_mem *out, cli_device *device, size_t bytes, int32_t dtype)
{
    cl_int error;
    *out = clCreateBuffer(device->context, CL_MEM_READ_ONLY, bytes, NULL, &error);
    if (error != CL_SUCCESS)
        return cli_opencl_fail(error, "clCreateBuffer");
    return fill_values(device, *out, bytes, dtype);
}

int bench_cache_scales(cl_mem *out, cli_device *device, size_t count)
{
    const cl_float scale = 1.0f / 64;
    cl_int error;
    *out = clCreateBuffer(device->context, CL_MEM_READ_ONLY, count * sizeof scale, NULL, &error);
    if (error == CL_SUCCESS)
        error = clEnqueueFillBuffer(device->queue, *out, &scale, sizeof scale, 0, count * sizeof scale, 0,
                                    NULL, NULL);
    return error == CL_SUCCESS ? CLI_OK : cli_opencl_fail(error, "the scales");
}

int bench_cache_integers(cl_mem *out, cli_device *device, const int32_t *values, size_t count)
{
    cl_int error;
    *out = clCreateBuffer(device->context, CL_MEM_READ_ONLY, count * sizeof *values, NULL, &error);
    if (error == CL_SUCCESS)
        error = clEnqueueWriteBuffer(device->queue, *out, CL_TRUE, 0, count * sizeof *values, values, 0, NULL,
                                     NULL);
    return error == CL_SUCCESS ? CLI_OK : cli_opencl_fail(error, "lengths and tables");
}
