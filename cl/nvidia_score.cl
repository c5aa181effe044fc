// nvidia_score.cl: softcap and ALiBi of scores that lie in registers, without branches and loads: what kernels for
// NVIDIA's matrix units share. Where nothing else changes scores the program is compiled with SCORE_FORMULA, which says
// what does, in SCORE_FULL's place: it walks over keys as lean ones do, and its finished scores are in log2 units.

#ifndef SCORE_FORMULA
#define SCORE_FORMULA 0
#endif
#define FORMULA_SOFTCAP 1
#define FORMULA_ALIBI 2

// tanh(x) = x P(x^2) / Q(x^2) up to TANH_LIMIT, and as there beyond. Its error is relative as long as x is small, so
// that a cap far above all scores leaves them as they are. For 16 bits at most 1.1e-6, and 1.7e-6 of the cap at its
// limit; for f32 2.1e-8 and 3.1e-8, before rounding.
#if K_TYPE == TYPE_F32
#define TANH_LIMIT 9.0f
#define TANH_TERMS 5
#define TANH_P {0.9999999794f, 0.1338105939f, 0.003495627512f, 2.060969531e-5f, 1.335543299e-8f}
#define TANH_Q {1.0f, 0.4671437498f, 0.02587713394f, 0.0003285697795f, 7.776891125e-7f}
#else
#define TANH_LIMIT 7.0f
#define TANH_TERMS 4
#define TANH_P {0.9999989693f, 0.1232213226f, 0.002293151915f, 3.99611462e-6f}
#define TANH_Q {1.0f, 0.4565469363f, 0.02115192617f, 0.0001439907331f}
#endif

// x becomes to * tanh(from * x).
typedef struct capping {
    float from;
    float p[TANH_TERMS]; // times `to`
} capping;

inlined capping make_capping(float from, float to)
{
    const float p[TANH_TERMS] = TANH_P;
    capping c;
    c.from = from;
#pragma unroll
    for (int i = 0; i < TANH_TERMS; i++)
        c.p[i] = p[i] * to;
    return c;
}

inlined float capped(float x, const capping *c)
{
    const float q[TANH_TERMS] = TANH_Q;
    const float y = between(x * c->from, -TANH_LIMIT, TANH_LIMIT), z = y * y;
    float above = c->p[TANH_TERMS - 1], below = q[TANH_TERMS - 1];
#pragma unroll
    for (int i = TANH_TERMS - 2; i >= 0; i--) {
        above = fma(above, z, c->p[i]);
        below = fma(below, z, q[i]);
    }
    return y * above * reciprocal_of(below);
}

// tanh(x) where |x| is at most TANH_NEAR, which scores far below their cap are: half the work. Off by 5.7e-7 of it.
#define TANH_NEAR 0.75f
inlined float tanh_near(float x)
{
    const float z = x * x;
    float y = fma(0.0129296323f, z, -0.0500563011f);
    y = fma(y, z, 0.132589832f);
    y = fma(y, z, -0.333282501f);
    return x * fma(y, z, 0.999999464f);
}
