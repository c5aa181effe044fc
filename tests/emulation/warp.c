/* warp.c: the work-items of a group take turns. Every one is a fiber; the 32 of a warp run one after the
 * other up to the next instruction that they execute together, which is then done for all.
 *
 * What a GPU does not promise does not happen either, or happens as badly as it may: warps run in several
 * orders, and whoever tells others that something is done lets them run first. */
#include "warp.h"

#include "execute.h"
#include "machine.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { STACK_BYTES = 256 * 1024, NAMED_BARRIERS = 16 };

lane *lanes;
lane *current;
size_t group_number, group_items;
uint32_t warp_registers[MOST_WARPS];

static const warp_launch *launched;
static void *scheduler_pointer;

static struct {
    uint32_t arrived;
    size_t waiting[MOST_WARPS];
    size_t num_waiting;
} named[NAMED_BARRIERS];
static int is_blocked[MOST_WARPS]; /* at one of them */

/* ---- Failure ---- */

static const char *statement_of(const lane *l) { return l->frame ? l->frame->statement->text : "its begin"; }

void fail(const char *format, ...)
{
    va_list arguments;
    fprintf(stderr, "emulated work-group %zu, work-item %zu: ", group_number,
            current ? (size_t)(current - lanes) : 0);
    va_start(arguments, format);
    vfprintf(stderr, format, arguments);
    va_end(arguments);
    fprintf(stderr, "\n    at %.160s\n", current ? statement_of(current) : "the launch");
    abort();
}

_Noreturn static void fail_at_deadlock(void)
{
    fprintf(stderr, "emulated work-group %zu: all wait\n", group_number);
    for (size_t w = 0; w < group_items / LANES; w++) {
        const lane *l = &lanes[w * LANES];
        while (l < &lanes[w * LANES + LANES - 1] && l->state != LANE_PHASE)
            l++;
        fprintf(stderr, "  warp %zu: ", w);
        if (l->state == LANE_PHASE) {
            fprintf(stderr, "parity %u of 0x%x (", (unsigned)l->parity, (unsigned)l->barrier);
            phases_describe(l->barrier);
            fprintf(stderr, ")\n");
        } else
            fprintf(stderr, "%s at %.100s\n", l->state == LANE_ENDED ? "ended" : "waits", statement_of(l));
    }
    abort();
}

/* ---- Fibers ---- */

void warp_switch(void **save, void *load);
__asm__(".text\n.globl warp_switch\n.hidden warp_switch\nwarp_switch:\n"
        "push %rbp\npush %rbx\npush %r12\npush %r13\npush %r14\npush %r15\n"
        "mov %rsp, (%rdi)\nmov %rsi, %rsp\n"
        "pop %r15\npop %r14\npop %r13\npop %r12\npop %rbx\npop %rbp\nret\n");

void pause_in(lane_state state)
{
    current->state = state;
    warp_switch(&current->stack_pointer, scheduler_pointer);
}

static void fiber(void)
{
    launched->kernel(launched->buffers, launched->args);
    for (;;)
        pause_in(LANE_ENDED);
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
    l->shown = 0;
    l->frame = NULL;
    l->state = LANE_READY;
}

/* ---- What kernels call ---- */

void ptx_execute(int statement, int num_slots, uint64_t *slots)
{
    execute_statement(&launched->program->statements[statement], num_slots, slots);
}

uint64_t program_memory(void) { return (uint64_t)(uintptr_t)launched->program->memory; }

/* barrier(), get_local_id() and the like, by the names that clang gives them. */
void emulated_barrier(unsigned flags) __asm__("_Z7barrierj");
size_t emulated_local_id(unsigned axis) __asm__("_Z12get_local_idj");
size_t emulated_group_id(unsigned axis) __asm__("_Z12get_group_idj");
size_t emulated_num_groups(unsigned axis) __asm__("_Z14get_num_groupsj");

void emulated_barrier(unsigned flags)
{
    static ptx_operand name = {.kind = PTX_NUMBER};
    static ptx_instruction wait = {
        .operation = PTX_WAIT_AT, .name = "barrier()", .guard = -1, .num_operands = 1, .operands = &name};
    static char text[] = "barrier()";
    static const ptx_statement whole = {.text = text, .code = &wait, .length = 1};
    (void)flags;
    execute_statement(&whole, 0, NULL);
}

size_t emulated_local_id(unsigned axis) { return axis == 0 ? (size_t)(current - lanes) : 0; }
size_t emulated_group_id(unsigned axis) { return axis == 1 ? group_number : 0; }
size_t emulated_num_groups(unsigned axis) { return axis == 1 ? launched->groups : 1; }

/* ---- Instructions of a warp ---- */

static uint32_t number_of(const lane *l, int operand) { return (uint32_t)value_at(l->frame, operand); }

static void shuffle(lane *warp)
{
    const ptx_instruction *at = warp->frame->at;
    const int flips = strstr(at->name, ".bfly.") != NULL;
    uint32_t before[LANES];
    if (at->num_operands != 5 || number_of(warp, 3) != 31 || number_of(warp, 4) != UINT32_MAX ||
        (!flips && !strstr(at->name, ".idx.")))
        fail("%s", at->name);
    for (int i = 0; i < LANES; i++)
        before[i] = number_of(&warp[i], 1);
    for (int i = 0; i < LANES; i++) {
        const uint32_t which = number_of(&warp[i], 2);
        operand_set(warp[i].frame, &at->operands[0], before[(flips ? (uint32_t)i ^ which : which) % LANES]);
    }
}

static void vote(lane *warp)
{
    const ptx_instruction *at = warp->frame->at;
    uint32_t any = 0;
    if (at->num_operands != 3 || number_of(warp, 2) != UINT32_MAX)
        fail("%s", at->name);
    for (int i = 0; i < LANES; i++)
        any |= number_of(&warp[i], 1);
    for (int i = 0; i < LANES; i++)
        operand_set(warp[i].frame, &at->operands[0], any != 0);
}

/* elect.sync: lane|predicate, mask; as lane 0 */
static void elect(lane *warp)
{
    const ptx_instruction *at = warp->frame->at;
    for (int i = 0; i < LANES; i++)
        operand_set(warp[i].frame, &at->operands[at->num_operands - 2], i == 0);
}

static void meet(lane *warp, int waits)
{
    const size_t number = (size_t)(warp - lanes) / LANES;
    const uint32_t name = number_of(warp, 0);
    const uint32_t items = warp->frame->at->num_operands > 1 ? number_of(warp, 1) : (uint32_t)group_items;
    if (name >= NAMED_BARRIERS)
        fail("a barrier that is not there");
    for (int i = 0; i < LANES; i++)
        if (number_of(&warp[i], 0) != name)
            fail("a warp at several barriers");
    if (waits) {
        is_blocked[number] = 1;
        named[name].waiting[named[name].num_waiting++] = number;
    }
    named[name].arrived += LANES;
    if (named[name].arrived > items)
        fail("more work-items at a barrier than it is for");
    if (named[name].arrived < items)
        return;
    for (size_t i = 0; i < named[name].num_waiting; i++)
        is_blocked[named[name].waiting[i]] = 0;
    named[name].arrived = 0;
    named[name].num_waiting = 0;
}

/* Returns whether others go first. */
static int execute(lane *warp)
{
    current = warp;
    switch (warp->frame->at->operation) {
    case PTX_SHUFFLE:
        shuffle(warp);
        return 0;
    case PTX_VOTE:
        vote(warp);
        return 0;
    case PTX_ELECT:
        elect(warp);
        return 0;
    case PTX_WAIT_AT:
    case PTX_ARRIVE_AT:
        meet(warp, warp->frame->at->operation == PTX_WAIT_AT);
        return 1;
    case PTX_LOAD_MATRICES:
    case PTX_MMA:
        matrix_execute(warp);
        return 0;
    case PTX_WGMMA:
    case PTX_WGMMA_COMMIT:
    case PTX_WGMMA_FENCE:
    case PTX_WGMMA_WAIT:
        products_execute(warp);
        return 0;
    default: /* PTX_MEET_WARP */
        return 0;
    }
}

/* ---- Turns ---- */

typedef struct progress {
    int ran, yields, collective, ended;
} progress;

static int may_run(lane *l, int is_first)
{
    current = l;
    if (l->state == LANE_PHASE)
        return phase_is_complete(l->barrier, l->parity);
    return l->state == LANE_READY || (l->state == LANE_YIELDS && is_first);
}

static progress run_lanes(lane *warp, int is_first)
{
    progress p = {0, 0, 0, 0};
    const lane *at = NULL;
    for (int i = 0; i < LANES; i++) {
        lane *l = &warp[i];
        if (may_run(l, is_first)) {
            warp_switch(&scheduler_pointer, l->stack_pointer);
            p.ran = 1;
        }
        p.yields += l->state == LANE_YIELDS;
        p.ended += l->state == LANE_ENDED;
        if (l->state != LANE_COLLECTIVE)
            continue;
        p.collective++;
        if (at != NULL && at->frame->at != l->frame->at) {
            fprintf(stderr, "some are at %.160s\n", statement_of(at));
            fail("the warp's work-items part ways");
        }
        at = l;
    }
    if (p.collective > 0 && p.ended > 0)
        fail("work-items of a warp wait for some that have ended");
    return p;
}

/* Runs a warp up to where it must, or should, wait. Returns whether it did anything. */
static int advance(size_t number)
{
    lane *warp = &lanes[number * LANES];
    int advanced = 0;
    for (int is_first = 1; !is_blocked[number]; is_first = 0) {
        const progress p = run_lanes(warp, is_first);
        advanced |= p.ran;
        if (p.collective < LANES) {
            if (p.yields > 0 || !p.ran)
                break;
            continue;
        }
        for (int i = 0; i < LANES; i++)
            warp[i].state = LANE_READY;
        advanced = 1;
        if (execute(warp))
            break;
    }
    return advanced;
}

static int has_ended(size_t number)
{
    for (int i = 0; i < LANES; i++)
        if (lanes[number * LANES + (size_t)i].state != LANE_ENDED)
            return 0;
    return 1;
}

/* The warp that is next in a round: in order, backwards, or as it comes. */
static size_t in_turn(size_t turn, size_t warps)
{
    static uint32_t seed = 1;
    switch (group_number % 3) {
    case 0:
        return turn;
    case 1:
        return warps - 1 - turn;
    default:
        seed = seed * 1664525u + 1013904223u;
        return (seed >> 8) % warps;
    }
}

/* Who wants more than are left waits for ever. */
static void check_registers(size_t warps)
{
    enum { REGISTERS = 65536 };
    size_t total = 0;
    for (size_t w = 0; w < warps; w++)
        total += (size_t)warp_registers[w] * LANES;
    if (total > REGISTERS)
        fail("the warps want %zu registers", total);
}

void warp_run_group(const warp_launch *launch, size_t group)
{
    const size_t warps = launch->items / LANES;
    if (lanes == NULL && (lanes = calloc(MOST_ITEMS, sizeof *lanes)) == NULL)
        fail("out of memory");
    if (launch->items % LANES != 0 || launch->items > MOST_ITEMS || warps == 0)
        fail("work-groups of whole warps, and of 1024 work-items at most, are expected");
    launched = launch;
    group_number = group;
    group_items = launch->items;
    memset(named, 0, sizeof named);
    memset(is_blocked, 0, sizeof is_blocked);
    for (size_t i = 0; i < launch->items; i++)
        prepare(&lanes[i]);
    for (size_t w = 0; w < warps; w++)
        warp_registers[w] = launch->program->registers;
    local_begin(launch->program->local, launch->program->local_bytes);
    copies_begin();
    products_begin();
    for (size_t ended = 0, idle = 0; ended < warps;) {
        int advanced = 0;
        ended = 0;
        for (size_t i = 0; i < warps; i++)
            advanced |= advance(in_turn(i, warps));
        for (size_t i = 0; i < warps; i++)
            ended += (size_t)has_ended(i);
        idle = advanced ? 0 : idle + 1;
        if (idle > 64 && ended < warps) /* so many rounds meet every warp */
            fail_at_deadlock();
    }
    current = NULL;
    check_registers(warps);
    copies_check_end();
    products_check_end();
}
