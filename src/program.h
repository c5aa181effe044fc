/* program.h: compiled programs, one per key for all plans and threads of a context, and the kernel
 * instances that calls check out. */
#ifndef CLATTN_PROGRAM_H
#define CLATTN_PROGRAM_H

#include "context.h"
#include "emit.h"
#include "path.h"

/* A cl_kernel holds its arguments, so two threads need two. Four cover the moment between setting them
 * and the enqueue; a fifth thread waits for that moment. */
enum { CLATTN__INSTANCES = 4 };

/* What every program is built with. */
#define CLATTN__LANGUAGE_OPTION "-cl-std=CL1.2"

typedef struct clattn__program {
    struct clattn__program *next;
    char key[40];
    clattn__log log; /* the context's, but silent while a cached binary is tried */
    char *options;
    char *source;     /* the caller's functions and the pieces, with their #line directives */
    char *build_log;  /* of a build that failed, or NULL */
    const char *path; /* its name */
    const clattn__recipe *recipe;
    clattn__tile tile;
    clattn__kernel_shape shape;                                                  /* without the texts */
    enum { CLATTN__NEW, CLATTN__BUILDING, CLATTN__READY, CLATTN__FAILED } state; /* by context's mutex */
    clattn_status status; /* of a failed one; COMPILE_FAILED: another tile may do */
    char reason[160];     /* likewise */
    cl_program program;
    clattn__instance instance[CLATTN__KERNELS][CLATTN__INSTANCES];
    unsigned free_instances[CLATTN__KERNELS]; /* bits; guarded by `mutex` */
    clattn__mutex mutex;
    clattn__condition instance_returned;
} clattn__program;

/* The program of a recipe, tile and shape; `path`: its name for messages: found, awaited, loaded or built;
 * then run once with nothing to do. *out is set when the status is success or COMPILE_FAILED (the tile does
 * not build, or asks too much of the device: `reason` and `build_log` say so, and another tile may do). */
clattn_status clattn__program_get(clattn__program **out, clattn_context *context, const char *path,
                                  const clattn__recipe *recipe, const clattn__tile *tile,
                                  const clattn__kernel_shape *shape);

/* Work-items of a kernel's work-group. */
size_t clattn__work_items(const clattn__program *program, int kernel);

/* An instance is the caller's alone until it is returned. */
clattn__instance *clattn__instance_take(clattn__program *program, int kernel);
void clattn__instance_return(clattn__program *program, int kernel, const clattn__instance *instance);

/* One more, which the caller releases. */
cl_kernel clattn__instance_create(const clattn__program *program, const clattn__cl *cl, int kernel,
                                  cl_int *code);

void clattn__programs_release(clattn_context *context);

#endif
