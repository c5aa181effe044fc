/* queue_check.h: that a queue and a wait list can take a plan's commands. */
#ifndef CLATTN_QUEUE_CHECK_H
#define CLATTN_QUEUE_CHECK_H

#include "context.h"

clattn_status clattn__check_queue(const clattn_context *context, const char *where, cl_command_queue queue,
                                  cl_uint num_wait, const cl_event *wait);

#endif
