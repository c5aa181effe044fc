/* option_words.h: options as words of a command line, in a JSON array. */
#ifndef CLATTN_OPTION_WORDS_H
#define CLATTN_OPTION_WORDS_H

#include "cli.h"

#include <cjson/cJSON.h>

void option_add_word(cJSON *words, const char *format, ...) CLI_PRINTF(2, 3);

/* "--name=1,2.5" */
void option_add_numbers(cJSON *words, const char *name, const float *value, int count);

#endif
