/* serving_run.h: serving calls on the device. */
#ifndef CLATTN_SERVING_RUN_H
#define CLATTN_SERVING_RUN_H

#include "numerics_device.h"
#include "numerics_verify.h"
#include "serving_data.h"

/* One call from upload to download, append included where it takes part; the reference's call then has the
 * outputs. *fault names what was written that had to be left alone, or appended wrongly; otherwise NULL.
 * Returns the first status that is not 0; the reason went to stderr. */
clattn_status serving_run(numerics_device *device, serving_data *data, const char **fault);

/* Without append, and without looking at what came: the stored outputs and status words are as downloaded. */
clattn_status serving_run_only(numerics_device *device, serving_data *data);

/* Runs and verifies, status words included. */
void serving_verify(verdict *out, numerics_device *device, serving_data *data);

#endif
