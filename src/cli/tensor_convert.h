/* tensor_convert.h: storage types on the host. */
#ifndef CLATTN_TENSOR_CONVERT_H
#define CLATTN_TENSOR_CONVERT_H

#include <stddef.h>
#include <stdint.h>

size_t dtype_size(int32_t dtype);          /* CLATTN_DTYPE_*; bytes of an element */
const char *dtype_name(int32_t dtype);     /* "f32", "f16", "bf16" */
int32_t dtype_from_name(const char *name); /* 0: none of them */

/* As the safetensors format spells them: "F32", "F16", "BF16". */
const char *dtype_safetensors_name(int32_t dtype);
int32_t dtype_from_safetensors_name(const char *name); /* 0: none of them */

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
