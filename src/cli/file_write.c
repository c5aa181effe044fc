/* file_write.c: write beside the target, then rename. */
#include "file_write.h"

#include "cli.h"
#include "cli_platform.h"

#include <stdlib.h>
#include <string.h>

int file_write_open(file_writer *out, const char *path)
{
    memset(out, 0, sizeof *out);
    out->path = path;
    if (!platform_may_replace(path)) {
        out->stream = fopen(path, "wb");
        return out->stream ? 0 : -1;
    }
    const size_t capacity = strlen(path) + 32;
    out->temporary = malloc(capacity);
    if (!out->temporary)
        return -1;
    cli_format(out->temporary, capacity, "%s.tmp%lu", path, platform_process_id());
    remove(out->temporary); /* left by a process of the same number that was killed */
    out->stream = fopen(out->temporary, "wbx");
    if (out->stream)
        return 0;
    free(out->temporary);
    out->temporary = NULL;
    return -1;
}

void file_write_bytes(file_writer *writer, const void *bytes, size_t size)
{
    if (size > 0 && !writer->failed && fwrite(bytes, 1, size, writer->stream) != size)
        writer->failed = 1;
}

static int finish(file_writer *writer, int keep)
{
    int status = fclose(writer->stream) == 0 && !writer->failed ? 0 : -1;
    if (writer->temporary) {
        if (status == 0 && keep)
            status = platform_replace_file(writer->temporary, writer->path);
        if (status != 0 || !keep)
            remove(writer->temporary);
        free(writer->temporary);
    }
    memset(writer, 0, sizeof *writer);
    return status;
}

int file_write_commit(file_writer *writer) { return finish(writer, 1); }

void file_write_abandon(file_writer *writer) { finish(writer, 0); }
