/* nvptx_shim.h: for the offline compile to NVIDIA's ISA only; put before the program with -include.
 *
 * libclc maps these native functions to LLVM intrinsics for which the nvptx back end has no
 * instruction ("no libcall available for fexp2", clang 19). NVIDIA's own OpenCL compiler has them.
 * So that the gate counts the registers of the instruction that the driver would emit, each is
 * written as that instruction. */

#define SHIM_OVERLOAD static inline __attribute__((overloadable))

SHIM_OVERLOAD float shim_exp2(float x)
{
    float y;
    __asm__("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}

SHIM_OVERLOAD float shim_log2(float x)
{
    float y;
    __asm__("lg2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}

/* Wider vectors from halves, as deep as OpenCL C goes. */
#define SHIM_WIDEN(name, wide, narrow) \
    SHIM_OVERLOAD wide name(wide x) { return (wide)(name(x.lo), name(x.hi)); }
#define SHIM_VECTORS(name)           \
    SHIM_WIDEN(name, float2, float)  \
    SHIM_WIDEN(name, float4, float2) \
    SHIM_WIDEN(name, float8, float4) \
    SHIM_WIDEN(name, float16, float8)

SHIM_VECTORS(shim_exp2)
SHIM_VECTORS(shim_log2)

#undef native_exp2
#undef native_exp
#undef native_log2
#undef native_log
#define native_exp2(x) shim_exp2(x)
#define native_exp(x) shim_exp2((x)*1.44269504088896340736f)
#define native_log2(x) shim_log2(x)
#define native_log(x) (shim_log2(x) * 0.69314718055994530942f)
