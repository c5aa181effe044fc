/* Recording: what a replayed command buffer computes has the bits of an enqueued call, whatever lies in
 * device memory by then; how the commands of a call wait for one another; and what is refused. */
#undef CL_TARGET_OPENCL_VERSION
#define CL_TARGET_OPENCL_VERSION 200 /* for clSVMAlloc */
#define CL_USE_DEPRECATED_OPENCL_1_2_APIS
#include "fixture.h"

#include <dlfcn.h>
#include <fakedev.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define WHERE "clattn_record_forward|"

enum { BATCH = 2, Q_LEN = 70, KV_LEN = 200 };

static log_record log_ = LOG_RECORD_INIT;
static clattn_context *context;

/* ---- cl_khr_command_buffer, as far as it is needed ---- */

static void *(CL_API_CALL *create_buffer)(cl_uint num_queues, const cl_command_queue *queues,
                                          const void *properties, cl_int *code);
static cl_int(CL_API_CALL *finalize_buffer)(void *buffer);
static cl_int(CL_API_CALL *release_buffer)(void *buffer);
static cl_int(CL_API_CALL *enqueue_buffer)(cl_uint num_queues, cl_command_queue *queues, void *buffer,
                                           cl_uint num_wait, const cl_event *wait, cl_event *event);

static int fetch(void *function, cl_platform_id platform, const char *name)
{
    void *address = clGetExtensionFunctionAddressForPlatform(platform, name);
    memcpy(function, &address, sizeof address);
    return address != NULL;
}

/* Whether the driver has it. */
static int fetch_all(void)
{
    static char extensions[16384];
    cl_platform_id platform;
    return clGetDeviceInfo(device.id, CL_DEVICE_EXTENSIONS, sizeof extensions - 1, extensions, NULL) ==
               CL_SUCCESS &&
           strstr(extensions, "cl_khr_command_buffer") != NULL &&
           clGetDeviceInfo(device.id, CL_DEVICE_PLATFORM, sizeof platform, &platform, NULL) == CL_SUCCESS &&
           fetch(&create_buffer, platform, "clCreateCommandBufferKHR") &&
           fetch(&finalize_buffer, platform, "clFinalizeCommandBufferKHR") &&
           fetch(&release_buffer, platform, "clReleaseCommandBufferKHR") &&
           fetch(&enqueue_buffer, platform, "clEnqueueCommandBufferKHR");
}

static void *buffer_for(cl_command_queue queue)
{
    cl_int code = CL_SUCCESS;
    void *buffer = create_buffer(1, &queue, NULL, &code);
    assert_int_equal(code, CL_SUCCESS);
    return buffer;
}

static void replay(void *buffer)
{
    cl_event done = NULL;
    assert_int_equal(enqueue_buffer(0, NULL, buffer, 0, NULL, &done), CL_SUCCESS);
    event_finish(done);
}

/* ---- Calls whose tables lie in device memory ---- */

typedef struct subject {
    clattn_plan *plan;
    attention_call call;
    cl_mem kv_lens, mask, workspace;
} subject;

static cl_mem buffer_of(size_t bytes)
{
    cl_int code;
    cl_mem buffer = clCreateBuffer(device.context, CL_MEM_READ_WRITE, bytes, NULL, &code);
    assert_int_equal(code, CL_SUCCESS);
    return buffer;
}

static void write_buffer(cl_mem buffer, const void *content, size_t bytes)
{
    assert_int_equal(clEnqueueWriteBuffer(device.queue, buffer, CL_TRUE, 0, bytes, content, 0, NULL, NULL),
                     CL_SUCCESS);
}

/* `splits` > 0: decode kernels, of whatever path has them. */
static void subject_open_with(subject *s, clattn_context *owner, uint32_t features, int splits)
{
    clattn_plan_desc desc =
        small_desc(CLATTN_FEATURE_LSE | CLATTN_FEATURE_KV_LENS | CLATTN_FEATURE_MASK | features);
    if (splits > 0) {
        desc.phase = CLATTN_PHASE_DECODE;
        desc.splits = splits;
        desc.path = CLATTN_PATH_AUTO;
    }
    clattn_bounds bounds = CLATTN_BOUNDS_INIT;
    size_t bytes = 0;
    s->plan = plan_with(owner, &desc);
    call_open(&s->call, device.context, &desc, BATCH, Q_LEN, KV_LEN, 1);
    s->kv_lens = buffer_of(BATCH * sizeof(int32_t));
    s->mask = buffer_of(Q_LEN * KV_LEN);
    bounds.batch = BATCH;
    bounds.q_len = Q_LEN;
    bounds.kv_len = KV_LEN;
    assert_int_equal(clattn_forward_workspace(s->plan, &bounds, &bytes), CLATTN_SUCCESS);
    s->workspace = buffer_of(bytes);
    s->call.args.kv_lens.handle = s->kv_lens;
    s->call.args.kv_lens.stride[0] = 1;
    s->call.args.mask.handle = s->mask;
    s->call.args.mask.stride[2] = KV_LEN;
    s->call.args.mask.stride[3] = 1;
    s->call.args.workspace.handle = s->workspace;
}

static void subject_open(subject *s, clattn_context *owner, uint32_t features)
{
    subject_open_with(s, owner, features, 0);
}

static void subject_close(subject *s)
{
    clReleaseMemObject(s->kv_lens);
    clReleaseMemObject(s->mask);
    clReleaseMemObject(s->workspace);
    call_close(&s->call);
    clattn_plan_release(s->plan);
}

/* Lengths and a mask whose whole tiles are forbidden at times. */
static void set_tables(const subject *s, int step)
{
    const int32_t lens[BATCH] = {KV_LEN - 61 * step, 1 + 40 * step};
    unsigned char *mask = malloc(Q_LEN * KV_LEN);
    assert_non_null(mask);
    for (int i = 0; i < Q_LEN; i++)
        for (int j = 0; j < KV_LEN; j++)
            mask[i * KV_LEN + j] = (j / 96 + i / 32) % 3 != step % 3 && (i + j + step) % 5 != 0;
    write_buffer(s->kv_lens, lens, sizeof lens);
    write_buffer(s->mask, mask, Q_LEN * KV_LEN);
    free(mask);
}

static size_t output_bytes(const subject *s) { return (s->call.o_count + s->call.lse_count) * sizeof(float); }

static uint64_t live_kernels(void)
{
    struct clattn_fakedev_counters counters;
    clattn_fakedev_counters(&counters);
    return counters.live[CLATTN_FAKEDEV_KERNEL];
}

static float *enqueued_outputs(const subject *s)
{
    cl_event done = NULL;
    assert_true(call_poison(&s->call, device.queue));
    assert_int_equal(clattn_enqueue_forward(s->plan, device.queue, &s->call.args, 0, NULL, &done),
                     CLATTN_SUCCESS);
    event_finish(done);
    return call_outputs(&s->call, device.queue);
}

static float *replayed_outputs(const subject *s, void *buffer)
{
    assert_true(call_poison(&s->call, device.queue));
    replay(buffer);
    return call_outputs(&s->call, device.queue);
}

/* Recorded once, replayed with other tables. */
static void check_replays(clattn_context *owner, cl_command_queue queue, uint32_t features, int splits,
                          uint64_t least_commands)
{
    enum { STEPS = 4 };
    subject s;
    float *before = NULL;
    subject_open_with(&s, owner, features, splits);
    void *buffer = buffer_for(queue);
    const uint64_t kernels = live_kernels();
    clattn_fakedev_reset();
    const clattn_status status = clattn_record_forward(s.plan, buffer, queue, &s.call.args, 0, NULL, NULL);
    if (status != CLATTN_SUCCESS)
        fail_msg("%s", log_.last_error);
    assert_in_range(clattn_fakedev_calls("clCommandNDRangeKernelKHR"), least_commands, 1000);
    assert_int_equal(clattn_fakedev_calls("clEnqueueNDRangeKernel"), 0);
    assert_int_equal(clattn_fakedev_calls("clCreateBuffer"), 0);
    assert_int_equal(live_kernels(), kernels);
    assert_int_equal(finalize_buffer(buffer), CL_SUCCESS);
    for (int step = 0; step < STEPS; step++) {
        set_tables(&s, step);
        float *expected = enqueued_outputs(&s), *outputs = replayed_outputs(&s, buffer);
        assert_memory_equal(outputs, expected, output_bytes(&s));
        if (before != NULL) /* the tables do matter */
            assert_memory_not_equal(outputs, before, output_bytes(&s));
        free(before);
        free(expected);
        before = outputs;
    }
    free(before);
    assert_int_equal(release_buffer(buffer), CL_SUCCESS);
    subject_close(&s);
}

/* A tile map, then attention. */
static void test_replays(void **state)
{
    (void)state;
    if (create_buffer == NULL)
        skip();
    check_replays(context, device.queue, 0, 0, 2);
    check_replays(context, device.queue, CLATTN_FEATURE_CAUSAL, 0, 2);
}

/* Splits of the keys and their combination. */
static void test_replays_of_decode(void **state)
{
    (void)state;
    if (create_buffer == NULL)
        skip();
    check_replays(context, device.queue, 0, 3, 2);
}

/* Many commands, on a queue that keeps no order by itself. */
static void test_replays_in_pieces(void **state)
{
    clattn_context_options options = options_with(&log_);
    cl_int code;
    (void)state;
    if (create_buffer == NULL)
        skip();
    options.max_work_per_launch = 1;
    clattn_context *owner = context_with(&options);
    cl_command_queue queue =
        clCreateCommandQueue(device.context, device.id, CL_QUEUE_OUT_OF_ORDER_EXEC_MODE_ENABLE, &code);
    assert_int_equal(code, CL_SUCCESS);
    check_replays(owner, queue, 0, 0, 4);
    clReleaseCommandQueue(queue);
    clattn_context_release(owner);
}

/* Lengths in shared virtual memory; and a plan that is gone when its recording is replayed. */
static void test_pointers_without_plan(void **state)
{
    const clattn_context_options options = options_with(&log_);
    const int32_t lens[BATCH] = {KV_LEN - 3, 17}, later[BATCH] = {5, KV_LEN};
    subject s;
    (void)state;
    int32_t *shared = clSVMAlloc(device.context, CL_MEM_READ_WRITE, sizeof lens, 0);
    if (create_buffer == NULL || shared == NULL)
        skip();
    clattn_context *owner = context_with(&options);
    subject_open(&s, owner, 0);
    set_tables(&s, 1);
    write_buffer(s.kv_lens, later, sizeof later);
    float *expected = enqueued_outputs(&s);
    s.call.args.kv_lens.mem_kind = CLATTN_MEM_SVM;
    s.call.args.kv_lens.handle = shared;
    assert_int_equal(clEnqueueSVMMemcpy(device.queue, CL_TRUE, shared, lens, sizeof lens, 0, NULL, NULL),
                     CL_SUCCESS);
    void *buffer = buffer_for(device.queue);
    assert_int_equal(clattn_record_forward(s.plan, buffer, device.queue, &s.call.args, 0, NULL, NULL),
                     CL_SUCCESS);
    assert_int_equal(finalize_buffer(buffer), CL_SUCCESS);
    clattn_plan_release(s.plan);
    clattn_context_release(owner);
    s.plan = NULL;
    float *first = replayed_outputs(&s, buffer);
    assert_memory_not_equal(first, expected, output_bytes(&s));
    assert_int_equal(clEnqueueSVMMemcpy(device.queue, CL_TRUE, shared, later, sizeof later, 0, NULL, NULL),
                     CL_SUCCESS);
    float *outputs = replayed_outputs(&s, buffer);
    assert_memory_equal(outputs, expected, output_bytes(&s));
    assert_int_equal(release_buffer(buffer), CL_SUCCESS);
    free(expected);
    free(first);
    free(outputs);
    subject_close(&s);
    clSVMFree(device.context, shared);
}

/* Two layers in one recording: the second reads what the first wrote. */
static void test_calls_in_a_chain(void **state)
{
    subject s;
    cl_uint first = 0, second = 0;
    (void)state;
    if (create_buffer == NULL)
        skip();
    subject_open(&s, context, 0);
    set_tables(&s, 1);
    attention_call next = s.call;
    next.args.q = s.call.args.o;
    next.args.o.handle = buffer_of(s.call.o_count * sizeof(float));
    next.args.lse.handle = buffer_of(s.call.lse_count * sizeof(float));
    const subject after = {s.plan, next, s.kv_lens, s.mask, s.workspace};
    float *between = enqueued_outputs(&s), *expected = enqueued_outputs(&after);

    void *buffer = buffer_for(device.queue);
    assert_int_equal(clattn_record_forward(s.plan, buffer, device.queue, &s.call.args, 0, NULL, &first),
                     CLATTN_SUCCESS);
    assert_int_equal(clattn_record_forward(s.plan, buffer, device.queue, &next.args, 1, &first, &second),
                     CLATTN_SUCCESS);
    assert_int_not_equal(first, second);
    assert_int_equal(finalize_buffer(buffer), CL_SUCCESS);
    assert_true(call_poison(&s.call, device.queue));
    float *outputs = replayed_outputs(&after, buffer);
    float *inner = call_outputs(&s.call, device.queue);
    assert_memory_equal(inner, between, output_bytes(&s));
    assert_memory_equal(outputs, expected, output_bytes(&s));
    assert_int_equal(release_buffer(buffer), CL_SUCCESS);
    free(between);
    free(expected);
    free(outputs);
    free(inner);
    clReleaseMemObject(next.args.o.handle);
    clReleaseMemObject(next.args.lse.handle);
    subject_close(&s);
}

/* ---- Sync points, seen by a driver that only notes what it is told ---- */

enum { MOST_COMMANDS = 64, FIRST_POINT = 100 };

static struct {
    int count, fail_at; /* fail_at: a command's number; -1: none */
    struct {
        void *buffer;
        cl_command_queue queue;
        const void *properties;
        cl_uint num_sync, sync_wait[4];
        size_t global[2];
    } command[MOST_COMMANDS];
} noted;

static cl_int CL_API_CALL note_command(void *buffer, cl_command_queue queue, const void *properties,
                                       cl_kernel kernel, cl_uint work_dim, const size_t *global_offset,
                                       const size_t *global_size, const size_t *local_size, cl_uint num_sync,
                                       const cl_uint *sync_wait, cl_uint *sync_point, void **mutable_command)
{
    const int number = noted.count++;
    assert_in_range(number, 0, MOST_COMMANDS - 1);
    assert_in_range(num_sync, 0, 4);
    assert_true(kernel != NULL && work_dim == 2 && global_offset == NULL && mutable_command == NULL);
    assert_true((num_sync == 0) == (sync_wait == NULL));
    assert_true(global_size[0] == local_size[0] && local_size[1] == 1);
    if (number == noted.fail_at)
        return CL_OUT_OF_RESOURCES;
    noted.command[number].buffer = buffer;
    noted.command[number].queue = queue;
    noted.command[number].properties = properties;
    noted.command[number].num_sync = num_sync;
    if (num_sync > 0)
        memcpy(noted.command[number].sync_wait, sync_wait, num_sync * sizeof *sync_wait);
    memcpy(noted.command[number].global, global_size, sizeof noted.command[number].global);
    *sync_point = FIRST_POINT + (cl_uint)number;
    return CL_SUCCESS;
}

static void *CL_API_CALL find_extension(cl_platform_id platform, const char *name)
{
    cl_int(CL_API_CALL * function)(void *, cl_command_queue, const void *, cl_kernel, cl_uint, const size_t *,
                                   const size_t *, const size_t *, cl_uint, const cl_uint *, cl_uint *,
                                   void **) = note_command;
    void *address = NULL;
    assert_non_null(platform);
    if (strcmp(name, "clCommandNDRangeKernelKHR") == 0)
        memcpy(&address, &function, sizeof address);
    return address;
}

static void *find(void *loader, const char *name)
{
    void *(CL_API_CALL * function)(cl_platform_id, const char *) = find_extension;
    void *address = NULL;
    if (strcmp(name, "clGetExtensionFunctionAddressForPlatform") != 0)
        return dlsym(loader, name);
    memcpy(&address, &function, sizeof address);
    return address;
}

static clattn_context *noting_context(void *loader, uint64_t max_work_per_launch)
{
    clattn_context_options options = options_with(&log_);
    options.get_proc = find;
    options.get_proc_user = loader;
    options.max_work_per_launch = max_work_per_launch;
    clattn_fakedev_set("CLATTN_FAKE_EXTENSIONS", "cl_khr_command_buffer");
    clattn_context *owner = context_with(&options);
    clattn_fakedev_set("CLATTN_FAKE_EXTENSIONS", NULL);
    return owner;
}

static void start_noting(int fail_at)
{
    memset(&noted, 0, sizeof noted);
    noted.fail_at = fail_at;
    log_clear(&log_);
}

static void test_sync_points(void **state)
{
    static const cl_uint wait[] = {7, 3, 11};
    void *loader = dlopen("libOpenCL.so.1", RTLD_NOW);
    int buffer;
    cl_uint point = 0;
    subject s;
    (void)state;
    assert_non_null(loader);
    clattn_context *owner = noting_context(loader, 1);
    subject_open(&s, owner, 0);
    start_noting(-1);
    assert_int_equal(clattn_record_forward(s.plan, &buffer, device.queue, &s.call.args, 3, wait, &point),
                     CLATTN_SUCCESS);
    assert_in_range(noted.count, 3, MOST_COMMANDS);
    for (int i = 0; i < noted.count; i++) {
        assert_ptr_equal(noted.command[i].buffer, &buffer);
        assert_null(noted.command[i].queue); /* as the extension wants it where there is one queue */
        assert_null(noted.command[i].properties);
        if (i == 0) {
            assert_int_equal(noted.command[i].num_sync, 3);
            assert_memory_equal(noted.command[i].sync_wait, wait, sizeof wait);
        } else {
            assert_int_equal(noted.command[i].num_sync, 1);
            assert_int_equal(noted.command[i].sync_wait[0], FIRST_POINT + i - 1);
        }
    }
    assert_int_equal(point, FIRST_POINT + noted.count - 1);

    /* A failure on the way is told; the point stays as it was. */
    const int count = noted.count;
    for (int i = 0; i < count; i++) {
        start_noting(i);
        point = 5;
        expect_refusal(
            &log_, clattn_record_forward(s.plan, &buffer, device.queue, &s.call.args, 3, wait, &point),
            CL_OUT_OF_RESOURCES, WHERE "clCommandNDRangeKernelKHR failed with CL_OUT_OF_RESOURCES (-5)");
        assert_int_equal(noted.count, i + 1);
        assert_int_equal(point, 5);
    }

    /* Nothing to do: a point needs a command, which then has nothing to do either. */
    clattn_forward_args args = s.call.args;
    args.q_len = 0;
    args.workspace.handle = NULL;
    start_noting(-1);
    assert_int_equal(clattn_record_forward(s.plan, &buffer, device.queue, &args, 0, NULL, NULL),
                     CLATTN_SUCCESS);
    assert_int_equal(noted.count, 0);
    assert_int_equal(clattn_record_forward(s.plan, &buffer, device.queue, &args, 2, wait, &point),
                     CLATTN_SUCCESS);
    assert_int_equal(noted.count, 1);
    assert_int_equal(noted.command[0].num_sync, 2);
    assert_int_equal(noted.command[0].global[1], 1);
    assert_int_equal(point, FIRST_POINT);
    start_noting(0);
    expect_refusal(&log_, clattn_record_forward(s.plan, &buffer, device.queue, &args, 2, wait, &point),
                   CL_OUT_OF_RESOURCES, WHERE "clCommandNDRangeKernelKHR failed");
    subject_close(&s);
    clattn_context_release(owner);
    dlclose(loader);
}

/* The command that stands for nothing writes nothing. */
static void test_nothing_to_do(void **state)
{
    subject s;
    cl_uint point = 0;
    (void)state;
    if (create_buffer == NULL)
        skip();
    subject_open(&s, context, 0);
    clattn_forward_args args = s.call.args;
    args.q_len = 0;
    void *buffer = buffer_for(device.queue);
    assert_int_equal(clattn_record_forward(s.plan, buffer, device.queue, &args, 0, NULL, &point),
                     CLATTN_SUCCESS);
    assert_int_equal(finalize_buffer(buffer), CL_SUCCESS);
    replay(buffer);
    assert_true(call_is_untouched(&s.call, device.queue));
    assert_int_equal(release_buffer(buffer), CL_SUCCESS);
    subject_close(&s);
}

/* ---- Refusals ---- */

static void expect_no_record(clattn_plan *plan, void *buffer, cl_command_queue queue,
                             const clattn_forward_args *args, cl_uint num_sync, const cl_uint *sync_wait,
                             clattn_status expected, const char *says)
{
    char texts[300];
    cl_uint point = 77;
    snprintf(texts, sizeof texts, WHERE "%s", says);
    start_noting(-1);
    clattn_fakedev_reset();
    const clattn_status status =
        clattn_record_forward(plan, buffer, queue, args, num_sync, sync_wait, &point);
    expect_refusal(&log_, status, expected, texts);
    assert_int_equal(point, 77);
    assert_int_equal(noted.count, 0);
    assert_int_equal(clattn_fakedev_calls("clSetKernelArg"), 0);
}

static void test_refusals(void **state)
{
    static const cl_uint wait[] = {1};
    void *loader = dlopen("libOpenCL.so.1", RTLD_NOW);
    int buffer;
    cl_int code;
    subject s;
    (void)state;
    clattn_context *owner = noting_context(loader, 0);
    subject_open(&s, owner, 0);
    clattn_forward_args args = s.call.args;
#define REFUSED(buffer, queue, num_sync, sync_wait, expected, says) \
    expect_no_record(s.plan, buffer, queue, &args, num_sync, sync_wait, expected, says)
    assert_int_equal(clattn_record_forward(NULL, &buffer, device.queue, &args, 0, NULL, NULL),
                     CLATTN_INVALID_ARGUMENT);
    REFUSED(NULL, device.queue, 0, NULL, CLATTN_INVALID_ARGUMENT, "command_buffer is NULL");
    REFUSED(&buffer, NULL, 0, NULL, CLATTN_INVALID_ARGUMENT, "queue is NULL");
    REFUSED(&buffer, device.queue, 1, NULL, CLATTN_INVALID_ARGUMENT, "num_sync = 1 and sync_wait is NULL");
    REFUSED(&buffer, device.queue, 0, wait, CLATTN_INVALID_ARGUMENT, "num_sync = 0 and sync_wait is set");
    args.workspace.handle = NULL;
    REFUSED(&buffer, device.queue, 0, NULL, CLATTN_INVALID_ARGUMENT, "workspace.handle is NULL|bytes");
    args = s.call.args;
    args.kv_len = -1;
    REFUSED(&buffer, device.queue, 0, NULL, CLATTN_INVALID_ARGUMENT, "kv_len = -1");
    args = s.call.args;
    args.scale = 1.0f / 0.0f;
    REFUSED(&buffer, device.queue, 0, NULL, CLATTN_INVALID_ARGUMENT, "scale = inf");
    args = s.call.args;
    args.mask.handle = NULL;
    REFUSED(&buffer, device.queue, 0, NULL, CLATTN_INVALID_ARGUMENT, "mask.handle is NULL");
    expect_no_record(s.plan, &buffer, device.queue, NULL, 0, NULL, CLATTN_INVALID_ARGUMENT, "args is NULL");

    cl_context other = clCreateContext(NULL, 1, &device.id, NULL, NULL, &code);
    cl_command_queue queue = clCreateCommandQueue(other, device.id, 0, &code);
    args = s.call.args;
    REFUSED(&buffer, queue, 0, NULL, CLATTN_INVALID_ARGUMENT, "queue belongs to another context");
#undef REFUSED
    clReleaseCommandQueue(queue);
    clReleaseContext(other);
    subject_close(&s);
    clattn_context_release(owner);
    dlclose(loader);
}

static void expect_unsupported(const char *says)
{
    const clattn_context_options options = options_with(&log_);
    int buffer;
    subject s;
    clattn_context *owner = context_with(&options);
    subject_open(&s, owner, 0);
    expect_no_record(s.plan, &buffer, device.queue, &s.call.args, 0, NULL, CLATTN_UNSUPPORTED, says);
    subject_close(&s);
    clattn_context_release(owner);
}

/* The driver may know the function and yet the device not have the extension, and the other way round. */
static void test_devices_without(void **state)
{
    (void)state;
    clattn_fakedev_set("CLATTN_FAKE_EXTENSIONS", "cl_khr_spir cl_khr_command_buffer_mutable_dispatch");
    expect_unsupported("the device lacks the extension cl_khr_command_buffer");
    clattn_fakedev_set("CLATTN_FAKE_EXTENSIONS", "cl_khr_command_buffer");
    clattn_fakedev_set("CLATTN_FAKE_HIDDEN_FUNCTIONS",
                       "clFinalizeCommandBufferKHR clCommandNDRangeKernelKHR");
    expect_unsupported("clCommandNDRangeKernelKHR was not found");
    clattn_fakedev_set("CLATTN_FAKE_HIDDEN_FUNCTIONS", NULL);
    clattn_fakedev_set("CLATTN_FAKE_EXTENSIONS", NULL);
}

/* ---- */

static int open_all(void **state)
{
    const clattn_context_options options = options_with(&log_);
    if (fixture_open(state) != 0)
        return -1;
    if (!fetch_all())
        create_buffer = NULL;
    context = context_with(&options);
    return 0;
}

static int close_all(void **state)
{
    clattn_context_release(context);
    return fixture_close(state);
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_replays),           cmocka_unit_test(test_replays_of_decode),
        cmocka_unit_test(test_replays_in_pieces), cmocka_unit_test(test_pointers_without_plan),
        cmocka_unit_test(test_calls_in_a_chain),  cmocka_unit_test(test_sync_points),
        cmocka_unit_test(test_nothing_to_do),     cmocka_unit_test(test_refusals),
        cmocka_unit_test(test_devices_without),
    };
    fixture_arguments(argc, argv);
    return cmocka_run_group_tests(tests, open_all, close_all);
}
