/* warp.c: the functions of emulated_ptx.cl. Every work-item is a fiber; the 32 of a warp run one after the
 * other up to the next instruction that they execute together, which is then done for all.
 *
 * What a GPU does not promise does not happen either, or happens as badly as it may: an asynchronous copy
 * spoils its destination at once and arrives only when it is waited for. */
#include "warp.h"

#include <immintrin.h>
#include <math.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { LANES = 32, MOST_ITEMS = 1024, STACK_BYTES = 256 * 1024, MOST_COPIES = 512, BARRIERS = 16 };

typedef enum operation {
    START,
    LOAD_MATRICES,
    LOAD_MATRICES_TRANSPOSED,
    MULTIPLY_TF32,
    MULTIPLY_F16,
    MULTIPLY_BF16,
    ACROSS,
    FROM,
    ANY,
    WAIT_AT,
    ARRIVE_AT,
    END
} operation;

typedef struct copy {
    void *to;
    const void *from; /* NULL: zeros */
    int group;
} copy;

typedef struct lane {
    void *stack; /* its own memory */
    void *stack_pointer;
    operation at; /* what it waits to execute, with its operands: */
    uint32_t number[2];
    uint32_t *words;
    const uint32_t *a;
    float *d;
    copy copies[MOST_COPIES];
    int num_copies, group; /* group: that is open */
} lane;

static lane *lanes;
static lane *current;
static size_t group_number, group_items;
static warp_kernel run;
static void *const *run_buffers;
static const void *run_args;
static void *scheduler_pointer;

static struct {
    uint32_t arrived;
    size_t waiting[MOST_ITEMS / LANES];
    size_t num_waiting;
} barriers[BARRIERS];
static int is_blocked[MOST_ITEMS / LANES];

static void fail(const char *what)
{
    fprintf(stderr, "emulated work-group %zu, work-item %zu: %s\n", group_number,
            current ? (size_t)(current - lanes) : 0, what);
    abort();
}

/* ---- Fibers ---- */

void warp_switch(void **save, void *load);
__asm__(".text\n.globl warp_switch\n.hidden warp_switch\nwarp_switch:\n"
        "push %rbp\npush %rbx\npush %r12\npush %r13\npush %r14\npush %r15\n"
        "mov %rsp, (%rdi)\nmov %rsi, %rsp\n"
        "pop %r15\npop %r14\npop %r13\npop %r12\npop %rbx\npop %rbp\nret\n");

static void pause_at(operation at)
{
    current->at = at;
    warp_switch(&current->stack_pointer, scheduler_pointer);
}

static void fiber(void)
{
    run(run_buffers, run_args);
    for (;;)
        pause_at(END);
}

static void prepare(lane *l)
{
    if (l->stack == NULL && (l->stack = malloc(STACK_BYTES)) == NULL)
        fail("out of memory");
    uintptr_t top = ((uintptr_t)l->stack + STACK_BYTES - 64) & ~(uintptr_t)15;
    void **at = (void **)top;
    *--at = NULL; /* where fiber() would return to; leaves the stack as a call does */
    *--at = (void *)(uintptr_t)fiber;
    for (int i = 0; i < 6; i++)
        *--at = NULL;
    l->stack_pointer = at;
    l->num_copies = l->group = 0;
    l->at = START;
}

/* ---- Local memory ---- */

static uintptr_t local_base;

uint32_t local_address(const void *p)
{
    local_base = (uintptr_t)p & ~(uintptr_t)UINT32_MAX;
    return (uint32_t)(uintptr_t)p;
}

static void *local_at(uint32_t address) { return (void *)(local_base | address); }

void load_local(uint32_t *r, uint32_t address) { memcpy(r, local_at(address), 16); }
void store_local_words(uint32_t address, const uint32_t *x) { memcpy(local_at(address), x, 16); }

void load_16(uint32_t *r, const void *from)
{
    if ((uintptr_t)from % 16 != 0)
        fail("16 bytes from an address that is no multiple of 16");
    memcpy(r, from, 16);
}

void load_8(uint32_t *r, const void *from)
{
    if ((uintptr_t)from % 8 != 0)
        fail("8 bytes from an address that is no multiple of 8");
    memcpy(r, from, 8);
}

void copy_16(uint32_t to, const void *from, int zero)
{
    if (to % 16 != 0 || (!zero && (uintptr_t)from % 16 != 0))
        fail("cp.async of an address that is no multiple of 16");
    if (current->num_copies == MOST_COPIES)
        fail("too many copies under way");
    memset(local_at(to), 0xff, 16);
    current->copies[current->num_copies++] = (copy){local_at(to), zero ? NULL : from, current->group};
}

void close_copies(void) { current->group++; }

void wait_for_copies(int open)
{
    int kept = 0;
    for (int i = 0; i < current->num_copies; i++) {
        const copy *c = &current->copies[i];
        if (c->group >= current->group - open) {
            current->copies[kept++] = *c;
            continue;
        }
        if (c->from != NULL)
            memcpy(c->to, c->from, 16);
        else
            memset(c->to, 0, 16);
    }
    current->num_copies = kept;
}

/* ---- Arithmetic ---- */

float float_of_half(uint16_t bits) { return _cvtsh_ss(bits); }
uint16_t half_of_float(float x) { return _cvtss_sh(x, _MM_FROUND_TO_NEAREST_INT); }

static float float_of_bits(uint32_t bits)
{
    float x;
    memcpy(&x, &bits, sizeof x);
    return x;
}

static uint32_t bits_of_float(float x)
{
    uint32_t bits;
    memcpy(&bits, &x, sizeof bits);
    return bits;
}

static uint32_t bfloat(float x)
{
    const uint32_t bits = bits_of_float(x);
    return x != x ? 0x7fff : (bits + 0x7fff + (bits >> 16 & 1)) >> 16;
}

uint32_t pack_2(float low, float high) { return half_of_float(low) | (uint32_t)half_of_float(high) << 16; }
uint32_t pack_3(float low, float high) { return bfloat(low) | bfloat(high) << 16; }

float exp2_of(float x)
{
    const float y = exp2f(x);
    return y < 0x1p-126f ? 0.0f : y;
}

/* ---- Instructions of a warp ---- */

void load_matrices(uint32_t *r, uint32_t address)
{
    current->words = r;
    current->number[0] = address;
    pause_at(LOAD_MATRICES);
}

void load_matrices_transposed(uint32_t *r, uint32_t address)
{
    current->words = r;
    current->number[0] = address;
    pause_at(LOAD_MATRICES_TRANSPOSED);
}

static void multiply(operation at, float *d, const uint32_t *a, uint32_t b0, uint32_t b1)
{
    current->d = d;
    current->a = a;
    current->number[0] = b0;
    current->number[1] = b1;
    pause_at(at);
}

void multiply_1(float *d, const uint32_t *a, uint32_t b0, uint32_t b1)
{
    multiply(MULTIPLY_TF32, d, a, b0, b1);
}
void multiply_2(float *d, const uint32_t *a, uint32_t b0, uint32_t b1)
{
    multiply(MULTIPLY_F16, d, a, b0, b1);
}
void multiply_3(float *d, const uint32_t *a, uint32_t b0, uint32_t b1)
{
    multiply(MULTIPLY_BF16, d, a, b0, b1);
}

uint32_t bits_across(uint32_t x, uint32_t mask)
{
    uint32_t result = x;
    current->words = &result;
    current->number[0] = x;
    current->number[1] = mask;
    pause_at(ACROSS);
    return result;
}

uint32_t bits_from(uint32_t x, uint32_t lane)
{
    uint32_t result = x;
    current->words = &result;
    current->number[0] = x;
    current->number[1] = lane;
    pause_at(FROM);
    return result;
}

int any_in_warp(int condition)
{
    uint32_t result = 0;
    current->words = &result;
    current->number[0] = condition != 0;
    pause_at(ANY);
    return (int)result;
}

void wait_at(uint32_t name, uint32_t items)
{
    current->number[0] = name;
    current->number[1] = items;
    pause_at(WAIT_AT);
}

void arrive_at(uint32_t name, uint32_t items)
{
    current->number[0] = name;
    current->number[1] = items;
    pause_at(ARRIVE_AT);
}

/* barrier(), get_local_id() and get_group_id(), by the names that clang gives them. */
void emulated_barrier(unsigned flags) __asm__("_Z7barrierj");
size_t emulated_local_id(unsigned axis) __asm__("_Z12get_local_idj");
size_t emulated_group_id(unsigned axis) __asm__("_Z12get_group_idj");

void emulated_barrier(unsigned flags)
{
    (void)flags;
    wait_at(0, (uint32_t)group_items);
}

size_t emulated_local_id(unsigned axis) { return axis == 0 ? (size_t)(current - lanes) : 0; }
size_t emulated_group_id(unsigned axis) { return axis == 1 ? group_number : 0; }

static void do_load_matrices(lane *warp, int transposed)
{
    for (int i = 0; i < LANES; i++)
        for (int matrix = 0; matrix < 4; matrix++) {
            uint16_t pair[2];
            for (int e = 0; e < 2; e++) {
                const int along = i % 4 * 2 + e, row = transposed ? along : i / 4,
                          column = transposed ? i / 4 : along;
                const uint32_t address = warp[8 * matrix + row].number[0];
                if (address % 16 != 0)
                    fail("ldmatrix of an address that is no multiple of 16");
                memcpy(&pair[e], (const char *)local_at(address) + 2 * column, 2);
            }
            warp[i].words[matrix] = pair[0] | (uint32_t)pair[1] << 16;
        }
}

static float half_of(uint32_t word, int high, int is_bf16)
{
    const uint16_t bits = (uint16_t)(word >> 16 * high);
    return is_bf16 ? float_of_bits((uint32_t)bits << 16) : float_of_half(bits);
}

static void do_multiply_16(lane *warp, int is_bf16)
{
    float a[16][16], b[16][8];
    for (int i = 0; i < LANES; i++)
        for (int e = 0; e < 2; e++) {
            const int g = i / 4, k = i % 4 * 2 + e;
            a[g][k] = half_of(warp[i].a[0], e, is_bf16);
            a[g + 8][k] = half_of(warp[i].a[1], e, is_bf16);
            a[g][k + 8] = half_of(warp[i].a[2], e, is_bf16);
            a[g + 8][k + 8] = half_of(warp[i].a[3], e, is_bf16);
            b[k][g] = half_of(warp[i].number[0], e, is_bf16);
            b[k + 8][g] = half_of(warp[i].number[1], e, is_bf16);
        }
    for (int i = 0; i < LANES; i++)
        for (int e = 0; e < 4; e++) {
            const int row = i / 4 + e / 2 * 8, column = i % 4 * 2 + e % 2;
            double sum = warp[i].d[e];
            for (int k = 0; k < 16; k++)
                sum += (double)a[row][k] * b[k][column];
            warp[i].d[e] = (float)sum;
        }
}

/* The units read 19 bits of each number. */
static float tf32(uint32_t word) { return float_of_bits(word & 0xffffe000u); }

static void do_multiply_tf32(lane *warp)
{
    float a[16][8], b[8][8];
    for (int i = 0; i < LANES; i++) {
        const int g = i / 4, k = i % 4;
        a[g][k] = tf32(warp[i].a[0]);
        a[g + 8][k] = tf32(warp[i].a[1]);
        a[g][k + 4] = tf32(warp[i].a[2]);
        a[g + 8][k + 4] = tf32(warp[i].a[3]);
        b[k][g] = tf32(warp[i].number[0]);
        b[k + 4][g] = tf32(warp[i].number[1]);
    }
    for (int i = 0; i < LANES; i++)
        for (int e = 0; e < 4; e++) {
            const int row = i / 4 + e / 2 * 8, column = i % 4 * 2 + e % 2;
            double sum = warp[i].d[e];
            for (int k = 0; k < 8; k++)
                sum += (double)a[row][k] * b[k][column];
            warp[i].d[e] = (float)sum;
        }
}

static void meet(size_t warp, uint32_t name, uint32_t items, int waits)
{
    if (name >= BARRIERS)
        fail("a barrier that is not there");
    if (waits) {
        is_blocked[warp] = 1;
        barriers[name].waiting[barriers[name].num_waiting++] = warp;
    }
    barriers[name].arrived += LANES;
    if (barriers[name].arrived > items)
        fail("more work-items at a barrier than it is for");
    if (barriers[name].arrived < items)
        return;
    for (size_t i = 0; i < barriers[name].num_waiting; i++)
        is_blocked[barriers[name].waiting[i]] = 0;
    barriers[name].arrived = 0;
    barriers[name].num_waiting = 0;
}

static void execute(lane *warp)
{
    int any = 0;
    switch (warp->at) {
    case LOAD_MATRICES:
    case LOAD_MATRICES_TRANSPOSED:
        do_load_matrices(warp, warp->at == LOAD_MATRICES_TRANSPOSED);
        break;
    case MULTIPLY_TF32:
        do_multiply_tf32(warp);
        break;
    case MULTIPLY_F16:
    case MULTIPLY_BF16:
        do_multiply_16(warp, warp->at == MULTIPLY_BF16);
        break;
    case ACROSS:
        for (int i = 0; i < LANES; i++)
            *warp[i].words = warp[(uint32_t)i ^ warp[i].number[1]].number[0];
        break;
    case FROM:
        for (int i = 0; i < LANES; i++)
            *warp[i].words = warp[warp[i].number[1] % LANES].number[0];
        break;
    case ANY:
        for (int i = 0; i < LANES; i++)
            any |= (int)warp[i].number[0];
        for (int i = 0; i < LANES; i++)
            *warp[i].words = (uint32_t)any;
        break;
    case WAIT_AT:
    case ARRIVE_AT:
        meet((size_t)(warp - lanes) / LANES, warp->number[0], warp->number[1], warp->at == WAIT_AT);
        break;
    default:
        break;
    }
}

/* Runs a warp up to its next barrier or its end. */
static void advance(size_t number)
{
    lane *warp = &lanes[number * LANES];
    while (!is_blocked[number] && warp->at != END) {
        for (int i = 0; i < LANES; i++) {
            current = &warp[i];
            warp_switch(&scheduler_pointer, current->stack_pointer);
            if (current->at != warp->at)
                fail("the warp's work-items part ways");
        }
        execute(warp);
    }
}

void warp_run_group(warp_kernel kernel, void *const *buffers, const void *args, size_t items, size_t group)
{
    const size_t warps = items / LANES;
    if (lanes == NULL && (lanes = calloc(MOST_ITEMS, sizeof *lanes)) == NULL)
        fail("out of memory");
    if (items % LANES != 0 || items > MOST_ITEMS)
        fail("work-groups of whole warps, and of 1024 work-items at most, are expected");
    run = kernel;
    run_buffers = buffers;
    run_args = args;
    group_number = group;
    group_items = items;
    memset(barriers, 0, sizeof barriers);
    memset(is_blocked, 0, sizeof is_blocked);
    for (size_t i = 0; i < items; i++)
        prepare(&lanes[i]);
    for (size_t ended = 0; ended < warps;) {
        int advanced = 0;
        ended = 0;
        for (size_t i = 0; i < warps; i++) {
            const size_t warp = group % 2 ? warps - 1 - i : i; /* no order may be relied upon */
            if (!is_blocked[warp] && lanes[warp * LANES].at != END) {
                advance(warp);
                advanced = 1;
            }
            ended += lanes[warp * LANES].at == END;
        }
        if (!advanced && ended < warps)
            fail("all wait at barriers");
    }
}
