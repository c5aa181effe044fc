// cache_types.cl: the types that only caches have, to float: bytes that a scale of the call's multiplies, and
// ggml's blocks of 32 elements. What rows and quads are says convert.cl.
//
// A quad of any of them is a uint2. x: four bytes, which are signed codes or 8-bit floats. y: what multiplies
// them, the call's scale as a float, or a block's d (f16) in the low half and its m in the high one. Nibbles,
// fifth bits and tables are resolved once, when a quad is loaded; unpacking it is codes * d + m. Its product is
// exact, as d has 11 bits and codes have at most 8.

typedef uint2 quad_5;
typedef uint2 quad_6;
typedef uint2 quad_7;
typedef uint2 quad_8;
typedef uint2 quad_9;
typedef uint2 quad_10;
typedef uint2 quad_11;
typedef uint2 quad_12;
typedef uint2 quad_13;

static inline float f16_value(ushort bits) { return vload_half(0, (const __private half *)&bits); }

// Likewise in all lanes. (PoCL 3.1, seen 2026-11-30, converts vectors by the processor's own instruction and single
// numbers by integer code.)
#define F16_LANES(N)                                                                                      \
    static inline float##N f16_lanes##N(ushort bits)                                                      \
    {                                                                                                     \
        const ushort##N all = bits;                                                                       \
        return vload_half##N(0, (const __private half *)&all);                                            \
    }
F16_LANES(8)
F16_LANES(16)

// ---- One byte: I8, F8 ------------------------------------------------------------------------------------
//
// 8-bit floats become f16, whose conversion is exact on every device, with subnormals, inf and NaN. An E5M2 is
// an f16's upper byte. An E4M3 has one exponent bit less: moved right by one, it is an f16 that is smaller by
// 2^8. Its NaN, all ones, would be a number: but only there does one more at the end carry into the top bit of
// f16's exponent, which set makes that a NaN too.

#define E4M3_SCALE 256.0f

#define E4M3_TO_F16(T)                                                                                    \
    static inline T f16_of_e4m3_##T(T upper_bytes)                                                        \
    {                                                                                                     \
        const T magnitude = (upper_bytes & (T)(0x7f007f00)) >> 1;                                         \
        return (upper_bytes & (T)(0x80008000)) | magnitude | ((magnitude + (T)(0x00800080)) & (T)(0x40004000)); \
    }
E4M3_TO_F16(uint)
E4M3_TO_F16(uint2)
E4M3_TO_F16(uint4)
E4M3_TO_F16(uint8)

// Four bytes, each to the upper half of 16 bits.
static inline uint2 upper_bytes_of(uint bytes)
{
    return (uint2)((bytes & 0xff) << 8 | (bytes & 0xff00) << 16, (bytes & 0xff0000) >> 8 | (bytes & 0xff000000));
}

static inline float row1_5(const __global char *p, long row, int column) { return p[row + column]; }
static inline float row1_6(const __global uchar *p, long row, int column)
{
    return f16_value((ushort)f16_of_e4m3_uint((uint)p[row + column] << 8)) * E4M3_SCALE;
}
static inline float row1_7(const __global uchar *p, long row, int column)
{
    return f16_value((ushort)(p[row + column] << 8));
}

#define BYTE_ROWS(N, HALF_N)                                                                              \
    static inline float##N row##N##_5(const __global char *p, long row, int column)                       \
    {                                                                                                     \
        return convert_float##N(vload##N(0, p + row + column));                                           \
    }                                                                                                     \
    static inline float##N row##N##_6(const __global uchar *p, long row, int column)                      \
    {                                                                                                     \
        const uint##HALF_N pairs = as_uint##HALF_N(convert_ushort##N(vload##N(0, p + row + column)) << (ushort)8); \
        const uint##HALF_N f16 = f16_of_e4m3_uint##HALF_N(pairs);                                         \
        return vload_half##N(0, (const __private half *)&f16) * E4M3_SCALE;                               \
    }                                                                                                     \
    static inline float##N row##N##_7(const __global uchar *p, long row, int column)                      \
    {                                                                                                     \
        const ushort##N f16 = convert_ushort##N(vload##N(0, p + row + column)) << (ushort)8;              \
        return vload_half##N(0, (const __private half *)&f16);                                            \
    }
BYTE_ROWS(8, 4)
BYTE_ROWS(16, 8)

static inline uint2 scaled_quad_5(uint2 q, float scale) { return (uint2)(q.x, as_uint(scale)); }
static inline uint2 scaled_quad_6(uint2 q, float scale) { return scaled_quad_5(q, scale); }
static inline uint2 scaled_quad_7(uint2 q, float scale) { return scaled_quad_5(q, scale); }

static inline uint2 load_quad_6(const __global uchar *p, int column)
{
    return (uint2)(*(const __global uint *)(p + column), as_uint(1.0f));
}
static inline uint2 load_quad_5(const __global char *p, int column)
{
    return load_quad_6((const __global uchar *)p, column);
}
static inline uint2 load_quad_7(const __global uchar *p, int column) { return load_quad_6(p, column); }

static inline uchar byte_or_zero(const __global uchar *p, int i, int end)
{
    const uchar x = p[min(i, end - 1)];
    return i < end ? x : (uchar)0;
}

static inline uint2 gather_quad_6(const __global uchar *p, int i, int end)
{
    return (uint2)(as_uint((uchar4)(byte_or_zero(p, i, end), byte_or_zero(p, i + 1, end),
                                    byte_or_zero(p, i + 2, end), byte_or_zero(p, i + 3, end))),
                   as_uint(1.0f));
}
static inline uint2 gather_quad_5(const __global char *p, int i, int end)
{
    return gather_quad_6((const __global uchar *)p, i, end);
}
static inline uint2 gather_quad_7(const __global uchar *p, int i, int end) { return gather_quad_6(p, i, end); }

static inline float4 unpack_quad_5(uint2 q) { return convert_float4(as_char4(q.x)) * as_float(q.y); }
static inline float4 unpack_quad_6(uint2 q)
{
    const uint2 f16 = f16_of_e4m3_uint2(upper_bytes_of(q.x));
    return vload_half4(0, (const __private half *)&f16) * E4M3_SCALE * as_float(q.y);
}
static inline float4 unpack_quad_7(uint2 q)
{
    const uint2 f16 = upper_bytes_of(q.x);
    return vload_half4(0, (const __private half *)&f16) * as_float(q.y);
}

// ---- Blocks ----------------------------------------------------------------------------------------------
//
// A type of blocks is how codes are found, four as bytes of a uint and 8 or 16 as ints, and what m is.

// The number of codes from i on within a block's bytes, or nibbles, or fifth bits.
static inline uint codes4_of_bytes(const __global ushort *codes, int i)
{
    return codes[i / 2] | (uint)codes[i / 2 + 1] << 16;
}

static inline uint codes4_of_nibbles(const __global ushort *codes, int i)
{
    const uint bytes = codes4_of_bytes(codes, i % 16);
    return (i < 16 ? bytes : bytes >> 4) & 0x0f0f0f0f;
}

static inline uint bits_of_fifth(const __global ushort *fifth) { return fifth[0] | (uint)fifth[1] << 16; }

// The product puts bit n of four to place 8 n (and elsewhere, without a carry).
static inline uint codes4_of_fifth(const __global ushort *fifth, int i)
{
    return (((bits_of_fifth(fifth) >> i & 15) * 0x00204081) & 0x01010101) << 4;
}

// Each byte less n (1 to 128), where no byte of `codes` is above 127.
static inline uint bytes_less(uint codes, uint n)
{
    return ((codes | 0x80808080) - n * 0x01010101) ^ 0x80808080;
}

// The table of IQ4_NL, four entries a number, from its first on. One is found by shifts, which is as fast as
// memory where lanes look up different entries.
#define IQ4_NL_0 0xbfad9881 // -127 -104  -83  -65
#define IQ4_NL_1 0xf6eaddcf //  -49  -35  -22  -10
#define IQ4_NL_2 0x26190d01 //    1   13   25   38
#define IQ4_NL_3 0x71594535 //   53   69   89  113

#define IQ4_NL_ENTRIES(N)                                                                                 \
    static inline int##N iq4_nl_entries##N(int##N n)                                                      \
    {                                                                                                     \
        const int##N low = (n & 4) == 0 ? (int##N)(IQ4_NL_0) : (int##N)(IQ4_NL_1);                        \
        const int##N high = (n & 4) == 0 ? (int##N)(IQ4_NL_2) : (int##N)(IQ4_NL_3);                       \
        return ((n < 8 ? low : high) << (24 - ((n & 3) << 3))) >> 24;                                     \
    }
IQ4_NL_ENTRIES(4)
IQ4_NL_ENTRIES(8)
IQ4_NL_ENTRIES(16)

static inline uint codes4_8(const __global storage_8 *b, int i) { return codes4_of_bytes(b->codes, i); }
static inline uint codes4_9(const __global storage_9 *b, int i)
{
    return bytes_less(codes4_of_nibbles(b->codes, i), 8);
}
static inline uint codes4_10(const __global storage_10 *b, int i) { return codes4_of_nibbles(b->codes, i); }
static inline uint codes4_11(const __global storage_11 *b, int i)
{
    return bytes_less(codes4_of_nibbles(b->codes, i) | codes4_of_fifth(b->fifth, i), 16);
}
static inline uint codes4_12(const __global storage_12 *b, int i)
{
    return codes4_of_nibbles(b->codes, i) | codes4_of_fifth(b->fifth, i);
}
static inline uint codes4_13(const __global storage_13 *b, int i)
{
    const uchar4 n = as_uchar4(codes4_of_nibbles(b->codes, i));
    return as_uint(convert_char4(iq4_nl_entries4(convert_int4(n))));
}

#define LANES8 (int8)(0, 1, 2, 3, 4, 5, 6, 7)
#define LANES16 (int16)(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15)

#define BLOCK_CODES(N)                                                                                    \
    static inline int##N nibbles##N(const __global ushort *codes, int i)                                  \
    {                                                                                                     \
        const int##N bytes = convert_int##N(vload##N(0, (const __global uchar *)codes + i % 16));         \
        return (i < 16 ? bytes : bytes >> 4) & 15;                                                        \
    }                                                                                                     \
    static inline int##N fifth##N(const __global ushort *fifth, int i)                                    \
    {                                                                                                     \
        return ((int##N)(bits_of_fifth(fifth) >> i) >> LANES##N & 1) << 4;                                \
    }                                                                                                     \
    static inline int##N codes##N##_8(const __global storage_8 *b, int i)                                 \
    {                                                                                                     \
        return convert_int##N(vload##N(0, (const __global char *)b->codes + i));                          \
    }                                                                                                     \
    static inline int##N codes##N##_9(const __global storage_9 *b, int i) { return nibbles##N(b->codes, i) - 8; } \
    static inline int##N codes##N##_10(const __global storage_10 *b, int i) { return nibbles##N(b->codes, i); } \
    static inline int##N codes##N##_11(const __global storage_11 *b, int i)                               \
    {                                                                                                     \
        return (nibbles##N(b->codes, i) | fifth##N(b->fifth, i)) - 16;                                    \
    }                                                                                                     \
    static inline int##N codes##N##_12(const __global storage_12 *b, int i)                               \
    {                                                                                                     \
        return nibbles##N(b->codes, i) | fifth##N(b->fifth, i);                                           \
    }                                                                                                     \
    static inline int##N codes##N##_13(const __global storage_13 *b, int i)                               \
    {                                                                                                     \
        return iq4_nl_entries##N(nibbles##N(b->codes, i));                                                \
    }
BLOCK_CODES(8)
BLOCK_CODES(16)

// With an m or without.
#define D_0(b) (b)->d
#define D_1(b) ((b)->d | (uint)(b)->m << 16)
#define ADD_0(product, m) (product)
#define ADD_1(product, m) ((product) + (m))

#define BLOCK_ROWS(type, HAS_M, N)                                                                        \
    static inline float##N row##N##_##type(const __global storage_##type *p, long row, int column)        \
    {                                                                                                     \
        const __global storage_##type *b = p + row + column / BLOCK_ELEMENTS;                             \
        const float##N codes = convert_float##N(codes##N##_##type(b, column % BLOCK_ELEMENTS));           \
        return ADD_##HAS_M(codes * f16_lanes##N(b->d), f16_lanes##N(b->m));                                 \
    }

#define BLOCK_TYPE(type, HAS_M)                                                                           \
    BLOCK_ROWS(type, HAS_M, 8)                                                                            \
    BLOCK_ROWS(type, HAS_M, 16)                                                                           \
    static inline uint2 scaled_quad_##type(uint2 q, float scale) { return q; }                            \
    static inline uint2 load_quad_##type(const __global storage_##type *p, int column)                    \
    {                                                                                                     \
        const __global storage_##type *b = p + column / BLOCK_ELEMENTS;                                   \
        return (uint2)(codes4_##type(b, column % BLOCK_ELEMENTS), D_##HAS_M(b));                          \
    }                                                                                                     \
    static inline uint2 gather_quad_##type(const __global storage_##type *p, int column, int end)         \
    {                                                                                                     \
        const uint2 q = load_quad_##type(p, min(column, end - 4));                                        \
        return column < end ? q : (uint2)(0);                                                             \
    }                                                                                                     \
    static inline float4 unpack_quad_##type(uint2 q)                                                      \
    {                                                                                                     \
        const float4 codes = convert_float4(as_char4(q.x));                                               \
        return ADD_##HAS_M(codes * f16_value((ushort)q.y), f16_value((ushort)(q.y >> 16)));               \
    }                                                                                                     \
    static inline float row1_##type(const __global storage_##type *p, long row, int column)               \
    {                                                                                                     \
        const float4 four = unpack_quad_##type(load_quad_##type(p + row, column & ~3));                   \
        const float2 two = column & 2 ? four.hi : four.lo;                                                \
        return column & 1 ? two.y : two.x;                                                                \
    }
BLOCK_TYPE(8, 0)
BLOCK_TYPE(9, 0)
BLOCK_TYPE(10, 1)
BLOCK_TYPE(11, 0)
BLOCK_TYPE(12, 1)
BLOCK_TYPE(13, 0)
