/* random_values.h: reproducible random tensors. */
#ifndef CLATTN_RANDOM_VALUES_H
#define CLATTN_RANDOM_VALUES_H

#include <stdint.h>

typedef struct random_state {
    uint64_t state;
} random_state;

uint64_t random_bits(random_state *r);

/* 0 <= x < limit, limit > 0. */
int64_t random_below(random_state *r, int64_t limit);

/* Bell-shaped with mean 0 and deviation 1 (a sum of four uniform numbers: within +-3.47). */
float random_normal(random_state *r);

/* `count` such numbers times `deviation`, in a storage type; to be freed. NULL without memory. */
void *random_tensor(random_state *r, int64_t count, int32_t dtype, float deviation);

#endif
