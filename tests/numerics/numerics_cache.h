/* numerics_cache.h: rows of k and v in the types that caches hold, on the host. */
#ifndef CLATTN_NUMERICS_CACHE_H
#define CLATTN_NUMERICS_CACHE_H

#include "numerics_view.h"

/* Any CLATTN_DTYPE_*. A unit is an element, or a block of 32. */
int64_t cache_unit_elements(int32_t dtype);
size_t cache_unit_bytes(int32_t dtype);
const char *cache_type_name(int32_t dtype);

/* Whether values are what is stored: no scale, no blocks. */
int cache_is_plain(int32_t dtype);

/* Whether the call may (i8: must) give a scale. */
int cache_is_scaled(int32_t dtype);

/* Row (b, h, i) of a view whose last axis counts units, from and to `dim` floats; `scale` is 1 without one.
 */
void cache_store_row(const tensor_view *view, int64_t b, int64_t h, int64_t i, const float *row, int64_t dim,
                     float scale);
void cache_load_row(const tensor_view *view, int64_t b, int64_t h, int64_t i, float *row, int64_t dim,
                    float scale);

#endif
