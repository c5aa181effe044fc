/* tensor_convert.h: storage types on the host. */
#ifndef CLATTN_TENSOR_CONVERT_H
#define CLATTN_TENSOR_CONVERT_H

#include <stddef.h>
#include <stdint.h>

size_t dtype_size(int32_t dtype);          /* CLATTN_DTYPE_*; bytes of a unit: an element or a block */
int32_t dtype_elements(int32_t dtype);     /* of a unit: 1, or 32 */
int dtype_is_plain(int32_t dtype);         /* F32, F16 or BF16: what the functions below take */
const char *dtype_name(int32_t dtype);     /* "f32", "q8_0", "f8_e4m3", ...; "?": none */
int32_t dtype_from_name(const char *name); /* 0: none of them */

/* As the safetensors format spells them: "F32", "F8_E4M3", ...; blocks are "U8", from which nothing follows.
 */
const char *dtype_safetensors_name(int32_t dtype);
int32_t dtype_from_safetensors_name(const char *name); /* 0: none of them, or not known from the name */

float f16_to_f32(uint16_t bits);
uint16_t f32_to_f16(float value); /* round to nearest even, as vstore_half_rte */
float bf16_to_f32(uint16_t bits);
uint16_t f32_to_bf16(float value); /* round to nearest even; NaN stays NaN */

/* One element at any address, aligned or not. */
float tensor_load(const void *element, int32_t dtype);
void tensor_store(void *element, int32_t dtype, float value);

/* The nearest value that the type can hold. */
float dtype_round(float value, int32_t dtype);

#endif
