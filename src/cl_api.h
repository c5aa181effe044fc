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
    X(clEnqueueReadBuffer)         \
    X(clEnqueueMarkerWithWaitList) \
    X(clReleaseEvent)

/* Functions that may be missing; calls that would need them are then refused. Their types are declared here:
 * headers for OpenCL 1.2 lack the first, and those of extensions changed names of types between versions. */
typedef cl_int(CL_API_CALL *clattn__set_pointer_fn)(cl_kernel kernel, cl_uint index, const void *pointer);
typedef void *(CL_API_CALL *clattn__extension_address_fn)(cl_platform_id platform, const char *name);
typedef cl_int(CL_API_CALL *clattn__command_kernel_fn)(void *command_buffer, cl_command_queue queue,
                                                       const void *properties, cl_kernel kernel,
                                                       cl_uint work_dim, const size_t *global_offset,
                                                       const size_t *global_size, const size_t *local_size,
                                                       cl_uint num_sync, const cl_uint *sync_wait,
                                                       cl_uint *sync_point, void **mutable_command);

/* X(name, type): found as the functions above are. */
#define CLATTN__CL_OPTIONAL_FUNCTIONS(X)                \
    X(clSetKernelArgSVMPointer, clattn__set_pointer_fn) \
    X(clGetExtensionFunctionAddressForPlatform, clattn__extension_address_fn)

#define CLATTN__USM_EXTENSION "cl_intel_unified_shared_memory"
#define CLATTN__RECORDING_EXTENSION "cl_khr_command_buffer"

/* X(name, type, extension): found by the platform of a device that lists the extension. */
#define CLATTN__CL_EXTENSION_FUNCTIONS(X)                                           \
    X(clSetKernelArgMemPointerINTEL, clattn__set_pointer_fn, CLATTN__USM_EXTENSION) \
    X(clCommandNDRangeKernelKHR, clattn__command_kernel_fn, CLATTN__RECORDING_EXTENSION)

typedef struct clattn__cl {
#define CLATTN__CL_MEMBER(name) cl_api_##name name;
    CLATTN__CL_FUNCTIONS(CLATTN__CL_MEMBER)
#undef CLATTN__CL_MEMBER
#define CLATTN__CL_MEMBER(name, type) type name; /* NULL: not there */
    CLATTN__CL_OPTIONAL_FUNCTIONS(CLATTN__CL_MEMBER)
#undef CLATTN__CL_MEMBER
#define CLATTN__CL_MEMBER(name, type, extension) type name; /* likewise */
    CLATTN__CL_EXTENSION_FUNCTIONS(CLATTN__CL_MEMBER)
#undef CLATTN__CL_MEMBER
} clattn__cl;

/* Fills the table from get_proc, or from the linked loader if it is NULL; extension functions are left out.
 * On failure *missing names the first function that was not found. */
clattn_status clattn__cl_load(clattn__cl *out, void *(*get_proc)(void *, const char *), void *user,
                              const char **missing);

/* Adds the functions of those extensions that are in `extensions`, the device's list. */
void clattn__cl_load_extensions(clattn__cl *cl, cl_platform_id platform, const char *extensions);

/* Whether a name is in a list with spaces between. */
int clattn__is_listed(const char *list, const char *name);

#endif
