/* tuning.h: measured choices among the rows of the tile tables. */
#ifndef CLATTN_TUNING_H
#define CLATTN_TUNING_H

#include "context.h"
#include "path.h"

/* Takes a tuning text. What is no such text is refused; one that another device, driver or version of the
 * library wrote is not used, which a warning says. */
clattn_status clattn__tuning_read(clattn_context *context, const void *text, size_t bytes);

/* The number of the candidate that a tuning text chose for a program of a path; -1: none, or it is not among
 * the candidates for this shape. */
int clattn__tuned_index(const clattn_context *context, const clattn__path *path, int program,
                        const clattn__kernel_shape *shape);

#endif
