/* convert_test.c: what clattn_enqueue_convert stores: every type byte for byte as the host's own codecs, in
 * any strides, and nothing outside. */
#include "fixture.h"
#include "strided.h"

#include <cache_types.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <tensor_convert.h>

static log_record log_ = LOG_RECORD_INIT;
static clattn_context *context;

static const int32_t types[] = {CLATTN_DTYPE_F32,  CLATTN_DTYPE_F16,     CLATTN_DTYPE_BF16,
                                CLATTN_DTYPE_I8,   CLATTN_DTYPE_F8_E4M3, CLATTN_DTYPE_F8_E5M2,
                                CLATTN_DTYPE_Q8_0, CLATTN_DTYPE_Q4_0,    CLATTN_DTYPE_Q4_1,
                                CLATTN_DTYPE_Q5_0, CLATTN_DTYPE_Q5_1,    CLATTN_DTYPE_IQ4_NL};

/* Values that are hard to round: halves, extremes, nothing, subnormals. */
static void fill_with_extremes(strided *from, uint32_t *random)
{
    static const float values[] = {0.0f, -0.0f, 448.0f, 57344.0f, -1e30f,   1e-30f, 0.5f,  1.5f,
                                   2.5f, -2.5f, 1e-40f, 0.0625f,  65519.0f, 3.0f,   -7.0f, 0.001953125f};
    for (int64_t t = 0; t < from->size[2]; t++)
        for (int64_t i = 0; i < from->size[3]; i++)
            if (t % 3 != 0 && random_below(random, t % 3 == 1 ? 4 : 1) == 0)
                tensor_store(strided_row(from, 0, 0, t) + (size_t)i * dtype_size(from->dtype), from->dtype,
                             values[random_below(random, (int)(sizeof values / sizeof *values))]);
}

static void check_type(int32_t from_type, int32_t to_type, int has_scale, int dim, int batch, int len,
                       int layout, uint32_t seed)
{
    static float x[CLATTN_MAX_HEAD_DIM];
    static unsigned char expected[4 * CLATTN_MAX_HEAD_DIM];
    enum { HEADS = 2 };
    uint32_t random = seed;
    strided from = strided_new(from_type, batch, HEADS, len, dim, layout);
    strided to = strided_new(to_type, batch, HEADS, len, dim, 1 - layout);
    strided scale = strided_new(CLATTN_DTYPE_F32, batch, HEADS, len, 1, layout);
    strided_fill(&from, &random);
    if (batch > 0)
        fill_with_extremes(&from, &random);
    for (int64_t b = 0; b < batch; b++)
        for (int64_t h = 0; h < HEADS; h++)
            for (int64_t t = 0; t < len; t++)
                tensor_store(strided_row(&scale, b, h, t), CLATTN_DTYPE_F32,
                             random_between(&random, 0.01f, 2.0f));
    strided_send(&from);
    strided_send(&to);
    strided_send(&scale);

    clattn_plan_desc desc = CLATTN_PLAN_DESC_INIT;
    desc.operation = CLATTN_OPERATION_CONVERT;
    desc.dtype_q = from_type;
    desc.dtype_k = to_type;
    desc.heads_kv = HEADS;
    desc.head_dim_qk = dim;
    desc.features = has_scale ? CLATTN_FEATURE_K_SCALE : 0;
    clattn_plan *plan = plan_with(context, &desc);
    clattn_convert_args args = CLATTN_CONVERT_ARGS_INIT;
    args.from = strided_argument(&from);
    args.to = strided_argument(&to);
    if (has_scale)
        args.scale = strided_argument(&scale);
    args.batch = batch;
    args.len = len;
    cl_event event = NULL;
    if (clattn_enqueue_convert(plan, device.queue, &args, 0, NULL, &event) != CLATTN_SUCCESS)
        fail_msg("%s", log_.last_error);
    event_finish(event);

    unsigned char *stored = strided_receive(&to), *scales = strided_receive(&scale);
    for (int64_t b = 0; b < batch; b++)
        for (int64_t h = 0; h < HEADS; h++)
            for (int64_t t = 0; t < len; t++) {
                const float given = has_scale ? strided_get(&scale, b, h, t, 0) : 0.0f;
                unsigned char *row = stored + (strided_row(&to, b, h, t) - to.host);
                float used = 1.0f;
                for (int64_t i = 0; i < dim; i++)
                    x[i] = strided_get(&from, b, h, t, i);
                cache_encode_row(to_type, x, dim, to_type == CLATTN_DTYPE_I8 ? 0.0f : given, expected, &used);
                for (size_t i = 0; i < strided_row_bytes(&to); i++)
                    if (row[i] != expected[i])
                        fail_msg("%s to %s: byte %d of row %d is %02x; expected %02x", dtype_name(from_type),
                                 dtype_name(to_type), (int)i, (int)t, row[i], expected[i]);
                memcpy(row, strided_row(&to, b, h, t), strided_row_bytes(&to));
                if (to_type == CLATTN_DTYPE_I8) {
                    unsigned char *place = scales + (strided_row(&scale, b, h, t) - scale.host);
                    assert_true(tensor_load(place, CLATTN_DTYPE_F32) == used);
                    memcpy(place, strided_row(&scale, b, h, t), sizeof(float));
                }
            }
    assert_memory_equal(stored, to.host, to.bytes);
    assert_memory_equal(scales, scale.host, scale.bytes);
    free(stored);
    free(scales);
    clattn_plan_release(plan);
    strided_release(&from);
    strided_release(&to);
    strided_release(&scale);
}

static void test_every_type(void **state)
{
    static const int32_t sources[] = {CLATTN_DTYPE_F32, CLATTN_DTYPE_F16, CLATTN_DTYPE_BF16};
    (void)state;
    for (size_t i = 0; i < sizeof types / sizeof *types; i++) {
        const int is_f8 = types[i] == CLATTN_DTYPE_F8_E4M3 || types[i] == CLATTN_DTYPE_F8_E5M2;
        const int32_t source = sources[i % 3];
        const int has_scale = types[i] == CLATTN_DTYPE_I8;
        const int odd = dtype_elements(types[i]) == 1;
        check_type(CLATTN_DTYPE_F32, types[i], has_scale, odd ? 70 : 96, 2, 7, DENSE, 11u + (uint32_t)i);
        check_type(CLATTN_DTYPE_F32, types[i], has_scale, odd ? 33 : 32, 1, 40, TOKEN_MAJOR,
                   12u + (uint32_t)i);
        check_type(source, types[i], has_scale, odd ? 576 : 64, 2, 3, TOKEN_MAJOR, 13u + (uint32_t)i);
        if (is_f8)
            check_type(CLATTN_DTYPE_F32, types[i], 1, 50, 2, 9, DENSE, 14u + (uint32_t)i);
    }
}

static void test_nothing_to_convert(void **state)
{
    (void)state;
    check_type(CLATTN_DTYPE_F32, CLATTN_DTYPE_F16, 0, 16, 0, 3, DENSE, 1);
    check_type(CLATTN_DTYPE_F32, CLATTN_DTYPE_F16, 0, 16, 2, 0, DENSE, 1);
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_every_type),
                                       cmocka_unit_test(test_nothing_to_convert)};
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
