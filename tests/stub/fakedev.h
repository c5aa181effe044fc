/* clattn_fakedev: what a test program can ask of the layer.
 *
 * The layer is a shared library. Either link it (CMake target clattn_fakedev) and call these
 * functions, or fetch them by dlsym from a handle of the file that OPENCL_LAYERS names. Linking
 * alone changes nothing: the OpenCL loader has to load the same file as a layer, by OPENCL_LAYERS.
 * clattn_fakedev_active() tells whether it did.
 *
 * README.md lists the environment variables. Every function may be called from any thread.
 */
#ifndef CLATTN_FAKEDEV_H
#define CLATTN_FAKEDEV_H

#include <stdbool.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#if defined(__GNUC__)
#define CLATTN_FAKEDEV_API __attribute__((visibility("default")))
#else
#define CLATTN_FAKEDEV_API
#endif

/* The kinds of object whose references are followed. */
enum clattn_fakedev_kind {
    CLATTN_FAKEDEV_CONTEXT,
    CLATTN_FAKEDEV_QUEUE,
    CLATTN_FAKEDEV_BUFFER, /* every cl_mem: buffers, sub-buffers, images, pipes */
    CLATTN_FAKEDEV_PROGRAM,
    CLATTN_FAKEDEV_KERNEL,
    CLATTN_FAKEDEV_EVENT,
    CLATTN_FAKEDEV_SAMPLER,
    CLATTN_FAKEDEV_SVM,    /* clSVMAlloc: one allocation, one reference */
    CLATTN_FAKEDEV_DEVICE, /* sub-devices, and devices held by clRetainDevice */
    CLATTN_FAKEDEV_KINDS   /* how many kinds there are */
};

/* References are the application's: what clCreate* and clRetain* gave and clRelease* took back.
 * What the driver holds for itself (a queue its context, a running command its buffers) is not
 * seen, so an object of which the application has given back every reference is gone, even if the
 * driver keeps it for a while. */
struct clattn_fakedev_counters {
    uint64_t live[CLATTN_FAKEDEV_KINDS];       /* objects with at least one reference, now */
    uint64_t references[CLATTN_FAKEDEV_KINDS]; /* sum of their references, now */
    uint64_t created[CLATTN_FAKEDEV_KINDS];    /* objects created since the last reset */

    /* Bytes, as CL_MEM_SIZE gives them; SVM allocations included. A sub-buffer has none of its own,
     * but keeps those of its parent counted for as long as it lives. Buffers with
     * CL_MEM_USE_HOST_PTR are the application's memory: apart. */
    uint64_t memory_now;
    uint64_t memory_peak; /* highest memory_now since the last reset */
    uint64_t host_pointer_memory_now;

    /* clBuildProgram calls that reached the driver; whatever is not a binary counts as source. */
    uint64_t builds_from_source;
    uint64_t builds_from_binary;

    /* Calls since the last reset, failed ones included; clattn_fakedev_calls has the others. */
    uint64_t kernel_creations; /* clCreateKernel */
    uint64_t launches;         /* clEnqueueNDRangeKernel */
    uint64_t finishes;         /* clFinish */
    uint64_t flushes;          /* clFlush */
    uint64_t event_waits;      /* clWaitForEvents */

    /* clEnqueueRead*, Write*, Map*, SVM* calls with blocking set that reached the driver. */
    uint64_t blocking_transfers;

    uint64_t refusals;          /* calls refused because a faked limit was broken */
    uint64_t injected_failures; /* calls that CLATTN_FAKE_FAIL made fail */
    uint64_t unknown_releases;  /* of a handle with no reference left, or never seen being created */
};

/* True once the OpenCL loader has loaded the layer, which it does at the first OpenCL call. */
CLATTN_FAKEDEV_API bool clattn_fakedev_active(void);

CLATTN_FAKEDEV_API void clattn_fakedev_counters(struct clattn_fakedev_counters *out);

/* How often the named OpenCL function was called since the last reset; 0 for a function the layer
 * does not watch. */
CLATTN_FAKEDEV_API uint64_t clattn_fakedev_calls(const char *function);

/* Zeroes what counts happenings and sets memory_peak to memory_now. Live objects stay live. */
CLATTN_FAKEDEV_API void clattn_fakedev_reset(void);

/* Writes the counters and every live object as JSON to the named file, "-" being stderr. NULL: to
 * the file of CLATTN_FAKE_REPORT. False (and a line on stderr) if that cannot be done. */
CLATTN_FAKEDEV_API bool clattn_fakedev_report(const char *path);

/* Sets a variable of the environment table, by its full name, from now on; NULL as value takes the
 * fake away. False (and a line on stderr) for an unknown name or a malformed value, which changes
 * nothing. The environment itself is read once, when the layer is loaded, and a fault in it ends
 * the process: a test must not pass because its limits were misspelt. */
CLATTN_FAKEDEV_API bool clattn_fakedev_set(const char *variable, const char *value);

/* Replaces the failures to inject; NULL or "" takes all away. Calls are counted from here.
 *
 *   specs  = spec { "," spec }
 *   spec   = function ":" nth [ "+" ] ":" status
 *
 * "clCreateKernel:2:-6": the second clCreateKernel does nothing and gives CL_OUT_OF_HOST_MEMORY.
 * "2+" fails the second and all that follow. The function "*" stands for any watched one but those
 * that give back (clRelease*, clSVMFree, clEnqueueSVMFree), so a test can fail the 1st, 2nd, 3rd
 * ... OpenCL call of an operation until injected_failures stays 0, and blame each leak on it. */
CLATTN_FAKEDEV_API bool clattn_fakedev_fail(const char *specs);

#ifdef __cplusplus
}
#endif

#endif
