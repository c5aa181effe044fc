// nvidia_ptx.cl: instructions of NVIDIA's GPUs that OpenCL C has no word for, a function or macro each, from
// compute capability 8.0 on. The names of PTX, NVIDIA's documented intermediate language ("Parallel Thread
// Execution ISA"), are beside them. A warp is 32 neighbouring work-items that run together; a matrix instruction
// is executed by all of them, and its operands are spread over their registers.
//
// Fragments of a 16-bit product D = A B + D of 16 x 8 results over 16 elements, work-item `lane` of the warp, with
// g = lane / 4 and c = lane % 4; pairs of elements share a register, the first in its low half:
//     A  a[0]: row g, columns 2c, 2c+1    a[1]: row g+8    a[2]: row g, columns 2c+8, 2c+9    a[3]: row g+8
//     B  b0: rows 2c, 2c+1 of column g    b1: rows 2c+8, 2c+9
//     D  d[0], d[1]: row g, columns 2c, 2c+1              d[2], d[3]: row g+8
// Of a TF32 product over 8 elements, a register each:
//     A  a[0]: row g, column c            a[1]: row g+8    a[2]: row g, column c+4            a[3]: row g+8
//     B  b0: row c of column g            b1: row c+4

#define WARP 32

#define inlined __attribute__((always_inline)) static inline

// ---- Local memory by address ----------------------------------------------------------------------------

inlined uint local_address(const __local void *p) { return (uint)(size_t)p; }

inlined void load_matrices(uint r[4], uint address) // ldmatrix: four of 8 x 8, a row's address from each work-item
{
    __asm__ __volatile__("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
                         : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
                         : "r"(address));
}

inlined void load_matrices_transposed(uint r[4], uint address)
{
    __asm__ __volatile__("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
                         : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
                         : "r"(address));
}

inlined void load_local(uint r[4], uint address)
{
    __asm__ __volatile__("ld.shared.v4.b32 {%0, %1, %2, %3}, [%4];"
                         : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
                         : "r"(address));
}

inlined void load_local_pair(uint r[2], uint address)
{
    __asm__ __volatile__("ld.shared.v2.b32 {%0, %1}, [%2];" : "=r"(r[0]), "=r"(r[1]) : "r"(address));
}

inlined void store_local(uint address, uint4 x)
{
    __asm__ __volatile__("st.shared.v4.b32 [%0], {%1, %2, %3, %4};"
                         :
                         : "r"(address), "r"(x.x), "r"(x.y), "r"(x.z), "r"(x.w)
                         : "memory");
}

// ---- Global memory --------------------------------------------------------------------------------------

// 16 bytes that are read once, from a multiple of 16; what lies beside them will be read too. Volatile, so that the load
// is under way from here on.
inlined void load_16(uint r[4], const __global void *from)
{
    __asm__ __volatile__("ld.global.nc.L1::no_allocate.L2::128B.v4.b32 {%0, %1, %2, %3}, [%4];"
                         : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
                         : "l"(from));
}

inlined void load_8(uint r[2], const __global void *from) // likewise 8, from a multiple of 8
{
    __asm__ __volatile__("ld.global.nc.L1::no_allocate.L2::128B.v2.b32 {%0, %1}, [%2];"
                         : "=r"(r[0]), "=r"(r[1])
                         : "l"(from));
}

// p + bytes. Volatile, so that a pointer that walks through a loop stays one: compilers would make a base and offsets of
// it, and keep those in registers.
inlined const __global void *walked(const __global void *p, long bytes)
{
    const __global void *q;
    __asm__ __volatile__("add.s64 %0, %1, %2;" : "=l"(q) : "l"(p), "l"(bytes));
    return q;
}

// fence.acq_rel: what work-items wrote before, others see that read behind theirs.
inlined void fence_device(void) { __asm__ __volatile__("fence.acq_rel.gpu;" : : : "memory"); }

// atom.cas: `value` to *p if that is `expected`. Returns what it was.
inlined ulong compare_exchange(volatile __global ulong *p, ulong expected, ulong value)
{
    ulong old;
    __asm__ __volatile__("atom.relaxed.gpu.global.cas.b64 %0, [%1], %2, %3;"
                         : "=l"(old)
                         : "l"(p), "l"(expected), "l"(value)
                         : "memory");
    return old;
}

inlined ulong add_to(volatile __global ulong *p, ulong x) // atom.add. Returns what *p was.
{
    ulong old;
    __asm__ __volatile__("atom.relaxed.gpu.global.add.u64 %0, [%1], %2;" : "=l"(old) : "l"(p), "l"(x) : "memory");
    return old;
}

// ---- Copies under way -----------------------------------------------------------------------------------

// cp.async: 16 bytes on their way to local memory; with `zero`, nothing is read and zeros come. Both addresses are
// multiples of 16.
inlined void copy_16(uint to, const __global void *from, int zero)
{
    __asm__ __volatile__("{\n .reg .pred p;\n setp.ne.s32 p, %2, 0;\n"
                         " cp.async.cg.shared.global [%0], [%1], 16, p;\n}"
                         :
                         : "r"(to), "l"(from), "r"(zero)
                         : "memory");
}

// Closes the group of this work-item's copies since the last one.
inlined void close_copies(void) { __asm__ __volatile__("cp.async.commit_group;" : : : "memory"); }

// Until all of this work-item's groups but the last `open` have arrived.
#define QUOTED_(x) #x
#define QUOTED(x) QUOTED_(x)
#define WAIT_FOR_COPIES(open) __asm__ __volatile__("cp.async.wait_group " QUOTED(open) ";" : : : "memory")

// ---- Among work-items -----------------------------------------------------------------------------------

// Named barriers, 0 being barrier()'s: they open when `items` (a constant) work-items have come, of which those that
// only arrive go on at once.
#define WAIT_AT(name, items) __asm__ __volatile__("bar.sync %0, " QUOTED(items) ";" : : "r"(name) : "memory")
#define ARRIVE_AT(name, items) __asm__ __volatile__("bar.arrive %0, " QUOTED(items) ";" : : "r"(name) : "memory")

// Never happens, but ptxas cannot know, and leaves products behind it that it would move before an ARRIVE_AT. x: a number
// below 99.
#define NOTHING_CROSSES(x)                                                                                     \
    __asm__ __volatile__("{ .reg .pred never; setp.eq.u32 never,%0,99; @never pmevent 0; }" : : "r"(x) : "memory")

// get_local_id(0), read anew: what follows from it is worked out where it is needed, and takes no registers until then.
inlined int local_id_again(void)
{
    uint id;
    __asm__ __volatile__("mov.u32 %0, %%tid.x;" : "=r"(id));
    return (int)id;
}

// shfl.sync.bfly: x of the work-item whose lane differs in the bits of `mask`.
inlined uint bits_across(uint x, uint mask)
{
    uint y;
    __asm__ __volatile__("shfl.sync.bfly.b32 %0, %1, %2, 31, -1;" : "=r"(y) : "r"(x), "r"(mask));
    return y;
}

inlined uint bits_from(uint x, uint lane) // shfl.sync.idx: x of that work-item of the warp
{
    uint y;
    __asm__ __volatile__("shfl.sync.idx.b32 %0, %1, %2, 31, -1;" : "=r"(y) : "r"(x), "r"(lane));
    return y;
}

inlined float from_lane(float x, uint lane) { return as_float(bits_from(as_uint(x), lane)); }

inlined float across(float x, uint mask) { return as_float(bits_across(as_uint(x), mask)); }

inlined int any_in_warp(int condition) // vote.sync.any
{
    int result;
    __asm__ __volatile__("{\n .reg .pred p, q;\n setp.ne.s32 p, %1, 0;\n vote.sync.any.pred q, p, -1;\n"
                         " selp.s32 %0, 1, 0, q;\n}"
                         : "=r"(result)
                         : "r"(condition));
    return result;
}

// ---- Arithmetic -----------------------------------------------------------------------------------------

inlined float exp2_of(float x) // at most 2 ulp off; results below 2^-126 are zero
{
    float y;
    __asm__("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}

// *x is worked out up to here: compilers would otherwise put that off to where it is used, and keep all that it follows from
// until then.
inlined void keep_here(float *x) { __asm__ __volatile__("" : "+f"(*x)); }

inlined float reciprocal_of(float x) // at most 1 ulp off
{
    float y;
    __asm__("rcp.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}

inlined float between(float x, float low, float high) // NaN stays
{
    float y;
    __asm__("{\n .reg .f32 t;\n min.NaN.f32 t, %1, %3;\n max.NaN.f32 %0, t, %2;\n}"
            : "=f"(y)
            : "f"(x), "f"(low), "f"(high));
    return y;
}

// The low halves of two registers in one, and the high ones: that of `first` becomes the low half. Or of the bytes of
// `first`, two for the halves' lower or upper ones beside the lowest of `second`.
#define HALVES(name, selector)                                                                           \
    inlined uint name(uint first, uint second)                                                           \
    {                                                                                                    \
        uint y;                                                                                          \
        __asm__("prmt.b32 %0, %1, %2, " selector ";" : "=r"(y) : "r"(first), "r"(second));               \
        return y;                                                                                        \
    }
HALVES(low_halves, "0x5410")
HALVES(high_halves, "0x7632")
HALVES(low_bytes_01, "0x4140")
HALVES(low_bytes_23, "0x4342")
HALVES(high_bytes_01, "0x1404")
HALVES(high_bytes_23, "0x3424")

// Two of f16.
#define ON_HALVES(name, instruction)                                                                     \
    inlined uint name(uint x, uint y)                                                                    \
    {                                                                                                    \
        uint z;                                                                                          \
        __asm__(instruction " %0, %1, %2;" : "=r"(z) : "r"(x), "r"(y));                                  \
        return z;                                                                                        \
    }
ON_HALVES(less_f16, "sub.rn.f16x2")
ON_HALVES(times_f16, "mul.rn.f16x2")

// Two floats rounded to 16 bits, `low` in the low half.
#define PACK(name, instruction)                                                                          \
    inlined uint name(float low, float high)                                                             \
    {                                                                                                    \
        uint y;                                                                                          \
        __asm__(instruction " %0, %2, %1;" : "=r"(y) : "f"(low), "f"(high));                             \
        return y;                                                                                        \
    }
PACK(pack_2, "cvt.rn.f16x2.f32") // by TYPE_*
PACK(pack_3, "cvt.rn.bf16x2.f32")

// mma: d += A B.
#define MULTIPLY(name, instruction)                                                                      \
    inlined void name(float d[4], const uint a[4], uint b0, uint b1)                                     \
    {                                                                                                    \
        __asm__ __volatile__(instruction " {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};" \
                             : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])                            \
                             : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));            \
    }
MULTIPLY(multiply_2, "mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32")
MULTIPLY(multiply_3, "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32")
MULTIPLY(multiply_1, "mma.sync.aligned.m16n8k8.row.col.f32.tf32.tf32.f32")
