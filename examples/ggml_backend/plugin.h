/* plugin.h: what the files of the plug-in share.
 *
 * ggml's scheduler gives each backend the operations that it says it supports and that touch its buffers.
 * This one takes attention (FLASH_ATTN_EXT) and the writing of new rows into the cache (SET_ROWS, CPY), so
 * that K and V stay where attention reads them; all else is left to ggml's CPU backend.
 *
 *     registry.c    what ggml loads: the list of devices
 *     device.c      an OpenCL device as ggml sees one
 *     memory.c      its buffers: shared with the host where that is possible
 *     stream.c      runs a graph's operations
 *     attention.c   FLASH_ATTN_EXT in the library's terms
 *     rows.c        SET_ROWS and CPY in the library's terms
 *     plans.c       plans by description, made once
 *     tensor.c      types, addresses and strides
 */
#ifndef GGML_CLATTN_PLUGIN_H
#define GGML_CLATTN_PLUGIN_H

#include <clattn.h>

#include "ggml-backend-impl.h"
#include "ggml-impl.h"

#include <stdbool.h>
#include <stdint.h>

typedef struct plan_entry plan_entry;

typedef struct device {
    struct ggml_backend_device ggml;
    struct ggml_backend_buffer_type buffers;
    struct ggml_backend_buffer_type pinned; /* host memory that transfers are fast from */
    char name[16];
    char description[256];
    cl_device_id id;
    cl_context context;
    cl_command_queue transfers; /* of buffers; each stream has a queue of its own for its operations */
    clattn_context *clattn;
    /* The device and the host see each other's writes without a copy: buffers are fine-grained shared virtual
     * memory, ggml's CPU backend works in them too. */
    bool shares_memory;
    bool is_gpu;
    size_t alignment, largest_buffer, memory;
    plan_entry *plans;
} device;

/* What ggml calls a backend: one user's queue of operations. */
typedef struct stream {
    device *dev;
    cl_command_queue queue;
    cl_mem workspace;
    size_t workspace_bytes;
    cl_event uploaded; /* of the last transfer from memory that ggml may reuse once the graph is under way */
    /* For CLATTN_GGML_STATS. */
    int64_t attention_calls, row_calls, host_us, plans_made, plans_us;
} stream;

/* A device that the library does not serve gives false. */
bool device_open(device *out, int number, cl_device_id id, const clattn_cache_hooks *cache);

/* ---- Buffers ---- */

void memory_init(device *dev);

/* The buffer that a tensor, or what it is a view of, lies in. */
ggml_backend_buffer_t buffer_of(const struct ggml_tensor *tensor);

/* Where a tensor of one of this device's buffers lies. */
clattn_tensor memory_of(const struct ggml_tensor *tensor);

/* The cl_mem behind a buffer of device memory; NULL for other buffers. */
cl_mem memory_buffer(ggml_backend_buffer_t buffer);
size_t memory_offset(const struct ggml_tensor *tensor);

/* ---- Tensors ---- */

int32_t dtype_of(enum ggml_type type); /* CLATTN_DTYPE_DEFAULT: the library has no such type */

/* That rows are contiguous and strides whole elements (blocks); otherwise the reason why not. */
const char *tensor_fault(const struct ggml_tensor *tensor);
int64_t tensor_stride(const struct ggml_tensor *tensor, int axis); /* in elements (blocks) */

/* ---- Plans ---- */

/* The verdict of clattn_plan_supported, remembered; NULL: supported, otherwise why not. */
const char *plan_fault(device *dev, const clattn_plan_desc *desc);

/* The plan, made at its first use; NULL: it could not be made, which has been logged. */
clattn_plan *plan_of(stream *s, const clattn_plan_desc *desc);

/* [heads] float32 on the device, of ALiBi with this largest bias; made once. handle NULL: out of memory. */
clattn_tensor plan_alibi_slopes(device *dev, int32_t heads, float max_bias);

/* ---- Operations ---- */

/* Why the operation is not supported; NULL: it is. */
const char *attention_fault(device *dev, const struct ggml_tensor *op);
const char *set_rows_fault(device *dev, const struct ggml_tensor *op);
const char *copy_fault(device *dev, const struct ggml_tensor *op);

/* Operations that only say how memory is looked at. */
bool is_view(enum ggml_op op);

ggml_backend_t stream_create(device *dev);

clattn_status attention_run(stream *s, const struct ggml_tensor *op);
clattn_status set_rows_run(stream *s, const struct ggml_tensor *op);
clattn_status copy_run(stream *s, const struct ggml_tensor *op);

/* Whether an OpenCL call succeeded; logged if not. */
bool opencl_check(cl_int status, const char *function);

/* Whether an environment variable is set to something other than 0. */
bool is_asked_for(const char *variable);

#endif
