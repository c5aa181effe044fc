#include "fixture.h"

#include <fakedev.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { SKIPPED = 77 };

static const float POISON = -12345.75f;

test_device device;

/* ---- The device ---- */

void fixture_arguments(int argc, char **argv)
{
    const char *path = argc > 1 ? argv[1] : "";
    device.path = strcmp(path, "cpu") == 0        ? CLATTN_PATH_CPU
                  : strcmp(path, "portable") == 0 ? CLATTN_PATH_PORTABLE
                                                  : CLATTN_PATH_AUTO;
}

int fixture_open(void **state)
{
    cl_platform_id platform;
    cl_int code;
    (void)state;
    if (clGetPlatformIDs(1, &platform, NULL) != CL_SUCCESS ||
        clGetDeviceIDs(platform, CL_DEVICE_TYPE_ALL, 1, &device.id, NULL) != CL_SUCCESS) {
        printf("skipped: there is no OpenCL device\n");
        exit(SKIPPED);
    }
    if (!clattn_fakedev_active()) {
        printf("OPENCL_LAYERS must name the fake-device layer (tests/stub): run the tests by ctest\n");
        return -1;
    }
    device.context = clCreateContext(NULL, 1, &device.id, NULL, NULL, &code);
    if (code == CL_SUCCESS)
        device.queue = clCreateCommandQueue(device.context, device.id, 0, &code);
    return code == CL_SUCCESS ? 0 : -1;
}

int fixture_close(void **state)
{
    (void)state;
    clReleaseCommandQueue(device.queue);
    clReleaseContext(device.context);
    return 0;
}

cl_device_id second_device(void)
{
    cl_platform_id platform;
    cl_device_id devices[2] = {NULL, NULL};
    if (clGetPlatformIDs(1, &platform, NULL) == CL_SUCCESS)
        clGetDeviceIDs(platform, CL_DEVICE_TYPE_ALL, 2, devices, NULL);
    return devices[1];
}

/* ---- The log ---- */

static void append(char *text, size_t capacity, const char *more)
{
    const size_t used = strlen(text);
    snprintf(text + used, capacity - used, "%s\n", more);
}

void log_write(void *user, int32_t level, const char *message)
{
    log_record *log = user;
    if (message[0] == '\0')
        message = "(an empty message)";
    pthread_mutex_lock(&log->mutex);
    if (level == CLATTN_LOG_ERROR) {
        log->errors++;
        snprintf(log->last_error, sizeof log->last_error, "%s", message);
    }
    append(log->all, sizeof log->all, message);
    pthread_mutex_unlock(&log->mutex);
}

void log_clear(log_record *log)
{
    log->errors = 0;
    log->last_error[0] = log->all[0] = '\0';
}

void expect_refusal(log_record *log, clattn_status status, clattn_status expected, const char *says)
{
    char texts[512];
    if (status != expected)
        fail_msg("status %s; expected %s (%s)", clattn_status_string(status), clattn_status_string(expected),
                 log->last_error);
    if (log->errors != 1)
        fail_msg("%d error messages; expected one with \"%s\"", log->errors, says);
    snprintf(texts, sizeof texts, "%s", says);
    for (char *text = strtok(texts, "|"); text != NULL; text = strtok(NULL, "|"))
        if (strstr(log->last_error, text) == NULL)
            fail_msg("\"%s\" lacks \"%s\"", log->last_error, text);
    log_clear(log);
}

/* ---- Context and plan ---- */

clattn_context_options options_with(log_record *log)
{
    clattn_context_options options = CLATTN_CONTEXT_OPTIONS_INIT;
    options.log_level = CLATTN_LOG_INFO;
    options.log = log != NULL ? log_write : NULL;
    options.log_user = log;
    return options;
}

clattn_context *context_with(const clattn_context_options *options)
{
    clattn_context *context = NULL;
    assert_int_equal(clattn_context_create(&context, device.context, device.id, options), CLATTN_SUCCESS);
    return context;
}

clattn_plan_desc small_desc(uint32_t features)
{
    clattn_plan_desc desc = CLATTN_PLAN_DESC_INIT;
    desc.heads_q = 2;
    desc.heads_kv = 1;
    desc.head_dim_qk = 16;
    desc.features = features;
    desc.path = device.path;
    return desc;
}

clattn_plan *plan_with(clattn_context *context, const clattn_plan_desc *desc)
{
    clattn_plan *plan = NULL;
    assert_int_equal(clattn_plan_create(&plan, context, desc), CLATTN_SUCCESS);
    return plan;
}

/* ---- One call ---- */

/* Uniform in -1 .. 1 (Knuth's linear congruential generator, upper bits). */
static float *random_floats(size_t count, uint64_t *seed)
{
    float *values = malloc((count + 1) * sizeof *values);
    assert_non_null(values);
    for (size_t i = 0; i < count; i++) {
        *seed = *seed * UINT64_C(6364136223846793005) + UINT64_C(1442695040888963407);
        values[i] = (float)(*seed >> 40) / (float)(1 << 23) - 1.0f;
    }
    return values;
}

/* A dense tensor; an empty one has no buffer. `values` NULL: an output. */
static clattn_tensor dense(cl_context context, const float *values, int64_t batch, int64_t heads,
                           int64_t rows, int64_t row)
{
    clattn_tensor tensor = CLATTN_TENSOR_INIT;
    const size_t bytes = (size_t)(batch * heads * rows * row) * sizeof(float);
    cl_int code = CL_SUCCESS;
    tensor.stride[0] = heads * rows * row;
    tensor.stride[1] = rows * row;
    tensor.stride[2] = row;
    tensor.stride[3] = 1;
    if (bytes > 0)
        tensor.handle = clCreateBuffer(
            context, values == NULL ? CL_MEM_READ_WRITE : CL_MEM_READ_ONLY | CL_MEM_COPY_HOST_PTR, bytes,
            (void *)values, &code);
    assert_int_equal(code, CL_SUCCESS);
    return tensor;
}

void call_open(attention_call *call, cl_context context, const clattn_plan_desc *desc, int batch, int q_len,
               int kv_len, unsigned seed)
{
    const clattn_forward_args args = CLATTN_FORWARD_ARGS_INIT;
    uint64_t state = seed + 1;
    call->desc = *desc;
    call->args = args;
    if (call->desc.heads_kv == 0)
        call->desc.heads_kv = call->desc.heads_q;
    if (call->desc.head_dim_v == 0)
        call->desc.head_dim_v = call->desc.head_dim_qk;
    const size_t heads_q = (size_t)call->desc.heads_q, heads_kv = (size_t)call->desc.heads_kv;
    const size_t dim_qk = (size_t)call->desc.head_dim_qk, dim_v = (size_t)call->desc.head_dim_v;
    const size_t rows = (size_t)batch * heads_q * (size_t)q_len;
    const size_t keys = (size_t)batch * heads_kv * (size_t)kv_len;
    const int has_lse = (desc->features & CLATTN_FEATURE_LSE) != 0;
    const int has_bias = (desc->features & CLATTN_FEATURE_BIAS) != 0;

    call->o_count = rows * dim_v;
    call->lse_count = has_lse ? rows : 0;
    call->q = random_floats(rows * dim_qk, &state);
    call->k = random_floats(keys * dim_qk, &state);
    call->v = random_floats(keys * dim_v, &state);
    call->bias = has_bias ? random_floats(rows * (size_t)kv_len, &state) : NULL;

    call->args.batch = batch;
    call->args.q_len = q_len;
    call->args.kv_len = kv_len;
    call->args.scale = 0.5f;
    call->args.softcap = (desc->features & CLATTN_FEATURE_SOFTCAP) != 0 ? 2.0f : 0.0f;
    call->args.q = dense(context, call->q, batch, desc->heads_q, q_len, call->desc.head_dim_qk);
    call->args.k = dense(context, call->k, batch, call->desc.heads_kv, kv_len, call->desc.head_dim_qk);
    call->args.v = dense(context, call->v, batch, call->desc.heads_kv, kv_len, call->desc.head_dim_v);
    call->args.o = dense(context, NULL, batch, desc->heads_q, q_len, call->desc.head_dim_v);
    if (has_lse)
        call->args.lse = dense(context, NULL, batch, desc->heads_q, q_len, 1);
    if (has_bias)
        call->args.bias = dense(context, call->bias, batch, desc->heads_q, q_len, kv_len);
    cl_int code;
    cl_command_queue queue = clCreateCommandQueue(context, device.id, 0, &code);
    assert_int_equal(code, CL_SUCCESS);
    assert_true(call_poison(call, queue));
    clReleaseCommandQueue(queue);
}

void call_close(attention_call *call)
{
    const clattn_tensor *tensors[] = {&call->args.q, &call->args.k,   &call->args.v,
                                      &call->args.o, &call->args.lse, &call->args.bias};
    for (size_t i = 0; i < sizeof tensors / sizeof *tensors; i++)
        if (tensors[i]->handle != NULL)
            clReleaseMemObject(tensors[i]->handle);
    free(call->q);
    free(call->k);
    free(call->v);
    free(call->bias);
}

static int read_output(const clattn_tensor *tensor, cl_command_queue queue, float *out, size_t count)
{
    return count == 0 || clEnqueueReadBuffer(queue, tensor->handle, CL_TRUE, 0, count * sizeof *out, out, 0,
                                             NULL, NULL) == CL_SUCCESS;
}

float *call_outputs(const attention_call *call, cl_command_queue queue)
{
    float *values = malloc((call->o_count + call->lse_count + 1) * sizeof *values);
    if (values != NULL && read_output(&call->args.o, queue, values, call->o_count) &&
        read_output(&call->args.lse, queue, values + call->o_count, call->lse_count))
        return values;
    free(values);
    return NULL;
}

static int poison_output(const clattn_tensor *tensor, cl_command_queue queue, size_t count)
{
    return count == 0 || clEnqueueFillBuffer(queue, tensor->handle, &POISON, sizeof POISON, 0,
                                             count * sizeof POISON, 0, NULL, NULL) == CL_SUCCESS;
}

int call_poison(const attention_call *call, cl_command_queue queue)
{
    return poison_output(&call->args.o, queue, call->o_count) &&
           poison_output(&call->args.lse, queue, call->lse_count) && clFinish(queue) == CL_SUCCESS;
}

int call_is_untouched(const attention_call *call, cl_command_queue queue)
{
    float *values = call_outputs(call, queue);
    int untouched = values != NULL;
    if (!untouched)
        return 0;
    for (size_t i = 0; i < call->o_count + call->lse_count; i++)
        untouched &= memcmp(&values[i], &POISON, sizeof POISON) == 0;
    free(values);
    return untouched;
}

/* ---- The formula of clattn.h ---- */

/* Beyond any length, and far from overflow. */
static int64_t tame(int64_t number)
{
    const int64_t most = INT64_C(1) << 40;
    return number < -most ? -most : number > most ? most : number;
}

static int is_allowed(const attention_call *call, int64_t row, int64_t key)
{
    const clattn_forward_args *args = &call->args;
    const uint32_t features = call->desc.features;
    const int32_t mode = call->desc.position_mode;
    const int64_t position = row + (mode == CLATTN_POSITION_TOP_LEFT   ? 0
                                    : mode == CLATTN_POSITION_EXPLICIT ? tame(args->q_offset)
                                                                       : args->kv_len - args->q_len);
    if ((features & CLATTN_FEATURE_CAUSAL) != 0 && key > position)
        return 0;
    if ((features & CLATTN_FEATURE_WINDOW) == 0)
        return 1;
    return (args->window_left < 0 || key >= position - tame(args->window_left)) &&
           (args->window_right < 0 || key <= position + tame(args->window_right));
}

static double score(const attention_call *call, const float *q, const float *k, size_t bias_index)
{
    double sum = 0;
    for (int i = 0; i < call->desc.head_dim_qk; i++)
        sum += (double)q[i] * (double)k[i];
    sum *= (double)call->args.scale;
    if (call->args.softcap > 0)
        sum = (double)call->args.softcap * tanh(sum / (double)call->args.softcap);
    return call->bias != NULL ? sum + (double)call->bias[bias_index] : sum;
}

/* One row: o and, returned, lse. `weights` has room for kv_len numbers. */
static double attend(const attention_call *call, size_t head_row, double *o, double *weights)
{
    const size_t q_len = (size_t)call->args.q_len, kv_len = (size_t)call->args.kv_len;
    const size_t dim_qk = (size_t)call->desc.head_dim_qk, dim_v = (size_t)call->desc.head_dim_v;
    const size_t heads_q = (size_t)call->desc.heads_q, heads_kv = (size_t)call->desc.heads_kv;
    const size_t row = head_row % q_len, head = head_row / q_len % heads_q;
    const size_t batch = head_row / q_len / heads_q;
    const size_t first_key = (batch * heads_kv + head / (heads_q / heads_kv)) * kv_len;
    double most = -INFINITY, sum = 0;
    for (size_t j = 0; j < kv_len; j++) {
        weights[j] = is_allowed(call, (int64_t)row, (int64_t)j)
                         ? score(call, call->q + head_row * dim_qk, call->k + (first_key + j) * dim_qk,
                                 head_row * kv_len + j)
                         : -INFINITY;
        most = fmax(most, weights[j]);
    }
    for (size_t c = 0; c < dim_v; c++)
        o[c] = 0;
    if (isinf(most))
        return most;
    for (size_t j = 0; j < kv_len; j++) {
        weights[j] = exp(weights[j] - most);
        sum += weights[j];
    }
    for (size_t j = 0; j < kv_len; j++)
        for (size_t c = 0; c < dim_v; c++)
            o[c] += weights[j] / sum * (double)call->v[(first_key + j) * dim_v + c];
    return most + log(sum);
}

static int is_near(double value, double expected)
{
    return value == expected || fabs(value - expected) < 2e-5; /* false for NaN */
}

int call_is_right(const attention_call *call, cl_command_queue queue)
{
    const size_t dim_v = (size_t)call->desc.head_dim_v;
    float *values = call_outputs(call, queue);
    double *weights = malloc(((size_t)call->args.kv_len + 1) * sizeof *weights);
    double *o = malloc(dim_v * sizeof *o);
    int right = values != NULL && weights != NULL && o != NULL;
    for (size_t head_row = 0; right && head_row < call->o_count / dim_v; head_row++) {
        const double lse = attend(call, head_row, o, weights);
        for (size_t c = 0; c < dim_v; c++)
            right &= is_near((double)values[head_row * dim_v + c], o[c]);
        if (call->lse_count > 0)
            right &= is_near((double)values[call->o_count + head_row], lse);
    }
    free(values);
    free(weights);
    free(o);
    return right;
}

int call_runs(const attention_call *call, clattn_plan *plan, cl_command_queue queue)
{
    cl_event event = NULL;
    if (!call_poison(call, queue) ||
        clattn_enqueue_forward(plan, queue, &call->args, 0, NULL, &event) != CLATTN_SUCCESS)
        return 0;
    const cl_int waited = clWaitForEvents(1, &event);
    clReleaseEvent(event);
    return waited == CL_SUCCESS && call_is_right(call, queue);
}

void call_run(const attention_call *call, clattn_plan *plan)
{
    assert_true(call_runs(call, plan, device.queue));
}

int event_is_complete(cl_event event)
{
    cl_int status = CL_QUEUED;
    assert_int_equal(clGetEventInfo(event, CL_EVENT_COMMAND_EXECUTION_STATUS, sizeof status, &status, NULL),
                     CL_SUCCESS);
    return status == CL_COMPLETE;
}

void event_finish(cl_event event)
{
    assert_non_null(event);
    assert_int_equal(clWaitForEvents(1, &event), CL_SUCCESS);
    assert_int_equal(clReleaseEvent(event), CL_SUCCESS);
}
