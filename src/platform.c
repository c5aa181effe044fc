#if !defined(_WIN32) && !defined(_POSIX_C_SOURCE)
#define _POSIX_C_SOURCE 200809L
#endif

#include "platform.h"

#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#ifdef _WIN32

int clattn__mutex_init(clattn__mutex *mutex)
{
    InitializeSRWLock(mutex);
    return 0;
}
void clattn__mutex_destroy(clattn__mutex *mutex) { (void)mutex; }
void clattn__mutex_lock(clattn__mutex *mutex) { AcquireSRWLockExclusive(mutex); }
void clattn__mutex_unlock(clattn__mutex *mutex) { ReleaseSRWLockExclusive(mutex); }

int clattn__condition_init(clattn__condition *condition)
{
    InitializeConditionVariable(condition);
    return 0;
}
void clattn__condition_destroy(clattn__condition *condition) { (void)condition; }
void clattn__condition_wait(clattn__condition *condition, clattn__mutex *mutex)
{
    SleepConditionVariableSRW(condition, mutex, INFINITE, 0);
}
void clattn__condition_wake_all(clattn__condition *condition) { WakeAllConditionVariable(condition); }

int clattn__make_directory(const char *path)
{
    return CreateDirectoryA(path, NULL) || GetLastError() == ERROR_ALREADY_EXISTS ? 0 : -1;
}

static unsigned long process_id(void) { return GetCurrentProcessId(); }

static int replace_file(const char *from, const char *to)
{
    return MoveFileExA(from, to, MOVEFILE_REPLACE_EXISTING) ? 0 : -1;
}

double clattn__seconds(void)
{
    LARGE_INTEGER now, frequency;
    QueryPerformanceCounter(&now);
    QueryPerformanceFrequency(&frequency);
    return (double)now.QuadPart / (double)frequency.QuadPart;
}

#else

#include <errno.h>
#include <sys/stat.h>
#include <unistd.h>

int clattn__mutex_init(clattn__mutex *mutex) { return pthread_mutex_init(mutex, NULL); }
void clattn__mutex_destroy(clattn__mutex *mutex) { pthread_mutex_destroy(mutex); }
void clattn__mutex_lock(clattn__mutex *mutex) { pthread_mutex_lock(mutex); }
void clattn__mutex_unlock(clattn__mutex *mutex) { pthread_mutex_unlock(mutex); }

int clattn__condition_init(clattn__condition *condition) { return pthread_cond_init(condition, NULL); }
void clattn__condition_destroy(clattn__condition *condition) { pthread_cond_destroy(condition); }
void clattn__condition_wait(clattn__condition *condition, clattn__mutex *mutex)
{
    pthread_cond_wait(condition, mutex);
}
void clattn__condition_wake_all(clattn__condition *condition) { pthread_cond_broadcast(condition); }

int clattn__make_directory(const char *path)
{
    struct stat info;
    if (mkdir(path, 0700) == 0)
        return 0;
    return errno == EEXIST && stat(path, &info) == 0 && S_ISDIR(info.st_mode) ? 0 : -1;
}

static unsigned long process_id(void) { return (unsigned long)getpid(); }

static int replace_file(const char *from, const char *to) { return rename(from, to); }

double clattn__seconds(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec + 1e-9 * (double)now.tv_nsec;
}

#endif

int clattn__write_file(const char *path, const void *data, size_t size)
{
    /* The address of a local tells threads of one process apart. */
    const size_t capacity = strlen(path) + 64;
    char *temporary = malloc(capacity);
    if (temporary == NULL)
        return -1;
    snprintf(temporary, capacity, "%s.%lx.%llx.tmp", path, process_id(),
             (unsigned long long)(uintptr_t)&temporary);

    FILE *file = fopen(temporary, "wb");
    int failed = file == NULL;
    if (file != NULL) {
        failed = fwrite(data, 1, size, file) != size;
        failed |= fclose(file) != 0;
        failed = failed || replace_file(temporary, path) != 0;
        if (failed)
            remove(temporary);
    }
    free(temporary);
    return failed ? -1 : 0;
}
