#include "tile_map.h"

#include <string.h>

/* Optional maps larger than this are left out: all tiles then count as partial. */
#define MAX_OPTIONAL_BYTES (UINT64_C(256) << 20)

static int32_t greatest_common_divisor(int32_t a, int32_t b)
{
    while (b != 0) {
        const int32_t rest = a % b;
        a = b;
        b = rest;
    }
    return a;
}

static int has(const clattn_plan *plan, uint32_t feature) { return (plan->desc.features & feature) != 0; }

/* Entries are tiles of the kernel, or divide those where the caller's tiles need it: an entry must not reach
 * over a border of theirs. */
static void set_size(clattn__tile_map *map, const clattn_plan *plan, const clattn__program *program,
                     int64_t q_len, int64_t kv_len)
{
    const clattn__tile *tile = &program->tile;
    map->rows = tile->map_rows;
    map->keys = tile->map_keys;
    if (has(plan, CLATTN_FEATURE_KEY_TILES)) {
        map->rows = greatest_common_divisor(map->rows, plan->desc.tile_rows);
        map->keys = greatest_common_divisor(map->keys, plan->desc.tile_keys);
    }
    map->height = (q_len + map->rows - 1) / map->rows;
    map->width = (kv_len + map->keys - 1) / map->keys;
    /* Each factor is below 2^31, and heads and batches are only counted if there is anything: the product of
     * the first two stays below 2^62, the whole is saturated. */
    const uint64_t plane = (uint64_t)map->height * (uint64_t)map->width;
    const uint64_t planes = (uint64_t)map->batches * (uint64_t)map->heads;
    map->bytes = plane == 0 || planes == 0 ? 0 : planes > UINT64_MAX / plane ? UINT64_MAX : plane * planes;
    if (!has(plan, CLATTN_FEATURE_KEY_TILES) && map->bytes > MAX_OPTIONAL_BYTES)
        map->bytes = 0;
}

/* Decode kernels look at each score's masks once, so looking through them first gains nothing; lists of the
 * caller's tiles they know by the map alone. */
static int has_map(const clattn_plan *plan, const clattn__program *program, int looks_at_bias)
{
    const int is_decode = program->recipe->is_decode;
    return has(plan, CLATTN_FEATURE_KEY_TILES) ||
           (!is_decode && (has(plan, CLATTN_FEATURE_MASK) || plan->has_mask_mod || looks_at_bias));
}

static clattn__tile_map bound_of(const clattn_plan *plan, const clattn__program *program, int64_t batch,
                                 int64_t q_len, int64_t kv_len)
{
    clattn__tile_map map;
    memset(&map, 0, sizeof map);
    if (program == NULL || !has_map(plan, program, has(plan, CLATTN_FEATURE_BIAS)))
        return map;
    map.batches = batch;
    map.heads = plan->desc.heads_q;
    set_size(&map, plan, program, q_len, kv_len);
    if (!has(plan, CLATTN_FEATURE_KEY_TILES) && map.bytes == 0 && batch > 0 && q_len > 0 && kv_len > 0)
        map.bytes = MAX_OPTIONAL_BYTES; /* a call whose masks repeat may still have a map */
    return map;
}

uint64_t clattn__tile_map_bound(const clattn_plan *plan, int64_t batch, int64_t q_len, int64_t kv_len)
{
    uint64_t most = 0;
    for (int i = 0; i < CLATTN__PROGRAMS; i++) {
        const uint64_t bytes = bound_of(plan, plan->program[i], batch, q_len, kv_len).bytes;
        if (bytes > most)
            most = bytes;
    }
    return most;
}

/* Planes that differ along one axis: of a tensor that is looked at, or of a function of the caller's. */
static int64_t planes_along(const clattn_plan *plan, const clattn_forward_args *args, int axis, int64_t size,
                            int looks_at_bias)
{
    const int differs = plan->has_mask_mod ||
                        (has(plan, CLATTN_FEATURE_MASK) && args->mask.stride[axis] != 0) ||
                        (has(plan, CLATTN_FEATURE_KEY_TILES) &&
                         (args->tiles_count.stride[axis] != 0 || args->tiles_index.stride[axis] != 0)) ||
                        (looks_at_bias && args->bias.stride[axis] != 0);
    return differs ? size : 1;
}

/* A bias is read again by the attention kernel: looking through it first pays where one look serves several
 * heads. */
static int looks_at_bias(const clattn_plan *plan, const clattn_forward_args *args)
{
    enum { FEWEST_USES = 4 };
    const int64_t heads = args->bias.stride[1] != 0 ? 1 : plan->desc.heads_q;
    const int64_t batches = args->bias.stride[0] != 0 ? 1 : args->batch;
    return has(plan, CLATTN_FEATURE_BIAS) && !plan->has_score_mod && heads * batches >= FEWEST_USES;
}

clattn__tile_map clattn__tile_map_of(const clattn_plan *plan, const clattn__program *program,
                                     const clattn_forward_args *args)
{
    clattn__tile_map map;
    memset(&map, 0, sizeof map);
    map.looks_at_bias = looks_at_bias(plan, args);
    if (!has_map(plan, program, map.looks_at_bias))
        return map;
    map.batches = planes_along(plan, args, 0, args->batch, map.looks_at_bias);
    map.heads = planes_along(plan, args, 1, plan->desc.heads_q, map.looks_at_bias);
    set_size(&map, plan, program, args->q_len, args->kv_len);
    return map;
}

int64_t clattn__tile_map_groups(const clattn__tile_map *map)
{
    return map->bytes == 0 ? 0
                           : map->batches * map->heads * map->height *
                                 ((map->width + CLATTN__FLAT_WORK_ITEMS - 1) / CLATTN__FLAT_WORK_ITEMS);
}
