/* sgemm_ratio: attention on a CPU device against the same machine's matrix product, in turns in one
 * process, so that a noisy machine slows both alike.
 *
 *     sgemm_ratio [rounds]                (default 9)
 *
 * Figures are GFLOP/s by process CPU time (all threads), doubled for two cores and so on, i.e. flops *
 * threads / CPU seconds: what the cores do while they work for us. Attention counts 4*H*N*N*D flops,
 * half of it when causal; the yardstick is OpenBLAS sgemm 2048^3. Debian 12's OpenBLAS does not know
 * processors newer than itself and falls back to a scalar-era kernel: set OPENBLAS_CORETYPE (SKYLAKEX,
 * HASWELL, ...) so that the yardstick is an honest one; the core type in use is printed.
 */
#define _POSIX_C_SOURCE 200809L
#include <cblas.h>
#include <clattn.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

enum { SGEMM_SIZE = 2048, MAX_ROUNDS = 99, HEADS = 8 };

typedef struct attention_case {
    int length, head_dim, causal;
    int32_t dtype;
} attention_case;

static void check(int status, const char *what)
{
    if (status != 0) {
        fprintf(stderr, "%s: %s\n", what, clattn_status_string(status));
        exit(1);
    }
}

static double cpu_seconds(void)
{
    struct timespec t;
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

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

/* Values that spread the softmax a little; as f32, f16 or bf16 bit patterns that are ordinary numbers. */
static void *random_values(size_t count, int32_t dtype)
{
    const size_t element = dtype == CLATTN_DTYPE_F32 ? 4 : 2;
    unsigned char *values = malloc(count * element);
    for (size_t i = 0; i < count; i++) {
        const float x = 3.0f * ((float)rand() / (float)RAND_MAX - 0.5f);
        uint32_t bits;
        memcpy(&bits, &x, sizeof bits);
        const uint16_t half =
            dtype == CLATTN_DTYPE_BF16
                ? (uint16_t)(bits >> 16)
                : (uint16_t)((bits >> 31 << 15) | (rand() % 15 + 1) << 10 | (bits >> 13 & 0x3ff));
        if (dtype == CLATTN_DTYPE_F32)
            memcpy(values + i * element, &x, element);
        else
            memcpy(values + i * element, &half, element);
    }
    return values;
}

typedef struct bench {
    cl_context cl;
    cl_command_queue queue;
    clattn_context *context;
    float *a, *b, *c;
    long threads;
} bench;

static double sgemm_gflops(const bench *bench)
{
    const int n = SGEMM_SIZE;
    const double start = cpu_seconds();
    cblas_sgemm(CblasRowMajor, CblasNoTrans, CblasNoTrans, n, n, n, 1, bench->a, n, bench->b, n, 0, bench->c,
                n);
    const double seconds = cpu_seconds() - start;
    /* OpenBLAS's threads spin for a while when they are done, on attention's account. */
    const struct timespec pause = {0, 100000000};
    nanosleep(&pause, NULL);
    return 2e-9 * n * n * n * (double)bench->threads / seconds;
}

static void run_case(const bench *bench, const attention_case *c, int rounds)
{
    static const char *const dtypes[] = {"", "f32", "f16", "bf16"};
    const size_t count = (size_t)HEADS * c->length * c->head_dim;
    const size_t bytes = count * (c->dtype == CLATTN_DTYPE_F32 ? 4 : 2);
    clattn_plan_desc desc = CLATTN_PLAN_DESC_INIT;
    desc.dtype_q = c->dtype;
    desc.heads_q = HEADS;
    desc.head_dim_qk = c->head_dim;
    desc.features = c->causal ? CLATTN_FEATURE_CAUSAL : 0;
    clattn_plan *plan;
    check(clattn_plan_create(&plan, bench->context, &desc), "clattn_plan_create");

    clattn_forward_args args = CLATTN_FORWARD_ARGS_INIT;
    clattn_tensor *tensors[] = {&args.q, &args.k, &args.v, &args.o};
    for (int i = 0; i < 4; i++) {
        cl_int code;
        void *values = random_values(count, c->dtype);
        tensors[i]->handle =
            clCreateBuffer(bench->cl, CL_MEM_READ_WRITE | CL_MEM_COPY_HOST_PTR, bytes, values, &code);
        check(code, "clCreateBuffer");
        free(values);
        tensors[i]->stride[0] = (int64_t)count;
        tensors[i]->stride[1] = (int64_t)c->length * c->head_dim;
        tensors[i]->stride[2] = c->head_dim;
    }
    args.batch = 1;
    args.q_len = args.kv_len = c->length;

    double attention[MAX_ROUNDS], sgemm[MAX_ROUNDS], ratio[MAX_ROUNDS];
    const double flops = 4.0 * HEADS * c->length * (double)c->length * c->head_dim * (c->causal ? 0.5 : 1.0);
    const int calls = flops < 4e9 ? (int)(4e9 / flops) + 1 : 1; /* long against the clock's grain */
    for (int round = -1; round < rounds; round++) {             /* round -1 warms up */
        const double start = cpu_seconds();
        for (int i = 0; i < calls; i++)
            check(clattn_enqueue_forward(plan, bench->queue, &args, 0, NULL, NULL), "clattn_enqueue_forward");
        check(clFinish(bench->queue), "clFinish");
        const double seconds = (cpu_seconds() - start) / calls;
        const double yardstick = sgemm_gflops(bench);
        if (round < 0)
            continue;
        attention[round] = 1e-9 * flops * (double)bench->threads / seconds;
        sgemm[round] = yardstick;
        ratio[round] = attention[round] / sgemm[round];
    }
    const double middle = median(ratio, rounds);
    printf("%-5s N=%-5d D=%-4d %-7s %7.1f GF/s  sgemm %7.1f  ratio %.3f  (%.3f to %.3f)\n", dtypes[c->dtype],
           c->length, c->head_dim, c->causal ? "causal" : "full", median(attention, rounds),
           median(sgemm, rounds), middle, ratio[0], ratio[rounds - 1]);
    fflush(stdout);

    for (int i = 0; i < 4; i++)
        clReleaseMemObject(tensors[i]->handle);
    clattn_plan_release(plan);
}

int main(int argc, char **argv)
{
    static const attention_case cases[] = {
        {1024, 64, 0, CLATTN_DTYPE_F32},  {1024, 64, 1, CLATTN_DTYPE_F32},   {2048, 128, 0, CLATTN_DTYPE_F32},
        {2048, 128, 1, CLATTN_DTYPE_F32}, {1024, 64, 0, CLATTN_DTYPE_F16},   {2048, 128, 0, CLATTN_DTYPE_F16},
        {2048, 128, 1, CLATTN_DTYPE_F16}, {2048, 128, 0, CLATTN_DTYPE_BF16},
    };
    const int rounds = argc > 1 ? atoi(argv[1]) : 9;
    if (rounds < 1 || rounds > MAX_ROUNDS) {
        fprintf(stderr, "sgemm_ratio: rounds = %s; expected 1 to %d\n", argv[1], MAX_ROUNDS);
        return 2;
    }
    cl_platform_id platform;
    cl_device_id device;
    cl_int code;
    bench bench;
    check(clGetPlatformIDs(1, &platform, NULL), "clGetPlatformIDs");
    check(clGetDeviceIDs(platform, CL_DEVICE_TYPE_CPU, 1, &device, NULL), "clGetDeviceIDs");
    bench.cl = clCreateContext(NULL, 1, &device, NULL, NULL, &code);
    check(code, "clCreateContext");
    bench.queue = clCreateCommandQueue(bench.cl, device, 0, &code);
    check(code, "clCreateCommandQueue");
    check(clattn_context_create(&bench.context, bench.cl, device, NULL), "clattn_context_create");
    bench.threads = sysconf(_SC_NPROCESSORS_ONLN);
    const size_t square = (size_t)SGEMM_SIZE * SGEMM_SIZE;
    bench.a = random_values(square, CLATTN_DTYPE_F32);
    bench.b = random_values(square, CLATTN_DTYPE_F32);
    bench.c = malloc(square * sizeof *bench.c);

    char name[256] = "";
    clGetDeviceInfo(device, CL_DEVICE_NAME, sizeof name, name, NULL);
    printf("%s, %ld cores; OpenBLAS core type %s; median of %d rounds (range)\n", name, bench.threads,
           openblas_get_corename(), rounds);
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
        run_case(&bench, &cases[i], rounds);

    free(bench.a);
    free(bench.b);
    free(bench.c);
    clattn_context_release(bench.context);
    clReleaseCommandQueue(bench.queue);
    clReleaseContext(bench.cl);
    return 0;
}
