/* kv_dtype.h: the types that k and v may have: how their units are named and how large they are. */
#ifndef CLATTN_KV_DTYPE_H
#define CLATTN_KV_DTYPE_H

#include <stddef.h>
#include <stdint.h>

typedef struct kv_dtype {
    int32_t dtype;           /* CLATTN_DTYPE_* */
    const char *name;        /* "q8_0" */
    const char *file_dtype;  /* as a file spells it: "F8_E4M3"; blocks are "U8" */
    size_t bytes;            /* of a unit */
    int64_t elements;        /* of a unit: 1, or 32 */
    int scaled;              /* whether a scale of the call multiplies it */
} kv_dtype;

const kv_dtype *kv_dtype_of(int32_t dtype); /* never NULL: what is no type of k and v is f32 */

/* NULL: none of them. A file's type of blocks is not known by its spelling. */
const kv_dtype *kv_dtype_from_name(const char *name);
const kv_dtype *kv_dtype_from_file(const char *file_dtype);

#endif
