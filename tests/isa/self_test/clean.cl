// clean.cl: nothing wrong here; so that refusing everything does not pass the gate's own test.

__kernel void clean(__global float *out, __global half *halves)
{
    const size_t i = get_global_id(0);
    const float8 x = vload8(i, out);
    vstore8(native_exp2(x) + native_exp(x) + native_log2(x) + native_log(x) + tanh(x), i, out);
    vstore_half_rte(out[i], i, halves);
    out[i] += vload_half(i, halves);
}
