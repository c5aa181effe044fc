#include "strided.h"

#include "fixture.h"

#include <stdlib.h>
#include <string.h>
#include <tensor_convert.h>

enum { GUARD = 0xa5 };

/* ---- Random numbers ---- */

/* Marsaglia 2003, "Xorshift RNGs". */
uint32_t random_bits(uint32_t *state)
{
    *state ^= *state << 13;
    *state ^= *state >> 17;
    *state ^= *state << 5;
    return *state;
}

int random_below(uint32_t *state, int end) { return (int)(random_bits(state) >> 8) % end; }

float random_between(uint32_t *state, float least, float most)
{
    return least + (most - least) * (float)(random_bits(state) >> 8) / 16777216.0f;
}

/* ---- Tensors ---- */

strided strided_new(int32_t dtype, int64_t batch, int64_t heads, int64_t tokens, int64_t elements, int layout)
{
    strided tensor = {dtype, {batch, heads, tokens, elements}, {0}, 0, 0, NULL, NULL};
    const int64_t row = elements / dtype_elements(dtype);
    const size_t size = dtype_size(dtype);
    if (layout == DENSE) {
        tensor.stride[2] = row;
        tensor.stride[1] = tokens * row;
        tensor.stride[0] = heads * tokens * row;
    } else {
        tensor.stride[1] = row + 1;
        tensor.stride[2] = heads * tensor.stride[1] + 3;
        tensor.stride[0] = tokens * tensor.stride[2] + 5;
        tensor.offset = 3 * size + (size & (~size + 1));
    }
    tensor.bytes = tensor.offset + (size_t)(batch * tensor.stride[0] + 7) * size;
    tensor.host = malloc(tensor.bytes);
    memset(tensor.host, GUARD, tensor.bytes);
    return tensor;
}

void strided_release(strided *tensor)
{
    free(tensor->host);
    if (tensor->device != NULL)
        clReleaseMemObject(tensor->device);
    tensor->host = NULL;
    tensor->device = NULL;
}

unsigned char *strided_row(const strided *tensor, int64_t batch, int64_t head, int64_t token)
{
    return tensor->host + tensor->offset +
           (size_t)(batch * tensor->stride[0] + head * tensor->stride[1] + token * tensor->stride[2]) *
               dtype_size(tensor->dtype);
}

size_t strided_row_bytes(const strided *tensor)
{
    return (size_t)(tensor->size[3] / dtype_elements(tensor->dtype)) * dtype_size(tensor->dtype);
}

float strided_get(const strided *tensor, int64_t batch, int64_t head, int64_t token, int64_t element)
{
    return tensor_load(strided_row(tensor, batch, head, token) + (size_t)element * dtype_size(tensor->dtype),
                       tensor->dtype);
}

void strided_fill(strided *tensor, uint32_t *state)
{
    for (int64_t b = 0; b < tensor->size[0]; b++)
        for (int64_t h = 0; h < tensor->size[1]; h++)
            for (int64_t t = 0; t < tensor->size[2]; t++)
                for (int64_t i = 0; i < tensor->size[3]; i++)
                    tensor_store(strided_row(tensor, b, h, t) + (size_t)i * dtype_size(tensor->dtype),
                                 tensor->dtype, random_between(state, -2.0f, 2.0f));
}

void strided_send(strided *tensor)
{
    cl_int code = CL_SUCCESS;
    if (tensor->device == NULL)
        tensor->device = clCreateBuffer(device.context, CL_MEM_READ_WRITE, tensor->bytes, NULL, &code);
    assert_int_equal(code, CL_SUCCESS);
    assert_int_equal(clEnqueueWriteBuffer(device.queue, tensor->device, CL_TRUE, 0, tensor->bytes,
                                          tensor->host, 0, NULL, NULL),
                     CL_SUCCESS);
}

unsigned char *strided_receive(const strided *tensor)
{
    unsigned char *bytes = malloc(tensor->bytes);
    assert_int_equal(
        clEnqueueReadBuffer(device.queue, tensor->device, CL_TRUE, 0, tensor->bytes, bytes, 0, NULL, NULL),
        CL_SUCCESS);
    return bytes;
}

clattn_tensor strided_argument(const strided *tensor)
{
    clattn_tensor argument = CLATTN_TENSOR_INIT;
    argument.handle = tensor->device;
    argument.byte_offset = tensor->offset;
    memcpy(argument.stride, tensor->stride, sizeof tensor->stride);
    return argument;
}

/* ---- Integers ---- */

static const int32_t INT_GUARD = -1515870811;

int_list int_list_new(int count)
{
    int_list list = {count, NULL, malloc((size_t)(count + INT_LIST_OFFSET + 1) * sizeof(int32_t)), NULL};
    for (int i = 0; i < count + INT_LIST_OFFSET + 1; i++)
        list.block[i] = INT_GUARD;
    list.host = list.block + INT_LIST_OFFSET;
    return list;
}

void int_list_release(int_list *list)
{
    free(list->block);
    if (list->device != NULL)
        clReleaseMemObject(list->device);
    list->block = list->host = NULL;
    list->device = NULL;
}

static size_t int_list_bytes(const int_list *list)
{
    return (size_t)(list->count + INT_LIST_OFFSET + 1) * sizeof(int32_t);
}

void int_list_send(int_list *list)
{
    cl_int code = CL_SUCCESS;
    if (list->device == NULL)
        list->device = clCreateBuffer(device.context, CL_MEM_READ_WRITE, int_list_bytes(list), NULL, &code);
    assert_int_equal(code, CL_SUCCESS);
    assert_int_equal(clEnqueueWriteBuffer(device.queue, list->device, CL_TRUE, 0, int_list_bytes(list),
                                          list->block, 0, NULL, NULL),
                     CL_SUCCESS);
}

void int_list_receive(int_list *list)
{
    assert_int_equal(clEnqueueReadBuffer(device.queue, list->device, CL_TRUE, 0, int_list_bytes(list),
                                         list->block, 0, NULL, NULL),
                     CL_SUCCESS);
    for (int i = 0; i < INT_LIST_OFFSET; i++)
        assert_int_equal(list->block[i], INT_GUARD);
    assert_int_equal(list->host[list->count], INT_GUARD);
}

clattn_tensor int_list_argument(const int_list *list, int64_t stride0, int64_t stride1)
{
    clattn_tensor argument = CLATTN_TENSOR_INIT;
    argument.handle = list->device;
    argument.byte_offset = INT_LIST_OFFSET * sizeof(int32_t);
    argument.stride[0] = stride0;
    argument.stride[1] = stride1;
    return argument;
}
