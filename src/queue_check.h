/* queue_check.h: that a queue or a command buffer, and a wait list, can take a plan's commands. */
#ifndef CLATTN_QUEUE_CHECK_H
#define CLATTN_QUEUE_CHECK_H

#include "context.h"

/* *keeps_order: whether the queue runs its commands one after the other. */
clattn_status clattn__check_queue(const clattn_context *context, const char *where, cl_command_queue queue,
                                  cl_uint num_wait, const cl_event *wait, int *keeps_order);

/* Likewise a command buffer, made for a queue, and sync points. */
clattn_status clattn__check_command_buffer(const clattn_context *context, const char *where,
                                           const void *command_buffer, cl_command_queue queue,
                                           cl_uint num_sync, const cl_uint *sync_wait);

#endif
