/* An application on a machine whose OpenCL is only found at run time: nothing links the loader,
 * neither this program nor the library, which gets its functions by get_proc. */
#include <clattn.h>

#include <dlfcn.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

enum { SKIPPED = 77 };

static char last_message[1024];

static void keep(void *user, int32_t level, const char *message)
{
    (void)user;
    (void)level;
    snprintf(last_message, sizeof last_message, "%s", message);
    fprintf(stderr, "%s\n", message);
}

static void *find(void *loader, const char *name) { return dlsym(loader, name); }

#define FETCH(name)                                        \
    __typeof__(&name) fetched_##name;                      \
    do {                                                   \
        void *address = dlsym(loader, #name);              \
        memcpy(&fetched_##name, &address, sizeof address); \
    } while (0)

int main(void)
{
    void *loader = dlopen("libOpenCL.so.1", RTLD_NOW | RTLD_LOCAL);
    cl_platform_id platform;
    cl_device_id device;
    if (loader == NULL)
        return SKIPPED;
    FETCH(clGetPlatformIDs);
    FETCH(clGetDeviceIDs);
    FETCH(clCreateContext);
    FETCH(clReleaseContext);
    FETCH(clCreateCommandQueue);
    FETCH(clReleaseCommandQueue);
    FETCH(clCreateBuffer);
    FETCH(clReleaseMemObject);
    FETCH(clEnqueueReadBuffer);
    if (fetched_clGetPlatformIDs(1, &platform, NULL) != CL_SUCCESS ||
        fetched_clGetDeviceIDs(platform, CL_DEVICE_TYPE_ALL, 1, &device, NULL) != CL_SUCCESS)
        return SKIPPED;
    cl_context cl = fetched_clCreateContext(NULL, 1, &device, NULL, NULL, NULL);
    cl_command_queue queue = fetched_clCreateCommandQueue(cl, device, 0, NULL);

    clattn_context_options options = CLATTN_CONTEXT_OPTIONS_INIT;
    clattn_context *context = NULL;
    options.log = keep;
    if (clattn_context_create(&context, cl, device, &options) != CLATTN_UNSUPPORTED || context != NULL ||
        strstr(last_message, "options.get_proc") == NULL) {
        fprintf(stderr, "without get_proc: not refused, or not clearly\n");
        return 1;
    }

    /* One key: o is its v. */
    float one[] = {1, 2, 3, 4}, o[] = {0, 0, 0, 0};
    clattn_plan_desc desc = CLATTN_PLAN_DESC_INIT;
    clattn_forward_args args = CLATTN_FORWARD_ARGS_INIT;
    clattn_plan *plan = NULL;
    options.get_proc = find;
    options.get_proc_user = loader;
    desc.heads_q = 1;
    desc.head_dim_qk = 4;
    args.q.handle = fetched_clCreateBuffer(cl, CL_MEM_COPY_HOST_PTR, sizeof one, one, NULL);
    args.k = args.v = args.q;
    args.o.handle = fetched_clCreateBuffer(cl, CL_MEM_READ_WRITE, sizeof o, NULL, NULL);
    args.batch = args.q_len = args.kv_len = 1;
    if (clattn_context_create(&context, cl, device, &options) != CLATTN_SUCCESS ||
        clattn_plan_create(&plan, context, &desc) != CLATTN_SUCCESS ||
        clattn_enqueue_forward(plan, queue, &args, 0, NULL, NULL) != CLATTN_SUCCESS ||
        fetched_clEnqueueReadBuffer(queue, args.o.handle, CL_TRUE, 0, sizeof o, o, 0, NULL, NULL) !=
            CL_SUCCESS)
        return 1;
    clattn_plan_release(plan);
    clattn_context_release(context);
    fetched_clReleaseMemObject(args.q.handle);
    fetched_clReleaseMemObject(args.o.handle);
    fetched_clReleaseCommandQueue(queue);
    fetched_clReleaseContext(cl);
    printf("o = %g, expected 4\n", (double)o[3]);
    return fabsf(o[3] - 4.0f) < 1e-5f ? 0 : 1;
}
