// nvidia_tile.cl: the parameters of nvidia_mma.cl and what lies where in its local memory: what it and the two
// products that it can have (nvidia_half.cl, nvidia_tf32.cl) agree on.
//
// A warp's tile of scores has ROW_TILES times 16 rows and KEY_GROUPS times 8 keys. With g = lane / 4 and c = lane % 4,
// s[t][n][2 r + e] is the score of row 16 t + 8 r + g at key 8 n + 2 c + e.

#ifndef HEAD_DIM_QK // padded head dims, multiples of 32; the true ones are arguments
#define HEAD_DIM_QK 64
#endif
#ifndef HEAD_DIM_V
#define HEAD_DIM_V 64
#endif
#ifndef ROW_TILES // of 16 rows, of a warp
#define ROW_TILES 2
#endif
#ifndef WARPS // of a work-group; 8 with TURNS
#define WARPS 8
#endif
#ifndef BLOCK_K // keys of a step; a multiple of 16 (f32: 8), at most 128
#define BLOCK_K 64
#endif
#ifndef STAGES // slots of the ring of K and V, at least 2
#define STAGES 3
#endif
#ifndef TURNS // 1: two teams of warps take turns at the matrix units
#define TURNS 1
#endif
#ifndef FILL_LATE // 1: the next tiles are asked for after the first product of a turn, not before it
#define FILL_LATE 0
#endif
#ifndef ALTERNATES // 1: a turn's two products alternate step by step, where all keys count (16 bits only)
#define ALTERNATES 0
#endif
#ifndef Q_HELD // steps of Q's head dim that stay in registers
#define Q_HELD 0
#endif
#ifndef Q_APART // 0: all of Q is held, and its local memory becomes the ring's
#define Q_APART 1
#endif

#define ITEMS (WARPS * WARP)
#define WARP_ROWS (16 * ROW_TILES)
#define KEY_GROUPS (BLOCK_K / 8)
#define COLUMN_GROUPS (HEAD_DIM_V / 8)
#define ELEMENT_BYTES (K_TYPE == TYPE_F32 ? 4 : 2) // of q, k and v alike

// Rows lie 16 bytes further apart than they are long: eight neighbours then meet different banks.
#define K_PITCH (HEAD_DIM_QK * ELEMENT_BYTES + 16) // of Q and K
#define V_PITCH (HEAD_DIM_V * ELEMENT_BYTES + 16)
#define K_BYTES (BLOCK_K * K_PITCH)
#define SLOT_BYTES (K_BYTES + BLOCK_K * V_PITCH)
#define RING_BYTES (STAGES * SLOT_BYTES)
#define Q_BYTES (BLOCK_Q * K_PITCH)
#define MEMORY_BYTES (Q_APART ? RING_BYTES + Q_BYTES : RING_BYTES > Q_BYTES ? RING_BYTES : Q_BYTES)
