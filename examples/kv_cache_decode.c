/* kv_cache_decode: a toy language model writes a few tokens for two prompts of different lengths, with a
 * growing KV cache in pages of float16. Each step is one call: the new keys are rotated and stored, q is
 * rotated, and attention runs over all that the cache then holds. Lengths, page tables and the cache never
 * leave the device.
 *
 *     kv_cache_decode
 *
 * Every step is checked against attention computed anew from all tokens, in double, without a cache.
 */
#include <clattn.h>

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum {
    BATCH = 2,
    HEADS_Q = 4,
    HEADS_KV = 2,
    DIM = 64,
    VOCABULARY = 50,
    LONGEST_PROMPT = 20,
    STEPS = 12, /* tokens written after each prompt */
    PAGE = 16,
    BLOCKS = 3, /* pages of a sequence: room for 48 tokens */
    PAGES = BATCH * BLOCKS + 1
};

static const int prompt_len[BATCH] = {20, 7};

/* ---- The model: every token has fixed q, k and v, and a vector that o is compared with ---- */

static float q_of[VOCABULARY][HEADS_Q][DIM], k_of[VOCABULARY][HEADS_KV][DIM], v_of[VOCABULARY][HEADS_KV][DIM];
static float word[VOCABULARY][HEADS_Q][DIM];
static int text[BATCH][LONGEST_PROMPT + STEPS + 1]; /* tokens so far */

static void fill(void *floats, size_t bytes)
{
    float *x = floats;
    static uint32_t state = 1;
    for (size_t i = 0; i < bytes / sizeof *x; i++) {
        state = state * 1664525u + 1013904223u;
        x[i] = (float)(state >> 8) / 8388608.0f - 1.0f;
    }
}

static int next_token(float o[HEADS_Q][DIM])
{
    double best = -INFINITY;
    int token = 0;
    for (int t = 0; t < VOCABULARY; t++) {
        double match = 0.0;
        for (int h = 0; h < HEADS_Q; h++)
            for (int c = 0; c < DIM; c++)
                match += (double)o[h][c] * (double)word[t][h][c];
        if (match > best) {
            best = match;
            token = t;
        }
    }
    return token;
}

/* ---- The same without a cache ---- */

static void rotate(double *out, const float *x, int position)
{
    for (int c = 0; c < DIM / 2; c++) {
        const double angle = position * pow(10000.0, -2.0 * c / DIM);
        out[c] = x[c] * cos(angle) - x[c + DIM / 2] * sin(angle);
        out[c + DIM / 2] = x[c + DIM / 2] * cos(angle) + x[c] * sin(angle);
    }
}

/* The largest difference between o and attention of the text's last token over all of it. */
static double difference(float o[HEADS_Q][DIM], const int *tokens, int count)
{
    double most = 0.0;
    for (int h = 0; h < HEADS_Q; h++) {
        const int kv = h / (HEADS_Q / HEADS_KV);
        double q[DIM], k[DIM], sum = 0.0, exact[DIM] = {0};
        rotate(q, q_of[tokens[count - 1]][h], count - 1);
        for (int j = 0; j < count; j++) {
            double score = 0.0;
            rotate(k, k_of[tokens[j]][kv], j);
            for (int c = 0; c < DIM; c++)
                score += q[c] * k[c] / sqrt(DIM);
            sum += exp(score);
            for (int c = 0; c < DIM; c++)
                exact[c] += exp(score) * v_of[tokens[j]][kv][c];
        }
        for (int c = 0; c < DIM; c++)
            most = fmax(most, fabs(o[h][c] - exact[c] / sum));
    }
    return most;
}

/* ---- OpenCL ---- */

static cl_context cl;
static cl_command_queue queue;

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

static cl_mem buffer_of(size_t bytes, const void *data)
{
    cl_int code;
    cl_mem buffer = clCreateBuffer(cl, CL_MEM_READ_WRITE | (data != NULL ? CL_MEM_COPY_HOST_PTR : 0), bytes,
                                   (void *)data, &code);
    check(code, "clCreateBuffer");
    return buffer;
}

static clattn_tensor tensor_of(cl_mem buffer, int64_t batch, int64_t head, int64_t token)
{
    clattn_tensor tensor = CLATTN_TENSOR_INIT;
    tensor.handle = buffer;
    tensor.stride[0] = batch;
    tensor.stride[1] = head;
    tensor.stride[2] = token;
    return tensor;
}

static clattn_plan *plan_of(clattn_context *context, const clattn_plan_desc *desc)
{
    clattn_plan *plan;
    char about[1024];
    check(clattn_plan_create(&plan, context, desc), "clattn_plan_create");
    check(clattn_plan_describe(plan, about, sizeof about, NULL), "clattn_plan_describe");
    printf("%s\n", about);
    return plan;
}

/* ---- A step ---- */

static float q[BATCH][LONGEST_PROMPT][HEADS_Q][DIM], o[BATCH][LONGEST_PROMPT][HEADS_Q][DIM];
static float k_new[BATCH][LONGEST_PROMPT][HEADS_KV][DIM], v_new[BATCH][LONGEST_PROMPT][HEADS_KV][DIM];

static void look_up(int b, int row, int token)
{
    memcpy(q[b][row], q_of[token], sizeof q_of[token]);
    memcpy(k_new[b][row], k_of[token], sizeof k_of[token]);
    memcpy(v_new[b][row], v_of[token], sizeof v_of[token]);
}

static void send(cl_mem buffer, const void *data, size_t bytes)
{
    check(clEnqueueWriteBuffer(queue, buffer, CL_TRUE, 0, bytes, data, 0, NULL, NULL),
          "clEnqueueWriteBuffer");
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
    queue = clCreateCommandQueue(cl, device, 0, &code);
    check(code, "clCreateCommandQueue");
    clattn_context_options options = CLATTN_CONTEXT_OPTIONS_INIT;
    options.log = on_log;
    clattn_context *context;
    check(clattn_context_create(&context, cl, device, &options), "clattn_context_create");

    /* Two plans: one stores and rotates, the other attends. Prompts have their own numbers of rows. */
    clattn_plan_desc store = CLATTN_PLAN_DESC_INIT;
    store.operation = CLATTN_OPERATION_KV_APPEND;
    store.dtype_q = CLATTN_DTYPE_F32;
    store.dtype_k = CLATTN_DTYPE_F16; /* v follows */
    store.heads_q = HEADS_Q;
    store.heads_kv = HEADS_KV;
    store.head_dim_qk = DIM;
    store.features = CLATTN_FEATURE_BLOCK_TABLE | CLATTN_FEATURE_Q_LENS;
    store.page_size = PAGE;
    store.rope = CLATTN_ROPE_NEOX;
    clattn_plan *append_plan = plan_of(context, &store);
    clattn_plan_desc attend = store;
    attend.operation = CLATTN_OPERATION_FORWARD;
    attend.phase = CLATTN_PHASE_BOTH; /* prefill kernels for the prompts, decode kernels for single tokens */
    attend.features |= CLATTN_FEATURE_CAUSAL | CLATTN_FEATURE_KV_LENS;
    attend.rope = CLATTN_ROPE_NONE;
    clattn_plan *plan = plan_of(context, &attend);

    /* Sequences take pages in any order; page 0 is never used. */
    static const int32_t block_table[BATCH][BLOCKS] = {{5, 2, 6}, {1, 4, 3}};
    const int32_t no_keys[BATCH] = {0};
    int32_t new_lens[BATCH];
    cl_mem pages = buffer_of((size_t)PAGES * 2 * PAGE * HEADS_KV * DIM * 2, NULL); /* K and V of a page */
    cl_mem table = buffer_of(sizeof block_table, block_table), kv_lens = buffer_of(sizeof no_keys, no_keys);
    cl_mem q_lens = buffer_of(sizeof new_lens, NULL), q_mem = buffer_of(sizeof q, NULL);
    cl_mem k_mem = buffer_of(sizeof k_new, NULL), v_mem = buffer_of(sizeof v_new, NULL);
    cl_mem o_mem = buffer_of(sizeof o, NULL);

    clattn_append_args append = CLATTN_APPEND_ARGS_INIT;
    append.k_new = tensor_of(k_mem, LONGEST_PROMPT * HEADS_KV * DIM, DIM, HEADS_KV * DIM);
    append.v_new = tensor_of(v_mem, LONGEST_PROMPT * HEADS_KV * DIM, DIM, HEADS_KV * DIM);
    append.q = append.q_out = tensor_of(q_mem, LONGEST_PROMPT * HEADS_Q * DIM, DIM, HEADS_Q * DIM);
    append.k = append.v = tensor_of(pages, 2 * PAGE * HEADS_KV * DIM, DIM, HEADS_KV * DIM);
    append.v.byte_offset = PAGE * HEADS_KV * DIM * 2;
    append.kv_lens = append.kv_lens_out = tensor_of(kv_lens, 1, 0, 0);
    append.q_lens = tensor_of(q_lens, 1, 0, 0);
    append.block_table = tensor_of(table, BLOCKS, 1, 0);
    append.batch = BATCH;
    append.kv_len = BLOCKS * PAGE;
    append.num_pages = PAGES;
    append.max_blocks = BLOCKS;
    clattn_forward_args args = CLATTN_FORWARD_ARGS_INIT;
    args.q = append.q;
    args.k = append.k;
    args.v = append.v;
    args.o = tensor_of(o_mem, LONGEST_PROMPT * HEADS_Q * DIM, DIM, HEADS_Q * DIM);
    args.kv_lens = append.kv_lens; /* what the append has just written there */
    args.q_lens = append.q_lens;
    args.block_table = append.block_table;
    args.batch = append.batch;
    args.kv_len = append.kv_len;
    args.num_pages = append.num_pages;
    args.max_blocks = append.max_blocks;

    fill(q_of, sizeof q_of);
    fill(k_of, sizeof k_of);
    fill(v_of, sizeof v_of);
    fill(word, sizeof word);
    for (int b = 0; b < BATCH; b++)
        for (int t = 0; t < prompt_len[b]; t++)
            text[b][t] = (7 * b + 13 * t) % VOCABULARY;

    /* Step 0 takes the prompts, each later one the token that the one before has written. */
    double most = 0.0;
    for (int step = 0; step < STEPS; step++) {
        for (int b = 0; b < BATCH; b++) {
            const int known = prompt_len[b] + step;
            new_lens[b] = step == 0 ? prompt_len[b] : 1;
            for (int row = 0; row < new_lens[b]; row++)
                look_up(b, row, text[b][known - new_lens[b] + row]);
        }
        send(q_lens, new_lens, sizeof new_lens);
        send(q_mem, q, sizeof q);
        send(k_mem, k_new, sizeof k_new);
        send(v_mem, v_new, sizeof v_new);
        append.new_len = args.q_len = step == 0 ? LONGEST_PROMPT : 1;
        cl_event done;
        check(clattn_enqueue_append_forward(append_plan, &append, plan, &args, queue, 0, NULL, &done),
              "clattn_enqueue_append_forward");
        check(clEnqueueReadBuffer(queue, o_mem, CL_TRUE, 0, sizeof o, o, 1, &done, NULL),
              "clEnqueueReadBuffer");
        clReleaseEvent(done);
        for (int b = 0; b < BATCH; b++) {
            const int known = prompt_len[b] + step;
            text[b][known] = next_token(o[b][new_lens[b] - 1]);
            most = fmax(most, difference(o[b][new_lens[b] - 1], text[b], known));
        }
    }

    for (int b = 0; b < BATCH; b++) {
        printf("sequence %d, %d tokens of prompt, then", b, prompt_len[b]);
        for (int step = 0; step < STEPS; step++)
            printf(" %d", text[b][prompt_len[b] + step]);
        printf("\n");
    }
    printf("%d steps over a float16 cache; from attention without a cache o differs by %.1e at most\n", STEPS,
           most);
    cl_mem buffers[] = {pages, table, kv_lens, q_lens, q_mem, k_mem, v_mem, o_mem};
    for (size_t i = 0; i < sizeof buffers / sizeof *buffers; i++)
        clReleaseMemObject(buffers[i]);
    clattn_plan_release(plan);
    clattn_plan_release(append_plan);
    clattn_context_release(context);
    clReleaseCommandQueue(queue);
    clReleaseContext(cl);
    return most < 2e-3 ? 0 : 1; /* float16 has 11 bits */
}
