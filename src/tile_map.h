/* tile_map.h: whether a call looks its masks through first (cl/tiles.cl), and the shape of the map that this
 * fills: a byte for each tile of scores. */
#ifndef CLATTN_TILE_MAP_H
#define CLATTN_TILE_MAP_H

#include "plan.h"

typedef struct clattn__tile_map {
    int32_t rows, keys;     /* scores that an entry stands for */
    int64_t height, width;  /* entries of a plane */
    int64_t batches, heads; /* planes; 1 where the masks repeat */
    int32_t looks_at_bias;  /* for its -inf */
    uint64_t bytes;         /* 0: there is no map */
} clattn__tile_map;

/* Bytes of the largest map that a call within these bounds may have. */
uint64_t clattn__tile_map_bound(const clattn_plan *plan, int64_t batch, int64_t q_len, int64_t kv_len);

/* The map of a call by one of the plan's programs, whose tensors have been checked. */
clattn__tile_map clattn__tile_map_of(const clattn_plan *plan, const clattn__program *program,
                                     const clattn_forward_args *args);

/* Work-groups that fill it. */
int64_t clattn__tile_map_groups(const clattn__tile_map *map);

#endif
