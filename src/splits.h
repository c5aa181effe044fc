/* splits.h: into how many parts decode kernels cut the keys of a sequence. */
#ifndef CLATTN_SPLITS_H
#define CLATTN_SPLITS_H

#include "plan.h"

typedef struct clattn__splits {
    int32_t count;      /* 1 without decode kernels */
    int32_t split_keys; /* of each; 0: the kernels make them even */
    int64_t part_rows;  /* rows of q, of all sequences */
    uint64_t bytes;     /* of workspace for what they give; 0 with one split */
} clattn__splits;

/* Query tiles of a head (a KV head for decode kernels): of each sequence, or of all together if they are
 * packed. */
int64_t clattn__query_tiles(const clattn_plan *plan, const clattn__program *program, int64_t batch,
                            int64_t q_len, int64_t total_q);

/* Of a call with these lengths. */
clattn__splits clattn__splits_of(const clattn_plan *plan, int64_t batch, int64_t q_len, int64_t total_q,
                                 int64_t kv_len);

/* Bytes that calls within these bounds need at most. */
uint64_t clattn__splits_bound(const clattn_plan *plan, int64_t batch, int64_t q_len, int64_t total_q,
                              int64_t kv_len);

#endif
