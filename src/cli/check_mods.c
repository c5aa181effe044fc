/* check_mods.c: two pairs of texts: expressions that use the arguments, and function bodies that use the
 * caller's buffer. */
#include "check_mods.h"

#include <math.h>
#include <stdlib.h>

const float check_table[CHECK_TABLE] = {0.5f, -0.25f, -1.5f, 0.0f, 2.0f, 0.125f, -0.75f};

static double score_by_arguments(void *user, double score, int64_t batch, int64_t head_q, int64_t head_kv,
                                 int64_t query, int64_t position, int64_t key)
{
    const float *values = ((const check_mod *)user)->values;
    (void)batch;
    (void)query;
    return score * (double)values[0] + 0.25 * (double)(head_q - head_kv) -
           (double)values[1] * fabs((double)(position - key));
}

static int mask_by_arguments(void *user, int64_t batch, int64_t head_q, int64_t head_kv, int64_t query,
                             int64_t position, int64_t key)
{
    (void)user;
    (void)head_q;
    (void)head_kv;
    (void)position;
    return (key + query + batch) % 3 != 0;
}

static double score_by_table(void *user, double score, int64_t batch, int64_t head_q, int64_t head_kv,
                             int64_t query, int64_t position, int64_t key)
{
    const float *values = ((const check_mod *)user)->values;
    const int64_t entry = (key + query + batch + 2 * head_q + 3 * head_kv) % CHECK_TABLE;
    return key % 5 == 4 ? -INFINITY
                        : score + (double)values[1] * (double)check_table[entry] -
                              (double)values[3] * (double)(position & 3);
}

static int mask_by_table(void *user, int64_t batch, int64_t head_q, int64_t head_kv, int64_t query,
                         int64_t position, int64_t key)
{
    (void)user;
    (void)batch;
    (void)head_q;
    (void)head_kv;
    return position - key < 90 && key % 11 != 3 && check_table[(query + key) % CHECK_TABLE] > -1.0f;
}

const check_mod check_mods[] = {
    {"score * values.x + 0.25f * (float)(head_q - head_kv) - values.y * (float)abs(position - key)",
     "(key + query + batch) % 3 != 0",
     {1.25f, 0.01f, 0.0f, 0.0f},
     2,
     0,
     {score_by_arguments, mask_by_arguments, NULL}},
    {"/* by the caller's \"table\" */\n"
     "const __global float *table = (const __global float *)user;\n"
     "if (key % 5 == 4)\n"
     "    return -INFINITY;\n"
     "const int entry = (key + query + batch + 2 * head_q + 3 * head_kv) % 7;\n"
     "return score + values.y * table[entry] - values.w * (float)(position & 3);",
     "const __global float *table = (const __global float *)user;\n"
     "return position - key < 90 && key % 11 != 3 && table[(query + key) % 7] > -1.0f;",
     {0.0f, 0.5f, 0.0f, 0.25f},
     4,
     1,
     {score_by_table, mask_by_table, NULL}},
};

reference_mod check_mod_twin(const check_mod *mod)
{
    reference_mod twin = mod->twin;
    twin.user = (void *)(uintptr_t)mod;
    return twin;
}
