/* device.c: an OpenCL device as ggml sees one. */
#include "plugin.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

bool opencl_check(cl_int status, const char *function)
{
    if (status != CL_SUCCESS)
        GGML_LOG_ERROR("clattn: %s: %s\n", function, clattn_status_string(status));
    return status == CL_SUCCESS;
}

bool is_asked_for(const char *variable)
{
    const char *value = getenv(variable);
    return value && value[0] != '\0' && strcmp(value, "0") != 0;
}

/* ---- What ggml asks ---- */

static const char *get_name(ggml_backend_dev_t ggml) { return ((device *)ggml->context)->name; }

static const char *get_description(ggml_backend_dev_t ggml) { return ((device *)ggml->context)->description; }

/* OpenCL does not tell how much is free. */
static void get_memory(ggml_backend_dev_t ggml, size_t *free, size_t *total)
{
    *free = *total = ((device *)ggml->context)->memory;
}

/* ggml uses an integrated GPU if there is no other; a CPU is taken like one, since it is asked for by loading
 * this. */
static enum ggml_backend_dev_type get_type(ggml_backend_dev_t ggml)
{
    const device *dev = ggml->context;
    return dev->is_gpu && !dev->shares_memory ? GGML_BACKEND_DEVICE_TYPE_GPU : GGML_BACKEND_DEVICE_TYPE_IGPU;
}

static void get_props(ggml_backend_dev_t ggml, struct ggml_backend_dev_props *props)
{
    const device *dev = ggml->context;
    memset(props, 0, sizeof *props);
    props->name = dev->name;
    props->description = dev->description;
    props->type = get_type(ggml);
    props->memory_free = props->memory_total = dev->memory;
    props->caps.async = !dev->shares_memory;
    props->caps.host_buffer = !dev->shares_memory;
}

static ggml_backend_t init_backend(ggml_backend_dev_t ggml, const char *params)
{
    (void)params;
    return stream_create(ggml->context);
}

static ggml_backend_buffer_type_t get_buffer_type(ggml_backend_dev_t ggml)
{
    return &((device *)ggml->context)->buffers;
}

static ggml_backend_buffer_type_t get_host_buffer_type(ggml_backend_dev_t ggml)
{
    device *dev = ggml->context;
    return dev->shares_memory ? NULL : &dev->pinned;
}

static bool supports_op(ggml_backend_dev_t ggml, const struct ggml_tensor *op)
{
    device *dev = ggml->context;
    const char *fault;
    if (is_view(op->op))
        return true;
    switch (op->op) {
    case GGML_OP_FLASH_ATTN_EXT:
        fault = attention_fault(dev, op);
        break;
    case GGML_OP_SET_ROWS:
        fault = set_rows_fault(dev, op);
        break;
    case GGML_OP_CPY:
        fault = copy_fault(dev, op);
        break;
    default:
        return false;
    }
    if (fault && is_asked_for("CLATTN_GGML_EXPLAIN"))
        fprintf(stderr, "clattn: %s not supported: %s\n", ggml_op_name(op->op), fault);
    return fault == NULL;
}

static bool supports_buft(ggml_backend_dev_t ggml, ggml_backend_buffer_type_t type)
{
    return type == &((device *)ggml->context)->buffers;
}

static const struct ggml_backend_device_i interface = {
    .get_name = get_name,
    .get_description = get_description,
    .get_memory = get_memory,
    .get_type = get_type,
    .get_props = get_props,
    .init_backend = init_backend,
    .get_buffer_type = get_buffer_type,
    .get_host_buffer_type = get_host_buffer_type,
    .supports_op = supports_op,
    .supports_buft = supports_buft,
};

/* ---- Opening ---- */

static void on_message(void *user, int32_t level, const char *message)
{
    (void)user;
    if (level <= CLATTN_LOG_ERROR)
        GGML_LOG_ERROR("clattn: %s\n", message);
    else if (level == CLATTN_LOG_WARNING)
        GGML_LOG_WARN("clattn: %s\n", message);
    else
        GGML_LOG_DEBUG("clattn: %s\n", message);
}

static bool query(cl_device_id id, cl_device_info what, void *out, size_t size)
{
    return clGetDeviceInfo(id, what, size, out, NULL) == CL_SUCCESS;
}

/* Fine-grained buffers, and the same memory behind them. CLATTN_GGML_MEMORY=device does without. */
static bool shares_memory(cl_device_id id)
{
    const char *asked = getenv("CLATTN_GGML_MEMORY");
    cl_device_svm_capabilities svm = 0;
    cl_bool unified = CL_FALSE;
    if (asked && strcmp(asked, "device") == 0)
        return false;
    return query(id, CL_DEVICE_SVM_CAPABILITIES, &svm, sizeof svm) &&
           (svm & CL_DEVICE_SVM_FINE_GRAIN_BUFFER) != 0 &&
           query(id, CL_DEVICE_HOST_UNIFIED_MEMORY, &unified, sizeof unified) && unified;
}

static bool read_facts(device *dev)
{
    cl_ulong memory = 0, largest = 0;
    cl_uint align_bits = 0;
    cl_device_type type = 0;
    cl_bool is_little_endian = CL_FALSE;
    const bool known = query(dev->id, CL_DEVICE_NAME, dev->description, sizeof dev->description) &&
                       query(dev->id, CL_DEVICE_GLOBAL_MEM_SIZE, &memory, sizeof memory) &&
                       query(dev->id, CL_DEVICE_MAX_MEM_ALLOC_SIZE, &largest, sizeof largest) &&
                       query(dev->id, CL_DEVICE_MEM_BASE_ADDR_ALIGN, &align_bits, sizeof align_bits) &&
                       query(dev->id, CL_DEVICE_TYPE, &type, sizeof type) &&
                       query(dev->id, CL_DEVICE_ENDIAN_LITTLE, &is_little_endian, sizeof is_little_endian);
    dev->memory = (size_t)memory;
    dev->largest_buffer = (size_t)largest;
    dev->alignment = align_bits / 8 > 32 ? align_bits / 8 : 32;
    dev->is_gpu = (type & CL_DEVICE_TYPE_GPU) != 0;
    dev->shares_memory = shares_memory(dev->id);
    return known && is_little_endian;
}

bool device_open(device *dev, int number, cl_device_id id, const clattn_cache_hooks *cache)
{
    memset(dev, 0, sizeof *dev);
    dev->id = id;
    dev->ggml.iface = interface;
    dev->ggml.context = dev;
    snprintf(dev->name, sizeof dev->name, "CLATTN%d", number);
    if (!read_facts(dev))
        return false;
    cl_int status;
    dev->context = clCreateContext(NULL, 1, &id, NULL, NULL, &status);
    if (status == CL_SUCCESS)
        dev->transfers = clCreateCommandQueue(dev->context, id, 0, &status);
    if (status == CL_SUCCESS) {
        clattn_context_options options = CLATTN_CONTEXT_OPTIONS_INIT;
        options.log = on_message;
        options.log_user = dev;
        options.log_level = CLATTN_LOG_INFO;
        options.cache = *cache;
        status = clattn_context_create(&dev->clattn, dev->context, id, &options);
    }
    if (status != CLATTN_SUCCESS) {
        GGML_LOG_WARN("clattn: %s is passed over: %s\n", dev->description, clattn_status_string(status));
        if (dev->transfers)
            clReleaseCommandQueue(dev->transfers);
        if (dev->context)
            clReleaseContext(dev->context);
        return false;
    }
    memory_init(dev);
    return true;
}
