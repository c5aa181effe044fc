/* fixture.h: what the unit tests share: a device, the library's log, and one small attention call
 * whose result is checked against double precision. */
#ifndef CLATTN_TEST_FIXTURE_H
#define CLATTN_TEST_FIXTURE_H

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <clattn.h>
#include <cmocka.h>
#include <pthread.h>

/* ---- The device ---- */

typedef struct test_device {
    cl_device_id id;
    cl_context context;
    cl_command_queue queue; /* in-order */
    int32_t path;           /* CLATTN_PATH_*: which one the program is asked to test */
} test_device;

extern test_device device;

/* Reads the path ("cpu", "portable", none) from the command line. */
void fixture_arguments(int argc, char **argv);

/* For cmocka groups. Without an OpenCL device the process ends with status 77: skipped. */
int fixture_open(void **state);
int fixture_close(void **state);

/* Another device of the platform, or NULL. (CTest has PoCL make two.) */
cl_device_id second_device(void);

/* ---- The log ---- */

typedef struct log_record {
    pthread_mutex_t mutex;
    int errors;
    char last_error[2048];
    char all[16384]; /* what fits of all messages, one a line */
} log_record;

#define LOG_RECORD_INIT                      \
    {                                        \
        PTHREAD_MUTEX_INITIALIZER, 0, "", "" \
    }

void log_write(void *user, int32_t level, const char *message);
void log_clear(log_record *log);

/* That the status is the expected one, and that exactly one message says why. `says` is a list of
 * texts that the message must hold, separated by '|'. */
void expect_refusal(log_record *log, clattn_status status, clattn_status expected, const char *says);

/* ---- Context and plan ---- */

/* Options that send messages up to INFO to the record (NULL: nowhere). */
clattn_context_options options_with(log_record *log);
clattn_context *context_with(const clattn_context_options *options);

/* A small model: 2 query heads, 1 KV head, head dim 16, the path under test. */
clattn_plan_desc small_desc(uint32_t features);
clattn_plan *plan_with(clattn_context *context, const clattn_plan_desc *desc);

/* ---- One call ---- */

typedef struct attention_call {
    clattn_plan_desc desc; /* f32; heads_kv and head_dim_v resolved */
    clattn_forward_args args;
    float *q, *k, *v, *bias; /* what the buffers hold */
    size_t o_count, lse_count;
} attention_call;

/* Inputs depend on `seed`; outputs are poisoned. All tensors are dense; the scalars have defaults.
 */
void call_open(attention_call *call, cl_context context, const clattn_plan_desc *desc, int batch, int q_len,
               int kv_len, unsigned seed);
void call_close(attention_call *call);

/* What follows asserts nothing, so that threads may use it; 0 is failure. */

/* Reads o, then lse if the plan has it; the caller frees the result. */
float *call_outputs(const attention_call *call, cl_command_queue queue);

int call_poison(const attention_call *call, cl_command_queue queue);
int call_is_untouched(const attention_call *call, cl_command_queue queue);

/* Whether the outputs are those of the formula in clattn.h. */
int call_is_right(const attention_call *call, cl_command_queue queue);

/* Poisons, enqueues, waits, checks. */
int call_runs(const attention_call *call, clattn_plan *plan, cl_command_queue queue);

/* That call_runs on the device's queue. */
void call_run(const attention_call *call, clattn_plan *plan);

/* ---- Events ---- */

int event_is_complete(cl_event event);

/* Waits, releases. */
void event_finish(cl_event event);

#endif
