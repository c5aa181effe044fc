/* options.c: getopt_long over lists of rows, and the readers of values. */
#include "options.h"

#include "clattn.h"
#include "cli.h"
#include "safetensors.h"
#include "tensor_convert.h"

#include <getopt.h>

#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { MAX_OPTIONS = 96 };

const option_row common_rows[] = {
    {OPTION_DEVICE, "device", 0, ARGUMENT_REQUIRED, "SEL",
     "index, or part of a platform's or device's name (else CLATTN_DEVICE)"},
    {OPTION_LOCAL_MEMORY, "local-memory", 0, ARGUMENT_REQUIRED, "BYTES",
     "local memory that kernels may take (also 32K)"},
    {OPTION_TUNING, "tuning", 0, ARGUMENT_REQUIRED, "FILE", "choices of tiles that `clattn tune` wrote"},
    {OPTION_CACHE_DIR, "cache-dir", 0, ARGUMENT_REQUIRED, "DIR", "where compiled programs are kept"},
    {OPTION_NO_CACHE, "no-cache", 0, ARGUMENT_NONE, NULL, "keep no compiled programs"},
    {OPTION_VERBOSE, "verbose", 'v', ARGUMENT_NONE, NULL, "print the library's messages; twice: each call"},
    {OPTION_HELP, "help", 'h', ARGUMENT_NONE, NULL, "this text"},
    {OPTION_END, NULL, 0, 0, NULL, NULL},
};

static int apply_common(common_options *common, int id, const char *value)
{
    switch (id) {
    case OPTION_DEVICE:
        common->device = value;
        return CLI_OK;
    case OPTION_LOCAL_MEMORY:
        return option_bytes("local-memory", value, &common->local_bytes);
    case OPTION_TUNING:
        common->tuning = value;
        return CLI_OK;
    case OPTION_CACHE_DIR:
        common->cache_dir = value;
        return CLI_OK;
    case OPTION_NO_CACHE:
        common->no_cache = 1;
        return CLI_OK;
    case OPTION_VERBOSE:
        common->verbose++;
        return CLI_OK;
    default:
        common->help = 1;
        return CLI_OK;
    }
}

/* The rows of all lists, in getopt's form beside ours. */
typedef struct option_table {
    const option_row *row[MAX_OPTIONS];
    struct option entry[MAX_OPTIONS + 1];
    char letters[2 * MAX_OPTIONS + 4];
    int count;
    int num_common;
} option_table;

static void add_rows(option_table *table, const option_row *rows)
{
    size_t used = strlen(table->letters);
    for (; rows->id != OPTION_END && table->count < MAX_OPTIONS; rows++) {
        struct option *entry = &table->entry[table->count];
        entry->name = rows->name;
        entry->has_arg = rows->argument == ARGUMENT_NONE       ? no_argument
                         : rows->argument == ARGUMENT_REQUIRED ? required_argument
                                                               : optional_argument;
        entry->val = MAX_OPTIONS + 256 + table->count; /* beyond every letter */
        table->row[table->count++] = rows;
        if (rows->letter) {
            table->letters[used++] = rows->letter;
            if (rows->argument == ARGUMENT_REQUIRED)
                table->letters[used++] = ':';
            table->letters[used] = 0;
        }
    }
}

static void make_table(option_table *table, const option_set *set)
{
    memset(table, 0, sizeof *table);
    strcpy(table->letters, ":"); /* a missing argument is told from an unknown option */
    add_rows(table, common_rows);
    table->num_common = table->count;
    for (int i = 0; i < 4 && set->lists[i]; i++)
        add_rows(table, set->lists[i]);
}

static int index_of(const option_table *table, int code)
{
    for (int i = 0; i < table->count; i++)
        if (code == table->entry[i].val || (table->row[i]->letter && code == table->row[i]->letter))
            return i;
    return -1;
}

static int refuse_option(const option_table *table, const char *text, int code)
{
    const int i = optopt ? index_of(table, optopt) : -1;
    if (i >= 0 && code == ':')
        return cli_fail(CLI_USAGE, "--%s: expected a value: %s", table->row[i]->name, table->row[i]->value);
    if (i >= 0 && text[0] == '-' && text[1] == '-')
        return cli_fail(CLI_USAGE, "--%s takes no value", table->row[i]->name);
    if (optopt > 0 && optopt < 256 && text[0] == '-' && text[1] != '-')
        return cli_fail(CLI_USAGE, "unknown option '-%c'", optopt);
    return cli_fail(CLI_USAGE, "unknown option '%.100s'", text);
}

int options_parse(const option_set *set, common_options *common, int argc, char **argv, int *num_operands)
{
    option_table table;
    make_table(&table, set);
    opterr = 0;
    optind = 0; /* starts afresh: the function is called for a case file's options too */

    for (;;) {
        optopt = 0;
        const int code = getopt_long(argc, argv, table.letters, table.entry, NULL);
        if (code == -1)
            break;
        const int i = index_of(&table, code);
        if (i < 0)
            return refuse_option(&table, argv[optind > 0 ? optind - 1 : 0], code);
        const option_row *row = table.row[i];
        if (row->id == OPTION_NOT_OFFERED)
            return cli_fail(CLI_USAGE, "--%s is not offered by this version", row->name);
        const int status = i < table.num_common ? apply_common(common, row->id, optarg)
                                                : set->apply(set->user, row->id, row->name, optarg);
        if (status != CLI_OK)
            return status;
    }
    *num_operands = argc - optind;
    memmove(argv, argv + optind, (size_t)*num_operands * sizeof *argv);
    return CLI_OK;
}

static void print_rows(const option_row *rows)
{
    for (; rows->id != OPTION_END; rows++) {
        if (!rows->help)
            continue;
        char left[64];
        const char *open = rows->argument == ARGUMENT_OPTIONAL   ? "[="
                           : rows->argument == ARGUMENT_REQUIRED ? " "
                                                                 : "";
        cli_format(left, sizeof left, "%c%c%s --%s%s%s%s", rows->letter ? '-' : ' ',
                   rows->letter ? rows->letter : ' ', rows->letter ? "," : " ", rows->name, open,
                   rows->value ? rows->value : "", rows->argument == ARGUMENT_OPTIONAL ? "]" : "");
        printf("  %-34s %s\n", left, rows->help);
    }
}

static void print_not_offered(const option_row *rows, int *width)
{
    for (; rows->id != OPTION_END; rows++) {
        if (rows->id != OPTION_NOT_OFFERED)
            continue;
        if (*width == 0)
            printf("\nKnown, but not offered by this version:");
        if (*width == 0 || *width + (int)strlen(rows->name) + 3 > 96)
            *width = printf("\n ") - 1;
        *width += printf(" --%s", rows->name);
    }
}

void options_print_help(const option_set *set, const command_text *text)
{
    printf("Usage: clattn %s\n\n%s\n\nOptions:\n", text->usage, text->about);
    for (int i = 0; i < 4 && set->lists[i]; i++)
        print_rows(set->lists[i]);
    print_rows(common_rows);
    int width = 0;
    for (int i = 0; i < 4 && set->lists[i]; i++)
        print_not_offered(set->lists[i], &width);
    if (width)
        printf("\n");
    printf("\nExit status: 0 done; 1 a check or a run failed; 2 bad usage or bad input; 3 no usable "
           "device.\n");
}

/* ---- Values -------------------------------------------------------------------------------------
 */

static int parse_integer(const char *text, const char **end, int64_t *out)
{
    char *stop;
    errno = 0;
    const long long value = strtoll(text, &stop, 10);
    *end = stop;
    *out = value;
    /* strtoll passes over leading space, which no number here should have. */
    return stop != text && errno == 0 && (*text == '-' || (*text >= '0' && *text <= '9'));
}

int option_integer(const char *name, const char *value, int64_t *out)
{
    const char *end;
    if (!parse_integer(value, &end, out) || *end)
        return cli_fail(CLI_USAGE, "--%s '%.60s': expected an integer", name, value);
    return CLI_OK;
}

int option_number(const char *name, const char *value, float *out)
{
    char *end;
    *out = strtof(value, &end);
    if (end == value || *end || !isfinite(*out))
        return cli_fail(CLI_USAGE, "--%s '%.60s': expected a finite number", name, value);
    return CLI_OK;
}

int option_bytes(const char *name, const char *value, uint64_t *out)
{
    const char *end;
    int64_t number;
    int shift = 0;
    if (parse_integer(value, &end, &number) && number >= 0 && number <= INT64_MAX >> 20) {
        if (*end == 'K' || *end == 'k')
            shift = 10;
        else if (*end == 'M' || *end == 'm')
            shift = 20;
        if (!end[shift ? 1 : 0]) {
            *out = (uint64_t)number << shift;
            return CLI_OK;
        }
    }
    return cli_fail(CLI_USAGE, "--%s '%.60s': expected a number of bytes", name, value);
}

int option_integers(const char *name, const char *value, char separator, int64_t *out, int least, int most,
                    int *count)
{
    const char *text = value;
    *count = 0;
    for (;;) {
        const char *end;
        int64_t number;
        if (*count == most || !parse_integer(text, &end, &number) || (*end && *end != separator))
            break;
        out[(*count)++] = number;
        if (!*end) {
            if (*count < least)
                break;
            return CLI_OK;
        }
        text = end + 1;
    }
    if (least == most)
        return cli_fail(CLI_USAGE, "--%s '%.60s': expected %d integers separated by '%c'", name, value, most,
                        separator);
    return cli_fail(CLI_USAGE, "--%s '%.60s': expected %d to %d integers separated by '%c'", name, value,
                    least, most, separator);
}

int option_numbers(const char *name, const char *value, float *out, int most, int *count)
{
    const char *text = value;
    for (*count = 0; *count < most;) {
        char *end;
        const float number = strtof(text, &end);
        if (end == text || (*end && *end != ',') || !isfinite(number))
            break;
        out[(*count)++] = number;
        if (!*end)
            return CLI_OK;
        text = end + 1;
    }
    return cli_fail(CLI_USAGE, "--%s '%.60s': expected 1 to %d finite numbers separated by ','", name, value,
                    most);
}

int option_program_text(const char *name, const char *value, const char **out)
{
    if (value[strspn(value, " \t\r\n")] == 0)
        return cli_fail(CLI_USAGE, "--%s '': expected OpenCL C", name);
    if (!safetensors_is_utf8(value)) /* or a case file could not hold it */
        return cli_fail(CLI_USAGE, "--%s '%.60s': expected UTF-8", name, value);
    *out = value;
    return CLI_OK;
}

int option_dtype(const char *name, const char *value, int32_t *out)
{
    *out = dtype_from_name(value);
    if (!dtype_is_plain(*out))
        return cli_fail(CLI_USAGE, "--%s '%.60s': expected f32, f16 or bf16", name, value);
    return CLI_OK;
}

static const struct {
    int32_t id;
    const char *name;
} paths[] = {
    {CLATTN_PATH_AUTO, "auto"},
    {CLATTN_PATH_PORTABLE, "portable"},
    {CLATTN_PATH_CPU, "cpu"},
    {CLATTN_PATH_NVIDIA_MMA, "nvidia_mma"},
    {CLATTN_PATH_NVIDIA_WGMMA, "nvidia_wgmma"},
};

int option_path(const char *name, const char *value, int32_t *out)
{
    for (size_t i = 0; i < sizeof paths / sizeof paths[0]; i++)
        if (strcmp(paths[i].name, value) == 0) {
            *out = paths[i].id;
            return CLI_OK;
        }
    return cli_fail(CLI_USAGE, "--%s '%.60s': expected auto, portable, cpu, nvidia_mma or nvidia_wgmma", name,
                    value);
}

const char *path_name(int32_t path)
{
    for (size_t i = 0; i < sizeof paths / sizeof paths[0]; i++)
        if (paths[i].id == path)
            return paths[i].name;
    return "?";
}
