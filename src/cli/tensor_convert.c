/* tensor_convert.c: storage types on the host. */
#include "tensor_convert.h"

#include "clattn.h"

#include <string.h>

size_t dtype_size(int32_t dtype) { return dtype == CLATTN_DTYPE_F32 ? 4 : 2; }

static const char *const names[] = {"", "f32", "f16", "bf16"};

const char *dtype_name(int32_t dtype)
{
    return dtype >= CLATTN_DTYPE_F32 && dtype <= CLATTN_DTYPE_BF16 ? names[dtype] : "?";
}

int32_t dtype_from_name(const char *name)
{
    for (int32_t dtype = CLATTN_DTYPE_F32; dtype <= CLATTN_DTYPE_BF16; dtype++)
        if (strcmp(name, names[dtype]) == 0)
            return dtype;
    return 0;
}

static const char *const safetensors_names[] = {"", "F32", "F16", "BF16"};

const char *dtype_safetensors_name(int32_t dtype) { return safetensors_names[dtype]; }

int32_t dtype_from_safetensors_name(const char *name)
{
    for (int32_t dtype = CLATTN_DTYPE_F32; dtype <= CLATTN_DTYPE_BF16; dtype++)
        if (strcmp(name, safetensors_names[dtype]) == 0)
            return dtype;
    return 0;
}

static uint32_t bits_of(float value)
{
    uint32_t bits;
    memcpy(&bits, &value, sizeof bits);
    return bits;
}

static float float_of(uint32_t bits)
{
    float value;
    memcpy(&value, &bits, sizeof value);
    return value;
}

float f16_to_f32(uint16_t half)
{
    const uint32_t sign = (uint32_t)(half & 0x8000u) << 16;
    const uint32_t exponent = (half >> 10) & 0x1fu;
    const uint32_t fraction = half & 0x3ffu;
    if (exponent == 0x1f)
        return float_of(sign | 0x7f800000u | fraction << 13);
    if (exponent == 0) { /* zero or subnormal: fraction * 2^-24, exact in float */
        const float magnitude = (float)fraction * (1.0f / 16777216.0f);
        return sign ? -magnitude : magnitude;
    }
    return float_of(sign | (exponent + 112) << 23 | fraction << 13);
}

uint16_t f32_to_f16(float value)
{
    const uint32_t bits = bits_of(value);
    const uint16_t sign = (uint16_t)((bits >> 16) & 0x8000u);
    const uint32_t magnitude = bits & 0x7fffffffu;
    if (magnitude > 0x7f800000u)
        return (uint16_t)(sign | 0x7e00u | ((magnitude >> 13) & 0x3ffu));
    if (magnitude >= 0x477ff000u) /* 65520 and more round to infinity */
        return (uint16_t)(sign | 0x7c00u);
    if (magnitude < 0x38800000u) {
        /* Below the smallest normal half: adding 0.5 makes the float unit round to multiples of
         * 2^-24. */
        const float shifted = float_of(magnitude) + 0.5f;
        return (uint16_t)(sign | (bits_of(shifted) - 0x3f000000u));
    }
    const uint32_t odd = (magnitude >> 13) & 1u;
    return (uint16_t)(sign | ((magnitude - (112u << 23) + 0xfffu + odd) >> 13));
}

float bf16_to_f32(uint16_t bits) { return float_of((uint32_t)bits << 16); }

uint16_t f32_to_bf16(float value)
{
    const uint32_t bits = bits_of(value);
    if ((bits & 0x7fffffffu) > 0x7f800000u)
        return (uint16_t)((bits >> 16) | 0x40u);
    return (uint16_t)((bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16);
}

float tensor_load(const void *element, int32_t dtype)
{
    if (dtype == CLATTN_DTYPE_F32) {
        float value;
        memcpy(&value, element, sizeof value);
        return value;
    }
    uint16_t bits;
    memcpy(&bits, element, sizeof bits);
    return dtype == CLATTN_DTYPE_F16 ? f16_to_f32(bits) : bf16_to_f32(bits);
}

void tensor_store(void *element, int32_t dtype, float value)
{
    if (dtype == CLATTN_DTYPE_F32) {
        memcpy(element, &value, sizeof value);
        return;
    }
    const uint16_t bits = dtype == CLATTN_DTYPE_F16 ? f32_to_f16(value) : f32_to_bf16(value);
    memcpy(element, &bits, sizeof bits);
}

float dtype_round(float value, int32_t dtype)
{
    if (dtype == CLATTN_DTYPE_F16)
        return f16_to_f32(f32_to_f16(value));
    if (dtype == CLATTN_DTYPE_BF16)
        return bf16_to_f32(f32_to_bf16(value));
    return value;
}
