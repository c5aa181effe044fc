/* report.h: how a function says why it refused. Nothing is printed; all goes to the caller's callback. */
#ifndef CLATTN_REPORT_H
#define CLATTN_REPORT_H

#include "clattn.h"

typedef struct clattn__log {
    clattn_log_fn write; /* NULL: silent */
    void *user;
    int32_t level;
} clattn__log;

#if defined(__GNUC__)
#define CLATTN__PRINTF(text, first) __attribute__((format(printf, text, first)))
#else
#define CLATTN__PRINTF(text, first)
#endif

void clattn__say(const clattn__log *log, int32_t level, const char *format, ...) CLATTN__PRINTF(3, 4);

/* For texts of any length, such as build logs. */
void clattn__say_text(const clattn__log *log, int32_t level, const char *text);

/* Says why and returns `status`. */
clattn_status clattn__fail(const clattn__log *log, clattn_status status, const char *format, ...)
    CLATTN__PRINTF(3, 4);

#define RETURN_ERROR_IF(condition, log, status, ...)       \
    do {                                                   \
        if (condition)                                     \
            return clattn__fail(log, status, __VA_ARGS__); \
    } while (0)

#define FORWARD_IF_ERROR(call)                   \
    do {                                         \
        const clattn_status forwarded_ = (call); \
        if (forwarded_ != CLATTN_SUCCESS)        \
            return forwarded_;                   \
    } while (0)

/* An OpenCL call that failed: its name and code. */
#define FORWARD_IF_CL_ERROR(log, where, call_name, code)                                    \
    do {                                                                                    \
        const cl_int code_ = (code);                                                        \
        if (code_ != CL_SUCCESS)                                                            \
            return clattn__fail(log, code_, "%s: %s failed with %s (%d)", where, call_name, \
                                clattn_status_string(code_), (int)code_);                   \
    } while (0)

#endif
