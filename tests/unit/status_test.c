/* Version, pinned status values, their names, and what NULL may be passed to. */
#include "fixture.h"

#include <string.h>

static void test_version(void **state)
{
    (void)state;
    assert_int_equal(clattn_version(), CLATTN_VERSION);
    assert_int_equal(CLATTN_VERSION,
                     CLATTN_VERSION_MAJOR * 1000000 + CLATTN_VERSION_MINOR * 1000 + CLATTN_VERSION_PATCH);
}

/* Values are pinned for ever: callers store them. */
static void test_own_names(void **state)
{
    static const char *const names[] = {
        "CLATTN_SUCCESS",          "CLATTN_INVALID_ARGUMENT",   "CLATTN_UNSUPPORTED",
        "CLATTN_BUFFER_TOO_SMALL", "CLATTN_OUT_OF_HOST_MEMORY", "CLATTN_COMPILE_FAILED",
        "CLATTN_INTERNAL"};
    (void)state;
    assert_int_equal(CLATTN_INVALID_ARGUMENT, 1);
    assert_int_equal(CLATTN_UNSUPPORTED, 2);
    assert_int_equal(CLATTN_BUFFER_TOO_SMALL, 3);
    assert_int_equal(CLATTN_OUT_OF_HOST_MEMORY, 4);
    assert_int_equal(CLATTN_COMPILE_FAILED, 5);
    assert_int_equal(CLATTN_INTERNAL, 6);
    for (int i = 0; i <= CLATTN_INTERNAL; i++)
        assert_string_equal(clattn_status_string(i), names[i]);
}

static void test_opencl_names(void **state)
{
    (void)state;
    assert_string_equal(clattn_status_string(CL_OUT_OF_RESOURCES), "CL_OUT_OF_RESOURCES");
    assert_string_equal(clattn_status_string(CL_INVALID_WORK_GROUP_SIZE), "CL_INVALID_WORK_GROUP_SIZE");
    /* -1 to -19 and, up to OpenCL 3.0, -30 to -72 are assigned. */
    for (int code = -1; code >= -72; code--)
        if (code >= -19 || code <= -30)
            assert_int_equal(strncmp(clattn_status_string(code), "CL_", 3), 0);
}

static void test_any_status_has_a_text(void **state)
{
    static const clattn_status others[] = {7, 1000, -20, -1000, -9999, INT32_MAX, INT32_MIN};
    (void)state;
    for (size_t i = 0; i < sizeof others / sizeof *others; i++) {
        const char *text = clattn_status_string(others[i]);
        assert_non_null(text);
        assert_true(text[0] != '\0');
    }
}

static void test_null_is_released_in_peace(void **state)
{
    clattn_cache_hooks hooks = {NULL, NULL, NULL};
    (void)state;
    clattn_context_release(NULL);
    clattn_plan_release(NULL);
    clattn_directory_cache_close(NULL);
    clattn_directory_cache_close(&hooks);
}

/* Without an object there is no log: the status alone. */
static void test_null_objects_are_refused(void **state)
{
    clattn_plan *plan = (clattn_plan *)&plan;
    clattn_plan_desc desc = CLATTN_PLAN_DESC_INIT;
    clattn_bounds bounds = CLATTN_BOUNDS_INIT;
    clattn_forward_args args = CLATTN_FORWARD_ARGS_INIT;
    const char *text;
    char why[100];
    size_t size = 17;
    (void)state;
    assert_int_equal(clattn_context_create(NULL, NULL, NULL, NULL), CLATTN_INVALID_ARGUMENT);
    assert_int_equal(clattn_plan_create(&plan, NULL, &desc), CLATTN_INVALID_ARGUMENT);
    assert_null(plan);
    assert_int_equal(clattn_plan_supported(NULL, &desc, why, sizeof why), CLATTN_INVALID_ARGUMENT);
    assert_non_null(strstr(why, "clattn_plan_supported: context is NULL"));
    assert_int_equal(clattn_plan_describe(NULL, why, sizeof why, NULL), CLATTN_INVALID_ARGUMENT);
    assert_int_equal(clattn_plan_source(NULL, &text, &text), CLATTN_INVALID_ARGUMENT);
    assert_int_equal(clattn_forward_workspace(NULL, &bounds, &size), CLATTN_INVALID_ARGUMENT);
    assert_int_equal(size, 17);
    assert_int_equal(clattn_enqueue_forward(NULL, NULL, &args, 0, NULL, NULL), CLATTN_INVALID_ARGUMENT);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_version),
        cmocka_unit_test(test_own_names),
        cmocka_unit_test(test_opencl_names),
        cmocka_unit_test(test_any_status_has_a_text),
        cmocka_unit_test(test_null_is_released_in_peace),
        cmocka_unit_test(test_null_objects_are_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
