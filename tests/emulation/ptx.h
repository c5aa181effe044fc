/* ptx.h: statements of PTX, NVIDIA's documented intermediate language ("Parallel Thread Execution ISA"), as
 * inline assembly has them. */
#ifndef PTX_H
#define PTX_H

#include <stddef.h>
#include <stdint.h>

typedef enum ptx_operation {
    /* of one work-item */
    PTX_ADD,
    PTX_ARRIVE,        /* mbarrier.arrive */
    PTX_ARRIVE_COPIES, /* cp.async.mbarrier.arrive.noinc */
    PTX_ARRIVE_EXPECT, /* mbarrier.arrive.expect_tx */
    PTX_ATOMIC_ADD,
    PTX_ATOMIC_CAS,
    PTX_ACQUIRE_MAP,   /* fence.proxy.tensormap::generic.acquire */
    PTX_BEGIN_BARRIER, /* mbarrier.init */
    PTX_BRANCH,
    PTX_CLOSE_COPIES, /* cp.async.commit_group */
    PTX_COPY,         /* cp.async */
    PTX_COPY_BOX,     /* cp.async.bulk.tensor */
    PTX_EXP2,
    PTX_EXPECT, /* mbarrier.expect_tx */
    PTX_FENCE,  /* any that takes no note here; and pmevent, which changes nothing */
    PTX_FMA,
    PTX_LOAD,
    PTX_LOG2,
    PTX_MAX,
    PTX_MIN,
    PTX_MOVE,
    PTX_MULTIPLY,
    PTX_MULTIPLY_HALVES,
    PTX_SUBTRACT_HALVES,
    PTX_PACK_BF16,
    PTX_PACK_F16,
    PTX_PERMUTE, /* prmt */
    PTX_RECIPROCAL,
    PTX_REGISTERS, /* setmaxnreg */
    PTX_REPLACE,   /* tensormap.replace.tile */
    PTX_RETURN,
    PTX_SELECT,
    PTX_SET_PREDICATE,
    PTX_SHOW, /* fence.proxy.async */
    PTX_STORE,
    PTX_WAIT_COPIES, /* cp.async.wait_group, wait_all */
    PTX_WAIT_PHASE,  /* mbarrier.try_wait.parity */
    /* of a whole warp, all of whose work-items come to it */
    PTX_FIRST_COLLECTIVE,
    PTX_ARRIVE_AT = PTX_FIRST_COLLECTIVE, /* bar.arrive */
    PTX_ELECT,
    PTX_LOAD_MATRICES,
    PTX_MEET_WARP, /* bar.warp.sync */
    PTX_MMA,
    PTX_SHUFFLE,
    PTX_VOTE,
    PTX_WAIT_AT, /* bar.sync */
    PTX_WGMMA,
    PTX_WGMMA_COMMIT,
    PTX_WGMMA_FENCE,
    PTX_WGMMA_WAIT
} ptx_operation;

typedef enum ptx_type { PTX_BITS, PTX_SIGNED, PTX_FLOAT } ptx_type;

typedef struct ptx_operand {
    enum { PTX_SLOT, PTX_REGISTER, PTX_NUMBER, PTX_ITEM, PTX_MULTIPROCESSOR, PTX_MEMORY, PTX_NOTHING } kind;
    int index;
    uint64_t number; /* added to a slot or register */
} ptx_operand;

typedef struct ptx_instruction {
    ptx_operation operation;
    const char *name;          /* with all its parts */
    ptx_type type;             /* of the last part that is one */
    int bits, vector;          /* of it; elements of a vector */
    int guard, guard_is_false; /* a register, or -1 */
    int target;                /* of a branch */
    int num_operands;
    ptx_operand *operands;
} ptx_instruction;

enum { PTX_REGISTERS_MOST = 24, PTX_SLOTS_MOST = 400 };

typedef struct ptx_statement {
    char *text;
    ptx_instruction *code;
    int length;
    int is_sm_90a; /* has instructions that only this target has */
    int is_memory; /* names the program's memory */
} ptx_statement;

/* Operands are written %op0, %op1, ... Returns NULL, or what is not understood (valid until the next call).
 */
const char *ptx_parse(ptx_statement *out, const char *text);

/* The value of a constant expression of C or PTX up to its end; *is_one: whether it is one. */
int64_t ptx_constant(const char *text, int *is_one);

#endif
