// spilled_registers.cl: more values alive at once than any target has registers. The gate must refuse it.

#define LIVE 640

__kernel void spilled_registers(__global float *out, const __global float *in, int steps)
{
    const size_t item = get_global_id(0); // else the values were the same for all, and shared registers enough
    float sums[LIVE];
#pragma unroll
    for (int i = 0; i < LIVE; i++)
        sums[i] = in[item * LIVE + i];
    for (int step = 0; step < steps; step++) {
        const float x = in[step];
#pragma unroll
        for (int i = 0; i < LIVE; i++)
            sums[i] = fma(sums[i], x, sums[(i + 1) % LIVE]);
    }
#pragma unroll
    for (int i = 0; i < LIVE; i++)
        out[item * LIVE + i] = sums[i];
}
