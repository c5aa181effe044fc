// hopper.cl: instructions of NVIDIA's compute capability 9.0, beside those of nvidia_ptx.cl.
//
// The driver's OpenCL compiler names its target sm_90, and assembles wgmma and setmaxnreg for sm_90a alone.
// So these stand in comments, one line for each statement, which src/ptx_route.c uncovers in the PTX:
//     "//@wgmma.fence.sync.aligned;\n"
//
// Operands of wgmma are registers named one by one. The arrays that hold them must be indexed by constants
// even before any loop is unrolled; so lists of operands, and of statements about them, are written by the
// preprocessor. The unit is a piece: the four numbers that a work-item holds of 8 columns of a matrix, which
// are columns 2t and 2t + 1 (t: the lane modulo 4) of rows r and r + 8 (r: the lane over 4), row by row.

#ifndef HEAD_DIM_QK // padded head dims: 32, 64, 96, 128, 192 or 256
#define HEAD_DIM_QK 64
#endif
#ifndef HEAD_DIM_V
#define HEAD_DIM_V 64
#endif
#ifndef BLOCK_K // keys of a step: 64, 80, 96, 112 or 128
#define BLOCK_K 128
#endif

// ---- Lists ---------------------------------------------------------------------------------------------

// LIST(n, m, between): m(0) between() m(1) between() ... m(n - 1)
#define LIST_1(m, b) m(0)
#define LIST_2(m, b) LIST_1(m, b) b() m(1)
#define LIST_3(m, b) LIST_2(m, b) b() m(2)
#define LIST_4(m, b) LIST_3(m, b) b() m(3)
#define LIST_5(m, b) LIST_4(m, b) b() m(4)
#define LIST_6(m, b) LIST_5(m, b) b() m(5)
#define LIST_7(m, b) LIST_6(m, b) b() m(6)
#define LIST_8(m, b) LIST_7(m, b) b() m(7)
#define LIST_10(m, b) LIST_8(m, b) b() m(8) b() m(9)
#define LIST_12(m, b) LIST_10(m, b) b() m(10) b() m(11)
#define LIST_14(m, b) LIST_12(m, b) b() m(12) b() m(13)
#define LIST_16(m, b) LIST_14(m, b) b() m(14) b() m(15)
#define LIST_24(m, b)                                                                                    \
    LIST_16(m, b) b() m(16) b() m(17) b() m(18) b() m(19) b() m(20) b() m(21) b() m(22) b() m(23)
#define LIST_32(m, b)                                                                                    \
    LIST_24(m, b) b() m(24) b() m(25) b() m(26) b() m(27) b() m(28) b() m(29) b() m(30) b() m(31)
#define LIST_GLUED(n, m, b) LIST_##n(m, b)
#define LIST(n, m, between) LIST_GLUED(n, m, between)

// EACH(n, m): m(0) m(1) ... m(n - 1); m may have a LIST in it.
#define EACH_2(m) m(0) m(1)
#define EACH_4(m) EACH_2(m) m(2) m(3)
#define EACH_5(m) EACH_4(m) m(4)
#define EACH_6(m) EACH_5(m) m(5)
#define EACH_7(m) EACH_6(m) m(6)
#define EACH_8(m) EACH_7(m) m(7)
#define EACH_10(m) EACH_8(m) m(8) m(9)
#define EACH_12(m) EACH_10(m) m(10) m(11)
#define EACH_14(m) EACH_12(m) m(12) m(13)
#define EACH_16(m) EACH_14(m) m(14) m(15)
#define EACH_24(m) EACH_16(m) m(16) m(17) m(18) m(19) m(20) m(21) m(22) m(23)
#define EACH_32(m) EACH_24(m) m(24) m(25) m(26) m(27) m(28) m(29) m(30) m(31)
#define EACH_GLUED(n, m) EACH_##n(m)
#define EACH(n, m) EACH_GLUED(n, m)

#define COMMA() ,
#define COMMA_TEXT() ","

// Of so many columns: pieces, steps of 16 as the products take them, panels of 64 as they lie in local
// memory.
#define PIECES_32 4
#define PIECES_64 8
#define PIECES_80 10
#define PIECES_96 12
#define PIECES_112 14
#define PIECES_128 16
#define PIECES_192 24
#define PIECES_256 32
#define STEPS_32 2
#define STEPS_64 4
#define STEPS_80 5
#define STEPS_96 6
#define STEPS_112 7
#define STEPS_128 8
#define STEPS_192 12
#define STEPS_256 16
#define PIECES_GLUED(n) PIECES_##n
#define STEPS_GLUED(n) STEPS_##n
#define PIECES(n) PIECES_GLUED(n)
#define STEPS(n) STEPS_GLUED(n)
#define PANELS(n) (((n) + 63) / 64)

#define S_PIECES PIECES(BLOCK_K)
#define O_PIECES PIECES(HEAD_DIM_V)
#define QK_STEPS STEPS(HEAD_DIM_QK)
#define PV_STEPS STEPS(BLOCK_K)

// ---- Products ------------------------------------------------------------------------------------------

// A row of a panel is 128 bytes, whose 16-byte chunks lie at their number XOR (row modulo 8) (PTX ISA,
// "Asynchronous warpgroup level matrix shared memory layout", 128-byte swizzle). Panels begin at multiples of
// 1024 bytes.
#define PANEL_ROW 128
#define CHUNK 16

// How wgmma finds a matrix in local memory, in units of 16 bytes: where it begins, and the step from panel to panel where
// columns run across them. The other half says how panels lie, and that 8 of their rows lie behind the 8 before.
inlined uint matrix_at(uint address, uint panel_step) { return panel_step >> 4 << 16 | (address & 0x3FFFF) >> 4; }

inlined ulong whole_matrix(uint matrix) { return (ulong)1 << 62 | (ulong)(8 * PANEL_ROW >> 4) << 32 | matrix; }

#if Q_TYPE == TYPE_BF16
#define MMA_TYPE "bf16"
#define MAP_TYPE "10" // of elements, in maps of tensors
#else
#define MMA_TYPE "f16"
#define MAP_TYPE "6"
#endif

#define S_NAMES(i) "%[s" #i "a],%[s" #i "b],%[s" #i "c],%[s" #i "d]"
#define S_OUT(i)                                                                                         \
    [s##i##a] "=f"(s[4 * i]), [s##i##b] "=f"(s[4 * i + 1]), [s##i##c] "=f"(s[4 * i + 2]),                \
        [s##i##d] "=f"(s[4 * i + 3])
#define S_INOUT(i) "+f"(s[4 * i]), "+f"(s[4 * i + 1]), "+f"(s[4 * i + 2]), "+f"(s[4 * i + 3])

#define O_NAMES(i) "%[o" #i "a],%[o" #i "b],%[o" #i "c],%[o" #i "d]"
#define O_INOUT(i)                                                                                       \
    [o##i##a] "+f"(o[4 * i]), [o##i##b] "+f"(o[4 * i + 1]), [o##i##c] "+f"(o[4 * i + 2]),                \
        [o##i##d] "+f"(o[4 * i + 3])

#define P_IN(j)                                                                                          \
    [p##j##a] "r"(p[4 * j]), [p##j##b] "r"(p[4 * j + 1]), [p##j##c] "r"(p[4 * j + 2]),                   \
        [p##j##d] "r"(p[4 * j + 3])

// D += A B of 64 rows and so many columns, over 16 of A's columns. Behind it come D's registers, A (its matrix,
// or registers) and B, whether it adds or D begins from 0, two signs, and which matrices lie across.
#define WGMMA(columns)                                                                                   \
    "wgmma.mma_async.sync.aligned.m64n" QUOTED(columns) "k16.f32." MMA_TYPE "." MMA_TYPE " "

// 16 columns of Q and K, whose rows both lie along the head dim. Addresses count 16 bytes: a panel of Q has
// 64 rows, one of K BLOCK_K, and 16 columns are two chunks of a row.
#define QK_STEP(j)                                                                                       \
    "setp.ne.b32 adds," #j ",0; "                                                                        \
    "add.s64 a,%[q],(" #j "/4)*512+(" #j "%% 4)*2; "                                                     \
    "add.s64 b,%[k],(" #j "/4)*(" QUOTED(BLOCK_K) "*8)+(" #j "%% 4)*2; "                                 \
    WGMMA(BLOCK_K) "{" LIST(S_PIECES, S_NAMES, COMMA_TEXT) "},a,b,adds,1,1,0,0; "

// 16 keys of P, from registers, and V, whose rows are keys: 16 of them are 2048 bytes. All steps but the first add.
#define PV_STEP(j)                                                                                       \
    "add.s64 b,%[v]," #j "*128; "                                                                        \
    WGMMA(HEAD_DIM_V) "{" LIST(O_PIECES, O_NAMES, COMMA_TEXT) "},"                                       \
                      "{%[p" #j "a],%[p" #j "b],%[p" #j "c],%[p" #j "d]},b,adds,1,1,1; "                   \
    "setp.eq.b32 adds,0,0; "

// Begins S = Q K^T of a warpgroup's 64 rows.
inlined void begin_qk(float s[4 * S_PIECES], uint q, uint k)
{
    __asm__ volatile("//@wgmma.fence.sync.aligned; { .reg .b64 a,b; .reg .pred adds; "
                     EACH(QK_STEPS, QK_STEP) "wgmma.commit_group.sync.aligned; }\n"
                     : LIST(S_PIECES, S_OUT, COMMA)
                     : [q] "l"(whole_matrix(q)), [k] "l"(whole_matrix(k))
                     : "memory");
}

// Begins O += P V, or, if adds is 0, O = P V.
inlined void begin_pv(float o[4 * O_PIECES], const uint p[2 * S_PIECES], uint v, int adds)
{
    __asm__ volatile("//@wgmma.fence.sync.aligned; { .reg .b64 b; .reg .pred adds; setp.ne.b32 adds,%[adds],0; "
                     EACH(PV_STEPS, PV_STEP) "wgmma.commit_group.sync.aligned; }\n"
                     : LIST(O_PIECES, O_INOUT, COMMA)
                     : LIST(PV_STEPS, P_IN, COMMA), [v] "l"(whole_matrix(v)), [adds] "r"(adds)
                     : "memory");
}

// Waits until no product, or none but the last begun, is under way. The registers are named so that nothing
// about them moves across.
inlined void end_qk_before_pv(float s[4 * S_PIECES])
{
    __asm__ volatile("//@wgmma.wait_group.sync.aligned 1;\n" : LIST(S_PIECES, S_INOUT, COMMA)::"memory");
}

inlined void end_qk(float s[4 * S_PIECES])
{
    __asm__ volatile("//@wgmma.wait_group.sync.aligned 0;\n" : LIST(S_PIECES, S_INOUT, COMMA)::"memory");
}

inlined void end_pv(float o[4 * O_PIECES])
{
    __asm__ volatile("//@wgmma.wait_group.sync.aligned 0;\n" : LIST(O_PIECES, O_INOUT, COMMA)::"memory");
}

// ---- Numbers -------------------------------------------------------------------------------------------

inlined float log2_fast(float x)
{
    float y;
    __asm__("lg2.approx.ftz.f32 %0,%1;" : "=f"(y) : "f"(x));
    return y;
}

// The larger one, or the one that is no NaN.
inlined float larger(float a, float b)
{
    float y;
    __asm__("max.f32 %0,%1,%2;" : "=f"(y) : "f"(a), "f"(b));
    return y;
}

inlined float fused(float a, float b, float c)
{
    float y;
    __asm__("fma.rn.f32 %0,%1,%2,%3;" : "=f"(y) : "f"(a), "f"(b), "f"(c));
    return y;
}

// What was computed goes to memory before more is.
inlined void settle_memory(void) { __asm__ volatile("" ::: "memory"); }

inlined uint item(void) { return (uint)local_id_again(); }

// ---- Between work-items --------------------------------------------------------------------------------

inlined uint warp_uniform(uint x)
{
    uint y;
    __asm__ volatile("shfl.sync.idx.b32 %0,%1,0,31,0xffffffff;" : "=r"(y) : "r"(x));
    return y;
}

inlined void meet_warp(void) { __asm__ volatile("bar.warp.sync 0xffffffff;" ::: "memory"); }

// Barriers in local memory: a phase ends after `count` arrivals; who waits for a phase names its parity.
inlined void barrier_begin(uint address, uint count)
{
    __asm__ volatile("mbarrier.init.shared::cta.b64 [%0],%1;" ::"r"(address), "r"(count) : "memory");
}

inlined void barriers_begun(void)
{
    __asm__ volatile("fence.mbarrier_init.release.cluster; fence.proxy.async;" ::: "memory");
}

inlined void arrive(uint address)
{
    __asm__ volatile("mbarrier.arrive.shared::cta.b64 _,[%0];" ::"r"(address) : "memory");
}

inlined void wait_for(uint address, uint parity)
{
    __asm__ volatile("{ .reg .pred done; again: mbarrier.try_wait.parity.shared::cta.b64 done,[%0],%1; "
                     "@done bra over; bra again; over: }" ::"r"(address),
                     "r"(parity)
                     : "memory");
}

// ---- Copies --------------------------------------------------------------------------------------------

// cp.async: 16 bytes on their way to local memory, of which the first `bytes` are read and the others are zero.
// Both addresses are multiples of 16.
inlined void copy_part(uint to, const __global void *from, int bytes)
{
    __asm__ volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(to), "l"(from), "r"(bytes) : "memory");
}

inlined void copy_whole_chunk(uint to, const __global uchar *from)
{
    __asm__ volatile("cp.async.cg.shared.global [%0],[%1],16;" ::"r"(to), "l"(from) : "memory");
}

inlined void clear_chunk(uint to)
{
    __asm__ volatile("st.shared.v4.u32 [%0],{%1,%1,%1,%1};" ::"r"(to), "r"(0) : "memory");
}

// Arrives once the copies that the work-item has begun are done.
inlined void arrive_after_copies(uint address)
{
    __asm__ volatile("cp.async.mbarrier.arrive.noinc.shared::cta.b64 [%0];" ::"r"(address) : "memory");
}

inlined void end_copies(void) { __asm__ volatile("cp.async.wait_all;" ::: "memory"); }

inlined void store_element(uint to, ushort element)
{
    __asm__ volatile("st.shared.u16 [%0],%1;" ::"r"(to), "h"(element) : "memory");
}

// Arrives `count` times, and keeps the phase from ending before the copy engine has written so many bytes.
inlined void arrive_for_bytes(uint address, uint count, uint bytes)
{
    __asm__ volatile("mbarrier.expect_tx.relaxed.cta.shared::cta.b64 [%0],%1; "
                     "mbarrier.arrive.shared::cta.b64 _,[%0],%2;" ::"r"(address),
                     "r"(bytes), "r"(count)
                     : "memory");
}

// A box of a mapped tensor: its first column, row, head and batch entry.
inlined void copy_box(uint to, ulong map, int column, int row, int head, int batch, uint barrier_address)
{
    __asm__ volatile("cp.async.bulk.tensor.4d.shared::cluster.global.tile.mbarrier::complete_tx::bytes "
                     "[%0],[%1,{%2,%3,%4,%5}],[%6];" ::"r"(to),
                     "l"(map), "r"(column), "r"(row), "r"(head), "r"(batch), "r"(barrier_address)
                     : "memory");
}

// ---- Maps of tensors, for the copy engine --------------------------------------------------------------

// A map is 128 bytes that only these statements know (PTX ISA, "tensormap.replace"); it begins as zeros.
#define MAP_FIELD(field, type, rest)                                                                   \
    "//@tensormap.replace.tile." field ".shared::cta.b1024." type " [%0]," rest ";\n"
#define MAP_SET(field, type, constraint, value)                                                          \
    __asm__ volatile(MAP_FIELD(field, type, "%1") ::"r"(at), constraint(value) : "memory")
#define MAP_SET_AXIS(field, axis, type, constraint, value)                                               \
    __asm__ volatile(MAP_FIELD(field, type, axis ",%1") ::"r"(at), constraint(value) : "memory")
#define MAP_SET_CODE(field, code) __asm__ volatile(MAP_FIELD(field, "b32", code) ::"r"(at) : "memory")

inlined void map_address(uint at, ulong address) { MAP_SET("global_address", "b64", "l", address); }

inlined void map_axes(uint at, int count) { MAP_SET("rank", "b32", "r", count - 1); }

inlined void map_axis_0(uint at, int size, int box)
{
    MAP_SET_AXIS("global_dim", "0", "b32", "r", size);
    MAP_SET_AXIS("box_dim", "0", "b32", "r", box);
    MAP_SET_AXIS("element_stride", "0", "b32", "r", 1);
}

// stride: bytes from element to element.
#define MAP_AXIS(number, before)                                                                         \
    MAP_SET_AXIS("global_dim", number, "b32", "r", size);                                                \
    MAP_SET_AXIS("box_dim", number, "b32", "r", box);                                                    \
    MAP_SET_AXIS("element_stride", number, "b32", "r", 1);                                               \
    MAP_SET_AXIS("global_stride", before, "b64", "l", stride);

inlined void map_axis_1(uint at, int size, int box, long stride) { MAP_AXIS("1", "0") }

inlined void map_axis_2(uint at, int size, long stride)
{
    const int box = 1;
    MAP_AXIS("2", "1")
}

inlined void map_axis_3(uint at, int size, long stride)
{
    const int box = 1;
    MAP_AXIS("3", "2")
}

// 16-bit elements, chunks swizzled as wgmma wants them, zeros beyond the tensor.
inlined void map_elements(uint at)
{
    MAP_SET_CODE("elemtype", MAP_TYPE);
    MAP_SET_CODE("interleave_layout", "0");
    MAP_SET_CODE("swizzle_mode", "3");
    MAP_SET_CODE("fill_mode", "0");
}

inlined void store_global(ulong address, ulong word)
{
    __asm__ volatile("st.global.u64 [%0],%1;" ::"l"(address), "l"(word) : "memory");
}

// Between writing a map and the copy engine's reading it: by who writes, and by who has it read.
inlined void release_map(void)
{
    __asm__ volatile("fence.proxy.tensormap::generic.release.gpu;" ::: "memory");
}

inlined void acquire_map(ulong map)
{
    __asm__ volatile("fence.proxy.tensormap::generic.acquire.gpu [%0],128;" ::"l"(map) : "memory");
}

inlined uint multiprocessor(void)
{
    uint number;
    __asm__ volatile("mov.u32 %0,%%smid;" : "=r"(number));
    return number;
}

// Global memory of the program's, which src/ptx_route.c adds to it.
#define MAP_PLACES 256
inlined ulong program_memory(void)
{
    ulong address;
    __asm__ volatile("//@mov.u64 %0,clattn_program_memory;\n" : "=l"(address));
    return address;
}

// What was written to local memory is seen by the products that follow.
inlined void show_to_products(void) { __asm__ volatile("fence.proxy.async.shared::cta;" ::: "memory"); }
