/* quickstart: real q, k and v of a transformer layer through clattn, from cl_context to result.
 *
 *     quickstart tests/data/minilm_layer0.safetensors
 */
#include <clattn.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "../src/cli/safetensors.h" /* reading the file is not what this shows */

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

/* A contiguous [batch, heads, tokens, head_dim] tensor; strides are in elements, so any type. */
static clattn_tensor tensor_of(cl_mem buffer, const int64_t *shape)
{
    clattn_tensor tensor = CLATTN_TENSOR_INIT;
    tensor.handle = buffer;
    tensor.stride[2] = shape[3];
    tensor.stride[1] = shape[2] * tensor.stride[2];
    tensor.stride[0] = shape[1] * tensor.stride[1];
    return tensor;
}

int main(int argc, char **argv)
{
    if (argc != 2) {
        fprintf(stderr, "usage: quickstart FILE.safetensors (with f16 tensors q, k, v)\n");
        return 2;
    }
    safetensors_file file;
    char error[256];
    if (safetensors_read(&file, argv[1], error, sizeof error) != 0) {
        fprintf(stderr, "%s\n", error);
        return 2;
    }
    const char *const names[3] = {"q", "k", "v"};
    const safetensors_tensor *in[3];
    for (int i = 0; i < 3; i++) {
        in[i] = safetensors_find(&file, names[i]);
        if (in[i] == NULL || in[i]->rank != 4 || strcmp(in[i]->dtype, "F16") != 0) {
            fprintf(stderr, "%s: expected an F16 tensor %s of rank 4\n", argv[1], names[i]);
            return 2;
        }
    }

    /* The first device of the first platform. An application has these already. */
    cl_platform_id platform;
    cl_device_id device;
    cl_int code;
    check(clGetPlatformIDs(1, &platform, NULL), "clGetPlatformIDs");
    check(clGetDeviceIDs(platform, CL_DEVICE_TYPE_ALL, 1, &device, NULL), "clGetDeviceIDs");
    cl_context cl = clCreateContext(NULL, 1, &device, NULL, NULL, &code);
    check(code, "clCreateContext");
    cl_command_queue queue = clCreateCommandQueue(cl, device, 0, &code);
    check(code, "clCreateCommandQueue");

    /* Once per device. */
    clattn_context_options options = CLATTN_CONTEXT_OPTIONS_INIT;
    options.log = on_log;
    clattn_context *context;
    check(clattn_context_create(&context, cl, device, &options), "clattn_context_create");

    /* Once per model: this compiles. */
    clattn_plan_desc desc = CLATTN_PLAN_DESC_INIT;
    desc.dtype_q = CLATTN_DTYPE_F16; /* k and v follow */
    desc.dtype_o = CLATTN_DTYPE_F32;
    desc.heads_q = (int32_t)in[0]->shape[1];
    desc.heads_kv = (int32_t)in[1]->shape[1];
    desc.head_dim_qk = (int32_t)in[0]->shape[3];
    clattn_plan *plan;
    check(clattn_plan_create(&plan, context, &desc), "clattn_plan_create");
    char text[1024];
    check(clattn_plan_describe(plan, text, sizeof text, NULL), "clattn_plan_describe");
    printf("%s\n", text);

    /* Once per call: this never compiles, and returns at once. */
    clattn_tensor tensors[4];
    for (int i = 0; i < 4; i++) {
        const safetensors_tensor *like = in[i < 3 ? i : 0]; /* o is shaped like q, but f32 */
        cl_mem buffer = i < 3 ? clCreateBuffer(cl, CL_MEM_READ_ONLY | CL_MEM_COPY_HOST_PTR, like->bytes,
                                               (void *)like->data, &code)
                              : clCreateBuffer(cl, CL_MEM_WRITE_ONLY, 2 * like->bytes, NULL, &code);
        check(code, "clCreateBuffer");
        tensors[i] = tensor_of(buffer, like->shape);
    }
    clattn_forward_args args = CLATTN_FORWARD_ARGS_INIT;
    args.q = tensors[0];
    args.k = tensors[1];
    args.v = tensors[2];
    args.o = tensors[3];
    args.batch = in[0]->shape[0];
    args.q_len = in[0]->shape[2];
    args.kv_len = in[1]->shape[2];
    cl_event done;
    check(clattn_enqueue_forward(plan, queue, &args, 0, NULL, &done), "clattn_enqueue_forward");
    float o[4];
    check(clEnqueueReadBuffer(queue, args.o.handle, CL_TRUE, 0, sizeof o, o, 1, &done, NULL),
          "clEnqueueReadBuffer");
    printf("%lld heads, %lld queries, %lld keys, head dim %d; o[0,0,0,:] = %.5f %.5f %.5f %.5f ...\n",
           (long long)in[0]->shape[1], (long long)args.q_len, (long long)args.kv_len, (int)desc.head_dim_qk,
           o[0], o[1], o[2], o[3]);

    clReleaseEvent(done);
    for (int i = 0; i < 4; i++)
        clReleaseMemObject(tensors[i].handle);
    clattn_plan_release(plan);
    clattn_context_release(context);
    clReleaseCommandQueue(queue);
    clReleaseContext(cl);
    safetensors_close(&file);
    return 0;
}
