/* numerics_view.h: a tensor as it lies in a buffer: strides, offset, and what lies between its
 * rows. */
#ifndef CLATTN_NUMERICS_VIEW_H
#define CLATTN_NUMERICS_VIEW_H

#include "numerics_random.h"

#include <stddef.h>
#include <stdint.h>

/* Elements that are no numbers of the library: they follow CLATTN_DTYPE_*. */
enum { ELEMENT_BYTE = 100, ELEMENT_INT32 };

/* What is left alone is filled with this byte: 0xff.. is a NaN in every storage type, so an element
 * read by mistake is seen in the result, and one written by mistake is seen in the buffer. */
enum { POISON_BYTE = 0xff, GUARD_BYTES = 256 };

typedef enum tensor_layout {
    LAYOUT_BHSD,
    LAYOUT_BSHD,
    LAYOUT_PADDED,       /* rows and heads apart, all in multiples of four elements */
    LAYOUT_RAGGED,       /* odd strides and an odd offset: rows aligned to no more than one element */
    LAYOUT_HOST_POINTER, /* packed, in memory of ours that is aligned to no more than one element */
    LAYOUT_OUTPUTS,      /* those before are fit for outputs; those from here on for inputs only */
    LAYOUT_BROADCAST = LAYOUT_OUTPUTS, /* stride 0 along one to three axes */
    LAYOUT_INTERLEAVED,                /* q, k and v side by side in each token's row */
    LAYOUTS
} tensor_layout;

const char *layout_name(tensor_layout layout);

typedef struct byte_buffer {
    unsigned char *bytes; /* owned; NULL: another tensor's buffer is used */
    size_t size;
    int is_host_memory; /* the device buffer is to lie over `bytes`, not to be a copy */
} byte_buffer;

typedef struct tensor_view {
    byte_buffer *buffer;
    int32_t dtype;     /* CLATTN_DTYPE_*, ELEMENT_*; of types of blocks an element is a block */
    int64_t size[4];   /* batch, head, token, last */
    int64_t stride[4]; /* in elements */
    uint64_t offset;   /* of element (0, 0, 0, 0), in bytes */
} tensor_view;

/* Sets strides and offset for `size` and the layout (not LAYOUT_INTERLEAVED) and makes the buffer,
 * poisoned, with guard zones before and after. */
void view_place(tensor_view *view, tensor_layout layout, random_state *random);

/* Where the first element of a view is, behind a guard zone: aligned for it, not a whole number of blocks in.
 */
uint64_t view_guard(const tensor_view *view);

/* Makes the buffer for strides and offset as they are. */
void view_make_buffer(tensor_view *view);

void buffer_make(byte_buffer *buffer, size_t size);
void buffer_poison(byte_buffer *buffer);
void buffer_free(byte_buffer *buffer);

size_t view_element_size(const tensor_view *view);
unsigned char *view_element(const tensor_view *view, int64_t b, int64_t h, int64_t i, int64_t c);

float view_load(const tensor_view *view, int64_t b, int64_t h, int64_t i, int64_t c);
void view_store(const tensor_view *view, int64_t b, int64_t h, int64_t i, int64_t c, float value);

/* The same for ELEMENT_*. */
int32_t view_load_int(const tensor_view *view, int64_t b, int64_t h, int64_t i, int64_t c);
void view_store_int(const tensor_view *view, int64_t b, int64_t h, int64_t i, int64_t c, int32_t value);

/* Whether row i of every head of entry b is still poison. */
int view_row_is_untouched(const tensor_view *view, int64_t b, int64_t i);

/* Whether every byte of the buffer outside the tensor's elements is still poison. */
int view_surroundings_are_untouched(const tensor_view *view);

#endif
