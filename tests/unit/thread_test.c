/* Any function from any thread. The threads only count failures; the main thread asserts. */
#include "fixture.h"

#include <fakedev.h>
#include <stdlib.h>

enum { THREADS = 9, CALLS = 40 }; /* more threads than a program has kernel instances (4) */

static clattn_context *context;
static clattn_plan_desc desc;
static pthread_barrier_t start; /* so that all do it at the same moment */

static int open_all(void **state)
{
    if (fixture_open(state) != 0)
        return -1;
    const clattn_context_options options = options_with(NULL);
    context = context_with(&options);
    desc = small_desc(CLATTN_FEATURE_LSE);
    return 0;
}

static int close_all(void **state)
{
    clattn_context_release(context);
    return fixture_close(state);
}

typedef struct worker {
    pthread_t thread;
    int index;
    int failures;
    clattn_plan *plan;
    attention_call call;
    cl_command_queue queue;
} worker;

static void run_all(worker workers[THREADS], void *(*body)(void *))
{
    pthread_barrier_init(&start, NULL, THREADS);
    for (int i = 0; i < THREADS; i++) {
        workers[i].index = i;
        workers[i].failures = 0;
        assert_int_equal(pthread_create(&workers[i].thread, NULL, body, &workers[i]), 0);
    }
    int failures = 0;
    for (int i = 0; i < THREADS; i++) {
        assert_int_equal(pthread_join(workers[i].thread, NULL), 0);
        failures += workers[i].failures;
    }
    pthread_barrier_destroy(&start);
    assert_int_equal(failures, 0);
}

/* ---- Plans ---- */

static void *create_plan(void *user)
{
    worker *self = user;
    pthread_barrier_wait(&start);
    self->failures += clattn_plan_create(&self->plan, context, &desc) != CLATTN_SUCCESS;
    return NULL;
}

static void *release_plan(void *user)
{
    worker *self = user;
    pthread_barrier_wait(&start);
    clattn_plan_release(self->plan);
    return NULL;
}

static void test_a_program_is_built_once(void **state)
{
    worker workers[THREADS];
    struct clattn_fakedev_counters counters;
    (void)state;
    clattn_fakedev_reset();
    run_all(workers, create_plan);
    clattn_fakedev_counters(&counters);
    assert_int_equal(counters.builds_from_source, 1);
    assert_int_equal(counters.live[CLATTN_FAKEDEV_PROGRAM], 1);
    run_all(workers, release_plan);
}

/* Those who waited for a build that failed learn its status; the next who asks succeeds. */
static void *fail_to_create_plan(void *user)
{
    worker *self = user;
    pthread_barrier_wait(&start);
    self->failures += clattn_plan_create(&self->plan, context, &desc) == CLATTN_SUCCESS;
    self->failures += self->plan != NULL;
    return NULL;
}

static void test_a_failed_build_wakes_all(void **state)
{
    worker workers[THREADS];
    clattn_context *shared = context;
    const clattn_context_options options = options_with(NULL);
    (void)state;
    context = context_with(&options);
    clattn_fakedev_fail("clBuildProgram:1+:-6");
    run_all(workers, fail_to_create_plan);
    clattn_fakedev_fail(NULL);
    clattn_plan_release(plan_with(context, &desc));
    clattn_context_release(context);
    context = shared;
}

/* ---- Calls ---- */

static void *call_often(void *user)
{
    worker *self = user;
    pthread_barrier_wait(&start);
    for (int i = 0; i < CALLS; i++)
        self->failures += !call_runs(&self->call, self->plan, self->queue);
    return NULL;
}

/* One plan, own queues, own data and lengths. */
static void test_threads_share_a_plan(void **state)
{
    worker workers[THREADS];
    clattn_plan *plan = plan_with(context, &desc);
    (void)state;
    for (int i = 0; i < THREADS; i++) {
        cl_int code;
        workers[i].plan = plan;
        workers[i].queue = clCreateCommandQueue(device.context, device.id,
                                                i % 2 ? CL_QUEUE_OUT_OF_ORDER_EXEC_MODE_ENABLE : 0, &code);
        assert_int_equal(code, CL_SUCCESS);
        call_open(&workers[i].call, device.context, &desc, 1 + i % 3, 1 + 7 * i, 50 - i, (unsigned)i);
    }
    run_all(workers, call_often);
    for (int i = 0; i < THREADS; i++) {
        call_close(&workers[i].call);
        clReleaseCommandQueue(workers[i].queue);
    }
    clattn_plan_release(plan);
}

/* One queue for all: OpenCL allows it, so does the library. */
static void test_threads_share_a_queue(void **state)
{
    worker workers[THREADS];
    clattn_plan *plan = plan_with(context, &desc);
    (void)state;
    for (int i = 0; i < THREADS; i++) {
        workers[i].plan = plan;
        workers[i].queue = device.queue;
        call_open(&workers[i].call, device.context, &desc, 1, 3 + i, 20 + i, (unsigned)i);
    }
    run_all(workers, call_often);
    for (int i = 0; i < THREADS; i++)
        call_close(&workers[i].call);
    clattn_plan_release(plan);
}

/* ---- Contexts ---- */

static void *live_a_life(void *user)
{
    worker *self = user;
    pthread_barrier_wait(&start);
    for (int i = 0; i < 4; i++) {
        clattn_context *own = NULL;
        clattn_plan *plan = NULL;
        if (clattn_context_create(&own, device.context, device.id, NULL) != CLATTN_SUCCESS ||
            clattn_plan_create(&plan, own, &desc) != CLATTN_SUCCESS) {
            self->failures++;
        } else {
            clattn_context_release(own);
            own = NULL;
            self->failures += !call_runs(&self->call, plan, self->queue);
        }
        clattn_plan_release(plan);
        clattn_context_release(own);
    }
    return NULL;
}

static void test_contexts_come_and_go(void **state)
{
    worker workers[THREADS];
    struct clattn_fakedev_counters before, after;
    (void)state;
    for (int i = 0; i < THREADS; i++) {
        workers[i].queue = device.queue;
        call_open(&workers[i].call, device.context, &desc, 1, 3 + i, 20 + i, (unsigned)i);
    }
    clattn_fakedev_counters(&before);
    run_all(workers, live_a_life);
    clattn_fakedev_counters(&after);
    assert_memory_equal(before.references, after.references, sizeof before.references);
    for (int i = 0; i < THREADS; i++)
        call_close(&workers[i].call);
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_a_program_is_built_once), cmocka_unit_test(test_a_failed_build_wakes_all),
        cmocka_unit_test(test_threads_share_a_plan),    cmocka_unit_test(test_threads_share_a_queue),
        cmocka_unit_test(test_contexts_come_and_go),
    };
    fixture_arguments(argc, argv);
    return cmocka_run_group_tests(tests, open_all, close_all);
}
