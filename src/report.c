#include "report.h"

#include <stdarg.h>
#include <stdio.h>

static int is_heard(const clattn__log *log, int32_t level)
{
    return log->write != NULL && level <= log->level;
}

static void say(const clattn__log *log, int32_t level, const char *format, va_list values)
{
    char message[1024];
    vsnprintf(message, sizeof message, format, values);
    log->write(log->user, level, message);
}

void clattn__say(const clattn__log *log, int32_t level, const char *format, ...)
{
    if (!is_heard(log, level))
        return;
    va_list values;
    va_start(values, format);
    say(log, level, format, values);
    va_end(values);
}

void clattn__say_text(const clattn__log *log, int32_t level, const char *text)
{
    if (is_heard(log, level))
        log->write(log->user, level, text);
}

clattn_status clattn__fail(const clattn__log *log, clattn_status status, const char *format, ...)
{
    if (is_heard(log, CLATTN_LOG_ERROR)) {
        va_list values;
        va_start(values, format);
        say(log, CLATTN_LOG_ERROR, format, values);
        va_end(values);
    }
    return status;
}
