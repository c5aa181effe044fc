/* shared_prefix: several sequences that begin with the same long prompt. Its keys are stored once and read
 * once, for the queries of all sequences together; each sequence's own keys come in a second call; the two
 * partial results are merged by their lse. (Juravsky et al. 2024, "Hydragen", section 3.)
 *
 *     shared_prefix
 *
 * The result is checked against one call over copies of the prefix.
 */
#include <clattn.h>

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum {
    BATCH = 6,
    HEADS_Q = 4,
    HEADS_KV = 2,
    DIM = 64,
    PREFIX = 300,
    SUFFIX = 24,
    Q_LEN = 2,
    ROWS = BATCH * Q_LEN
};

static float q[BATCH][Q_LEN][HEADS_Q][DIM];
static float k_prefix[PREFIX][HEADS_KV][DIM], v_prefix[PREFIX][HEADS_KV][DIM];
static float k_suffix[BATCH][SUFFIX][HEADS_KV][DIM], v_suffix[BATCH][SUFFIX][HEADS_KV][DIM];
static float k_whole[BATCH][PREFIX + SUFFIX][HEADS_KV][DIM], v_whole[BATCH][PREFIX + SUFFIX][HEADS_KV][DIM];
static float o_merged[ROWS][HEADS_Q][DIM], o_whole[ROWS][HEADS_Q][DIM];
static const int32_t suffix_len[BATCH] = {24, 3,  17,
                                          2,  24, 9}; /* own keys of a sequence, its queries' among them */
static int32_t whole_len[BATCH];

static cl_context cl;

static void on_log(void *user, int32_t level, const char *message)
{
    (void)user;
    fprintf(stderr, "%s%s\n", level == CLATTN_LOG_ERROR ? "error: " : "", message);
}

static void check(int status, const char *what)
{
    if (status != CLATTN_SUCCESS) {
        fprintf(stderr, "%s: %s\n", what, clattn_status_string(status));
        exit(1);
    }
}

static void fill(void *floats, size_t bytes)
{
    float *x = floats;
    static uint32_t state = 1;
    for (size_t i = 0; i < bytes / sizeof *x; i++) {
        state = state * 1664525u + 1013904223u;
        x[i] = (float)(state >> 8) / 8388608.0f - 1.0f;
    }
}

/* The largest one between two arrays of floats. */
static double difference(const void *floats, const void *others, size_t bytes)
{
    const float *x = floats, *y = others;
    double most = 0.0;
    for (size_t i = 0; i < bytes / sizeof *x; i++)
        most = fmax(most, fabs((double)x[i] - (double)y[i]));
    return most;
}

static clattn_tensor tensor_of(const void *data, size_t bytes, int64_t batch, int64_t head, int64_t token)
{
    cl_int code;
    clattn_tensor tensor = CLATTN_TENSOR_INIT;
    tensor.handle = clCreateBuffer(cl, CL_MEM_READ_WRITE | (data != NULL ? CL_MEM_COPY_HOST_PTR : 0), bytes,
                                   (void *)data, &code);
    check(code, "clCreateBuffer");
    tensor.stride[0] = batch;
    tensor.stride[1] = head;
    tensor.stride[2] = token;
    return tensor;
}

int main(void)
{
    cl_platform_id platform;
    cl_device_id device;
    cl_int code;
    check(clGetPlatformIDs(1, &platform, NULL), "clGetPlatformIDs");
    check(clGetDeviceIDs(platform, CL_DEVICE_TYPE_ALL, 1, &device, NULL), "clGetDeviceIDs");
    cl = clCreateContext(NULL, 1, &device, NULL, NULL, &code);
    check(code, "clCreateContext");
    cl_command_queue queue = clCreateCommandQueue(cl, device, 0, &code);
    check(code, "clCreateCommandQueue");
    clattn_context_options options = CLATTN_CONTEXT_OPTIONS_INIT;
    options.log = on_log;
    clattn_context *context;
    check(clattn_context_create(&context, cl, device, &options), "clattn_context_create");

    fill(q, sizeof q);
    fill(k_prefix, sizeof k_prefix);
    fill(v_prefix, sizeof v_prefix);
    fill(k_suffix, sizeof k_suffix);
    fill(v_suffix, sizeof v_suffix);
    for (int b = 0; b < BATCH; b++) {
        memcpy(k_whole[b], k_prefix, sizeof k_prefix);
        memcpy(v_whole[b], v_prefix, sizeof v_prefix);
        memcpy(k_whole[b][PREFIX], k_suffix[b], sizeof k_suffix[b]);
        memcpy(v_whole[b][PREFIX], v_suffix[b], sizeof v_suffix[b]);
        whole_len[b] = PREFIX + suffix_len[b];
    }

    /* The prefix: all of it is seen by every query. The sequences' own keys: causal, and so many as there
     * are. */
    clattn_plan_desc desc = CLATTN_PLAN_DESC_INIT;
    desc.heads_q = HEADS_Q;
    desc.heads_kv = HEADS_KV;
    desc.head_dim_qk = DIM;
    desc.features = CLATTN_FEATURE_LSE;
    clattn_plan *prefix_plan, *suffix_plan, *merge_plan;
    check(clattn_plan_create(&prefix_plan, context, &desc), "clattn_plan_create");
    desc.features = CLATTN_FEATURE_LSE | CLATTN_FEATURE_CAUSAL | CLATTN_FEATURE_KV_LENS;
    check(clattn_plan_create(&suffix_plan, context, &desc), "clattn_plan_create");
    clattn_plan_desc merging = CLATTN_PLAN_DESC_INIT;
    merging.operation = CLATTN_OPERATION_MERGE;
    merging.heads_q = HEADS_Q;
    merging.head_dim_v = DIM;
    merging.features = CLATTN_FEATURE_CU_SEQLENS_Q | CLATTN_FEATURE_LSE; /* rows are just rows */
    check(clattn_plan_create(&merge_plan, context, &merging), "clattn_plan_create");

    /* Two parts behind one another: o [part, row, head, dim], lse [part, head, row]. */
    const int64_t row = HEADS_Q * DIM, kv_row = HEADS_KV * DIM;
    clattn_tensor o_parts = tensor_of(NULL, 2 * sizeof o_merged, Q_LEN * row, DIM, row);
    clattn_tensor lse_parts = tensor_of(NULL, sizeof(float) * 2 * HEADS_Q * ROWS, Q_LEN, ROWS, 1);

    /* For the prefix, the queries of all sequences are those of one. */
    clattn_forward_args args = CLATTN_FORWARD_ARGS_INIT;
    const clattn_tensor q_tensor = tensor_of(q, sizeof q, Q_LEN * row, DIM, row);
    args.q = q_tensor;
    args.k = tensor_of(k_prefix, sizeof k_prefix, 0, DIM, kv_row);
    args.v = tensor_of(v_prefix, sizeof v_prefix, 0, DIM, kv_row);
    args.o = o_parts;
    args.lse = lse_parts;
    args.batch = 1;
    args.q_len = ROWS;
    args.kv_len = PREFIX;
    const clattn_forward_args prefix = args;
    check(clattn_enqueue_forward(prefix_plan, queue, &prefix, 0, NULL, NULL), "clattn_enqueue_forward");

    args.k = tensor_of(k_suffix, sizeof k_suffix, SUFFIX * kv_row, DIM, kv_row);
    args.v = tensor_of(v_suffix, sizeof v_suffix, SUFFIX * kv_row, DIM, kv_row);
    args.o.byte_offset = sizeof o_merged;
    args.lse.byte_offset = sizeof(float) * HEADS_Q * ROWS;
    args.kv_lens = tensor_of(suffix_len, sizeof suffix_len, 1, 0, 0);
    args.batch = BATCH;
    args.q_len = Q_LEN;
    args.kv_len = SUFFIX;
    const clattn_forward_args suffix = args;
    check(clattn_enqueue_forward(suffix_plan, queue, &suffix, 0, NULL, NULL), "clattn_enqueue_forward");

    clattn_merge_args merge = CLATTN_MERGE_ARGS_INIT;
    merge.o_parts = o_parts;
    merge.lse_parts = lse_parts;
    merge.o = tensor_of(NULL, sizeof o_merged, 0, DIM, row);
    merge.lse = tensor_of(NULL, sizeof(float) * HEADS_Q * ROWS, 0, ROWS, 1);
    merge.total_q = ROWS;
    merge.num_parts = 2;
    merge.o_part_stride = ROWS * row;
    merge.lse_part_stride = HEADS_Q * ROWS;
    check(clattn_enqueue_merge(merge_plan, queue, &merge, 0, NULL, NULL), "clattn_enqueue_merge");

    /* One call, with a prefix for every sequence. */
    args.k = tensor_of(k_whole, sizeof k_whole, (PREFIX + SUFFIX) * kv_row, DIM, kv_row);
    args.v = tensor_of(v_whole, sizeof v_whole, (PREFIX + SUFFIX) * kv_row, DIM, kv_row);
    args.o = tensor_of(NULL, sizeof o_whole, Q_LEN * row, DIM, row);
    args.lse = tensor_of(NULL, sizeof(float) * HEADS_Q * ROWS, Q_LEN, ROWS, 1);
    args.kv_lens = tensor_of(whole_len, sizeof whole_len, 1, 0, 0);
    args.kv_len = PREFIX + SUFFIX;
    check(clattn_enqueue_forward(suffix_plan, queue, &args, 0, NULL, NULL), "clattn_enqueue_forward");

    static float lse_merged[HEADS_Q * ROWS], lse_whole[HEADS_Q * ROWS];
    const struct {
        cl_mem from;
        void *to;
        size_t bytes;
    } reads[] = {{merge.o.handle, o_merged, sizeof o_merged},
                 {args.o.handle, o_whole, sizeof o_whole},
                 {merge.lse.handle, lse_merged, sizeof lse_merged},
                 {args.lse.handle, lse_whole, sizeof lse_whole}};
    for (size_t i = 0; i < sizeof reads / sizeof *reads; i++)
        check(
            clEnqueueReadBuffer(queue, reads[i].from, CL_TRUE, 0, reads[i].bytes, reads[i].to, 0, NULL, NULL),
            "clEnqueueReadBuffer");
    const double o_most = difference(o_merged, o_whole, sizeof o_whole);
    const double lse_most = difference(lse_merged, lse_whole, sizeof lse_whole);
    printf("%d sequences share %d keys and have up to %d of their own: %d KiB of K and V instead of %d\n",
           BATCH, PREFIX, SUFFIX, (int)((2 * sizeof k_prefix + 2 * sizeof k_suffix) / 1024),
           (int)(2 * sizeof k_whole / 1024));
    printf("two calls and a merge against one call: o differs by %.1e at most, lse by %.1e\n", o_most,
           lse_most);

    const cl_mem buffers[] = {q_tensor.handle, prefix.k.handle,       prefix.v.handle,    suffix.k.handle,
                              suffix.v.handle, suffix.kv_lens.handle, o_parts.handle,     lse_parts.handle,
                              merge.o.handle,  merge.lse.handle,      args.k.handle,      args.v.handle,
                              args.o.handle,   args.lse.handle,       args.kv_lens.handle};
    for (size_t i = 0; i < sizeof buffers / sizeof *buffers; i++)
        clReleaseMemObject(buffers[i]);
    clattn_plan_release(prefix_plan);
    clattn_plan_release(suffix_plan);
    clattn_plan_release(merge_plan);
    clattn_context_release(context);
    clReleaseCommandQueue(queue);
    clReleaseContext(cl);
    return o_most < 1e-5 && lse_most < 1e-5 ? 0 : 1;
}
