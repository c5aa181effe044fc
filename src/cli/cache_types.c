/* cache_types.c: types of blocks are described by a row of a table each; the kernels have them spelled out.
 */
#include "cache_types.h"

#include "clattn.h"
#include "tensor_convert.h"

#include <float.h>
#include <math.h>
#include <string.h>

#ifdef __clang__
#pragma STDC FP_CONTRACT OFF /* gcc does not fuse in ISO C mode */
#endif

enum { BLOCK = 32 };

/* ---- 8-bit floats ---- */

float f8_to_f32(int32_t dtype, uint8_t bits)
{
    const int is_e4m3 = dtype == CLATTN_DTYPE_F8_E4M3;
    const int fraction_bits = is_e4m3 ? 3 : 2, bias = is_e4m3 ? 7 : 15;
    const int exponent = (bits & 0x7f) >> fraction_bits, fraction = bits & ((1 << fraction_bits) - 1);
    float magnitude;
    if (is_e4m3 ? (bits & 0x7f) == 0x7f : exponent == 31 && fraction != 0)
        magnitude = NAN;
    else if (!is_e4m3 && exponent == 31)
        magnitude = INFINITY;
    else if (exponent == 0)
        magnitude = ldexpf((float)fraction, 1 - bias - fraction_bits);
    else
        magnitude = ldexpf((float)(fraction + (1 << fraction_bits)), exponent - bias - fraction_bits);
    return bits & 0x80 ? -magnitude : magnitude;
}

uint8_t f32_to_f8(int32_t dtype, float value)
{
    const int is_e4m3 = dtype == CLATTN_DTYPE_F8_E4M3;
    const int fraction_bits = is_e4m3 ? 3 : 2, bias = is_e4m3 ? 7 : 15;
    const uint8_t sign = signbit(value) ? 0x80 : 0, largest = is_e4m3 ? 0x7e : 0x7b;
    if (isnan(value))
        return sign | 0x7f;
    if (fabsf(value) >= f8_to_f32(dtype, largest))
        return sign | largest;
    int exponent;
    frexpf(value, &exponent); /* |value| = 0.5 to 1 times 2^exponent */
    const int binade = value == 0 || exponent < 2 - bias ? 1 : exponent - 1 + bias;
    /* In units of the last bit: rounded, it may be one of the next binade, which is the next number anyway.
     */
    const float units = nearbyintf(ldexpf(fabsf(value), bias + fraction_bits - binade));
    return (uint8_t)(sign | (((binade - 1) << fraction_bits) + (int)units));
}

/* ---- Blocks ---- */

typedef struct block_format {
    int bits; /* of a code */
    int has_m;
    int is_table; /* codes number the table's entries */
    int zero;     /* the code of 0, where there is no m */
} block_format;

static const block_format formats[] = {
    [CLATTN_DTYPE_Q8_0] = {8, 0, 0, 0}, [CLATTN_DTYPE_Q4_0] = {4, 0, 0, 8},
    [CLATTN_DTYPE_Q4_1] = {4, 1, 0, 0}, [CLATTN_DTYPE_Q5_0] = {5, 0, 0, 16},
    [CLATTN_DTYPE_Q5_1] = {5, 1, 0, 0}, [CLATTN_DTYPE_IQ4_NL] = {4, 0, 1, 0},
};

static const int iq4_nl[16] = {-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113};

static float load_f16(const uint8_t *p) { return f16_to_f32((uint16_t)(p[0] | p[1] << 8)); }

static void store_f16(uint8_t *p, float value)
{
    const uint16_t bits = f32_to_f16(value);
    p[0] = (uint8_t)bits;
    p[1] = (uint8_t)(bits >> 8);
}

/* Where codes are: byte 2 or 4 on fifth bits, if any, then nibbles or bytes. */
static int get_code(const block_format *f, const uint8_t *block, int i)
{
    const uint8_t *fifth = block + (f->has_m ? 4 : 2), *codes = fifth + (f->bits == 5 ? 4 : 0);
    if (f->bits == 8)
        return (int8_t)codes[i];
    const int nibble = codes[i % 16] >> (i / 16 * 4) & 15;
    return f->bits == 5 ? nibble | (fifth[i / 8] >> i % 8 & 1) << 4 : nibble;
}

static void set_code(const block_format *f, uint8_t *block, int i, int code)
{
    uint8_t *fifth = block + (f->has_m ? 4 : 2), *codes = fifth + (f->bits == 5 ? 4 : 0);
    if (f->bits == 8) {
        codes[i] = (uint8_t)code;
        return;
    }
    codes[i % 16] |= (uint8_t)((code & 15) << (i / 16 * 4));
    if (f->bits == 5)
        fifth[i / 8] |= (uint8_t)(code >> 4 << i % 8);
}

static void decode_block(const block_format *f, const uint8_t *block, float *out)
{
    const float d = load_f16(block), m = f->has_m ? load_f16(block + 2) : 0.0f;
    for (int i = 0; i < BLOCK; i++) {
        const int code = get_code(f, block, i);
        const float product = (float)(f->is_table ? iq4_nl[code] : code - f->zero) * d;
        out[i] = f->has_m ? product + m : product;
    }
}

static float inverse_of(float scale)
{
    const float inverse = 1.0f / scale;
    return isfinite(inverse) ? inverse : 0.0f;
}

static int truncated(float x, int largest)
{
    return !(x > 0.0f) ? 0 : x >= (float)largest ? largest : (int)x;
}

static int nearest_entry(float x)
{
    int n = 0;
    while (n < 15 && x >= 0.5f * (float)(iq4_nl[n] + iq4_nl[n + 1]))
        n++;
    return n;
}

static void encode_block(const block_format *f, const float *x, uint8_t *block)
{
    float extreme = 0.0f, low = x[0], high = x[0]; /* extreme: of largest magnitude */
    for (int i = 0; i < BLOCK; i++) {
        extreme = fabsf(x[i]) > fabsf(extreme) ? x[i] : extreme;
        low = x[i] < low ? x[i] : low;
        high = x[i] > high ? x[i] : high;
    }
    const int largest = (1 << f->bits) - 1;
    float d = f->has_m       ? (high - low) / (float)largest
              : f->is_table  ? extreme / (float)iq4_nl[0]
              : f->bits == 8 ? fabsf(extreme) / 127.0f
                             : extreme / (float)-f->zero;
    const float inverse = inverse_of(d);
    const int exponent = fabsf(extreme) < FLT_MIN ? -127 : ilogbf(extreme);
    float product_sum = 0.0f, square_sum = 0.0f;
    for (int i = 0; i < BLOCK; i++) {
        const float scaled = (f->has_m ? x[i] - low : x[i]) * inverse;
        if (f->is_table) {
            const int n = nearest_entry(scaled);
            const float entry = (float)iq4_nl[n];
            const float part = ldexpf(x[i], -exponent),
                        weighted = part * part * entry; /* errors count by x^2 */
            const float product = weighted * x[i], square = weighted * entry;
            product_sum += product;
            square_sum += square;
            set_code(f, block, i, n);
        } else if (f->bits == 8) {
            set_code(f, block, i, isfinite(scaled) ? (int)roundf(scaled) : 0);
        } else {
            set_code(f, block, i, truncated(scaled + ((float)f->zero + 0.5f), largest));
        }
    }
    if (f->is_table)
        d = square_sum > 0.0f ? product_sum / square_sum : 0.0f;
    store_f16(block, d);
    if (f->has_m)
        store_f16(block + 2, low);
}

/* ---- Rows ---- */

static float one_byte_to_float(int32_t dtype, uint8_t byte)
{
    return dtype == CLATTN_DTYPE_I8 ? (float)(int8_t)byte : f8_to_f32(dtype, byte);
}

static uint8_t float_to_one_byte(int32_t dtype, float x)
{
    if (dtype != CLATTN_DTYPE_I8)
        return f32_to_f8(dtype, x);
    return isnan(x) ? 0 : (uint8_t)(int8_t)nearbyintf(x > 127.0f ? 127.0f : x < -127.0f ? -127.0f : x);
}

void cache_decode_row(int32_t dtype, const void *units, int64_t count, float scale, float *out)
{
    const uint8_t *bytes = units;
    const int64_t elements = dtype_elements(dtype);
    const size_t size = dtype_size(dtype);
    for (int64_t i = 0; i < count; i += elements, bytes += size) {
        if (elements == BLOCK)
            decode_block(&formats[dtype], bytes, out + i);
        else if (size == 1)
            out[i] = one_byte_to_float(dtype, *bytes) * scale;
        else
            out[i] = tensor_load(bytes, dtype);
    }
}

static float row_scale(int32_t dtype, const float *x, int64_t count, float scale)
{
    if (dtype_size(dtype) != 1)
        return 1.0f;
    if (scale != 0.0f || dtype != CLATTN_DTYPE_I8)
        return scale != 0.0f ? scale : 1.0f;
    float largest = 0.0f;
    for (int64_t i = 0; i < count; i++)
        largest = fabsf(x[i]) > largest ? fabsf(x[i]) : largest;
    return largest / 127.0f;
}

void cache_encode_row(int32_t dtype, const float *x, int64_t count, float scale, void *units,
                      float *scale_out)
{
    uint8_t *bytes = units;
    const int64_t elements = dtype_elements(dtype);
    const size_t size = dtype_size(dtype);
    scale = row_scale(dtype, x, count, scale);
    const float inverse = inverse_of(scale);
    if (scale_out != NULL)
        *scale_out = scale;
    for (int64_t i = 0; i < count; i += elements, bytes += size) {
        memset(bytes, 0, size);
        if (elements == BLOCK)
            encode_block(&formats[dtype], x + i, bytes);
        else if (size == 1)
            *bytes = float_to_one_byte(dtype, x[i] * inverse);
        else
            tensor_store(bytes, dtype, x[i]);
    }
}
