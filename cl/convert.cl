// convert.cl: plain storage types to and from float. f16 goes through vload_half/vstore_half and bf16 through
// its bits, so that no device extension is needed. What caches hold besides is in cache_types.cl.

#define TYPE_F32 1 // as CLATTN_DTYPE_*
#define TYPE_F16 2
#define TYPE_BF16 3
#define TYPE_BOOL 4 // a byte; as float 0 or 1
#define TYPE_I8 5   // of k and v only, from here on
#define TYPE_F8_E4M3 6
#define TYPE_F8_E5M2 7
#define TYPE_Q8_0 8
#define TYPE_Q4_0 9
#define TYPE_Q4_1 10
#define TYPE_Q5_0 11
#define TYPE_Q5_1 12
#define TYPE_IQ4_NL 13

#define IS_SCALED(type) ((type) >= TYPE_I8 && (type) <= TYPE_F8_E5M2) // by a number of the call's
#define IS_BLOCK(type) ((type) >= TYPE_Q8_0)
// A buffer's address `lead` bytes on, where blocks begin; they need not lie at multiples of their size.
#define LED(type, buffer, lead) ((const __global uchar *)(buffer) + (IS_BLOCK(type) ? (lead) : 0))

#ifndef Q_TYPE // storage type of q; likewise k, v, o and bias
#define Q_TYPE TYPE_F32
#endif
#ifndef K_TYPE
#define K_TYPE TYPE_F32
#endif
#ifndef V_TYPE
#define V_TYPE TYPE_F32
#endif
#ifndef O_TYPE
#define O_TYPE TYPE_F32
#endif
#ifndef BIAS_TYPE
#define BIAS_TYPE TYPE_F32
#endif

// storage_N: the unit of TYPE_* N, which strides count: an element, or a block of BLOCK_ELEMENTS. Blocks are
// aligned to 2 bytes, and so is all that they hold.
#define BLOCK_ELEMENTS 32
typedef float storage_1;
typedef half storage_2;
typedef ushort storage_3;
typedef char storage_5;
typedef uchar storage_6;
typedef uchar storage_7;
typedef struct block_q8_0 {
    ushort d; // f16, as all d and m
    ushort codes[16];
} storage_8;
typedef struct block_q4_0 {
    ushort d;
    ushort codes[8]; // byte j: element j in the low nibble, element j + 16 in the high one
} storage_9;
typedef struct block_q4_1 {
    ushort d;
    ushort m;
    ushort codes[8];
} storage_10;
typedef struct block_q5_0 {
    ushort d;
    ushort fifth[2]; // bit j: the fifth of element j
    ushort codes[8];
} storage_11;
typedef struct block_q5_1 {
    ushort d;
    ushort m;
    ushort fifth[2];
    ushort codes[8];
} storage_12;
typedef storage_9 storage_13;

#define PASTE_(a, b) a##b
#define PASTE(a, b) PASTE_(a, b)
#define STORAGE(type) PASTE(storage_, type)

typedef STORAGE(Q_TYPE) q_t;
typedef STORAGE(K_TYPE) k_t;
typedef STORAGE(V_TYPE) v_t;
typedef STORAGE(O_TYPE) o_t;
typedef STORAGE(BIAS_TYPE) bias_t;

// load1(p, i): element i as float. load4: elements i .. i+3, at any alignment of the element's own size;
// load8 likewise, and store4.
static inline float load1_1(const __global float *p, long i) { return p[i]; }
static inline float load1_2(const __global half *p, long i) { return vload_half(0, p + i); }
static inline float load1_3(const __global ushort *p, long i) { return as_float((uint)p[i] << 16); }

static inline float load1_4(const __global uchar *p, long i) { return p[i] != 0 ? 1.0f : 0.0f; }

static inline float4 load4_1(const __global float *p, long i) { return vload4(0, p + i); }
static inline float4 load4_2(const __global half *p, long i) { return vload_half4(0, p + i); }
static inline float4 load4_3(const __global ushort *p, long i)
{
    return as_float4(convert_uint4(vload4(0, p + i)) << 16);
}

static inline float4 load4_4(const __global uchar *p, long i)
{
    return convert_float4(min(vload4(0, p + i), (uchar4)(1)));
}

static inline float8 load8_1(const __global float *p, long i) { return vload8(0, p + i); }
static inline float8 load8_2(const __global half *p, long i) { return vload_half8(0, p + i); }
static inline float8 load8_3(const __global ushort *p, long i)
{
    return as_float8(convert_uint8(vload8(0, p + i)) << 16);
}

// Round to nearest even; NaN stays NaN (the rounding carry would turn some payloads into infinity).
static inline ushort bf16_bits(float x)
{
    const uint bits = as_uint(x);
    return isnan(x) ? (ushort)((bits >> 16) | 0x40) : (ushort)((bits + 0x7fff + ((bits >> 16) & 1)) >> 16);
}

static inline void store1_1(__global float *p, long i, float x) { p[i] = x; }
static inline void store1_2(__global half *p, long i, float x) { vstore_half_rte(x, 0, p + i); }
static inline void store1_3(__global ushort *p, long i, float x) { p[i] = bf16_bits(x); }

static inline void store4_1(__global float *p, long i, float4 x) { vstore4(x, 0, p + i); }
static inline void store4_2(__global half *p, long i, float4 x) { vstore_half4_rte(x, 0, p + i); }
static inline void store4_3(__global ushort *p, long i, float4 x)
{
    vstore4((ushort4)(bf16_bits(x.x), bf16_bits(x.y), bf16_bits(x.z), bf16_bits(x.w)), 0, p + i);
}

#define LOAD1(type) PASTE(load1_, type)
#define LOAD4(type) PASTE(load4_, type)
#define LOAD8(type) PASTE(load8_, type)
#define STORE1(type) PASTE(store1_, type)
#define STORE4(type) PASTE(store4_, type)

// A row of a tensor begins at unit `row` of p. ROW1: its element `column`; ROW8, ROW16: that and the 7 or 15
// behind it, `column` being a multiple of 8 or 16. Without the call's scale.
static inline float row1_1(const __global float *p, long row, int column) { return p[row + column]; }
static inline float row1_2(const __global half *p, long row, int column) { return load1_2(p, row + column); }
static inline float row1_3(const __global ushort *p, long row, int column) { return load1_3(p, row + column); }

#define PLAIN_ROWS(N)                                                                                    \
    static inline float##N row##N##_1(const __global float *p, long row, int column)                     \
    {                                                                                                    \
        return vload##N(0, p + row + column);                                                            \
    }                                                                                                    \
    static inline float##N row##N##_2(const __global half *p, long row, int column)                      \
    {                                                                                                    \
        return vload_half##N(0, p + row + column);                                                       \
    }                                                                                                    \
    static inline float##N row##N##_3(const __global ushort *p, long row, int column)                    \
    {                                                                                                    \
        return as_float##N(convert_uint##N(vload##N(0, p + row + column)) << 16);                        \
    }
PLAIN_ROWS(8)
PLAIN_ROWS(16)

#define ROW1(type) PASTE(row1_, type)
#define ROW8(type) PASTE(row8_, type)
#define ROW16(type) PASTE(row16_, type)

// A quad: four neighbouring elements, nearly as they are stored, so that copying them costs registers and
// local memory by their own size. p is the row's first unit, `column` a multiple of 4. load_quad may ask for
// alignment to four elements of the type (blocks: none beyond their own); gather_quad needs none and does not
// read at or after column `end` (>= 1), where it gives zeros. scaled_quad: the quad with the call's scale, where
// its type takes one. A quad of zero bits is four zeros.
typedef float4 quad_1;
typedef uint2 quad_2;
typedef uint2 quad_3;

static inline quad_1 load_quad_1(const __global float *p, int column)
{
    return *(const __global quad_1 *)(p + column);
}
static inline quad_2 load_quad_2(const __global half *p, int column)
{
    return *(const __global quad_2 *)(p + column);
}
static inline quad_3 load_quad_3(const __global ushort *p, int column)
{
    return *(const __global quad_3 *)(p + column);
}

static inline float float_or_zero(const __global float *p, int i, int end)
{
    const float x = p[min(i, end - 1)];
    return i < end ? x : 0.0f;
}

static inline ushort ushort_or_zero(const __global ushort *p, int i, int end)
{
    const ushort x = p[min(i, end - 1)];
    return i < end ? x : (ushort)0;
}

static inline quad_1 gather_quad_1(const __global float *p, int i, int end)
{
    return (float4)(float_or_zero(p, i, end), float_or_zero(p, i + 1, end),
                    float_or_zero(p, i + 2, end), float_or_zero(p, i + 3, end));
}
static inline quad_3 gather_quad_3(const __global ushort *p, int i, int end)
{
    return as_uint2((ushort4)(ushort_or_zero(p, i, end), ushort_or_zero(p, i + 1, end),
                              ushort_or_zero(p, i + 2, end), ushort_or_zero(p, i + 3, end)));
}
static inline quad_2 gather_quad_2(const __global half *p, int i, int end)
{
    return gather_quad_3((const __global ushort *)p, i, end);
}

static inline float4 unpack_quad_1(quad_1 q) { return q; }
static inline float4 unpack_quad_2(quad_2 q) { return vload_half4(0, (const __private half *)&q); }
static inline float4 unpack_quad_3(quad_3 q)
{
    return as_float4((uint4)(q.x << 16, q.x & 0xffff0000u, q.y << 16, q.y & 0xffff0000u));
}

static inline quad_1 scaled_quad_1(quad_1 q, float scale) { return q; }
static inline quad_2 scaled_quad_2(quad_2 q, float scale) { return q; }
static inline quad_3 scaled_quad_3(quad_3 q, float scale) { return q; }

#define QUAD(type) PASTE(quad_, type)
#define LOAD_QUAD(type) PASTE(load_quad_, type)
#define GATHER_QUAD(type) PASTE(gather_quad_, type)
#define SCALED_QUAD(type) PASTE(scaled_quad_, type)
#define UNPACK_QUAD(type) PASTE(unpack_quad_, type)
