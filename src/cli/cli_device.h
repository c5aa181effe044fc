/* cli_device.h: which device, and everything opened on it. */
#ifndef CLATTN_CLI_DEVICE_H
#define CLATTN_CLI_DEVICE_H

#include "clattn.h"
#include "options.h"

typedef struct device_entry {
    cl_platform_id platform;
    cl_device_id device;
    char platform_name[128];
    char name[256];
    cl_device_type type;
} device_entry;

/* Every device of every platform, in the loader's order; to be freed. An empty list is no error. */
device_entry *device_list(int *count);

/* The entry that `selection` means (NULL: CLATTN_DEVICE, else the first GPU, else the first).
 * Prints why not and returns -1 if there is none. */
int device_select(const device_entry *list, int count, const char *selection);

typedef struct cli_device {
    device_entry entry;
    int index;
    char version[128];
    char driver[128];
    uint64_t global_bytes, max_alloc_bytes, local_bytes;
    size_t max_work_group;
    cl_uint compute_units, clock_mhz, vector_width;
    cl_context context;
    cl_command_queue queue;
    uint64_t max_local_bytes; /* --local-memory; 0: no limit */
    char *tuning;             /* owned; NULL: none */
    size_t tuning_bytes;
    clattn_context *clattn;
    clattn_cache_hooks cache; /* zero: none */
    int verbose;
    char last_error[1024]; /* the first line of the library's last message of level error */
    char text_error[512];  /* what a compiler said first about score_mod or mask_mod */
} cli_device;

/* Opens context, queue, cache and library context. Returns an exit status; after a failure nothing
 * is held. `out` must stay where it is: the log callback keeps its address. */
int cli_device_open(cli_device *out, const common_options *options);

/* Opens the library's context anew, with a tuning text (NULL and 0: none), which becomes the device's. Old
 * plans must be gone. */
int cli_device_open_library(cli_device *device, char *tuning, size_t tuning_bytes);
void cli_device_close(cli_device *device);

/* Whether plans may be for this path (CLATTN_PATH_*). */
int cli_device_has_path(const cli_device *device, int32_t path);

/* Reports a failed library call with the library's own reason. Exit status: bad input or a failed
 * run. */
int cli_library_fail(const cli_device *device, clattn_status status, const char *what);

/* Reports a failed OpenCL call. */
int cli_opencl_fail(cl_int status, const char *what);

const char *device_type_name(cl_device_type type);

#endif
