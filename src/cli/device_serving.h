/* device_serving.h: what surrounds the attention of a case on the device: floats stored as caches before it,
 * tokens appended and rotated by it, and what the device found wrong. */
#ifndef CLATTN_DEVICE_SERVING_H
#define CLATTN_DEVICE_SERVING_H

#include "device_call.h"

/* Once the call's buffers are there and filled: plans and buffers of these parts, the conversions done, and
 * the call's arguments completed. Returns an exit status; device_call_close lets go what is held. */
int device_serving_open(device_call *call);
void device_serving_close(device_call *call);

/* Enqueues append and attention, or attention alone. */
int device_serving_enqueue(device_call *call);

/* What the device found wrong with lengths, rows, pages or new tokens, as one line; empty: nothing. */
int device_serving_trouble(device_call *call, char *text, size_t capacity);

/* What the call left in q, k, v and their scales where it writes into them, as in a file. With `wrong`, also
 * looks for writes beside them; the text is empty if all is well. To be released on success. */
int device_serving_fetch(device_call *call, case_state *out, char *wrong, size_t capacity);

#endif
