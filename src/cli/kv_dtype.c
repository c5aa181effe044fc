/* kv_dtype.c: the table of types that k and v may have. */
#include "kv_dtype.h"

#include "clattn.h"

#include <string.h>

static const kv_dtype types[] = {
    {CLATTN_DTYPE_F32, "f32", "F32", 4, 1, 0},
    {CLATTN_DTYPE_F16, "f16", "F16", 2, 1, 0},
    {CLATTN_DTYPE_BF16, "bf16", "BF16", 2, 1, 0},
    {CLATTN_DTYPE_I8, "i8", "I8", 1, 1, 1},
    {CLATTN_DTYPE_F8_E4M3, "f8_e4m3", "F8_E4M3", 1, 1, 1},
    {CLATTN_DTYPE_F8_E5M2, "f8_e5m2", "F8_E5M2", 1, 1, 1},
    {CLATTN_DTYPE_Q8_0, "q8_0", "U8", 34, 32, 0},
    {CLATTN_DTYPE_Q4_0, "q4_0", "U8", 18, 32, 0},
    {CLATTN_DTYPE_Q4_1, "q4_1", "U8", 20, 32, 0},
    {CLATTN_DTYPE_Q5_0, "q5_0", "U8", 22, 32, 0},
    {CLATTN_DTYPE_Q5_1, "q5_1", "U8", 24, 32, 0},
    {CLATTN_DTYPE_IQ4_NL, "iq4_nl", "U8", 18, 32, 0},
};

enum { NUM_TYPES = sizeof types / sizeof types[0] };

const kv_dtype *kv_dtype_of(int32_t dtype)
{
    for (int i = 0; i < NUM_TYPES; i++)
        if (types[i].dtype == dtype)
            return &types[i];
    return &types[0];
}

const kv_dtype *kv_dtype_from_name(const char *name)
{
    for (int i = 0; i < NUM_TYPES; i++)
        if (strcmp(types[i].name, name) == 0)
            return &types[i];
    return NULL;
}

const kv_dtype *kv_dtype_from_file(const char *file_dtype)
{
    for (int i = 0; i < NUM_TYPES; i++)
        if (types[i].elements == 1 && strcmp(types[i].file_dtype, file_dtype) == 0)
            return &types[i];
    return NULL;
}
