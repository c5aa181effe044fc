/* tensor_convert.c: storage types on the host. */
#include "tensor_convert.h"

#include "clattn.h"

#include <string.h>

typedef struct type_entry {
    const char *name;
    const char *safetensors_name;
    uint8_t size;
    uint8_t elements;
} type_entry;

static const type_entry types[] = {
    [CLATTN_DTYPE_DEFAULT] = {"?", "", 2, 1},
    [CLATTN_DTYPE_F32] = {"f32", "F32", 4, 1},
    [CLATTN_DTYPE_F16] = {"f16", "F16", 2, 1},
    [CLATTN_DTYPE_BF16] = {"bf16", "BF16", 2, 1},
    [CLATTN_DTYPE_I8] = {"i8", "I8", 1, 1},
    [CLATTN_DTYPE_F8_E4M3] = {"f8_e4m3", "F8_E4M3", 1, 1},
    [CLATTN_DTYPE_F8_E5M2] = {"f8_e5m2", "F8_E5M2", 1, 1},
    [CLATTN_DTYPE_Q8_0] = {"q8_0", "U8", 34, 32},
    [CLATTN_DTYPE_Q4_0] = {"q4_0", "U8", 18, 32},
    [CLATTN_DTYPE_Q4_1] = {"q4_1", "U8", 20, 32},
    [CLATTN_DTYPE_Q5_0] = {"q5_0", "U8", 22, 32},
    [CLATTN_DTYPE_Q5_1] = {"q5_1", "U8", 24, 32},
    [CLATTN_DTYPE_IQ4_NL] = {"iq4_nl", "U8", 18, 32},
};
enum { TYPES = sizeof types / sizeof types[0] };

static const type_entry *entry_of(int32_t dtype)
{
    const int known = dtype > 0 && dtype < TYPES && types[dtype].name;
    return &types[known ? dtype : CLATTN_DTYPE_DEFAULT];
}

size_t dtype_size(int32_t dtype) { return entry_of(dtype)->size; }

int32_t dtype_elements(int32_t dtype) { return entry_of(dtype)->elements; }

int dtype_is_plain(int32_t dtype) { return dtype >= CLATTN_DTYPE_F32 && dtype <= CLATTN_DTYPE_BF16; }

const char *dtype_name(int32_t dtype) { return entry_of(dtype)->name; }

int32_t dtype_from_name(const char *name)
{
    for (int32_t dtype = CLATTN_DTYPE_F32; dtype < TYPES; dtype++)
        if (types[dtype].name && strcmp(name, types[dtype].name) == 0)
            return dtype;
    return 0;
}

const char *dtype_safetensors_name(int32_t dtype) { return entry_of(dtype)->safetensors_name; }

int32_t dtype_from_safetensors_name(const char *name)
{
    for (int32_t dtype = CLATTN_DTYPE_F32; dtype < TYPES; dtype++)
        if (types[dtype].name && types[dtype].elements == 1 &&
            strcmp(name, types[dtype].safetensors_name) == 0)
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
