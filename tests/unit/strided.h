/* strided.h: tensors of any type and strides on the host, with guards around and between their rows, and
 * their twins on the device; and reproducible random numbers. */
#ifndef CLATTN_TEST_STRIDED_H
#define CLATTN_TEST_STRIDED_H

#include <stddef.h>
#include <stdint.h>

#include <clattn.h>

/* ---- Random numbers ---- */

uint32_t random_bits(uint32_t *state);
int random_below(uint32_t *state, int end); /* 0 .. end - 1 */
float random_between(uint32_t *state, float least, float most);

/* ---- Tensors ---- */

typedef struct strided {
    int32_t dtype;
    int64_t size[4];   /* batch, head, token, elements */
    int64_t stride[3]; /* units, as tensors of a call */
    size_t offset;     /* bytes: as aligned as a unit; blocks do not lie at multiples of their size */
    size_t bytes;
    unsigned char *host; /* owned */
    cl_mem device;       /* owned; NULL until strided_send */
} strided;

enum {
    DENSE,       /* batch, head, token */
    TOKEN_MAJOR, /* batch, token, head; gaps of odd sizes everywhere */
    LAYOUTS
};

/* All bytes are guards (0xa5). Any size may be 0. */
strided strided_new(int32_t dtype, int64_t batch, int64_t heads, int64_t tokens, int64_t elements,
                    int layout);
void strided_release(strided *tensor);

/* Random elements of a plain type. */
void strided_fill(strided *tensor, uint32_t *state);

unsigned char *strided_row(const strided *tensor, int64_t batch, int64_t head, int64_t token);
float strided_get(const strided *tensor, int64_t batch, int64_t head, int64_t token, int64_t element);
size_t strided_row_bytes(const strided *tensor);

void strided_send(strided *tensor); /* to the device; makes the buffer at first */
/* The device's bytes; the caller frees them. */
unsigned char *strided_receive(const strided *tensor);

/* As an argument of a call. */
clattn_tensor strided_argument(const strided *tensor);

/* ---- Integers ---- */

/* A buffer of int32 with `offset` guards before and one behind. */
typedef struct int_list {
    int count;
    int32_t *host; /* owned; the first of the list's own numbers */
    int32_t *block;
    cl_mem device;
} int_list;

enum { INT_LIST_OFFSET = 3 };

int_list int_list_new(int count);
void int_list_release(int_list *list);
void int_list_send(int_list *list);
void int_list_receive(int_list *list); /* asserts that the guards are whole */

/* With strides 1 of the axes that are not 0. */
clattn_tensor int_list_argument(const int_list *list, int64_t stride0, int64_t stride1);

#endif
