#include "serving_run.h"

#include "serving_append.h"

#include <stdio.h>
#include <string.h>

/* Buffers on the device: of the call's small tensors, of the stored ones, and of what is appended. */
typedef struct device_buffers {
    cl_mem call[TENSORS], stored[STORED_TENSORS], append[APPEND_TENSORS];
} device_buffers;

/* ---- Buffers ---- */

static cl_int make_buffer(cl_context context, const tensor_view *view, const byte_buffer *host, cl_mem *out)
{
    /* Memory of the host: aligned to an element and to nothing more. */
    const size_t skip = host->is_host_memory ? view_element_size(view) : 0;
    cl_int code = CL_SUCCESS;
    if (host->bytes != NULL)
        *out = clCreateBuffer(context, host->is_host_memory ? CL_MEM_USE_HOST_PTR : CL_MEM_COPY_HOST_PTR,
                              host->size - skip, host->bytes + skip, &code);
    return code;
}

static cl_int make_buffers(cl_context context, const serving_data *data, const append_data *append,
                           device_buffers *out)
{
    cl_int code = device_make_buffers(context, &data->call, out->call);
    for (int n = 0; n < STORED_TENSORS && code == CL_SUCCESS; n++)
        code = make_buffer(context, &data->view[n], &data->buffer[n], &out->stored[n]);
    for (int n = 0; n < APPEND_TENSORS && code == CL_SUCCESS && append != NULL; n++)
        code = make_buffer(context, &append->view[n], &append->buffer[n], &out->append[n]);
    return code;
}

static void release_all(cl_mem *buffers, int count)
{
    for (int n = 0; n < count; n++)
        if (buffers[n] != NULL)
            clReleaseMemObject(buffers[n]);
}

static void release_buffers(device_buffers *buffers)
{
    release_all(buffers->call, TENSORS);
    release_all(buffers->stored, STORED_TENSORS);
    release_all(buffers->append, APPEND_TENSORS);
}

/* ---- Arguments ---- */

static clattn_tensor tensor_at(const tensor_view *view, cl_mem handle)
{
    clattn_tensor tensor = CLATTN_TENSOR_INIT;
    if (view->buffer == NULL)
        return tensor;
    tensor.handle = handle;
    tensor.byte_offset = view->offset - (view->buffer->is_host_memory ? view_element_size(view) : 0);
    memcpy(tensor.stride, view->stride, sizeof tensor.stride);
    return tensor;
}

static clattn_tensor stored_tensor(const serving_data *data, int n, const device_buffers *buffers)
{
    const tensor_view *view = &data->view[n];
    return tensor_at(view, view->buffer != NULL ? buffers->stored[view->buffer - data->buffer] : NULL);
}

/* Lists along one axis, or pages along the second. */
static clattn_tensor stored_list(const serving_data *data, int n, const device_buffers *buffers)
{
    clattn_tensor tensor = stored_tensor(data, n, buffers);
    if (n == STORED_TABLE)
        tensor.stride[1] = tensor.handle != NULL;
    else
        tensor.stride[0] = tensor.handle != NULL && n != STORED_STATUS;
    tensor.stride[2] = tensor.stride[3] = 0;
    return tensor;
}

static clattn_forward_args forward_args(const serving_data *data, const device_buffers *buffers)
{
    const serving_spec *spec = &data->spec;
    const uint32_t features = serving_plan_desc(spec).features;
    const clattn_tensor none = CLATTN_TENSOR_INIT;
    clattn_forward_args args = device_arguments(&data->call, buffers->call);
    args.q = stored_tensor(data, STORED_Q, buffers);
    args.k = stored_tensor(data, STORED_K, buffers);
    args.v = stored_tensor(data, STORED_V, buffers);
    args.o = stored_tensor(data, STORED_O, buffers);
    args.lse = stored_tensor(data, STORED_LSE, buffers);
    args.k_scale = stored_tensor(data, STORED_K_SCALE, buffers);
    args.v_scale = stored_tensor(data, STORED_V_SCALE, buffers);
    args.cu_seqlens_q = stored_list(data, STORED_CU_Q, buffers);
    args.cu_seqlens_k = stored_list(data, STORED_CU_K, buffers);
    args.block_table = stored_list(data, STORED_TABLE, buffers);
    args.status_words = stored_list(data, STORED_STATUS, buffers);
    args.total_q = data->total_q;
    args.total_k = data->total_k;
    args.num_pages = data->num_pages;
    args.max_blocks = data->max_blocks;
    if (!(features & CLATTN_FEATURE_Q_LENS))
        args.q_lens = none;
    if (!(features & CLATTN_FEATURE_KV_LENS))
        args.kv_lens = none;
    return args;
}

static clattn_append_args append_args(const append_data *append, const device_buffers *buffers,
                                      const clattn_forward_args *forward)
{
    const append_spec *spec = &append->serving->spec.append;
    clattn_append_args args = CLATTN_APPEND_ARGS_INIT;
    const struct {
        clattn_tensor *to;
        int n;
    } tensors[] = {{&args.k_new, APPEND_K_NEW},
                   {&args.v_new, APPEND_V_NEW},
                   {&args.q, APPEND_Q},
                   {&args.kv_lens, APPEND_LENS},
                   {&args.slot_mapping, APPEND_SLOTS},
                   {&args.kv_lens_out, APPEND_LENS_OUT},
                   {&args.positions, APPEND_POSITIONS},
                   {&args.rope_cos, APPEND_COS},
                   {&args.rope_sin, APPEND_SIN}};
    for (size_t i = 0; i < sizeof tensors / sizeof *tensors; i++)
        *tensors[i].to = tensor_at(&append->view[tensors[i].n], buffers->append[tensors[i].n]);
    args.k = forward->k;
    args.v = forward->v;
    args.k_scale = forward->k_scale;
    args.v_scale = forward->v_scale;
    if (spec->rope != CLATTN_ROPE_NONE)
        args.q_out = forward->q;
    args.q_lens = forward->q_lens;
    args.cu_seqlens_q = forward->cu_seqlens_q;
    if (!spec->has_slots)
        args.block_table = forward->block_table;
    args.status_words = forward->status_words;
    args.batch = forward->batch;
    args.new_len = forward->q_len;
    args.total_new = forward->total_q;
    args.kv_len = forward->kv_len;
    args.num_pages = forward->num_pages;
    args.max_blocks = spec->has_slots ? 0 : forward->max_blocks;
    args.rope_len = append->rope_len;
    args.rope_base = spec->rope_base;
    args.rope_scale = spec->rope_scale;
    return args;
}

/* ---- Running ---- */

/* Every other call appends and attends at once; the others one after the other. */
static clattn_status enqueue(numerics_device *device, clattn_plan *plan, const clattn_forward_args *args,
                             clattn_plan *append_plan, const clattn_append_args *append, int at_once,
                             cl_event *event)
{
    cl_event appended = NULL;
    if (append_plan == NULL)
        return clattn_enqueue_forward(plan, device->queue, args, 0, NULL, event);
    if (at_once)
        return clattn_enqueue_append_forward(append_plan, append, plan, args, device->queue, 0, NULL, event);
    clattn_status status = clattn_enqueue_kv_append(append_plan, device->queue, append, 0, NULL, &appended);
    if (status != CLATTN_SUCCESS)
        return status;
    status = clattn_enqueue_forward(plan, device->queue, args, 1, &appended, event);
    clReleaseEvent(appended);
    return status;
}

static clattn_status run_and_wait(numerics_device *device, serving_data *data, clattn_plan *plan,
                                  const append_data *append, clattn_plan *append_plan,
                                  const device_buffers *buffers)
{
    byte_buffer workspace_host = {NULL, 0, 0};
    cl_mem workspace = NULL;
    cl_event event = NULL;
    clattn_status status = CLATTN_SUCCESS;
    clattn_forward_args args = forward_args(data, buffers);
    clattn_append_args new_keys = CLATTN_APPEND_ARGS_INIT;
    if (append != NULL)
        new_keys = append_args(append, buffers, &args);
    if (data->spec.call.workspace == WORKSPACE_GIVEN)
        status = device_make_workspace(device, plan, &args, &workspace_host, &workspace);
    args.workspace.handle = workspace;
    args.workspace.byte_offset = workspace != NULL ? GUARD_BYTES : 0;
    if (status == CLATTN_SUCCESS)
        status = enqueue(device, plan, &args, append_plan, &new_keys, data->spec.call.seed % 2 == 0, &event);
    if (status == CLATTN_SUCCESS) {
        status = clWaitForEvents(1, &event);
        clReleaseEvent(event);
    }
    data->call.workspace_overrun = 0;
    if (status == CLATTN_SUCCESS && workspace != NULL)
        status = device_check_workspace(device, workspace, &workspace_host, &data->call.workspace_overrun);
    if (workspace != NULL)
        clReleaseMemObject(workspace);
    buffer_free(&workspace_host);
    return status;
}

static clattn_status download_all(numerics_device *device, byte_buffer *to, const cl_mem *from, int count)
{
    clattn_status status = CLATTN_SUCCESS;
    for (int n = 0; n < count && status == CLATTN_SUCCESS; n++)
        if (from[n] != NULL)
            status = device_download(device, from[n], &to[n]);
    return status;
}

static clattn_status run_plans(numerics_device *device, serving_data *data, append_data *append,
                               device_buffers *buffers)
{
    const clattn_plan_desc desc = serving_plan_desc(&data->spec);
    clattn_plan *plan = NULL, *append_plan = NULL;
    clattn_status status = clattn_plan_create(&plan, device->context, &desc);
    if (status == CLATTN_SUCCESS && append != NULL) {
        const clattn_plan_desc append_desc = append_plan_desc(append);
        status = clattn_plan_create(&append_plan, device->context, &append_desc);
    }
    if (status == CLATTN_SUCCESS)
        status = make_buffers(device->cl, data, append, buffers);
    if (status == CLATTN_SUCCESS)
        status = run_and_wait(device, data, plan, append, append_plan, buffers);
    clattn_plan_release(append_plan);
    clattn_plan_release(plan);
    return status;
}

static void poison_outputs(serving_data *data)
{
    buffer_poison(&data->buffer[STORED_O]);
    if (data->buffer[STORED_LSE].bytes != NULL)
        buffer_poison(&data->buffer[STORED_LSE]);
}

/* Entries whose lengths are cut are bad ones; the highest is noted. Nothing else is wrong in these calls. */
static const char *check_status(const serving_data *data)
{
    const tensor_view *words = &data->view[STORED_STATUS];
    if (words->buffer == NULL)
        return NULL;
    if (view_load_int(words, 0, 0, 0, 0) != 0)
        return "status_words: a bad page, of which there is none";
    if (view_load_int(words, 0, 0, 0, 1) != serving_bad_length(data))
        return "status_words: bad_length is not that of the highest entry that is cut";
    if (view_load_int(words, 0, 0, 0, 2) != 0 || view_load_int(words, 0, 0, 0, 3) != 0)
        return "status_words: a dropped token, of which there is none, or the reserved word";
    return NULL;
}

static clattn_status run_all(numerics_device *device, serving_data *data, append_data *append)
{
    device_buffers buffers;
    memset(&buffers, 0, sizeof buffers);
    poison_outputs(data);
    clattn_status status = run_plans(device, data, append, &buffers);
    if (status == CLATTN_SUCCESS)
        status = download_all(device, data->buffer, buffers.stored, STORED_TENSORS);
    if (status == CLATTN_SUCCESS && append != NULL)
        status = download_all(device, append->buffer, buffers.append, APPEND_TENSORS);
    release_buffers(&buffers);
    return status;
}

clattn_status serving_run_only(numerics_device *device, serving_data *data)
{
    return run_all(device, data, NULL);
}

clattn_status serving_run(numerics_device *device, serving_data *data, const char **fault)
{
    append_data append;
    const int appends = data->spec.append.takes_part;
    *fault = NULL;
    if (appends)
        append_create(&append, data);
    const clattn_status status = run_all(device, data, appends ? &append : NULL);
    if (status == CLATTN_SUCCESS) {
        if (appends)
            *fault = append_check(&append);
        const char *beside = serving_unpack_outputs(data);
        if (*fault == NULL)
            *fault = beside;
    }
    if (appends)
        append_destroy(&append);
    return status;
}

void serving_verify(verdict *out, numerics_device *device, serving_data *data)
{
    const char *fault;
    const clattn_status status = serving_run(device, data, &fault);
    memset(out, 0, sizeof *out);
    if (status != CLATTN_SUCCESS)
        snprintf(out->fault, sizeof out->fault, "the call failed: %s", clattn_status_string(status));
    else
        verify_call(out, &data->call);
    if (status == CLATTN_SUCCESS && fault == NULL)
        fault = check_status(data);
    if (fault != NULL)
        snprintf(out->fault, sizeof out->fault, "%s", fault);
}
