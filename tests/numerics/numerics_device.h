/* numerics_device.h: the device under test. */
#ifndef CLATTN_NUMERICS_DEVICE_H
#define CLATTN_NUMERICS_DEVICE_H

#include "numerics_data.h"

/* What a test program returns where there is nothing to test: CTest calls that "skipped". */
enum { EXIT_SKIPPED = 77 };

typedef struct numerics_device {
    cl_device_id id;
    cl_context cl;
    cl_command_queue queue;
    clattn_context *context;
    clattn_cache_hooks cache;
} numerics_device;

/* The first device of the first platform. `cache` is a directory for compiled programs or NULL.
 * Returns 0, EXIT_SKIPPED or 1, with a line on stderr. */
int device_open(numerics_device *out, const char *cache);
void device_close(numerics_device *device);

/* Whether the path runs on the device at all. */
int device_has_path(const numerics_device *device, int32_t path);

/* One call from upload to download: poisons the outputs of `data`, then fills them from the device.
 * Returns the first status that is not 0; the reason went to stderr. */
clattn_status device_run(numerics_device *device, call_data *data);

#endif
