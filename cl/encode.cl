// encode.cl: float to the types of convert.cl and cache_types.cl, for kernels that fill caches. Blocks come out
// byte for byte as ggml's reference quantisers make them.
//
// Bytes are only equal where all arithmetic is: products are not fused with sums here (the pragma; ON, the
// language's default, returns at the end), and quotients are rounded correctly, which OpenCL does not promise.

#pragma OPENCL FP_CONTRACT OFF

// Arrays stay in registers only where functions become part of the kernel and loops are unrolled.
#define ENCODE_INLINE static inline __attribute__((always_inline))
#define UNROLLED _Pragma("unroll")

// a / b to the last bit: the quotient's own remainder is exact and corrects it (Markstein 1990).
static inline float exact_quotient(float a, float b)
{
    const float quotient = a / b;
    const float corrected = fma(fma(-quotient, b, a), 1.0f / b, quotient);
    return isfinite(corrected) ? corrected : quotient;
}

// 1 / scale, and 0 for a scale of 0 or so small that there is no such number.
static inline float inverse_of(float scale)
{
    const float inverse = exact_quotient(1.0f, scale);
    return isfinite(inverse) ? inverse : 0.0f;
}

// The scale of a row of I8 whose largest magnitude is `largest`.
static inline float scale_of_i8(float largest) { return exact_quotient(largest, 127.0f); }

// ---- Elements --------------------------------------------------------------------------------------------

// To nearest even, saturated. A number below the smallest normal one is rounded by adding it to a number whose
// last digit is worth the format's last.
static inline uchar f8_bits(float x, int fraction_bits, int bias, uint largest)
{
    const uint sign = as_uint(x) >> 24 & 0x80;
    const uint bits = as_uint(x) & 0x7fffffff;
    const int shift = 23 - fraction_bits;
    const uint anchor = (uint)(127 + 23 + 1 - bias - fraction_bits) << 23;
    const uint smallest_normal = (uint)(128 - bias) << 23;
    const uint rounded = (bits + (1u << (shift - 1)) - 1 + (bits >> shift & 1)) >> shift;
    const uint normal = rounded - ((uint)(127 - bias) << fraction_bits);
    const uint subnormal = as_uint(as_float(bits) + as_float(anchor)) - anchor;
    const uint magnitude = min(bits < smallest_normal ? subnormal : normal, largest);
    return (uchar)(sign | (bits > 0x7f800000 ? 0x7f : magnitude));
}

static inline void store1_5(__global char *p, long i, float x)
{
    p[i] = (char)convert_int_rte(clamp(x, -127.0f, 127.0f));
}
static inline void store1_6(__global uchar *p, long i, float x) { p[i] = f8_bits(x, 3, 7, 0x7e); }
static inline void store1_7(__global uchar *p, long i, float x) { p[i] = f8_bits(x, 2, 15, 0x7b); }

// ---- Blocks ----------------------------------------------------------------------------------------------

// The number of largest magnitude, the first one if there are several.
ENCODE_INLINE float extreme_of(const float *x)
{
    float extreme = 0.0f;
    UNROLLED for (int i = 0; i < BLOCK_ELEMENTS; i++)
        extreme = fabs(x[i]) > fabs(extreme) ? x[i] : extreme;
    return extreme;
}

// The lowest and the highest number.
ENCODE_INLINE float2 range_of(const float *x)
{
    float low = x[0], high = x[0];
    UNROLLED for (int i = 1; i < BLOCK_ELEMENTS; i++) {
        const float number = x[i];
        low = number < low ? number : low;
        high = number > high ? number : high;
    }
    return (float2)(low, high);
}

ENCODE_INLINE void store_f16(__global ushort *p, float x) { vstore_half_rte(x, 0, (__global half *)p); }

// (x - base) * inverse + shift, truncated. (int) of what is no number, or far outside, gives no meaning, but must
// stay within the bits of a code.
ENCODE_INLINE void codes_of(uchar codes[BLOCK_ELEMENTS], const float *x, float base, float inverse, float shift,
                            int largest)
{
    UNROLLED for (int i = 0; i < BLOCK_ELEMENTS; i++)
        codes[i] = (uchar)clamp((int)((x[i] - base) * inverse + shift), 0, largest);
}

ENCODE_INLINE void store_nibbles(__global ushort *p, const uchar codes[BLOCK_ELEMENTS])
{
    UNROLLED for (int i = 0; i < 8; i++)
        p[i] = (ushort)((codes[2 * i] & 15) | (codes[2 * i + 16] & 15) << 4 | (codes[2 * i + 1] & 15) << 8 |
                        (codes[2 * i + 17] & 15) << 12);
}

ENCODE_INLINE void store_fifth(__global ushort *p, const uchar codes[BLOCK_ELEMENTS])
{
    uint bits = 0;
    UNROLLED for (int i = 0; i < BLOCK_ELEMENTS; i++)
        bits |= (uint)(codes[i] >> 4) << i;
    p[0] = (ushort)bits;
    p[1] = (ushort)(bits >> 16);
}

ENCODE_INLINE void encode_8(__global storage_8 *b, const float *x)
{
    const float d = exact_quotient(fabs(extreme_of(x)), 127.0f), inverse = inverse_of(d);
    store_f16(&b->d, d);
    UNROLLED for (int i = 0; i < 16; i++) {
        const int low = (int)round(x[2 * i] * inverse), high = (int)round(x[2 * i + 1] * inverse);
        b->codes[i] = (ushort)((low & 255) | (high & 255) << 8);
    }
}

ENCODE_INLINE void encode_9(__global storage_9 *b, const float *x)
{
    uchar codes[BLOCK_ELEMENTS];
    const float d = extreme_of(x) * -0.125f;
    codes_of(codes, x, 0.0f, inverse_of(d), 8.5f, 15);
    store_f16(&b->d, d);
    store_nibbles(b->codes, codes);
}

ENCODE_INLINE void encode_10(__global storage_10 *b, const float *x)
{
    uchar codes[BLOCK_ELEMENTS];
    const float2 range = range_of(x);
    const float d = exact_quotient(range.y - range.x, 15.0f);
    codes_of(codes, x, range.x, inverse_of(d), 0.5f, 15);
    store_f16(&b->d, d);
    store_f16(&b->m, range.x);
    store_nibbles(b->codes, codes);
}

ENCODE_INLINE void encode_11(__global storage_11 *b, const float *x)
{
    uchar codes[BLOCK_ELEMENTS];
    const float d = extreme_of(x) * -0.0625f;
    codes_of(codes, x, 0.0f, inverse_of(d), 16.5f, 31);
    store_f16(&b->d, d);
    store_fifth(b->fifth, codes);
    store_nibbles(b->codes, codes);
}

ENCODE_INLINE void encode_12(__global storage_12 *b, const float *x)
{
    uchar codes[BLOCK_ELEMENTS];
    const float2 range = range_of(x);
    const float d = exact_quotient(range.y - range.x, 31.0f);
    codes_of(codes, x, range.x, inverse_of(d), 0.5f, 31);
    store_f16(&b->d, d);
    store_f16(&b->m, range.x);
    store_fifth(b->fifth, codes);
    store_nibbles(b->codes, codes);
}

// Which entry of IQ4_NL's table is nearest, the upper one of two: how many of the points half-way between
// neighbours are not above x.
ENCODE_INLINE int nearest_iq4_nl(float x)
{
    return (x >= -115.5f) + (x >= -93.5f) + (x >= -74.0f) + (x >= -57.0f) + (x >= -42.0f) + (x >= -28.5f) +
           (x >= -16.0f) + (x >= -4.5f) + (x >= 7.0f) + (x >= 19.0f) + (x >= 31.5f) + (x >= 45.5f) +
           (x >= 61.0f) + (x >= 79.0f) + (x >= 101.0f);
}

// The extreme is given the table's first entry, -127; with all entries chosen, d is what fits them best, where
// errors count by x^2: sum(w x q) / sum(w q^2) makes sum(w (x - d q)^2) least. Powers of two keep x^2 finite and
// change no bit.
ENCODE_INLINE void encode_13(__global storage_13 *b, const float *x)
{
    uchar codes[BLOCK_ELEMENTS];
    const float extreme = extreme_of(x), inverse = inverse_of(exact_quotient(extreme, -127.0f));
    const float unit = as_float(0x7f000000 - (as_uint(extreme) & 0x7f800000)); // its exponent, negated
    float product = 0.0f, square = 0.0f;
    UNROLLED for (int i = 0; i < BLOCK_ELEMENTS; i++) {
        const int n = nearest_iq4_nl(x[i] * inverse);
        const float entry = (float)iq4_nl_entries4((int4)(n)).x;
        const float part = x[i] * unit, weighted = part * part * entry;
        product += weighted * x[i];
        square += weighted * entry;
        codes[i] = (uchar)n;
    }
    store_f16(&b->d, square > 0.0f ? exact_quotient(product, square) : 0.0f);
    store_nibbles(b->codes, codes);
}

// ---- Units -----------------------------------------------------------------------------------------------

// STORE_UNIT(type)(p, row, column, count, x, inverse_scale): elements column .. column + count - 1 of the row
// that begins at unit `row`. Blocks: one, `column` a multiple of 32 and count 32. I8 and F8 are multiplied by
// inverse_scale first; the others take no notice of it.
#define ELEMENT_UNITS(type, FACTOR)                                                                       \
    ENCODE_INLINE void store_unit_##type(__global storage_##type *p, long row, int column, int count,     \
                                         const float *x, float inverse_scale)                             \
    {                                                                                                     \
        for (int i = 0; i < count; i++)                                                                   \
            store1_##type(p, row + column + i, FACTOR(x[i], inverse_scale));                              \
    }
#define UNSCALED(x, inverse_scale) (x)
#define SCALED(x, inverse_scale) ((x) * (inverse_scale))
ELEMENT_UNITS(1, UNSCALED)
ELEMENT_UNITS(2, UNSCALED)
ELEMENT_UNITS(3, UNSCALED)
ELEMENT_UNITS(5, SCALED)
ELEMENT_UNITS(6, SCALED)
ELEMENT_UNITS(7, SCALED)

#define BLOCK_UNITS(type)                                                                                 \
    ENCODE_INLINE void store_unit_##type(__global storage_##type *p, long row, int column, int count,     \
                                         const float *x, float inverse_scale)                             \
    {                                                                                                     \
        encode_##type(p + row + column / BLOCK_ELEMENTS, x);                                              \
    }
BLOCK_UNITS(8)
BLOCK_UNITS(9)
BLOCK_UNITS(10)
BLOCK_UNITS(11)
BLOCK_UNITS(12)
BLOCK_UNITS(13)

#define STORE_UNIT(type) PASTE(store_unit_, type)

#pragma OPENCL FP_CONTRACT ON
