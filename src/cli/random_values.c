/* random_values.c: splitmix64 (Steele, Lea and Flood 2014) and a cheap bell curve. */
#include "random_values.h"

#include "tensor_convert.h"

#include <stdlib.h>

uint64_t random_bits(random_state *r)
{
    uint64_t z = r->state += 0x9e3779b97f4a7c15u;
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
    return z ^ (z >> 31);
}

int64_t random_below(random_state *r, int64_t limit) { return (int64_t)(random_bits(r) % (uint64_t)limit); }

float random_normal(random_state *r)
{
    const uint64_t bits = random_bits(r);
    const uint64_t sum = (bits & 0xffff) + ((bits >> 16) & 0xffff) + ((bits >> 32) & 0xffff) + (bits >> 48);
    /* The sum of four uniform numbers in 0 .. 1 has mean 2 and variance 1/3. */
    return ((float)sum / 65536.0f - 2.0f) * 1.7320508f;
}

void *random_tensor(random_state *r, int64_t count, int32_t dtype, float deviation)
{
    const size_t size = dtype_size(dtype);
    unsigned char *values = malloc((size_t)count * size + 1);
    for (int64_t i = 0; values && i < count; i++)
        tensor_store(values + (size_t)i * size, dtype, deviation * random_normal(r));
    return values;
}
