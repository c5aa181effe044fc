/* hash.h: FNV-1a (Fowler, Noll, Vo), 64 bits: tells programs apart and finds damaged cache entries. */
#ifndef CLATTN_HASH_H
#define CLATTN_HASH_H

#include <stddef.h>
#include <stdint.h>

#define CLATTN__HASH_START UINT64_C(14695981039346656037)

static inline uint64_t clattn__hash(uint64_t hash, const void *data, size_t size)
{
    const unsigned char *bytes = data;
    for (size_t i = 0; i < size; i++)
        hash = (hash ^ bytes[i]) * UINT64_C(1099511628211);
    return hash;
}

#endif
