/* device_serving.c: conversion, append and status words around one attention call. */
#include "device_serving.h"

#include "case_layout.h"
#include "case_serving.h"
#include "cli.h"
#include "tensor_convert.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

static int create(device_call *call, cl_mem *out, size_t bytes, const char *what)
{
    cl_int status;
    *out = clCreateBuffer(call->device->context, CL_MEM_READ_WRITE, bytes > 0 ? bytes : 1, NULL, &status);
    if (status != CL_SUCCESS)
        return cli_fail(CLI_FAILED, "%s: no buffer of %zu bytes: %s", what, bytes,
                        clattn_status_string(status));
    call->device_bytes += bytes;
    return CLI_OK;
}

static void plain_tensor(clattn_tensor *out, cl_mem buffer, uint64_t offset, const int64_t stride[4])
{
    out->handle = buffer;
    out->byte_offset = offset;
    memcpy(out->stride, stride, sizeof out->stride);
}

/* ---- Conversion --------------------------------------------------------------------------------- */

static int enqueue_conversion(device_call *call, int tensor, cl_mem given, clattn_plan *plan)
{
    const case_tensor *from = &call->c->given[tensor - TENSOR_K], *to = &call->c->tensor[tensor];
    const int scale = tensor == TENSOR_K ? TENSOR_K_SCALE : TENSOR_V_SCALE;
    clattn_convert_args args = CLATTN_CONVERT_ARGS_INIT;
    plain_tensor(&args.from, given, 0, from->value_stride);
    plain_tensor(&args.to, call->buffer[tensor], to->offset, to->stride);
    if (call->buffer[scale])
        plain_tensor(&args.scale, call->buffer[scale], call->c->tensor[scale].offset,
                     call->c->tensor[scale].stride);
    args.batch = from->dim[0];
    args.len = from->dim[2];
    cl_int error = clEnqueueWriteBuffer(call->device->queue, given, CL_TRUE, 0, from->value_bytes,
                                        from->values, 0, NULL, NULL);
    if (error != CL_SUCCESS)
        return cli_opencl_fail(error, "clEnqueueWriteBuffer");
    const clattn_status status = clattn_enqueue_convert(plan, call->device->queue, &args, 0, NULL, NULL);
    if (status != CLATTN_SUCCESS)
        return cli_library_fail(call->device, status, "clattn_enqueue_convert");
    error = clFinish(call->device->queue);
    return error == CL_SUCCESS ? CLI_OK : cli_opencl_fail(error, "clFinish");
}

static int convert(device_call *call, int tensor)
{
    const case_tensor *from = &call->c->given[tensor - TENSOR_K], *to = &call->c->tensor[tensor];
    clattn_plan_desc desc = CLATTN_PLAN_DESC_INIT;
    clattn_plan *plan;
    cl_mem given;
    if (!from->present || case_elements(from) == 0)
        return CLI_OK;
    desc.operation = CLATTN_OPERATION_CONVERT;
    desc.dtype_q = from->dtype;
    desc.dtype_k = to->dtype;
    desc.heads_q = desc.heads_kv = (int32_t)from->dim[1];
    desc.head_dim_qk = (int32_t)from->dim[3];
    if (call->buffer[tensor == TENSOR_K ? TENSOR_K_SCALE : TENSOR_V_SCALE])
        desc.features |= CLATTN_FEATURE_K_SCALE;
    const clattn_status result = clattn_plan_create(&plan, call->device->clattn, &desc);
    if (result != CLATTN_SUCCESS)
        return cli_library_fail(call->device, result, "clattn_plan_create");
    int status = create(call, &given, from->value_bytes, tensor_names[tensor]);
    if (status == CLI_OK) {
        status = enqueue_conversion(call, tensor, given, plan);
        call->device_bytes -= from->value_bytes;
        clReleaseMemObject(given);
    }
    clattn_plan_release(plan);
    return status;
}

/* ---- Append ------------------------------------------------------------------------------------- */

static clattn_plan_desc append_desc(const attention_case *c)
{
    static const struct {
        int tensor;
        uint32_t feature;
    } parts[] = {
        {TENSOR_CU_SEQLENS_Q, CLATTN_FEATURE_CU_SEQLENS_Q}, {TENSOR_Q_LENS, CLATTN_FEATURE_Q_LENS},
        {TENSOR_BLOCK_TABLE, CLATTN_FEATURE_BLOCK_TABLE},   {TENSOR_ROPE_COS, CLATTN_FEATURE_ROPE_TABLES},
        {TENSOR_K_SCALE, CLATTN_FEATURE_K_SCALE},           {TENSOR_V_SCALE, CLATTN_FEATURE_V_SCALE}};
    const clattn_plan_desc forward = case_plan_desc(c);
    clattn_plan_desc desc = CLATTN_PLAN_DESC_INIT;
    desc.operation = CLATTN_OPERATION_KV_APPEND;
    desc.dtype_q = c->tensor[TENSOR_K_NEW].dtype;
    desc.dtype_k = forward.dtype_k;
    desc.dtype_v = forward.dtype_v;
    desc.heads_q = forward.heads_q;
    desc.heads_kv = forward.heads_kv;
    desc.head_dim_qk = forward.head_dim_qk;
    desc.head_dim_v = forward.head_dim_v;
    desc.page_size = forward.page_size;
    desc.rope = c->options.serving.rope;
    desc.rotary_dim = (int32_t)c->options.serving.rotary_dim;
    desc.features = forward.features & (CLATTN_FEATURE_STATUS | CLATTN_FEATURE_V_IN_K);
    for (size_t i = 0; i < sizeof parts / sizeof parts[0]; i++)
        if (c->tensor[parts[i].tensor].present)
            desc.features |= parts[i].feature;
    return desc;
}

static void set_append_args(device_call *call)
{
    const attention_case *c = call->c;
    const int64_t lens_stride[4] = {1, 0, 0, 0};
    clattn_append_args args = CLATTN_APPEND_ARGS_INIT;
    const struct {
        int tensor;
        clattn_tensor *out;
    } parts[] = {{TENSOR_K_NEW, &args.k_new},
                 {TENSOR_V_NEW, &args.v_new},
                 {TENSOR_K, &args.k},
                 {TENSOR_V, &args.v},
                 {TENSOR_K_SCALE, &args.k_scale},
                 {TENSOR_V_SCALE, &args.v_scale},
                 {TENSOR_KV_LENS, &args.kv_lens},
                 {TENSOR_Q_LENS, &args.q_lens},
                 {TENSOR_CU_SEQLENS_Q, &args.cu_seqlens_q},
                 {TENSOR_BLOCK_TABLE, &args.block_table},
                 {TENSOR_ROPE_COS, &args.rope_cos},
                 {TENSOR_ROPE_SIN, &args.rope_sin}};
    for (size_t i = 0; i < sizeof parts / sizeof parts[0]; i++)
        device_call_set_tensor(parts[i].out, call, parts[i].tensor);
    if (call->rotated_q) {
        device_call_set_tensor(&args.q, call, TENSOR_Q);
        args.q_out = args.q;
        args.q_out.handle = call->rotated_q;
        call->args.q.handle = call->rotated_q;
    }
    plain_tensor(&args.kv_lens_out, call->kv_lens_out, 0, lens_stride);
    plain_tensor(&call->args.kv_lens, call->kv_lens_out, 0, lens_stride);
    args.status_words.handle = call->status_words;
    args.batch = c->batch;
    args.new_len = c->tensor[TENSOR_Q_LENS].present || c->total_q || c->tensor[TENSOR_CU_SEQLENS_Q].present
                       ? c->q_len
                       : c->tensor[TENSOR_K_NEW].dim[2];
    args.total_new = c->total_q;
    args.kv_len = c->num_pages || c->page_size ? c->max_blocks * c->page_size : c->kv_len;
    args.num_pages = c->num_pages;
    args.max_blocks = c->max_blocks;
    args.rope_len = c->tensor[TENSOR_ROPE_COS].dim[0];
    args.rope_base = c->options.serving.rope_base;
    args.rope_scale = c->options.serving.rope_scale;
    call->append_args = args;
}

static int open_append(device_call *call)
{
    const attention_case *c = call->c;
    const clattn_plan_desc desc = append_desc(c);
    const clattn_status result = clattn_plan_create(&call->append_plan, call->device->clattn, &desc);
    if (result != CLATTN_SUCCESS)
        return cli_library_fail(call->device, result, "clattn_plan_create");
    int status = create(call, &call->kv_lens_out, (size_t)c->batch * sizeof(cl_int), "kv_lens");
    if (status == CLI_OK && desc.rope)
        status = create(call, &call->rotated_q, call->buffer_bytes[TENSOR_Q], "the rotated q");
    if (status == CLI_OK && desc.rope)
        status = device_call_fill(call, call->rotated_q, call->buffer_bytes[TENSOR_Q]);
    return status;
}

/* ---- Opening and running ------------------------------------------------------------------------- */

int device_serving_open(device_call *call)
{
    int status = convert(call, TENSOR_K);
    if (status == CLI_OK)
        status = convert(call, TENSOR_V);
    if (status == CLI_OK && call->c->checks_numbers)
        status = create(call, &call->status_words, sizeof(clattn_status_words), "the status words");
    if (status == CLI_OK && case_appends(call->c))
        status = open_append(call);
    if (status != CLI_OK)
        return status;
    call->args.status_words.handle = call->status_words;
    if (call->append_plan)
        set_append_args(call);
    return CLI_OK;
}

void device_serving_close(device_call *call)
{
    const cl_mem buffers[3] = {call->rotated_q, call->kv_lens_out, call->status_words};
    for (int i = 0; i < 3; i++)
        if (buffers[i])
            clReleaseMemObject(buffers[i]);
    clattn_plan_release(call->append_plan);
}

int device_serving_enqueue(device_call *call)
{
    const cl_int zero = 0;
    const cl_command_queue queue = call->device->queue;
    if (call->status_words) {
        const cl_int error = clEnqueueFillBuffer(queue, call->status_words, &zero, sizeof zero, 0,
                                                 sizeof(clattn_status_words), 0, NULL, NULL);
        if (error != CL_SUCCESS)
            return cli_opencl_fail(error, "clEnqueueFillBuffer");
    }
    const clattn_status status =
        call->append_plan ? clattn_enqueue_append_forward(call->append_plan, &call->append_args, call->plan,
                                                          &call->args, queue, 0, NULL, NULL)
                          : clattn_enqueue_forward(call->plan, queue, &call->args, 0, NULL, NULL);
    return status == CLATTN_SUCCESS ? CLI_OK
                                    : cli_library_fail(call->device, status,
                                                       call->append_plan ? "clattn_enqueue_append_forward"
                                                                         : "clattn_enqueue_forward");
}

/* ---- What was wrong ----------------------------------------------------------------------------- */

/* The first key of an entry that has no page. */
static void tell_page(const attention_case *c, int64_t b, char *text, size_t capacity)
{
    const int32_t *table = c->tensor[TENSOR_BLOCK_TABLE].values;
    int64_t block = 0, batch, token;
    while (block + 1 < c->max_blocks && case_key_place(c, b, block * c->page_size, &batch, &token))
        block++;
    cli_format(
        text, capacity,
        "tensor 'block_table' holds %d (entry %" PRId64 ", its block %" PRId64 "); expected a page from 0 to "
        "%" PRId64,
        (int)(table && c->max_blocks > 0 ? table[b * c->max_blocks + block] : 0), b, block, c->num_pages - 1);
}

int device_serving_trouble(device_call *call, char *text, size_t capacity)
{
    const attention_case *c = call->c;
    clattn_status_words words;
    text[0] = 0;
    if (!call->status_words)
        return CLI_OK;
    const cl_int error = clEnqueueReadBuffer(call->device->queue, call->status_words, CL_TRUE, 0,
                                             sizeof words, &words, 0, NULL, NULL);
    if (error != CL_SUCCESS)
        return cli_opencl_fail(error, "clEnqueueReadBuffer");
    if (words.bad_page)
        tell_page(c, words.bad_page - 1, text, capacity);
    else if (words.dropped)
        cli_format(text, capacity,
                   "tensor 'k_new': entry %d has %" PRId64 " keys and %" PRId64
                   " new ones; expected at most the %" PRId64 " places of its cache",
                   (int)words.dropped - 1, case_old_len(c, words.dropped - 1),
                   case_new_len(c, words.dropped - 1), call->append_args.kv_len);
    else if (words.bad_length)
        cli_format(text, capacity, "entry %d has a length or row outside its bounds",
                   (int)words.bad_length - 1);
    return CLI_OK;
}

/* ---- What was left ------------------------------------------------------------------------------ */

/* Elements in the order of the values; their places are then marked, so that what is left tells of writes
 * beside them. Places that an axis repeats come more than once. */
static void take_elements(unsigned char *buffer, const case_tensor *t, unsigned char *out)
{
    for (int pass = 0; pass < 2; pass++)
        for (int64_t b = 0; b < t->dim[0]; b++)
            for (int64_t h = 0; h < t->dim[1]; h++)
                for (int64_t i = 0; i < t->dim[2]; i++)
                    for (int64_t e = 0; e < t->dim[3]; e++) {
                        const int64_t from =
                            b * t->stride[0] + h * t->stride[1] + i * t->stride[2] + e * t->stride[3];
                        const int64_t to = b * t->value_stride[0] + h * t->value_stride[1] +
                                           i * t->value_stride[2] + e * t->value_stride[3];
                        unsigned char *element = buffer + t->offset + (size_t)from * t->element;
                        if (pass == 0)
                            memcpy(out + (size_t)to * t->element, element, t->element);
                        else
                            memset(element, 0xff, t->element);
                    }
}

static void look_beside(const unsigned char *buffer, size_t bytes, const char *name, char *wrong,
                        size_t capacity)
{
    for (size_t at = 0; at < bytes; at++)
        if (buffer[at] != 0xff) {
            cli_format(wrong, capacity, "byte %zu of the buffer of %s, outside its elements, was written", at,
                       name);
            return;
        }
}

static int fetch(device_call *call, int tensor, cl_mem source, unsigned char **out, char *wrong,
                 size_t capacity)
{
    const case_tensor *t = &call->c->tensor[tensor];
    const size_t bytes = call->buffer_bytes[tensor];
    unsigned char *buffer = malloc(bytes);
    *out = malloc((size_t)case_elements(t) * t->element + 1);
    cl_int error = CL_SUCCESS;
    if (buffer && *out)
        error = clEnqueueReadBuffer(call->device->queue, source, CL_TRUE, 0, bytes, buffer, 0, NULL, NULL);
    if (buffer && *out && error == CL_SUCCESS && case_elements(t) > 0) {
        take_elements(buffer, t, *out);
        if (wrong && !*wrong)
            look_beside(buffer, bytes, tensor_names[tensor], wrong, capacity);
    }
    free(buffer);
    if (!buffer || !*out)
        return cli_fail(CLI_FAILED, "not enough memory for '%s'", tensor_names[tensor]);
    return error == CL_SUCCESS ? CLI_OK : cli_opencl_fail(error, "clEnqueueReadBuffer");
}

int device_serving_fetch(device_call *call, case_state *out, char *wrong, size_t capacity)
{
    int status = CLI_OK;
    memset(out, 0, sizeof *out);
    for (int i = 0; status == CLI_OK && i < STATE_COUNT; i++) {
        const int tensor = state_tensors[i];
        const int is_k = tensor == TENSOR_K || tensor == TENSOR_K_SCALE;
        const int written = tensor == TENSOR_Q
                                ? call->rotated_q != NULL
                                : case_appends(call->c) || call->c->given[is_k ? 0 : 1].present;
        if (written && call->buffer[tensor])
            status = fetch(call, tensor, tensor == TENSOR_Q ? call->rotated_q : call->buffer[tensor],
                           &out->values[i], wrong, capacity);
    }
    if (status != CLI_OK)
        case_state_release(out);
    return status;
}
