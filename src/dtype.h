/* dtype.h: storage types: their names, and the bytes of a unit, which is an element or a block of them. */
#ifndef CLATTN_DTYPE_H
#define CLATTN_DTYPE_H

#include "clattn.h"

typedef struct clattn__dtype {
    const char *name;  /* "f32"; NULL: no such type */
    int32_t bytes;     /* of a unit */
    int32_t elements;  /* of a unit: 1, or 32 */
    int32_t is_cache;  /* only k and v can have it */
    int32_t is_scaled; /* takes a scale from the call */
} clattn__dtype;

/* Never NULL; of an unknown number its `name` is. */
const clattn__dtype *clattn__dtype_of(int32_t dtype);

#endif
