/* The smallest application: one query, two keys. C11 and C++11.
 *
 * q.k is 0 for the first key and 3 for the second, so with scale 1 o = e^3 / (1 + e^3) * 10. */
#include <clattn.h>

#include <math.h>
#include <stdio.h>

enum { SKIPPED = 77, DIM = 4 };

static void print(void *user, int32_t level, const char *message)
{
    (void)user;
    fprintf(stderr, "[%d] %s\n", (int)level, message);
}

static cl_mem buffer(cl_context context, const float *values, size_t count)
{
    return clCreateBuffer(context, CL_MEM_READ_WRITE | CL_MEM_COPY_HOST_PTR, count * sizeof(float),
                          (void *)(uintptr_t)values, NULL);
}

int main(void)
{
    const float q[DIM] = {1, 1, 1, 0};
    const float k[2 * DIM] = {0, 0, 0, 0, 1, 1, 1, 9};
    const float v[2 * DIM] = {0, 0, 0, 0, 10, 10, 10, 10};
    float o[DIM] = {0, 0, 0, 0};
    cl_platform_id platform;
    cl_device_id device;
    if (clGetPlatformIDs(1, &platform, NULL) != CL_SUCCESS ||
        clGetDeviceIDs(platform, CL_DEVICE_TYPE_ALL, 1, &device, NULL) != CL_SUCCESS)
        return SKIPPED;
    cl_context cl = clCreateContext(NULL, 1, &device, NULL, NULL, NULL);
    cl_command_queue queue = clCreateCommandQueue(cl, device, 0, NULL);

    clattn_context_options options = CLATTN_CONTEXT_OPTIONS_INIT;
    clattn_plan_desc desc = CLATTN_PLAN_DESC_INIT;
    clattn_forward_args args = CLATTN_FORWARD_ARGS_INIT;
    clattn_context *context = NULL;
    clattn_plan *plan = NULL;
    options.log = print;
    desc.heads_q = 1;
    desc.head_dim_qk = DIM;
    args.q.handle = buffer(cl, q, DIM);
    args.k.handle = buffer(cl, k, 2 * DIM);
    args.v.handle = buffer(cl, v, 2 * DIM);
    args.o.handle = buffer(cl, o, DIM);
    args.k.stride[2] = args.v.stride[2] = DIM;
    args.batch = args.q_len = 1;
    args.kv_len = 2;
    args.scale = 1;
    if (clattn_context_create(&context, cl, device, &options) != CLATTN_SUCCESS ||
        clattn_plan_create(&plan, context, &desc) != CLATTN_SUCCESS ||
        clattn_enqueue_forward(plan, queue, &args, 0, NULL, NULL) != CLATTN_SUCCESS ||
        clEnqueueReadBuffer(queue, (cl_mem)args.o.handle, CL_TRUE, 0, sizeof o, o, 0, NULL, NULL) !=
            CL_SUCCESS)
        return 1;
    clattn_plan_release(plan);
    clattn_context_release(context);
    clReleaseMemObject((cl_mem)args.q.handle);
    clReleaseMemObject((cl_mem)args.k.handle);
    clReleaseMemObject((cl_mem)args.v.handle);
    clReleaseMemObject((cl_mem)args.o.handle);
    clReleaseCommandQueue(queue);
    clReleaseContext(cl);

    const double expected = 10 * exp(3.0) / (1 + exp(3.0));
    printf("version %u: o = %.6f, expected %.6f\n", (unsigned)clattn_version(), (double)o[0], expected);
    return fabs((double)o[0] - expected) < 1e-4 ? 0 : 1;
}
