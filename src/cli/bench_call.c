/* bench_call.c: one shape with its inputs, for flash and for naive attention. */
#include "bench.h"

#include "case_layout.h"
#include "cli.h"
#include "tensor_convert.h"

#include <stdlib.h>
#include <string.h>

static int open_device(bench_call *out, cli_device *device)
{
    const int32_t dtype = out->c.tensor[TENSOR_Q].dtype;
    const naive_shape shape = {out->c.batch,  out->c.heads_q,     out->c.heads_kv,   out->c.q_len,
                               out->c.kv_len, out->c.head_dim_qk, out->c.head_dim_v, out->shape.causal};
    const int status = device_call_open(&out->call, device, &out->c);
    out->pairs = bench_count_pairs(&out->c);
    if (status == CLI_OK)
        out->naive_bytes = out->call.device_bytes + naive_scores_bytes(&shape, dtype);
    return status;
}

/* The case once more, with lists of key tiles. */
static int add_tiles(bench_call *out, const call_options *without, double density)
{
    bench_inputs *in = &out->inputs;
    call_options o = *without;
    int status = bench_tiles_make(&out->tiles, &out->c, density);
    case_release(&out->c);
    o.tile_rows = o.tile_keys = BENCH_TILE;
    if (status != CLI_OK)
        return status;
    for (int i = 0; i < 2; i++) /* borrowed from the lists */
        in->tensor[in->count++] = out->tiles.tensor[i];
    const safetensors_file file = {in->tensor, in->count, NULL, NULL};
    return case_from_file(&out->c, &file, "inputs", &o);
}

int bench_call_open(bench_call *out, cli_device *device, const bench_options *options,
                    const bench_shape *shape)
{
    call_options o = options->call;
    memset(out, 0, sizeof *out);
    out->shape = *shape;
    o.out_dtype = options->dtype[3];
    o.causal = shape->causal;
    o.has_window = options->has_window;
    o.window_left = options->window[0];
    o.window_right = options->window[1];
    o.path = options->path;
    o.serving.phase = PHASE_GIVEN(CLATTN_PHASE_PREFILL);
    int status = bench_inputs_make(&out->inputs, options, shape);
    const safetensors_file file = {out->inputs.tensor, out->inputs.count, NULL, NULL};
    if (status == CLI_OK)
        status = case_from_file(&out->c, &file, "inputs", &o);
    if (status == CLI_OK && options->block_sparse > 0)
        status = add_tiles(out, &o, (double)options->block_sparse);
    out->c.checks_numbers = 0; /* whoever asks for time does not ask for that */
    if (status == CLI_OK)
        status = open_device(out, device);
    if (status != CLI_OK)
        bench_call_close(out);
    return status;
}

int bench_call_from_case(bench_call *out, cli_device *device, const attention_case *c)
{
    const bench_shape shape = {c->batch,
                               c->heads_q,
                               c->heads_kv,
                               c->q_len,
                               c->kv_len,
                               (int32_t)c->head_dim_qk,
                               (int32_t)c->head_dim_v,
                               c->options.causal};
    memset(out, 0, sizeof *out);
    out->shape = shape;
    out->c = *c;
    return open_device(out, device);
}

void bench_call_close(bench_call *call)
{
    if (call->scores)
        clReleaseMemObject(call->scores);
    if (call->naive_o)
        clReleaseMemObject(call->naive_o);
    device_call_close(&call->call);
    case_release(&call->c);
    bench_tiles_release(&call->tiles);
    bench_inputs_release(&call->inputs);
    memset(call, 0, sizeof *call);
}

int bench_naive_fits(const bench_call *call)
{
    const cli_device *d = call->call.device;
    const uint64_t scores = call->naive_bytes - call->call.device_bytes;
    /* A quarter of the memory is left to others: on CPUs it is the host's own. */
    return scores <= d->max_alloc_bytes &&
           call->naive_bytes + call->call.buffer_bytes[TENSOR_O] <= d->global_bytes / 4 * 3;
}

int bench_naive_open(bench_call *call, naive_program *program)
{
    cl_int error;
    const cl_context context = call->call.device->context;
    const uint64_t scores = call->naive_bytes - call->call.device_bytes;
    call->naive = program;
    call->scores = clCreateBuffer(context, CL_MEM_READ_WRITE, (size_t)scores, NULL, &error);
    if (error == CL_SUCCESS) /* an o of its own, so that the two can be compared */
        call->naive_o =
            clCreateBuffer(context, CL_MEM_READ_WRITE, call->call.buffer_bytes[TENSOR_O], NULL, &error);
    return error == CL_SUCCESS ? CLI_OK : cli_opencl_fail(error, "the buffers of naive attention");
}

int bench_enqueue_flash(void *user)
{
    bench_call *call = user;
    return device_call_enqueue(&call->call);
}

int bench_enqueue_naive(void *user)
{
    bench_call *call = user;
    const attention_case *c = &call->c;
    const naive_shape shape = {c->batch,  c->heads_q,     c->heads_kv,   c->q_len,
                               c->kv_len, c->head_dim_qk, c->head_dim_v, call->shape.causal};
    cl_mem *buffer = call->call.buffer;
    return naive_enqueue(call->naive, &shape, buffer[TENSOR_Q], buffer[TENSOR_K], buffer[TENSOR_V],
                         call->scores, call->naive_o);
}

static int fetch_floats(bench_call *call, cl_mem buffer, float **out)
{
    const case_tensor *t = &call->c.tensor[TENSOR_O];
    const size_t count = (size_t)case_elements(t), size = t->element;
    unsigned char *bytes = malloc(count * size + 1);
    *out = malloc(count * sizeof(float) + 1);
    cl_int status = CL_OUT_OF_HOST_MEMORY;
    if (bytes && *out)
        status = clEnqueueReadBuffer(call->call.device->queue, buffer, CL_TRUE, 0, count * size, bytes, 0,
                                     NULL, NULL);
    for (size_t i = 0; status == CL_SUCCESS && i < count; i++)
        (*out)[i] = tensor_load(bytes + i * size, t->dtype);
    free(bytes);
    return status == CL_SUCCESS ? CLI_OK : cli_opencl_fail(status, "clEnqueueReadBuffer");
}

int bench_fetch(bench_call *call, float **flash, float **naive)
{
    *flash = NULL;
    *naive = NULL;
    int status = fetch_floats(call, call->call.buffer[TENSOR_O], flash);
    if (status == CLI_OK)
        status = fetch_floats(call, call->naive_o, naive);
    if (status != CLI_OK) {
        free(*flash);
        free(*naive);
        *flash = NULL;
        *naive = NULL;
    }
    return status;
}

double bench_flops(const bench_call *call)
{
    return 2.0 * call->pairs * (double)(call->shape.head_dim_qk + call->shape.head_dim_v);
}

double bench_bytes(const bench_call *call)
{
    double bytes = 0;
    for (int t = TENSOR_Q; t <= TENSOR_O; t++)
        if (call->c.tensor[t].present)
            bytes += (double)case_elements(&call->c.tensor[t]) * (double)call->c.tensor[t].element;
    return bytes;
}
