/* tune_nvidia_wgmma.c: tile sizes of the nvidia_wgmma path (cl/nvidia_wgmma.cl). */
#include "tune.h"

#include <stdio.h>
#include <string.h>

/* Programs that a row is for besides those for the copy engine whose scores are the products: with softcap
 * and ALiBi, without the copy engine. */
enum { FORMULA = 1, CHUNKS = 2, BOTH = FORMULA | CHUNKS };

/* Plans that a row comes first for: with softcap; of others, those with a causal bound; those with neither.
 */
enum { SOFTCAP = 1, CAUSAL = 2, NEITHER = 4, ALL = SOFTCAP | CAUSAL | NEITHER };

typedef struct row {
    int32_t max_qk, max_v; /* for head dim classes up to these */
    int32_t first_for;
    int32_t consumers;                              /* warpgroups of 64 query rows */
    int32_t block_k;                                /* a multiple of 16 */
    int32_t stages;                                 /* blocks of K and V in local memory */
    int32_t q_places;                               /* query tiles in local memory */
    int32_t producer_registers, consumer_registers; /* of a work-item; multiples of 8 */
    int32_t takes;                                  /* FORMULA, CHUNKS or BOTH: others would spill */
} row;

/* Best first. Registers are what a multiprocessor has, 65536, shared out. Four warpgroups hide more of each
 * other's softmax than three, where registers suffice: with 64 keys, which need more rounds. H200, head dim
 * 64, TFLOP/s of four by 64 against three by 128, 2026-12-01: causal, N = 1024 and 8192, 392 against 354 and
 * 578 against 587; full 513 against 507 and 597 against 631; with softcap, N = 8192, causal 496 against 482,
 * full 510 against 506. */
/* clang-format off */
static const row rows[] = {
    {32, 32, ALL, 3, 96, 2, 2, 56, 152, BOTH},

    {64, 64, NEITHER, 3, 128, 4, 2, 32, 160, BOTH},
    {64, 64, CAUSAL | SOFTCAP, 4, 64, 4, 2, 32, 112, BOTH},
    {64, 64, CAUSAL, 3, 128, 4, 2, 32, 160, BOTH},
    {64, 64, ALL, 3, 64, 4, 2, 56, 152, BOTH},
    {64, 64, ALL, 3, 128, 2, 2, 32, 160, CHUNKS},

    {96, 96, ALL, 3, 96, 2, 2, 56, 152, CHUNKS},
    {96, 96, ALL, 3, 64, 3, 2, 56, 152, BOTH},

    {128, 128, ALL, 3, 64, 3, 2, 32, 160, FORMULA},
    {128, 128, ALL, 2, 64, 4, 2, 40, 232, BOTH},

    {192, 128, ALL, 3, 64, 2, 1, 32, 160, FORMULA},
    {192, 128, ALL, 2, 64, 3, 2, 40, 232, BOTH},

    {256, 256, ALL, 2, 64, 2, 1, 40, 232, BOTH},
};
/* clang-format on */

enum { WARPGROUP = 128, REGISTERS = 65536 };

/* As the kernel lays it out: panels of 64 columns, barriers, and what describes query tiles. */
static uint64_t local_bytes(const row *r, const clattn__kernel_shape *shape)
{
    enum { PANEL_ROW = 128, DESCRIPTIONS = 8 * 208 + 560 };
    const int32_t qk_panels = (shape->dim_qk_class + 63) / 64, v_panels = (shape->dim_v_class + 63) / 64;
    const int32_t q = r->q_places * r->consumers * 64 * qk_panels;
    const int32_t kv = r->stages * r->block_k * (qk_panels + v_panels);
    return (uint64_t)(q + kv) * PANEL_ROW + 8 * (uint64_t)(2 * r->q_places + 4 * r->stages) + DESCRIPTIONS;
}

/* The copy engine takes whole pages, or equal parts of them. */
static int suits_copies(const row *r, const clattn__kernel_shape *shape, int uses_engine)
{
    enum { SMALLEST = 16 };
    const int32_t page = shape->page_size;
    if (!uses_engine)
        return (r->takes & CHUNKS) != 0;
    return page == 0 || (page % SMALLEST == 0 && (page % r->block_k == 0 || r->block_k % page == 0));
}

static int fits(const row *r, const clattn__device *device, const clattn__kernel_shape *shape)
{
    const size_t work_items = (size_t)(r->consumers + 1) * WARPGROUP;
    return shape->dim_qk_class <= r->max_qk && shape->dim_v_class <= r->max_v &&
           ((r->takes & FORMULA) || !shape->score_formula) && local_bytes(r, shape) <= device->local_bytes &&
           work_items <= device->max_work_group && work_items <= device->max_work_items_0;
}

/* The narrowest row that fits; NULL: none. */
static const row *first_fit(const clattn__device *device, const clattn__kernel_shape *shape)
{
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++)
        if (fits(&rows[i], device, shape))
            return &rows[i];
    return NULL;
}

static int32_t kind_of(const clattn__kernel_shape *shape)
{
    return (shape->score_formula & CLATTN__FORMULA_SOFTCAP) != 0 ? SOFTCAP
           : shape->is_causal                                    ? CAUSAL
                                                                 : NEITHER;
}

/* Row number *index of those that fit and are for the same head dims and this kind of copies, of those the
 * ones for such plans first. If there are fewer, NULL; then *index is what is left of it. */
static const row *find_row(const clattn__device *device, const clattn__kernel_shape *shape, int uses_engine,
                           int *index)
{
    const row *first = first_fit(device, shape);
    for (int is_meant = 1; is_meant >= 0 && first != NULL; is_meant--)
        for (const row *r = first; r < rows + sizeof rows / sizeof *rows; r++) {
            const int is_for_such = (r->first_for & kind_of(shape)) != 0;
            if (fits(r, device, shape) && r->max_qk == first->max_qk && r->max_v == first->max_v &&
                is_for_such == is_meant && suits_copies(r, shape, uses_engine) && (*index)-- == 0)
                return r;
        }
    return NULL;
}

int clattn__tile_nvidia_wgmma(clattn__tile *out, const clattn__device *device,
                              const clattn__kernel_shape *shape, int index)
{
    /* All rows with the copy engine; then without. */
    int uses_engine = 1;
    const row *r = find_row(device, shape, uses_engine, &index);
    if (r == NULL) {
        uses_engine = 0;
        r = find_row(device, shape, uses_engine, &index);
    }
    if (r == NULL)
        return 0;
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
