#include "tune.h"

int32_t clattn__head_dim_class(int32_t head_dim)
{
    const int32_t step = head_dim <= 128 ? 32 : 64;
    return (head_dim + step - 1) / step * step;
}
