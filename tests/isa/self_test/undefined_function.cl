// undefined_function.cl: a declared function without a body compiles. The gate must refuse it.

float nowhere(float x);

__kernel void undefined_function(__global float *out)
{
    out[get_global_id(0)] = nowhere(out[get_global_id(0)]);
}
