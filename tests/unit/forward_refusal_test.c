/* Every refusal of clattn_forward_workspace and clattn_enqueue_forward: the status, the reason, and
 * that a refused call enqueues nothing, sets no event and changes no output. */
#include "fixture.h"

#include <fakedev.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

#define WHERE "clattn_enqueue_forward|"

enum { BATCH = 2, Q_LEN = 5, KV_LEN = 7 };

static log_record log_ = LOG_RECORD_INIT;
static clattn_context *context;

/* The same small call for plans with different features. */
static struct subject {
    clattn_plan *plan;
    attention_call call;
} lean, full, explicit_offset;

static void subject_open(struct subject *subject, uint32_t features, int32_t position_mode)
{
    clattn_plan_desc desc = small_desc(features);
    desc.position_mode = position_mode;
    subject->plan = plan_with(context, &desc);
    call_open(&subject->call, device.context, &desc, BATCH, Q_LEN, KV_LEN, 1);
}

static void subject_close(struct subject *subject)
{
    call_close(&subject->call);
    clattn_plan_release(subject->plan);
}

static int open_all(void **state)
{
    if (fixture_open(state) != 0)
        return -1;
    const clattn_context_options options = options_with(&log_);
    context = context_with(&options);
    subject_open(&lean, 0, CLATTN_POSITION_BOTTOM_RIGHT);
    subject_open(&full,
                 CLATTN_FEATURE_CAUSAL | CLATTN_FEATURE_WINDOW | CLATTN_FEATURE_SOFTCAP |
                     CLATTN_FEATURE_BIAS | CLATTN_FEATURE_LSE,
                 CLATTN_POSITION_BOTTOM_RIGHT);
    subject_open(&explicit_offset, CLATTN_FEATURE_CAUSAL, CLATTN_POSITION_EXPLICIT);
    return 0;
}

static int close_all(void **state)
{
    subject_close(&lean);
    subject_close(&full);
    subject_close(&explicit_offset);
    clattn_context_release(context);
    return fixture_close(state);
}

static int clear_log(void **state)
{
    (void)state;
    log_clear(&log_);
    return 0;
}

/* ---- What a refusal must look like ---- */

static void expect_nothing_happened(const struct subject *subject)
{
    struct clattn_fakedev_counters counters;
    clattn_fakedev_counters(&counters);
    assert_int_equal(counters.launches, 0);
    assert_int_equal(clattn_fakedev_calls("clEnqueueMarkerWithWaitList"), 0);
    assert_int_equal(clattn_fakedev_calls("clSetKernelArg"), 0);
    assert_true(call_is_untouched(&subject->call, device.queue));
}

static void expect_no_call(const struct subject *subject, const clattn_forward_args *args,
                           cl_command_queue queue, cl_uint num_wait, const cl_event *wait,
                           clattn_status expected, const char *says)
{
    char texts[300];
    cl_event event = (cl_event)&event;
    snprintf(texts, sizeof texts, WHERE "%s", says);
    clattn_fakedev_reset();
    const clattn_status status = clattn_enqueue_forward(subject->plan, queue, args, num_wait, wait, &event);
    expect_refusal(&log_, status, expected, texts);
    assert_ptr_equal(event, (cl_event)&event);
    expect_nothing_happened(subject);
}

static void expect_no_args(const struct subject *subject, const clattn_forward_args *args,
                           clattn_status expected, const char *says)
{
    expect_no_call(subject, args, device.queue, 0, NULL, expected, says);
}

/* ---- Arguments and queue ---- */

static void test_args_struct(void **state)
{
    struct {
        clattn_forward_args known;
        unsigned char tail[16];
    } newer;
    clattn_forward_args args = lean.call.args;
    (void)state;
    expect_no_args(&lean, NULL, CLATTN_INVALID_ARGUMENT, "args is NULL");
    args.struct_size = 0;
    expect_no_args(&lean, &args, CLATTN_INVALID_ARGUMENT, "args.struct_size = 0|expected at least 568");
    args.struct_size = 567; /* the first version's had 568 */
    expect_no_args(&lean, &args, CLATTN_INVALID_ARGUMENT, "args.struct_size = 567|at least 568");
    args = lean.call.args;
    args.reserved = 3;
    expect_no_args(&lean, &args, CLATTN_INVALID_ARGUMENT, "args.reserved = 3|expected 0");

    memset(&newer, 0, sizeof newer);
    newer.known = lean.call.args;
    newer.known.struct_size = sizeof newer;
    newer.tail[15] = 1;
    expect_no_args(&lean, &newer.known, CLATTN_UNSUPPORTED, "args|newer header (1792 bytes, 1776 known");
    newer.tail[15] = 0;
    cl_event event = NULL;
    assert_int_equal(clattn_enqueue_forward(lean.plan, device.queue, &newer.known, 0, NULL, &event),
                     CLATTN_SUCCESS);
    event_finish(event);
    assert_true(call_is_right(&lean.call, device.queue));
    call_poison(&lean.call, device.queue);
}

static void test_queue(void **state)
{
    cl_int code;
    (void)state;
    expect_no_call(&lean, &lean.call.args, NULL, 0, NULL, CLATTN_INVALID_ARGUMENT, "queue is NULL");
    cl_context other = clCreateContext(NULL, 1, &device.id, NULL, NULL, &code);
    cl_command_queue queue = clCreateCommandQueue(other, device.id, 0, &code);
    expect_no_call(&lean, &lean.call.args, queue, 0, NULL, CLATTN_INVALID_ARGUMENT,
                   "queue belongs to another context than the plan");
    clReleaseCommandQueue(queue);
    clReleaseContext(other);
}

/* A plan for one device of a context, a queue of the other. */
static void test_queue_of_another_device(void **state)
{
    const cl_device_id both[] = {device.id, second_device()};
    const clattn_context_options options = options_with(&log_);
    clattn_context *on_first = NULL;
    cl_int code;
    (void)state;
    if (both[1] == NULL)
        skip();
    cl_context shared = clCreateContext(NULL, 2, both, NULL, NULL, &code);
    assert_int_equal(code, CL_SUCCESS);
    cl_command_queue queue = clCreateCommandQueue(shared, both[1], 0, &code);
    assert_int_equal(clattn_context_create(&on_first, shared, both[0], &options), CLATTN_SUCCESS);
    const struct subject subject = {plan_with(on_first, &lean.call.desc), lean.call};
    log_clear(&log_);
    expect_no_call(&subject, &lean.call.args, queue, 0, NULL, CLATTN_INVALID_ARGUMENT,
                   "queue belongs to another device than the plan");
    clattn_plan_release(subject.plan);
    clattn_context_release(on_first);
    clReleaseCommandQueue(queue);
    clReleaseContext(shared);
}

static void test_wait_list(void **state)
{
    cl_int code;
    cl_event events[2] = {clCreateUserEvent(device.context, &code), NULL};
    (void)state;
    expect_no_call(&lean, &lean.call.args, device.queue, 0, events, CLATTN_INVALID_ARGUMENT,
                   "num_wait = 0 and wait is set|expected both or none");
    expect_no_call(&lean, &lean.call.args, device.queue, 2, NULL, CLATTN_INVALID_ARGUMENT,
                   "num_wait = 2 and wait is NULL|expected both or none");
    expect_no_call(&lean, &lean.call.args, device.queue, 2, events, CLATTN_INVALID_ARGUMENT,
                   "wait[1] is NULL");
    clSetUserEventStatus(events[0], CL_COMPLETE);
    clReleaseEvent(events[0]);
}

/* ---- Scalars ---- */

static void test_lengths(void **state)
{
    clattn_forward_args args;
    (void)state;
#define REFUSED(subject, field, value, expected, says) \
    args = (subject).call.args;                        \
    args.field = (value);                              \
    expect_no_args(&(subject), &args, expected, says)
    const int64_t beyond = (int64_t)CLATTN_MAX_LENGTH + 1;
    REFUSED(lean, batch, -1, CLATTN_INVALID_ARGUMENT, "batch = -1|expected 0 to 2147483647");
    REFUSED(lean, batch, (int64_t)INT32_MAX + 1, CLATTN_INVALID_ARGUMENT, "batch = 2147483648");
    REFUSED(lean, batch, INT32_MAX, CLATTN_INVALID_ARGUMENT,
            "batch = 2147483647|heads_q = 2|q_len = 5|fewer than 2^31 query tiles");
    REFUSED(lean, q_len, -1, CLATTN_INVALID_ARGUMENT, "q_len = -1|expected 0 to 1073741824");
    REFUSED(lean, q_len, beyond, CLATTN_INVALID_ARGUMENT, "q_len = 1073741825|expected 0 to 1073741824");
    REFUSED(lean, q_len, INT64_MIN, CLATTN_INVALID_ARGUMENT, "q_len = -9223372036854775808");
    REFUSED(lean, kv_len, -1, CLATTN_INVALID_ARGUMENT, "kv_len = -1|expected 0 to 1073741824");
    REFUSED(lean, kv_len, beyond, CLATTN_INVALID_ARGUMENT, "kv_len = 1073741825");
    REFUSED(lean, kv_len, INT64_MAX, CLATTN_INVALID_ARGUMENT, "kv_len = 9223372036854775807");
}

static void test_scale_and_softcap(void **state)
{
    clattn_forward_args args;
    (void)state;
    REFUSED(lean, scale, NAN, CLATTN_INVALID_ARGUMENT, "scale = |nan|expected a finite number");
    REFUSED(lean, scale, INFINITY, CLATTN_INVALID_ARGUMENT, "scale = inf|expected a finite number");
    REFUSED(lean, scale, -INFINITY, CLATTN_INVALID_ARGUMENT, "scale = -inf");
    REFUSED(lean, softcap, 1.0f, CLATTN_INVALID_ARGUMENT, "softcap = 1|expected 0|features");
    REFUSED(lean, softcap, NAN, CLATTN_INVALID_ARGUMENT, "softcap = |expected 0");
    REFUSED(full, softcap, 0.0f, CLATTN_INVALID_ARGUMENT, "softcap = 0|expected a finite number > 0");
    REFUSED(full, softcap, -1.0f, CLATTN_INVALID_ARGUMENT, "softcap = -1|> 0");
    REFUSED(full, softcap, NAN, CLATTN_INVALID_ARGUMENT, "softcap = |> 0");
    REFUSED(full, softcap, INFINITY, CLATTN_INVALID_ARGUMENT, "softcap = inf|finite");
}

static void test_window_and_offset(void **state)
{
    clattn_forward_args args;
    (void)state;
    REFUSED(lean, window_left, 1, CLATTN_INVALID_ARGUMENT, "window = (1, 0)|expected (0, 0)|features");
    REFUSED(lean, window_right, -1, CLATTN_INVALID_ARGUMENT, "window = (0, -1)|expected (0, 0)");
    REFUSED(full, window_left, -2, CLATTN_INVALID_ARGUMENT, "window = (-2, 0)|expected each >= 0, or -1");
    REFUSED(full, window_right, INT64_MIN, CLATTN_INVALID_ARGUMENT, "window = (0, -9223372036854775808)");
    REFUSED(lean, q_offset, 1, CLATTN_INVALID_ARGUMENT, "q_offset = 1|expected 0|not explicit");
    REFUSED(full, q_offset, -1, CLATTN_INVALID_ARGUMENT, "q_offset = -1|expected 0|not explicit");
}

/* Offsets and windows of any size have a meaning: every or no key. */
static void test_extreme_windows_are_legal(void **state)
{
    static const int64_t numbers[] = {0, 1, INT32_MAX, INT64_MAX, -1, INT32_MIN, INT64_MIN};
    (void)state;
    for (size_t i = 0; i < sizeof numbers / sizeof *numbers; i++) {
        explicit_offset.call.args.q_offset = numbers[i];
        call_run(&explicit_offset.call, explicit_offset.plan);
        for (size_t j = 0; j < 5; j++) {
            full.call.args.window_left = numbers[j];
            full.call.args.window_right = numbers[(i + j) % 5];
            call_run(&full.call, full.plan);
        }
    }
    explicit_offset.call.args.q_offset = 0;
    full.call.args.window_left = full.call.args.window_right = 0;
    call_poison(&explicit_offset.call, device.queue);
    call_poison(&full.call, device.queue);
}

/* ---- Tensors ---- */

typedef clattn_tensor *(*tensor_of)(clattn_forward_args *args);

static clattn_tensor *tensor_q(clattn_forward_args *args) { return &args->q; }
static clattn_tensor *tensor_k(clattn_forward_args *args) { return &args->k; }
static clattn_tensor *tensor_v(clattn_forward_args *args) { return &args->v; }
static clattn_tensor *tensor_o(clattn_forward_args *args) { return &args->o; }
static clattn_tensor *tensor_lse(clattn_forward_args *args) { return &args->lse; }
static clattn_tensor *tensor_bias(clattn_forward_args *args) { return &args->bias; }

static const struct named_tensor {
    const char *name;
    tensor_of get;
    int has_rows; /* of contiguous elements */
} tensors[] = {
    {"q", tensor_q, 1}, {"k", tensor_k, 1},     {"v", tensor_v, 1},
    {"o", tensor_o, 1}, {"lse", tensor_lse, 0}, {"bias", tensor_bias, 0},
};

#define FOR_EACH_TENSOR(t) \
    for (const struct named_tensor *t = tensors; t < tensors + sizeof tensors / sizeof *tensors; t++)

/* Changes one tensor of a good call. `words` follow the tensor's name in the message. */
#define TENSOR_REFUSED(change, expected, words)              \
    do {                                                     \
        clattn_forward_args args = full.call.args;           \
        char says[200];                                      \
        t->get(&args)->change;                               \
        snprintf(says, sizeof says, "%s%s", t->name, words); \
        expect_no_args(&full, &args, expected, says);        \
    } while (0)

static void test_each_tensor(void **state)
{
    (void)state;
    FOR_EACH_TENSOR(t)
    {
        TENSOR_REFUSED(mem_kind = 3, CLATTN_UNSUPPORTED, ".mem_kind = 3|expected CLATTN_MEM_BUFFER (0)");
        TENSOR_REFUSED(mem_kind = -1, CLATTN_UNSUPPORTED, ".mem_kind = -1");
        TENSOR_REFUSED(reserved = 1, CLATTN_INVALID_ARGUMENT, "| reserved field that is not 0");
        TENSOR_REFUSED(reserved2[0] = 1, CLATTN_INVALID_ARGUMENT, "| reserved field that is not 0");
        TENSOR_REFUSED(reserved2[1] = UINT64_MAX, CLATTN_INVALID_ARGUMENT, "| reserved field that is not 0");
        TENSOR_REFUSED(handle = NULL, CLATTN_INVALID_ARGUMENT, ".handle is NULL|expected a cl_mem");
        TENSOR_REFUSED(stride[0] = -1, CLATTN_INVALID_ARGUMENT, ".stride[0] (batch) = -1|expected >= 0");
        TENSOR_REFUSED(stride[1] = -16, CLATTN_INVALID_ARGUMENT, ".stride[1] (head) = -16|expected >= 0");
        TENSOR_REFUSED(stride[2] = INT64_MIN, CLATTN_INVALID_ARGUMENT,
                       ".stride[2] (token) = -9223372036854775808|expected >= 0");
        TENSOR_REFUSED(stride[3] = -1, CLATTN_INVALID_ARGUMENT, ".stride[3]|= -1|expected ");
        TENSOR_REFUSED(byte_offset = 2, CLATTN_INVALID_ARGUMENT, ".byte_offset = 2|expected a multiple of 4");
        TENSOR_REFUSED(byte_offset = UINT64_MAX - 3, CLATTN_INVALID_ARGUMENT, "");
        TENSOR_REFUSED(stride[0] = INT64_MAX, CLATTN_INVALID_ARGUMENT, "|strides and lengths reach");
        TENSOR_REFUSED(stride[2] = INT64_MAX / 4, CLATTN_INVALID_ARGUMENT, "|strides and lengths reach");
        if (t->has_rows)
            TENSOR_REFUSED(stride[3] = 2, CLATTN_INVALID_ARGUMENT, ".stride[3] = 2|expected 1");
    }
}

/* One element more than the buffer has, by offset or by a stride; and the last that fits. */
static void test_buffer_too_small(void **state)
{
    (void)state;
    FOR_EACH_TENSOR(t)
    {
        clattn_forward_args args = full.call.args;
        char text[200];
        size_t bytes = 0;
        clGetMemObjectInfo(t->get(&args)->handle, CL_MEM_SIZE, sizeof bytes, &bytes, NULL);
        snprintf(text, sizeof text, ": the buffer has %u bytes|expected at least %u", (unsigned)bytes,
                 (unsigned)bytes + 4);
        TENSOR_REFUSED(byte_offset = 4, CLATTN_BUFFER_TOO_SMALL, text);
        TENSOR_REFUSED(stride[0] += 1, CLATTN_BUFFER_TOO_SMALL, text);

        cl_int code;
        args = full.call.args;
        clattn_tensor *tensor = t->get(&args);
        cl_mem smaller = clCreateBuffer(device.context, CL_MEM_READ_WRITE, bytes - 4, NULL, &code);
        tensor->handle = smaller;
        snprintf(text, sizeof text, "%s: the buffer has %u bytes|expected at least %u", t->name,
                 (unsigned)bytes - 4, (unsigned)bytes);
        expect_no_args(&full, &args, CLATTN_BUFFER_TOO_SMALL, text);
        clReleaseMemObject(smaller);
    }
}

/* An output written twice in one place has no defined content. */
static void test_output_rows_must_not_overlap(void **state)
{
    clattn_forward_args args;
    (void)state;
#define STRIDES(tensor, s0, s1, s2) \
    args = full.call.args;          \
    args.tensor.stride[0] = s0;     \
    args.tensor.stride[1] = s1;     \
    args.tensor.stride[2] = s2
    static const char rows[] = "|expected rows of an output not to overlap";
    static const struct {
        int64_t o[3], lse[3];
    } bad[] = {
        {{0, 80, 16}, {0, 5, 1}},   {{160, 0, 16}, {10, 0, 1}},  {{160, 80, 0}, {10, 5, 0}},
        {{160, 80, 15}, {9, 5, 1}}, {{160, 79, 16}, {10, 4, 1}}, {{159, 80, 16}, {1, 1, 1}},
        {{16, 16, 32}, {4, 1, 2}},
    };
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        char text[100];
        STRIDES(o, bad[i].o[0], bad[i].o[1], bad[i].o[2]);
        snprintf(text, sizeof text, "o.stride = {%d, %d, %d}%s", (int)bad[i].o[0], (int)bad[i].o[1],
                 (int)bad[i].o[2], rows);
        expect_no_args(&full, &args, CLATTN_INVALID_ARGUMENT, text);
        STRIDES(lse, bad[i].lse[0], bad[i].lse[1], bad[i].lse[2]);
        snprintf(text, sizeof text, "lse.stride = {%d, %d, %d}%s", (int)bad[i].lse[0], (int)bad[i].lse[1],
                 (int)bad[i].lse[2], rows);
        expect_no_args(&full, &args, CLATTN_INVALID_ARGUMENT, text);
    }
}

/* Tokens outermost (BSHD), heads innermost, gaps, any stride of an axis of length 1: all legal. */
static void test_legal_output_strides(void **state)
{
    static const struct {
        int64_t o[3], lse[3];
    } good[] = {
        {{160, 16, 32}, {10, 1, 2}}, {{16, 32, 64}, {1, 2, 4}},       {{200, 100, 17}, {20, 7, 1}},
        {{16, 160, 32}, {1, 10, 2}}, {{1000, 500, 40}, {100, 50, 3}},
    };
    cl_int code;
    (void)state;
    const size_t bytes = 16384;
    cl_mem o = clCreateBuffer(device.context, CL_MEM_READ_WRITE, bytes, NULL, &code);
    cl_mem lse = clCreateBuffer(device.context, CL_MEM_READ_WRITE, bytes, NULL, &code);
    for (size_t i = 0; i < sizeof good / sizeof *good; i++) {
        clattn_forward_args args;
        STRIDES(o, good[i].o[0], good[i].o[1], good[i].o[2]);
        memcpy(args.lse.stride, good[i].lse, sizeof good[i].lse);
        args.o.handle = o;
        args.lse.handle = lse;
        args.lse.stride[3] = 99; /* unused */
        assert_int_equal(clattn_enqueue_forward(full.plan, device.queue, &args, 0, NULL, NULL),
                         CLATTN_SUCCESS);
        args.batch = 1;
        args.o.stride[0] = args.lse.stride[0] = 0;
        assert_int_equal(clattn_enqueue_forward(full.plan, device.queue, &args, 0, NULL, NULL),
                         CLATTN_SUCCESS);
    }
    clFinish(device.queue);
    clReleaseMemObject(o);
    clReleaseMemObject(lse);
}

/* Outputs and anything else in one buffer: refused if the ranges meet, taken if they only touch. */
static void test_overlap(void **state)
{
    const clattn_forward_args *original = &full.call.args;
    clattn_forward_args args;
    cl_int code;
    (void)state;
    cl_mem shared = clCreateBuffer(device.context, CL_MEM_READ_WRITE, 65536, NULL, &code);
    for (int with = 0; with < 6; with++) {
        const struct named_tensor *t = &tensors[with];
        if (t->get == tensor_o)
            continue;
        char text[100];
        size_t bytes = 0;
        args = *original;
        clGetMemObjectInfo(t->get(&args)->handle, CL_MEM_SIZE, sizeof bytes, &bytes, NULL);
        args.o.handle = t->get(&args)->handle = shared;
        args.o.byte_offset = 4096;
        t->get(&args)->byte_offset = 4096 - bytes + 4; /* its last element meets o's first */
        snprintf(text, sizeof text, "output o and %s overlap in one buffer|bytes 4096 to 5376 and %u to 4100",
                 t->name, 4096 - (unsigned)bytes + 4);
        expect_no_args(&full, &args, CLATTN_INVALID_ARGUMENT, text);
        t->get(&args)->byte_offset -= 4;
        assert_int_equal(clattn_enqueue_forward(full.plan, device.queue, &args, 0, NULL, NULL),
                         CLATTN_SUCCESS);
        call_poison(&full.call, device.queue);
    }
    args = *original;
    args.lse.handle = args.bias.handle = shared;
    expect_no_args(&full, &args, CLATTN_INVALID_ARGUMENT, "output lse and bias overlap in one buffer");

    /* Inputs may share memory. */
    args = *original;
    args.v = args.k;
    args.o.handle = shared;
    assert_int_equal(clattn_enqueue_forward(full.plan, device.queue, &args, 0, NULL, NULL), CLATTN_SUCCESS);
    clFinish(device.queue);
    clReleaseMemObject(shared);
    call_poison(&full.call, device.queue);
}

/* Features and tensors: what the plan leaves out may not come, what it names may not miss. */
static void test_features_and_tensors(void **state)
{
    clattn_forward_args args;
    (void)state;
    REFUSED(lean, lse.handle, full.call.args.lse.handle, CLATTN_INVALID_ARGUMENT,
            "lse.handle is set|expected NULL|features leave it out");
    REFUSED(lean, bias.handle, full.call.args.bias.handle, CLATTN_INVALID_ARGUMENT,
            "bias.handle is set|expected NULL|features leave it out");
    REFUSED(lean, workspace.handle, full.call.args.bias.handle, CLATTN_INVALID_ARGUMENT,
            "workspace.handle is set|expected NULL");
    REFUSED(lean, k.handle, NULL, CLATTN_INVALID_ARGUMENT, "k.handle is NULL|expected a cl_mem");
    REFUSED(full, lse.handle, NULL, CLATTN_INVALID_ARGUMENT, "lse.handle is NULL|expected a cl_mem");
}

static void test_reserved_workspace_fields(void **state)
{
    clattn_forward_args args;
    (void)state;
    REFUSED(lean, workspace.mem_kind, 3, CLATTN_UNSUPPORTED, "workspace.mem_kind = 3|CLATTN_MEM_BUFFER");
    REFUSED(lean, workspace.reserved, 2, CLATTN_INVALID_ARGUMENT, "workspace|reserved");
}

/* Half types: offsets in steps of two bytes. */
static void test_offset_of_half_types(void **state)
{
    clattn_plan_desc desc = small_desc(0);
    clattn_forward_args args = lean.call.args;
    (void)state;
    desc.dtype_q = CLATTN_DTYPE_BF16;
    struct subject half = {plan_with(context, &desc), lean.call};
    log_clear(&log_);
    args.q.byte_offset = 3;
    expect_no_args(&half, &args, CLATTN_INVALID_ARGUMENT, "q.byte_offset = 3|expected a multiple of 2");
    args.q.byte_offset = 2;
    assert_int_equal(clattn_enqueue_forward(half.plan, device.queue, &args, 0, NULL, NULL), CLATTN_SUCCESS);
    clFinish(device.queue);
    call_poison(&lean.call, device.queue);
    clattn_plan_release(half.plan);
}

/* What is wrong stays wrong when there is nothing to compute. */
static void test_empty_calls_are_checked_too(void **state)
{
    clattn_forward_args args = lean.call.args;
    (void)state;
    args.q_len = 0;
    args.scale = NAN;
    expect_no_args(&lean, &args, CLATTN_INVALID_ARGUMENT, "scale = ");
    args.scale = 0;
    args.k.stride[1] = -1;
    expect_no_args(&lean, &args, CLATTN_INVALID_ARGUMENT, "k.stride[1] (head) = -1");
}

/* ---- Workspace ---- */

static void test_workspace(void **state)
{
    struct {
        clattn_bounds known;
        unsigned char tail[8];
    } newer;
    clattn_bounds bounds = CLATTN_BOUNDS_INIT;
    size_t bytes = 17;
    (void)state;
#define SIZE_REFUSED(expected, says)                                                      \
    expect_refusal(&log_, clattn_forward_workspace(lean.plan, &bounds, &bytes), expected, \
                   "clattn_forward_workspace|" says);                                     \
    assert_int_equal(bytes, 17);                                                          \
    bounds = (clattn_bounds)CLATTN_BOUNDS_INIT
    expect_refusal(&log_, clattn_forward_workspace(lean.plan, NULL, &bytes), CLATTN_INVALID_ARGUMENT,
                   "clattn_forward_workspace|bounds is NULL");
    expect_refusal(&log_, clattn_forward_workspace(lean.plan, &bounds, NULL), CLATTN_INVALID_ARGUMENT,
                   "clattn_forward_workspace|bytes is NULL");
    bounds.struct_size = 31;
    SIZE_REFUSED(CLATTN_INVALID_ARGUMENT, "bounds.struct_size = 31|at least 32");
    bounds.reserved = 1;
    SIZE_REFUSED(CLATTN_INVALID_ARGUMENT, "bounds.reserved = 1|expected 0");
    bounds.batch = -1;
    SIZE_REFUSED(CLATTN_INVALID_ARGUMENT, "batch = -1|expected 0 to");
    bounds.q_len = (int64_t)CLATTN_MAX_LENGTH + 1;
    SIZE_REFUSED(CLATTN_INVALID_ARGUMENT, "q_len = 1073741825");
    bounds.kv_len = -5;
    SIZE_REFUSED(CLATTN_INVALID_ARGUMENT, "kv_len = -5");
    bounds.batch = INT32_MAX;
    bounds.q_len = CLATTN_MAX_LENGTH;
    SIZE_REFUSED(CLATTN_INVALID_ARGUMENT, "fewer than 2^31 query tiles");

    memset(&newer, 0, sizeof newer);
    newer.known = bounds;
    newer.known.struct_size = sizeof newer;
    newer.tail[0] = 1;
    expect_refusal(&log_, clattn_forward_workspace(lean.plan, &newer.known, &bytes), CLATTN_UNSUPPORTED,
                   "clattn_forward_workspace|bounds|newer header");
    assert_int_equal(bytes, 17);

    bounds.batch = 3;
    bounds.q_len = bounds.kv_len = CLATTN_MAX_LENGTH;
    assert_int_equal(clattn_forward_workspace(lean.plan, &bounds, &bytes), CLATTN_SUCCESS);
    assert_int_equal(bytes, 0);
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup(test_args_struct, clear_log),
        cmocka_unit_test_setup(test_queue, clear_log),
        cmocka_unit_test_setup(test_queue_of_another_device, clear_log),
        cmocka_unit_test_setup(test_wait_list, clear_log),
        cmocka_unit_test_setup(test_lengths, clear_log),
        cmocka_unit_test_setup(test_scale_and_softcap, clear_log),
        cmocka_unit_test_setup(test_window_and_offset, clear_log),
        cmocka_unit_test_setup(test_extreme_windows_are_legal, clear_log),
        cmocka_unit_test_setup(test_each_tensor, clear_log),
        cmocka_unit_test_setup(test_buffer_too_small, clear_log),
        cmocka_unit_test_setup(test_output_rows_must_not_overlap, clear_log),
        cmocka_unit_test_setup(test_legal_output_strides, clear_log),
        cmocka_unit_test_setup(test_overlap, clear_log),
        cmocka_unit_test_setup(test_features_and_tensors, clear_log),
        cmocka_unit_test_setup(test_reserved_workspace_fields, clear_log),
        cmocka_unit_test_setup(test_offset_of_half_types, clear_log),
        cmocka_unit_test_setup(test_empty_calls_are_checked_too, clear_log),
        cmocka_unit_test_setup(test_workspace, clear_log),
    };
    fixture_arguments(argc, argv);
    return cmocka_run_group_tests(tests, open_all, close_all);
}
