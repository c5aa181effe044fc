/* device.h: what the library knows of one device, read once at context creation. */
#ifndef CLATTN_DEVICE_H
#define CLATTN_DEVICE_H

#include "cl_api.h"
#include "report.h"

typedef struct clattn__device {
    cl_device_type type;
    char name[256];
    char vendor[128];
    char driver[128];
    char version[256];  /* of the device: "OpenCL 3.0 ..." */
    char platform[256]; /* name and version */
    cl_platform_id platform_id;
    char extensions[16384];  /* the device's, with spaces between */
    int32_t has_svm;         /* shared virtual memory, of whatever grain */
    uint64_t local_bytes;    /* that a kernel may take: may exceed what the driver reports, see device.c */
    uint64_t local_reported; /* CL_DEVICE_LOCAL_MEM_SIZE */
    size_t max_work_group;   /* work-items */
    size_t max_work_items_0; /* along the first axis */
    uint32_t compute_units;
    uint32_t vector_width;       /* native float lanes; at least 1 */
    uint32_t compute_capability; /* NVIDIA's, 10 * major + minor: 80, 86, 90; elsewhere 0 */
} clattn__device;

/* `max_local_bytes` of 0 leaves the device's own limit. */
clattn_status clattn__device_read(clattn__device *out, const clattn__cl *cl, cl_device_id id,
                                  uint64_t max_local_bytes, const clattn__log *log);

#endif
