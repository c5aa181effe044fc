/* launch.h: a kernel over any number of work-groups, in as many launches as that takes. */
#ifndef CLATTN_LAUNCH_H
#define CLATTN_LAUNCH_H

#include "emit.h"
#include "program.h"

typedef struct clattn__launch {
    const clattn_context *context;
    clattn__program *program;
    int kernel;
    int64_t groups;
    uint64_t work; /* multiply-adds of a work-group, for max_work_per_launch */
    const clattn__memory *buffers;
    cl_int *first_group, *num_groups; /* of `args`: set for each launch */
    const void *args;
} clattn__launch;

clattn_status clattn__launch_kernel(const clattn__launch *launch, clattn__emitter *emitter,
                                    const char *where);

/* Of a recording: a command that does nothing, for what waits for the call. `groups` does not count. */
clattn_status clattn__record_nothing(const clattn__launch *launch, clattn__emitter *emitter,
                                     const char *where);

/* Work-groups of CLATTN__FLAT_WORK_ITEMS for so many work-items. */
static inline int64_t clattn__flat_groups(int64_t work_items)
{
    return (work_items + CLATTN__FLAT_WORK_ITEMS - 1) / CLATTN__FLAT_WORK_ITEMS;
}

#endif
