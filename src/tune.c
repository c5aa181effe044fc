#include "tune.h"

#include <stdio.h>
#include <string.h>

int32_t clattn__head_dim_class(int32_t head_dim)
{
    const int32_t step = head_dim <= 128 ? 32 : 64;
    return (head_dim + step - 1) / step * step;
}

int clattn__tile_flat(clattn__tile *out, const clattn__device *device, const clattn__kernel_shape *shape,
                      int index)
{
    (void)device;
    (void)shape;
    memset(out, 0, sizeof *out);
    out->work_items = CLATTN__FLAT_WORK_ITEMS;
    snprintf(out->label, sizeof out->label, "%d elements", CLATTN__FLAT_WORK_ITEMS);
    return index == 0;
}
