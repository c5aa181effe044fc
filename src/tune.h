/* tune.h: tile sizes. One readable table per path (src/tune.c); rows that do not fit are skipped. */
#ifndef CLATTN_TUNE_H
#define CLATTN_TUNE_H

#include "device.h"

/* What cl/nvidia_score.cl does to scores. */
enum { CLATTN__FORMULA_SOFTCAP = 1, CLATTN__FORMULA_ALIBI = 2 };

/* Everything about a plan that its kernels are compiled for. */
typedef struct clattn__kernel_shape {
    int32_t dtype_q, dtype_k, dtype_v, dtype_o, dtype_bias;
    int32_t dim_qk_class, dim_v_class; /* clattn__head_dim_class */
    int32_t score_full;                /* something that changes single scores takes part */
    int32_t score_formula;             /* and nothing but these: CLATTN__FORMULA_* */
    int32_t page_size;                 /* 0: no pages */
    int32_t v_in_k;
    int32_t has_status;
    int32_t heads_per_kv; /* tells decode tiles how many rows a call has at least; compiled nowhere */
    int32_t is_causal;    /* likewise, tells where tiles of many rows waste some at the border */
    const char *score_mod, *mask_mod; /* the caller's texts, valid while a plan is made; or NULL */
} clattn__kernel_shape;

/* One way to cut the work. */
typedef struct clattn__tile {
    int32_t block_q;    /* query rows of a work-group */
    int32_t block_k;    /* keys of a step */
    int32_t work_items; /* of a work-group */
    int32_t map_rows;   /* scores of an entry of the tile map; divide block_q and block_k */
    int32_t map_keys;
    int32_t groups_per_unit; /* work-groups that a compute unit runs at a time, where splits (decode) or
                                resident groups aim at it */
    int32_t longest_q;       /* decode: where a plan has prefill kernels too, longer q are theirs */
    int32_t
        registers; /* of a work-item at most, where a kernel shares them out anew; 0: the driver's choice */
    uint64_t local_bytes; /* estimate; the built kernel is asked again */
    char options[256];    /* the path's own -D options */
    char label[64];       /* for clattn_plan_describe: "128x64, 8x16 work-items, separate buffers" */
} clattn__tile;

/* The compiled head dims: 32, 64, 96, 128, then steps of 64 up to 576. */
int32_t clattn__head_dim_class(int32_t head_dim);

/* The candidate number `index` (0: best) of a path for this device and shape, best first. Returns 0 when
 * there is none left. Only rows whose estimates fit the device's limits are candidates. */
int clattn__tile_portable(clattn__tile *out, const clattn__device *device, const clattn__kernel_shape *shape,
                          int index);
int clattn__tile_cpu(clattn__tile *out, const clattn__device *device, const clattn__kernel_shape *shape,
                     int index);
int clattn__tile_nvidia_wgmma(clattn__tile *out, const clattn__device *device,
                              const clattn__kernel_shape *shape, int index);
int clattn__tile_nvidia_mma(clattn__tile *out, const clattn__device *device,
                            const clattn__kernel_shape *shape, int index);
/* Likewise of decode kernels: block_q counts pairs of query and head. */
int clattn__tile_portable_decode(clattn__tile *out, const clattn__device *device,
                                 const clattn__kernel_shape *shape, int index);
int clattn__tile_portable_decode_few(clattn__tile *out, const clattn__device *device,
                                     const clattn__kernel_shape *shape, int index);
int clattn__tile_nvidia_decode(clattn__tile *out, const clattn__device *device,
                               const clattn__kernel_shape *shape, int index);
int clattn__tile_cpu_decode(clattn__tile *out, const clattn__device *device,
                            const clattn__kernel_shape *shape, int index);
/* Of operations that have no tiles: work-groups of CLATTN__FLAT_WORK_ITEMS. */
int clattn__tile_flat(clattn__tile *out, const clattn__device *device, const clattn__kernel_shape *shape,
                      int index);
enum { CLATTN__FLAT_WORK_ITEMS = 64 };

#endif
