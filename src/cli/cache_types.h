/* cache_types.h: rows of any storage type, to and from float, on the host; written apart from the kernels, as
 * what they are tested against. */
#ifndef CLATTN_CACHE_TYPES_H
#define CLATTN_CACHE_TYPES_H

#include <stdint.h>

/* `count` elements, for types of blocks a multiple of 32. `scale` is the call's: for I8 and F8, otherwise
 * unused. */
void cache_decode_row(int32_t dtype, const void *units, int64_t count, float scale, float *out);

/* As append and convert store a row (clattn.h). F8: scale is read, 0 means 1. I8: a scale of 0 means that of
 * the row. What was used goes to *scale_out, which may be NULL; for other types that is 1. */
void cache_encode_row(int32_t dtype, const float *x, int64_t count, float scale, void *units,
                      float *scale_out);

/* Of CLATTN_DTYPE_F8_E4M3 or F8_E5M2. */
float f8_to_f32(int32_t dtype, uint8_t bits);
uint8_t f32_to_f8(int32_t dtype, float value); /* to nearest even, saturated; NaN stays NaN */

#endif
