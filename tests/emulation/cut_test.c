/* cut_test: calls that clattn_context_options.max_work_per_launch cuts into several launches, on the paths
 * for NVIDIA's matrix units, which take tiles in an order of their own: the result is that of one launch, bit
 * for bit.
 *
 *     cut_test nvidia_mma|nvidia_wgmma
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <clattn.h>
#include <cmocka.h>

/* Several query tiles a head, the last of them not whole. */
enum { BATCH = 2, HEADS_Q = 4, HEADS_KV = 2, Q_LEN = 600, KV_LEN = 300, DIM = 64 };
enum { O_COUNT = BATCH * HEADS_Q * Q_LEN * DIM };

static int32_t path;
static cl_device_id device;
static cl_context context;
static cl_command_queue queue;

static int open_device(void **state)
{
    cl_platform_id platform;
    cl_int code;
    (void)state;
    if (clGetPlatformIDs(1, &platform, NULL) != CL_SUCCESS ||
        clGetDeviceIDs(platform, CL_DEVICE_TYPE_ALL, 1, &device, NULL) != CL_SUCCESS)
        return -1;
    context = clCreateContext(NULL, 1, &device, NULL, NULL, &code);
    if (code == CL_SUCCESS)
        queue = clCreateCommandQueue(context, device, 0, &code);
    return code == CL_SUCCESS ? 0 : -1;
}

static int close_device(void **state)
{
    (void)state;
    clReleaseCommandQueue(queue);
    clReleaseContext(context);
    return 0;
}

static clattn_tensor tensor_of(cl_mem buffer, int heads, int tokens)
{
    clattn_tensor tensor = CLATTN_TENSOR_INIT;
    tensor.handle = buffer;
    tensor.stride[2] = DIM;
    tensor.stride[1] = (int64_t)tokens * DIM;
    tensor.stride[0] = heads * tensor.stride[1];
    return tensor;
}

/* f16 between -2 and 2. */
static clattn_tensor random_tensor(int heads, int tokens)
{
    const size_t count = (size_t)BATCH * (size_t)heads * (size_t)tokens * DIM;
    uint16_t *halves = malloc(count * sizeof *halves);
    cl_int code;
    assert_non_null(halves);
    for (size_t i = 0; i < count; i++)
        halves[i] = (uint16_t)((rand() % 2) << 15 | (11 + rand() % 5) << 10 | rand() % 1024);
    cl_mem buffer = clCreateBuffer(context, CL_MEM_READ_ONLY | CL_MEM_COPY_HOST_PTR, count * sizeof *halves,
                                   halves, &code);
    assert_int_equal(code, CL_SUCCESS);
    free(halves);
    return tensor_of(buffer, heads, tokens);
}

/* o of the call where launches have so much work at most; it was NaN before. The caller frees it. */
static uint16_t *outputs(const clattn_forward_args *args, uint32_t features, uint64_t max_work_per_launch)
{
    const size_t bytes = O_COUNT * sizeof(uint16_t);
    uint16_t *o = malloc(bytes);
    cl_int code;
    assert_non_null(o);
    memset(o, 0xff, bytes);
    cl_mem buffer = clCreateBuffer(context, CL_MEM_READ_WRITE | CL_MEM_COPY_HOST_PTR, bytes, o, &code);
    assert_int_equal(code, CL_SUCCESS);

    clattn_context_options options = CLATTN_CONTEXT_OPTIONS_INIT;
    options.max_work_per_launch = max_work_per_launch;
    clattn_plan_desc desc = CLATTN_PLAN_DESC_INIT;
    desc.path = path;
    desc.dtype_q = CLATTN_DTYPE_F16;
    desc.heads_q = HEADS_Q;
    desc.heads_kv = HEADS_KV;
    desc.head_dim_qk = DIM;
    desc.features = features;
    clattn_context *clattn;
    clattn_plan *plan;
    assert_int_equal(clattn_context_create(&clattn, context, device, &options), CLATTN_SUCCESS);
    assert_int_equal(clattn_plan_create(&plan, clattn, &desc), CLATTN_SUCCESS);

    clattn_forward_args to_here = *args;
    to_here.o = tensor_of(buffer, HEADS_Q, Q_LEN);
    assert_int_equal(clattn_enqueue_forward(plan, queue, &to_here, 0, NULL, NULL), CLATTN_SUCCESS);
    assert_int_equal(clEnqueueReadBuffer(queue, buffer, CL_TRUE, 0, bytes, o, 0, NULL, NULL), CL_SUCCESS);
    clattn_plan_release(plan);
    clattn_context_release(clattn);
    clReleaseMemObject(buffer);
    return o;
}

/* What bounds a launch is in multiply-adds: one tile has more than 1; the other is several tiles' of any
 * path. */
static void check_cuts(uint32_t features)
{
    static const uint64_t most_work[] = {1, (uint64_t)1500 * KV_LEN * 2 * DIM};
    clattn_forward_args args = CLATTN_FORWARD_ARGS_INIT;
    srand(1);
    args.q = random_tensor(HEADS_Q, Q_LEN);
    args.k = random_tensor(HEADS_KV, KV_LEN);
    args.v = random_tensor(HEADS_KV, KV_LEN);
    args.batch = BATCH;
    args.q_len = Q_LEN;
    args.kv_len = KV_LEN;
    uint16_t *whole = outputs(&args, features, 0);
    for (size_t i = 0; i < O_COUNT; i++)
        if ((whole[i] & 0x7c00) == 0x7c00)
            fail_msg("one launch: element %zu is no number", i);
    for (size_t i = 0; i < sizeof most_work / sizeof *most_work; i++) {
        uint16_t *cut = outputs(&args, features, most_work[i]);
        assert_memory_equal(cut, whole, O_COUNT * sizeof *whole);
        free(cut);
    }
    free(whole);
    clReleaseMemObject(args.q.handle);
    clReleaseMemObject(args.k.handle);
    clReleaseMemObject(args.v.handle);
}

static void test_full(void **state)
{
    (void)state;
    check_cuts(0);
}

static void test_causal(void **state)
{
    (void)state;
    check_cuts(CLATTN_FEATURE_CAUSAL);
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_full), cmocka_unit_test(test_causal)};
    if (argc != 2 || (strcmp(argv[1], "nvidia_mma") != 0 && strcmp(argv[1], "nvidia_wgmma") != 0)) {
        print_error("usage: cut_test nvidia_mma|nvidia_wgmma\n");
        return 2;
    }
    path = strcmp(argv[1], "nvidia_mma") == 0 ? CLATTN_PATH_NVIDIA_MMA : CLATTN_PATH_NVIDIA_WGMMA;
    return cmocka_run_group_tests(tests, open_device, close_device);
}
