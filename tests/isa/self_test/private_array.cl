// private_array.cl: an array indexed by a value unknown to the compiler lies in memory, not in registers.
// The gate must refuse it.

__kernel void private_array(__global float *out, const __global int *index)
{
    const int item = get_global_id(0);
    float values[2048];
    for (int i = 0; i < 2048; i++)
        values[i] = out[i * index[item + i]];
    for (int i = 0; i < 2048; i++)
        values[index[item + i] & 2047] += values[i];
    for (int i = 0; i < 2048; i++)
        out[i] = values[index[item + i] & 2047];
}
