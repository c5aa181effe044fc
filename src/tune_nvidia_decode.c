/* tune_nvidia_decode.c: tile sizes of decode on NVIDIA's matrix units (cl/nvidia_decode.cl). */
#include "tune.h"

#include <stdio.h>
#include <string.h>

enum { WARP = 32, ROWS = 8, BLOCK_KEYS = 16, PART_PITCH = 66 };

/* Rows of the table are for plans with plain scores and keys that are not in pages, in pages, for any others
 * of 16-bit types, or for caches of bytes. */
typedef enum kind { PLAIN, PAGED, OTHER, BYTES } kind;

typedef struct row {
    int32_t max_dim; /* for head dim classes up to this, q.k's and v's */
    kind kind;
    int32_t row_groups; /* of 8 rows: 2 where a KV head has more heads than 8 */
    int32_t warps;
    int32_t key_blocks; /* of 16 keys, of a warp's step */
    int32_t q_held;     /* Q in registers */
    int32_t ahead;      /* loads of the next step are under way during this one */
    int32_t registers;  /* of a work-item, so that so many groups fit: */
    int32_t groups_per_unit;
} row;

/* The first that fits a kind is taken. (GB/s of K and V on an H200, 4180 by copying, with 32 / 8 heads, D =
 * 128, f16, batch x keys 16 x 8192: 8 warps, one group to a multiprocessor 4133, pages of 16 3582; 4 warps,
 * three groups 3887, 3810; without loads ahead, 8 warps and one or two groups 3312 and 3881. Driver
 * 580.159.04, 2026-11-30, when splits were combined by a kernel of their own.) */
/* clang-format off */
static const row rows[] = {
    /* dim, kind, row groups, warps, blocks, Q held, ahead, registers, groups */
    {64, PLAIN, 1, 8, 2, 1, 1, 0, 1},
    {64, PAGED, 1, 6, 2, 0, 1, 168, 2},
    {64, OTHER, 1, 8, 2, 0, 1, 0, 1},
    {64, OTHER, 2, 8, 2, 0, 1, 0, 1},

    {128, PLAIN, 1, 8, 1, 1, 1, 0, 1},
    {128, PAGED, 1, 6, 1, 0, 1, 168, 2},
    {128, OTHER, 1, 8, 1, 0, 1, 0, 1},
    {128, OTHER, 2, 8, 1, 0, 1, 0, 1},

    {192, PLAIN, 1, 8, 1, 0, 1, 0, 1},
    {192, PAGED, 1, 8, 1, 0, 1, 0, 1},

    {256, OTHER, 1, 8, 1, 0, 0, 0, 1},

    {128, BYTES, 1, 8, 2, 0, 1, 0, 1},
    {128, BYTES, 2, 8, 1, 0, 1, 0, 1},
};
/* clang-format on */

#define NUM_ROWS ((int)(sizeof rows / sizeof *rows))

static int has_bytes(const clattn__kernel_shape *shape)
{
    return shape->dtype_k == CLATTN_DTYPE_I8 || shape->dtype_k == CLATTN_DTYPE_F8_E4M3 ||
           shape->dtype_k == CLATTN_DTYPE_F8_E5M2;
}

static int takes(const clattn__kernel_shape *shape)
{
    const int is_half = shape->dtype_q == CLATTN_DTYPE_F16 || shape->dtype_q == CLATTN_DTYPE_BF16;
    const int fits_q =
        has_bytes(shape) ? shape->dtype_q == CLATTN_DTYPE_F16 : shape->dtype_k == shape->dtype_q;
    return is_half && fits_q && shape->dtype_v == shape->dtype_k && !shape->v_in_k;
}

static int fits(const row *r, const clattn__kernel_shape *shape)
{
    const int wide = shape->dim_qk_class > shape->dim_v_class ? shape->dim_qk_class : shape->dim_v_class;
    const int wanted = shape->heads_per_kv > ROWS && wide <= 128 ? 2 : 1;
    const kind kind = shape->score_full ? OTHER : shape->page_size > 0 ? PAGED : PLAIN;
    const int fits_kind = has_bytes(shape) ? r->kind == BYTES : r->kind == kind || r->kind == OTHER;
    return wide <= r->max_dim && r->row_groups == wanted && fits_kind;
}

/* The kernel's own: 64 columns of each warp's O, its rows' states, and Q. */
static uint64_t local_bytes(const row *r, const clattn__kernel_shape *shape)
{
    const int32_t block_q = ROWS * r->row_groups;
    const int32_t floats = r->warps * block_q * (PART_PITCH + 2) + 2 * block_q;
    return (uint64_t)floats * sizeof(float) +
           (r->q_held ? 16 : (uint64_t)(block_q * shape->dim_qk_class * 2));
}

static void fill_tile(clattn__tile *out, const row *r, const clattn__kernel_shape *shape)
{
    enum { MAP_ROWS = 4 };
    char cap[40] = "";
    memset(out, 0, sizeof *out);
    out->block_q = ROWS * r->row_groups;
    out->block_k = BLOCK_KEYS * r->key_blocks * r->warps;
    out->work_items = WARP * r->warps;
    out->map_rows = MAP_ROWS;
    out->map_keys = BLOCK_KEYS;
    out->groups_per_unit = r->groups_per_unit;
    out->local_bytes = local_bytes(r, shape);
    if (r->registers > 0)
        snprintf(cap, sizeof cap, " -cl-nv-maxrregcount=%d", (int)r->registers);
    snprintf(out->options, sizeof out->options,
             "-DDECODE=1 -DBLOCK_Q=%d -DROW_GROUPS=%d -DWARPS=%d -DKEY_BLOCKS=%d -DQ_HELD=%d -DAHEAD=%d "
             "-DREGISTERS=%d%s",
             (int)out->block_q, (int)r->row_groups, (int)r->warps, (int)r->key_blocks, (int)r->q_held,
             (int)r->ahead, (int)r->registers, cap);
    snprintf(out->label, sizeof out->label, "%dx%d, keys straight to matrix units", (int)out->block_q,
             (int)out->block_k);
}

int clattn__tile_nvidia_decode(clattn__tile *out, const clattn__device *device,
                               const clattn__kernel_shape *shape, int index)
{
    for (int i = 0; i < NUM_ROWS && takes(shape); i++) {
        const row *r = &rows[i];
        const size_t work_items = (size_t)(WARP * r->warps);
        if (!fits(r, shape) || local_bytes(r, shape) > device->local_bytes ||
            work_items > device->max_work_group || work_items > device->max_work_items_0 || index-- > 0)
            continue;
        fill_tile(out, r, shape);
        return 1;
    }
    return 0;
}
