// emulated_ptx.cl: what takes cl/nvidia_ptx.cl's place where a program for NVIDIA's matrix units runs on a CPU: the
// same functions, done by warp.c. Before it come the OpenCL C functions that the kernels call.

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
float4 OVERLOAD vload_half4(size_t i, const __global half *p)
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

#define WARP 32
#define inlined __attribute__((always_inline)) static inline

uint local_address(const __local void *p);
void load_matrices(uint *r, uint address);
void load_matrices_transposed(uint *r, uint address);
void load_local(uint *r, uint address);
void store_local_words(uint address, const uint *x);
inlined void store_local(uint address, uint4 x)
{
    const uint words[4] = {x.x, x.y, x.z, x.w};
    store_local_words(address, words);
}
void load_16(uint *r, const __global void *from);
void load_8(uint *r, const __global void *from);
inlined uint byte_of(uint x, int i) { return x >> 8 * i & 0xffu; }
inlined uint low_bytes_01(uint x, uint y) { return byte_of(x, 0) | byte_of(y, 0) * 0x01000100u | byte_of(x, 1) << 16; }
inlined uint low_bytes_23(uint x, uint y) { return byte_of(x, 2) | byte_of(y, 0) * 0x01000100u | byte_of(x, 3) << 16; }
inlined uint high_bytes_01(uint x, uint y) { return byte_of(x, 0) << 8 | byte_of(y, 0) * 0x00010001u | byte_of(x, 1) << 24; }
inlined uint high_bytes_23(uint x, uint y) { return byte_of(x, 2) << 8 | byte_of(y, 0) * 0x00010001u | byte_of(x, 3) << 24; }
inlined uint less_f16(uint x, uint y)
{
    return half_of_float(float_of_half(x) - float_of_half(y)) |
           (uint)half_of_float(float_of_half(x >> 16) - float_of_half(y >> 16)) << 16;
}
inlined uint times_f16(uint x, uint y)
{
    return half_of_float(float_of_half(x) * float_of_half(y)) |
           (uint)half_of_float(float_of_half(x >> 16) * float_of_half(y >> 16)) << 16;
}
inlined uint low_halves(uint first, uint second) { return (first & 0xffffu) | second << 16; }
inlined uint high_halves(uint first, uint second) { return first >> 16 | (second & 0xffff0000u); }
inlined void fence_device(void) {}
inlined ulong compare_exchange(volatile __global ulong *p, ulong expected, ulong value)
{
    const ulong old = *p;
    *p = old == expected ? value : old;
    return old;
}
inlined ulong add_to(volatile __global ulong *p, ulong x)
{
    const ulong old = *p;
    *p = old + x;
    return old;
}
void copy_16(uint to, const __global void *from, int zero);
void close_copies(void);
void wait_for_copies(int open);
#define WAIT_FOR_COPIES(open) wait_for_copies(open)
void wait_at(uint name, uint items);
void arrive_at(uint name, uint items);
#define WAIT_AT(name, items) wait_at(name, items)
#define ARRIVE_AT(name, items) arrive_at(name, items)
inlined int local_id_again(void) { return (int)get_local_id(0); }
uint bits_across(uint x, uint mask);
uint bits_from(uint x, uint lane);
inlined float from_lane(float x, uint lane) { return as_float(bits_from(as_uint(x), lane)); }
inlined float across(float x, uint mask) { return as_float(bits_across(as_uint(x), mask)); }
int any_in_warp(int condition);
float exp2_of(float x);
uint pack_2(float low, float high);
uint pack_3(float low, float high);
void multiply_1(float *d, const uint *a, uint b0, uint b1);
void multiply_2(float *d, const uint *a, uint b0, uint b1);
void multiply_3(float *d, const uint *a, uint b0, uint b1);
