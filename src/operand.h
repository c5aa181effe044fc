/* operand.h: the tensors of a call, checked one by one and against each other before anything is enqueued. */
#ifndef CLATTN_OPERAND_H
#define CLATTN_OPERAND_H

#include "context.h"

typedef struct clattn__operand {
    const char *name;
    const clattn_tensor *tensor;
    int64_t size[4]; /* batch, head, token, last */
    size_t element;  /* bytes */
    int is_output;
    int is_needed;
    uint64_t begin, end; /* bytes from the handle on that the call may touch; set by the check */
} clattn__operand;

/* Kind of memory and reserved fields. `where` is the function of the API, for messages, here and below. */
clattn_status clattn__check_kind(const clattn_tensor *tensor, const char *where, const char *name,
                                 const clattn_context *context);

/* That a pointer with its offset is a multiple of `alignment`, as buffers are by themselves. */
clattn_status clattn__check_alignment(const clattn_tensor *tensor, uint64_t alignment, const char *where,
                                      const char *name, const clattn__log *log);

/* Presence, strides, offset and, of buffers, reach; sets begin and end. */
clattn_status clattn__check_operand(clattn__operand *operand, const char *where,
                                    const clattn_context *context);

/* That no output shares bytes with anything else. */
clattn_status clattn__check_overlap(const clattn__operand *operands, int count, const char *where,
                                    const clattn__log *log);

/* Whether all rows of a tensor begin at multiples of so many bytes. Pointers, and buffers over host memory,
 * are only as aligned as they are. */
int clattn__rows_are_aligned(const clattn__operand *operand, uint64_t bytes, const clattn__cl *cl);

#endif
