#include "numerics_device.h"

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

int device_open(numerics_device *out)
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

cl_int device_make_buffers(cl_context context, const call_data *data, cl_mem buffers[TENSORS])
{
    cl_int code = CL_SUCCESS;
    for (int tensor = 0; tensor < TENSORS && code == CL_SUCCESS; tensor++) {
        const byte_buffer *host = &data->buffer[tensor];
        if (host->bytes == NULL)
            continue;
        /* An element's size into the memory: aligned to an element and to nothing more. The part
         * cut off belongs to the guard zone. */
        const size_t skip = host->is_host_memory ? view_element_size(&data->view[tensor]) : 0;
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
    const size_t skip = view->buffer->is_host_memory ? view_element_size(view) : 0;
    tensor.handle = buffers[view->buffer - data->buffer];
    tensor.byte_offset = view->offset - skip;
    memcpy(tensor.stride, view->stride, sizeof tensor.stride);
    return tensor;
}

static void set_pipeline(clattn_forward_args *args, const call_data *data, const cl_mem buffers[TENSORS])
{
    const call_spec *spec = &data->spec;
    args->mask = tensor_of(data, TENSOR_MASK, buffers);
    args->bias_head_scale = tensor_of(data, TENSOR_HEAD_SCALE, buffers);
    args->alibi_slopes = tensor_of(data, TENSOR_SLOPES, buffers);
    args->sinks = tensor_of(data, TENSOR_SINKS, buffers);
    args->q_lens = tensor_of(data, TENSOR_Q_LENS, buffers);
    args->kv_lens = tensor_of(data, TENSOR_KV_LENS, buffers);
    args->q_offsets = tensor_of(data, TENSOR_Q_OFFSETS, buffers);
    args->tiles_count = tensor_of(data, TENSOR_TILES_COUNT, buffers);
    args->tiles_index = tensor_of(data, TENSOR_TILES_INDEX, buffers);
    args->tiles_capacity = spec_has(spec, CLATTN_FEATURE_KEY_TILES) ? data_tiles_capacity(spec) : 0;
    args->user = tensor_of(data, TENSOR_USER, buffers);
    memset(args->user.stride, 0, sizeof args->user.stride);
    memcpy(args->user_values, spec->user_values, sizeof args->user_values);
}

clattn_forward_args device_arguments(const call_data *data, const cl_mem buffers[TENSORS])
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
    set_pipeline(&args, data, buffers);
    return args;
}

/* ---- Workspace ---- */

clattn_status device_make_workspace(numerics_device *device, const clattn_plan *plan,
                                    const clattn_forward_args *args, byte_buffer *host, cl_mem *out)
{
    clattn_bounds bounds = CLATTN_BOUNDS_INIT;
    size_t bytes = 0;
    bounds.batch = args->batch;
    bounds.q_len = args->q_len;
    bounds.kv_len = args->kv_len;
    bounds.total_q = args->total_q;
    cl_int status = clattn_forward_workspace(plan, &bounds, &bytes);
    if (status != CLATTN_SUCCESS || bytes == 0)
        return status;
    buffer_make(host, bytes + 2 * GUARD_BYTES);
    *out = clCreateBuffer(device->cl, CL_MEM_COPY_HOST_PTR, host->size, host->bytes, &status);
    return status;
}

clattn_status device_check_workspace(numerics_device *device, cl_mem buffer, byte_buffer *host, int *overrun)
{
    const clattn_status status =
        clEnqueueReadBuffer(device->queue, buffer, CL_TRUE, 0, host->size, host->bytes, 0, NULL, NULL);
    for (size_t i = 0; i < GUARD_BYTES; i++)
        *overrun |= host->bytes[i] != POISON_BYTE || host->bytes[host->size - 1 - i] != POISON_BYTE;
    return status;
}

/* ---- The call ---- */

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

cl_int device_download(numerics_device *device, cl_mem from, byte_buffer *to)
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

/* Uploads and runs; the buffers are the caller's to release. */
static clattn_status run_plan(numerics_device *device, clattn_plan *plan, call_data *data,
                              cl_mem buffers[TENSORS])
{
    byte_buffer workspace_host = {NULL, 0, 0};
    cl_mem workspace = NULL;
    clattn_status status = device_make_buffers(device->cl, data, buffers);
    clattn_forward_args args = device_arguments(data, buffers);
    if (status == CLATTN_SUCCESS && data->spec.workspace == WORKSPACE_GIVEN)
        status = device_make_workspace(device, plan, &args, &workspace_host, &workspace);
    if (status == CLATTN_SUCCESS) {
        args.workspace.handle = workspace;
        args.workspace.byte_offset = workspace != NULL ? GUARD_BYTES : 0;
        status = enqueue_and_wait(device, plan, &args);
    }
    data->workspace_overrun = 0;
    if (status == CLATTN_SUCCESS && workspace != NULL)
        status = device_check_workspace(device, workspace, &workspace_host, &data->workspace_overrun);
    if (workspace != NULL)
        clReleaseMemObject(workspace);
    buffer_free(&workspace_host);
    return status;
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
        status = run_plan(device, plan, data, buffers);
    for (int tensor = TENSOR_O; tensor <= TENSOR_LSE; tensor++)
        if (status == CLATTN_SUCCESS && buffers[tensor] != NULL)
            status = device_download(device, buffers[tensor], &data->buffer[tensor]);

    for (int tensor = 0; tensor < TENSORS; tensor++)
        if (buffers[tensor] != NULL)
            clReleaseMemObject(buffers[tensor]);
    clattn_plan_release(plan);
    return status;
}
