#include "dtype.h"

static const clattn__dtype types[] = {
    [CLATTN_DTYPE_F32] = {"f32", 4, 1, 0, 0},         [CLATTN_DTYPE_F16] = {"f16", 2, 1, 0, 0},
    [CLATTN_DTYPE_BF16] = {"bf16", 2, 1, 0, 0},       [CLATTN_DTYPE_I8] = {"i8", 1, 1, 1, 1},
    [CLATTN_DTYPE_F8_E4M3] = {"f8_e4m3", 1, 1, 1, 1}, [CLATTN_DTYPE_F8_E5M2] = {"f8_e5m2", 1, 1, 1, 1},
    [CLATTN_DTYPE_Q8_0] = {"q8_0", 34, 32, 1, 0},     [CLATTN_DTYPE_Q4_0] = {"q4_0", 18, 32, 1, 0},
    [CLATTN_DTYPE_Q4_1] = {"q4_1", 20, 32, 1, 0},     [CLATTN_DTYPE_Q5_0] = {"q5_0", 22, 32, 1, 0},
    [CLATTN_DTYPE_Q5_1] = {"q5_1", 24, 32, 1, 0},     [CLATTN_DTYPE_IQ4_NL] = {"iq4_nl", 18, 32, 1, 0},
};

static const clattn__dtype unknown = {NULL, 1, 1, 0, 0};

const clattn__dtype *clattn__dtype_of(int32_t dtype)
{
    const int32_t count = (int32_t)(sizeof types / sizeof *types);
    return dtype > 0 && dtype < count && types[dtype].name != NULL ? &types[dtype] : &unknown;
}
