// ceiling.cl: what the device can do at the most: fused multiply-adds, copying, reading.

#ifndef CHAINS // independent float16 accumulators per work-item: 6 or 12
#define CHAINS 6
#endif

// `steps` times CHAINS * 16 multiply-adds per work-item. CPUs through PoCL need wide vectors and enough
// independent chains to fill the pipelines, but no more than there are registers; GPUs take either.
__kernel void fma_rate(__global float *out, int steps, float factor, float addend)
{
    const float16 f = factor, d = addend;
    const float16 start = (float)get_global_id(0);
    float16 a0 = start, a1 = start + 1.0f, a2 = start + 2.0f, a3 = start + 3.0f, a4 = start + 4.0f,
            a5 = start + 5.0f;
#if CHAINS == 12
    float16 b0 = start, b1 = start + 1.5f, b2 = start + 2.5f, b3 = start + 3.5f, b4 = start + 4.5f,
            b5 = start + 5.5f;
#endif
    for (int i = 0; i < steps; i++) {
        a0 = fma(a0, f, d);
        a1 = fma(a1, f, d);
        a2 = fma(a2, f, d);
        a3 = fma(a3, f, d);
        a4 = fma(a4, f, d);
        a5 = fma(a5, f, d);
#if CHAINS == 12
        b0 = fma(b0, f, d);
        b1 = fma(b1, f, d);
        b2 = fma(b2, f, d);
        b3 = fma(b3, f, d);
        b4 = fma(b4, f, d);
        b5 = fma(b5, f, d);
#endif
    }
    float16 sum = a0 + a1 + a2 + a3 + a4 + a5;
#if CHAINS == 12
    sum += b0 + b1 + b2 + b3 + b4 + b5;
#endif
    const float8 s8 = sum.lo + sum.hi;
    const float4 s4 = s8.lo + s8.hi;
    out[get_global_id(0)] = s4.s0 + s4.s1 + s4.s2 + s4.s3;
}

#ifndef COPY_T // what one work-item copies: float4 on GPUs, float16 (a cache line) on CPUs
#define COPY_T float4
#endif

#ifndef COPY_WIDTH // floats in it
#define COPY_WIDTH 4
#endif

__kernel void copy_rate(const __global COPY_T *from, __global COPY_T *to)
{
    to[get_global_id(0)] = from[get_global_id(0)];
}

// Each work-item reads `count` elements (a multiple of 4), from its number times `first` on, `step` apart.
__kernel void read_rate(const __global COPY_T *from, __global float *to, uint first, uint step, uint count)
{
    const __global COPY_T *at = from + get_global_id(0) * (size_t)first;
    COPY_T a = 0.0f, b = 0.0f, c = 0.0f, d = 0.0f;
    for (uint i = 0; i < count; i += 4, at += 4 * (size_t)step) {
        a += at[0];
        b += at[step];
        c += at[2 * (size_t)step];
        d += at[3 * (size_t)step];
    }
    a += b + c + d;
#if COPY_WIDTH == 16
    const float8 s8 = a.lo + a.hi;
    const float4 s4 = s8.lo + s8.hi;
#else
    const float4 s4 = a;
#endif
    to[get_global_id(0)] = s4.s0 + s4.s1 + s4.s2 + s4.s3;
}
