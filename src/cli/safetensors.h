/* safetensors.h: reads and writes the safetensors format. A file that is read is treated as
 * hostile: nothing it says is used before it has been checked against the size of the file. */
#ifndef CLATTN_SAFETENSORS_H
#define CLATTN_SAFETENSORS_H

#include <stddef.h>
#include <stdint.h>

#define SAFETENSORS_MAX_RANK 8

typedef struct safetensors_tensor {
    const char *name;  /* UTF-8 */
    const char *dtype; /* as the format spells it: "F32", "BF16", ... */
    int rank;
    int64_t shape[SAFETENSORS_MAX_RANK];
    const void *data; /* contiguous, little-endian, at any alignment */
    size_t bytes;
} safetensors_tensor;

typedef struct safetensors_file {
    safetensors_tensor *tensor; /* in the order of the data */
    size_t count;
    void *header;        /* owns the names and the metadata */
    unsigned char *data; /* owns what tensor[].data points to */
} safetensors_file;

/* Returns 0, or -1 with one line in `error`: the file, the tensor, what was expected. */
int safetensors_read(safetensors_file *out, const char *path, char *error, size_t capacity);
void safetensors_close(safetensors_file *file);

/* NULL if there is none. */
const safetensors_tensor *safetensors_find(const safetensors_file *file, const char *name);
const char *safetensors_metadata(const safetensors_file *file, const char *key);

typedef struct safetensors_pair {
    const char *key, *value;
} safetensors_pair;

/* Writes a whole file. It appears under its name only when it is complete. Returns 0, or -1 with
 * one line in `error`. */
int safetensors_write(const char *path, const safetensors_tensor *tensors, size_t count,
                      const safetensors_pair *metadata, size_t metadata_count, char *error, size_t capacity);

/* Whether a text can stand in a file's header. */
int safetensors_is_utf8(const char *text);

/* "[1,8,128,64]" */
void safetensors_shape_text(char *out, size_t capacity, const int64_t *shape, int rank);

#endif
