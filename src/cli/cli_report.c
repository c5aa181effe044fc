/* cli_report.c: error lines on stderr. */
#include "cli.h"

#include "progress.h"

#include <stdarg.h>
#include <stdio.h>

static const char *current_command, *current_file;

void cli_set_command(const char *name) { current_command = name; }

void cli_set_file(const char *name) { current_file = name; }

static void print_line(const char *format, va_list arguments)
{
    char text[2048];
    vsnprintf(text, sizeof text, format, arguments);
    for (char *c = text; *c; c++)
        if ((unsigned char)*c < 0x20 || *c == 0x7f)
            *c = '?';
    progress_clear();
    fprintf(stderr, "clattn%s%s: %s%s%s\n", current_command ? " " : "",
            current_command ? current_command : "", current_file ? current_file : "",
            current_file ? ": " : "", text);
}

int cli_fail(int status, const char *format, ...)
{
    va_list arguments;
    va_start(arguments, format);
    print_line(format, arguments);
    va_end(arguments);
    return status;
}

void cli_note(const char *format, ...)
{
    va_list arguments;
    va_start(arguments, format);
    print_line(format, arguments);
    va_end(arguments);
}

void cli_format(char *out, size_t capacity, const char *format, ...)
{
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(out, capacity, format, arguments);
    va_end(arguments);
}
