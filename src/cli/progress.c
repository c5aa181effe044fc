/* progress.c: a line on stderr, redrawn in place. */
#include "progress.h"

#include "cli_platform.h"

#include <stdarg.h>
#include <stdio.h>

static int shown_width;
static double shown_at;

void progress_show(const char *format, ...)
{
    if (!platform_stderr_is_terminal())
        return;
    const double now = platform_seconds();
    if (shown_width && now - shown_at < 0.1)
        return;
    char text[80]; /* a longer line would wrap, and could then not be redrawn */
    va_list arguments;
    va_start(arguments, format);
    const int length = vsnprintf(text, sizeof text, format, arguments);
    va_end(arguments);
    const int width = length < (int)sizeof text ? length : (int)sizeof text - 1;
    fprintf(stderr, "\r%-*s", shown_width, text);
    fflush(stderr);
    shown_width = width;
    shown_at = now;
}

void progress_clear(void)
{
    if (!shown_width)
        return;
    fprintf(stderr, "\r%*s\r", shown_width, "");
    fflush(stderr);
    shown_width = 0;
}
