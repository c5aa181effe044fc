/* matrix.c: ldmatrix and mma. */
#include "machine.h"

#include <immintrin.h>
#include <string.h>

static void load_matrices(lane *warp, int transposed)
{
    const ptx_operand *o = warp->frame->at->operands;
    const unsigned char *rows[LANES];
    for (int i = 0; i < LANES; i++)
        rows[i] = local_read((uint32_t)operand_value(warp[i].frame, &o[4]));
    for (int i = 0; i < LANES; i++)
        for (int matrix = 0; matrix < 4; matrix++) {
            uint16_t pair[2];
            for (int e = 0; e < 2; e++) {
                const int along = i % 4 * 2 + e, row = transposed ? along : i / 4,
                          column = transposed ? i / 4 : along;
                memcpy(&pair[e], rows[8 * matrix + row] + 2 * column, 2);
            }
            operand_set(warp[i].frame, &o[matrix], pair[0] | (uint32_t)pair[1] << 16);
        }
}

static float half_of(uint32_t word, int high, int is_bf16)
{
    const uint16_t bits = (uint16_t)(word >> 16 * high);
    return is_bf16 ? float_of_bits((uint32_t)bits << 16) : _cvtsh_ss(bits);
}

/* The operands: D, A, B, C, of which D and C are the same registers. */
enum { D = 0, A = 4, B = 8, C = 10 };

static void add_products(lane *warp, int depth, const float *a, const float *b)
{
    const ptx_operand *o = warp->frame->at->operands;
    for (int i = 0; i < LANES; i++)
        for (int e = 0; e < 4; e++) {
            const int row = i / 4 + e / 2 * 8, column = i % 4 * 2 + e % 2;
            double sum = float_of_bits((uint32_t)operand_value(warp[i].frame, &o[C + e]));
            for (int k = 0; k < depth; k++)
                sum += (double)a[row * depth + k] * b[column * depth + k];
            operand_set(warp[i].frame, &o[D + e], bits_of_float((float)sum));
        }
}

static void multiply_16(lane *warp, int is_bf16)
{
    const ptx_operand *o = warp->frame->at->operands;
    float a[16][16], b[8][16];
    for (int i = 0; i < LANES; i++) {
        uint32_t word[6];
        for (int w = 0; w < 6; w++)
            word[w] = (uint32_t)operand_value(warp[i].frame, &o[A + w]);
        for (int e = 0; e < 2; e++) {
            const int g = i / 4, k = i % 4 * 2 + e;
            a[g][k] = half_of(word[0], e, is_bf16);
            a[g + 8][k] = half_of(word[1], e, is_bf16);
            a[g][k + 8] = half_of(word[2], e, is_bf16);
            a[g + 8][k + 8] = half_of(word[3], e, is_bf16);
            b[g][k] = half_of(word[4], e, is_bf16);
            b[g][k + 8] = half_of(word[5], e, is_bf16);
        }
    }
    add_products(warp, 16, &a[0][0], &b[0][0]);
}

/* The units read 19 bits of each number. */
static void multiply_tf32(lane *warp)
{
    const ptx_operand *o = warp->frame->at->operands;
    float a[16][8], b[8][8];
    for (int i = 0; i < LANES; i++) {
        const int g = i / 4, k = i % 4;
        float number[6];
        for (int w = 0; w < 6; w++)
            number[w] = float_of_bits((uint32_t)operand_value(warp[i].frame, &o[A + w]) & 0xffffe000u);
        a[g][k] = number[0];
        a[g + 8][k] = number[1];
        a[g][k + 4] = number[2];
        a[g + 8][k + 4] = number[3];
        b[g][k] = number[4];
        b[g][k + 4] = number[5];
    }
    add_products(warp, 8, &a[0][0], &b[0][0]);
}

void matrix_execute(lane *warp)
{
    static const char f16[] = "mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32",
                      bf16[] = "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32",
                      tf32[] = "mma.sync.aligned.m16n8k8.row.col.f32.tf32.tf32.f32";
    const ptx_instruction *i = warp->frame->at;
    if (i->operation == PTX_LOAD_MATRICES && i->num_operands == 5)
        load_matrices(warp, strstr(i->name, ".trans.") != NULL);
    else if (i->operation == PTX_MMA && i->num_operands == 14 && strcmp(i->name, tf32) == 0)
        multiply_tf32(warp);
    else if (i->operation == PTX_MMA && i->num_operands == 14 &&
             (strcmp(i->name, f16) == 0 || strcmp(i->name, bf16) == 0))
        multiply_16(warp, strcmp(i->name, bf16) == 0);
    else
        fail("%s with %d operands", i->name, i->num_operands);
}
