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
} numerics_device;

/* The first device of the first platform. Returns 0, EXIT_SKIPPED or 1, with a line on stderr. */
int device_open(numerics_device *out);
void device_close(numerics_device *device);

/* Whether the path runs on the device at all. */
int device_has_path(const numerics_device *device, int32_t path);

/* One call from upload to download: poisons the outputs of `data`, then fills them from the device.
 * Returns the first status that is not 0; the reason went to stderr. */
clattn_status device_run(numerics_device *device, call_data *data);

/* The pieces of that, for tests whose tensors lie otherwise. */

/* A buffer for each one of `data`. Those made before an error are there, too. */
cl_int device_make_buffers(cl_context context, const call_data *data, cl_mem buffers[TENSORS]);

/* The call's arguments, but for the workspace. */
clattn_forward_args device_arguments(const call_data *data, const cl_mem buffers[TENSORS]);

/* A workspace of just the size asked for at GUARD_BYTES of `out`, between guard zones, all poison. None is
 * made where none is needed. */
clattn_status device_make_workspace(numerics_device *device, const clattn_plan *plan,
                                    const clattn_forward_args *args, byte_buffer *host, cl_mem *out);

/* Reads it back; sets *overrun if a guard zone was written to. */
clattn_status device_check_workspace(numerics_device *device, cl_mem buffer, byte_buffer *host, int *overrun);

cl_int device_download(numerics_device *device, cl_mem from, byte_buffer *to);

#endif
