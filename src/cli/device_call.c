/* device_call.c: one attention case through the library's public interface. */
#include "device_call.h"

#include "case_layout.h"
#include "case_serving.h"
#include "cli.h"
#include "cli_platform.h"
#include "device_serving.h"
#include "tensor_convert.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

/* Outputs hold this before the run: NaNs with a payload of their own, so that rows that are never
 * written are told from rows that are NaN by computation. The padding of inputs is 0xff instead. */
static const unsigned char poison_f32[4] = {0x51, 0xdc, 0xed, 0x7f};
static const unsigned char poison_f16[4] = {0xed, 0x7d, 0xed, 0x7d};
static const unsigned char poison_bf16[4] = {0xdb, 0x7f, 0xdb, 0x7f};

static const unsigned char *poison_of(int32_t dtype)
{
    return dtype == CLATTN_DTYPE_F32 ? poison_f32 : dtype == CLATTN_DTYPE_F16 ? poison_f16 : poison_bf16;
}

/* ---- Opening ------------------------------------------------------------------------------------
 */

/* Caches and their scales may be written, and so are outputs. */
static int is_written(const attention_case *c, int tensor)
{
    const int is_cache =
        tensor == TENSOR_K || tensor == TENSOR_V || tensor == TENSOR_K_SCALE || tensor == TENSOR_V_SCALE;
    return tensor >= NUM_INPUTS ||
           (is_cache && (case_appends(c) || c->given[0].present || c->given[1].present));
}

int device_call_fill(const device_call *call, cl_mem buffer, size_t bytes)
{
    const unsigned char padding = 0xff;
    const cl_int status =
        clEnqueueFillBuffer(call->device->queue, buffer, &padding, 1, 0, bytes, 0, NULL, NULL);
    return status == CL_SUCCESS ? CLI_OK : cli_opencl_fail(status, "clEnqueueFillBuffer");
}

static int create_buffer(device_call *call, int tensor)
{
    const case_tensor *t = &call->c->tensor[tensor];
    uint64_t bytes = t->bytes + call->c->guard_bytes;
    if (bytes < 4)
        bytes = 4; /* no buffer is empty */
    if (bytes > call->device->max_alloc_bytes)
        return cli_fail(CLI_FAILED,
                        "'%s' needs %" PRIu64 " bytes, more than the device's largest buffer of %" PRIu64,
                        tensor_names[tensor], bytes, call->device->max_alloc_bytes);
    cl_int status;
    call->buffer[tensor] = clCreateBuffer(call->device->context,
                                          is_written(call->c, tensor) ? CL_MEM_READ_WRITE : CL_MEM_READ_ONLY,
                                          (size_t)bytes, NULL, &status);
    if (status != CL_SUCCESS)
        return cli_fail(CLI_FAILED, "'%s': no buffer of %" PRIu64 " bytes: %s", tensor_names[tensor], bytes,
                        clattn_status_string(status));
    call->buffer_bytes[tensor] = (size_t)bytes;
    call->device_bytes += bytes;
    return CLI_OK;
}

static int upload(device_call *call, int tensor)
{
    const case_tensor *t = &call->c->tensor[tensor];
    const size_t bytes = (size_t)(t->bytes + call->c->guard_bytes);
    if (!t->values && is_written(call->c, tensor) && tensor < NUM_INPUTS)
        return device_call_fill(call, call->buffer[tensor], call->buffer_bytes[tensor]);
    if (!t->values || bytes == 0)
        return CLI_OK;
    unsigned char *copy = NULL;
    if (!case_is_plain(call->c, tensor)) {
        copy = case_layout_input(call->c, tensor);
        if (!copy)
            return CLI_FAILED;
    }
    const cl_int status = clEnqueueWriteBuffer(call->device->queue, call->buffer[tensor], CL_TRUE, 0, bytes,
                                               copy ? (const void *)copy : t->values, 0, NULL, NULL);
    free(copy);
    return status == CL_SUCCESS ? CLI_OK : cli_opencl_fail(status, "clEnqueueWriteBuffer");
}

static int create_workspace(device_call *call)
{
    clattn_bounds bounds = CLATTN_BOUNDS_INIT;
    size_t bytes = 0;
    bounds.batch = call->c->batch;
    bounds.q_len = call->c->q_len;
    bounds.kv_len = call->c->kv_len;
    bounds.total_q = call->c->total_q;
    const clattn_status status = clattn_forward_workspace(call->plan, &bounds, &bytes);
    if (status != CLATTN_SUCCESS)
        return cli_library_fail(call->device, status, "clattn_forward_workspace");
    if (bytes == 0)
        return CLI_OK;
    cl_int error;
    call->workspace = clCreateBuffer(call->device->context, CL_MEM_READ_WRITE, bytes, NULL, &error);
    if (error != CL_SUCCESS)
        return cli_opencl_fail(error, "clCreateBuffer for the workspace");
    call->device_bytes += bytes;
    return CLI_OK;
}

void device_call_set_tensor(clattn_tensor *out, const device_call *call, int tensor)
{
    const case_tensor *t = &call->c->tensor[tensor];
    const int no_keys = call->c->kv_len == 0 && (tensor == TENSOR_K || tensor == TENSOR_V);
    if (!t->present || no_keys)
        return;
    out->handle = call->buffer[tensor];
    out->byte_offset = t->offset;
    for (int i = 0; i < 4; i++)
        out->stride[i] = t->stride[i];
}

static void set_args(device_call *call)
{
    const attention_case *c = call->c;
    const call_options *o = &c->options;
    clattn_forward_args args = CLATTN_FORWARD_ARGS_INIT;
    device_call_set_tensor(&args.q, call, TENSOR_Q);
    device_call_set_tensor(&args.k, call, TENSOR_K);
    device_call_set_tensor(&args.v, call, TENSOR_V);
    device_call_set_tensor(&args.bias, call, TENSOR_BIAS);
    device_call_set_tensor(&args.mask, call, TENSOR_MASK);
    device_call_set_tensor(&args.bias_head_scale, call, TENSOR_BIAS_HEAD_SCALE);
    device_call_set_tensor(&args.alibi_slopes, call, TENSOR_ALIBI_SLOPES);
    device_call_set_tensor(&args.sinks, call, TENSOR_SINKS);
    device_call_set_tensor(&args.q_lens, call, TENSOR_Q_LENS);
    device_call_set_tensor(&args.kv_lens, call, TENSOR_KV_LENS);
    device_call_set_tensor(&args.q_offsets, call, TENSOR_OFFSETS);
    device_call_set_tensor(&args.tiles_count, call, TENSOR_TILES_COUNT);
    device_call_set_tensor(&args.tiles_index, call, TENSOR_TILES_INDEX);
    device_call_set_tensor(&args.user, call, TENSOR_USER);
    device_call_set_tensor(&args.o, call, TENSOR_O);
    device_call_set_tensor(&args.lse, call, TENSOR_LSE);
    device_call_set_tensor(&args.cu_seqlens_q, call, TENSOR_CU_SEQLENS_Q);
    device_call_set_tensor(&args.cu_seqlens_k, call, TENSOR_CU_SEQLENS_K);
    device_call_set_tensor(&args.block_table, call, TENSOR_BLOCK_TABLE);
    device_call_set_tensor(&args.k_scale, call, TENSOR_K_SCALE);
    device_call_set_tensor(&args.v_scale, call, TENSOR_V_SCALE);
    args.workspace.handle = call->workspace;
    args.batch = c->batch;
    args.q_len = c->q_len;
    args.kv_len = c->kv_len;
    args.q_offset = o->position_mode == CLATTN_POSITION_EXPLICIT ? o->q_offset : 0;
    args.window_left = o->window_left;
    args.window_right = o->window_right;
    args.scale = o->scale;
    args.softcap = o->softcap;
    args.tiles_capacity = c->tensor[TENSOR_TILES_INDEX].dim[3];
    memcpy(args.user_values, o->user_values, sizeof args.user_values);
    args.total_q = c->total_q;
    args.total_k = c->total_k;
    args.num_pages = c->num_pages;
    args.max_blocks = c->max_blocks;
    call->args = args;
}

static int open_parts(device_call *call)
{
    const clattn_plan_desc desc = case_plan_desc(call->c);
    const double start = platform_seconds();
    const clattn_status status = clattn_plan_create(&call->plan, call->device->clattn, &desc);
    call->plan_seconds = platform_seconds() - start;
    if (status != CLATTN_SUCCESS)
        return cli_library_fail(call->device, status, "clattn_plan_create");
    for (int t = 0; t < TENSOR_COUNT; t++) {
        if (!call->c->tensor[t].present)
            continue;
        int result = create_buffer(call, t);
        if (result == CLI_OK)
            result = upload(call, t);
        if (result != CLI_OK)
            return result;
    }
    const int result = create_workspace(call);
    set_args(call);
    return result == CLI_OK ? device_serving_open(call) : result;
}

int device_call_open(device_call *out, cli_device *device, const attention_case *c)
{
    memset(out, 0, sizeof *out);
    out->device = device;
    out->c = c;
    const int status = open_parts(out);
    if (status != CLI_OK)
        device_call_close(out);
    return status;
}

void device_call_close(device_call *call)
{
    for (int t = 0; t < TENSOR_COUNT; t++)
        if (call->buffer[t])
            clReleaseMemObject(call->buffer[t]);
    if (call->workspace)
        clReleaseMemObject(call->workspace);
    device_serving_close(call);
    clattn_plan_release(call->plan);
    memset(call, 0, sizeof *call);
}

/* ---- Running ------------------------------------------------------------------------------------
 */

int device_call_poison(device_call *call)
{
    for (int t = TENSOR_O; t <= TENSOR_LSE; t++) {
        if (!call->buffer[t])
            continue;
        const int32_t dtype = call->c->tensor[t].dtype;
        const cl_int status =
            clEnqueueFillBuffer(call->device->queue, call->buffer[t], poison_of(dtype), dtype_size(dtype), 0,
                                call->buffer_bytes[t] / dtype_size(dtype) * dtype_size(dtype), 0, NULL, NULL);
        if (status != CL_SUCCESS)
            return cli_opencl_fail(status, "clEnqueueFillBuffer");
    }
    return CLI_OK;
}

int device_call_enqueue(device_call *call) { return device_serving_enqueue(call); }

int device_call_finish(device_call *call)
{
    const cl_int status = clFinish(call->device->queue);
    return status == CL_SUCCESS ? CLI_OK : cli_opencl_fail(status, "clFinish");
}

/* ---- Outputs ------------------------------------------------------------------------------------
 */

/* One row: its elements go to `out`, or, beyond the entry's valid rows, zeros. Notes the first element that
 * was not written, or should not have been. */
static void take_row(unsigned char *row, const case_tensor *t, int valid, unsigned char *out,
                     const char *name, const int64_t place[3], char *wrong, size_t capacity)
{
    const size_t size = t->element;
    const unsigned char *poison = poison_of(t->dtype);
    for (int64_t e = 0; e < t->dim[3]; e++, row += size, out += size) {
        const int written = memcmp(row, poison, size) != 0;
        if (valid)
            memcpy(out, row, size);
        else
            memset(out, 0, size);
        if (wrong && !*wrong && written != valid)
            cli_format(wrong, capacity,
                       "%s[%" PRId64 ",%" PRId64 ",%" PRId64 ",%" PRId64 "] (batch, head, row, column) %s",
                       name, place[0], place[1], place[2], e,
                       valid ? "was not written" : "was written, beyond the entry's q length");
    }
}

/* Which places along batch and token hold valid rows; to be freed. */
static unsigned char *valid_places(const attention_case *c, const case_tensor *t)
{
    unsigned char *valid = calloc((size_t)(t->dim[0] * t->dim[2]) + 1, 1);
    for (int64_t b = 0; valid && b < c->batch; b++)
        for (int64_t i = 0; i < case_q_len(c, b); i++) {
            int64_t batch, token;
            case_row_place(c, b, i, &batch, &token);
            valid[batch * t->dim[2] + token] = 1;
        }
    return valid;
}

/* Moves the rows to `out` in the order of the shape and puts poison in their place, so that what is left
 * tells of writes beside them. */
static int take_elements(unsigned char *buffer, const attention_case *c, int tensor, unsigned char *out,
                         char *wrong, size_t capacity)
{
    const case_tensor *t = &c->tensor[tensor];
    unsigned char *valid = valid_places(c, t);
    if (!valid)
        return cli_fail(CLI_FAILED, "not enough memory for '%s'", tensor_names[tensor]);
    for (int64_t b = 0; b < t->dim[0]; b++)
        for (int64_t h = 0; h < t->dim[1]; h++)
            for (int64_t i = 0; i < t->dim[2]; i++) {
                const int64_t place[3] = {b, h, i};
                const int64_t from = b * t->stride[0] + h * t->stride[1] + i * t->stride[2];
                const int64_t to = b * t->value_stride[0] + h * t->value_stride[1] + i * t->value_stride[2];
                unsigned char *row = buffer + t->offset + (size_t)from * t->element;
                take_row(row, t, valid[b * t->dim[2] + i], out + (size_t)to * t->element,
                         tensor_names[tensor], place, wrong, capacity);
                for (int64_t e = 0; e < t->dim[3]; e++, row += t->element)
                    memcpy(row, poison_of(t->dtype), t->element);
            }
    free(valid);
    return CLI_OK;
}

static void look_beside(const unsigned char *buffer, size_t bytes, int32_t dtype, const char *name,
                        char *wrong, size_t capacity)
{
    const size_t size = dtype_size(dtype);
    const unsigned char *poison = poison_of(dtype);
    for (size_t at = 0; at + size <= bytes; at += size)
        if (memcmp(buffer + at, poison, size) != 0) {
            cli_format(wrong, capacity, "byte %zu of the buffer of %s, outside its rows, was written", at,
                       name);
            return;
        }
}

static int fetch(device_call *call, int tensor, unsigned char **out, char *wrong, size_t capacity)
{
    const case_tensor *t = &call->c->tensor[tensor];
    const int64_t elements = case_elements(t);
    const size_t size = t->element;
    unsigned char *buffer = malloc(call->buffer_bytes[tensor]);
    *out = malloc((size_t)elements * size + 1);
    if (!buffer || !*out) {
        free(buffer);
        return cli_fail(CLI_FAILED, "not enough memory for '%s'", tensor_names[tensor]);
    }
    const cl_int status = clEnqueueReadBuffer(call->device->queue, call->buffer[tensor], CL_TRUE, 0,
                                              call->buffer_bytes[tensor], buffer, 0, NULL, NULL);
    int result = status == CL_SUCCESS ? CLI_OK : cli_opencl_fail(status, "clEnqueueReadBuffer");
    if (result == CLI_OK && elements > 0)
        result = take_elements(buffer, call->c, tensor, *out, wrong, capacity);
    if (result == CLI_OK && wrong && !*wrong)
        look_beside(buffer, call->buffer_bytes[tensor], t->dtype, tensor_names[tensor], wrong, capacity);
    free(buffer);
    return result;
}

int device_call_fetch(device_call *call, unsigned char **o, float **lse, char *what_is_wrong, size_t capacity)
{
    unsigned char *lse_bytes = NULL;
    *o = NULL;
    *lse = NULL;
    if (what_is_wrong)
        what_is_wrong[0] = 0;
    int status = fetch(call, TENSOR_O, o, what_is_wrong, capacity);
    if (status == CLI_OK && call->buffer[TENSOR_LSE])
        status = fetch(call, TENSOR_LSE, &lse_bytes, what_is_wrong, capacity);
    if (status != CLI_OK) {
        free(*o);
        free(lse_bytes);
        *o = NULL;
        return status;
    }
    *lse = (float *)(void *)lse_bytes; /* from malloc, so aligned for any type */
    return CLI_OK;
}

/* ---- Description --------------------------------------------------------------------------------
 */

void plan_text(const clattn_plan *plan, char *text, size_t capacity)
{
    size_t needed;
    text[0] = 0;
    clattn_plan_describe(plan, text, capacity, &needed);
}

void device_call_describe(const device_call *call, char *text, size_t capacity)
{
    plan_text(call->plan, text, capacity);
}

static void copy_part(char *out, size_t capacity, const char *begin, size_t length)
{
    if (length >= capacity)
        length = capacity - 1;
    memcpy(out, begin, length);
    out[length] = 0;
}

/* "cpu: tiles 64x48, 1 work-item, ...": the name ends at the colon, the tiles at the work-items. */
void plan_path_and_tiles(const char *description, char path[32], char tiles[96])
{
    const size_t name = strcspn(description, ":");
    copy_part(path, 32, description, name);
    const char *begin = strstr(description, "tiles ");
    begin = begin ? begin + strlen("tiles ") : description + name;
    size_t length = strcspn(begin, ";");
    const char *end = strstr(begin, " work-item");
    for (const char *next = end; next && next < begin + length; next = strstr(next + 1, " work-item"))
        end = next; /* the label may speak of work-items too: the last one counts */
    if (end && end < begin + length) {
        while (end > begin && *end != ',') /* back over the number of work-items */
            end--;
        length = (size_t)(end - begin);
    }
    copy_part(tiles, 96, begin, length);
}
