/* case_layout.c: strides, offsets and sizes of device buffers. */
#include "case_layout.h"

#include "cli.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

int64_t case_elements(const case_tensor *t) { return t->dim[0] * t->dim[1] * t->dim[2] * t->dim[3]; }

/* Multiplies, unless the result would leave 62 bits. */
static int multiply(int64_t *product, int64_t factor)
{
    if (factor != 0 && *product > ((int64_t)1 << 62) / factor)
        return -1;
    *product *= factor;
    return 0;
}

int case_contiguous_strides(const int64_t dim[4], int bshd, int64_t stride[4])
{
    const int order[2][4] = {{3, 2, 1, 0}, {3, 1, 2, 0}};
    int64_t product = 1;
    for (int i = 0; i < 4; i++) {
        const int axis = order[bshd][i];
        stride[axis] = product;
        if (multiply(&product, dim[axis] > 0 ? dim[axis] : 1) != 0)
            return -1;
    }
    return multiply(&product, 8); /* bytes have to fit as well */
}

/* The buffer's size: offset and everything up to the last element. */
static int span_bytes(case_tensor *t)
{
    int64_t last = 0;
    for (int i = 0; i < 4; i++) {
        int64_t reach = t->dim[i] > 0 ? t->dim[i] - 1 : 0;
        if (multiply(&reach, t->stride[i]) != 0 || reach > ((int64_t)1 << 57) - last)
            return -1;
        last += reach;
    }
    const uint64_t size = case_elements(t) > 0 ? ((uint64_t)last + 1) * t->element : 0;
    if (t->offset > ((uint64_t)1 << 61))
        return -1;
    t->bytes = t->offset + size;
    return 0;
}

/* Where an axis is only repeated, a stride of 0 is right; elsewhere different values would share a
 * place. Only inputs are looked at: the library refuses outputs that overlap themselves. */
static int check_overlap(const attention_case *c, int tensor)
{
    const case_tensor *t = &c->tensor[tensor];
    if (!t->values || case_is_plain(c, tensor) || case_elements(t) == 0)
        return CLI_OK;
    unsigned char *buffer = case_layout_input(c, tensor);
    if (!buffer)
        return CLI_FAILED;
    const size_t size = t->element;
    int same = 1;
    for (int64_t b = 0; b < t->dim[0]; b++)
        for (int64_t h = 0; h < t->dim[1]; h++)
            for (int64_t i = 0; same && i < t->dim[2]; i++)
                for (int64_t e = 0; same && e < t->dim[3]; e++) {
                    const int64_t from = b * t->value_stride[0] + h * t->value_stride[1] +
                                         i * t->value_stride[2] + e * t->value_stride[3];
                    const int64_t to =
                        b * t->stride[0] + h * t->stride[1] + i * t->stride[2] + e * t->stride[3];
                    same = memcmp((const unsigned char *)t->values + (size_t)from * size,
                                  buffer + t->offset + (size_t)to * size, size) == 0;
                }
    free(buffer);
    if (!same)
        return cli_fail(CLI_USAGE, "--strides %s=...: different elements of '%s' share a place",
                        tensor_names[tensor], tensor_names[tensor]);
    return CLI_OK;
}

static int lay_out_tensor(attention_case *c, int tensor)
{
    case_tensor *t = &c->tensor[tensor];
    const call_options *o = &c->options;
    if (!t->present) {
        if (o->num_strides[tensor] || o->offset_bytes[tensor])
            return cli_fail(CLI_USAGE, "a layout is given for '%s', which takes no part",
                            tensor_names[tensor]);
        return CLI_OK;
    }
    for (int i = 0; i < o->num_strides[tensor]; i++)
        t->stride[i] = o->strides[tensor][i];
    t->offset = (uint64_t)o->offset_bytes[tensor];
    const size_t unit = tensor == TENSOR_USER ? 16 : t->element & (~t->element + 1);
    if (t->offset % unit != 0)
        return cli_fail(CLI_USAGE, "--offset-bytes %s=%" PRIu64 ": expected a multiple of %d bytes",
                        tensor_names[tensor], t->offset, (int)unit);
    if (span_bytes(t) != 0)
        return cli_fail(CLI_USAGE, "--strides or --offset-bytes of '%s' reach beyond any buffer",
                        tensor_names[tensor]);
    return CLI_OK;
}

int case_lay_out(attention_case *c)
{
    int status = CLI_OK;
    for (int t = 0; status == CLI_OK && t < TENSOR_COUNT; t++)
        status = lay_out_tensor(c, t);
    for (int t = 0; status == CLI_OK && t < NUM_INPUTS; t++)
        status = check_overlap(c, t);
    return status;
}

unsigned char *case_layout_input(const attention_case *c, int tensor)
{
    const case_tensor *t = &c->tensor[tensor];
    const size_t size = t->element;
    const uint64_t total = t->bytes + c->guard_bytes;
    unsigned char *buffer = total < SIZE_MAX ? malloc((size_t)total + 1) : NULL;
    if (!buffer) {
        cli_note("not enough memory for the %" PRIu64 " bytes of '%s'", total, tensor_names[tensor]);
        return NULL;
    }
    memset(buffer, 0xff, (size_t)total);
    if (case_elements(t) == 0)
        return buffer; /* the other dimensions may be astronomic */
    for (int64_t b = 0; b < t->dim[0]; b++)
        for (int64_t h = 0; h < t->dim[1]; h++)
            for (int64_t i = 0; i < t->dim[2]; i++) {
                const int64_t from = b * t->value_stride[0] + h * t->value_stride[1] + i * t->value_stride[2];
                const int64_t to = b * t->stride[0] + h * t->stride[1] + i * t->stride[2];
                for (int64_t e = 0; e < t->dim[3]; e++)
                    memcpy(buffer + t->offset + (size_t)(to + e * t->stride[3]) * size,
                           (const unsigned char *)t->values + (size_t)(from + e * t->value_stride[3]) * size,
                           size);
            }
    return buffer;
}

int case_is_plain(const attention_case *c, int tensor)
{
    const case_tensor *t = &c->tensor[tensor];
    return t->offset == 0 && c->guard_bytes == 0 && memcmp(t->stride, t->value_stride, sizeof t->stride) == 0;
}
