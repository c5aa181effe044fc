/* binary.h: what the driver made of a program for the context's device. */
#ifndef CLATTN_BINARY_H
#define CLATTN_BINARY_H

#include "context.h"

/* NULL if there is none; the caller releases it by the context's allocator. A zero byte follows it. */
unsigned char *clattn__binary_of(clattn_context *context, cl_program program, size_t *size);

#endif
