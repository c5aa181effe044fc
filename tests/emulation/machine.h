/* machine.h: a work-group under emulation, as the files that do its instructions see it. */
#ifndef MACHINE_H
#define MACHINE_H

#include "ptx.h"

#include <stddef.h>
#include <stdint.h>
#include <string.h>

enum { LANES = 32, MOST_ITEMS = 1024, MOST_WARPS = MOST_ITEMS / LANES };

/* A statement that a work-item is at. */
typedef struct frame {
    const ptx_statement *statement;
    const ptx_instruction *at;
    uint64_t *slots;
    int num_slots;
    uint64_t registers[PTX_REGISTERS_MOST];
} frame;

typedef enum lane_state {
    LANE_READY,
    LANE_YIELDS,     /* others go first */
    LANE_COLLECTIVE, /* waits for its warp, at frame->at */
    LANE_PHASE,      /* waits for a barrier's phase */
    LANE_ENDED
} lane_state;

/* A copy to local memory that a work-item has begun (cp.async), or an arrival that follows those before it.
 */
typedef struct lane_copy {
    uint32_t to;
    const void *from; /* NULL: an arrival at the barrier `to` */
    int bytes;        /* that are read; the others of 16 are zeros */
    int group;
} lane_copy;

enum { MOST_COPIES = 512 };

typedef struct lane {
    void *stack; /* its own memory */
    void *stack_pointer;
    lane_state state;
    frame *frame;
    uint32_t barrier, parity; /* it waits for */
    lane_copy copies[MOST_COPIES];
    int num_copies, group; /* group: that is open */
    uint32_t shown;        /* when it last showed local memory to the products */
} lane;

extern lane *lanes;   /* of the work-group */
extern lane *current; /* that runs; the first of a warp whose instruction is done */
extern size_t group_number, group_items;
extern uint32_t warp_registers[MOST_WARPS]; /* of a work-item */

/* Ends the process with a message that tells where. */
_Noreturn void fail(const char *format, ...) __attribute__((format(printf, 1, 2)));

/* The lane's turn ends; it goes on when the scheduler lets it. */
void pause_in(lane_state state);

/* ---- Operands ---- */

uint64_t operand_special(const ptx_operand *o);
void operand_set(frame *f, const ptx_operand *o, uint64_t value);

inline static uint64_t operand_value(const frame *f, const ptx_operand *o)
{
    return o->kind == PTX_SLOT       ? f->slots[o->index] + o->number
           : o->kind == PTX_REGISTER ? f->registers[o->index] + o->number
           : o->kind == PTX_NUMBER   ? o->number
                                     : operand_special(o);
}

inline static uint64_t value_at(const frame *f, int operand)
{
    return operand_value(f, &f->at->operands[operand]);
}

/* ---- Numbers ---- */

/* Of its lower half. */
inline static float float_of_bits(uint64_t bits)
{
    const uint32_t word = (uint32_t)bits;
    float x;
    memcpy(&x, &word, sizeof x);
    return x;
}

inline static uint32_t bits_of_float(float x)
{
    uint32_t bits;
    memcpy(&bits, &x, sizeof bits);
    return bits;
}

/* ---- Local memory (local_memory.c) ---- */

void local_begin(void *memory, size_t bytes);
/* A pointer, checked. */
void *local_at(uint32_t address, size_t bytes);
/* From the 18 bits that wgmma knows, checked. */
uint32_t local_of_matrix(uint64_t address);
/* 16 bytes are on their way there: whoever reads them fails. */
void local_spoil(uint32_t address);
/* They are there; `by_engine`: as the products see them without a fence. */
void local_land(uint32_t address, const void *bytes, int by_engine);
/* A work-item has written there. */
void local_written(uint32_t address, size_t bytes);
/* The 16 bytes as ldmatrix reads them, and as the products do, to whom memory was shown at that time. */
const void *local_read(uint32_t address);
const void *local_product_read(uint32_t address, uint32_t shown);
/* Counts what is written and shown. */
uint32_t local_clock(void);

/* ---- Copies and barriers in local memory (copies.c) ---- */

void copies_begin(void);
void copies_check_end(void);
void copies_execute(frame *f);
int phase_is_complete(uint32_t barrier, uint32_t parity);
void phases_describe(uint32_t barrier);

/* ---- Matrix instructions (matrix.c, products.c) ---- */

void matrix_execute(lane *warp);
void products_begin(void);
void products_check_end(void);
void products_execute(lane *warp);

/* What a product's registers hold while it is under way. */
#define UNDER_WAY_BITS 0x7fffdeadu

#endif
