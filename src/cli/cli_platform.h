/* cli_platform.h: everything the command needs from the operating system beyond the C library. */
#ifndef CLATTN_CLI_PLATFORM_H
#define CLATTN_CLI_PLATFORM_H

#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

int platform_stderr_is_terminal(void);
double platform_seconds(void); /* monotonic, from an arbitrary start */

/* The user's cache directory for clattn, without its last level being made. Returns 0, or -1 if the
 * system names none. */
int platform_cache_directory(char *out, size_t capacity);

/* Whether writing beside `path` and renaming makes sense: false for devices, pipes and the like. */
int platform_may_replace(const char *path);

/* Renames, replacing what is there, at once. Returns 0 or -1. */
int platform_replace_file(const char *from, const char *to);

unsigned long platform_process_id(void);

/* A program that reads text from the returned stream. NULL if it cannot be started. */
FILE *platform_pipe_open(const char *command);
int platform_pipe_close(FILE *stream); /* 0: the program ended well */
int platform_has_gnuplot(void);

#endif
