/* option_words.c: options as words of a command line, in a JSON array. */
#include "option_words.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

void option_add_word(cJSON *words, const char *format, ...)
{
    char text[192];
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(text, sizeof text, format, arguments);
    va_end(arguments);
    cJSON_AddItemToArray(words, cJSON_CreateString(text));
}

void option_add_numbers(cJSON *words, const char *name, const float *value, int count)
{
    char text[160] = "";
    for (int i = 0; i < count; i++) {
        const size_t used = strlen(text);
        cli_format(text + used, sizeof text - used, "%s%.9g", i ? "," : "", (double)value[i]);
    }
    option_add_word(words, "--%s=%s", name, text);
}
