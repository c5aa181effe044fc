/* file_read.h: a whole file in memory. */
#ifndef CLATTN_FILE_READ_H
#define CLATTN_FILE_READ_H

#include <stddef.h>

/* *out is to be freed. Files of more than a few megabytes are refused. Returns 0 or -1. */
int file_read(const char *path, char **out, size_t *bytes);

#endif
