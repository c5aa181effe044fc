/* path.h: the kernel families, one row each. The first that fits device and plan is taken. */
#ifndef CLATTN_PATH_H
#define CLATTN_PATH_H

#include "tune.h"

/* One file of kernel source, embedded by CMake. */
typedef struct clattn__piece {
    const char *name; /* "cl/bounds.cl", as build logs shall say */
    const unsigned char *text;
    const size_t *size;
} clattn__piece;

enum { CLATTN__MAX_PIECES = 12 };

typedef struct clattn__path {
    int32_t id; /* CLATTN_PATH_* */
    const char *name;
    /* Whether the device can run it; the reason if not goes to *why. */
    int (*applies)(const clattn__device *device, const char **why);
    int (*tile)(clattn__tile *out, const clattn__device *device, const clattn__kernel_shape *shape,
                int index);
    const char *kernel_any;     /* takes any strides, offsets and head dims */
    const char *kernel_aligned; /* for rows in whole groups of four elements; NULL: no such kernel */
    clattn__piece pieces[CLATTN__MAX_PIECES]; /* in the order of compilation; ends with a NULL name */
} clattn__path;

/* NULL at the end of the table. */
const clattn__path *clattn__path_at(int index);

#endif
