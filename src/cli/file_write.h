/* file_write.h: a file that appears under its name only when it is complete. */
#ifndef CLATTN_FILE_WRITE_H
#define CLATTN_FILE_WRITE_H

#include <stddef.h>
#include <stdio.h>

typedef struct file_writer {
    FILE *stream;
    const char *path;
    char *temporary; /* NULL: written in place, for devices and pipes */
    int failed;
} file_writer;

/* `path` must outlive the writer. Returns 0 or -1. */
int file_write_open(file_writer *out, const char *path);

/* Errors are kept and told by the commit. */
void file_write_bytes(file_writer *writer, const void *bytes, size_t size);

/* Closes and renames; on failure nothing is left behind. Returns 0 or -1. */
int file_write_commit(file_writer *writer);

/* Gives up: nothing is left behind. */
void file_write_abandon(file_writer *writer);

#endif
