/* warp.h: work-groups of NVIDIA's GPUs on a CPU, instruction by instruction where work-items meet. */
#ifndef WARP_H
#define WARP_H

#include "ptx.h"

#include <stddef.h>

typedef void (*warp_kernel)(void *const *buffers, const void *args);

typedef struct warp_program {
    ptx_statement *statements; /* of inline assembly */
    size_t num_statements;
    void *local; /* all its kernels' local memory, so no measure of what one takes: the ISA gate has that */
    size_t local_bytes;
    void *memory;       /* of its own */
    uint32_t registers; /* that a work-item may have at the begin; 0: not said */
} warp_program;

typedef struct warp_launch {
    const warp_program *program;
    warp_kernel kernel;
    void *const *buffers;
    const void *args;
    size_t items, groups;
} warp_launch;

/* Runs one work-group. Ends the process, with a message, where work-items wait for ever, part ways within a
 * warp, or do what leaves the outcome open. */
void warp_run_group(const warp_launch *launch, size_t group);

#endif
