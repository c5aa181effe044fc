/* cl_api.h: the one table through which all OpenCL calls go, so that machines without a linked loader
 * (Android), layers and test drivers can supply their own. */
#ifndef CLATTN_CL_API_H
#define CLATTN_CL_API_H

#include "clattn.h"

#include <CL/cl_icd.h>

#define CLATTN__CL_FUNCTIONS(X)    \
    X(clGetPlatformInfo)           \
    X(clRetainContext)             \
    X(clReleaseContext)            \
    X(clGetContextInfo)            \
    X(clRetainDevice)              \
    X(clReleaseDevice)             \
    X(clGetDeviceInfo)             \
    X(clCreateCommandQueue)        \
    X(clGetCommandQueueInfo)       \
    X(clReleaseCommandQueue)       \
    X(clFinish)                    \
    X(clCreateBuffer)              \
    X(clGetMemObjectInfo)          \
    X(clReleaseMemObject)          \
    X(clCreateProgramWithSource)   \
    X(clCreateProgramWithBinary)   \
    X(clBuildProgram)              \
    X(clGetProgramInfo)            \
    X(clGetProgramBuildInfo)       \
    X(clReleaseProgram)            \
    X(clCreateKernel)              \
    X(clSetKernelArg)              \
    X(clGetKernelWorkGroupInfo)    \
    X(clReleaseKernel)             \
    X(clEnqueueNDRangeKernel)      \
    X(clEnqueueMarkerWithWaitList) \
    X(clReleaseEvent)

typedef struct clattn__cl {
#define CLATTN__CL_MEMBER(name) cl_api_##name name;
    CLATTN__CL_FUNCTIONS(CLATTN__CL_MEMBER)
#undef CLATTN__CL_MEMBER
} clattn__cl;

/* Fills the table from get_proc, or from the linked loader if it is NULL. On failure *missing names the
 * first function that was not found. */
clattn_status clattn__cl_load(clattn__cl *out, void *(*get_proc)(void *, const char *), void *user,
                              const char **missing);

#endif
