/* tune_cpu.c: tile sizes of the cpu path (cl/cpu.cl).
 *
 * A micro-tile is KEY_TILE keys, or DIM_TILE elements of O, times a panel's vectors of queries. Its
 * accumulators have to hide the latency of a multiply-add on two ports (about 10 do), and with the
 * panel's vectors and one broadcast number they have to fit the registers: 32 with AVX-512, 16 with AVX2
 * and SSE. Wide panels need the fewest loads per multiply-add.
 *
 * A block of K and V is copied once for block_q queries, so block_q is as large as a second-level cache
 * and the stack of a driver's thread allow, where all scratch lies. */
#include "tune.h"

#include <stdio.h>

typedef struct micro_tile {
    int32_t vector_width; /* float lanes */
    int32_t panel_vectors;
    int32_t key_tile, dim_tile;
} micro_tile;

/* The first whose vectors the device has, or the last; narrower ones are candidates behind it. */
static const micro_tile micro_tiles[] = {
    {16, 4, 6, 4},
    {8, 3, 4, 4},
    {4, 3, 4, 4},
};

typedef struct block_size {
    int32_t dims;    /* up to this sum of both head dim classes */
    int32_t block_q; /* rounded down to whole panels */
    int32_t block_k; /* a multiple of every key_tile */
} block_size;

/* The first for the head dims; those for larger ones are candidates behind it. */
static const block_size block_sizes[] = {
    {256, 256, 96},
    {512, 128, 96},
    {2 * CLATTN_MAX_HEAD_DIM, 64, 48},
};

static const micro_tile *find_micro_tile(const clattn__device *device)
{
    const micro_tile *last = &micro_tiles[sizeof micro_tiles / sizeof *micro_tiles - 1];
    const micro_tile *tile = micro_tiles;
    while (tile < last && device->vector_width < (uint32_t)tile->vector_width)
        tile++;
    return tile;
}

static const block_size *find_block_size(const clattn__kernel_shape *shape)
{
    const block_size *size = block_sizes;
    while (size->dims < shape->dim_qk_class + shape->dim_v_class)
        size++;
    return size;
}

int clattn__tile_cpu(clattn__tile *out, const clattn__device *device, const clattn__kernel_shape *shape,
                     int index)
{
    const micro_tile *tile = find_micro_tile(device);
    const block_size *size = find_block_size(shape);
    const int sizes = (int)(block_sizes + sizeof block_sizes / sizeof *block_sizes - size);
    const int tiles = (int)(micro_tiles + sizeof micro_tiles / sizeof *micro_tiles - tile);
    if (index >= sizes + tiles - 1)
        return 0;
    if (index < sizes)
        size += index;
    else
        tile += index - sizes + 1;

    const int32_t panel = tile->panel_vectors * tile->vector_width;
    out->block_q = size->block_q / panel * panel;
    out->block_k = size->block_k;
    out->work_items = 1;
    out->map_rows = panel;
    out->map_keys = size->block_k / 3;
    out->local_bytes = 0;
    snprintf(out->options, sizeof out->options,
             "-DVECTOR_WIDTH=%d -DSCORE_T=float%d -DSCORE_INT_T=int%d -DPANEL_VECTORS=%d -DKEY_TILE=%d "
             "-DDIM_TILE=%d -DBLOCK_Q=%d -DBLOCK_K=%d",
             tile->vector_width, tile->vector_width, tile->vector_width, tile->panel_vectors, tile->key_tile,
             tile->dim_tile, out->block_q, out->block_k);
    snprintf(out->label, sizeof out->label, "%dx%d, panels of %dx%d queries", out->block_q, out->block_k,
             tile->panel_vectors, tile->vector_width);
    return 1;
}

/* ---- Decode (cl/cpu_decode.cl) ----
 *
 * A group of rows shares each load of K and V. Its accumulators are rows times value_vectors for P V, and as
 * many as a vector has lanes for Q K^T: at most half of the registers, the other half holds what is loaded.
 * Blocks of 64 keys keep K, V and scores of common head dims in the second-level cache also where rows are
 * many.
 *
 * Two work-groups a core: with more, one KV head's time goes into beginnings (the first block of a split is
 * not fetched ahead) and combining; with one, numbers of heads that cores do not divide leave some idle. (Two
 * cores, one KV head, four query heads, 8192 keys in f32: 8 splits read 0.83 as fast as a plain sum, 4 splits
 * 0.93, 2 splits 0.92; f16 0.63, 0.65, 0.76.)
 */
typedef struct row_group {
    int32_t vector_width;
    int32_t rows;
    int32_t value_vectors;
} row_group;

static const row_group row_groups[] = {
    {16, 4, 4},
    {8, 4, 2},
    {4, 4, 2},
};

int clattn__tile_cpu_decode(clattn__tile *out, const clattn__device *device,
                            const clattn__kernel_shape *shape, int index)
{
    const row_group *group = row_groups, *const end = row_groups + sizeof row_groups / sizeof *row_groups;
    while (group->vector_width > 4 && device->vector_width < (uint32_t)group->vector_width)
        group++;
    if (index >= end - group)
        return 0;
    group += index; /* narrower ones are candidates behind the widest */
    (void)shape;    /* head dims of all sizes fare well with the same tile */
    out->block_q = 32;
    out->block_k = 64;
    out->work_items = 1;
    out->map_rows = 16;
    out->map_keys = 32;
    out->groups_per_unit = 2;
    out->longest_q = 32; /* f16, 8192 keys, ms a call for q of 32 and 64: 56 and 135, prefill 97 and 77 */
    out->local_bytes = 0;
    snprintf(out->options, sizeof out->options,
             "-DDECODE=1 -DVECTOR_WIDTH=%d -DSCORE_T=float%d -DSCORE_INT_T=int%d -DLARGEST_GROUP=%d "
             "-DVALUE_VECTORS=%d -DBLOCK_Q=%d -DBLOCK_K=%d",
             group->vector_width, group->vector_width, group->vector_width, group->rows, group->value_vectors,
             out->block_q, out->block_k);
    snprintf(out->label, sizeof out->label, "%dx%d, groups of %d rows, %d lanes", out->block_q, out->block_k,
             group->rows, group->vector_width);
    return 1;
}
