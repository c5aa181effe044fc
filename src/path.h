/* path.h: the kernel families, and the programs that each compiles. */
#ifndef CLATTN_PATH_H
#define CLATTN_PATH_H

#include "tune.h"

/* One file of kernel source, embedded by CMake. */
typedef struct clattn__piece {
    const char *name; /* "cl/bounds.cl", as build logs shall say */
    const unsigned char *text;
    const size_t *size;
} clattn__piece;

/* Kernels of forward programs; other operations number theirs on their own. */
enum {
    CLATTN__KERNEL_ANY,     /* takes any strides, offsets and head dims */
    CLATTN__KERNEL_ALIGNED, /* for rows in whole groups of four elements */
    CLATTN__KERNEL_TILES,   /* the tile map, with full scores only */
    CLATTN__KERNEL_COMBINE, /* what splits gave; decode only; NULL: its last work-groups do it */
    CLATTN__KERNEL_CHECK,   /* lengths and pages, with CLATTN_FEATURE_STATUS only */
    CLATTN__KERNELS
};

/* Kernels of append programs; merge and convert have one. */
enum { CLATTN__APPEND_ROWS, CLATTN__APPEND_LENGTHS };

enum { CLATTN__MAX_PIECES = 20 };

/* Programs of a forward plan; other operations have the first alone. */
enum {
    CLATTN__PREFILL,
    CLATTN__DECODE,     /* for any number of rows */
    CLATTN__DECODE_FEW, /* for few rows, where a path has better ones for these */
    CLATTN__PROGRAMS
};

/* A program: what it is compiled from, and its kernels. */
typedef struct clattn__recipe {
    int (*tile)(clattn__tile *out, const clattn__device *device, const clattn__kernel_shape *shape,
                int index);
    int is_decode;                       /* rows are pairs of query and head, and keys are split */
    const char *kernel[CLATTN__KERNELS]; /* NULL: no such kernel */
    int num_buffers;                     /* the arguments of every kernel: these, then a struct of */
    size_t args_bytes;
    int row_bytes;     /* rows of q, k, v and o are multiples of so many bytes, and begin at such, where the
                          kernel for aligned ones is taken; 0: of four elements */
    int tells_formula; /* where softcap and ALiBi alone change scores, it is compiled for that, not for full
                          scores */
    int is_resident; /* work-groups take tile after tile: there are no more than the device runs at a time */
    int hidden_statements; /* that its kernel has for src/ptx_route.c; 0: it is compiled as it is */
    clattn__piece pieces[CLATTN__MAX_PIECES]; /* in the order of compilation; ends with a NULL name */
} clattn__recipe;

/* Which formula (CLATTN__FORMULA_*) programs of the recipe are compiled for, or whether for full scores; in
 * lean ones neither holds. */
int clattn__formula(const clattn__recipe *recipe, const clattn__kernel_shape *shape);
int clattn__score_full(const clattn__recipe *recipe, const clattn__kernel_shape *shape);

/* The first that fits device and plan is taken. */
typedef struct clattn__path {
    int32_t id; /* CLATTN_PATH_* */
    const char *name;
    /* Whether the device can run it; the reason if not goes to *why. */
    int (*applies)(const clattn__device *device, const char **why);
    /* Whether the path can do what the plan asks for; the reason if not goes to *why. NULL: whatever it is.
     */
    int (*takes)(const clattn_plan_desc *desc, const char **why);
    clattn__recipe recipe[CLATTN__PROGRAMS];
    /* Of few rows where recipe[CLATTN__DECODE_FEW] has no tile, or none that builds. */
    clattn__recipe few_otherwise;
} clattn__path;

/* NULL at the end of the table. */
const clattn__path *clattn__path_at(int index);

/* Of the operations but CLATTN_OPERATION_FORWARD, which every device can do in one way. */
const clattn__path *clattn__path_of_operation(int32_t operation);

#endif
