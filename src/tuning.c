/* tuning.c: the text form of measured choices. Lines:
 *
 *     clattn tuning 1
 *     for <what a choice depends on: library, device, driver>
 *     tile <path> <program> <types of q, k, v> <head dims> <scores> <heads>: <options of the chosen row>
 *     ...
 *     end <hash of all before>
 *
 * A row is named by its options, not by its number, and is looked for among the candidates of the table: so a
 * text can choose nothing that the library would not try by itself. */
#include "tuning.h"

#include "dtype.h"
#include "hash.h"
#include "plan.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define FIRST_LINE "clattn tuning 1\n"
#define WHERE_READ "clattn_context_create"
#define WHERE_CANDIDATE "clattn_tuning_candidate"
#define WHERE_WRITE "clattn_tuning_write"

enum { LINE = 1536, KEY = 160, END_LINE = 22 }; /* "end ", 16 digits, newline, terminator */

/* ---- Lines ---- */

/* What holds for the whole text, as one line. */
static void write_origin(char *out, size_t capacity, const clattn__device *device)
{
    snprintf(out, capacity, "for clattn %u, %s, %s, %s, driver %s\n", (unsigned)CLATTN_VERSION, device->name,
             device->vendor, device->platform, device->driver);
    for (char *c = out; *c != '\0'; c++) /* whatever a driver calls itself: one line */
        if ((unsigned char)*c < 0x20 && c[1] != '\0')
            *c = ' ';
}

static void write_key(char *out, size_t capacity, const clattn__path *path, int program,
                      const clattn__kernel_shape *shape)
{
    static const char *const programs[CLATTN__PROGRAMS] = {"prefill", "decode", "decode-few"};
    static const char *const formulas[] = {"", "softcap", "alibi", "softcap+alibi"};
    const int formula = clattn__formula(&path->recipe[program], shape);
    /* Prefill tiles do not know how many heads share K and V. */
    const int32_t heads = program == CLATTN__PREFILL ? 0 : shape->heads_per_kv;
    /* Where work-groups stay and share tiles out, a causal bound makes other ones the best. */
    const int is_causal = path->recipe[program].is_resident && shape->is_causal;
    snprintf(out, capacity, "tile %s %s %s,%s,%s %d/%d %s%s %d: ", path->name, programs[program],
             clattn__dtype_of(shape->dtype_q)->name, clattn__dtype_of(shape->dtype_k)->name,
             clattn__dtype_of(shape->dtype_v)->name, (int)shape->dim_qk_class, (int)shape->dim_v_class,
             formula != 0        ? formulas[formula]
             : shape->score_full ? "full"
                                 : "lean",
             is_causal ? " causal" : "", (int)heads);
}

static void write_end(char out[END_LINE], const char *text, size_t bytes)
{
    const unsigned long long hash = clattn__hash(CLATTN__HASH_START, text, bytes);
    snprintf(out, END_LINE, "end %016llx\n", hash);
}

/* ---- Reading ---- */

/* Whether it is whole: its first line, its last, and the hash in that. */
static int is_whole(const char *text, size_t bytes)
{
    const size_t first = strlen(FIRST_LINE), last = END_LINE - 1;
    char end[END_LINE];
    if (bytes < first + last || memcmp(text, FIRST_LINE, first) != 0 || memchr(text, '\0', bytes) != NULL)
        return 0;
    write_end(end, text, bytes - last);
    return text[bytes - last - 1] == '\n' && memcmp(text + bytes - last, end, last) == 0;
}

clattn_status clattn__tuning_read(clattn_context *c, const void *text, size_t bytes)
{
    char origin[LINE];
    RETURN_ERROR_IF((text == NULL) != (bytes == 0), &c->log, CLATTN_INVALID_ARGUMENT,
                    WHERE_READ
                    ": options.tuning is %s and options.tuning_bytes = %llu; expected both or none",
                    text == NULL ? "NULL" : "set", (unsigned long long)bytes);
    if (text == NULL)
        return CLATTN_SUCCESS;
    RETURN_ERROR_IF(!is_whole(text, bytes), &c->log, CLATTN_INVALID_ARGUMENT,
                    WHERE_READ ": options.tuning is no tuning text, or a damaged one; expected what "
                               "clattn_tuning_write or `clattn tune` wrote, in full");
    write_origin(origin, sizeof origin, &c->device);
    const char *given = (const char *)text + strlen(FIRST_LINE);
    if (strncmp(given, origin, strlen(origin)) != 0) {
        const char *end = strchr(given, '\n'); /* there is one: the text is whole */
        origin[strlen(origin) - 1] = '\0';
        clattn__say(&c->log, CLATTN_LOG_WARNING,
                    WHERE_READ ": options.tuning is not used: it is %.*s; this is %s", (int)(end - given),
                    given, origin);
        return CLATTN_SUCCESS;
    }
    c->tuning = clattn__allocate(&c->allocator, bytes + 1);
    RETURN_ERROR_IF(c->tuning == NULL, &c->log, CLATTN_OUT_OF_HOST_MEMORY, WHERE_READ ": out of host memory");
    memcpy(c->tuning, text, bytes);
    return CLATTN_SUCCESS;
}

/* ---- Use ---- */

int clattn__tuned_index(const clattn_context *context, const clattn__path *path, int program,
                        const clattn__kernel_shape *shape)
{
    char key[KEY];
    clattn__tile tile;
    if (context->tuning == NULL)
        return -1;
    write_key(key, sizeof key, path, program, shape);
    const char *line = strstr(context->tuning, key);
    while (line != NULL && line[-1] != '\n') /* never the first line */
        line = strstr(line + 1, key);
    if (line == NULL)
        return -1;
    const char *options = line + strlen(key);
    const size_t length = strcspn(options, "\n");
    for (int i = 0; path->recipe[program].tile(&tile, &context->device, shape, i); i++)
        if (strlen(tile.options) == length && memcmp(tile.options, options, length) == 0)
            return i;
    return -1;
}

/* ---- Writing ---- */

clattn_status clattn_tuning_candidate(clattn_context *context, const clattn_plan_desc *given, int32_t index,
                                      char *text, size_t capacity)
{
    clattn_plan_desc desc;
    clattn__kernel_shape shape;
    const clattn__path *path;
    clattn__tile tile;
    char line[LINE];
    if (context == NULL)
        return CLATTN_INVALID_ARGUMENT;
    const clattn__log *log = &context->log;
    RETURN_ERROR_IF(text == NULL || capacity == 0, log, CLATTN_INVALID_ARGUMENT,
                    WHERE_CANDIDATE ": text is NULL or capacity 0");
    text[0] = '\0';
    RETURN_ERROR_IF(index < 0, log, CLATTN_INVALID_ARGUMENT, WHERE_CANDIDATE ": index = %d; expected >= 0",
                    (int)index);
    FORWARD_IF_ERROR(clattn__plan_path(&path, &desc, &shape, context, given, WHERE_CANDIDATE));
    RETURN_ERROR_IF(desc.operation != CLATTN_OPERATION_FORWARD, log, CLATTN_INVALID_ARGUMENT,
                    WHERE_CANDIDATE ": operation = %d; expected CLATTN_OPERATION_FORWARD (0)",
                    (int)desc.operation);
    int32_t number = 0;
    for (int program = 0; program < CLATTN__PROGRAMS; program++) {
        const clattn__recipe *recipe = &path->recipe[program];
        for (int i = 0; clattn__plan_wants(&desc, program) && recipe->tile != NULL &&
                        recipe->tile(&tile, &context->device, &shape, i);
             i++)
            if (number++ == index) {
                write_key(line, sizeof line, path, program, &shape);
                const size_t used = strlen(line);
                snprintf(line + used, sizeof line - used, "%s", tile.options);
                RETURN_ERROR_IF(strlen(line) >= capacity, log, CLATTN_BUFFER_TOO_SMALL,
                                WHERE_CANDIDATE ": capacity = %llu; expected at least %llu",
                                (unsigned long long)capacity, (unsigned long long)strlen(line) + 1);
                memcpy(text, line, strlen(line) + 1);
                return CLATTN_SUCCESS;
            }
    }
    return CLATTN_SUCCESS;
}

clattn_status clattn_tuning_write(clattn_context *context, const char *const *candidates, size_t count,
                                  char *text, size_t capacity, size_t *needed)
{
    char origin[LINE], end[END_LINE];
    if (context == NULL)
        return CLATTN_INVALID_ARGUMENT;
    const clattn__log *log = &context->log;
    RETURN_ERROR_IF(candidates == NULL && count > 0, log, CLATTN_INVALID_ARGUMENT,
                    WHERE_WRITE ": candidates is NULL and count = %llu", (unsigned long long)count);
    RETURN_ERROR_IF(text == NULL && capacity > 0, log, CLATTN_INVALID_ARGUMENT,
                    WHERE_WRITE ": text is NULL and capacity = %llu", (unsigned long long)capacity);
    write_origin(origin, sizeof origin, &context->device);
    size_t size = strlen(FIRST_LINE) + strlen(origin) + END_LINE; /* with the terminator */
    for (size_t i = 0; i < count; i++) {
        RETURN_ERROR_IF(candidates[i] == NULL || strncmp(candidates[i], "tile ", 5) != 0 ||
                            strchr(candidates[i], '\n') != NULL,
                        log, CLATTN_INVALID_ARGUMENT,
                        WHERE_WRITE ": candidates[%llu] is not a text of clattn_tuning_candidate",
                        (unsigned long long)i);
        size += strlen(candidates[i]) + 1;
    }
    if (needed != NULL)
        *needed = size;
    const int is_size_query = capacity == 0 && needed != NULL;
    RETURN_ERROR_IF(capacity < size && !is_size_query, log, CLATTN_BUFFER_TOO_SMALL,
                    WHERE_WRITE ": capacity = %llu; expected at least %llu", (unsigned long long)capacity,
                    (unsigned long long)size);
    if (is_size_query)
        return CLATTN_SUCCESS;
    char *at = text + sprintf(text, "%s%s", FIRST_LINE, origin);
    for (size_t i = 0; i < count; i++)
        at += sprintf(at, "%s\n", candidates[i]);
    write_end(end, text, (size_t)(at - text));
    memcpy(at, end, sizeof end);
    return CLATTN_SUCCESS;
}
