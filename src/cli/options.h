/* options.h: the command line. One list of rows per topic gives both the parser and the help text;
 * what a later version will offer is listed too, so that it is refused by name. */
#ifndef CLATTN_CLI_OPTIONS_H
#define CLATTN_CLI_OPTIONS_H

#include <stddef.h>
#include <stdint.h>

enum {
    OPTION_END = 0,
    OPTION_HELP = 256,
    OPTION_VERBOSE,
    OPTION_DEVICE,
    OPTION_NO_CACHE,
    OPTION_CACHE_DIR,
    OPTION_LOCAL_MEMORY,
    OPTION_TUNING,
    OPTION_JSON,
    OPTION_PATH,
    OPTION_CAUSAL,
    OPTION_OFFSET,
    OPTION_WINDOW,
    OPTION_SCALE,
    OPTION_SOFTCAP,
    OPTION_LAYOUT,
    OPTION_OUT_DTYPE,
    OPTION_LSE,
    OPTION_LSE_BASE,
    OPTION_ALIBI_MAX_BIAS,
    OPTION_TILES,
    OPTION_SCORE_MOD,
    OPTION_MASK_MOD,
    OPTION_USER_VALUES,
    OPTION_STRIDES,
    OPTION_OFFSET_BYTES,
    OPTION_VERIFY,
    OPTION_PHASE,
    OPTION_SPLITS,
    OPTION_BATCH_INVARIANT,
    OPTION_KV_DTYPE,
    OPTION_EMIT_CACHE,
    OPTION_V_IN_K,
    OPTION_ROPE,
    OPTION_ROPE_BASE,
    OPTION_ROPE_SCALE,
    OPTION_ROTARY_DIM,
    OPTION_NOT_OFFERED,   /* known, but not in this version */
    OPTION_COMMAND = 1024 /* a command's own options count from here */
};

enum { ARGUMENT_NONE, ARGUMENT_REQUIRED, ARGUMENT_OPTIONAL };

typedef struct option_row {
    int id; /* OPTION_END closes a list */
    const char *name;
    char letter; /* 0: no short form */
    int argument;
    const char *value; /* what the help calls the argument */
    const char *help;  /* NULL: not shown */
} option_row;

/* Options that every command has. */
typedef struct common_options {
    const char *device; /* NULL: the first GPU, else the first device */
    const char *cache_dir;
    const char *tuning; /* a file of `clattn tune`; NULL: none */
    int no_cache;
    int verbose;
    int help;
    uint64_t local_bytes; /* 0: no limit but the device's */
} common_options;

extern const option_row common_rows[];

/* What --help of a command prints around its options. */
typedef struct command_text {
    const char *usage;
    const char *about;
} command_text;

/* Called for each option that is not a common one. Returns an exit status. */
typedef int (*option_apply)(void *user, int id, const char *name, const char *value);

typedef struct option_set {
    const option_row *lists[4]; /* NULL after the last; common_rows is not among them */
    option_apply apply;
    void *user;
} option_set;

/* Parses options and leaves the other arguments, in order, in argv[0] .. argv[*num_operands - 1]
 * (argv[0], the command's name, is passed over). Prints what is wrong; returns an exit status. */
int options_parse(const option_set *set, common_options *common, int argc, char **argv, int *num_operands);

void options_print_help(const option_set *set, const command_text *text);

/* Values; `name` is the option's, for the message. Return exit statuses. */
int option_integer(const char *name, const char *value, int64_t *out);
int option_number(const char *name, const char *value, float *out);
int option_bytes(const char *name, const char *value, uint64_t *out); /* with an optional K or M */
int option_integers(const char *name, const char *value, char separator, int64_t *out, int least, int most,
                    int *count);
int option_numbers(const char *name, const char *value, float *out, int most, int *count);
int option_program_text(const char *name, const char *value, const char **out); /* UTF-8, not empty */
int option_dtype(const char *name, const char *value, int32_t *out);
int option_path(const char *name, const char *value, int32_t *out);

const char *path_name(int32_t path); /* CLATTN_PATH_* */

#endif
