/* stream.c: runs a graph's operations on an in-order queue of its own. */
#include "plugin.h"

#include <stdlib.h>

static const char *get_name(ggml_backend_t backend) { return ((stream *)backend->context)->dev->name; }

/* Calls are this stream's, programs the device's. */
static void log_stats(const stream *s)
{
    const int64_t calls = s->attention_calls + s->row_calls;
    clattn_builds builds = CLATTN_BUILDS_INIT;
    clattn_context_builds(s->dev->clattn, &builds);
    GGML_LOG_INFO("clattn: %s: %lld attention ops, %lld row writes, host time per op %.1f us; %lld plans, "
                  "%llu programs "
                  "compiled and %llu loaded in %.0f ms\n",
                  s->dev->name, (long long)s->attention_calls, (long long)s->row_calls,
                  calls ? (double)(s->host_us - s->plans_us) / (double)calls : 0.0, (long long)s->plans_made,
                  (unsigned long long)builds.compiled, (unsigned long long)builds.loaded,
                  (double)builds.microseconds * 1e-3);
}

static void stream_free(ggml_backend_t backend)
{
    stream *s = backend->context;
    clFinish(s->queue);
    if (is_asked_for("CLATTN_GGML_STATS"))
        log_stats(s);
    if (s->uploaded)
        clReleaseEvent(s->uploaded);
    if (s->workspace)
        clReleaseMemObject(s->workspace);
    clReleaseCommandQueue(s->queue);
    free(s);
    free(backend);
}

static void synchronize(ggml_backend_t backend)
{
    const stream *s = backend->context;
    opencl_check(clFinish(s->queue), "clFinish");
}

/* ---- Transfers in the order of the stream, for device memory ---- */

static void set_async(ggml_backend_t backend, struct ggml_tensor *tensor, const void *data, size_t offset,
                      size_t size)
{
    const stream *s = backend->context;
    opencl_check(clEnqueueWriteBuffer(s->queue, memory_of(tensor).handle, CL_FALSE,
                                      memory_offset(tensor) + offset, size, data, 0, NULL, NULL),
                 "clEnqueueWriteBuffer");
}

static void get_async(ggml_backend_t backend, const struct ggml_tensor *tensor, void *data, size_t offset,
                      size_t size)
{
    const stream *s = backend->context;
    opencl_check(clEnqueueReadBuffer(s->queue, memory_of(tensor).handle, CL_FALSE,
                                     memory_offset(tensor) + offset, size, data, 0, NULL, NULL),
                 "clEnqueueReadBuffer");
}

/* From host memory: started here, waited for when the graph that uses it has been enqueued. ggml leaves the
 * source alone until then, and no longer. */
static bool copy_async(ggml_backend_t from_backend, ggml_backend_t backend, const struct ggml_tensor *from,
                       struct ggml_tensor *to)
{
    stream *s = backend->context;
    const ggml_backend_buffer_t source = buffer_of(from);
    if (!ggml_backend_buffer_is_host(source) || !memory_buffer(buffer_of(to)))
        return false;
    ggml_backend_synchronize(from_backend);
    cl_event uploaded;
    if (!opencl_check(clEnqueueWriteBuffer(s->queue, memory_of(to).handle, CL_FALSE, memory_offset(to),
                                           ggml_nbytes(from), from->data, 0, NULL, &uploaded),
                      "clEnqueueWriteBuffer"))
        return false;
    if (s->uploaded)
        clReleaseEvent(s->uploaded);
    s->uploaded = uploaded;
    return true;
}

/* ---- Graphs ---- */

static clattn_status run(stream *s, const struct ggml_tensor *op)
{
    const int64_t start = ggml_time_us();
    clattn_status status = CLATTN_UNSUPPORTED;
    switch (op->op) {
    case GGML_OP_FLASH_ATTN_EXT:
        status = attention_run(s, op);
        s->attention_calls++;
        break;
    case GGML_OP_SET_ROWS:
        status = set_rows_run(s, op);
        s->row_calls++;
        break;
    case GGML_OP_CPY:
        status = copy_run(s, op);
        s->row_calls++;
        break;
    default:
        break;
    }
    s->host_us += ggml_time_us() - start;
    return status;
}

static bool is_nothing(const struct ggml_tensor *op)
{
    return ggml_is_empty(op) || (op->flags & GGML_TENSOR_FLAG_COMPUTE) == 0 || is_view(op->op);
}

static enum ggml_status graph_compute(ggml_backend_t backend, struct ggml_cgraph *graph)
{
    stream *s = backend->context;
    bool is_right = true;
    for (int i = 0; i < ggml_graph_n_nodes(graph) && is_right; i++) {
        const struct ggml_tensor *op = ggml_graph_node(graph, i);
        if (is_nothing(op))
            continue;
        const clattn_status status = run(s, op);
        is_right = status == CLATTN_SUCCESS;
        if (!is_right)
            GGML_LOG_ERROR("clattn: %s '%s': %s\n", ggml_op_name(op->op), op->name,
                           clattn_status_string(status));
    }
    /* The host reads shared memory without asking. */
    if (s->dev->shares_memory)
        is_right &= opencl_check(clFinish(s->queue), "clFinish");
    else
        is_right &= opencl_check(clFlush(s->queue), "clFlush");
    if (s->uploaded) {
        is_right &= opencl_check(clWaitForEvents(1, &s->uploaded), "clWaitForEvents");
        clReleaseEvent(s->uploaded);
        s->uploaded = NULL;
    }
    return is_right ? GGML_STATUS_SUCCESS : GGML_STATUS_FAILED;
}

ggml_backend_t stream_create(device *dev)
{
    static ggml_guid guid = {0x0b, 0x6f, 0x1c, 0x52, 0x9e, 0x3a, 0x4d, 0x87,
                             0xa1, 0x0d, 0x63, 0xc4, 0x5e, 0x72, 0xf8, 0x19};
    const struct ggml_backend_i interface = {
        .get_name = get_name,
        .free = stream_free,
        .set_tensor_async = dev->shares_memory ? NULL : set_async,
        .get_tensor_async = dev->shares_memory ? NULL : get_async,
        .cpy_tensor_async = dev->shares_memory ? NULL : copy_async,
        .synchronize = synchronize,
        .graph_compute = graph_compute,
    };
    ggml_backend_t backend = calloc(1, sizeof *backend);
    stream *s = calloc(1, sizeof *s);
    cl_int status = CL_OUT_OF_HOST_MEMORY;
    if (backend && s)
        s->queue = clCreateCommandQueue(dev->context, dev->id, 0, &status);
    if (status != CL_SUCCESS) {
        GGML_LOG_ERROR("clattn: no queue on %s: %s\n", dev->name, clattn_status_string(status));
        free(s);
        free(backend);
        return NULL;
    }
    s->dev = dev;
    backend->guid = &guid;
    backend->iface = interface;
    backend->device = &dev->ggml;
    backend->context = s;
    return backend;
}
