#include "numerics_device.h"

#include "tensor_convert.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- Opening ---- */

static void print_message(void *user, int32_t level, const char *message)
{
    (void)user;
    (void)level;
    fprintf(stderr, "clattn: %s\n", message);
}

static int find_device(cl_device_id *out)
{
    cl_platform_id platform;
    cl_uint count = 0;
    return clGetPlatformIDs(1, &platform, &count) == CL_SUCCESS && count > 0 &&
           clGetDeviceIDs(platform, CL_DEVICE_TYPE_ALL, 1, out, &count) == CL_SUCCESS && count > 0;
}

int device_open(numerics_device *out, const char *cache)
{
    cl_int code = CL_SUCCESS;
    clattn_context_options options = CLATTN_CONTEXT_OPTIONS_INIT;
    memset(out, 0, sizeof *out);
    if (!find_device(&out->id)) {
        fprintf(stderr, "numerics: no OpenCL device\n");
        return EXIT_SKIPPED;
    }
    out->cl = clCreateContext(NULL, 1, &out->id, NULL, NULL, &code);
    if (code == CL_SUCCESS)
        out->queue = clCreateCommandQueue(out->cl, out->id, 0, &code);
    options.log = print_message;
    if (cache != NULL && clattn_directory_cache_open(&out->cache, cache) == CLATTN_SUCCESS)
        options.cache = out->cache;
    if (code == CL_SUCCESS)
        code = clattn_context_create(&out->context, out->cl, out->id, &options);
    if (code == CL_SUCCESS)
        return 0;
    fprintf(stderr, "numerics: the device cannot be opened: %s\n", clattn_status_string(code));
    device_close(out);
    return 1;
}

void device_close(numerics_device *device)
{
    clattn_context_release(device->context);
    clattn_directory_cache_close(&device->cache);
    if (device->queue != NULL)
        clReleaseCommandQueue(device->queue);
    if (device->cl != NULL)
        clReleaseContext(device->cl);
}

int device_has_path(const numerics_device *device, int32_t path)
{
    const call_spec spec = spec_plain(path);
    const clattn_plan_desc desc = spec_plan_desc(&spec);
    return clattn_plan_supported(device->context, &desc, NULL, 0) == CLATTN_SUCCESS;
}

/* ---- One call ---- */

static cl_int make_buffers(cl_context context, const call_data *data, cl_mem buffers[TENSORS])
{
    cl_int code = CL_SUCCESS;
    for (int tensor = 0; tensor < TENSORS && code == CL_SUCCESS; tensor++) {
        const byte_buffer *host = &data->buffer[tensor];
        if (host->bytes == NULL)
            continue;
        /* An element's size into the memory: aligned to an element and to nothing more. The part
         * cut off belongs to the guard zone. */
        const size_t skip = host->is_host_memory ? dtype_size(data->view[tensor].dtype) : 0;
        buffers[tensor] =
            clCreateBuffer(context, host->is_host_memory ? CL_MEM_USE_HOST_PTR : CL_MEM_COPY_HOST_PTR,
                           host->size - skip, host->bytes + skip, &code);
    }
    return code;
}

static clattn_tensor tensor_of(const call_data *data, int index, const cl_mem buffers[TENSORS])
{
    const tensor_view *view = &data->view[index];
    clattn_tensor tensor = CLATTN_TENSOR_INIT;
    if (view->buffer == NULL)
        return tensor;
    const size_t skip = view->buffer->is_host_memory ? dtype_size(view->dtype) : 0;
    tensor.handle = buffers[view->buffer - data->buffer];
    tensor.byte_offset = view->offset - skip;
    memcpy(tensor.stride, view->stride, sizeof tensor.stride);
    return tensor;
}

static clattn_forward_args arguments_of(const call_data *data, const cl_mem buffers[TENSORS])
{
    const call_spec *spec = &data->spec;
    clattn_forward_args args = CLATTN_FORWARD_ARGS_INIT;
    args.q = tensor_of(data, TENSOR_Q, buffers);
    args.k = tensor_of(data, TENSOR_K, buffers);
    args.v = tensor_of(data, TENSOR_V, buffers);
    args.o = tensor_of(data, TENSOR_O, buffers);
    args.lse = tensor_of(data, TENSOR_LSE, buffers);
    args.bias = tensor_of(data, TENSOR_BIAS, buffers);
    args.batch = spec->batch;
    args.q_len = spec->q_len;
    args.kv_len = spec->kv_len;
    args.q_offset = spec->q_offset;
    args.window_left = spec->window_left;
    args.window_right = spec->window_right;
    args.scale = spec->scale;
    args.softcap = spec->softcap;
    return args;
}

static clattn_status enqueue_and_wait(numerics_device *device, clattn_plan *plan,
                                      const clattn_forward_args *args)
{
    cl_event event = NULL;
    clattn_status status = clattn_enqueue_forward(plan, device->queue, args, 0, NULL, &event);
    if (status != CLATTN_SUCCESS)
        return status;
    status = clWaitForEvents(1, &event);
    clReleaseEvent(event);
    return status;
}

static cl_int download(numerics_device *device, cl_mem from, byte_buffer *to)
{
    if (to->is_host_memory) { /* the device wrote to it; mapping makes that visible */
        cl_int code = CL_SUCCESS;
        void *mapped =
            clEnqueueMapBuffer(device->queue, from, CL_TRUE, CL_MAP_READ, 0, 1, 0, NULL, NULL, &code);
        if (code == CL_SUCCESS)
            code = clEnqueueUnmapMemObject(device->queue, from, mapped, 0, NULL, NULL);
        return code == CL_SUCCESS ? clFinish(device->queue) : code;
    }
    return clEnqueueReadBuffer(device->queue, from, CL_TRUE, 0, to->size, to->bytes, 0, NULL, NULL);
}

clattn_status device_run(numerics_device *device, call_data *data)
{
    cl_mem buffers[TENSORS] = {NULL};
    clattn_plan *plan = NULL;
    const clattn_plan_desc desc = spec_plan_desc(&data->spec);
    for (int tensor = TENSOR_O; tensor <= TENSOR_LSE; tensor++)
        if (data->buffer[tensor].bytes != NULL)
            buffer_poison(&data->buffer[tensor]);

    clattn_status status = clattn_plan_create(&plan, device->context, &desc);
    if (status == CLATTN_SUCCESS)
        status = make_buffers(device->cl, data, buffers);
    if (status == CLATTN_SUCCESS) {
        const clattn_forward_args args = arguments_of(data, buffers);
        status = enqueue_and_wait(device, plan, &args);
    }
    for (int tensor = TENSOR_O; tensor <= TENSOR_LSE; tensor++)
        if (status == CLATTN_SUCCESS && buffers[tensor] != NULL)
            status = download(device, buffers[tensor], &data->buffer[tensor]);

    for (int tensor = 0; tensor < TENSORS; tensor++)
        if (buffers[tensor] != NULL)
            clReleaseMemObject(buffers[tensor]);
    clattn_plan_release(plan);
    return status;
}
