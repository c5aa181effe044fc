/* operation.h: what calls of all operations have in common: checks of numbers and tensors, the
 * addresses that kernels are told, and the end of a call. */
#ifndef CLATTN_OPERATION_H
#define CLATTN_OPERATION_H

#include "launch.h"
#include "operand.h"
#include "plan.h"

/* That the plan is one of the operation. `where` is the function of the API, here and below. */
clattn_status clattn__check_operation(const clattn_plan *plan, int32_t operation, const char *where);

clattn_status clattn__check_number(const clattn__log *log, const char *where, const char *name, int64_t value,
                                   int64_t least, int64_t most);

/* That `rows` rows of each of `lines` lines are work-groups whose numbers have 32 bits. */
clattn_status clattn__check_groups(const clattn__log *log, const char *where, const char *what, int64_t lines,
                                   int64_t rows);

/* stride[3]: 1, or 0 for short; it becomes 1. */
clattn_status clattn__make_rows_contiguous(clattn_tensor *tensor, const char *where, const char *name,
                                           const clattn__log *log);

/* A list has no strides, a table only the one from row to row. */
void clattn__make_list(clattn_tensor *tensor);
void clattn__make_table(clattn_tensor *tensor);

/* Strides of axes of length 1 are 0 there: such an axis repeats. */
tensor_address clattn__tensor_address_of(const clattn__operand *operand);
/* Bytes from the handle to element 0, less than an element: an offset need only be aligned. */
cl_long clattn__lead_of(const clattn__operand *operand);
number_address clattn__number_address_of(const clattn__operand *operand);

/* Hands the event of what was emitted to the caller, or after a failure lets go of it. */
clattn_status clattn__end_call(const clattn_context *context, clattn__emitter *emitter, clattn_status status,
                               cl_event *event, const char *where);

#endif
