/* directory_cache.c: cache hooks over a directory, one file per program. */
#include "clattn.h"
#include "platform.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* "<directory>/<key>.clattn"; the caller frees it. */
static char *path_of(const char *directory, const char *key)
{
    const size_t capacity = strlen(directory) + strlen(key) + 16;
    char *path = malloc(capacity);
    if (path != NULL)
        snprintf(path, capacity, "%s/%s.clattn", directory, key);
    return path;
}

static size_t load(void *user, const char *key, void *data, size_t capacity)
{
    size_t size = 0;
    char *path = path_of(user, key);
    FILE *file = path != NULL ? fopen(path, "rb") : NULL;
    if (file != NULL) {
        if (fseek(file, 0, SEEK_END) == 0) {
            const long end = ftell(file);
            size = end > 0 ? (size_t)end : 0;
        }
        rewind(file);
        const size_t wanted = size < capacity ? size : capacity;
        if (wanted > 0 && fread(data, 1, wanted, file) != wanted)
            size = 0;
        fclose(file);
    }
    free(path);
    return size;
}

static void store(void *user, const char *key, const void *data, size_t size)
{
    char *path = path_of(user, key);
    if (path != NULL)
        clattn__write_file(path, data, size);
    free(path);
}

clattn_status clattn_directory_cache_open(clattn_cache_hooks *out, const char *path)
{
    if (out == NULL)
        return CLATTN_INVALID_ARGUMENT;
    memset(out, 0, sizeof *out);
    if (path == NULL || path[0] == '\0' || clattn__make_directory(path) != 0)
        return CLATTN_INVALID_ARGUMENT;
    char *directory = malloc(strlen(path) + 1);
    if (directory == NULL)
        return CLATTN_OUT_OF_HOST_MEMORY;
    strcpy(directory, path);
    out->user = directory;
    out->load = load;
    out->store = store;
    return CLATTN_SUCCESS;
}

void clattn_directory_cache_close(clattn_cache_hooks *hooks)
{
    if (hooks == NULL)
        return;
    free(hooks->user);
    memset(hooks, 0, sizeof *hooks);
}
