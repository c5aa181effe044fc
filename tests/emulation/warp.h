/* warp.h: work-groups of NVIDIA's GPUs on a CPU, instruction by instruction where work-items meet. */
#ifndef WARP_H
#define WARP_H

#include <stddef.h>

typedef void (*warp_kernel)(void *const *buffers, const void *args);

/* Runs one work-group. Ends the process, with a message, where work-items wait for ever or part ways within a
 * warp. */
void warp_run_group(warp_kernel kernel, void *const *buffers, const void *args, size_t items, size_t group);

#endif
