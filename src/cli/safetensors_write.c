/* safetensors_write.c: writing, into a temporary file beside the target that is then renamed. */
#include "safetensors.h"

#include "cli.h"
#include "cli_platform.h"
#include "file_write.h"

#include <cjson/cJSON.h>

#include <stdlib.h>
#include <string.h>

static cJSON *tensor_entry(const safetensors_tensor *t, uint64_t begin)
{
    cJSON *entry = cJSON_CreateObject();
    cJSON_AddStringToObject(entry, "dtype", t->dtype);
    cJSON *shape = cJSON_AddArrayToObject(entry, "shape");
    for (int i = 0; i < t->rank; i++)
        cJSON_AddItemToArray(shape, cJSON_CreateNumber((double)t->shape[i]));
    cJSON *offsets = cJSON_AddArrayToObject(entry, "data_offsets");
    cJSON_AddItemToArray(offsets, cJSON_CreateNumber((double)begin));
    cJSON_AddItemToArray(offsets, cJSON_CreateNumber((double)(begin + t->bytes)));
    return entry;
}

/* The header's text, to be freed by cJSON_free; NULL without memory. */
static char *make_header(const safetensors_tensor *tensors, size_t count, const safetensors_pair *metadata,
                         size_t metadata_count)
{
    cJSON *header = cJSON_CreateObject();
    if (metadata_count > 0) {
        cJSON *texts = cJSON_AddObjectToObject(header, "__metadata__");
        for (size_t i = 0; i < metadata_count; i++)
            cJSON_AddStringToObject(texts, metadata[i].key, metadata[i].value);
    }
    uint64_t begin = 0;
    for (size_t i = 0; i < count; i++) {
        cJSON_AddItemToObject(header, tensors[i].name, tensor_entry(&tensors[i], begin));
        begin += tensors[i].bytes;
    }
    char *text = cJSON_PrintUnformatted(header);
    cJSON_Delete(header);
    return text;
}

int safetensors_write(const char *path, const safetensors_tensor *tensors, size_t count,
                      const safetensors_pair *metadata, size_t metadata_count, char *error, size_t capacity)
{
    char *header = make_header(tensors, count, metadata, metadata_count);
    if (!header) {
        cli_format(error, capacity, "%.200s: not enough memory for its header", path);
        return -1;
    }
    const size_t length = strlen(header);
    const size_t padding = (8 - length % 8) % 8; /* so that the data is aligned for those who map it */
    unsigned char prefix[8];
    for (int i = 0; i < 8; i++)
        prefix[i] = (unsigned char)((uint64_t)(length + padding) >> (8 * i));

    file_writer writer;
    int status = file_write_open(&writer, path);
    if (status == 0) {
        file_write_bytes(&writer, prefix, sizeof prefix);
        file_write_bytes(&writer, header, length);
        file_write_bytes(&writer, "        ", padding);
        for (size_t i = 0; i < count; i++)
            file_write_bytes(&writer, tensors[i].data, tensors[i].bytes);
        status = file_write_commit(&writer);
    }
    if (status != 0)
        cli_format(error, capacity, "%.200s: cannot be written", path);
    cJSON_free(header);
    return status;
}
