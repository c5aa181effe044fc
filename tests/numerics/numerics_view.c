#include "numerics_view.h"

#include "numerics_cache.h"
#include "tensor_convert.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const char *const layout_names[LAYOUTS] = {"bhsd",         "bshd",      "padded",     "ragged",
                                                  "host-pointer", "broadcast", "interleaved"};

const char *layout_name(tensor_layout layout) { return layout_names[layout]; }

/* ---- Buffers ---- */

void buffer_poison(byte_buffer *buffer) { memset(buffer->bytes, POISON_BYTE, buffer->size); }

void buffer_make(byte_buffer *buffer, size_t size)
{
    buffer->size = size;
    buffer->bytes = malloc(size);
    if (buffer->bytes == NULL) {
        fprintf(stderr, "numerics: no host memory for a buffer of %zu bytes\n", size);
        exit(1);
    }
    buffer_poison(buffer);
}

void buffer_free(byte_buffer *buffer)
{
    free(buffer->bytes);
    buffer->bytes = NULL;
}

/* ---- Placement ---- */

static void set_strides(tensor_view *view, int64_t batch, int64_t head, int64_t token)
{
    view->stride[0] = batch;
    view->stride[1] = head;
    view->stride[2] = token;
    view->stride[3] = 1;
}

static void pack(tensor_view *view, int64_t row, int64_t between_heads)
{
    const int64_t head = view->size[2] * row + between_heads;
    set_strides(view, view->size[1] * head, head, row);
}

/* Takes away one axis or several, but never the last. */
static void repeat_some_axes(tensor_view *view, random_state *random)
{
    const int64_t axes = random_between(random, 1, 7);
    for (int axis = 0; axis < 3; axis++)
        if (axes >> axis & 1)
            view->stride[axis] = 0;
}

void view_place(tensor_view *view, tensor_layout layout, random_state *random)
{
    const int64_t dim = view->size[3];
    const size_t element = view_element_size(view);
    view->offset = view_guard(view);
    switch (layout) {
    case LAYOUT_BSHD:
        set_strides(view, view->size[1] * view->size[2] * dim, dim, view->size[1] * dim);
        break;
    case LAYOUT_PADDED:
        pack(view, (dim + 3) / 4 * 4 + 4 * random_between(random, 1, 4), 8);
        break;
    case LAYOUT_RAGGED:
        pack(view, (dim | 1) + 2 * random_between(random, 1, 4), 2 * random_between(random, 1, 4) + 1);
        view->offset += element * (uint64_t)(2 * random_between(random, 0, 7) + 1);
        break;
    case LAYOUT_BROADCAST:
        pack(view, dim, 0);
        repeat_some_axes(view, random);
        break;
    default:
        pack(view, dim, 0);
    }
    view->buffer->is_host_memory = layout == LAYOUT_HOST_POINTER;
    view_make_buffer(view);
}

uint64_t view_guard(const tensor_view *view)
{
    const uint64_t element = view_element_size(view), alignment = element & (~element + 1);
    return (GUARD_BYTES + alignment - 1) / alignment * alignment;
}

void view_make_buffer(tensor_view *view)
{
    int64_t elements = 1;
    for (int axis = 0; axis < 4; axis++) {
        if (view->size[axis] == 0)
            elements = 0;
        else if (elements > 0)
            elements += (view->size[axis] - 1) * view->stride[axis];
    }
    buffer_make(view->buffer, view->offset + (size_t)elements * view_element_size(view) + GUARD_BYTES);
}

/* ---- Elements ---- */

size_t view_element_size(const tensor_view *view)
{
    return view->dtype == ELEMENT_BYTE    ? 1
           : view->dtype == ELEMENT_INT32 ? sizeof(int32_t)
                                          : cache_unit_bytes(view->dtype);
}

unsigned char *view_element(const tensor_view *view, int64_t b, int64_t h, int64_t i, int64_t c)
{
    const int64_t element =
        b * view->stride[0] + h * view->stride[1] + i * view->stride[2] + c * view->stride[3];
    return view->buffer->bytes + view->offset + (uint64_t)element * view_element_size(view);
}

float view_load(const tensor_view *view, int64_t b, int64_t h, int64_t i, int64_t c)
{
    return tensor_load(view_element(view, b, h, i, c), view->dtype);
}

void view_store(const tensor_view *view, int64_t b, int64_t h, int64_t i, int64_t c, float value)
{
    tensor_store(view_element(view, b, h, i, c), view->dtype, value);
}

int32_t view_load_int(const tensor_view *view, int64_t b, int64_t h, int64_t i, int64_t c)
{
    const unsigned char *element = view_element(view, b, h, i, c);
    int32_t value;
    if (view->dtype == ELEMENT_BYTE)
        return *element;
    memcpy(&value, element, sizeof value);
    return value;
}

void view_store_int(const tensor_view *view, int64_t b, int64_t h, int64_t i, int64_t c, int32_t value)
{
    unsigned char *element = view_element(view, b, h, i, c);
    if (view->dtype == ELEMENT_BYTE)
        *element = (unsigned char)value;
    else
        memcpy(element, &value, sizeof value);
}

int view_row_is_untouched(const tensor_view *view, int64_t b, int64_t i)
{
    int untouched = 1;
    for (int64_t h = 0; h < view->size[1]; h++) {
        const unsigned char *row = view_element(view, b, h, i, 0);
        for (size_t n = 0; n < (size_t)view->size[3] * view_element_size(view); n++)
            untouched &= row[n] == POISON_BYTE;
    }
    return untouched;
}

int view_surroundings_are_untouched(const tensor_view *view)
{
    const size_t size = view->buffer->size;
    unsigned char *copy = malloc(size);
    int untouched = copy != NULL;
    if (copy == NULL)
        return 0;
    memcpy(copy, view->buffer->bytes, size);
    const size_t row = (size_t)view->size[3] * view_element_size(view);
    for (int64_t b = 0; b < view->size[0]; b++)
        for (int64_t h = 0; h < view->size[1]; h++)
            for (int64_t i = 0; i < view->size[2]; i++)
                memset(copy + (view_element(view, b, h, i, 0) - view->buffer->bytes), POISON_BYTE, row);
    for (size_t i = 0; i < size; i++)
        untouched &= copy[i] == POISON_BYTE;
    free(copy);
    return untouched;
}
