/* context.h: the caller's cl_context and one device: device facts, compiled programs, cache hooks. */
#ifndef CLATTN_CONTEXT_H
#define CLATTN_CONTEXT_H

#include "cl_api.h"
#include "device.h"
#include "memory.h"
#include "platform.h"
#include "report.h"

struct clattn__program;

struct clattn_context {
    clattn__cl cl;
    clattn_allocator allocator;
    clattn__log log;
    clattn_cache_hooks cache;
    cl_context cl_context;  /* retained */
    cl_device_id device_id; /* retained */
    clattn__device device;
    uint64_t max_work_per_launch; /* 0: no limit */
    char *tuning;                 /* owned; a text that is for this device (tuning.c), or NULL */
    cl_command_queue warm_queue;  /* owned; for the warm-up launches of plan creation */
    clattn__mutex mutex;          /* guards what follows */
    clattn__condition program_settled;
    struct clattn__program *programs; /* owned; kept until the context goes */
    clattn_builds builds;
    uint64_t tickets; /* the last one given */
    int references;   /* the caller's one, and one for each plan */
};

void clattn__context_retain(clattn_context *context);

/* A number from 1 to 2^40 - 1 that no other call has, of this context or of others: they begin anywhere. */
uint64_t clattn__context_ticket(clattn_context *context);

#endif
