/* memory.h: the library's own host objects, through the caller's allocator. */
#ifndef CLATTN_MEMORY_H
#define CLATTN_MEMORY_H

#include "report.h"

/* Zeroed memory, or NULL. */
void *clattn__allocate(const clattn_allocator *allocator, size_t size);
void clattn__release(const clattn_allocator *allocator, void *memory); /* NULL: nothing happens */

/* Reads an option struct that an older or newer header may have made: `size` bytes are known here,
 * fields that the caller's struct lacks stay zero, an unknown tail must be zero. `least` is the size that
 * the first version of the struct had. */
clattn_status clattn__read_struct(void *out, size_t size, const void *from, size_t least, const char *where,
                                  const char *name, const clattn__log *log);

#endif
