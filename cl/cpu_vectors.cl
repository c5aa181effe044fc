// cpu_vectors.cl: what the kernels for CPU devices share: vectors of VECTOR_WIDTH floats, the exponential
// function, loads by a type that is known when the program is compiled.

#ifndef VECTOR_WIDTH // float lanes of SCORE_T, the vector type
#define VECTOR_WIDTH 1
#endif

typedef SCORE_T float_v;
typedef SCORE_INT_T int_v;

#define INLINE static inline __attribute__((always_inline))
#define UNROLL _Pragma("unroll")

// LLVM uses 256-bit registers on some CPUs with 512-bit ones, where plain code would lower the clock.
#ifdef __has_attribute
#if __has_attribute(min_vector_width)
#define USE_WHOLE_VECTORS __attribute__((min_vector_width(32 * VECTOR_WIDTH)))
#endif
#endif
#ifndef USE_WHOLE_VECTORS
#define USE_WHOLE_VECTORS
#endif

// ---- Vectors --------------------------------------------------------------------------------------

// The larger one. A NaN in b is passed over, a NaN in a stays.
INLINE float_v larger(float_v a, float_v b) { return a < b ? b : a; }

INLINE int any_lane(int_v condition)
{
    return any(condition ? (int_v)(-1) : (int_v)(0)); // any() looks at signs; true is 1 for scalars
}

INLINE int_v lane_numbers(void)
{
    union { int_v v; int lane[VECTOR_WIDTH]; } numbers;
    UNROLL for (int i = 0; i < VECTOR_WIDTH; i++)
        numbers.lane[i] = i;
    return numbers.v;
}

// 2^x for x <= 0 with relative error 2.2e-7, 0 below -96, NaN for NaN. (Weights that small change no sum, but
// their products with V would be denormal, which processors are slow with.) x = n + f, |f| <= 1/2: the magic
// sum's lowest bits are n + 127, which a shift makes the exponent of 2^n.
INLINE float_v exp2_of_negative(float_v x)
{
    const float_v magic = 12583039.0f; // 1.5 * 2^23 + 127
    union { float_v number; int_v bits; } sum;
    x = x < (float_v)(-96.0f) ? (float_v)(-127.0f) : x;
    sum.number = x + magic;
    const float_v f = x - (sum.number - magic);
    sum.bits = sum.bits << 23;
    float_v power = 1.327647198e-3f * f + 9.675541334e-3f;
    power = power * f + 5.550713274e-2f;
    power = power * f + 2.402211972e-1f;
    power = power * f + 6.931469671e-1f;
    power = power * f + 1.0f;
    return power * sum.number; // a product, so that NaN stays
}

INLINE void transpose4(float4 m[4])
{
    const float4 ab_low = (float4)(m[0].lo, m[1].lo).xzyw, ab_high = (float4)(m[0].hi, m[1].hi).xzyw;
    const float4 cd_low = (float4)(m[2].lo, m[3].lo).xzyw, cd_high = (float4)(m[2].hi, m[3].hi).xzyw;
    m[0] = (float4)(ab_low.lo, cd_low.lo);
    m[1] = (float4)(ab_low.hi, cd_low.hi);
    m[2] = (float4)(ab_high.lo, cd_high.lo);
    m[3] = (float4)(ab_high.hi, cd_high.hi);
}

// ---- Loads ------------------------------------------------------------------------------------------

INLINE float8 load8_of(int type, const __global void *p, long i)
{
    return type == TYPE_F32 ? load8_1(p, i) : type == TYPE_F16 ? load8_2(p, i) : load8_3(p, i);
}

INLINE float4 load4_of(int type, const __global void *p, long i)
{
    return type == TYPE_F32   ? load4_1(p, i)
           : type == TYPE_F16 ? load4_2(p, i)
           : type == TYPE_BF16 ? load4_3(p, i)
                               : load4_4(p, i);
}

INLINE float load1_of(int type, const __global void *p, long i)
{
    return type == TYPE_F32   ? load1_1(p, i)
           : type == TYPE_F16 ? load1_2(p, i)
           : type == TYPE_BF16 ? load1_3(p, i)
                               : load1_4(p, i);
}
