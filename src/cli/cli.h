/* cli.h: what every part of the clattn command shares: exit statuses and the one way to report
 * errors. */
#ifndef CLATTN_CLI_H
#define CLATTN_CLI_H

#include <stddef.h>

#define CLI_OK 0
#define CLI_FAILED 1    /* a check or a run failed */
#define CLI_USAGE 2     /* bad usage or bad input */
#define CLI_NO_DEVICE 3 /* no usable device */

#if defined(__GNUC__)
#define CLI_PRINTF(text, first) __attribute__((format(printf, text, first)))
#else
#define CLI_PRINTF(text, first)
#endif

/* Names the subcommand in messages; NULL: none. The text must outlive its use. */
void cli_set_command(const char *name);

/* Names the file that is being read, before every message; NULL: none. The text must outlive its
 * use. */
void cli_set_file(const char *name);

/* Prints "clattn <command>: <message>" as exactly one line on stderr and returns `status`. Control
 * characters (they may come from a hostile file) are shown as '?'. */
int cli_fail(int status, const char *format, ...) CLI_PRINTF(2, 3);

/* The same without a status, for warnings and log messages. */
void cli_note(const char *format, ...) CLI_PRINTF(1, 2);

/* snprintf that reports nothing and always terminates. */
void cli_format(char *out, size_t capacity, const char *format, ...) CLI_PRINTF(3, 4);

int cmd_info(int argc, char **argv);
int cmd_run(int argc, char **argv);
int cmd_check(int argc, char **argv);
int cmd_bench(int argc, char **argv);
int cmd_tune(int argc, char **argv);
int cmd_source(int argc, char **argv);

#endif
