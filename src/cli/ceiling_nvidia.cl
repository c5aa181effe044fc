// ceiling_nvidia.cl: what NVIDIA's matrix units do at the most by mma.sync (PTX ISA, "Warp level matrix instructions"), from
// compute capability 8.0 on: products of 16-bit numbers or, with TF32, of numbers of 19 bits.

#define CHAINS 8 // independent results of a warp

#ifdef TF32
#define MMA "mma.sync.aligned.m16n8k8.row.col.f32.tf32.tf32.f32"
#define NUMBERS(bits) (((bits) & 0x807fffffu) | 0x3f000000u) // of size 0.5 to 1, with either sign
#else
#define MMA "mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32"
#define NUMBERS(bits) (((bits) & 0x83ff83ffu) | 0x38003800u)
#endif

// `steps` times CHAINS products of a warp. Random numbers: with zeros the units would take less power, and run faster.
__kernel __attribute__((reqd_work_group_size(256, 1, 1))) void matrix_rate(__global float *out, int steps, float factor,
                                                                           float addend)
{
    uint bits = (uint)get_global_id(0) * 2654435761u, a[8], b[4];
    float d[CHAINS][4], sum = 0.0f;
#pragma unroll
    for (int i = 0; i < 12; i++) {
        bits = bits * 1664525u + 1013904223u;
        if (i < 8)
            a[i] = NUMBERS(bits);
        else
            b[i - 8] = NUMBERS(bits);
    }
#pragma unroll
    for (int c = 0; c < CHAINS; c++)
        d[c][0] = d[c][1] = d[c][2] = d[c][3] = factor + addend;
    for (int s = 0; s < steps; s++)
#pragma unroll
        for (int c = 0; c < CHAINS; c++)
            __asm__ volatile(MMA " {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
                             : "+f"(d[c][0]), "+f"(d[c][1]), "+f"(d[c][2]), "+f"(d[c][3])
                             : "r"(a[c % 2 * 4]), "r"(a[c % 2 * 4 + 1]), "r"(a[c % 2 * 4 + 2]), "r"(a[c % 2 * 4 + 3]),
                               "r"(b[c / 2 % 2 * 2]), "r"(b[c / 2 % 2 * 2 + 1]));
#pragma unroll
    for (int c = 0; c < CHAINS; c++)
        sum += d[c][0] + d[c][1] + d[c][2] + d[c][3];
    out[get_global_id(0)] = sum;
}
