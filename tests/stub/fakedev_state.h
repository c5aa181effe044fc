/* What the layer remembers: settings, counts, failures to inject, and the application's references
 * to objects. Knows nothing of how OpenCL calls are passed on; that is fakedev.c. */
#ifndef CLATTN_FAKEDEV_STATE_H
#define CLATTN_FAKEDEV_STATE_H

#include "fakedev.h"

/* Whatever version the tests aim at: only for 3.0 is the dispatch table declared in full. */
#undef CL_TARGET_OPENCL_VERSION
#define CL_TARGET_OPENCL_VERSION 300
#include <CL/cl.h>

enum fakedev_call {
#define CALL(name) CALL_##name,
#include "fakedev_calls.h"
    CALL_COUNT
};

/* The environment table, without its CLATTN_FAKE_ prefix: X(name, form). README.md says what each
 * means. CLATTN_FAKE_FAIL is not here: it is a command, not a value. */
#define FAKEDEV_SETTINGS(X)                \
    X(LOCAL_MEM, NUMBER)                   \
    X(LOCAL_MEM_TYPE, LOCAL_MEM_TYPE_WORD) \
    X(WORK_GROUP, NUMBER)                  \
    X(KERNEL_WORK_GROUP, NUMBER)           \
    X(WORK_GROUP_MULTIPLE, NUMBER)         \
    X(COMPUTE_UNITS, NUMBER)               \
    X(VECTOR_WIDTH, NUMBER)                \
    X(COMPUTE_CAPABILITY, NUMBER)          \
    X(GLOBAL_MEM, NUMBER)                  \
    X(MAX_ALLOC, NUMBER)                   \
    X(TYPE, DEVICE_TYPE_WORD)              \
    X(NAME, TEXT)                          \
    X(VENDOR, TEXT)                        \
    X(VENDOR_ID, NUMBER)                   \
    X(DRIVER, TEXT)                        \
    X(VERSION, TEXT)                       \
    X(OPENCL_C_VERSION, TEXT)              \
    X(EXTENSIONS, TEXT)                    \
    X(HIDDEN_FUNCTIONS, TEXT)              \
    X(SVM, SVM_WORD)                       \
    X(REPORT, TEXT)

enum fakedev_setting {
#define X(name, form) FAKE_##name,
    FAKEDEV_SETTINGS(X)
#undef X
        FAKE_COUNT
};

/* FAKE_SVM where there shall be none, since 0 means that nothing is faked. */
#define FAKEDEV_NO_SVM (UINT64_C(1) << 63)

/* 0 where nothing is faked: no setting may be 0. A word (TYPE) comes as its OpenCL value. */
uint64_t fakedev_number(enum fakedev_setting setting);
/* NULL where nothing is faked. The text stays valid until the process ends. */
const char *fakedev_text(enum fakedev_setting setting);
/* The smaller of the two settings that are faked; 0 if neither is. */
uint64_t fakedev_smaller(enum fakedev_setting a, enum fakedev_setting b);

/* Reads every CLATTN_FAKE_ variable; false (and a line on stderr) on the first bad one. */
bool fakedev_read_environment(void);
void fakedev_set_active(void);

/* Counts a call. Anything but CL_SUCCESS: the call shall do nothing and fail with that status. */
cl_int fakedev_begin(enum fakedev_call call);
void fakedev_count_refusal(void);
void fakedev_count_blocking(void);
void fakedev_count_build(const void *program);

struct fakedev_memory {
    uint64_t bytes;
    bool in_host_memory; /* CL_MEM_USE_HOST_PTR */
    const void *parent;  /* whose storage this is a part of; NULL: its own */
};

/* A new object with one reference. `memory` is NULL for what is not memory. */
void fakedev_created(enum clattn_fakedev_kind kind, const void *handle, enum fakedev_call by,
                     const struct fakedev_memory *memory);
void fakedev_retained(enum clattn_fakedev_kind kind, const void *handle, enum fakedev_call by);
/* To be called before the driver's release: after it, another thread may be given the same address
 * for a new object. */
void fakedev_released(enum clattn_fakedev_kind kind, const void *handle);

#endif
