// emulated_builtins.cl: the functions of OpenCL C that kernels for NVIDIA's matrix units call.

#define OVERLOAD __attribute__((overloadable))

float float_of_half(ushort bits);
ushort half_of_float(float x);

float OVERLOAD fma(float x, float y, float z) { return __builtin_fmaf(x, y, z); }
float OVERLOAD log(float x) { return __builtin_logf(x); }
float OVERLOAD log2(float x) { return __builtin_log2f(x); }
float OVERLOAD tanh(float x) { return __builtin_tanhf(x); }
float OVERLOAD fabs(float x) { return __builtin_fabsf(x); }
float OVERLOAD fmax(float x, float y) { return __builtin_fmaxf(x, y); }
float OVERLOAD fmin(float x, float y) { return __builtin_fminf(x, y); }
float OVERLOAD floor(float x) { return __builtin_floorf(x); }
float OVERLOAD native_exp2(float x) { return __builtin_exp2f(x); }
float OVERLOAD exp2(float x) { return __builtin_exp2f(x); }
float OVERLOAD exp(float x) { return __builtin_expf(x); }
float OVERLOAD sin(float x) { return __builtin_sinf(x); }
float OVERLOAD cos(float x) { return __builtin_cosf(x); }
int OVERLOAD min(int x, int y) { return x < y ? x : y; }
int OVERLOAD max(int x, int y) { return x > y ? x : y; }
long OVERLOAD min(long x, long y) { return x < y ? x : y; }
long OVERLOAD max(long x, long y) { return x > y ? x : y; }
int OVERLOAD clamp(int x, int low, int high) { return x < low ? low : x > high ? high : x; }
long OVERLOAD clamp(long x, long low, long high) { return x < low ? low : x > high ? high : x; }
int OVERLOAD isnan(float x) { return x != x; }
int OVERLOAD any(int4 x) { return (x.x | x.y | x.z | x.w) < 0; }
int OVERLOAD all(int4 x) { return (x.x & x.y & x.z & x.w) < 0; }
uint OVERLOAD abs(int x) { return x < 0 ? -x : x; }
int OVERLOAD atomic_max(volatile __global int *p, int x)
{
    const int old = *p;
    *p = x > old ? x : old;
    return old;
}
float4 OVERLOAD vload4(size_t i, const __global float *p)
{
    p += 4 * i;
    return (float4)(p[0], p[1], p[2], p[3]);
}
ushort4 OVERLOAD vload4(size_t i, const __global ushort *p)
{
    p += 4 * i;
    return (ushort4)(p[0], p[1], p[2], p[3]);
}
uchar8 OVERLOAD vload8(size_t i, const __global uchar *p)
{
    p += 8 * i;
    return (uchar8)(p[0], p[1], p[2], p[3], p[4], p[5], p[6], p[7]);
}
uint4 OVERLOAD convert_uint4(ushort4 x) { return (uint4)(x.x, x.y, x.z, x.w); }
float OVERLOAD vload_half(size_t i, const __global half *p) { return float_of_half(((const __global ushort *)p)[i]); }
float OVERLOAD vload_half(size_t i, const __private half *p) { return float_of_half(((const __private ushort *)p)[i]); }
float4 OVERLOAD vload_half4(size_t i, const __global half *p)
{
    p += 4 * i;
    return (float4)(vload_half(0, p), vload_half(1, p), vload_half(2, p), vload_half(3, p));
}
float4 OVERLOAD vload_half4(size_t i, const __private half *p)
{
    p += 4 * i;
    return (float4)(vload_half(0, p), vload_half(1, p), vload_half(2, p), vload_half(3, p));
}
void OVERLOAD vstore_half_rte(float x, size_t i, __global half *p) { ((__global ushort *)p)[i] = half_of_float(x); }
void OVERLOAD vstore_half4_rte(float4 x, size_t i, __global half *p)
{
    for (int e = 0; e < 4; e++)
        vstore_half_rte(x[e], 4 * i + e, p);
}
void OVERLOAD vstore4(float4 x, size_t i, __global float *p)
{
    for (int e = 0; e < 4; e++)
        p[4 * i + e] = x[e];
}
void OVERLOAD vstore4(ushort4 x, size_t i, __global ushort *p)
{
    for (int e = 0; e < 4; e++)
        p[4 * i + e] = x[e];
}
