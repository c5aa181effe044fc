/* Every OpenCL function that the library calls fails once, at each place where it is called: the
 * right status comes back, a message says why, nothing leaks, and a later try succeeds. Likewise
 * the host allocator. */
#undef CL_TARGET_OPENCL_VERSION
#define CL_TARGET_OPENCL_VERSION 200 /* for clSVMAlloc */
#include "../../src/cl_api.h"
#include "fixture.h"

#include <fakedev.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { FAULT = CL_OUT_OF_HOST_MEMORY }; /* nowhere treated as "the tile is too large" */

static log_record log_ = LOG_RECORD_INIT;

/* ---- Failing each call ---- */

/* Of what does not depend on the path, once is enough. */
static void skip_on_portable(void)
{
    if (device.path == CLATTN_PATH_PORTABLE)
        skip();
}

/* What the library asks the driver, from its own table. */
static const char *const functions[] = {
#define NAME(name) #name,
#define OPTIONAL_NAME(name, type) #name,
#define EXTENSION_NAME(name, type, extension) #name,
    CLATTN__CL_FUNCTIONS(NAME) CLATTN__CL_OPTIONAL_FUNCTIONS(OPTIONAL_NAME)
        CLATTN__CL_EXTENSION_FUNCTIONS(EXTENSION_NAME)
#undef NAME
#undef OPTIONAL_NAME
#undef EXTENSION_NAME
};

static int is_release(const char *function) { return strncmp(function, "clRelease", 9) == 0; }

static struct clattn_fakedev_counters counters_now(void)
{
    struct clattn_fakedev_counters counters;
    clattn_fakedev_counters(&counters);
    return counters;
}

/* An operation under test. It cleans up after a success, and returns the status. */
typedef clattn_status (*operation)(void);

/* Whether the library may go on without this answer; it then must succeed. */
typedef int (*tolerance)(const char *function, int nth);

/* Fails `function` at its 1st, 2nd, ... call until the operation makes no such call any more.
 * Returns how many failures there were. */
static int sweep_function(const char *function, operation run, tolerance may_succeed)
{
    for (int nth = 1;; nth++) {
        char spec[80];
        const struct clattn_fakedev_counters before = counters_now();
        log_clear(&log_);
        clattn_fakedev_reset();
        snprintf(spec, sizeof spec, "%s:%d:%d", function, nth, FAULT);
        assert_true(clattn_fakedev_fail(spec));
        const clattn_status status = run();
        assert_true(clattn_fakedev_fail(NULL));
        assert_int_equal(clFinish(device.queue), CL_SUCCESS);
        const struct clattn_fakedev_counters after = counters_now();

        if (after.injected_failures == 0 || is_release(function) || may_succeed(function, nth)) {
            if (status != CLATTN_SUCCESS)
                fail_msg("%s: %s; expected success", spec, clattn_status_string(status));
        } else {
            if (status != FAULT)
                fail_msg("%s: %s", spec, clattn_status_string(status));
            if (log_.errors == 0 || strstr(log_.last_error, function) == NULL ||
                strstr(log_.last_error, "CL_OUT_OF_HOST_MEMORY (-6)") == NULL)
                fail_msg("%s: the message is \"%s\"", spec, log_.last_error);
        }
        if (!is_release(function) &&
            memcmp(before.references, after.references, sizeof before.references) != 0) {
            clattn_fakedev_report("-");
            fail_msg("%s: something leaks", spec);
        }
        if (after.injected_failures == 0)
            return nth - 1;
    }
}

static int sweep(operation run, tolerance may_succeed)
{
    int failures = 0;
    for (size_t i = 0; i < sizeof functions / sizeof *functions; i++)
        failures += sweep_function(functions[i], run, may_succeed);
    return failures;
}

/* ---- Context ---- */

static clattn_status open_context(void)
{
    const clattn_context_options options = options_with(&log_);
    clattn_context *context = (clattn_context *)&context;
    const clattn_status status = clattn_context_create(&context, device.context, device.id, &options);
    assert_true((context != NULL) == (status == CLATTN_SUCCESS));
    clattn_context_release(context);
    return status;
}

/* The platform's name only names things, work-item sizes are found out otherwise, and what only some calls
 * need counts as not there. */
static int context_tolerance(const char *function, int nth)
{
    enum { WORK_ITEM_SIZES = 6, PLATFORM = 15, EXTENSIONS, SVM }; /* in the order of src/device.c */
    return strcmp(function, "clGetPlatformInfo") == 0 ||
           strcmp(function, "clGetExtensionFunctionAddressForPlatform") == 0 ||
           (strcmp(function, "clGetDeviceInfo") == 0 &&
            (nth == WORK_ITEM_SIZES || (nth >= PLATFORM && nth <= SVM)));
}

static void test_context_create(void **state)
{
    (void)state;
    assert_in_range(sweep(open_context, context_tolerance), 15, 60);
    assert_int_equal(open_context(), CLATTN_SUCCESS);
}

/* ---- Plan ---- */

static clattn_context *context;
static clattn_plan_desc desc;

static clattn_status open_plan(void)
{
    const clattn_context_options options = options_with(&log_);
    clattn_plan *plan = (clattn_plan *)&plan;
    context = context_with(&options);
    const struct clattn_fakedev_counters before = counters_now();
    const clattn_status status = clattn_plan_create(&plan, context, &desc);
    assert_true((plan != NULL) == (status == CLATTN_SUCCESS));
    if (status != CLATTN_SUCCESS) {
        const struct clattn_fakedev_counters after = counters_now();
        /* Nothing waits for the context's end to be given back. */
        assert_memory_equal(before.references, after.references, sizeof before.references);
        assert_true(clattn_fakedev_fail(NULL)); /* a later try */
        plan = plan_with(context, &desc);
    }
    clattn_plan_release(plan);
    clattn_context_release(context);
    return status;
}

/* Of these functions the first calls are clattn_context_create's, which has its own test. */
static int made_by_context_create(const char *function)
{
    static const char *const its_own[] = {
        "clGetContextInfo",      "clGetDeviceInfo",
        "clGetPlatformInfo",     "clRetainContext",
        "clRetainDevice",        "clCreateCommandQueue",
        "clReleaseContext",      "clReleaseDevice",
        "clReleaseCommandQueue", "clGetExtensionFunctionAddressForPlatform"};
    for (size_t i = 0; i < sizeof its_own / sizeof *its_own; i++)
        if (strcmp(function, its_own[i]) == 0)
            return 1;
    return 0;
}

static int none(const char *function, int nth)
{
    (void)function;
    (void)nth;
    return 0;
}

static void test_plan_create(void **state)
{
    int failures = 0;
    (void)state;
    for (size_t i = 0; i < sizeof functions / sizeof *functions; i++)
        if (!made_by_context_create(functions[i]))
            failures += sweep_function(functions[i], open_plan, none);
    assert_in_range(failures, 15, 120);
}

/* ---- Plan, with a cache ---- */

static struct {
    unsigned char *data;
    size_t size;
} entry;

static size_t load(void *user, const char *key, void *data, size_t capacity)
{
    (void)user;
    (void)key;
    if (capacity > 0)
        memcpy(data, entry.data, capacity < entry.size ? capacity : entry.size);
    return entry.size;
}

static void store(void *user, const char *key, const void *data, size_t size)
{
    (void)user;
    (void)key;
    free(entry.data);
    entry.data = malloc(size);
    assert_non_null(entry.data);
    memcpy(entry.data, data, size);
    entry.size = size;
}

static clattn_context_options options_with_cache(void)
{
    clattn_context_options options = options_with(&log_);
    options.cache.load = load;
    options.cache.store = store;
    return options;
}

static clattn_status open_plan_with_cache(void)
{
    const clattn_context_options options = options_with_cache();
    clattn_plan *plan = NULL;
    context = context_with(&options);
    const clattn_status status = clattn_plan_create(&plan, context, &desc);
    clattn_plan_release(plan);
    clattn_context_release(context);
    return status;
}

/* A cached binary that fails in any way is rebuilt from source: no error of the call. */
static int any(const char *function, int nth)
{
    (void)function;
    (void)nth;
    return 1;
}

static void test_plan_create_from_cache(void **state)
{
    int failures = 0;
    (void)state;
    skip_on_portable();
    assert_int_equal(open_plan_with_cache(), CLATTN_SUCCESS);
    assert_true(entry.size > 0);
    for (size_t i = 0; i < sizeof functions / sizeof *functions; i++)
        if (!made_by_context_create(functions[i]))
            failures += sweep_function(functions[i], open_plan_with_cache, any);
    assert_in_range(failures, 10, 120);
}

static clattn_status open_plan_and_store(void)
{
    entry.size = 0;
    return open_plan_with_cache();
}

/* What cannot be stored is no error either. */
static void test_store_fails(void **state)
{
    (void)state;
    skip_on_portable();
    assert_in_range(sweep_function("clGetProgramInfo", open_plan_and_store, any), 3, 10);
}

/* ---- Builds that fail for good ---- */

static void test_build_failure(void **state)
{
    const clattn_context_options options = options_with(&log_);
    clattn_plan *plan = NULL;
    char text[1024];
    (void)state;
    skip_on_portable();
    context = context_with(&options);
    log_clear(&log_);
    assert_true(clattn_fakedev_fail("clBuildProgram:1+:-11"));
    assert_int_equal(clattn_plan_create(&plan, context, &desc), CLATTN_COMPILE_FAILED);
    assert_true(clattn_fakedev_fail(NULL));
    assert_null(plan);
    assert_non_null(strstr(log_.last_error, "clattn_plan_create: nothing built"));
    assert_non_null(strstr(log_.last_error, "does not build"));
    assert_null(strstr(log_.all, "(an empty message)"));
    clattn_context_release(context);

    /* A launch that asks too much of the device is a matter of the tile, not of the call. */
    context = context_with(&options);
    assert_true(clattn_fakedev_fail("clEnqueueNDRangeKernel:1+:-5"));
    assert_int_equal(clattn_plan_create(&plan, context, &desc), CLATTN_COMPILE_FAILED);
    assert_true(clattn_fakedev_fail(NULL));
    assert_non_null(strstr(log_.last_error, "CL_OUT_OF_RESOURCES"));
    clattn_context_release(context);

    /* Free to choose, the next path is taken when no tile of the first builds, and the plan says why. */
    clattn_plan_desc any_path = desc;
    any_path.path = CLATTN_PATH_AUTO;
    context = context_with(&options);
    char specs[512] = "", tile[1024];
    for (int i = 0;; i++) {
        const size_t used = strlen(specs);
        assert_int_equal(clattn_tuning_candidate(context, &any_path, i, tile, sizeof tile), CLATTN_SUCCESS);
        if (tile[0] == '\0')
            break;
        snprintf(specs + used, sizeof specs - used, "%sclBuildProgram:%d:-11", i > 0 ? "," : "", i + 1);
    }
    assert_true(clattn_fakedev_fail(specs));
    assert_int_equal(clattn_plan_create(&plan, context, &any_path), CLATTN_SUCCESS);
    assert_true(clattn_fakedev_fail(NULL));
    assert_int_equal(clattn_plan_describe(plan, text, sizeof text, NULL), CLATTN_SUCCESS);
    assert_non_null(strstr(text, "portable: tiles"));
    assert_non_null(strstr(text, "passed over: does not build"));
    clattn_plan_release(plan);
    clattn_context_release(context);
}

/* ---- Enqueue ---- */

static clattn_plan *plan;
static attention_call call;

static clattn_status enqueue(void)
{
    cl_event event = NULL;
    const clattn_status status = clattn_enqueue_forward(plan, device.queue, &call.args, 0, NULL, &event);
    assert_true((event != NULL) == (status == CLATTN_SUCCESS));
    assert_true(clattn_fakedev_fail(NULL)); /* what follows is not the library's */
    if (event != NULL)
        event_finish(event);
    return status;
}

static clattn_status enqueue_nothing(void)
{
    const clattn_forward_args args = call.args;
    call.args.q_len = 0;
    const clattn_status status = enqueue();
    call.args = args;
    return status;
}

/* Each tensor's size must be known. A path with a kernel for aligned rows then asks for the
 * buffers' flags, and takes the other kernel if it gets no answer. */
static int asks_beyond_sizes(const char *function, int nth, int tensors)
{
    return strcmp(function, "clGetMemObjectInfo") == 0 && nth > tensors;
}

static int enqueue_tolerance(const char *function, int nth)
{
    return asks_beyond_sizes(function, nth, 5); /* q, k, v, o, lse */
}

static int nothing_tolerance(const char *function, int nth)
{
    return asks_beyond_sizes(function, nth, 2); /* k, v: the others have no elements */
}

static void check_enqueue(uint64_t max_work_per_launch, int least_failures)
{
    clattn_context_options options = options_with(&log_);
    options.max_work_per_launch = max_work_per_launch;
    context = context_with(&options);
    plan = plan_with(context, &desc);
    call_open(&call, device.context, &desc, 1, 200, 9, 1);
    assert_in_range(sweep(enqueue, enqueue_tolerance), least_failures, 400);
    sweep(enqueue_nothing, nothing_tolerance);
    call_run(&call, plan);
    call_close(&call);
    clattn_plan_release(plan);
    clattn_context_release(context);
}

static void test_enqueue(void **state)
{
    (void)state;
    check_enqueue(0, 10);
}

/* A later launch fails when earlier ones are under way. */
static void test_enqueue_in_pieces(void **state)
{
    (void)state;
    check_enqueue(1, 20);
}

/* ---- Tensors that are pointers ---- */

/* q and lse one kind, o the other. */
static void test_enqueue_pointers(void **state)
{
    const clattn_context_options options = options_with(&log_);
    (void)state;
    skip_on_portable();
    assert_true(clattn_fakedev_set("CLATTN_FAKE_EXTENSIONS", "cl_intel_unified_shared_memory"));
    context = context_with(&options);
    plan = plan_with(context, &desc);
    call_open(&call, device.context, &desc, 1, 20, 9, 1);
    clattn_tensor *tensors[] = {&call.args.q, &call.args.o, &call.args.lse};
    void *buffers[3], *pointers[3];
    for (int i = 0; i < 3; i++) {
        pointers[i] = clSVMAlloc(device.context, CL_MEM_READ_WRITE, 4096, 0);
        if (pointers[i] == NULL)
            skip();
        buffers[i] = tensors[i]->handle;
        tensors[i]->handle = pointers[i];
        tensors[i]->mem_kind = i == 1 ? CLATTN_MEM_USM : CLATTN_MEM_SVM;
    }
    int failures = 0;
    static const char *const setters[] = {"clSetKernelArgSVMPointer", "clSetKernelArgMemPointerINTEL"};
    for (int i = 0; i < 2; i++) {
        const int failed = sweep_function(setters[i], enqueue, none);
        assert_int_equal(failed, i == 0 ? 2 : 1);
        failures += failed;
    }
    assert_int_equal(failures, 3);
    for (int i = 0; i < 3; i++) {
        clSVMFree(device.context, pointers[i]);
        tensors[i]->handle = buffers[i];
        tensors[i]->mem_kind = CLATTN_MEM_BUFFER;
    }
    call_close(&call);
    clattn_plan_release(plan);
    clattn_context_release(context);
    assert_true(clattn_fakedev_set("CLATTN_FAKE_EXTENSIONS", NULL));
}

/* ---- Record ---- */

static void *(CL_API_CALL *create_buffer)(cl_uint, const cl_command_queue *, const void *, cl_int *);
static cl_int(CL_API_CALL *release_buffer)(void *);

static clattn_status record(void)
{
    cl_int code = CL_SUCCESS;
    cl_uint point = 0;
    void *buffer = create_buffer(1, &device.queue, NULL, &code);
    assert_int_equal(code, CL_SUCCESS);
    const clattn_status status =
        clattn_record_forward(plan, buffer, device.queue, &call.args, 0, NULL, &point);
    assert_true((point != 0) == (status == CLATTN_SUCCESS)); /* PoCL counts them from 1 */
    assert_true(clattn_fakedev_fail(NULL));
    assert_int_equal(release_buffer(buffer), CL_SUCCESS);
    return status;
}

static void test_record(void **state)
{
    clattn_context_options options = options_with(&log_);
    cl_platform_id platform;
    (void)state;
    assert_int_equal(clGetDeviceInfo(device.id, CL_DEVICE_PLATFORM, sizeof platform, &platform, NULL),
                     CL_SUCCESS);
    void *create = clGetExtensionFunctionAddressForPlatform(platform, "clCreateCommandBufferKHR");
    void *let_go = clGetExtensionFunctionAddressForPlatform(platform, "clReleaseCommandBufferKHR");
    if (create == NULL || let_go == NULL)
        skip();
    memcpy(&create_buffer, &create, sizeof create);
    memcpy(&release_buffer, &let_go, sizeof let_go);
    options.max_work_per_launch = 1;
    context = context_with(&options);
    plan = plan_with(context, &desc);
    call_open(&call, device.context, &desc, 1, 200, 9, 1);
    assert_in_range(sweep(record, enqueue_tolerance), 20, 400);
    call_close(&call);
    clattn_plan_release(plan);
    clattn_context_release(context);
}

/* ---- The host allocator ---- */

static struct {
    int calls, fail_at; /* fail_at 0: never */
    int failed;
    int live;
} heap;

static void *allocate(void *user, size_t size, size_t alignment)
{
    void *memory = NULL;
    assert_ptr_equal(user, &heap);
    assert_in_range(alignment, 1, 64);
    if (++heap.calls == heap.fail_at) {
        heap.failed = 1;
        return NULL;
    }
    if (posix_memalign(&memory, alignment < sizeof(void *) ? sizeof(void *) : alignment, size) != 0)
        return NULL;
    memset(memory, 0xa5, size); /* whoever counts on zeroed memory shall see */
    heap.live++;
    return memory;
}

static void release(void *user, void *memory)
{
    assert_ptr_equal(user, &heap);
    assert_non_null(memory);
    heap.live--;
    free(memory);
}

/* A context with two plans that share a program. */
static clattn_status whole_life(void)
{
    clattn_context_options options = options_with_cache();
    clattn_plan *second = NULL;
    options.allocator.user = &heap;
    options.allocator.allocate = allocate;
    options.allocator.release = release;
    context = NULL;
    plan = NULL;
    clattn_status status = clattn_context_create(&context, device.context, device.id, &options);
    if (status == CLATTN_SUCCESS)
        status = clattn_plan_create(&plan, context, &desc);
    if (status == CLATTN_SUCCESS)
        status = clattn_plan_create(&second, context, &desc);
    if (status != CLATTN_SUCCESS && context != NULL) { /* a later try */
        heap.fail_at = 0;
        if (plan == NULL)
            plan = plan_with(context, &desc);
        second = plan_with(context, &desc);
    }
    if (plan != NULL)
        call_run(&call, plan);
    if (second != NULL)
        call_run(&call, second);
    clattn_plan_release(plan);
    clattn_plan_release(second);
    clattn_context_release(context);
    return status;
}

static void check_allocator(size_t stored)
{
    int refused = 0;
    call_open(&call, device.context, &desc, 1, 5, 9, 1);
    const struct clattn_fakedev_counters before = counters_now();
    for (int nth = 1;; nth++) {
        memset(&heap, 0, sizeof heap);
        heap.fail_at = nth;
        entry.size = stored;
        log_clear(&log_);
        const clattn_status status = whole_life();
        const struct clattn_fakedev_counters after = counters_now();
        assert_int_equal(heap.live, 0);
        assert_memory_equal(before.references, after.references, sizeof before.references);
        if (!heap.failed) {
            assert_int_equal(status, CLATTN_SUCCESS);
            assert_in_range(nth, 5, 50);
            break;
        }
        if (status == CLATTN_SUCCESS)
            continue; /* memory for the cache: done without */
        refused++;
        assert_int_equal(status, CLATTN_OUT_OF_HOST_MEMORY);
        assert_non_null(strstr(log_.last_error, "out of host memory"));
        assert_non_null(strstr(log_.last_error, "clattn_"));
    }
    /* Device list, context; for each plan itself, its program's key: object, options, the caller's
     * functions, source. */
    assert_int_equal(refused, 2 + 2 * 5);
    call_close(&call);
}

static void test_allocator(void **state)
{
    (void)state;
    skip_on_portable();
    check_allocator(0);
    assert_int_equal(open_plan_and_store(), CLATTN_SUCCESS);
    check_allocator(entry.size);
}

static int open_all(void **state)
{
    desc = small_desc(CLATTN_FEATURE_LSE);
    if (desc.path == CLATTN_PATH_AUTO)
        desc.path = CLATTN_PATH_CPU;
    return fixture_open(state);
}

static int close_all(void **state)
{
    free(entry.data);
    return fixture_close(state);
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_context_create),
        cmocka_unit_test(test_plan_create),
        cmocka_unit_test(test_plan_create_from_cache),
        cmocka_unit_test(test_store_fails),
        cmocka_unit_test(test_build_failure),
        cmocka_unit_test(test_enqueue),
        cmocka_unit_test(test_enqueue_in_pieces),
        cmocka_unit_test(test_enqueue_pointers),
        cmocka_unit_test(test_record),
        cmocka_unit_test(test_allocator),
    };
    fixture_arguments(argc, argv);
    return cmocka_run_group_tests(tests, open_all, close_all);
}
