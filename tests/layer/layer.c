#include "layer.h"

#include <stdlib.h>
#include <string.h>

const cl_icd_dispatch *layer_below;

cl_int layer_answer(const void *fact, size_t fact_size, size_t size, void *value, size_t *size_ret)
{
    if (value && size < fact_size)
        return CL_INVALID_VALUE;
    if (value)
        memcpy(value, fact, fact_size);
    if (size_ret)
        *size_ret = fact_size;
    return CL_SUCCESS;
}

char *layer_join(cl_uint count, const char **strings, const size_t *lengths)
{
    size_t total = 0;
    for (cl_uint i = 0; i < count; i++)
        total += lengths && lengths[i] ? lengths[i] : strlen(strings[i]);
    char *text = malloc(total + 1), *at = text;
    for (cl_uint i = 0; text && i < count; i++) {
        const size_t length = lengths && lengths[i] ? lengths[i] : strlen(strings[i]);
        memcpy(at, strings[i], length);
        at += length;
    }
    if (text)
        *at = 0;
    return text;
}

cl_program CL_API_CALL layer_refuse_binary(cl_context context, cl_uint count, const cl_device_id *devices,
                                           const size_t *lengths, const unsigned char **binaries,
                                           cl_int *status, cl_int *errcode_ret)
{
    (void)context, (void)devices, (void)lengths, (void)binaries;
    for (cl_uint i = 0; status && i < count; i++)
        status[i] = CL_INVALID_BINARY;
    if (errcode_ret)
        *errcode_ret = CL_INVALID_BINARY;
    return NULL;
}

/* ---- As the loader asks for it ---- */

CL_API_ENTRY cl_int CL_API_CALL clGetLayerInfo(cl_layer_info what, size_t size, void *value, size_t *size_ret)
{
    const cl_layer_api_version version = CL_LAYER_API_VERSION_100;
    if (what == CL_LAYER_API_VERSION)
        return layer_answer(&version, sizeof version, size, value, size_ret);
    if (what == CL_LAYER_NAME)
        return layer_answer(layer_name, strlen(layer_name) + 1, size, value, size_ret);
    return CL_INVALID_VALUE;
}

CL_API_ENTRY cl_int CL_API_CALL clInitLayer(cl_uint num_entries, const cl_icd_dispatch *target,
                                            cl_uint *num_entries_ret, const cl_icd_dispatch **layer_ret)
{
    static cl_icd_dispatch table;
    const size_t bytes = num_entries * sizeof(void *);
    layer_below = target;
    memcpy(&table, target, bytes < sizeof table ? bytes : sizeof table);
    layer_replace(&table);
    *num_entries_ret = sizeof table / sizeof(void *);
    *layer_ret = &table;
    return CL_SUCCESS;
}
