#include "numerics_options.h"

#include "clattn.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

static const char usage[] = "usage: [--path cpu|portable|both] [--types f32,f16,bf16,mixed] [--dims "
                            "64,576/512,...] [--cases N]\n"
                            "       [--seed N] [--case N] [--all] [--half] [--verbose]\n";

static const head_dims all_dims[] = {{1, 1},     {8, 8},     {40, 40},   {59, 59},   {64, 64},
                                     {80, 80},   {96, 96},   {111, 111}, {128, 128}, {192, 192},
                                     {256, 256}, {192, 128}, {40, 72},   {576, 512}};

/* Walks over a list separated by commas: copies the next item and moves *list behind it. */
static int next_item(const char **list, char item[32])
{
    const size_t length = strcspn(*list, ",");
    if (**list == '\0' || length >= 32)
        return 0;
    memcpy(item, *list, length);
    item[length] = '\0';
    *list += length + ((*list)[length] == ',');
    return 1;
}

static int read_types(numerics_options *out, const char *list)
{
    static const char *const names[] = {"f32", "f16", "bf16", "mixed"};
    char item[32];
    out->types = 0;
    while (next_item(&list, item)) {
        unsigned found = 0;
        for (unsigned i = 0; i < sizeof names / sizeof *names; i++)
            if (strcmp(item, names[i]) == 0)
                found = 1u << i;
        if (found == 0)
            return 0;
        out->types |= found;
    }
    return out->types != 0;
}

static int read_dims(numerics_options *out, const char *list)
{
    char item[32];
    out->num_dims = 0;
    while (next_item(&list, item)) {
        const char *slash = strchr(item, '/');
        const int qk = atoi(item), v = slash != NULL ? atoi(slash + 1) : qk;
        if (qk < 1 || v < 1 || out->num_dims == MAX_DIMS)
            return 0;
        out->dims[out->num_dims].qk = qk;
        out->dims[out->num_dims++].v = v;
    }
    return out->num_dims > 0;
}

static int read_path(numerics_options *out, const char *name)
{
    out->path = strcmp(name, "cpu") == 0        ? CLATTN_PATH_CPU
                : strcmp(name, "portable") == 0 ? CLATTN_PATH_PORTABLE
                                                : PATHS_BOTH;
    return out->path != PATHS_BOTH || strcmp(name, "both") == 0;
}

static int read_seed(numerics_options *out, const char *text)
{
    char *end;
    out->seeds[0] = strtoull(text, &end, 0);
    out->num_seeds = 1;
    return end != text && *end == '\0';
}

static int read_count(int *out, const char *text)
{
    *out = atoi(text);
    return *out > 0;
}

static int read_flag(numerics_options *out, const char *name)
{
    int *const flag = strcmp(name, "--all") == 0       ? &out->all
                      : strcmp(name, "--half") == 0    ? &out->half
                      : strcmp(name, "--verbose") == 0 ? &out->is_verbose
                                                       : NULL;
    if (flag != NULL)
        *flag = 1;
    return flag != NULL;
}

static int read_option(numerics_options *out, const char *name, const char *value)
{
    return strcmp(name, "--path") == 0    ? read_path(out, value)
           : strcmp(name, "--types") == 0 ? read_types(out, value)
           : strcmp(name, "--dims") == 0  ? read_dims(out, value)
           : strcmp(name, "--seed") == 0  ? read_seed(out, value)
           : strcmp(name, "--cases") == 0 ? read_count(&out->cases, value)
           : strcmp(name, "--case") == 0  ? read_count(&out->only_case, value)
                                          : 0;
}

static void set_defaults(numerics_options *out)
{
    const char *full = getenv("CLATTN_TEST_FULL");
    memset(out, 0, sizeof *out);
    out->path = CLATTN_PATH_CPU;
    out->types = TYPES_F32;
    memcpy(out->dims, all_dims, sizeof all_dims);
    out->num_dims = (int)(sizeof all_dims / sizeof *all_dims);
    out->all = full != NULL && strcmp(full, "1") == 0;
}

static void choose_seeds(numerics_options *out)
{
    if (out->num_seeds == 0) {
        struct timespec now = {0, 0};
        timespec_get(&now, TIME_UTC);
        out->seeds[0] = 1;
        out->seeds[1] = (uint64_t)now.tv_sec * 1000 + (uint64_t)now.tv_nsec / 1000000;
        out->num_seeds = 2;
    }
    for (int i = 0; i < out->num_seeds; i++)
        printf("seed %llu (repeat with --seed %llu)\n", (unsigned long long)out->seeds[i],
               (unsigned long long)out->seeds[i]);
}

int options_read(numerics_options *out, int argc, char **argv)
{
    set_defaults(out);
    const char *seed = getenv("CLATTN_TEST_SEED");
    int good = seed == NULL || read_seed(out, seed);
    for (int i = 1; i < argc && good; i++)
        if (!read_flag(out, argv[i])) {
            good = i + 1 < argc && read_option(out, argv[i], argv[i + 1]);
            i++;
        }
    if (!good) {
        fputs(usage, stderr);
        return 1;
    }
    choose_seeds(out);
    return 0;
}
