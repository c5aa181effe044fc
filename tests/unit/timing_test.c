/* How long plan creation and enqueueing take on the host. Each figure is printed; one above its
 * goal is a warning, above three times the goal a failure: machines differ. They are also shared:
 * so what may take long is judged by the processor time of all threads, and the time on the clock
 * is only printed. Not run if CLATTN_SKIP_TIMING is set.
 *
 * Plan creation is measured in two processes with empty caches of PoCL's own (POCL_CACHE_DIR), the
 * second with the first one's directory cache of ours. */
#include <clattn.h>

#include <stdio.h>
#include <stdlib.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

enum { SKIPPED = 77, ENQUEUES = 400, FAILURE_FACTOR = 3 };

static const double COLD_PLAN_MS = 1500, WARM_PLAN_MS = 60, FIRST_ENQUEUE_MS = 2, ENQUEUE_US = 10;

static int failures;

static double milliseconds(clockid_t clock)
{
    struct timespec now;
    clock_gettime(clock, &now);
    return 1e3 * (double)now.tv_sec + 1e-6 * (double)now.tv_nsec;
}

/* Compilers run a linker as a child. */
static double children_ms(void)
{
    struct rusage used;
    getrusage(RUSAGE_CHILDREN, &used);
    return 1e3 * (double)(used.ru_utime.tv_sec + used.ru_stime.tv_sec) +
           1e-3 * (double)(used.ru_utime.tv_usec + used.ru_stime.tv_usec);
}

typedef struct stopwatch {
    double clock, processor;
} stopwatch;

static stopwatch start(void)
{
    return (stopwatch){milliseconds(CLOCK_MONOTONIC), milliseconds(CLOCK_PROCESS_CPUTIME_ID) + children_ms()};
}

static stopwatch stop(stopwatch started)
{
    const stopwatch now = start();
    return (stopwatch){now.clock - started.clock, now.processor - started.processor};
}

static void judge(const char *what, double value, double goal, const char *unit)
{
    const int fails = value > FAILURE_FACTOR * goal;
    printf("%-52s %8.2f %s (goal %g)%s\n", what, value, unit, goal,
           fails          ? "  FAILED"
           : value > goal ? "  warning: above the goal"
                          : "");
    failures += fails;
}

static void judge_time(const char *what, stopwatch took, double goal)
{
    printf("%s: %.1f ms on the clock\n", what, took.clock);
    judge(what, took.processor, goal, "ms");
}

static void check(int done, const char *step)
{
    if (done)
        return;
    fprintf(stderr, "%s failed\n", step);
    exit(1);
}

typedef struct session {
    cl_device_id device;
    cl_context cl;
    cl_command_queue queue;
    clattn_cache_hooks cache;
    clattn_context *context;
} session;

static void session_open(session *s, const char *cache)
{
    clattn_context_options options = CLATTN_CONTEXT_OPTIONS_INIT;
    cl_platform_id platform;
    cl_int code;
    if (clGetPlatformIDs(1, &platform, NULL) != CL_SUCCESS ||
        clGetDeviceIDs(platform, CL_DEVICE_TYPE_ALL, 1, &s->device, NULL) != CL_SUCCESS)
        exit(SKIPPED);
    s->cl = clCreateContext(NULL, 1, &s->device, NULL, NULL, &code);
    s->queue = clCreateCommandQueue(s->cl, s->device, 0, &code);
    check(clattn_directory_cache_open(&s->cache, cache) == CLATTN_SUCCESS, "opening the cache");
    options.cache = s->cache;
    check(clattn_context_create(&s->context, s->cl, s->device, &options) == CLATTN_SUCCESS,
          "clattn_context_create");
}

static void session_close(session *s)
{
    clattn_context_release(s->context);
    clattn_directory_cache_close(&s->cache);
    clReleaseCommandQueue(s->queue);
    clReleaseContext(s->cl);
}

/* The size of real models; none of it depends on the lengths. */
static clattn_plan *plan_open(const session *s, stopwatch *took)
{
    clattn_plan_desc desc = CLATTN_PLAN_DESC_INIT;
    clattn_plan *plan = NULL;
    desc.heads_q = 8;
    desc.head_dim_qk = 64;
    desc.features = CLATTN_FEATURE_CAUSAL;
    const stopwatch started = start();
    check(clattn_plan_create(&plan, s->context, &desc) == CLATTN_SUCCESS, "clattn_plan_create");
    *took = stop(started);
    return plan;
}

static void args_open(const session *s, clattn_forward_args *args)
{
    enum { LENGTH = 16, HEADS = 8, DIM = 64 };
    clattn_tensor *tensors[] = {&args->q, &args->k, &args->v, &args->o};
    cl_int code;
    for (int i = 0; i < 4; i++) {
        tensors[i]->handle =
            clCreateBuffer(s->cl, CL_MEM_READ_WRITE, LENGTH * HEADS * DIM * sizeof(float), NULL, &code);
        check(code == CL_SUCCESS, "clCreateBuffer");
        tensors[i]->stride[0] = LENGTH * HEADS * DIM;
        tensors[i]->stride[1] = LENGTH * DIM;
        tensors[i]->stride[2] = DIM;
    }
    args->batch = 1;
    args->q_len = args->kv_len = LENGTH;
}

static void args_close(clattn_forward_args *args)
{
    clReleaseMemObject(args->q.handle);
    clReleaseMemObject(args->k.handle);
    clReleaseMemObject(args->v.handle);
    clReleaseMemObject(args->o.handle);
}

/* ---- Enqueue ---- */

static double enqueue_and_wait(const session *s, clattn_plan *plan, const clattn_forward_args *args)
{
    const stopwatch started = start();
    check(clattn_enqueue_forward(plan, s->queue, args, 0, NULL, NULL) == CLATTN_SUCCESS &&
              clFinish(s->queue) == CL_SUCCESS,
          "clattn_enqueue_forward");
    return stop(started).processor;
}

static int ascending(const void *a, const void *b)
{
    const double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

/* Behind an event that is not set, so that nothing runs while the host's part is measured. */
static double median_enqueue_us(const session *s, clattn_plan *plan, const clattn_forward_args *args)
{
    static double took[ENQUEUES];
    cl_int code;
    cl_event gate = clCreateUserEvent(s->cl, &code);
    for (int i = 0; i < ENQUEUES; i++) {
        const double started = milliseconds(CLOCK_MONOTONIC);
        check(clattn_enqueue_forward(plan, s->queue, args, 1, &gate, NULL) == CLATTN_SUCCESS,
              "clattn_enqueue_forward");
        took[i] = 1e3 * (milliseconds(CLOCK_MONOTONIC) - started);
    }
    clSetUserEventStatus(gate, CL_COMPLETE);
    clFinish(s->queue);
    clReleaseEvent(gate);
    qsort(took, ENQUEUES, sizeof *took, ascending);
    return took[ENQUEUES / 2];
}

/* ---- The two processes ---- */

static void measure_cold(const char *cache)
{
    clattn_forward_args args = CLATTN_FORWARD_ARGS_INIT;
    session s;
    stopwatch took;
    session_open(&s, cache);
    clattn_plan *plan = plan_open(&s, &took);
    judge_time("plan, all caches empty", took, COLD_PLAN_MS);
    args_open(&s, &args);
    const double first = enqueue_and_wait(&s, plan, &args);
    const double second = enqueue_and_wait(&s, plan, &args);
    judge("first enqueue, more than the second", first - second, FIRST_ENQUEUE_MS, "ms");
    judge("one enqueue, host time, median", median_enqueue_us(&s, plan, &args), ENQUEUE_US, "us");
    args_close(&args);
    clattn_plan_release(plan);
    session_close(&s);
}

static void measure_warm(const char *cache)
{
    clattn_forward_args args = CLATTN_FORWARD_ARGS_INIT;
    session s;
    stopwatch took;
    session_open(&s, cache);
    clattn_plan *plan = plan_open(&s, &took);
    judge_time("plan, our cache filled, PoCL's empty", took, WARM_PLAN_MS);
    args_open(&s, &args);
    const double first = enqueue_and_wait(&s, plan, &args);
    const double second = enqueue_and_wait(&s, plan, &args);
    judge("first enqueue of a cached plan, more than the second", first - second, FIRST_ENQUEUE_MS, "ms");
    args_close(&args);
    clattn_plan_release(plan);
    session_close(&s);
}

/* Forked before the first OpenCL call, since drivers do not survive a fork. */
static int in_process(void (*measure)(const char *cache), const char *directory, const char *name)
{
    int status = 1;
    char pocl[200], ours[200];
    fflush(stdout);
    const pid_t child = fork();
    if (child == 0) {
        snprintf(pocl, sizeof pocl, "%s/pocl-%s", directory, name);
        snprintf(ours, sizeof ours, "%s/clattn", directory);
        setenv("POCL_CACHE_DIR", pocl, 1);
        measure(ours);
        exit(failures > 0);
    }
    return child > 0 && waitpid(child, &status, 0) == child && WIFEXITED(status) ? WEXITSTATUS(status) : 1;
}

int main(void)
{
    char directory[] = "/tmp/clattn-timing-XXXXXX", command[100];
    if (getenv("CLATTN_SKIP_TIMING") != NULL)
        return SKIPPED;
    check(mkdtemp(directory) != NULL, "mkdtemp");
    const int cold = in_process(measure_cold, directory, "cold");
    const int warm = cold == SKIPPED ? SKIPPED : in_process(measure_warm, directory, "warm");
    snprintf(command, sizeof command, "rm -rf '%s'", directory);
    if (system(command) != 0)
        printf("%s remains\n", directory);
    return cold != 0 ? cold : warm;
}
