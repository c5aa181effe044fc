#include "clattn.h"

#include <math.h>

clattn_status clattn_alibi_slopes(float *slopes, int32_t heads, float max_bias)
{
    if (slopes == NULL || heads < 1 || !(max_bias >= 0.0f) || isinf(max_bias))
        return CLATTN_INVALID_ARGUMENT;
    const double most = max_bias != 0.0f ? (double)max_bias : 8.0;
    int32_t power = 1;
    while (power <= heads / 2)
        power *= 2;
    for (int32_t h = 0; h < heads; h++)
        slopes[h] = (float)(h < power ? exp2(-most * (h + 1.0) / power)
                                      : exp2(-most / 2.0 * (2.0 * (h - power) + 1.0) / power));
    return CLATTN_SUCCESS;
}
