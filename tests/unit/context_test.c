/* Contexts: every refusal, defaults, what is retained and what is said; opening the directory
 * cache. */
#include "fixture.h"

#include <dlfcn.h>
#include <fakedev.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static log_record log_ = LOG_RECORD_INIT;

/* A refused creation gives no object. */
static void expect_no_context(cl_context cl, cl_device_id id, const clattn_context_options *options,
                              clattn_status expected, const char *says)
{
    clattn_context *context = (clattn_context *)&context;
    const clattn_status status = clattn_context_create(&context, cl, id, options);
    assert_null(context);
    expect_refusal(&log_, status, expected, says);
}

static void test_arguments(void **state)
{
    const clattn_context_options options = options_with(&log_);
    (void)state;
    expect_refusal(&log_, clattn_context_create(NULL, device.context, device.id, &options),
                   CLATTN_INVALID_ARGUMENT, "clattn_context_create|out is NULL");
    expect_no_context(NULL, device.id, &options, CLATTN_INVALID_ARGUMENT,
                      "clattn_context_create|context is NULL");
    expect_no_context(device.context, NULL, &options, CLATTN_INVALID_ARGUMENT,
                      "clattn_context_create|device is NULL");
}

static void test_device_of_another_context(void **state)
{
    const clattn_context_options options = options_with(&log_);
    const cl_device_id other = second_device();
    (void)state;
    if (other == NULL)
        skip();
    expect_no_context(device.context, other, &options, CLATTN_INVALID_ARGUMENT,
                      "clattn_context_create|device|one of the context's devices");
}

static void *allocate(void *user, size_t size, size_t alignment)
{
    (void)user;
    (void)alignment;
    return malloc(size);
}

static void release(void *user, void *memory)
{
    (void)user;
    free(memory);
}

static size_t load(void *user, const char *key, void *data, size_t capacity)
{
    (void)user;
    (void)key;
    (void)data;
    (void)capacity;
    return 0;
}

static void store(void *user, const char *key, const void *data, size_t size)
{
    (void)user;
    (void)key;
    (void)data;
    (void)size;
}

static void test_half_given_hooks(void **state)
{
    (void)state;
    clattn_context_options options = options_with(&log_);
    options.allocator.allocate = allocate;
    expect_no_context(device.context, device.id, &options, CLATTN_INVALID_ARGUMENT,
                      "clattn_context_create|options.allocator|expected both or none");
    options = options_with(&log_);
    options.allocator.release = release;
    expect_no_context(device.context, device.id, &options, CLATTN_INVALID_ARGUMENT,
                      "clattn_context_create|options.allocator|expected both or none");
    options = options_with(&log_);
    options.cache.load = load;
    expect_no_context(device.context, device.id, &options, CLATTN_INVALID_ARGUMENT,
                      "clattn_context_create|options.cache|expected both or none");
    options = options_with(&log_);
    options.cache.store = store;
    expect_no_context(device.context, device.id, &options, CLATTN_INVALID_ARGUMENT,
                      "clattn_context_create|options.cache|expected both or none");
}

/* ---- struct_size ---- */

/* A struct as a newer header would have it. */
typedef struct newer_options {
    clattn_context_options known;
    unsigned char tail[24];
} newer_options;

static void test_struct_too_small(void **state)
{
    /* The first version of the struct ended before `tuning`. */
    static const uint32_t sizes[] = {0, 4, offsetof(clattn_context_options, tuning) - 1};
    (void)state;
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
        clattn_context_options options = options_with(&log_);
        clattn_context *context = (clattn_context *)&context;
        options.struct_size = sizes[i];
        assert_int_equal(clattn_context_create(&context, device.context, device.id, &options),
                         CLATTN_INVALID_ARGUMENT);
        assert_null(context);
        assert_int_equal(log_.errors, 0); /* the callback may lie beyond the struct: it is not called */
    }
}

static void test_struct_with_a_tail(void **state)
{
    newer_options options;
    (void)state;
    for (size_t i = 0; i < sizeof options.tail; i++) {
        memset(&options, 0, sizeof options);
        options.known = options_with(&log_);
        options.known.struct_size = sizeof options;
        options.tail[i] = 1;
        expect_no_context(device.context, device.id, &options.known, CLATTN_UNSUPPORTED,
                          "clattn_context_create|options|newer header");
    }
    memset(&options, 0, sizeof options);
    options.known = options_with(&log_);
    options.known.struct_size = sizeof options;
    clattn_context_release(context_with(&options.known));
}

/* ---- get_proc ---- */

static void *find_all_but(void *user, const char *name)
{
    return strcmp(name, user) == 0 ? NULL : (void *)&log_; /* never called: creation is refused */
}

static void test_missing_function(void **state)
{
    clattn_context_options options = options_with(&log_);
    char function[] = "clEnqueueNDRangeKernel";
    (void)state;
    options.get_proc = find_all_but;
    options.get_proc_user = function;
    expect_no_context(device.context, device.id, &options, CLATTN_UNSUPPORTED,
                      "clattn_context_create|clEnqueueNDRangeKernel|get_proc");
}

typedef struct finder {
    void *loader;
    int found;
} finder;

static void *find_in_loader(void *user, const char *name)
{
    finder *self = user;
    self->found++;
    return dlsym(self->loader, name);
}

/* Every function comes from get_proc where there is one. */
static void test_functions_come_from_get_proc(void **state)
{
    clattn_context_options options = options_with(&log_);
    finder finder = {dlopen("libOpenCL.so.1", RTLD_NOW), 0};
    clattn_plan_desc desc = small_desc(0);
    attention_call call;
    (void)state;
    if (finder.loader == NULL)
        skip();
    options.get_proc = find_in_loader;
    options.get_proc_user = &finder;
    clattn_context *context = context_with(&options);
    assert_in_range(finder.found, 20, 60);
    clattn_plan *plan = plan_with(context, &desc);
    call_open(&call, device.context, &desc, 1, 3, 4, 1);
    call_run(&call, plan);
    call_close(&call);
    clattn_plan_release(plan);
    clattn_context_release(context);
    dlclose(finder.loader);
}

/* ---- Defaults ---- */

static void test_options_may_be_missing_or_zero(void **state)
{
    clattn_context_options zero;
    (void)state;
    clattn_context_release(context_with(NULL));
    memset(&zero, 0, sizeof zero);
    zero.struct_size = sizeof zero;
    clattn_context_release(context_with(&zero));
}

/* At the default level, a context is created in silence and errors are heard. */
/* The portable path's smallest tile takes about 12 KiB: with less, nothing fits; with 16 KiB it does. */
static void test_local_memory_is_limited(void **state)
{
    const struct {
        uint64_t limit;
        clattn_status expected;
    } cases[] = {{4096, CLATTN_UNSUPPORTED}, {16384, CLATTN_SUCCESS}, {0, CLATTN_SUCCESS}};
    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        clattn_context_options options = options_with(NULL);
        clattn_plan_desc desc = CLATTN_PLAN_DESC_INIT;
        clattn_context *context;
        char why[512];
        options.max_local_bytes = cases[i].limit;
        assert_int_equal(clattn_context_create(&context, device.context, device.id, &options),
                         CLATTN_SUCCESS);
        desc.heads_q = 1;
        desc.head_dim_qk = CLATTN_MAX_HEAD_DIM;
        desc.path = CLATTN_PATH_PORTABLE;
        assert_int_equal(clattn_plan_supported(context, &desc, why, sizeof why), cases[i].expected);
        if (cases[i].expected != CLATTN_SUCCESS)
            assert_non_null(strstr(why, "local memory"));
        clattn_context_release(context);
    }
}

static void test_default_log_level(void **state)
{
    clattn_context_options options = options_with(&log_);
    clattn_plan_desc desc = small_desc(0);
    clattn_plan *plan = NULL;
    (void)state;
    options.log_level = 0;
    clattn_context *context = context_with(&options);
    assert_string_equal(log_.all, "");
    desc.phase = 5;
    expect_refusal(&log_, clattn_plan_create(&plan, context, &desc), CLATTN_INVALID_ARGUMENT, "phase = 5");
    clattn_context_release(context);
}

/* Each level has its messages; those above the chosen one are not made. */
static void test_log_levels(void **state)
{
    clattn_plan_desc desc = small_desc(0);
    attention_call call;
    (void)state;
    call_open(&call, device.context, &desc, 1, 3, 4, 1);
    for (int32_t level = CLATTN_LOG_ERROR; level <= CLATTN_LOG_DEBUG; level++) {
        clattn_context_options options = options_with(&log_);
        options.log_level = level;
        log_clear(&log_);
        clattn_context *context = context_with(&options);
        clattn_plan *plan = plan_with(context, &desc);
        call_run(&call, plan);
        assert_int_equal(strstr(log_.all, "tiles") != NULL, level >= CLATTN_LOG_INFO);
        assert_int_equal(strstr(log_.all, "q_len 3, kv_len 4") != NULL, level >= CLATTN_LOG_DEBUG);
        assert_int_equal(log_.errors, 0);
        clattn_plan_release(plan);
        clattn_context_release(context);
    }
    call_close(&call);
}

/* A context holds the cl_context: the caller's reference may go first. */
static void test_context_is_retained(void **state)
{
    cl_int code;
    struct clattn_fakedev_counters before, after;
    (void)state;
    clattn_fakedev_counters(&before);
    cl_context own = clCreateContext(NULL, 1, &device.id, NULL, NULL, &code);
    clattn_context *context = NULL;
    assert_int_equal(clattn_context_create(&context, own, device.id, NULL), CLATTN_SUCCESS);
    clReleaseContext(own);
    clattn_plan_desc desc = small_desc(0);
    clattn_plan *plan = plan_with(context, &desc);
    clattn_context_release(context); /* the plan holds it */
    size_t needed = 0;
    assert_int_equal(clattn_plan_describe(plan, NULL, 0, &needed), CLATTN_SUCCESS);
    clattn_plan_release(plan);
    clattn_fakedev_counters(&after);
    assert_memory_equal(before.references, after.references, sizeof before.references);
    assert_int_equal(after.unknown_releases, before.unknown_releases);
}

/* ---- The directory cache ---- */

static void test_directory_cache_refusals(void **state)
{
    clattn_cache_hooks hooks;
    char directory[] = "/tmp/clattn-test-XXXXXX";
    char path[200];
    (void)state;
    assert_non_null(mkdtemp(directory));
    assert_int_equal(clattn_directory_cache_open(NULL, directory), CLATTN_INVALID_ARGUMENT);
    assert_int_equal(clattn_directory_cache_open(&hooks, NULL), CLATTN_INVALID_ARGUMENT);
    assert_null(hooks.load);
    assert_int_equal(clattn_directory_cache_open(&hooks, ""), CLATTN_INVALID_ARGUMENT);

    snprintf(path, sizeof path, "%s/file", directory);
    FILE *file = fopen(path, "w");
    assert_non_null(file);
    fclose(file);
    assert_int_equal(clattn_directory_cache_open(&hooks, path), CLATTN_INVALID_ARGUMENT);
    assert_null(hooks.load);
    assert_int_equal(remove(path), 0);

    snprintf(path, sizeof path, "%s/missing/two_levels", directory);
    assert_int_equal(clattn_directory_cache_open(&hooks, path), CLATTN_INVALID_ARGUMENT);

    snprintf(path, sizeof path, "%s/one_level", directory);
    assert_int_equal(clattn_directory_cache_open(&hooks, path), CLATTN_SUCCESS);
    assert_non_null(hooks.load);
    clattn_directory_cache_close(&hooks);
    assert_null(hooks.load);
    clattn_directory_cache_close(&hooks);
    assert_int_equal(rmdir(path), 0);
    assert_int_equal(rmdir(directory), 0);
}

static int clear_log(void **state)
{
    (void)state;
    log_clear(&log_);
    return 0;
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup(test_arguments, clear_log),
        cmocka_unit_test_setup(test_device_of_another_context, clear_log),
        cmocka_unit_test_setup(test_half_given_hooks, clear_log),
        cmocka_unit_test_setup(test_struct_too_small, clear_log),
        cmocka_unit_test_setup(test_struct_with_a_tail, clear_log),
        cmocka_unit_test_setup(test_missing_function, clear_log),
        cmocka_unit_test_setup(test_functions_come_from_get_proc, clear_log),
        cmocka_unit_test_setup(test_options_may_be_missing_or_zero, clear_log),
        cmocka_unit_test_setup(test_local_memory_is_limited, clear_log),
        cmocka_unit_test_setup(test_default_log_level, clear_log),
        cmocka_unit_test_setup(test_log_levels, clear_log),
        cmocka_unit_test_setup(test_context_is_retained, clear_log),
        cmocka_unit_test_setup(test_directory_cache_refusals, clear_log),
    };
    fixture_arguments(argc, argv);
    return cmocka_run_group_tests(tests, fixture_open, fixture_close);
}
