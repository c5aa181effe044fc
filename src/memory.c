#include "memory.h"

#include <stdlib.h>
#include <string.h>

enum { ALIGNMENT = 64 };

void *clattn__allocate(const clattn_allocator *allocator, size_t size)
{
    void *memory =
        allocator->allocate != NULL ? allocator->allocate(allocator->user, size, ALIGNMENT) : malloc(size);
    if (memory != NULL)
        memset(memory, 0, size);
    return memory;
}

void clattn__release(const clattn_allocator *allocator, void *memory)
{
    if (memory == NULL)
        return;
    if (allocator->release != NULL)
        allocator->release(allocator->user, memory);
    else
        free(memory);
}

clattn_status clattn__read_struct(void *out, size_t size, const void *from, size_t least, const char *where,
                                  const char *name, const clattn__log *log)
{
    uint32_t given;
    memcpy(&given, from, sizeof given);
    RETURN_ERROR_IF(given < least, log, CLATTN_INVALID_ARGUMENT,
                    "%s: %s.struct_size = %u; expected at least %u (set it by the _INIT macro)", where, name,
                    (unsigned)given, (unsigned)least);
    for (size_t i = size; i < given; i++)
        RETURN_ERROR_IF(((const unsigned char *)from)[i] != 0, log, CLATTN_UNSUPPORTED,
                        "%s: %s was made by a newer header (%u bytes, %u known here) and sets a field "
                        "that this version does not know",
                        where, name, (unsigned)given, (unsigned)size);
    memset(out, 0, size);
    memcpy(out, from, given < size ? given : size);
    return CLATTN_SUCCESS;
}
