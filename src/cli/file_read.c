#include "file_read.h"

#include <stdio.h>
#include <stdlib.h>

int file_read(const char *path, char **out, size_t *bytes)
{
    enum { MOST = 4 << 20 };
    *out = NULL;
    *bytes = 0;
    FILE *stream = fopen(path, "rb");
    if (!stream)
        return -1;
    char *data = malloc(MOST);
    const size_t size = data ? fread(data, 1, MOST, stream) : 0;
    const int failed = !data || ferror(stream) || size == MOST;
    fclose(stream);
    if (failed) {
        free(data);
        return -1;
    }
    *out = data;
    *bytes = size;
    return 0;
}
