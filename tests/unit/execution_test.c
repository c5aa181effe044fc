/* What happens between enqueue and the event: order on both kinds of queue, wait lists, empty
 * calls, calls cut into several launches; and that nothing is compiled, created, flushed or waited
 * for. */
#include "fixture.h"

#include <fakedev.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { BATCH = 2, Q_LEN = 600, KV_LEN = 100 }; /* several query tiles a head on each path */

static clattn_plan_desc desc;
static attention_call call;
static cl_command_queue out_of_order;

/* The same plan in contexts that cut calls: not at all, into single tiles, into about 1024 rows. */
enum { WHOLE, SINGLE, SOME, CUTS };
static clattn_context *contexts[CUTS];
static clattn_plan *plans[CUTS];

static int open_all(void **state)
{
    static const uint64_t most_work[CUTS] = {0, 1, 1024 * (KV_LEN + 1) * 32};
    cl_int code;
    if (fixture_open(state) != 0)
        return -1;
    out_of_order =
        clCreateCommandQueue(device.context, device.id, CL_QUEUE_OUT_OF_ORDER_EXEC_MODE_ENABLE, &code);
    if (code != CL_SUCCESS)
        return -1;
    desc = small_desc(CLATTN_FEATURE_LSE | CLATTN_FEATURE_CAUSAL);
    for (int i = 0; i < CUTS; i++) {
        clattn_context_options options = options_with(NULL);
        options.max_work_per_launch = most_work[i];
        contexts[i] = context_with(&options);
        plans[i] = plan_with(contexts[i], &desc);
    }
    call_open(&call, device.context, &desc, BATCH, Q_LEN, KV_LEN, 1);
    return 0;
}

static int close_all(void **state)
{
    call_close(&call);
    for (int i = 0; i < CUTS; i++) {
        clattn_plan_release(plans[i]);
        clattn_context_release(contexts[i]);
    }
    clReleaseCommandQueue(out_of_order);
    return fixture_close(state);
}

static cl_event user_event(void)
{
    cl_int code;
    cl_event event = clCreateUserEvent(device.context, &code);
    assert_int_equal(code, CL_SUCCESS);
    return event;
}

static void set_and_release(cl_event event)
{
    assert_int_equal(clSetUserEventStatus(event, CL_COMPLETE), CL_SUCCESS);
    assert_int_equal(clReleaseEvent(event), CL_SUCCESS);
}

static cl_event enqueue(clattn_plan *plan, cl_command_queue queue, const clattn_forward_args *args,
                        cl_uint num_wait, const cl_event *wait)
{
    cl_event event = NULL;
    assert_int_equal(clattn_enqueue_forward(plan, queue, args, num_wait, wait, &event), CLATTN_SUCCESS);
    assert_non_null(event);
    return event;
}

/* ---- Order ---- */

/* A queue apart, for looking while the one under test is held up. */
static cl_command_queue onlooker(void)
{
    cl_int code;
    cl_command_queue queue = clCreateCommandQueue(device.context, device.id, 0, &code);
    assert_int_equal(code, CL_SUCCESS);
    return queue;
}

static void check_wait_list(clattn_plan *plan, cl_command_queue queue)
{
    cl_command_queue look = onlooker();
    cl_event gates[2] = {user_event(), user_event()};
    assert_true(call_poison(&call, look));
    cl_event event = enqueue(plan, queue, &call.args, 2, gates);
    assert_int_equal(clFlush(queue), CL_SUCCESS);
    assert_false(event_is_complete(event));
    set_and_release(gates[1]);
    assert_false(event_is_complete(event));
    assert_true(call_is_untouched(&call, look));
    set_and_release(gates[0]);
    event_finish(event);
    assert_true(call_is_right(&call, look));
    clReleaseCommandQueue(look);
}

static void test_wait_list(void **state)
{
    (void)state;
    for (int i = 0; i < CUTS; i++) {
        check_wait_list(plans[i], device.queue);
        check_wait_list(plans[i], out_of_order);
    }
}

/* The second call reads what the first writes, and only its event says so. */
static void test_events_chain_calls(void **state)
{
    (void)state;
    for (int i = 0; i < CUTS; i++) {
        attention_call second;
        call_open(&second, device.context, &desc, BATCH, Q_LEN, KV_LEN, 2);
        cl_mem own_q = second.args.q.handle;
        second.args.q.handle = call.args.o.handle;
        cl_event gate = user_event();
        cl_event first_done = enqueue(plans[i], out_of_order, &call.args, 1, &gate);
        cl_event done = enqueue(plans[i], out_of_order, &second.args, 1, &first_done);
        assert_false(event_is_complete(done));
        set_and_release(gate);
        event_finish(done);
        event_finish(first_done);
        assert_true(call_is_right(&call, device.queue));
        float *first_o = call_outputs(&call, device.queue);
        memcpy(second.q, first_o, call.o_count * sizeof *first_o);
        free(first_o);
        assert_true(call_is_right(&second, device.queue));
        second.args.q.handle = own_q;
        call_close(&second);
    }
}

/* In-order queues need no events. */
static void test_in_order_queue_keeps_order(void **state)
{
    attention_call second;
    (void)state;
    call_open(&second, device.context, &desc, BATCH, Q_LEN, KV_LEN, 2);
    cl_mem own_q = second.args.q.handle;
    second.args.q.handle = call.args.o.handle;
    for (int i = 0; i < CUTS; i++) {
        assert_true(call_poison(&call, device.queue));
        assert_int_equal(clattn_enqueue_forward(plans[i], device.queue, &call.args, 0, NULL, NULL),
                         CLATTN_SUCCESS);
        assert_int_equal(clattn_enqueue_forward(plans[i], device.queue, &second.args, 0, NULL, NULL),
                         CLATTN_SUCCESS);
        float *first_o = call_outputs(&call, device.queue);
        memcpy(second.q, first_o, call.o_count * sizeof *first_o);
        free(first_o);
        assert_true(call_is_right(&second, device.queue));
    }
    second.args.q.handle = own_q;
    call_close(&second);
}

/* ---- Events ---- */

/* Every event but the returned one is let go; that one is the caller's alone. Where queues keep the order and
 * nobody asks, there is none: drivers take longer from command to command where there are. */
static void test_events_are_not_leaked(void **state)
{
    (void)state;
    for (int i = 0; i < CUTS; i++) {
        struct clattn_fakedev_counters before, during, after;
        clattn_fakedev_counters(&before);
        cl_event event = enqueue(plans[i], device.queue, &call.args, 0, NULL);
        clattn_fakedev_counters(&during);
        assert_int_equal(during.references[CLATTN_FAKEDEV_EVENT],
                         before.references[CLATTN_FAKEDEV_EVENT] + 1);
        event_finish(event);
        assert_int_equal(clattn_enqueue_forward(plans[i], device.queue, &call.args, 0, NULL, NULL),
                         CLATTN_SUCCESS);
        clFinish(device.queue);
        clattn_fakedev_counters(&after);
        assert_memory_equal(before.references, after.references, sizeof before.references);
        assert_int_equal(after.created[CLATTN_FAKEDEV_EVENT], during.created[CLATTN_FAKEDEV_EVENT]);
    }
}

/* ---- Arguments ---- */

/* q, k, v, o, lse and the struct: buffers that the call has not are null pointers since the plan was made. */
static void test_null_pointers_are_not_set_again(void **state)
{
    (void)state;
    const uint64_t before = clattn_fakedev_calls("clSetKernelArg");
    assert_int_equal(clattn_enqueue_forward(plans[WHOLE], device.queue, &call.args, 0, NULL, NULL),
                     CLATTN_SUCCESS);
    assert_int_equal(clattn_fakedev_calls("clSetKernelArg") - before, 6);
    clFinish(device.queue);
}

/* ---- Nothing to do ---- */

static void check_empty(const clattn_forward_args *args, cl_command_queue queue)
{
    cl_event gate = user_event();
    cl_event event = enqueue(plans[WHOLE], queue, args, 1, &gate);
    assert_false(event_is_complete(event));
    set_and_release(gate);
    event_finish(event);
    event_finish(enqueue(plans[WHOLE], queue, args, 0, NULL));
    assert_int_equal(clattn_enqueue_forward(plans[WHOLE], queue, args, 0, NULL, NULL), CLATTN_SUCCESS);
}

static void test_empty_calls(void **state)
{
    clattn_forward_args empty = CLATTN_FORWARD_ARGS_INIT;
    (void)state;
    clattn_fakedev_reset();
    check_empty(&empty, device.queue); /* no tensors at all */
    check_empty(&empty, out_of_order);
    assert_true(call_poison(&call, device.queue));
    clattn_forward_args args = call.args;
    args.batch = 0;
    check_empty(&args, device.queue);
    args = call.args;
    args.q_len = 0;
    check_empty(&args, out_of_order);
    assert_true(call_is_untouched(&call, device.queue));
    struct clattn_fakedev_counters counters;
    clattn_fakedev_counters(&counters);
    assert_int_equal(counters.launches, 0);
}

/* Rows without keys are written: o = 0, lse = -inf. k and v may be missing. */
static void test_no_keys(void **state)
{
    attention_call keyless;
    (void)state;
    call_open(&keyless, device.context, &desc, BATCH, Q_LEN, 0, 1);
    assert_null(keyless.args.k.handle);
    for (int i = 0; i < CUTS; i++)
        call_run(&keyless, plans[i]);
    float *values = call_outputs(&keyless, device.queue);
    assert_true(values[0] == 0.0f);
    assert_true(values[keyless.o_count] == -INFINITY);
    free(values);
    call_close(&keyless);
}

/* ---- Launches ---- */

static void test_cut_calls_give_the_same_bits(void **state)
{
    struct clattn_fakedev_counters counters;
    uint64_t launches[CUTS];
    float *outputs[CUTS];
    (void)state;
    for (int i = 0; i < CUTS; i++) {
        clattn_fakedev_reset();
        call_run(&call, plans[i]);
        clattn_fakedev_counters(&counters);
        launches[i] = counters.launches;
        outputs[i] = call_outputs(&call, device.queue);
        assert_memory_equal(outputs[i], outputs[WHOLE], (call.o_count + call.lse_count) * sizeof *outputs[i]);
    }
    assert_int_equal(launches[WHOLE], 1);
    assert_in_range(launches[SOME], 2, launches[SINGLE] - 1);
    for (int i = 0; i < CUTS; i++)
        free(outputs[i]);
}

static void test_same_bits_run_after_run(void **state)
{
    float *first = NULL;
    (void)state;
    for (int i = 0; i < 5; i++) {
        call_run(&call, plans[WHOLE]);
        float *again = call_outputs(&call, i % 2 ? device.queue : out_of_order);
        if (first == NULL) {
            first = again;
            continue;
        }
        assert_memory_equal(first, again, (call.o_count + call.lse_count) * sizeof *first);
        free(again);
    }
    free(first);
}

/* ---- Nothing hidden ---- */

static void test_enqueue_does_nothing_else(void **state)
{
    static const char *const forbidden[] = {"clFinish",
                                            "clFlush",
                                            "clWaitForEvents",
                                            "clBuildProgram",
                                            "clCreateKernel",
                                            "clCreateBuffer",
                                            "clCreateProgramWithSource",
                                            "clCreateCommandQueue",
                                            "clSVMAlloc",
                                            "clCreateProgramWithBinary",
                                            "clEnqueueWriteBuffer",
                                            "clEnqueueReadBuffer"};
    (void)state;
    for (int i = 0; i < CUTS; i++) {
        cl_event gate = user_event();
        clattn_fakedev_reset();
        cl_event event = enqueue(plans[i], out_of_order, &call.args, 1, &gate);
        for (size_t f = 0; f < sizeof forbidden / sizeof *forbidden; f++)
            assert_int_equal(clattn_fakedev_calls(forbidden[f]), 0);
        set_and_release(gate);
        event_finish(event);
    }
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_wait_list),
        cmocka_unit_test(test_events_chain_calls),
        cmocka_unit_test(test_in_order_queue_keeps_order),
        cmocka_unit_test(test_events_are_not_leaked),
        cmocka_unit_test(test_null_pointers_are_not_set_again),
        cmocka_unit_test(test_empty_calls),
        cmocka_unit_test(test_no_keys),
        cmocka_unit_test(test_cut_calls_give_the_same_bits),
        cmocka_unit_test(test_same_bits_run_after_run),
        cmocka_unit_test(test_enqueue_does_nothing_else),
    };
    fixture_arguments(argc, argv);
    return cmocka_run_group_tests(tests, open_all, close_all);
}
