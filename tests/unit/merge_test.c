/* merge_test.c: partial states merged: the softmax over the union of their keys, with parts that saw none,
 * NaN, sinks, base 2, any strides; and that empty parts change no bit. */
#include "fixture.h"
#include "strided.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <tensor_convert.h>

static log_record log_ = LOG_RECORD_INIT;
static clattn_context *context;

typedef struct merge_case {
    int32_t part_type, o_type;
    int batch, heads, rows, dim, parts, packed, base_2, has_lse, has_sinks, layout;
    strided o, lse, sinks;
} merge_case;

/* Parts are the entries of one tensor whose batch axis counts parts times entries. */
static strided part_of(const strided *all, int part, int batch)
{
    strided one = *all;
    one.size[0] = batch;
    one.offset += (size_t)(part * batch * all->stride[0]) * dtype_size(all->dtype);
    return one;
}

static clattn_plan_desc desc_of(const merge_case *c)
{
    clattn_plan_desc desc = CLATTN_PLAN_DESC_INIT;
    desc.operation = CLATTN_OPERATION_MERGE;
    desc.dtype_q = c->part_type;
    desc.dtype_o = c->o_type;
    desc.heads_q = c->heads;
    desc.head_dim_v = c->dim;
    desc.features = (c->packed ? CLATTN_FEATURE_CU_SEQLENS_Q : 0) | (c->has_lse ? CLATTN_FEATURE_LSE : 0) |
                    (c->base_2 ? CLATTN_FEATURE_LSE_BASE_2 : 0) | (c->has_sinks ? CLATTN_FEATURE_SINKS : 0);
    return desc;
}

/* One row in double. *lse is in the unit of the parts'. */
static void merge_reference(const merge_case *c, const strided *o_parts, const strided *lse_parts, int b,
                            int h, int r, double *o, double *lse)
{
    const double unit = c->base_2 ? 1.4426950408889634 : 1.0;
    const double sink = c->has_sinks ? (double)strided_get(&c->sinks, b, h, 0, 0) : -INFINITY;
    double most = sink, sum = 0.0;
    int is_nan = 0;
    for (int p = 0; p < c->parts; p++) {
        const double part = (double)strided_get(lse_parts, p * c->batch + b, h, r, 0) / unit;
        is_nan |= isnan(part);
        most = part > most ? part : most;
    }
    memset(o, 0, (size_t)c->dim * sizeof *o);
    if (sink != -INFINITY)
        sum += exp(sink - most);
    for (int p = 0; p < c->parts; p++) {
        const double part = (double)strided_get(lse_parts, p * c->batch + b, h, r, 0) / unit;
        if (part == -INFINITY)
            continue;
        sum += exp(part - most);
        for (int i = 0; i < c->dim; i++)
            o[i] += exp(part - most) * (double)strided_get(o_parts, p * c->batch + b, h, r, i);
    }
    for (int i = 0; i < c->dim; i++)
        o[i] = is_nan ? NAN : sum == 0.0 ? 0.0 : o[i] / sum;
    *lse = is_nan ? NAN : sum == 0.0 ? -INFINITY : (most + log(sum)) * unit;
}

static double tolerance_of(int32_t dtype)
{
    return dtype == CLATTN_DTYPE_F32 ? 2e-6 : dtype == CLATTN_DTYPE_F16 ? 2.0 / 2048 : 2.0 / 256;
}

static void expect_number(const char *what, double value, double expected, double tolerance)
{
    const int same = isnan(expected)   ? isnan(value)
                     : isinf(expected) ? value == expected
                                       : fabs(value - expected) <= tolerance * (1.0 + fabs(expected));
    if (!same)
        fail_msg("%s is %.9g; expected %.9g +- %g", what, value, expected, tolerance);
}

static void fill_lse(const merge_case *c, strided *lse, uint32_t *random)
{
    for (int p = 0; p < c->parts * c->batch; p++)
        for (int h = 0; h < c->heads; h++)
            for (int r = 0; r < c->rows; r++) {
                const int kind = random_below(random, 12);
                const float value = kind == 0 || r == 1   ? -INFINITY /* row 1 saw nothing at all */
                                    : kind == 1 && r == 2 ? NAN
                                    : kind == 2           ? random_between(random, 80.0f, 90.0f)
                                    : kind == 3           ? -1e30f
                                                          : random_between(random, -6.0f, 6.0f);
                tensor_store(strided_row(lse, p, h, r), CLATTN_DTYPE_F32, value);
            }
}

/* A part that saw no key may hold anything in o. */
static void poison_empty(const merge_case *c, strided *o, const strided *lse)
{
    for (int p = 0; p < c->parts * c->batch; p++)
        for (int h = 0; h < c->heads; h++)
            for (int r = 0; r < c->rows; r++)
                if (strided_get(lse, p, h, r, 0) == -INFINITY)
                    for (int i = 0; i < c->dim; i++)
                        tensor_store(strided_row(o, p, h, r) + (size_t)i * dtype_size(o->dtype), o->dtype,
                                     NAN);
}

static void run_merge(const merge_case *c, const clattn_merge_args *args)
{
    const clattn_plan_desc desc = desc_of(c);
    clattn_plan *plan = plan_with(context, &desc);
    cl_event event = NULL;
    if (clattn_enqueue_merge(plan, device.queue, args, 0, NULL, &event) != CLATTN_SUCCESS)
        fail_msg("%s", log_.last_error);
    event_finish(event);
    clattn_plan_release(plan);
}

static void check_case(merge_case *c, uint32_t seed)
{
    static double expected[CLATTN_MAX_HEAD_DIM];
    uint32_t random = seed;
    strided o_parts = strided_new(c->part_type, c->parts * c->batch, c->heads, c->rows, c->dim, c->layout);
    strided lse_parts =
        strided_new(CLATTN_DTYPE_F32, c->parts * c->batch, c->heads, c->rows, 1, 1 - c->layout);
    c->o = strided_new(c->o_type, c->batch, c->heads, c->rows, c->dim, 1 - c->layout);
    c->lse = strided_new(CLATTN_DTYPE_F32, c->batch, c->heads, c->rows, 1, c->layout);
    c->sinks = strided_new(CLATTN_DTYPE_F32, c->batch, c->heads, 1, 1, c->layout);
    strided_fill(&o_parts, &random);
    strided_fill(&c->sinks, &random);
    fill_lse(c, &lse_parts, &random);
    poison_empty(c, &o_parts, &lse_parts);
    if (c->has_sinks && c->batch > 0)
        tensor_store(strided_row(&c->sinks, 0, 0, 0), CLATTN_DTYPE_F32, -INFINITY);
    strided *const tensors[] = {&o_parts, &lse_parts, &c->o, &c->lse, &c->sinks};
    for (int i = 0; i < 5; i++)
        strided_send(tensors[i]);
    const strided first_o = part_of(&o_parts, 0, c->batch), first_lse = part_of(&lse_parts, 0, c->batch);

    clattn_merge_args args = CLATTN_MERGE_ARGS_INIT;
    args.o_parts = strided_argument(&first_o);
    args.lse_parts = strided_argument(&first_lse);
    args.o = strided_argument(&c->o);
    if (c->has_lse)
        args.lse = strided_argument(&c->lse);
    if (c->has_sinks)
        args.sinks = strided_argument(&c->sinks);
    args.batch = c->packed ? 0 : c->batch;
    args.q_len = c->packed ? 0 : c->rows;
    args.total_q = c->packed ? c->rows : 0;
    args.num_parts = c->parts;
    args.o_part_stride = c->batch * o_parts.stride[0];
    args.lse_part_stride = c->batch * lse_parts.stride[0];
    run_merge(c, &args);

    strided o = c->o, lse = c->lse;
    o.host = strided_receive(&c->o);
    lse.host = strided_receive(&c->lse);
    for (int b = 0; b < c->batch; b++)
        for (int h = 0; h < c->heads; h++)
            for (int r = 0; r < c->rows; r++) {
                double expected_lse;
                merge_reference(c, &o_parts, &lse_parts, b, h, r, expected, &expected_lse);
                for (int i = 0; i < c->dim; i++)
                    expect_number("o", (double)strided_get(&o, b, h, r, i), expected[i],
                                  tolerance_of(c->o_type));
                memcpy(strided_row(&o, b, h, r), strided_row(&c->o, b, h, r), strided_row_bytes(&o));
                if (c->has_lse) {
                    expect_number("lse", (double)strided_get(&lse, b, h, r, 0), expected_lse, 2e-6);
                    memcpy(strided_row(&lse, b, h, r), strided_row(&c->lse, b, h, r), sizeof(float));
                }
            }
    assert_memory_equal(o.host, c->o.host, o.bytes);
    assert_memory_equal(lse.host, c->lse.host, lse.bytes);
    free(o.host);
    free(lse.host);
    for (int i = 0; i < 5; i++)
        strided_release(tensors[i]);
}

static void test_random_cases(void **state)
{
    static const int32_t types[][2] = {{CLATTN_DTYPE_F32, CLATTN_DTYPE_F32},
                                       {CLATTN_DTYPE_F16, CLATTN_DTYPE_F32},
                                       {CLATTN_DTYPE_F32, CLATTN_DTYPE_BF16},
                                       {CLATTN_DTYPE_BF16, CLATTN_DTYPE_F16}};
    uint32_t random = 77;
    (void)state;
    for (int i = 0; i < 160; i++) {
        merge_case c = {types[i % 4][0], types[i % 4][1], 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, {0}, {0}, {0}};
        c.packed = random_below(&random, 3) == 0;
        c.batch = c.packed ? 1 : random_below(&random, 3) + 1;
        c.heads = random_below(&random, 3) + 1;
        c.rows = random_below(&random, 6) + (i % 16 != 0);
        c.dim = i % 8 == 0 ? random_below(&random, 576) + 1 : random_below(&random, 80) + 1;
        c.parts = random_below(&random, 5) + 1;
        c.base_2 = random_below(&random, 2);
        c.has_lse = random_below(&random, 3) != 0;
        c.has_sinks = random_below(&random, 3) == 0;
        c.layout = random_below(&random, 2);
        if (i % 40 == 3 && !c.packed)
            c.batch = 0;
        check_case(&c, 1000u + (uint32_t)i);
    }
}

/* Dense f32 states of one row with the given lses; o of part p is p + 1 in every column. */
static void merge_row(const float *lses, int parts, float o[8], float *lse)
{
    merge_case c = {CLATTN_DTYPE_F32, CLATTN_DTYPE_F32, 1, 1, 1, 8, 0, 0, 0, 1, 0, 0, {0}, {0}, {0}};
    c.parts = parts;
    strided o_parts = strided_new(CLATTN_DTYPE_F32, parts, 1, 1, 8, DENSE);
    strided lse_parts = strided_new(CLATTN_DTYPE_F32, parts, 1, 1, 1, DENSE);
    strided o_out = strided_new(CLATTN_DTYPE_F32, 1, 1, 1, 8, DENSE);
    strided lse_out = strided_new(CLATTN_DTYPE_F32, 1, 1, 1, 1, DENSE);
    for (int p = 0; p < parts; p++) {
        tensor_store(strided_row(&lse_parts, p, 0, 0), CLATTN_DTYPE_F32, lses[p]);
        for (int i = 0; i < 8; i++)
            tensor_store(strided_row(&o_parts, p, 0, 0) + 4 * i, CLATTN_DTYPE_F32,
                         sinf((float)(8 * (lses[p] == -INFINITY ? 99 : (int)(lses[p] * 10)) + i)));
    }
    strided *const tensors[] = {&o_parts, &lse_parts, &o_out, &lse_out};
    for (int i = 0; i < 4; i++)
        strided_send(tensors[i]);
    clattn_merge_args args = CLATTN_MERGE_ARGS_INIT;
    args.o_parts = strided_argument(&o_parts);
    args.lse_parts = strided_argument(&lse_parts);
    args.o = strided_argument(&o_out);
    args.lse = strided_argument(&lse_out);
    args.batch = args.q_len = 1;
    args.num_parts = parts;
    args.o_part_stride = 8;
    args.lse_part_stride = 1;
    run_merge(&c, &args);
    unsigned char *bytes = strided_receive(&o_out), *lse_bytes = strided_receive(&lse_out);
    memcpy(o, bytes, 8 * sizeof *o);
    memcpy(lse, lse_bytes, sizeof *lse);
    free(bytes);
    free(lse_bytes);
    for (int i = 0; i < 4; i++)
        strided_release(tensors[i]);
}

static void test_empty_parts_change_no_bit(void **state)
{
    static const float some[] = {0.3f, -1.7f, 2.9f};
    static const float more[] = {-INFINITY, 0.3f, -INFINITY, -INFINITY, -1.7f, 2.9f, -INFINITY};
    float a[8], b[8], lse_a, lse_b;
    (void)state;
    merge_row(some, 3, a, &lse_a);
    merge_row(more, 7, b, &lse_b);
    assert_memory_equal(a, b, sizeof a);
    assert_memory_equal(&lse_a, &lse_b, sizeof lse_a);
}

/* One part comes back as it is. */
static void test_one_part_is_itself(void **state)
{
    static const float one[] = {-3.7f};
    float o[8], lse;
    (void)state;
    merge_row(one, 1, o, &lse);
    assert_true(lse == -3.7f);
    for (int i = 0; i < 8; i++)
        assert_true(o[i] == sinf((float)(8 * (int)(-3.7f * 10) + i)));
}

/* As many as there may be. */
static void test_most_parts(void **state)
{
    static float lses[CLATTN_MAX_SPLITS];
    float o[8], lse;
    (void)state;
    for (int p = 0; p < CLATTN_MAX_SPLITS; p++)
        lses[p] = 1.0f;
    merge_row(lses, CLATTN_MAX_SPLITS, o, &lse);
    expect_number("lse", (double)lse, 1.0 + log(CLATTN_MAX_SPLITS), 1e-6);
    expect_number("o", (double)o[3], sin(83.0), 1e-6);
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_random_cases), cmocka_unit_test(test_empty_parts_change_no_bit),
        cmocka_unit_test(test_one_part_is_itself), cmocka_unit_test(test_most_parts)};
    fixture_arguments(argc, argv);
    if (fixture_open(NULL) != 0)
        return 1;
    const clattn_context_options options = options_with(&log_);
    context = context_with(&options);
    const int failed = cmocka_run_group_tests(tests, NULL, NULL);
    clattn_context_release(context);
    fixture_close(NULL);
    return failed;
}
