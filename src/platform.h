/* platform.h: the only place that depends on the operating system: locks and the files of the
 * directory cache. */
#ifndef CLATTN_PLATFORM_H
#define CLATTN_PLATFORM_H

#include <stddef.h>

#ifdef _WIN32
#ifndef WIN32_LEAN_AND_MEAN
#define WIN32_LEAN_AND_MEAN
#endif
#include <windows.h>
typedef SRWLOCK clattn__mutex;
typedef CONDITION_VARIABLE clattn__condition;
#else
#include <pthread.h>
typedef pthread_mutex_t clattn__mutex;
typedef pthread_cond_t clattn__condition;
#endif

int clattn__mutex_init(clattn__mutex *mutex); /* 0: done */
void clattn__mutex_destroy(clattn__mutex *mutex);
void clattn__mutex_lock(clattn__mutex *mutex);
void clattn__mutex_unlock(clattn__mutex *mutex);

int clattn__condition_init(clattn__condition *condition); /* 0: done */
void clattn__condition_destroy(clattn__condition *condition);
void clattn__condition_wait(clattn__condition *condition, clattn__mutex *mutex);
void clattn__condition_wake_all(clattn__condition *condition);

/* Creates a directory if it is missing; 0: it is there. */
int clattn__make_directory(const char *path);

/* Writes a file under a temporary name and renames it, so that readers see all of it or nothing.
 * 0: done. */
int clattn__write_file(const char *path, const void *data, size_t size);

double clattn__seconds(void); /* a steady clock */

#endif
