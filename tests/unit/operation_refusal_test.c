/* operation_refusal_test.c: calls of append, merge and convert that are refused: each bad argument has a
 * message of its own, and nothing happens; and what looks wrong but is not. */
#include "fixture.h"
#include "strided.h"

#include <fakedev.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

static log_record log_ = LOG_RECORD_INIT;
static clattn_context *context;

enum { BATCH = 2, HEADS_Q = 4, HEADS = 2, NEW = 3, PLACES = 8, DIM = 32 };

/* Everything that some append may need; of each plan's call what it takes. */
static struct {
    strided k_new, v_new, k, v, k_scale, v_scale, q, q_out, cos, sin;
    int_list lens, lens_out, q_lens, cu_seqlens, table, slots, positions, words;
} all;

static void open_tensors(void)
{
    all.k_new = strided_new(CLATTN_DTYPE_F32, BATCH, HEADS, NEW, DIM, DENSE);
    all.v_new = strided_new(CLATTN_DTYPE_F32, BATCH, HEADS, NEW, DIM, DENSE);
    all.k = strided_new(CLATTN_DTYPE_F32, BATCH, HEADS, PLACES, DIM, DENSE);
    all.v = strided_new(CLATTN_DTYPE_F32, BATCH, HEADS, PLACES, DIM, DENSE);
    all.k_scale = strided_new(CLATTN_DTYPE_F32, BATCH, HEADS, PLACES, 1, DENSE);
    all.v_scale = strided_new(CLATTN_DTYPE_F32, BATCH, HEADS, PLACES, 1, DENSE);
    all.q = strided_new(CLATTN_DTYPE_F32, BATCH, HEADS_Q, NEW, DIM, DENSE);
    all.q_out = strided_new(CLATTN_DTYPE_F32, BATCH, HEADS_Q, NEW, DIM, DENSE);
    all.cos = strided_new(CLATTN_DTYPE_F32, 16, 1, 1, DIM / 2, DENSE);
    all.sin = strided_new(CLATTN_DTYPE_F32, 16, 1, 1, DIM / 2, DENSE);
    all.lens = int_list_new(BATCH);
    all.lens_out = int_list_new(BATCH);
    all.q_lens = int_list_new(BATCH);
    all.cu_seqlens = int_list_new(BATCH + 1);
    all.table = int_list_new(BATCH * 2);
    all.slots = int_list_new(BATCH * NEW);
    all.positions = int_list_new(BATCH * NEW);
    all.words = int_list_new(4);
    strided *const tensors[] = {&all.k_new,   &all.v_new, &all.k,     &all.v,   &all.k_scale,
                                &all.v_scale, &all.q,     &all.q_out, &all.cos, &all.sin};
    int_list *const lists[] = {&all.lens,  &all.lens_out, &all.q_lens,    &all.cu_seqlens,
                               &all.table, &all.slots,    &all.positions, &all.words};
    for (size_t i = 0; i < sizeof tensors / sizeof *tensors; i++)
        strided_send(tensors[i]);
    for (size_t i = 0; i < sizeof lists / sizeof *lists; i++) {
        memset(lists[i]->host, 0, (size_t)lists[i]->count * sizeof(int32_t));
        int_list_send(lists[i]);
    }
}

static void close_tensors(void)
{
    strided *const tensors[] = {&all.k_new,   &all.v_new, &all.k,     &all.v,   &all.k_scale,
                                &all.v_scale, &all.q,     &all.q_out, &all.cos, &all.sin};
    int_list *const lists[] = {&all.lens,  &all.lens_out, &all.q_lens,    &all.cu_seqlens,
                               &all.table, &all.slots,    &all.positions, &all.words};
    for (size_t i = 0; i < sizeof tensors / sizeof *tensors; i++)
        strided_release(tensors[i]);
    for (size_t i = 0; i < sizeof lists / sizeof *lists; i++)
        int_list_release(lists[i]);
}

/* ---- Append ---- */

static clattn_plan *append_plan(uint32_t features, int rope)
{
    clattn_plan_desc desc = CLATTN_PLAN_DESC_INIT;
    desc.operation = CLATTN_OPERATION_KV_APPEND;
    desc.heads_q = HEADS_Q;
    desc.heads_kv = HEADS;
    desc.head_dim_qk = DIM;
    desc.features = features;
    desc.page_size = (features & CLATTN_FEATURE_BLOCK_TABLE) != 0 ? 4 : 0;
    desc.rope = rope;
    return plan_with(context, &desc);
}

static clattn_append_args append_args(uint32_t features, int rope)
{
    const int packed = (features & CLATTN_FEATURE_CU_SEQLENS_Q) != 0;
    clattn_append_args args = CLATTN_APPEND_ARGS_INIT;
    args.k_new = strided_argument(&all.k_new);
    args.v_new = strided_argument(&all.v_new);
    args.k = strided_argument(&all.k);
    args.v = strided_argument(&all.v);
    args.kv_lens = int_list_argument(&all.lens, 1, 0);
    args.batch = BATCH;
    args.new_len = NEW;
    args.kv_len = PLACES;
    if (rope != CLATTN_ROPE_NONE) {
        args.q = strided_argument(&all.q);
        args.q_out = strided_argument(&all.q_out);
    }
    if ((features & CLATTN_FEATURE_BLOCK_TABLE) != 0) {
        args.k.stride[0] = args.v.stride[0] = 4 * HEADS * DIM;
        args.k.stride[1] = args.v.stride[1] = DIM;
        args.k.stride[2] = args.v.stride[2] = HEADS * DIM;
        args.num_pages = 4;
    }
    if ((features & CLATTN_FEATURE_SLOT_MAPPING) != 0)
        args.slot_mapping = int_list_argument(&all.slots, NEW, 1);
    else if ((features & CLATTN_FEATURE_BLOCK_TABLE) != 0) {
        args.block_table = int_list_argument(&all.table, 2, 0);
        args.max_blocks = 2;
    }
    if ((features & CLATTN_FEATURE_ROPE_TABLES) != 0) {
        args.rope_cos = strided_argument(&all.cos);
        args.rope_sin = strided_argument(&all.sin);
        args.rope_len = 16;
    }
    if ((features & CLATTN_FEATURE_Q_LENS) != 0)
        args.q_lens = int_list_argument(&all.q_lens, 1, 0);
    if (packed) {
        args.cu_seqlens_q = int_list_argument(&all.cu_seqlens, 0, 0);
        args.total_new = NEW;
    }
    if ((features & CLATTN_FEATURE_STATUS) != 0)
        args.status_words = int_list_argument(&all.words, 0, 0);
    return args;
}

static void expect_no_append(clattn_plan *plan, const clattn_append_args *args, clattn_status expected,
                             const char *says)
{
    char texts[300];
    cl_event event = (cl_event)&event;
    snprintf(texts, sizeof texts, "clattn_enqueue_kv_append: %s", says);
    log_clear(&log_);
    clattn_fakedev_reset();
    expect_refusal(&log_, clattn_enqueue_kv_append(plan, device.queue, args, 0, NULL, &event), expected,
                   texts);
    assert_ptr_equal(event, (cl_event)&event);
    assert_int_equal(clattn_fakedev_calls("clEnqueueNDRangeKernel"), 0);
}

static void expect_append(clattn_plan *plan, const clattn_append_args *args)
{
    cl_event event = NULL;
    log_clear(&log_);
    if (clattn_enqueue_kv_append(plan, device.queue, args, 0, NULL, &event) != CLATTN_SUCCESS)
        fail_msg("%s", log_.last_error);
    event_finish(event);
}

#define REFUSED(field, value, expected, says)         \
    do {                                              \
        clattn_append_args bad = good;                \
        bad.field = value;                            \
        expect_no_append(plan, &bad, expected, says); \
    } while (0)

#define INVALID CLATTN_INVALID_ARGUMENT

static void test_append_numbers(void **state)
{
    clattn_plan *plan = append_plan(0, CLATTN_ROPE_NONE);
    const clattn_append_args good = append_args(0, CLATTN_ROPE_NONE);
    (void)state;
    expect_append(plan, &good);
    expect_no_append(plan, NULL, INVALID, "args is NULL");
    REFUSED(struct_size, 8, INVALID, "args.struct_size = 8");
    REFUSED(reserved, 1, INVALID, "args.reserved = 1|expected 0");
    REFUSED(batch, -1, INVALID, "batch = -1|expected 0 to 2147483647");
    REFUSED(new_len, -1, INVALID, "new_len = -1|expected 0 to 1073741824");
    REFUSED(kv_len, (int64_t)CLATTN_MAX_LENGTH + 1, INVALID, "kv_len = 1073741825");
    REFUSED(total_new, 1, INVALID, "total_new = 1|expected 0, the plan's features leave it out");
    REFUSED(num_pages, 1, INVALID, "num_pages = 1|expected 0, the plan's features leave it out");
    REFUSED(max_blocks, 1, INVALID, "max_blocks = 1|expected 0");
    REFUSED(rope_len, 1, INVALID, "rope_len = 1|expected 0");
    REFUSED(rope_base, 1.0f, INVALID, "rope_base = 1|expected 0 and 0, the plan has no rope");
    REFUSED(rope_scale, 2.0f, INVALID, "rope_base = 0, rope_scale = 2|the plan has no rope");
    clattn_plan_release(plan);

    plan = append_plan(CLATTN_FEATURE_BLOCK_TABLE, CLATTN_ROPE_NONE);
    const clattn_append_args paged = append_args(CLATTN_FEATURE_BLOCK_TABLE, CLATTN_ROPE_NONE);
    clattn_append_args bad = paged;
    expect_append(plan, &paged);
    bad.kv_len = 9;
    expect_no_append(plan, &bad, INVALID, "kv_len = 9|at most max_blocks * page_size = 2 * 4");
    clattn_plan_release(plan);
}

static void test_append_rope(void **state)
{
    clattn_plan *plan = append_plan(0, CLATTN_ROPE_NEOX);
    clattn_append_args good = append_args(0, CLATTN_ROPE_NEOX);
    (void)state;
    expect_append(plan, &good);
    REFUSED(rope_base, -1.0f, INVALID, "rope_base = -1|expected a finite number > 0");
    REFUSED(rope_base, NAN, INVALID, "rope_base = |finite");
    REFUSED(rope_scale, INFINITY, INVALID, "rope_scale = inf|finite");
    REFUSED(q.handle, NULL, INVALID, "q.handle is NULL");
    REFUSED(q_out.handle, NULL, INVALID, "q_out.handle is NULL");
    REFUSED(kv_lens.handle, NULL, INVALID, "kv_lens.handle is NULL");
    clattn_plan_release(plan);

    plan = append_plan(CLATTN_FEATURE_ROPE_TABLES, CLATTN_ROPE_NEOX);
    good = append_args(CLATTN_FEATURE_ROPE_TABLES, CLATTN_ROPE_NEOX);
    expect_append(plan, &good);
    REFUSED(rope_len, 0, INVALID, "rope_len = 0|expected 1 to 1073741824");
    REFUSED(rope_cos.handle, NULL, INVALID, "rope_cos.handle is NULL");
    REFUSED(rope_base, 10.0f, INVALID, "rope_base = 10|the plan takes angles from tables");
    REFUSED(rope_sin.byte_offset, 32, CLATTN_BUFFER_TOO_SMALL, "rope_sin: the buffer has");
    clattn_plan_release(plan);
}

static void test_append_tensors(void **state)
{
    const uint32_t features = CLATTN_FEATURE_STATUS | CLATTN_FEATURE_Q_LENS;
    clattn_plan *plan = append_plan(features, CLATTN_ROPE_NONE);
    const clattn_append_args good = append_args(features, CLATTN_ROPE_NONE);
    (void)state;
    expect_append(plan, &good);
    REFUSED(k_new.handle, NULL, INVALID, "k_new.handle is NULL");
    REFUSED(v.handle, NULL, INVALID, "v.handle is NULL");
    REFUSED(q.handle, all.q.device, INVALID, "q.handle is set|leave it out");
    REFUSED(positions.handle, all.positions.device, INVALID, "positions.handle is set");
    REFUSED(slot_mapping.handle, all.slots.device, INVALID, "slot_mapping.handle is set");
    REFUSED(k_scale.handle, all.k_scale.device, INVALID, "k_scale.handle is set");
    REFUSED(q_lens.handle, NULL, INVALID, "q_lens.handle is NULL");
    REFUSED(status_words.handle, NULL, INVALID, "status_words.handle is NULL");
    REFUSED(k_new.stride[3], 2, INVALID, "k_new.stride[3] = 2|expected 1");
    REFUSED(k.stride[2], 16, INVALID, "k.stride|rows of an output not to overlap");
    REFUSED(k.stride[0], 0, INVALID, "k.stride|rows of an output not to overlap");
    REFUSED(v.mem_kind, 9, CLATTN_UNSUPPORTED, "v.mem_kind = 9");
    REFUSED(kv_len, PLACES + 1, CLATTN_INVALID_ARGUMENT, "k.stride|not to overlap");
    REFUSED(new_len, NEW + 9, CLATTN_BUFFER_TOO_SMALL, "k_new: the buffer has");
    REFUSED(k.handle, all.v.device, INVALID, "output k and v overlap in one buffer");
    REFUSED(k_new.handle, all.k.device, INVALID, "output k and k_new overlap");
    REFUSED(kv_lens_out, int_list_argument(&all.q_lens, 1, 0), INVALID,
            "output kv_lens_out and q_lens overlap");
    clattn_append_args in_place = good;
    in_place.kv_lens_out = in_place.kv_lens;
    expect_append(plan, &in_place);
    in_place.kv_lens_out.byte_offset += 4;
    in_place.batch = 1;
    expect_append(plan, &in_place);
    clattn_plan_release(plan);
}

/* q_out may be q itself, not q moved. */
static void test_append_in_place(void **state)
{
    clattn_plan *plan = append_plan(0, CLATTN_ROPE_INTERLEAVED);
    clattn_append_args good = append_args(0, CLATTN_ROPE_INTERLEAVED);
    (void)state;
    good.q_out = good.q;
    expect_append(plan, &good);
    good.q_out.stride[1] = good.q.stride[2];
    good.q_out.stride[2] = HEADS_Q * DIM;
    expect_no_append(plan, &good, INVALID, "output q_out and q overlap");
    clattn_plan_release(plan);
}

/* K and V of a page, or of a token, side by side in one buffer; new rows out of one projection. */
static void test_append_interleaved(void **state)
{
    const size_t bytes = 4 * 2 * 4 * HEADS * DIM * sizeof(float);
    cl_int code;
    cl_mem pool = clCreateBuffer(device.context, CL_MEM_READ_WRITE, bytes, NULL, &code);
    clattn_plan *plan = append_plan(CLATTN_FEATURE_BLOCK_TABLE, CLATTN_ROPE_NEOX);
    clattn_append_args args = append_args(CLATTN_FEATURE_BLOCK_TABLE, CLATTN_ROPE_NEOX);
    (void)state;
    args.k.handle = args.v.handle = pool;
    args.k.stride[0] = args.v.stride[0] = 2 * 4 * HEADS * DIM;
    args.v.byte_offset = 4 * HEADS * DIM * sizeof(float);
    expect_append(plan, &args);
    args.v.byte_offset -= 4;
    expect_no_append(plan, &args, INVALID, "output k and v overlap");
    args.k.stride[2] = args.v.stride[2] = 2 * HEADS * DIM;
    args.v.byte_offset = HEADS * DIM * sizeof(float);
    expect_append(plan, &args);
    args.v.byte_offset -= DIM * sizeof(float);
    expect_no_append(plan, &args, INVALID, "output k and v overlap");

    /* [token, q heads, k heads, v heads] in one buffer, rotated in place. */
    enum { ROW = (HEADS_Q + 2 * HEADS) * DIM };
    cl_mem projection =
        clCreateBuffer(device.context, CL_MEM_READ_WRITE, BATCH * NEW * ROW * sizeof(float), NULL, &code);
    args = append_args(CLATTN_FEATURE_BLOCK_TABLE, CLATTN_ROPE_NEOX);
    args.q.handle = args.k_new.handle = args.v_new.handle = projection;
    clattn_tensor *const rows[] = {&args.q, &args.k_new, &args.v_new};
    for (int i = 0; i < 3; i++) {
        rows[i]->byte_offset = (uint64_t)(i == 0 ? 0 : HEADS_Q + (i - 1) * HEADS) * DIM * sizeof(float);
        rows[i]->stride[0] = NEW * ROW;
        rows[i]->stride[1] = DIM;
        rows[i]->stride[2] = ROW;
    }
    args.q_out = args.q;
    expect_append(plan, &args);
    args.k_new.byte_offset -= 4;
    expect_no_append(plan, &args, INVALID, "output q_out and k_new overlap");
    clReleaseMemObject(projection);
    clReleaseMemObject(pool);
    clattn_plan_release(plan);
}

/* ---- Merge ---- */

static void test_merge(void **state)
{
    clattn_plan_desc desc = CLATTN_PLAN_DESC_INIT;
    desc.operation = CLATTN_OPERATION_MERGE;
    desc.heads_q = HEADS;
    desc.head_dim_v = DIM;
    desc.features = CLATTN_FEATURE_LSE;
    clattn_plan *plan = plan_with(context, &desc);
    clattn_merge_args good = CLATTN_MERGE_ARGS_INIT;
    (void)state;
    good.o_parts = strided_argument(&all.k);
    good.lse_parts = strided_argument(&all.k_scale);
    good.o = strided_argument(&all.k_new);
    good.lse = strided_argument(&all.v_scale);
    good.batch = 1;
    good.q_len = 2;
    good.num_parts = 2;
    good.o_part_stride = all.k.stride[0];
    good.lse_part_stride = all.k_scale.stride[0];
    assert_int_equal(clattn_enqueue_merge(plan, device.queue, &good, 0, NULL, NULL), CLATTN_SUCCESS);
    static const struct {
        int number;
        clattn_status expected;
        const char *says;
    } bad[] = {
        {0, INVALID, "num_parts = 0|expected 1 to 256"},
        {1, INVALID, "num_parts = 257|expected 1 to 256"},
        {2, INVALID, "total_q = 1|expected 0"},
        {3, INVALID, "o_part_stride = -1"},
        {4, CLATTN_BUFFER_TOO_SMALL, "o_parts: the buffer has"},
        {5, CLATTN_BUFFER_TOO_SMALL, "lse_parts: the buffer has"},
        {6, INVALID, "lse.handle is NULL"},
        {7, INVALID, "sinks.handle is set"},
        {8, INVALID, "output o and o_parts overlap"},
        {9, INVALID, "o_parts.stride[3] = 3"},
        {10, INVALID, "args.reserved = 1"},
        {11, INVALID, "lse_part_stride = "},
    };
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        clattn_merge_args args = good;
        char texts[200];
        switch (bad[i].number) {
        case 0:
            args.num_parts = 0;
            break;
        case 1:
            args.num_parts = CLATTN_MAX_SPLITS + 1;
            break;
        case 2:
            args.total_q = 1;
            break;
        case 3:
            args.o_part_stride = -1;
            break;
        case 4:
            args.num_parts = 3;
            break;
        case 5:
            args.lse_part_stride *= 2;
            break;
        case 6:
            args.lse.handle = NULL;
            break;
        case 7:
            args.sinks.handle = all.k.device;
            break;
        case 8: /* the place of the second part */
            args.o.handle = all.k.device;
            args.o.byte_offset = (uint64_t)good.o_part_stride * 4;
            break;
        case 9:
            args.o_parts.stride[3] = 3;
            break;
        case 10:
            args.reserved = 1;
            break;
        default:
            args.lse_part_stride = INT64_MAX;
            break;
        }
        snprintf(texts, sizeof texts, "clattn_enqueue_merge: |%s", bad[i].says);
        log_clear(&log_);
        clattn_fakedev_reset();
        expect_refusal(&log_, clattn_enqueue_merge(plan, device.queue, &args, 0, NULL, NULL), bad[i].expected,
                       texts);
        assert_int_equal(clattn_fakedev_calls("clEnqueueNDRangeKernel"), 0);
    }
    clattn_plan_release(plan);
}

/* ---- Convert ---- */

static void test_convert(void **state)
{
    clattn_plan_desc desc = CLATTN_PLAN_DESC_INIT;
    desc.operation = CLATTN_OPERATION_CONVERT;
    desc.heads_kv = HEADS;
    desc.head_dim_qk = DIM;
    clattn_plan *plan = plan_with(context, &desc);
    clattn_convert_args good = CLATTN_CONVERT_ARGS_INIT, args;
    (void)state;
    good.from = strided_argument(&all.k);
    good.to = strided_argument(&all.v);
    good.batch = BATCH;
    good.len = PLACES;
    assert_int_equal(clattn_enqueue_convert(plan, device.queue, &good, 0, NULL, NULL), CLATTN_SUCCESS);
#define CONVERT_REFUSED(field, value, expected, says)                                                 \
    args = good;                                                                                      \
    args.field = value;                                                                               \
    log_clear(&log_);                                                                                 \
    expect_refusal(&log_, clattn_enqueue_convert(plan, device.queue, &args, 0, NULL, NULL), expected, \
                   "clattn_enqueue_convert: |" says)
    CONVERT_REFUSED(reserved, 1, INVALID, "args.reserved = 1");
    CONVERT_REFUSED(len, -1, INVALID, "len = -1");
    CONVERT_REFUSED(batch, BATCH + 1, CLATTN_BUFFER_TOO_SMALL, "from: the buffer has");
    CONVERT_REFUSED(to.handle, NULL, INVALID, "to.handle is NULL");
    CONVERT_REFUSED(to.handle, all.k.device, INVALID, "output to and from overlap");
    CONVERT_REFUSED(scale.handle, all.k_scale.device, INVALID, "scale.handle is set");
    clattn_plan_release(plan);
}

/* ---- Plans ---- */

/* Each call asks for a plan of its own operation. */
static void test_plans_of_other_operations(void **state)
{
    clattn_plan *append = append_plan(0, CLATTN_ROPE_NONE);
    const clattn_append_args append_args_ = append_args(0, CLATTN_ROPE_NONE);
    clattn_forward_args forward_args = CLATTN_FORWARD_ARGS_INIT;
    clattn_merge_args merge_args = CLATTN_MERGE_ARGS_INIT;
    clattn_convert_args convert_args = CLATTN_CONVERT_ARGS_INIT;
    const clattn_plan_desc small = small_desc(0);
    clattn_plan *forward = plan_with(context, &small);
    (void)state;
    log_clear(&log_);
    expect_refusal(&log_, clattn_enqueue_merge(append, device.queue, &merge_args, 0, NULL, NULL), INVALID,
                   "plan has operation = 1|expected CLATTN_OPERATION_MERGE (2)");
    expect_refusal(&log_, clattn_enqueue_convert(append, device.queue, &convert_args, 0, NULL, NULL), INVALID,
                   "plan has operation = 1|expected CLATTN_OPERATION_CONVERT (3)");
    expect_refusal(&log_, clattn_enqueue_forward(append, device.queue, &forward_args, 0, NULL, NULL), INVALID,
                   "plan has operation = 1|expected CLATTN_OPERATION_FORWARD (0)");
    expect_refusal(&log_, clattn_enqueue_kv_append(forward, device.queue, &append_args_, 0, NULL, NULL),
                   INVALID, "plan has operation = 0|expected CLATTN_OPERATION_KV_APPEND (1)");
    expect_refusal(&log_,
                   clattn_enqueue_append_forward(append, &append_args_, append, &forward_args, device.queue,
                                                 0, NULL, NULL),
                   INVALID, "clattn_enqueue_append_forward: plan has operation = 1|FORWARD (0)");
    expect_refusal(&log_,
                   clattn_enqueue_append_forward(forward, &append_args_, forward, &forward_args, device.queue,
                                                 0, NULL, NULL),
                   INVALID, "clattn_enqueue_append_forward: plan has operation = 0|KV_APPEND (1)");
    clattn_plan_release(forward);
    clattn_plan_release(append);
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_append_numbers),
        cmocka_unit_test(test_append_rope),
        cmocka_unit_test(test_append_tensors),
        cmocka_unit_test(test_append_in_place),
        cmocka_unit_test(test_append_interleaved),
        cmocka_unit_test(test_merge),
        cmocka_unit_test(test_convert),
        cmocka_unit_test(test_plans_of_other_operations),
    };
    fixture_arguments(argc, argv);
    if (fixture_open(NULL) != 0)
        return 1;
    const clattn_context_options options = options_with(&log_);
    context = context_with(&options);
    open_tensors();
    const int failed = cmocka_run_group_tests(tests, NULL, NULL);
    close_tensors();
    clattn_context_release(context);
    fixture_close(NULL);
    return failed;
}
