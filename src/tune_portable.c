/* tune_portable.c: tile sizes of the portable path (cl/portable.cl). */
#include "tune.h"

#include <stdio.h>
#include <string.h>

/* Which tensors a row is for, and what stays packed, in its storage type, in local memory. */
#define ANY 0
#define PACK_KV 1  /* k and v of 16 bits, both packed */
#define PACK_QKV 2 /* q, k and v of 16 bits, all packed */

#define WHOLE CLATTN_MAX_HEAD_DIM /* as a piece: all columns at once */

typedef struct row {
    int32_t max_dim;    /* for head dim classes up to this, q.k's and v's */
    int32_t device_kib; /* worth taking from this much local memory on: what it needs, or more where two
                           work-groups should share a multiprocessor */
    int32_t block_q, block_k;
    int32_t items_x, items_y;
    int32_t qk_piece; /* columns of K at a time */
    int32_t q_resident;
    int32_t v_piece; /* keys of V at a time */
    int32_t storage;
    int32_t unroll;  /* of the inner loops, on NVIDIA; elsewhere it costs registers and stays 1 */
    int32_t k_apart; /* K has local memory of its own, beside P and V */
} row;

/* Best first for each head dim: the first that fits is taken. TFLOP/s on an H200 limited to that much local
 * memory, N = 8192, f16 / f32, driver 580.159.04, 2026-11-30, where measured. The last row fits every device
 * that has 16 KiB and work-groups of 64. */
static const row rows[] = {
    /* dim, KiB, block, items, K columns, Q stays, V keys, storage, unroll, K apart */
    {64, 209, 128, 64, 8, 16, WHOLE, 1, 64, ANY, 2, 1}, /* 43.4 / 43.2 */
    {64, 176, 128, 64, 8, 16, WHOLE, 1, 64, ANY, 2, 0}, /* 42.5 / 42.4 */
    {64, 61, 128, 32, 8, 16, WHOLE, 1, 32, ANY, 1, 0},  /* 40.7 / 41.3 */
    {64, 37, 64, 48, 8, 8, WHOLE, 1, 24, ANY, 1, 0},    /* 38.4 / 38.9 */
    {64, 31, 64, 32, 8, 8, WHOLE, 1, 16, ANY, 2, 0},    /* 37.6 / 38.8 */
    {64, 16, 32, 16, 8, 8, WHOLE, 1, 16, ANY, 2, 0},    /* 33.7 / 32.8 */

    {96, 164, 128, 32, 8, 16, WHOLE, 1, 32, ANY, 1, 0},
    {96, 48, 64, 48, 8, 16, WHOLE, 1, 24, ANY, 1, 0},
    {96, 26, 32, 32, 8, 8, WHOLE, 1, 16, ANY, 1, 0},
    {96, 14, 16, 16, 8, 8, WHOLE, 1, 16, ANY, 1, 0},

    {128, 215, 128, 96, 16, 16, WHOLE, 1, 96, ANY, 4, 1}, /* 44.1 / 42.5 */
    {128, 165, 128, 96, 16, 16, WHOLE, 1, 96, ANY, 4, 0}, /* 41.9 / 41.7 */
    {128, 141, 128, 96, 16, 16, WHOLE, 1, 48, ANY, 4, 0}, /* 40.1 for f32 */
    {128, 59, 64, 48, 16, 8, WHOLE, 1, 24, ANY, 2, 0},    /* 38.2 / 38.0 */
    {128, 42, 32, 48, 8, 8, WHOLE, 1, 24, ANY, 1, 0},
    {128, 26, 32, 32, 16, 4, WHOLE, 1, 16, PACK_KV, 2, 0}, /* 33.4 */
    {128, 25, 32, 16, 8, 8, WHOLE, 1, 8, ANY, 4, 0},       /* 32.1 for f32 */
    {128, 13, 32, 16, 8, 8, WHOLE, 1, 8, PACK_QKV, 2, 0},  /* 23.4 */
    {128, 14, 16, 8, 8, 8, WHOLE, 1, 8, ANY, 2, 0},        /* 22.5 for f32 */

    {256, 131, 64, 128, 32, 8, WHOLE, 1, 32, PACK_KV, 1, 0},
    {256, 132, 64, 128, 32, 8, 128, 1, 32, ANY, 1, 0},
    {256, 99, 64, 64, 16, 8, 96, 1, 16, ANY, 1, 0},
    {256, 49, 32, 32, 16, 8, WHOLE, 1, 16, PACK_KV, 1, 0},
    {256, 50, 32, 32, 16, 8, 128, 1, 8, ANY, 1, 0},
    {256, 25, 32, 16, 16, 8, WHOLE, 1, 8, PACK_QKV, 1, 0},
    {256, 20, 32, 16, 16, 8, 64, 0, 8, ANY, 1, 0},
    {256, 13, 16, 8, 8, 8, WHOLE, 1, 4, PACK_QKV, 1, 0},
    {256, 10, 16, 8, 8, 8, 64, 0, 4, ANY, 1, 0},

    {576, 124, 32, 128, 32, 8, 96, 1, 16, ANY, 1, 0},
    {576, 100, 32, 64, 16, 16, 64, 1, 8, ANY, 1, 0},
    {576, 57, 16, 32, 16, 8, 64, 1, 8, ANY, 1, 0},
    {576, 25, 16, 32, 16, 8, 64, 0, 8, ANY, 1, 0},
    {576, 12, 8, 16, 8, 8, 32, 0, 4, ANY, 1, 0},
};

/* Come first where compilers spill when a work-item owns eight query rows: these own four. On Intel's GPUs
 * (ocloc of Debian 12, acm-g10), which need the large register file all the same; with full scores on all but
 * NVIDIA's (LLVM 19, gfx1100). Unmeasured. */
#define INTEL_OPTIONS " -cl-intel-256-GRF-per-thread"
/* clang-format off */
static const row light_rows[] = {
    {64, 31, 64, 32, 8, 16, WHOLE, 1, 16, ANY, 1, 0},
    {96, 41, 64, 32, 8, 16, WHOLE, 1, 16, ANY, 1, 0},
    {128, 51, 64, 32, 16, 16, WHOLE, 1, 16, ANY, 1, 0},
    {128, 26, 32, 32, 16, 8, WHOLE, 1, 16, PACK_KV, 1, 0},
    {128, 25, 32, 16, 16, 8, WHOLE, 1, 8, ANY, 1, 0},
};
/* clang-format on */

#define ROWS ((int)(sizeof rows / sizeof *rows))
#define LIGHT_ROWS ((int)(sizeof light_rows / sizeof *light_rows))

/* On a CPU local memory is nothing but cached memory, and a large tile gains nothing but a long compile:
 * rows for more than this are passed over. */
#define CPU_KIB 16

/* Scores of a work-item: what changes single scores needs registers of its own, and spills with more. */
#define MOST_FULL_SCORES 32

/* The widest piece of at most `piece` columns that divides the head dim; both are multiples of 32. */
static int32_t piece_of(int32_t head_dim, int32_t piece)
{
    int32_t width = piece < head_dim ? piece : head_dim;
    while (head_dim % width != 0)
        width -= 32;
    return width;
}

/* The kernel's own layout: Q, and beside it first K and then P and V; a float for each row, and with full
 * scores one for each key. Bytes of four elements: 16, or 8 where they stay packed. */
static uint64_t local_bytes(const row *r, int32_t qk_piece, const clattn__kernel_shape *shape)
{
    const int32_t q_columns = r->q_resident ? shape->dim_qk_class : qk_piece;
    const int32_t adjacent = r->block_k / r->items_x % 4 == 0;
    const uint64_t q_cell = r->storage == PACK_QKV ? 8 : 16;
    const uint64_t kv_cell = r->storage >= PACK_KV ? 8 : 16;
    const uint64_t q = r->block_q * (q_columns / 4 + 1) * q_cell;
    const uint64_t k = (r->block_k * (qk_piece / 4 + 1) + (adjacent ? r->items_x : 0)) * kv_cell;
    const uint64_t p = r->block_q * (r->block_k / 4 + 1) * (uint64_t)16;
    const uint64_t v = r->v_piece * (shape->dim_v_class / 4) * kv_cell;
    const uint64_t references = r->block_q * (uint64_t)4, flags = 16;
    const uint64_t seen = shape->score_full ? r->block_k * (uint64_t)8 : 4;
    const int v_from_k = shape->v_in_k && qk_piece == shape->dim_qk_class;
    const uint64_t rest = v_from_k ? p : p + v;
    const uint64_t tile = v_from_k || r->k_apart ? (k + 15) / 16 * 16 + rest : k > rest ? k : rest;
    return (q + 15) / 16 * 16 + (tile + 15) / 16 * 16 + references + flags + seen;
}

static int has_16_bits(int32_t dtype) { return dtype == CLATTN_DTYPE_F16 || dtype == CLATTN_DTYPE_BF16; }

static int fits(const row *r, uint64_t bytes, const clattn__device *device, const clattn__kernel_shape *shape)
{
    const size_t work_items = (size_t)(r->items_x * r->items_y);
    const int is_16_bit = has_16_bits(shape->dtype_k) && has_16_bits(shape->dtype_v) &&
                          (r->storage != PACK_QKV || has_16_bits(shape->dtype_q));
    const int is_cpu = (device->type & CL_DEVICE_TYPE_CPU) != 0;
    return shape->dim_qk_class <= r->max_dim && shape->dim_v_class <= r->max_dim &&
           shape->dim_v_class / 4 % r->items_x == 0 && (r->storage == ANY || is_16_bit) &&
           (!is_cpu || r->device_kib <= CPU_KIB) &&
           (!shape->score_full || r->block_q * r->block_k / (r->items_x * r->items_y) <= MOST_FULL_SCORES) &&
           (uint64_t)r->device_kib * 1024 <= device->local_bytes && bytes <= device->local_bytes &&
           work_items <= device->max_work_group && work_items <= device->max_work_items_0;
}

/* What the compiler is like, by the driver's own words. */
typedef struct vendor {
    int is_intel; /* other compilers for Intel's GPUs (Mesa's) neither spill so nor know the options */
    int is_nvidia;
} vendor;

static vendor vendor_of(const clattn__device *device)
{
    const vendor v = {(device->type & CL_DEVICE_TYPE_GPU) != 0 && strstr(device->platform, "Intel") != NULL,
                      strstr(device->vendor, "NVIDIA") != NULL};
    return v;
}

static void fill_tile(clattn__tile *out, const row *r, uint64_t bytes, int32_t qk_piece, const vendor *v,
                      const clattn__kernel_shape *shape, const char *options)
{
    memset(out, 0, sizeof *out);
    out->block_q = r->block_q;
    out->block_k = r->block_k;
    out->work_items = r->items_x * r->items_y;
    out->map_rows = r->block_q;
    out->map_keys = r->block_k;
    out->local_bytes = bytes;
    snprintf(out->options, sizeof out->options,
             "-DBLOCK_Q=%d -DBLOCK_K=%d -DITEMS_X=%d -DITEMS_Y=%d -DQK_PIECE=%d -DQ_RESIDENT=%d "
             "-DV_PIECE=%d -DPACK_Q=%d -DPACK_KV=%d -DUNROLL=%d -DK_APART=%d%s%s",
             (int)r->block_q, (int)r->block_k, (int)r->items_x, (int)r->items_y, (int)qk_piece,
             (int)r->q_resident, (int)r->v_piece, r->storage == PACK_QKV, r->storage >= PACK_KV,
             v->is_nvidia ? (int)r->unroll : 1, (int)r->k_apart, v->is_intel ? INTEL_OPTIONS : "", options);
    snprintf(out->label, sizeof out->label, "%dx%d, %dx%d work-items%s%s", (int)r->block_q, (int)r->block_k,
             (int)r->items_x, (int)r->items_y, r->storage >= PACK_KV ? ", 16-bit tiles" : "",
             qk_piece < shape->dim_qk_class ? ", head dim in pieces" : "");
}

/* Whether light rows come first. */
static int is_light(const clattn__device *device, const clattn__kernel_shape *shape)
{
    const vendor v = vendor_of(device);
    return v.is_intel || (shape->score_full && !v.is_nvidia);
}

/* Whether the row fits and is candidate number *index, which counts down over the tables. */
static int take_row(clattn__tile *out, const row *r, const clattn__device *device,
                    const clattn__kernel_shape *shape, int *index, const char *options)
{
    const vendor v = vendor_of(device);
    const int32_t qk_piece = piece_of(shape->dim_qk_class, r->qk_piece);
    const uint64_t bytes = local_bytes(r, qk_piece, shape);
    if (!fits(r, bytes, device, shape) || (*index)-- > 0)
        return 0;
    fill_tile(out, r, bytes, qk_piece, &v, shape, options);
    return 1;
}

/* V inside K with all of K in local memory, of prefill and decode kernels: for MLA's 576 / 512. Unmeasured.
 */
/* clang-format off */
static const row v_in_k_rows[] = {
    /* dim, KiB, block, items, K columns, Q stays, V keys, storage, unroll, K apart */
    {576, 60, 16, 32, 32, 8, WHOLE, 1, 32, PACK_QKV, 1, 0},
    {576, 30, 8, 16, 16, 8, WHOLE, 1, 16, PACK_QKV, 1, 0},
    {576, 58, 8, 16, 16, 8, WHOLE, 1, 16, ANY, 1, 0},
};
/* clang-format on */

static int take_v_in_k_row(clattn__tile *out, const clattn__device *device, const clattn__kernel_shape *shape,
                           int *index, const char *options)
{
    for (size_t i = 0; shape->v_in_k && i < sizeof v_in_k_rows / sizeof *v_in_k_rows; i++)
        if (shape->dim_qk_class > 256 && take_row(out, &v_in_k_rows[i], device, shape, index, options))
            return 1;
    return 0;
}

int clattn__tile_portable(clattn__tile *out, const clattn__device *device, const clattn__kernel_shape *shape,
                          int index)
{
    if (take_v_in_k_row(out, device, shape, &index, ""))
        return 1;
    for (int i = is_light(device, shape) ? -LIGHT_ROWS : 0; i < ROWS; i++)
        if (take_row(out, i < 0 ? &light_rows[LIGHT_ROWS + i] : &rows[i], device, shape, &index, ""))
            return 1;
    return 0;
}

/* ---- Decode ---- */

/* Work-groups that a compute unit runs at a time; splits aim at as many. A CPU's compute unit runs one, and a
 * few more even out what others take from it. */
static int32_t groups_per_unit(const clattn__device *device)
{
    enum { GPU = 8, CPU = 4 };
    return (device->type & CL_DEVICE_TYPE_CPU) != 0 ? CPU : GPU;
}

/* Tiles of pairs of query and head, by cl/portable.cl; for more rows than the kernel for few ones takes. */
/* clang-format off */
static const row decode_rows[] = {
    /* dim, KiB, block, items, K columns, Q stays, V keys, storage, unroll, K apart */
    {64, 36, 32, 64, 16, 8, WHOLE, 1, 64, ANY, 1, 0},
    {64, 16, 16, 32, 16, 4, WHOLE, 1, 32, ANY, 1, 0},

    {96, 46, 32, 64, 8, 16, WHOLE, 1, 32, ANY, 1, 0},
    {96, 14, 16, 16, 8, 8, WHOLE, 1, 16, ANY, 1, 0},

    {128, 54, 32, 64, 16, 8, WHOLE, 1, 32, ANY, 1, 0},
    {128, 29, 16, 32, 16, 4, WHOLE, 1, 32, ANY, 1, 0},
    {128, 16, 16, 8, 8, 8, WHOLE, 1, 8, ANY, 1, 0},

    {576, 40, 8, 32, 16, 4, 64, 1, 8, ANY, 1, 0},
    {576, 13, 8, 16, 8, 8, 32, 0, 4, ANY, 1, 0},
};

/* Come first where light_rows do, for the same reason. */
static const row light_decode_rows[] = {
    {64, 16, 16, 32, 16, 8, WHOLE, 1, 32, ANY, 1, 0},
    {96, 22, 16, 32, 8, 16, WHOLE, 1, 32, ANY, 1, 0},
    {128, 28, 16, 32, 16, 8, WHOLE, 1, 32, ANY, 1, 0},
};
/* clang-format on */

#define LIGHT_DECODE_ROWS ((int)(sizeof light_decode_rows / sizeof *light_decode_rows))
#define DECODE_ROWS ((int)(sizeof decode_rows / sizeof *decode_rows))

int clattn__tile_portable_decode(clattn__tile *out, const clattn__device *device,
                                 const clattn__kernel_shape *shape, int index)
{
    static const char options[] = " -DDECODE=1";
    enum {
        MAP_ROWS = 4,
        MAP_KEYS = 8,
        LONGEST_Q = 64
    }; /* H200, 16 x 8192 keys, q of 64: 4.0 ms, prefill 6.6 */
    int is_taken = take_v_in_k_row(out, device, shape, &index, options);
    for (int i = is_light(device, shape) ? -LIGHT_DECODE_ROWS : 0; i < DECODE_ROWS && !is_taken; i++)
        is_taken = take_row(out, i < 0 ? &light_decode_rows[LIGHT_DECODE_ROWS + i] : &decode_rows[i], device,
                            shape, &index, options);
    out->map_rows = MAP_ROWS;
    out->map_keys = MAP_KEYS;
    out->groups_per_unit = groups_per_unit(device);
    out->longest_q = LONGEST_Q;
    return is_taken;
}

/* cl/decode.cl. Rows for the heads of a group, rounded up: more would be computed in vain, fewer would read K
 * and V again. GB/s of K and V on an H200 (4190 by copying) with 32 / 8 heads, D = 128, f16, batch x keys 16
 * x 8192 and 64 x 4096, driver 580.159.04, 2026-11-30: one quad and 16 keys a work-item 3176 / 3351; 8 keys
 * 2808 / 2948; two quads and 8 keys 2927 / 3228; groups of 128 work-items 2697 / 2696. */
typedef struct few_row {
    int32_t rows;
    int32_t unroll;          /* keys of a work-item whose loads are under way together */
    int32_t groups_per_unit; /* that an NVIDIA multiprocessor's registers hold */
} few_row;

static const few_row few_rows[] = {{1, 16, 8}, {2, 16, 7}, {4, 16, 6}, {8, 8, 4}};

#define FEW_ROWS ((int)(sizeof few_rows / sizeof *few_rows))

/* Work-items that share a key: as many as a row has quads. */
static int32_t few_lanes(int32_t dim) { return dim / 4; }

/* Work-items in whole numbers of those that share a key of K, or of V: 64 or a few times 32. */
static int32_t few_items(int32_t lanes_qk, int32_t lanes_v)
{
    int32_t items = 64;
    while (items % lanes_qk != 0 || items % lanes_v != 0)
        items += 32;
    return items;
}

int clattn__tile_portable_decode_few(clattn__tile *out, const clattn__device *device,
                                     const clattn__kernel_shape *shape, int index)
{
    enum { MAX_DIM = 256, MAP_ROWS = 4, MAP_KEYS = 32, UNROLL_OF_ALL = 8 };
    const vendor v = vendor_of(device);
    const int32_t lanes = few_lanes(shape->dim_qk_class), lanes_v = few_lanes(shape->dim_v_class);
    const int32_t items = few_items(lanes, lanes_v);
    if (shape->dim_qk_class > MAX_DIM || shape->dim_v_class > MAX_DIM ||
        (size_t)items > device->max_work_group || (size_t)items > device->max_work_items_0)
        return 0;
    int wanted = 0;
    while (wanted < FEW_ROWS - 1 && few_rows[wanted].rows < shape->heads_per_kv)
        wanted++;
    for (int i = wanted; i >= 0; i--) {
        const few_row *r = &few_rows[i];
        /* Intel's compiler (ocloc of Debian 12, acm-g10) keeps 16 of them in memory. */
        const int whole = lanes % r->unroll == 0 && lanes_v % r->unroll == 0 && !v.is_intel;
        const int32_t unroll = whole ? r->unroll : UNROLL_OF_ALL;
        const uint64_t partial = (uint64_t)items * (uint64_t)(((r->rows * lanes + 3) / 4 * 4 + 4) * 4);
        const uint64_t result = (uint64_t)items * (uint64_t)(r->rows * 16);
        const uint64_t bytes = (partial > result ? partial : result) + (uint64_t)(items * r->rows * 4) +
                               (shape->score_full ? (uint64_t)items * 4 : 4) + 4 +
                               (shape->page_size > 0 ? (uint64_t)items * 32 : 16);
        if (bytes > device->local_bytes || index-- > 0)
            continue;
        memset(out, 0, sizeof *out);
        out->block_q = r->rows;
        out->block_k = items;
        out->work_items = items;
        out->map_rows = MAP_ROWS;
        out->map_keys = MAP_KEYS;
        out->groups_per_unit = v.is_nvidia ? r->groups_per_unit : groups_per_unit(device);
        out->local_bytes = bytes;
        snprintf(out->options, sizeof out->options, "-DDECODE=1 -DBLOCK_Q=%d -DITEMS=%d -DUNROLL=%d%s",
                 (int)r->rows, (int)items, (int)unroll, v.is_intel ? INTEL_OPTIONS : "");
        snprintf(out->label, sizeof out->label, "%dx%d, keys straight to registers", (int)r->rows,
                 (int)items);
        return 1;
    }
    return 0;
}
