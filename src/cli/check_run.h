/* check_run.h: a case of `clattn check` on the device, and whether its result is right. */
#ifndef CLATTN_CHECK_RUN_H
#define CLATTN_CHECK_RUN_H

#include "check_case.h"
#include "cli_device.h"

/* Runs `repeat` times, which have to give the same bits, and judges. `reason` is empty if the case passed;
 * `share` is error / allowed. Only what makes it pointless to go on (memory of the host) is an exit status.
 */
int check_run(cli_device *device, check_case *check, int64_t repeat, char *reason, size_t capacity,
              double *share);

#endif
