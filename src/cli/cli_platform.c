/* cli_platform.c: the only file of the command that knows operating systems apart. */
#ifndef _WIN32
#define _POSIX_C_SOURCE 200809L
#define _FILE_OFFSET_BITS 64
#endif

#include "cli_platform.h"

#include <stdlib.h>
#include <string.h>

#ifdef _WIN32

#include <direct.h>
#include <io.h>
#include <process.h>
#include <windows.h>

int platform_stderr_is_terminal(void) { return _isatty(_fileno(stderr)); }

double platform_seconds(void)
{
    LARGE_INTEGER now, rate;
    QueryPerformanceCounter(&now);
    QueryPerformanceFrequency(&rate);
    return (double)now.QuadPart / (double)rate.QuadPart;
}

int platform_cache_directory(char *out, size_t capacity)
{
    const char *base = getenv("LOCALAPPDATA");
    if (!base || !*base)
        return -1;
    const int length = snprintf(out, capacity, "%s\\clattn", base);
    return length > 0 && (size_t)length < capacity ? 0 : -1;
}

int platform_may_replace(const char *path)
{
    struct _stat64 info;
    return _stat64(path, &info) != 0 || (info.st_mode & _S_IFREG) != 0;
}

int platform_replace_file(const char *from, const char *to)
{
    return MoveFileExA(from, to, MOVEFILE_REPLACE_EXISTING) ? 0 : -1;
}

unsigned long platform_process_id(void) { return (unsigned long)_getpid(); }

FILE *platform_pipe_open(const char *command) { return _popen(command, "w"); }
int platform_pipe_close(FILE *stream) { return _pclose(stream); }
int platform_has_gnuplot(void) { return system("gnuplot --version >NUL 2>&1") == 0; }

#else

#include <signal.h>
#include <sys/stat.h>
#include <sys/types.h>
#include <time.h>
#include <unistd.h>

int platform_stderr_is_terminal(void) { return isatty(STDERR_FILENO); }

double platform_seconds(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec + 1e-9 * (double)now.tv_nsec;
}

int platform_cache_directory(char *out, size_t capacity)
{
    const char *base = getenv("XDG_CACHE_HOME");
    char fallback[4096];
    if (!base || base[0] != '/') { /* the XDG specification: relative paths are to be ignored */
        const char *home = getenv("HOME");
        if (!home || !*home)
            return -1;
        const int length = snprintf(fallback, sizeof fallback, "%s/.cache", home);
        if (length < 0 || (size_t)length >= sizeof fallback)
            return -1;
        base = fallback;
    }
    mkdir(base, 0700); /* it mostly exists; if it cannot be made, opening the cache will fail */
    const int length = snprintf(out, capacity, "%s/clattn", base);
    return length > 0 && (size_t)length < capacity ? 0 : -1;
}

int platform_may_replace(const char *path)
{
    struct stat info;
    return stat(path, &info) != 0 || S_ISREG(info.st_mode);
}

int platform_replace_file(const char *from, const char *to) { return rename(from, to); }

unsigned long platform_process_id(void) { return (unsigned long)getpid(); }

FILE *platform_pipe_open(const char *command)
{
    signal(SIGPIPE, SIG_IGN); /* a program that ends early is reported by its status */
    return popen(command, "w");
}

int platform_pipe_close(FILE *stream) { return pclose(stream); }
int platform_has_gnuplot(void) { return system("gnuplot --version >/dev/null 2>&1") == 0; }

#endif
