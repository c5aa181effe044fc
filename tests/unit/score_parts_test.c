/* What masks, biases, sinks, lengths and the caller's functions ask of the host: refusals, workspace, builds.
 * Their numbers are for tests/numerics. */
#include "fixture.h"

#include <fakedev.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define WHERE "clattn_enqueue_forward|"

enum { BATCH = 2, Q_LEN = 70, KV_LEN = 100, HEADS = 2, CAPACITY = 3 };

static log_record log_ = LOG_RECORD_INIT;
static clattn_context *context;
static cl_mem bytes_of_one; /* as large as any tensor here needs, every byte 1 */

static int open_all(void **state)
{
    enum { SIZE = BATCH * HEADS * Q_LEN * KV_LEN * 4 };
    static unsigned char ones[SIZE];
    cl_int code;
    if (fixture_open(state) != 0)
        return -1;
    const clattn_context_options options = options_with(&log_);
    context = context_with(&options);
    memset(ones, 1, sizeof ones);
    bytes_of_one =
        clCreateBuffer(device.context, CL_MEM_READ_WRITE | CL_MEM_COPY_HOST_PTR, sizeof ones, ones, &code);
    return code == CL_SUCCESS ? 0 : -1;
}

static int close_all(void **state)
{
    clReleaseMemObject(bytes_of_one);
    clattn_context_release(context);
    return fixture_close(state);
}

static int clear_log(void **state)
{
    (void)state;
    log_clear(&log_);
    clattn_fakedev_reset();
    return 0;
}

static clattn_status enqueue(clattn_plan *plan, const clattn_forward_args *args)
{
    return clattn_enqueue_forward(plan, device.queue, args, 0, NULL, NULL);
}

/* ---- Tensors ---- */

typedef struct part {
    const char *name;
    uint32_t feature;
    size_t member; /* offset of the clattn_tensor */
    size_t bytes;  /* of the dense tensor */
} part;

#define PART(member, feature, bytes)                                                    \
    {                                                                                   \
#member, CLATTN_FEATURE_##feature, offsetof(clattn_forward_args, member), bytes \
    }
static const part parts[] = {
    PART(mask, MASK, BATCH *HEADS *Q_LEN *KV_LEN),
    PART(bias_head_scale, BIAS_HEAD_SCALE, BATCH *HEADS * 4),
    PART(alibi_slopes, ALIBI, BATCH *HEADS * 4),
    PART(sinks, SINKS, BATCH *HEADS * 4),
    PART(q_lens, Q_LENS, BATCH * 4),
    PART(kv_lens, KV_LENS, BATCH * 4),
    PART(q_offsets, Q_OFFSETS, BATCH * 4),
    PART(tiles_count, KEY_TILES, BATCH *HEADS * 2 * 4),
    PART(tiles_index, KEY_TILES, BATCH *HEADS * 2 * CAPACITY * 4),
};
enum { PARTS = sizeof parts / sizeof *parts };

static clattn_tensor *tensor_of(clattn_forward_args *args, const part *p)
{
    return (clattn_tensor *)(void *)((char *)args + p->member);
}

/* A plan with everything, and a call of it. */
static clattn_plan *open_everything(attention_call *call)
{
    clattn_plan_desc desc = small_desc(CLATTN_FEATURE_BIAS);
    for (int i = 0; i < PARTS; i++)
        desc.features |= parts[i].feature;
    desc.position_mode = CLATTN_POSITION_EXPLICIT;
    desc.tile_rows = desc.tile_keys = 64; /* two tiles each way */
    clattn_plan *plan = plan_with(context, &desc);
    call_open(call, device.context, &desc, BATCH, Q_LEN, KV_LEN, 1);
    for (int i = 0; i < PARTS; i++)
        tensor_of(&call->args, &parts[i])->handle = bytes_of_one;
    const int64_t mask[4] = {HEADS * Q_LEN * KV_LEN, Q_LEN * KV_LEN, KV_LEN, 1};
    const int64_t index[4] = {HEADS * 2 * CAPACITY, 2 * CAPACITY, CAPACITY, 1};
    memcpy(call->args.mask.stride, mask, sizeof mask);
    memcpy(call->args.tiles_index.stride, index, sizeof index);
    call->args.tiles_count.stride[0] = HEADS * 2;
    call->args.tiles_count.stride[1] = 2;
    call->args.tiles_count.stride[2] = 1;
    call->args.tiles_capacity = CAPACITY;
    call->args.bias_head_scale.stride[0] = call->args.alibi_slopes.stride[0] = HEADS;
    call->args.bias_head_scale.stride[1] = call->args.alibi_slopes.stride[1] = 1;
    call->args.sinks = call->args.alibi_slopes;
    call->args.q_lens.stride[0] = call->args.kv_lens.stride[0] = call->args.q_offsets.stride[0] = 1;
    return plan;
}

static void close_everything(attention_call *call, clattn_plan *plan)
{
    clFinish(device.queue);
    call_close(call);
    clattn_plan_release(plan);
}

/* Each may not miss where the plan names it, nor come where it does not; and must fit its buffer. */
static void test_each_part(void **state)
{
    attention_call call;
    clattn_plan *plan = open_everything(&call);
    clattn_plan_desc lean_desc = small_desc(0);
    clattn_plan *lean = plan_with(context, &lean_desc);
    (void)state;
    assert_int_equal(enqueue(plan, &call.args), CLATTN_SUCCESS);
    clFinish(device.queue);
    assert_true(call_poison(&call, device.queue));
    for (int i = 0; i < PARTS; i++) {
        char says[200];
        clattn_forward_args args = call.args;
        tensor_of(&args, &parts[i])->handle = NULL;
        snprintf(says, sizeof says, WHERE "%s.handle is NULL|expected a cl_mem", parts[i].name);
        log_clear(&log_);
        expect_refusal(&log_, enqueue(plan, &args), CLATTN_INVALID_ARGUMENT, says);

        args = call.args;
        tensor_of(&args, &parts[i])->stride[0] = -1;
        snprintf(says, sizeof says, WHERE "%s.stride[0] (batch) = -1|expected >= 0", parts[i].name);
        log_clear(&log_);
        expect_refusal(&log_, enqueue(plan, &args), CLATTN_INVALID_ARGUMENT, says);

        size_t size = 0;
        clGetMemObjectInfo(bytes_of_one, CL_MEM_SIZE, sizeof size, &size, NULL);
        args = call.args;
        tensor_of(&args, &parts[i])->byte_offset = size - parts[i].bytes;
        clFinish(device.queue);
        assert_int_equal(enqueue(plan, &args), CLATTN_SUCCESS);
        clFinish(device.queue);
        assert_true(call_poison(&call, device.queue));
        tensor_of(&args, &parts[i])->byte_offset += 4;
        snprintf(says, sizeof says, WHERE "%s: the buffer has %u bytes|expected at least %u", parts[i].name,
                 (unsigned)size, (unsigned)size + 4);
        log_clear(&log_);
        expect_refusal(&log_, enqueue(plan, &args), CLATTN_BUFFER_TOO_SMALL, says);

        args = call.args;
        for (int j = 0; j < PARTS; j++)
            tensor_of(&args, &parts[j])->handle = NULL;
        args.bias.handle = NULL;
        args.tiles_capacity = 0;
        tensor_of(&args, &parts[i])->handle = bytes_of_one;
        snprintf(says, sizeof says, WHERE "%s.handle is set|expected NULL|features leave it out",
                 parts[i].name);
        log_clear(&log_);
        expect_refusal(&log_, enqueue(lean, &args), CLATTN_INVALID_ARGUMENT, says);
    }
    assert_true(call_is_untouched(&call, device.queue));
    clattn_plan_release(lean);
    close_everything(&call, plan);
}

static void test_scalars(void **state)
{
    attention_call call;
    clattn_plan *plan = open_everything(&call);
    clattn_forward_args args = call.args;
    (void)state;
    clattn_fakedev_reset();
    args.q_offset = 1;
    expect_refusal(&log_, enqueue(plan, &args), CLATTN_INVALID_ARGUMENT,
                   WHERE "q_offset = 1|expected 0|q_offsets");
    args = call.args;
    args.tiles_capacity = -1;
    log_clear(&log_);
    expect_refusal(&log_, enqueue(plan, &args), CLATTN_INVALID_ARGUMENT, WHERE "tiles_capacity = -1");
    args = call.args;
    args.user_values[2] = 5;
    log_clear(&log_);
    expect_refusal(&log_, enqueue(plan, &args), CLATTN_INVALID_ARGUMENT,
                   WHERE "user_values[2] = 5|expected 0");
    args = call.args;
    args.user.handle = bytes_of_one;
    log_clear(&log_);
    expect_refusal(&log_, enqueue(plan, &args), CLATTN_INVALID_ARGUMENT, WHERE "user.handle is set");
    assert_int_equal(clattn_fakedev_calls("clEnqueueNDRangeKernel"), 0);
    close_everything(&call, plan);

    clattn_plan_desc desc = small_desc(CLATTN_FEATURE_ALIBI);
    desc.position_mode = CLATTN_POSITION_EXPLICIT;
    plan = plan_with(context, &desc);
    call_open(&call, device.context, &desc, BATCH, Q_LEN, KV_LEN, 1);
    call.args.alibi_slopes.handle = bytes_of_one;
    call.args.q_offset = -(int64_t)CLATTN_MAX_LENGTH - 1;
    log_clear(&log_);
    expect_refusal(&log_, enqueue(plan, &call.args), CLATTN_INVALID_ARGUMENT,
                   WHERE "q_offset = -1073741825|expected -2^30 to 2^30");
    call.args.q_offset++;
    assert_int_equal(enqueue(plan, &call.args), CLATTN_SUCCESS);
    close_everything(&call, plan);
}

/* ---- Workspace ---- */

static size_t workspace_of(const clattn_plan *plan, int64_t batch, int64_t q_len, int64_t kv_len)
{
    clattn_bounds bounds = CLATTN_BOUNDS_INIT;
    size_t bytes = 0;
    bounds.batch = batch;
    bounds.q_len = q_len;
    bounds.kv_len = kv_len;
    assert_int_equal(clattn_forward_workspace(plan, &bounds, &bytes), CLATTN_SUCCESS);
    return bytes;
}

static void check_growth(const clattn_plan *plan)
{
    static const int64_t lengths[] = {0, 1, 64, 65, 1000, 1 << 14, 1 << 20, CLATTN_MAX_LENGTH};
    for (int batch = 0; batch < 3; batch++)
        for (int q = 0; q < 7; q++)
            for (int kv = 0; kv < 7; kv++) {
                const size_t bytes = workspace_of(plan, batch, lengths[q], lengths[kv]);
                assert_true(workspace_of(plan, batch + 1, lengths[q], lengths[kv]) >= bytes);
                assert_true(workspace_of(plan, batch, lengths[q + 1], lengths[kv]) >= bytes);
                assert_true(workspace_of(plan, batch, lengths[q], lengths[kv + 1]) >= bytes);
            }
}

static void test_workspace(void **state)
{
    attention_call call;
    clattn_plan *plan = open_everything(&call);
    clattn_plan_desc mask_desc = small_desc(CLATTN_FEATURE_MASK);
    clattn_plan *mask_plan = plan_with(context, &mask_desc);
    cl_int code;
    (void)state;
    check_growth(plan);
    check_growth(mask_plan);
    clattn_plan_release(mask_plan);

    const size_t bytes = workspace_of(plan, BATCH, Q_LEN, KV_LEN);
    assert_in_range(bytes, BATCH * HEADS * 2, BATCH * HEADS * 1000);
    enum { OFFSET = 48, GUARD = 64 };
    const cl_mem buffer =
        clCreateBuffer(device.context, CL_MEM_READ_WRITE, OFFSET + bytes + GUARD, NULL, &code);
    const unsigned char poison = 0xa5;
    unsigned char *seen = malloc(OFFSET + bytes + GUARD);
    clEnqueueFillBuffer(device.queue, buffer, &poison, 1, 0, OFFSET + bytes + GUARD, 0, NULL, NULL);
    call.args.workspace.handle = buffer;
    call.args.workspace.byte_offset = OFFSET;
    clattn_fakedev_reset();
    assert_int_equal(enqueue(plan, &call.args), CLATTN_SUCCESS);
    assert_int_equal(clattn_fakedev_calls("clCreateBuffer"), 0);
    clEnqueueReadBuffer(device.queue, buffer, CL_TRUE, 0, OFFSET + bytes + GUARD, seen, 0, NULL, NULL);
    size_t changed = 0;
    for (size_t i = 0; i < OFFSET + bytes + GUARD; i++) {
        if (i < OFFSET || i >= OFFSET + bytes)
            assert_int_equal(seen[i], poison);
        else
            changed += seen[i] != poison;
    }
    assert_int_not_equal(changed, 0);
    free(seen);

    call.args.workspace.byte_offset = OFFSET + GUARD + 1;
    log_clear(&log_);
    expect_refusal(&log_, enqueue(plan, &call.args), CLATTN_BUFFER_TOO_SMALL,
                   WHERE "workspace: the buffer has");
    call.args.workspace.handle = call.args.o.handle;
    call.args.workspace.byte_offset = 0;
    log_clear(&log_);
    expect_refusal(&log_, enqueue(plan, &call.args), CLATTN_INVALID_ARGUMENT,
                   WHERE "overlap in one buffer|workspace");
    clReleaseMemObject(buffer);
    close_everything(&call, plan);
}

/* Without one the call makes its own; where that fails, nothing is left behind. */
static void test_own_workspace(void **state)
{
    attention_call call;
    clattn_plan *plan = open_everything(&call);
    struct clattn_fakedev_counters before, after;
    (void)state;
    clattn_fakedev_counters(&before);
    assert_int_equal(enqueue(plan, &call.args), CLATTN_SUCCESS);
    clFinish(device.queue);
    static const char *const failures[] = {"clCreateBuffer:1:-4", "clEnqueueNDRangeKernel:1:-5",
                                           "clEnqueueNDRangeKernel:2:-5", "clSetKernelArg:3:-50"};
    static const clattn_status expected[] = {-4, -5, -5, -50};
    for (int i = 0; i < 4; i++) {
        log_clear(&log_);
        assert_true(clattn_fakedev_fail(failures[i]));
        const clattn_status status = enqueue(plan, &call.args);
        assert_true(clattn_fakedev_fail(NULL));
        expect_refusal(&log_, status, expected[i], WHERE "failed with");
        clFinish(device.queue);
    }
    clattn_fakedev_counters(&after);
    assert_memory_equal(before.references, after.references, sizeof before.references);
    close_everything(&call, plan);
}

/* ---- The caller's functions ---- */

static clattn_status create_with(clattn_plan **plan, const char *score_mod, const char *mask_mod)
{
    clattn_plan_desc desc = small_desc(0);
    desc.score_mod = score_mod;
    desc.mask_mod = mask_mod;
    log_clear(&log_);
    return clattn_plan_create(plan, context, &desc);
}

static void test_mod_errors(void **state)
{
    clattn_plan *plan = NULL;
    (void)state;
    expect_refusal(&log_, create_with(&plan, "", NULL), CLATTN_INVALID_ARGUMENT,
                   "clattn_plan_create|score_mod is \"\"|expected OpenCL C");
    expect_refusal(&log_, create_with(&plan, NULL, ""), CLATTN_INVALID_ARGUMENT, "mask_mod is \"\"");

    /* The compiler's words with the text's own lines come first, then the reason. */
    assert_int_equal(create_with(&plan, "float half_of_it = 0.5f;\nreturn half_of_it * skore;", NULL),
                     CLATTN_COMPILE_FAILED);
    assert_null(plan);
    assert_non_null(strstr(log_.all, "score_mod:2:"));
    assert_non_null(strstr(log_.all, "skore"));
    assert_non_null(strstr(log_.last_error, "score_mod does not compile"));
    assert_int_equal(create_with(&plan, "score", "key <="), CLATTN_COMPILE_FAILED);
    assert_non_null(strstr(log_.all, "mask_mod:"));
    assert_non_null(strstr(log_.last_error, "score_mod or mask_mod does not compile"));

    /* The failure is not taken for the tile's: one build of the program, one of the texts. */
    clattn_fakedev_reset();
    assert_int_equal(create_with(&plan, "no_such_thing", NULL), CLATTN_COMPILE_FAILED);
    assert_int_equal(clattn_fakedev_calls("clBuildProgram"), 2);
}

static void test_mods_are_part_of_the_key(void **state)
{
    struct clattn_fakedev_counters counters;
    clattn_plan *plans[4] = {NULL};
    char text[] = "score * 2.0f";
    (void)state;
    clattn_fakedev_reset();
    assert_int_equal(create_with(&plans[0], text, NULL), CLATTN_SUCCESS);
    memset(text, 'x', sizeof text - 1); /* the caller's to change once the plan is made */
    assert_int_equal(create_with(&plans[1], "score * 2.0f", NULL), CLATTN_SUCCESS);
    assert_int_equal(create_with(&plans[2], "return score * 3.0f;", NULL), CLATTN_SUCCESS);
    assert_int_equal(create_with(&plans[3], "score * 2.0f", "key != 3"), CLATTN_SUCCESS);
    clattn_fakedev_counters(&counters);
    assert_int_equal(counters.builds_from_source, 3);
    for (int i = 0; i < 4; i++) {
        char description[1024];
        assert_int_equal(clattn_plan_describe(plans[i], description, sizeof description, NULL),
                         CLATTN_SUCCESS);
        assert_non_null(strstr(description, i == 3 ? "score_mod and mask_mod" : "full with score_mod"));
        clattn_plan_release(plans[i]);
    }
}

static void test_user(void **state)
{
    clattn_plan *plan = NULL;
    attention_call call;
    const clattn_plan_desc desc = small_desc(0);
    (void)state;
    assert_int_equal(
        create_with(&plan, "user == 0 ? score : score + ((const __global uchar *)user)[0] - 1", NULL),
        CLATTN_SUCCESS);
    call_open(&call, device.context, &desc, BATCH, Q_LEN, KV_LEN, 1);
    call_run(&call, plan); /* without a buffer the pointer is NULL */
    call.args.user.handle = bytes_of_one;
    call.args.user.byte_offset = 64;
    call_run(&call, plan);
    call.args.user.byte_offset = 8;
    expect_refusal(&log_, enqueue(plan, &call.args), CLATTN_INVALID_ARGUMENT,
                   WHERE "user.byte_offset = 8|expected a multiple of 16");
    call.args.user.byte_offset = 16 << 20;
    log_clear(&log_);
    expect_refusal(&log_, enqueue(plan, &call.args), CLATTN_BUFFER_TOO_SMALL,
                   WHERE "user.byte_offset = 16777216");
    close_everything(&call, plan);
}

/* ---- ALiBi ---- */

static void test_alibi_slopes(void **state)
{
    float slopes[12];
    (void)state;
    assert_int_equal(clattn_alibi_slopes(slopes, 8, 0), CLATTN_SUCCESS);
    for (int h = 0; h < 8; h++)
        assert_true(slopes[h] == ldexpf(1.0f, -(h + 1)));
    /* 12 heads: those of 8, then every other one of 16. */
    assert_int_equal(clattn_alibi_slopes(slopes, 12, 8), CLATTN_SUCCESS);
    for (int h = 0; h < 12; h++)
        assert_true(fabs((double)slopes[h] - pow(2.0, h < 8 ? -(h + 1) : -0.5 * (2 * (h - 8) + 1))) < 1e-7);
    assert_int_equal(clattn_alibi_slopes(slopes, 1, 4), CLATTN_SUCCESS);
    assert_true(slopes[0] == 0.0625f);
    assert_int_equal(clattn_alibi_slopes(NULL, 8, 8), CLATTN_INVALID_ARGUMENT);
    assert_int_equal(clattn_alibi_slopes(slopes, 0, 8), CLATTN_INVALID_ARGUMENT);
    assert_int_equal(clattn_alibi_slopes(slopes, 4, -1), CLATTN_INVALID_ARGUMENT);
    assert_int_equal(clattn_alibi_slopes(slopes, 4, NAN), CLATTN_INVALID_ARGUMENT);
    assert_int_equal(clattn_alibi_slopes(slopes, 4, INFINITY), CLATTN_INVALID_ARGUMENT);
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup(test_each_part, clear_log),
        cmocka_unit_test_setup(test_scalars, clear_log),
        cmocka_unit_test_setup(test_workspace, clear_log),
        cmocka_unit_test_setup(test_own_workspace, clear_log),
        cmocka_unit_test_setup(test_mod_errors, clear_log),
        cmocka_unit_test_setup(test_mods_are_part_of_the_key, clear_log),
        cmocka_unit_test_setup(test_user, clear_log),
        cmocka_unit_test_setup(test_alibi_slopes, clear_log),
    };
    fixture_arguments(argc, argv);
    return cmocka_run_group_tests(tests, open_all, close_all);
}
