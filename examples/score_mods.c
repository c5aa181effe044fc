/* score_mods: attention variants in a line or two of OpenCL C each, which the library compiles into its
 * kernels. Every one is checked against the same rule in C.
 *
 *     score_mods
 */
#include <clattn.h>

#include <math.h>
#include <stdio.h>
#include <stdlib.h>

enum { HEADS = 2, N = 200, DIM = 32, CHUNK = 48, PREFIX = 70, BUCKETS = 32 };

/* ---- The variants ---- */

static int32_t documents[N]; /* which document a token belongs to */
static int32_t parents[N];   /* of a token in a tree of drafts; -1: the root */
static float bias_of_bucket[HEADS * BUCKETS];

/* Packed documents: a token sees its own document alone, and nothing ahead of it. */
static int document_mask(int head, int query, int key)
{
    (void)head;
    return key <= query && documents[query] == documents[key];
}

/* Prefix LM: everything sees the prompt, the rest is causal. */
static int prefix_mask(int head, int query, int key)
{
    (void)head;
    return key < PREFIX || key <= query;
}

/* Chunked attention, as Llama 4's local layers have it. */
static int chunked_mask(int head, int query, int key)
{
    (void)head;
    return key <= query && key / CHUNK == query / CHUNK;
}

/* Speculative decoding: a draft sees itself and its ancestors. */
static int tree_mask(int head, int query, int key)
{
    (void)head;
    for (int token = query; token >= 0; token = parents[token])
        if (token == key)
            return 1;
    return 0;
}

/* T5's relative bias (Raffel et al. 2020, section 2.1): near distances one by one, far ones by logarithm. */
static float t5_bias(int head, int query, int key)
{
    const int half = BUCKETS / 2, exact = half / 2, far = 128;
    const int distance = abs(key - query);
    int bucket =
        distance < exact
            ? distance
            : exact + (int)(logf((float)distance / exact) / logf((float)far / exact) * (float)(half - exact));
    if (bucket > half - 1)
        bucket = half - 1;
    return bias_of_bucket[head * BUCKETS + bucket + (key > query ? half : 0)];
}

typedef struct variant {
    const char *name;
    const char *score_mod, *mask_mod;          /* what the library is given */
    int (*mask)(int head, int query, int key); /* the same in C */
    float (*bias)(int head, int query, int key);
    const void *user;
    size_t user_bytes;
    float value;
} variant;

static const variant variants[] = {
    {"document mask", NULL,
     "const __global int *document = user;\n"
     "return key <= position && document[query] == document[key];",
     document_mask, NULL, documents, sizeof documents, 0},
    {"prefix LM", NULL, "key < (int)values.x || key <= position", prefix_mask, NULL, NULL, 0, PREFIX},
    {"chunked", NULL, "key <= position && key / (int)values.x == position / (int)values.x", chunked_mask,
     NULL, NULL, 0, CHUNK},
    {"tree mask", NULL,
     "const __global int *parent = user;\n"
     "int token = query;\n"
     "while (token > key)\n" /* parents come first */
     "    token = parent[token];\n"
     "return token == key;",
     tree_mask, NULL, parents, sizeof parents, 0},
    {"T5 bias",
     "const __global float *bias = user;\n"
     "const int half_count = 16, exact = 8, distance = abs(key - position);\n"
     "int bucket = distance < exact\n"
     "    ? distance\n"
     "    : exact + (int)(log((float)distance / exact) / log(128.0f / exact) * (half_count - exact));\n"
     "bucket = min(bucket, half_count - 1) + (key > position ? half_count : 0);\n"
     "return score + bias[head_q * 2 * half_count + bucket];",
     NULL, NULL, t5_bias, bias_of_bucket, sizeof bias_of_bucket, 0},
};

/* ---- The library ---- */

static void check(int status, const char *what)
{
    if (status != CLATTN_SUCCESS) {
        fprintf(stderr, "%s: %s\n", what, clattn_status_string(status));
        exit(1);
    }
}

static void on_log(void *user, int32_t level, const char *message)
{
    (void)user;
    (void)level;
    fprintf(stderr, "%s\n", message);
}

/* [1, HEADS, N, DIM]; without values an output. */
static clattn_tensor tensor_of(cl_context cl, const float *values)
{
    cl_int code;
    clattn_tensor tensor = CLATTN_TENSOR_INIT;
    tensor.handle =
        clCreateBuffer(cl, values != NULL ? CL_MEM_READ_ONLY | CL_MEM_COPY_HOST_PTR : CL_MEM_READ_WRITE,
                       HEADS * N * DIM * sizeof(float), (void *)values, &code);
    check(code, "clCreateBuffer");
    tensor.stride[0] = HEADS * N * DIM;
    tensor.stride[1] = N * DIM;
    tensor.stride[2] = DIM;
    return tensor;
}

static void attend(const variant *v, clattn_context *context, cl_context cl, cl_command_queue queue,
                   clattn_forward_args args, float *o)
{
    clattn_plan_desc desc = CLATTN_PLAN_DESC_INIT;
    desc.heads_q = HEADS;
    desc.head_dim_qk = DIM;
    desc.score_mod = v->score_mod;
    desc.mask_mod = v->mask_mod;
    clattn_plan *plan;
    check(clattn_plan_create(&plan, context, &desc), "clattn_plan_create");
    args.user_values[0] = v->value;
    if (v->user != NULL) {
        cl_int code;
        args.user.handle = clCreateBuffer(cl, CL_MEM_READ_ONLY | CL_MEM_COPY_HOST_PTR, v->user_bytes,
                                          (void *)v->user, &code);
        check(code, "clCreateBuffer");
    }
    check(clattn_enqueue_forward(plan, queue, &args, 0, NULL, NULL), "clattn_enqueue_forward");
    check(
        clEnqueueReadBuffer(queue, args.o.handle, CL_TRUE, 0, HEADS * N * DIM * sizeof *o, o, 0, NULL, NULL),
        "clEnqueueReadBuffer");
    if (args.user.handle != NULL)
        clReleaseMemObject(args.user.handle);
    clattn_plan_release(plan);
}

/* ---- The same in C ---- */

static double deviation(const variant *v, const float *q, const float *k, const float *values, const float *o)
{
    double worst = 0;
    for (int row = 0; row < HEADS * N; row++) {
        const int head = row / N, query = row % N;
        double sum = 0, expected[DIM] = {0};
        for (int key = 0; key < N; key++) {
            double score = 0;
            for (int c = 0; c < DIM; c++)
                score += (double)q[row * DIM + c] * (double)k[(head * N + key) * DIM + c];
            score = score / sqrt(DIM) + (v->bias != NULL ? (double)v->bias(head, query, key) : 0);
            if (v->mask != NULL && !v->mask(head, query, key))
                continue;
            sum += exp(score);
            for (int c = 0; c < DIM; c++)
                expected[c] += exp(score) * (double)values[(head * N + key) * DIM + c];
        }
        for (int c = 0; c < DIM; c++)
            worst = fmax(worst, fabs((double)o[row * DIM + c] - expected[c] / sum));
    }
    return worst;
}

static void fill(float *values, int count, unsigned seed)
{
    for (int i = 0; i < count; i++) {
        seed = seed * 1664525u + 1013904223u;
        values[i] = (float)(seed >> 8) / (float)(1 << 23) - 1.0f;
    }
}

int main(void)
{
    static float in[3][HEADS * N * DIM], o[HEADS * N * DIM];
    for (int i = 0; i < 3; i++)
        fill(in[i], HEADS * N * DIM, (unsigned)i + 1);
    fill(bias_of_bucket, HEADS * BUCKETS, 9);
    for (int i = 0; i < N; i++) {
        documents[i] = (i >= 30) + (i >= 95) + (i >= 150);
        parents[i] = (i - 1) / 2 - (i == 0);
    }

    cl_platform_id platform;
    cl_device_id device;
    cl_int code;
    check(clGetPlatformIDs(1, &platform, NULL), "clGetPlatformIDs");
    check(clGetDeviceIDs(platform, CL_DEVICE_TYPE_ALL, 1, &device, NULL), "clGetDeviceIDs");
    cl_context cl = clCreateContext(NULL, 1, &device, NULL, NULL, &code);
    check(code, "clCreateContext");
    cl_command_queue queue = clCreateCommandQueue(cl, device, 0, &code);
    check(code, "clCreateCommandQueue");
    clattn_context_options options = CLATTN_CONTEXT_OPTIONS_INIT;
    options.log = on_log;
    clattn_context *context;
    check(clattn_context_create(&context, cl, device, &options), "clattn_context_create");
    clattn_forward_args args = CLATTN_FORWARD_ARGS_INIT;
    args.q = tensor_of(cl, in[0]);
    args.k = tensor_of(cl, in[1]);
    args.v = tensor_of(cl, in[2]);
    args.o = tensor_of(cl, NULL);
    args.batch = 1;
    args.q_len = args.kv_len = N;

    int failed = 0;
    for (size_t i = 0; i < sizeof variants / sizeof *variants; i++) {
        attend(&variants[i], context, cl, queue, args, o);
        const double error = deviation(&variants[i], in[0], in[1], in[2], o);
        printf("%-14s %s: off by %.1e\n", variants[i].name,
               variants[i].mask_mod != NULL ? "mask_mod " : "score_mod", error);
        failed |= !(error < 1e-5);
    }

    clReleaseMemObject(args.q.handle);
    clReleaseMemObject(args.k.handle);
    clReleaseMemObject(args.v.handle);
    clReleaseMemObject(args.o.handle);
    clattn_context_release(context);
    clReleaseCommandQueue(queue);
    clReleaseContext(cl);
    return failed;
}
