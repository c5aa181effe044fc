/* decode_ratio: decode attention on a CPU device against the same machine's reading of memory, in turns in
 * one process, so that a noisy machine slows both alike.
 *
 *     decode_ratio [rounds]               (default 9)
 *
 * The yardstick is an OpenCL kernel that adds up as many bytes as the call reads, as vectors. Both walk
 * through pools larger than caches are, a slice a call. Bytes a second are those of K and V by process CPU
 * time, times the number of cores: what the cores read while they work for us. Then come calls of more
 * queries, whose milliseconds (wall time) must not grow faster than work does. */
#define _POSIX_C_SOURCE 200809L
#include <clattn.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

enum {
    MAX_ROUNDS = 99,
    HEAD_DIM = 128,
    KV_LEN = 8192,
    BLOCK = 32,
    SUM_GROUPS = 32,
    MOST_Q = 64,
    MOST_HEADS = 128
};
#define POOL_BYTES ((size_t)512 << 20) /* one for K, one for V */
#define ROUND_BYTES ((size_t)1 << 30)  /* read in a round: long against the clock's grain and the launch */

typedef struct decode_case {
    int heads_kv, group, q_len;
    int32_t dtype;
} decode_case;

typedef struct bench {
    cl_context cl;
    cl_command_queue queue;
    clattn_context *context;
    cl_kernel sum;
    cl_mem k, v, q, o, sums;
} bench;

static void check(int status, const char *what)
{
    if (status != 0) {
        fprintf(stderr, "%s: %s\n", what, clattn_status_string(status));
        exit(1);
    }
}

static double seconds_of(clockid_t clock)
{
    struct timespec t;
    clock_gettime(clock, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

static double cpu_seconds(void) { return seconds_of(CLOCK_PROCESS_CPUTIME_ID); }

static int by_value(const void *a, const void *b)
{
    const double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static double median(double *values, int count)
{
    qsort(values, (size_t)count, sizeof *values, by_value);
    return values[count / 2];
}

static const char sum_source[] =
    "__kernel void sum(__global const float16 *k, __global const float16 *v, ulong k_first, ulong v_first,\n"
    "                  ulong vectors, __global float16 *sums)\n"
    "{\n"
    "    const size_t share = vectors / get_num_groups(0), first = get_group_id(0) * share;\n"
    "    float16 total[8] = {0};\n"
    "    k += k_first + first;\n"
    "    v += v_first + first;\n"
    "    for (size_t i = 0; i + 8 <= share; i += 8)\n"
    "        for (int j = 0; j < 8; j++)\n"
    "            total[j] += k[i + j];\n"
    "    for (size_t i = 0; i + 8 <= share; i += 8)\n"
    "        for (int j = 0; j < 8; j++)\n"
    "            total[j] += v[i + j];\n"
    "    for (int j = 1; j < 8; j++)\n"
    "        total[0] += total[j];\n"
    "    sums[get_group_id(0)] = total[0];\n"
    "}\n";

static size_t bytes_of(int32_t dtype, size_t elements)
{
    return dtype == CLATTN_DTYPE_F32   ? 4 * elements
           : dtype == CLATTN_DTYPE_F16 ? 2 * elements
                                       : elements / BLOCK * 34;
}

/* Ordinary numbers of the type: a stretch of random ones, repeated. */
static void fill_pool(const bench *bench, cl_mem pool, int32_t dtype)
{
    enum { STRETCH = 34 * 16384 * 4 };
    unsigned char *bytes = malloc(STRETCH);
    for (size_t i = 0; i < STRETCH; i++)
        bytes[i] = (unsigned char)(rand() >> 8);
    for (size_t i = 0; dtype == CLATTN_DTYPE_F32 && i + 4 <= STRETCH; i += 4) {
        const float x = 3.0f * ((float)rand() / (float)RAND_MAX - 0.5f);
        memcpy(bytes + i, &x, sizeof x);
    }
    const size_t step = dtype == CLATTN_DTYPE_F16 ? 2 : 34;
    for (size_t i = 0; dtype != CLATTN_DTYPE_F32 && i < STRETCH; i += step) {
        const int exponent = dtype == CLATTN_DTYPE_F16 ? rand() % 15 + 1 : 8;
        const uint16_t half = (uint16_t)((rand() & 0x8000) | exponent << 10 | (rand() & 0x3ff));
        memcpy(bytes + i, &half, sizeof half);
    }
    for (size_t at = 0; at < POOL_BYTES; at += STRETCH)
        check(clEnqueueWriteBuffer(bench->queue, pool, CL_TRUE, at,
                                   POOL_BYTES - at < STRETCH ? POOL_BYTES - at : STRETCH, bytes, 0, NULL,
                                   NULL),
              "clEnqueueWriteBuffer");
    free(bytes);
}

/* The slice of call number n, of `bytes`: a different one each time, until the pool is through. */
static size_t slice_at(size_t n, size_t bytes) { return n % (POOL_BYTES / bytes) * bytes; }

static double sum_seconds(const bench *bench, size_t bytes, size_t first_call, int calls)
{
    const double start = cpu_seconds();
    for (int i = 0; i < calls; i++) {
        const cl_ulong first = slice_at(first_call + (size_t)i, bytes) / 64, vectors = bytes / 64;
        const size_t groups = SUM_GROUPS, one = 1;
        check(clSetKernelArg(bench->sum, 2, sizeof first, &first), "clSetKernelArg");
        check(clSetKernelArg(bench->sum, 3, sizeof first, &first), "clSetKernelArg");
        check(clSetKernelArg(bench->sum, 4, sizeof vectors, &vectors), "clSetKernelArg");
        check(clEnqueueNDRangeKernel(bench->queue, bench->sum, 1, NULL, &groups, &one, 0, NULL, NULL),
              "clEnqueueNDRangeKernel");
    }
    check(clFinish(bench->queue), "clFinish");
    return (cpu_seconds() - start) / calls;
}

static void run_case(const bench *bench, const decode_case *c, int rounds)
{
    const size_t row = bytes_of(c->dtype, HEAD_DIM), bytes = row * KV_LEN * (size_t)c->heads_kv; /* of K */
    const int64_t units = c->dtype == CLATTN_DTYPE_Q8_0 ? HEAD_DIM / BLOCK : HEAD_DIM;
    const int heads = c->heads_kv * c->group;
    clattn_plan_desc desc = CLATTN_PLAN_DESC_INIT;
    desc.phase = CLATTN_PHASE_DECODE;
    desc.dtype_q = CLATTN_DTYPE_F32;
    desc.dtype_k = c->dtype;
    desc.heads_q = heads;
    desc.heads_kv = c->heads_kv;
    desc.head_dim_qk = HEAD_DIM;
    desc.path = CLATTN_PATH_CPU;
    desc.features = c->q_len > 1 ? CLATTN_FEATURE_CAUSAL : 0;
    clattn_plan *plan;
    check(clattn_plan_create(&plan, bench->context, &desc), "clattn_plan_create");
    clattn_bounds bounds = CLATTN_BOUNDS_INIT;
    bounds.batch = 1;
    bounds.q_len = c->q_len;
    bounds.kv_len = KV_LEN;
    size_t workspace_bytes = 0;
    cl_int code = CL_SUCCESS;
    check(clattn_forward_workspace(plan, &bounds, &workspace_bytes), "clattn_forward_workspace");

    clattn_forward_args args = CLATTN_FORWARD_ARGS_INIT;
    clattn_tensor *const tensors[] = {&args.q, &args.k, &args.v, &args.o};
    const cl_mem handles[] = {bench->q, bench->k, bench->v, bench->o};
    for (int i = 0; i < 4; i++) {
        const int is_cache = i == 1 || i == 2;
        tensors[i]->handle = handles[i];
        tensors[i]->stride[1] = is_cache ? KV_LEN * units : (int64_t)c->q_len * HEAD_DIM;
        tensors[i]->stride[2] = is_cache ? units : HEAD_DIM;
    }
    if (workspace_bytes > 0) {
        args.workspace.handle = clCreateBuffer(bench->cl, CL_MEM_READ_WRITE, workspace_bytes, NULL, &code);
        check(code, "clCreateBuffer");
    }
    args.batch = 1;
    args.q_len = c->q_len;
    args.kv_len = KV_LEN;

    const int calls = c->q_len > 1 ? 1 : (int)(ROUND_BYTES / (2 * bytes)) + 1;
    size_t call = 0;
    double attention[MAX_ROUNDS], wall[MAX_ROUNDS], sum[MAX_ROUNDS], ratio[MAX_ROUNDS];
    for (int round = -1; round < rounds; round++) { /* round -1 warms up */
        const size_t first_call = call;
        const double start = cpu_seconds(), wall_start = seconds_of(CLOCK_MONOTONIC);
        for (int i = 0; i < calls; i++, call++) {
            args.k.byte_offset = args.v.byte_offset = slice_at(call, bytes);
            check(clattn_enqueue_forward(plan, bench->queue, &args, 0, NULL, NULL), "clattn_enqueue_forward");
        }
        check(clFinish(bench->queue), "clFinish");
        const double seconds = (cpu_seconds() - start) / calls;
        const double wall_seconds = (seconds_of(CLOCK_MONOTONIC) - wall_start) / calls;
        const double yardstick = sum_seconds(bench, bytes, first_call + (size_t)calls / 2, calls);
        if (round < 0)
            continue;
        attention[round] = seconds;
        wall[round] = wall_seconds;
        sum[round] = yardstick;
        ratio[round] = yardstick / seconds;
    }
    const double gigabytes = 2e-9 * (double)bytes * (double)sysconf(_SC_NPROCESSORS_ONLN),
                 middle = median(ratio, rounds);
    const double call_seconds = median(attention, rounds), sum_median = median(sum, rounds);
    printf(
        "%-4s %2d KV heads, %2d query heads, q_len %2d: %8.3f ms %6.1f GB/s  sum %6.1f  ratio %.3f  (%.3f to "
        "%.3f)\n",
        c->dtype == CLATTN_DTYPE_F32   ? "f32"
        : c->dtype == CLATTN_DTYPE_F16 ? "f16"
                                       : "q8_0",
        c->heads_kv, heads, c->q_len, 1e3 * median(wall, rounds), gigabytes / call_seconds,
        gigabytes / sum_median, middle, ratio[0], ratio[rounds - 1]);
    fflush(stdout);
    if (args.workspace.handle != NULL)
        clReleaseMemObject(args.workspace.handle);
    clattn_plan_release(plan);
}

static void make_bench(bench *bench, cl_device_id device)
{
    const size_t q_bytes = sizeof(float) * HEAD_DIM * MOST_HEADS * MOST_Q;
    const char *text = sum_source;
    cl_int code;
    bench->cl = clCreateContext(NULL, 1, &device, NULL, NULL, &code);
    check(code, "clCreateContext");
    bench->queue = clCreateCommandQueue(bench->cl, device, 0, &code);
    check(code, "clCreateCommandQueue");
    check(clattn_context_create(&bench->context, bench->cl, device, NULL), "clattn_context_create");
    cl_program program = clCreateProgramWithSource(bench->cl, 1, &text, NULL, &code);
    check(code, "clCreateProgramWithSource");
    check(clBuildProgram(program, 1, &device, NULL, NULL, NULL), "clBuildProgram");
    bench->sum = clCreateKernel(program, "sum", &code);
    check(code, "clCreateKernel");
    clReleaseProgram(program);

    cl_mem *const buffers[] = {&bench->k, &bench->v, &bench->q, &bench->o, &bench->sums};
    const size_t sizes[] = {POOL_BYTES, POOL_BYTES, q_bytes, q_bytes, SUM_GROUPS * 64};
    for (int i = 0; i < 5; i++) {
        *buffers[i] = clCreateBuffer(bench->cl, CL_MEM_READ_WRITE, sizes[i], NULL, &code);
        check(code, "clCreateBuffer");
    }
    float *q = malloc(q_bytes);
    for (size_t i = 0; i < q_bytes / sizeof *q; i++)
        q[i] = (float)rand() / (float)RAND_MAX - 0.5f;
    check(clEnqueueWriteBuffer(bench->queue, bench->q, CL_TRUE, 0, q_bytes, q, 0, NULL, NULL),
          "clEnqueueWriteBuffer");
    free(q);
    check(clSetKernelArg(bench->sum, 0, sizeof bench->k, &bench->k), "clSetKernelArg");
    check(clSetKernelArg(bench->sum, 1, sizeof bench->v, &bench->v), "clSetKernelArg");
    check(clSetKernelArg(bench->sum, 5, sizeof bench->sums, &bench->sums), "clSetKernelArg");
}

static void release_bench(bench *bench)
{
    clReleaseMemObject(bench->k);
    clReleaseMemObject(bench->v);
    clReleaseMemObject(bench->q);
    clReleaseMemObject(bench->o);
    clReleaseMemObject(bench->sums);
    clReleaseKernel(bench->sum);
    clattn_context_release(bench->context);
    clReleaseCommandQueue(bench->queue);
    clReleaseContext(bench->cl);
}

int main(int argc, char **argv)
{
    static const int32_t dtypes[] = {CLATTN_DTYPE_F32, CLATTN_DTYPE_F16, CLATTN_DTYPE_Q8_0};
    static const int heads_kv[] = {1, 8, 32}, groups[] = {1, 4}, q_lens[] = {1, 2, 4, 8, 16, 32, 64};
    const int rounds = argc > 1 ? atoi(argv[1]) : 9;
    if (rounds < 1 || rounds > MAX_ROUNDS) {
        fprintf(stderr, "decode_ratio: rounds = %s; expected 1 to %d\n", argv[1], MAX_ROUNDS);
        return 2;
    }
    cl_platform_id platform;
    cl_device_id device;
    bench bench;
    check(clGetPlatformIDs(1, &platform, NULL), "clGetPlatformIDs");
    check(clGetDeviceIDs(platform, CL_DEVICE_TYPE_CPU, 1, &device, NULL), "clGetDeviceIDs");
    make_bench(&bench, device);
    char name[256] = "";
    clGetDeviceInfo(device, CL_DEVICE_NAME, sizeof name, name, NULL);
    printf("%s; head dim %d, %d keys; median of %d rounds (range)\n", name, HEAD_DIM, KV_LEN, rounds);
    for (size_t t = 0; t < sizeof dtypes / sizeof *dtypes; t++) {
        fill_pool(&bench, bench.k, dtypes[t]);
        fill_pool(&bench, bench.v, dtypes[t]);
        for (size_t h = 0; h < sizeof heads_kv / sizeof *heads_kv; h++)
            for (size_t g = 0; g < sizeof groups / sizeof *groups; g++)
                run_case(&bench, &(decode_case){heads_kv[h], groups[g], 1, dtypes[t]}, rounds);
        for (size_t n = 1; n < sizeof q_lens / sizeof *q_lens; n++)
            run_case(&bench, &(decode_case){8, 4, q_lens[n], dtypes[t]}, rounds);
    }
    release_bench(&bench);
    return 0;
}
