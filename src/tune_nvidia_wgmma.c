/* tune_nvidia_wgmma.c: tile sizes of the nvidia_wgmma path (cl/nvidia_wgmma.cl). */
#include "tune.h"

#include <stdio.h>
#include <string.h>

typedef struct row {
    int32_t max_qk, max_v;                          /* for head dim classes up to these */
    int32_t is_causal;                              /* for plans with a causal bound, without, or EITHER */
    int32_t consumers;                              /* warpgroups of 64 query rows */
    int32_t block_k;                                /* a multiple of 16 */
    int32_t stages;                                 /* blocks of K and V in local memory */
    int32_t q_places;                               /* query tiles in local memory */
    int32_t producer_registers, consumer_registers; /* of a work-item; multiples of 8 */
} row;

#define EITHER (-1)

/* The first that fits. Registers are what a multiprocessor has, 65536, shared out. */
/* clang-format off */
static const row rows[] = {
    {32, 32, EITHER, 3, 96, 2, 2, 56, 152},
    {64, 64, EITHER, 3, 128, 2, 2, 32, 160},
    {128, 128, 1, 3, 80, 2, 2, 56, 152},
    {128, 128, 0, 2, 128, 2, 2, 40, 232},
    {192, 128, EITHER, 2, 80, 2, 2, 40, 232},
    {256, 256, EITHER, 2, 64, 2, 1, 40, 232},
};
/* clang-format on */

enum { WARPGROUP = 128, REGISTERS = 65536 };

/* As the kernel lays it out: panels of 64 columns, barriers, and what describes query tiles. */
static uint64_t local_bytes(const row *r, const clattn__kernel_shape *shape)
{
    enum { PANEL_ROW = 128, DESCRIPTIONS = 8 * 144 + 440 };
    const int32_t qk_panels = (shape->dim_qk_class + 63) / 64, v_panels = (shape->dim_v_class + 63) / 64;
    const int32_t q = r->q_places * r->consumers * 64 * qk_panels;
    const int32_t kv = r->stages * r->block_k * (qk_panels + v_panels);
    return (uint64_t)(q + kv) * PANEL_ROW + 8 * (uint64_t)(2 * r->q_places + 4 * r->stages) + DESCRIPTIONS;
}

static int fits(const row *r, const clattn__device *device, const clattn__kernel_shape *shape)
{
    const size_t work_items = (size_t)(r->consumers + 1) * WARPGROUP;
    return shape->dim_qk_class <= r->max_qk && shape->dim_v_class <= r->max_v &&
           (r->is_causal == EITHER || r->is_causal == shape->is_causal) &&
           local_bytes(r, shape) <= device->local_bytes && work_items <= device->max_work_group &&
           work_items <= device->max_work_items_0;
}

int clattn__tile_nvidia_wgmma(clattn__tile *out, const clattn__device *device,
                              const clattn__kernel_shape *shape, int index)
{
    /* Each row twice: with the copy engine, which knows no pages, and without. */
    const int has_pages = shape->page_size > 0, uses_engine = index == 0 && !has_pages;
    size_t i = 0;
    while (i < sizeof rows / sizeof *rows && !fits(&rows[i], device, shape))
        i++;
    if (i == sizeof rows / sizeof *rows || index + has_pages > 1)
        return 0;
    const row *r = &rows[i];
    memset(out, 0, sizeof *out);
    out->block_q = 64 * r->consumers;
    out->block_k = r->block_k;
    out->work_items = (r->consumers + 1) * WARPGROUP;
    out->map_rows = 64;
    out->map_keys = 16;
    out->groups_per_unit = 1;
    out->registers = REGISTERS / out->work_items / 8 * 8;
    out->local_bytes = local_bytes(r, shape);
    snprintf(out->options, sizeof out->options,
             "-DBLOCK_Q=%d -DBLOCK_K=%d -DCONSUMERS=%d -DSTAGES=%d -DQ_PLACES=%d -DPRODUCER_REGISTERS=%d "
             "-DCONSUMER_REGISTERS=%d -DCOPY_ENGINE=%d",
             (int)out->block_q, (int)r->block_k, (int)r->consumers, (int)r->stages, (int)r->q_places,
             (int)r->producer_registers, (int)r->consumer_registers, uses_engine);
    snprintf(out->label, sizeof out->label, "%dx%d, %d stages%s", (int)out->block_q, (int)r->block_k,
             (int)r->stages, uses_engine ? ", copy engine" : "");
    return 1;
}
