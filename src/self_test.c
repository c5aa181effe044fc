#include "self_test.h"

#include "emit.h"
#include "low_cap.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#define WHERE "clattn_plan_create"

/* Far above the rounding of P and O to bfloat16, far below what a wrong element leaves. */
#define TOLERANCE 0.01

typedef struct problem {
    int32_t rows, dim_qk, dim_v, is_bf16;
    double scale, softcap; /* softcap: 0: none */
    float slope;           /* of ALiBi */
    float *q, *k, *v;      /* numbers that float16 and bfloat16 hold exactly */
    uint16_t *bits;        /* of one of them, to be uploaded; then of o */
    float *lse;            /* the kernel's */
    double *weights, *o;   /* of a row */
    cl_int *table;
} problem;

static float float_of_bits(const problem *p, uint16_t bits)
{
    const uint32_t sign = (uint32_t)(bits >> 15) << 31;
    uint32_t word = sign;
    float number;
    if (p->is_bf16)
        word = (uint32_t)bits << 16;
    else if ((bits & 0x7c00) == 0x7c00)
        word |= 0x7f800000u | (uint32_t)(bits & 0x3ff) << 13;
    else if ((bits & 0x7c00) != 0)
        word |= (uint32_t)((bits >> 10 & 0x1f) + 112) << 23 | (uint32_t)(bits & 0x3ff) << 13;
    else
        return (sign != 0 ? -1.0f : 1.0f) * (float)(bits & 0x3ff) * 0x1p-24f;
    memcpy(&number, &word, sizeof number);
    return number;
}

/* Of a number with at most five significant bits, between 2^-5 and 2, or 0. */
static uint16_t bits_of_float(const problem *p, float number)
{
    uint32_t word;
    memcpy(&word, &number, sizeof word);
    if (p->is_bf16)
        return (uint16_t)(word >> 16);
    const uint32_t sign = word >> 31 << 15, exponent = word >> 23 & 0xff;
    return (uint16_t)(exponent == 0 ? sign : sign | (exponent - 112) << 10 | (word >> 13 & 0x3ff));
}

static void fill(float *numbers, size_t count, uint32_t seed)
{
    for (size_t i = 0; i < count; i++) {
        seed = seed * 1664525u + 1013904223u;
        numbers[i] = (float)((int)(seed >> 27) - 15) / 16.0f;
    }
}

/* ---- Memory ---- */

static void problem_release(problem *p, const clattn_allocator *allocator)
{
    void *const all[] = {p->q, p->k, p->v, p->bits, p->lse, p->weights, p->o, p->table};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++)
        clattn__release(allocator, all[i]);
}

static int problem_make(problem *p, const clattn__program *program, const clattn_allocator *allocator)
{
    memset(p, 0, sizeof *p);
    p->rows = 2 * program->tile.block_q + 5;
    p->dim_qk = program->shape.dim_qk_class;
    p->dim_v = program->shape.dim_v_class;
    p->is_bf16 = program->shape.dtype_q == CLATTN_DTYPE_BF16;
    p->scale = 4.0 / sqrt((double)p->dim_qk);
    p->softcap = (program->shape.score_formula & CLATTN__FORMULA_SOFTCAP) != 0 ? 2.0 : 0.0;
    p->slope = (program->shape.score_formula & CLATTN__FORMULA_ALIBI) != 0 ? 0.0625f : 0.0f;
    /* Pages may reach beyond the last row. */
    const size_t kept = (size_t)p->rows + (size_t)program->shape.page_size,
                 wide = (size_t)(p->dim_qk + p->dim_v);
    p->q = clattn__allocate(allocator, kept * wide * sizeof *p->q);
    p->k = clattn__allocate(allocator, kept * wide * sizeof *p->k);
    p->v = clattn__allocate(allocator, kept * wide * sizeof *p->v);
    p->bits = clattn__allocate(allocator, kept * wide * sizeof *p->bits);
    p->lse = clattn__allocate(allocator, kept * sizeof *p->lse);
    p->weights = clattn__allocate(allocator, kept * sizeof *p->weights);
    p->o = clattn__allocate(allocator, wide * sizeof *p->o);
    p->table = clattn__allocate(allocator, kept * sizeof *p->table);
    if (p->q == NULL || p->k == NULL || p->v == NULL || p->bits == NULL || p->lse == NULL ||
        p->weights == NULL || p->o == NULL || p->table == NULL)
        return 0;
    fill(p->q, (size_t)p->rows * (size_t)p->dim_qk, 1);
    fill(p->k, (size_t)p->rows * (size_t)p->dim_qk, 2);
    fill(p->v, (size_t)p->rows * (size_t)p->dim_v, 3);
    for (size_t i = 0; i < kept; i++)
        p->table[i] = (cl_int)i;
    return 1;
}

/* ---- The reference ---- */

/* Row i sees keys 0 .. i. Returns ln(sum exp). */
static double attend(problem *p, int32_t row)
{
    double largest = -INFINITY, sum = 0.0;
    for (int32_t j = 0; j <= row; j++) {
        double dot = 0.0;
        for (int32_t c = 0; c < p->dim_qk; c++)
            dot += (double)p->q[row * p->dim_qk + c] * (double)p->k[j * p->dim_qk + c];
        p->weights[j] = p->scale * dot;
        if (p->softcap > 0.0)
            p->weights[j] = p->softcap * tanh(p->weights[j] / p->softcap);
        p->weights[j] -= (double)p->slope * (double)(row - j);
        largest = fmax(largest, p->weights[j]);
    }
    memset(p->o, 0, (size_t)p->dim_v * sizeof *p->o);
    for (int32_t j = 0; j <= row; j++) {
        const double weight = exp(p->weights[j] - largest);
        sum += weight;
        for (int32_t c = 0; c < p->dim_v; c++)
            p->o[c] += weight * (double)p->v[j * p->dim_v + c];
    }
    for (int32_t c = 0; c < p->dim_v; c++)
        p->o[c] /= sum;
    return largest + log(sum);
}

/* The largest difference of o and lse; NaN if there is one in them. */
static double difference(problem *p)
{
    double most = 0.0;
    for (int32_t row = 0; row < p->rows; row++) {
        double worst = fabs(attend(p, row) - (double)p->lse[row]);
        for (int32_t c = 0; c < p->dim_v; c++) {
            const double here = fabs(p->o[c] - (double)float_of_bits(p, p->bits[row * p->dim_v + c]));
            worst = here <= worst ? worst : here;
        }
        if (!(worst <= most))
            most = worst;
        if (isnan(most))
            return most;
    }
    return most;
}

/* ---- The run ---- */

static cl_mem upload(clattn_context *context, const void *data, size_t size, cl_int *code)
{
    return context->cl.clCreateBuffer(context->cl_context, CL_MEM_READ_WRITE | CL_MEM_COPY_HOST_PTR, size,
                                      (void *)data, code);
}

static cl_mem upload_numbers(clattn_context *context, problem *p, const float *numbers, size_t count,
                             cl_int *code)
{
    for (size_t i = 0; i < count; i++)
        p->bits[i] = bits_of_float(p, numbers[i]);
    return upload(context, p->bits, count * sizeof *p->bits, code);
}

static attention_args args_of(const problem *p, const clattn__program *program)
{
    attention_args args;
    memset(&args, 0, sizeof args);
    args.q.token = args.k.token = p->dim_qk;
    args.v.token = args.o.token = p->dim_v;
    args.lse.token = 1;
    args.k.batch = (cl_long)program->shape.page_size * p->dim_qk; /* from page to page */
    args.v.batch = (cl_long)program->shape.page_size * p->dim_v;
    args.num_pages = p->rows;
    args.window_begin = -((cl_long)1 << 40);
    args.window_end = 1;
    args.q_tiles = args.num_groups = (p->rows + program->tile.block_q - 1) / program->tile.block_q;
    args.heads_q = args.heads_per_kv = args.batch = args.num_splits = 1;
    args.q_len = args.kv_len = p->rows;
    args.head_dim_qk = p->dim_qk;
    args.head_dim_v = p->dim_v;
    args.position_mode = POSITION_TOP_LEFT;
    args.features = p->slope > 0.0f ? FEATURE_LSE | FEATURE_ALIBI : FEATURE_LSE;
    args.transforms = p->slope > 0.0f;
    args.softcap = (float)p->softcap;
    args.scale = (float)p->scale;
    args.scale_log2 = (float)(p->scale * 1.4426950408889634);
    clattn__low_cap(args.low_cap, p->scale, p->softcap);
    args.lse_unit = 1.0f;
    return args;
}

/* One work-group computes all query tiles. On failure *failed names the function. */
static cl_int run(problem *p, clattn__program *program, clattn_context *context,
                  const clattn__memory *buffers, const char **failed)
{
    const clattn__cl *cl = &context->cl;
    clattn__instance *instance = &program->instance[CLATTN__KERNEL_ANY][0];
    const attention_args args = args_of(p, program);
    const size_t count = (size_t)p->rows * (size_t)p->dim_v;
    clattn__emitter emitter = clattn__emit_to_queue(cl, context->warm_queue, 0, NULL, 0);
    cl_int code = clattn__set_arguments(cl, instance, buffers, CLATTN__BUFFERS, &args, sizeof args, failed);
    if (code == CL_SUCCESS)
        code = clattn__emit_kernel(&emitter, instance->kernel,
                                   clattn__work_items(program, CLATTN__KERNEL_ANY), 1, failed);
    clattn__emit_abandon(&emitter);
    if (code != CL_SUCCESS)
        return code;
    *failed = "clEnqueueReadBuffer";
    code = cl->clEnqueueReadBuffer(context->warm_queue, buffers[CLATTN__BUFFER_O].handle, CL_TRUE, 0,
                                   count * sizeof *p->bits, p->bits, 0, NULL, NULL);
    if (code == CL_SUCCESS)
        code = cl->clEnqueueReadBuffer(context->warm_queue, buffers[CLATTN__BUFFER_LSE].handle, CL_TRUE, 0,
                                       (size_t)p->rows * sizeof *p->lse, p->lse, 0, NULL, NULL);
    return code;
}

static cl_int upload_and_run(problem *p, clattn__program *program, clattn_context *context,
                             const char **failed)
{
    const size_t rows = (size_t)p->rows, qk = rows * (size_t)p->dim_qk, v = rows * (size_t)p->dim_v;
    clattn__memory buffers[CLATTN__BUFFERS] = {{CLATTN_MEM_BUFFER, NULL}};
    cl_int code[7] = {CL_SUCCESS};
    buffers[CLATTN__BUFFER_Q].handle = upload_numbers(context, p, p->q, qk, &code[0]);
    buffers[CLATTN__BUFFER_K].handle = upload_numbers(context, p, p->k, qk, &code[1]);
    buffers[CLATTN__BUFFER_V].handle = upload_numbers(context, p, p->v, v, &code[2]);
    memset(p->bits, 0xff, v * sizeof *p->bits); /* NaN: what the kernel leaves out is seen */
    memset(p->lse, 0xff, rows * sizeof *p->lse);
    buffers[CLATTN__BUFFER_O].handle = upload(context, p->bits, v * sizeof *p->bits, &code[3]);
    buffers[CLATTN__BUFFER_LSE].handle = upload(context, p->lse, rows * sizeof *p->lse, &code[4]);
    buffers[CLATTN__BUFFER_BLOCK_TABLE].handle = upload(context, p->table, rows * sizeof *p->table, &code[5]);
    buffers[CLATTN__BUFFER_ALIBI_SLOPES].handle = upload(context, &p->slope, sizeof p->slope, &code[6]);
    cl_int result = CL_SUCCESS;
    *failed = "clCreateBuffer";
    for (int i = 0; i < 7 && result == CL_SUCCESS; i++)
        result = code[i];
    if (result == CL_SUCCESS)
        result = run(p, program, context, buffers, failed);
    for (int i = 0; i < CLATTN__BUFFERS; i++)
        if (buffers[i].handle != NULL)
            context->cl.clReleaseMemObject(buffers[i].handle);
    return result;
}

clattn_status clattn__self_test(clattn__program *program, clattn_context *context, char *reason,
                                size_t capacity)
{
    problem p;
    const char *failed = NULL;
    if (!problem_make(&p, program, &context->allocator)) {
        problem_release(&p, &context->allocator);
        return clattn__fail(&program->log, CLATTN_OUT_OF_HOST_MEMORY, WHERE ": out of host memory");
    }
    const cl_int code = upload_and_run(&p, program, context, &failed);
    const double worst = code == CL_SUCCESS ? difference(&p) : 0.0;
    problem_release(&p, &context->allocator);
    FORWARD_IF_CL_ERROR(&program->log, WHERE, failed, code);
    if (worst <= TOLERANCE)
        return CLATTN_SUCCESS;
    snprintf(reason, capacity, "its results are off by %.3g in the self-test", worst);
    return CLATTN_COMPILE_FAILED;
}
