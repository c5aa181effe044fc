/* tune_nvidia_mma.c: tile sizes of the nvidia_mma path (cl/nvidia_mma.cl). */
#include "tune.h"

#include <stdio.h>
#include <string.h>

#define ALL (-1) /* of Q's steps */

enum { WARP = 32 };

/* What scores a row can have: these and those before. */
typedef enum scores { LEAN, FORMULA, FULL } scores;

typedef struct row {
    int32_t max_dim;   /* for head dim classes up to this, q.k's and v's */
    int32_t row_tiles; /* of 16 query rows, of a warp */
    int32_t warps;
    int32_t groups; /* that a multiprocessor has to have room for at once */
    int32_t block_k;
    int32_t stages;
    int32_t turns;
    int32_t late;       /* the next tiles are asked for after a turn's first product, not before it */
    int32_t alternates; /* a turn's products do, step by step, where all keys count */
    int32_t q_held;     /* steps of 16 columns (f32: 8) of Q in registers */
    int32_t q_apart;    /* 0: Q is loaded where the ring comes to be; it is then held whole */
    scores most;        /* others would spill */
} row;

/* clang-format off */

/* Best first for each head dim: the first that fits is taken. TFLOP/s on an H200, N = 8192, f16, full and
 * causal, driver 580.159.04, 2026-11-30, where measured. Of 16 bits, the last of each takes no more than the 48 KiB that
 * every driver grants. */
static const row half_rows[] = {
    /* dim, row tiles, warps, groups, keys, stages, turns, late, alternates, Q held, apart, most */
    {64, 2, 8, 1, 64, 3, 1, 0, 1, ALL, 1, FORMULA},
    {64, 2, 8, 1, 64, 4, 1, 0, 1, ALL, 1, FORMULA},
    {64, 2, 8, 1, 64, 4, 1, 0, 1, ALL, 0, FORMULA},
    {64, 2, 8, 1, 32, 4, 1, 0, 0, ALL, 1, FULL},
    {64, 2, 8, 1, 32, 4, 1, 0, 0, ALL, 0, FULL},

    {96, 2, 8, 1, 48, 3, 1, 0, 1, 1, 1, FORMULA},
    {96, 2, 8, 1, 32, 4, 1, 1, 0, 0, 1, FORMULA},
    {96, 1, 8, 1, 32, 4, 1, 1, 0, ALL, 1, FULL},
    {96, 1, 8, 1, 32, 3, 1, 1, 0, ALL, 0, FULL},

    {128, 2, 4, 2, 32, 3, 0, 0, 1, 1, 1, FORMULA},
    {128, 2, 8, 1, 32, 3, 1, 0, 1, 1, 1, FORMULA},
    {128, 1, 8, 1, 32, 3, 1, 0, 0, 0, 1, FULL},
    {128, 1, 8, 1, 32, 2, 0, 0, 0, ALL, 0, FULL},

    {192, 1, 8, 1, 48, 3, 1, 1, 0, 0, 1, LEAN}, /* 289 */
    {192, 1, 8, 1, 32, 3, 1, 1, 0, 0, 1, FULL}, /* 282 */
    {192, 1, 8, 1, 32, 3, 1, 1, 0, ALL, 0, FULL},
    {192, 1, 4, 1, 16, 3, 0, 0, 0, ALL, 0, FULL},

    {256, 1, 8, 1, 32, 2, 0, 0, 0, 0, 1, FORMULA}, /* 261 */
    {256, 1, 8, 1, 16, 3, 1, 0, 0, 0, 1, FULL},
    {256, 1, 8, 1, 32, 2, 0, 0, 0, ALL, 0, LEAN},
    {256, 1, 4, 1, 16, 2, 0, 0, 0, ALL, 0, FORMULA},
};

/* Beyond a head dim of 128 the three terms of a product leave no room for O in the registers. With two row tiles K and V
 * are read and split half as often, which gains far more than what compilers then spill costs: 38 of a loop's 3600
 * instructions at a head dim of 128, 5 of 2300 at 64. */
static const row f32_rows[] = {
    /* dim, row tiles, warps, groups, keys, stages, turns, late, alternates, Q held, apart, most */
    {64, 2, 4, 2, 32, 2, 0, 0, 0, 0, 1, LEAN},    /* 66.7 / 67.5 */
    {64, 1, 8, 1, 64, 2, 0, 0, 0, 0, 1, FORMULA}, /* 59.6 / 60.7 */
    {64, 1, 8, 1, 32, 2, 0, 0, 0, 0, 1, FULL},    /* 49.9 */
    {64, 1, 8, 1, 16, 2, 0, 0, 0, ALL, 0, FULL},

    {96, 1, 8, 1, 32, 2, 0, 0, 0, 0, 1, FULL},
    {96, 1, 4, 1, 8, 2, 0, 0, 0, 0, 1, FULL},

    {128, 2, 8, 1, 32, 2, 0, 0, 0, 0, 1, LEAN},    /* 64.7 / 64.6 */
    {128, 1, 8, 1, 24, 2, 0, 0, 0, 0, 1, FORMULA}, /* 58.9 / 59.7 */
    {128, 1, 8, 1, 16, 2, 0, 0, 0, 0, 1, FULL},    /* 45 */
    {128, 1, 4, 1, 16, 2, 0, 0, 0, 0, 1, FULL},
    {128, 1, 2, 1, 8, 2, 0, 0, 0, 0, 1, FULL},
};

/* clang-format on */

typedef struct table {
    const row *rows;
    int count;
} table;

static table table_of(const clattn__kernel_shape *shape)
{
    const table half = {half_rows, (int)(sizeof half_rows / sizeof *half_rows)};
    const table f32 = {f32_rows, (int)(sizeof f32_rows / sizeof *f32_rows)};
    return shape->dtype_k == CLATTN_DTYPE_F32 ? f32 : half;
}

static int32_t element_bytes(const clattn__kernel_shape *shape)
{
    return shape->dtype_k == CLATTN_DTYPE_F32 ? 4 : 2;
}

static int32_t q_steps(const row *r, const clattn__kernel_shape *shape)
{
    return r->q_held == ALL ? shape->dim_qk_class * element_bytes(shape) / 32 : r->q_held;
}

/* The kernel's own layout (cl/nvidia_tile.cl), and a reference for each of a work-item's rows. */
static uint64_t local_bytes(const row *r, const clattn__kernel_shape *shape)
{
    const int32_t element = element_bytes(shape);
    const int32_t k_pitch = shape->dim_qk_class * element + 16, v_pitch = shape->dim_v_class * element + 16;
    const uint64_t ring = (uint64_t)(r->stages * r->block_k * (k_pitch + v_pitch));
    const uint64_t q = (uint64_t)(16 * r->row_tiles * r->warps * k_pitch);
    const uint64_t references = (uint64_t)(2 * r->row_tiles * WARP * r->warps) * sizeof(float);
    return references + (r->q_apart ? ring + q : ring > q ? ring : q);
}

static void fill_tile(clattn__tile *out, const row *r, const clattn__kernel_shape *shape)
{
    memset(out, 0, sizeof *out);
    out->block_q = 16 * r->row_tiles * r->warps;
    out->block_k = r->block_k;
    out->work_items = WARP * r->warps;
    out->map_rows = 16 * r->row_tiles;
    out->map_keys = r->block_k;
    out->local_bytes = local_bytes(r, shape);
    snprintf(out->options, sizeof out->options,
             "-DBLOCK_Q=%d -DBLOCK_K=%d -DROW_TILES=%d -DWARPS=%d -DSTAGES=%d -DTURNS=%d -DFILL_LATE=%d "
             "-DALTERNATES=%d -DQ_HELD=%d -DQ_APART=%d",
             (int)out->block_q, (int)r->block_k, (int)r->row_tiles, (int)r->warps, (int)r->stages,
             (int)r->turns, (int)r->late, (int)r->alternates, (int)q_steps(r, shape), (int)r->q_apart);
    snprintf(out->label, sizeof out->label, "%dx%d, %d warps, %d stages%s", (int)out->block_q,
             (int)r->block_k, (int)r->warps, (int)r->stages, r->turns ? ", in turns" : "");
}

static scores scores_of(const clattn__kernel_shape *shape)
{
    return shape->score_formula ? FORMULA : shape->score_full ? FULL : LEAN;
}

int clattn__tile_nvidia_mma(clattn__tile *out, const clattn__device *device,
                            const clattn__kernel_shape *shape, int index)
{
    const table table = table_of(shape);
    for (int i = 0; i < table.count; i++) {
        const row *r = &table.rows[i];
        const size_t work_items = (size_t)(WARP * r->warps);
        if (shape->dim_qk_class > r->max_dim || shape->dim_v_class > r->max_dim ||
            scores_of(shape) > r->most || (uint64_t)r->groups * local_bytes(r, shape) > device->local_bytes ||
            work_items > device->max_work_group || work_items > device->max_work_items_0 || index-- > 0)
            continue;
        fill_tile(out, r, shape);
        return 1;
    }
    return 0;
}
