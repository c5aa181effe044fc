/* device_call.h: a case on the device: buffers filled, plan made, outputs poisoned, fetched and
 * checked. */
#ifndef CLATTN_DEVICE_CALL_H
#define CLATTN_DEVICE_CALL_H

#include "attention_case.h"
#include "case_dense.h"
#include "cli_device.h"

typedef struct device_call {
    cli_device *device;      /* borrowed */
    const attention_case *c; /* borrowed */
    clattn_plan *plan;
    cl_mem buffer[TENSOR_COUNT];
    cl_mem workspace;
    clattn_plan *append_plan;                    /* NULL: nothing is appended */
    cl_mem rotated_q, kv_lens_out, status_words; /* each NULL where it takes no part */
    size_t buffer_bytes[TENSOR_COUNT];
    uint64_t device_bytes; /* all buffers together */
    double plan_seconds;   /* of clattn_plan_create */
    clattn_forward_args args;
    clattn_append_args append_args;
} device_call;

/* Makes plan and buffers and uploads the inputs. Inputs whose values are NULL are allocated and
 * left as they are (bench fills them on the device). Returns an exit status; after a failure
 * nothing is held. */
int device_call_open(device_call *out, cli_device *device, const attention_case *c);
void device_call_close(device_call *call);

/* Fills the output buffers with a pattern that no computation gives. */
int device_call_poison(device_call *call);

/* Enqueues the call. Does not wait. */
int device_call_enqueue(device_call *call);

/* Waits for everything enqueued; asynchronous failures are reported here. */
int device_call_finish(device_call *call);

/* Fetches outputs as contiguous arrays in the order of their shapes, to be freed; *lse is NULL without
 * --lse. Rows beyond an entry's q length are zeros. With `what_is_wrong`, also looks for poison left in valid
 * rows, and for writes to others and beside them; the text is empty if all is well. */
int device_call_fetch(device_call *call, unsigned char **o, float **lse, char *what_is_wrong,
                      size_t capacity);

/* Sets a tensor of a library call; left as it is where it takes no part. */
void device_call_set_tensor(clattn_tensor *out, const device_call *call, int tensor);

/* Fills a buffer with the padding of inputs. */
int device_call_fill(const device_call *call, cl_mem buffer, size_t bytes);

/* The plan's description, its first word, and its tiles. */
void device_call_describe(const device_call *call, char *text, size_t capacity);
void plan_text(const clattn_plan *plan, char *text, size_t capacity);
void plan_path_and_tiles(const char *description, char path[32], char tiles[96]);

#endif
