/* execute.c: what a work-item does by itself. */
#include "execute.h"

#include "machine.h"

#include <immintrin.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

/* For OpenCL's own functions too. */
float float_of_half(uint16_t bits) { return _cvtsh_ss(bits); }
uint16_t half_of_float(float x) { return _cvtss_sh(x, _MM_FROUND_TO_NEAREST_INT); }

static uint32_t bfloat(float x)
{
    const uint32_t bits = bits_of_float(x);
    return x != x ? 0x7fff : (bits + 0x7fff + (bits >> 16 & 1)) >> 16;
}

static float flushed(float x) { return fabsf(x) < 0x1p-126f ? copysignf(0.0f, x) : x; }

/* ---- Operands ---- */

uint64_t operand_special(const ptx_operand *o)
{
    switch (o->kind) {
    case PTX_ITEM:
        return (uint64_t)(current - lanes);
    case PTX_MULTIPROCESSOR:
        return group_number;
    case PTX_MEMORY:
        return program_memory();
    default:
        return 0;
    }
}

void operand_set(frame *f, const ptx_operand *o, uint64_t value)
{
    if (o->kind == PTX_SLOT)
        f->slots[o->index] = value;
    else if (o->kind == PTX_REGISTER)
        f->registers[o->index] = value;
    else if (o->kind != PTX_NOTHING)
        fail("a result that goes nowhere");
}

static float float_at(const frame *f, int operand) { return float_of_bits(value_at(f, operand)); }

/* As the instruction's type has it. */
static int64_t number_at(const frame *f, int operand)
{
    const uint64_t value = value_at(f, operand);
    if (f->at->bits == 64)
        return (int64_t)value;
    return f->at->type == PTX_SIGNED ? (int32_t)value : (int64_t)(uint32_t)value;
}

/* ---- Instructions ---- */

static void move_memory(const frame *f)
{
    const ptx_instruction *i = f->at;
    const int is_load = i->operation == PTX_LOAD, bytes = i->bits / 8 * i->vector;
    const uint64_t address = value_at(f, is_load ? i->vector : 0);
    const int is_local = strncmp(i->name + 3, "shared", 6) == 0;
    if (address % (uint64_t)bytes != 0 || i->num_operands != 1 + i->vector)
        fail("%s at 0x%llx", i->name, (unsigned long long)address);
    if (is_local && is_load)
        local_read((uint32_t)address & ~15u);
    if (is_local && !is_load)
        local_written((uint32_t)address, (size_t)bytes);
    char *at = is_local ? local_at((uint32_t)address, (size_t)bytes) : (char *)(uintptr_t)address;
    for (int v = 0; v < i->vector; v++, at += i->bits / 8) {
        uint64_t value = 0;
        if (is_load) {
            memcpy(&value, at, (size_t)i->bits / 8);
            operand_set((frame *)f, &i->operands[v], value);
        } else {
            value = value_at(f, 1 + v);
            memcpy(at, &value, (size_t)i->bits / 8);
        }
    }
}

static void add_atomically(frame *f)
{
    const size_t bytes = (size_t)f->at->bits / 8;
    void *at = (void *)(uintptr_t)value_at(f, 1);
    uint64_t old = 0;
    memcpy(&old, at, bytes);
    const uint64_t value = old + value_at(f, 2);
    memcpy(at, &value, bytes);
    operand_set(f, &f->at->operands[0], old);
}

static void compare_and_swap(frame *f)
{
    const size_t bytes = (size_t)f->at->bits / 8;
    void *at = (void *)(uintptr_t)value_at(f, 1);
    const uint64_t expected = value_at(f, 2), value = value_at(f, 3);
    uint64_t old = 0;
    memcpy(&old, at, bytes);
    if (memcmp(&old, &expected, bytes) == 0)
        memcpy(at, &value, bytes);
    operand_set(f, &f->at->operands[0], old);
}

static uint64_t compare(const frame *f)
{
    const char *how = f->at->name + strlen("setp.");
    if (f->at->type == PTX_FLOAT) {
        const float x = float_at(f, 1), y = float_at(f, 2);
        return strncmp(how, "lt", 2) == 0   ? x < y
               : strncmp(how, "le", 2) == 0 ? x <= y
               : strncmp(how, "gt", 2) == 0 ? x > y
               : strncmp(how, "ge", 2) == 0 ? x >= y
               : strncmp(how, "eq", 2) == 0 ? x == y
                                            : x != y;
    }
    const int64_t x = number_at(f, 1), y = number_at(f, 2);
    return strncmp(how, "lt", 2) == 0   ? x < y
           : strncmp(how, "le", 2) == 0 ? x <= y
           : strncmp(how, "gt", 2) == 0 ? x > y
           : strncmp(how, "ge", 2) == 0 ? x >= y
           : strncmp(how, "eq", 2) == 0 ? x == y
                                        : x != y;
}

/* prmt without its sign mode. */
static uint32_t permute(uint32_t low, uint32_t high, uint32_t selector)
{
    const uint64_t bytes = (uint64_t)high << 32 | low;
    uint32_t result = 0;
    for (int i = 0; i < 4; i++)
        result |= (uint32_t)(bytes >> 8 * (selector >> 4 * i & 7) & 0xff) << 8 * i;
    return result;
}

/* Whether min or max is of the kind that gives NaN for one, and has one. */
static int keeps_nan(const frame *f)
{
    return strstr(f->at->name, ".NaN.") && (isnan(float_at(f, 1)) || isnan(float_at(f, 2)));
}

/* The half of each operand that begins at `bit`: float holds a product or difference of two exactly enough to
 * round once. */
static uint32_t combine_halves(const frame *f, int bit)
{
    const float x = float_of_half((uint16_t)(value_at(f, 1) >> bit)),
                y = float_of_half((uint16_t)(value_at(f, 2) >> bit));
    return (uint32_t)half_of_float(f->at->operation == PTX_MULTIPLY_HALVES ? x * y : x - y) << bit;
}

static uint64_t compute(const frame *f)
{
    const ptx_instruction *i = f->at;
    const int is_float = i->type == PTX_FLOAT;
    switch (i->operation) {
    case PTX_MOVE:
        return value_at(f, 1);
    case PTX_SELECT:
        return value_at(f, 3) ? value_at(f, 1) : value_at(f, 2);
    case PTX_SET_PREDICATE:
        return compare(f);
    case PTX_PERMUTE:
        return permute((uint32_t)value_at(f, 1), (uint32_t)value_at(f, 2), (uint32_t)value_at(f, 3));
    case PTX_PACK_F16:
        return half_of_float(float_at(f, 2)) | (uint32_t)half_of_float(float_at(f, 1)) << 16;
    case PTX_PACK_BF16:
        return bfloat(float_at(f, 2)) | bfloat(float_at(f, 1)) << 16;
    case PTX_ADD:
        return is_float ? bits_of_float(float_at(f, 1) + float_at(f, 2)) : value_at(f, 1) + value_at(f, 2);
    case PTX_MULTIPLY:
        if (!is_float)
            fail("%s", i->name);
        return bits_of_float(float_at(f, 1) * float_at(f, 2));
    case PTX_MULTIPLY_HALVES:
    case PTX_SUBTRACT_HALVES:
        return combine_halves(f, 0) | combine_halves(f, 16);
    case PTX_FMA:
        return bits_of_float(fmaf(float_at(f, 1), float_at(f, 2), float_at(f, 3)));
    case PTX_MAX: /* fmaxf takes the one that is no NaN, as max.f32 does */
        if (keeps_nan(f))
            return bits_of_float(NAN);
        return is_float ? bits_of_float(fmaxf(float_at(f, 1), float_at(f, 2)))
                        : (uint64_t)(number_at(f, 1) > number_at(f, 2) ? number_at(f, 1) : number_at(f, 2));
    case PTX_MIN:
        if (keeps_nan(f))
            return bits_of_float(NAN);
        return is_float ? bits_of_float(fminf(float_at(f, 1), float_at(f, 2)))
                        : (uint64_t)(number_at(f, 1) < number_at(f, 2) ? number_at(f, 1) : number_at(f, 2));
    case PTX_EXP2:
        return bits_of_float(flushed(exp2f(flushed(float_at(f, 1)))));
    case PTX_LOG2:
        return bits_of_float(log2f(flushed(float_at(f, 1))));
    case PTX_RECIPROCAL:
        return bits_of_float(flushed(1.0f / flushed(float_at(f, 1))));
    default:
        fail("%s", i->name);
    }
}

/* Warps give registers back, or wait for them. */
static void share_registers(const frame *f)
{
    const uint64_t count = value_at(f, 0);
    uint32_t *mine = &warp_registers[(current - lanes) / LANES];
    const int grows = strncmp(f->at->name, "setmaxnreg.inc.", 15) == 0;
    if (count < 24 || count > 256 || count % 8 != 0 ||
        (current == &lanes[(current - lanes) / LANES * LANES] && (grows ? count < *mine : count > *mine)))
        fail("setmaxnreg of %u, where there are %u", (unsigned)count, (unsigned)*mine);
    *mine = (uint32_t)count;
}

static void execute_one(frame *f)
{
    const ptx_instruction *i = f->at;
    if (i->operation >= PTX_FIRST_COLLECTIVE) {
        pause_in(LANE_COLLECTIVE);
        return;
    }
    switch (i->operation) {
    case PTX_LOAD:
    case PTX_STORE:
        move_memory(f);
        break;
    case PTX_ATOMIC_ADD:
        add_atomically(f);
        break;
    case PTX_ATOMIC_CAS:
        compare_and_swap(f);
        break;
    case PTX_FENCE:
        break;
    case PTX_SHOW:
        current->shown = local_clock();
        break;
    case PTX_REGISTERS:
        share_registers(f);
        break;
    case PTX_ARRIVE:
    case PTX_ARRIVE_COPIES:
    case PTX_ARRIVE_EXPECT:
    case PTX_ACQUIRE_MAP:
    case PTX_BEGIN_BARRIER:
    case PTX_CLOSE_COPIES:
    case PTX_COPY:
    case PTX_COPY_BOX:
    case PTX_EXPECT:
    case PTX_REPLACE:
    case PTX_WAIT_COPIES:
    case PTX_WAIT_PHASE:
        copies_execute(f);
        break;
    default:
        operand_set(f, &i->operands[0], compute(f));
        break;
    }
}

void execute_statement(const ptx_statement *s, int num_slots, uint64_t *slots)
{
    frame f;
    f.statement = s;
    f.slots = slots;
    f.num_slots = num_slots;
    current->frame = &f;
    for (int pc = 0; pc < s->length; pc++) {
        const ptx_instruction *i = f.at = &s->code[pc];
        if (i->guard >= 0 && (f.registers[i->guard] != 0) == i->guard_is_false)
            continue;
        if (i->operation == PTX_RETURN)
            break;
        if (i->operation == PTX_BRANCH)
            pc = i->target - 1;
        else
            execute_one(&f);
    }
}
