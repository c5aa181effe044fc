/* progress.h: one line on a terminal that tells what long work is at; nothing in a pipe. */
#ifndef CLATTN_PROGRESS_H
#define CLATTN_PROGRESS_H

#include "cli.h"

/* Replaces the line. Redrawn ten times a second at the most. */
void progress_show(const char *format, ...) CLI_PRINTF(1, 2);

/* Removes the line; to be called before anything else is printed. */
void progress_clear(void);

#endif
