/* memory.c: the buffers of a device.
 *
 * Where host and device share memory finely (PoCL, integrated GPUs), a buffer is shared virtual memory:
 * ggml's CPU backend computes in it and attention reads it where it is. Elsewhere it is device memory,
 * written and read by transfers, which are fastest from and to pinned host memory; ggml takes its host
 * buffers from there. */
#include "plugin.h"

#include <stdlib.h>

static device *device_of_type(ggml_backend_buffer_type_t type) { return type->device->context; }

/* ---- Shared virtual memory: ggml's own functions for host memory do, but for its end ---- */

static void shared_free(ggml_backend_buffer_t buffer)
{
    const device *dev = device_of_type(buffer->buft);
    clSVMFree(dev->context, buffer->context);
}

static ggml_backend_buffer_t shared_alloc(ggml_backend_buffer_type_t type, size_t size)
{
    const device *dev = device_of_type(type);
    void *memory = clSVMAlloc(dev->context, CL_MEM_READ_WRITE | CL_MEM_SVM_FINE_GRAIN_BUFFER, size, 0);
    if (!memory) {
        GGML_LOG_ERROR("clattn: clSVMAlloc of %zu bytes on %s failed\n", size, dev->name);
        return NULL;
    }
    ggml_backend_buffer_t buffer = ggml_backend_cpu_buffer_from_ptr(memory, size);
    buffer->buft = type;
    buffer->iface.free_buffer = shared_free;
    return buffer;
}

/* ---- Device memory ---- */

/* Addresses of tensors are counted from here on. */
#define BASE ((char *)0x1000)

cl_mem memory_buffer(ggml_backend_buffer_t buffer)
{
    return buffer->iface.get_base(buffer) == BASE ? buffer->context : NULL;
}

size_t memory_offset(const struct ggml_tensor *tensor) { return (size_t)((char *)tensor->data - BASE); }

ggml_backend_buffer_t buffer_of(const struct ggml_tensor *tensor)
{
    return tensor->view_src ? tensor->view_src->buffer : tensor->buffer;
}

clattn_tensor memory_of(const struct ggml_tensor *tensor)
{
    clattn_tensor out = CLATTN_TENSOR_INIT;
    const cl_mem buffer = memory_buffer(buffer_of(tensor));
    if (buffer) {
        out.handle = buffer;
        out.byte_offset = memory_offset(tensor);
    } else {
        out.mem_kind = CLATTN_MEM_SVM;
        out.handle = tensor->data;
    }
    return out;
}

static void device_free(ggml_backend_buffer_t buffer) { clReleaseMemObject(buffer->context); }

static void *device_base(ggml_backend_buffer_t buffer)
{
    (void)buffer;
    return BASE;
}

static void fill(ggml_backend_buffer_t buffer, uint8_t value, size_t offset, size_t size)
{
    const device *dev = device_of_type(buffer->buft);
    if (size > 0 && opencl_check(clEnqueueFillBuffer(dev->transfers, buffer->context, &value, 1, offset, size,
                                                     0, NULL, NULL),
                                 "clEnqueueFillBuffer"))
        opencl_check(clFinish(dev->transfers), "clFinish");
}

static void device_clear(ggml_backend_buffer_t buffer, uint8_t value)
{
    fill(buffer, value, 0, buffer->size);
}

static void device_memset(ggml_backend_buffer_t buffer, struct ggml_tensor *tensor, uint8_t value,
                          size_t offset, size_t size)
{
    fill(buffer, value, memory_offset(tensor) + offset, size);
}

static void device_set(ggml_backend_buffer_t buffer, struct ggml_tensor *tensor, const void *data,
                       size_t offset, size_t size)
{
    const device *dev = device_of_type(buffer->buft);
    opencl_check(clEnqueueWriteBuffer(dev->transfers, buffer->context, CL_TRUE,
                                      memory_offset(tensor) + offset, size, data, 0, NULL, NULL),
                 "clEnqueueWriteBuffer");
}

static void device_get(ggml_backend_buffer_t buffer, const struct ggml_tensor *tensor, void *data,
                       size_t offset, size_t size)
{
    const device *dev = device_of_type(buffer->buft);
    opencl_check(clEnqueueReadBuffer(dev->transfers, buffer->context, CL_TRUE, memory_offset(tensor) + offset,
                                     size, data, 0, NULL, NULL),
                 "clEnqueueReadBuffer");
}

/* Within the device; ggml goes through the host where this returns false. */
static bool device_copy(ggml_backend_buffer_t buffer, const struct ggml_tensor *from, struct ggml_tensor *to)
{
    const device *dev = device_of_type(buffer->buft);
    const ggml_backend_buffer_t source = buffer_of(from);
    if (source->buft != buffer->buft)
        return false;
    return opencl_check(clEnqueueCopyBuffer(dev->transfers, source->context, buffer->context,
                                            memory_offset(from), memory_offset(to), ggml_nbytes(from), 0,
                                            NULL, NULL),
                        "clEnqueueCopyBuffer") &&
           opencl_check(clFinish(dev->transfers), "clFinish");
}

static const struct ggml_backend_buffer_i device_buffer = {
    .free_buffer = device_free,
    .get_base = device_base,
    .memset_tensor = device_memset,
    .set_tensor = device_set,
    .get_tensor = device_get,
    .cpy_tensor = device_copy,
    .clear = device_clear,
};

static ggml_backend_buffer_t device_alloc(ggml_backend_buffer_type_t type, size_t size)
{
    const device *dev = device_of_type(type);
    cl_int status;
    cl_mem memory = clCreateBuffer(dev->context, CL_MEM_READ_WRITE, size, NULL, &status);
    if (status != CL_SUCCESS) {
        GGML_LOG_ERROR("clattn: clCreateBuffer of %zu bytes on %s: %s\n", size, dev->name,
                       clattn_status_string(status));
        return NULL;
    }
    return ggml_backend_buffer_init(type, device_buffer, memory, size);
}

/* ---- Pinned host memory ---- */

typedef struct pinned_memory {
    cl_mem buffer;
    void *mapped;
} pinned_memory;

static void *pinned_base(ggml_backend_buffer_t buffer) { return ((pinned_memory *)buffer->context)->mapped; }

static void pinned_clear(ggml_backend_buffer_t buffer, uint8_t value)
{
    memset(pinned_base(buffer), value, buffer->size);
}

static void pinned_free(ggml_backend_buffer_t buffer)
{
    const device *dev = device_of_type(buffer->buft);
    pinned_memory *memory = buffer->context;
    opencl_check(clEnqueueUnmapMemObject(dev->transfers, memory->buffer, memory->mapped, 0, NULL, NULL),
                 "clEnqueueUnmapMemObject");
    clReleaseMemObject(memory->buffer);
    free(memory);
}

static ggml_backend_buffer_t pinned_alloc(ggml_backend_buffer_type_t type, size_t size)
{
    const device *dev = device_of_type(type);
    pinned_memory *memory = calloc(1, sizeof *memory);
    cl_int status = CL_OUT_OF_HOST_MEMORY;
    if (memory)
        memory->buffer =
            clCreateBuffer(dev->context, CL_MEM_READ_WRITE | CL_MEM_ALLOC_HOST_PTR, size, NULL, &status);
    if (status == CL_SUCCESS)
        memory->mapped = clEnqueueMapBuffer(dev->transfers, memory->buffer, CL_TRUE,
                                            CL_MAP_READ | CL_MAP_WRITE, 0, size, 0, NULL, NULL, &status);
    if (status != CL_SUCCESS) { /* any host memory will do */
        GGML_LOG_WARN("clattn: no pinned memory of %zu bytes on %s (%s), transfers will be slower\n", size,
                      dev->name, clattn_status_string(status));
        if (memory && memory->buffer)
            clReleaseMemObject(memory->buffer);
        free(memory);
        return ggml_backend_buft_alloc_buffer(ggml_backend_cpu_buffer_type(), size);
    }
    ggml_backend_buffer_t buffer = ggml_backend_cpu_buffer_from_ptr(memory->mapped, size);
    buffer->buft = type;
    buffer->context = memory;
    buffer->iface.free_buffer = pinned_free;
    buffer->iface.get_base = pinned_base;
    buffer->iface.clear = pinned_clear;
    return buffer;
}

/* ---- Types ---- */

static const char *buffers_name(ggml_backend_buffer_type_t type) { return device_of_type(type)->name; }

static const char *pinned_name(ggml_backend_buffer_type_t type)
{
    (void)type;
    return "CLATTN_Host";
}

static size_t alignment(ggml_backend_buffer_type_t type) { return device_of_type(type)->alignment; }

static size_t largest(ggml_backend_buffer_type_t type) { return device_of_type(type)->largest_buffer; }

static bool is_host(ggml_backend_buffer_type_t type)
{
    (void)type;
    return true;
}

void memory_init(device *dev)
{
    const struct ggml_backend_buffer_type_i buffers = {.get_name = buffers_name,
                                                       .alloc_buffer =
                                                           dev->shares_memory ? shared_alloc : device_alloc,
                                                       .get_alignment = alignment,
                                                       .get_max_size = largest,
                                                       .is_host = dev->shares_memory ? is_host : NULL};
    const struct ggml_backend_buffer_type_i pinned = {.get_name = pinned_name,
                                                      .alloc_buffer = pinned_alloc,
                                                      .get_alignment = alignment,
                                                      .get_max_size = largest,
                                                      .is_host = is_host};
    dev->buffers.iface = buffers;
    dev->buffers.device = &dev->ggml;
    dev->pinned.iface = pinned;
    dev->pinned.device = &dev->ggml;
}
