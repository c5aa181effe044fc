/* numerics_options.h: what a run of the numerics tests covers. */
#ifndef CLATTN_NUMERICS_OPTIONS_H
#define CLATTN_NUMERICS_OPTIONS_H

#include <stdint.h>

enum { MAX_DIMS = 32, MAX_SEEDS = 2 };

typedef struct head_dims {
    int32_t qk, v;
} head_dims;

typedef struct numerics_options {
    int32_t path;   /* CLATTN_PATH_*, or PATHS_BOTH for programs that know it */
    unsigned types; /* TYPES_*, or-ed */
    head_dims dims[MAX_DIMS];
    int num_dims;
    uint64_t seeds[MAX_SEEDS];
    int num_seeds;
    int all;        /* the full cross product instead of a sample */
    int half;       /* each head dim class with lean or full scores only, in turn: half the programs */
    int cases;      /* of a sample, per seed (the grid: and per program); 0: as the program likes */
    int only_case;  /* this one alone; 0: all */
    int is_verbose; /* each call is named before it runs: for those that crash */
} numerics_options;

enum { PATHS_BOTH = 0 };

enum { TYPES_F32 = 1, TYPES_F16 = 2, TYPES_BF16 = 4, TYPES_MIXED = 8 };

/* Reads the command line and the environment: CLATTN_TEST_FULL=1 is --all, CLATTN_TEST_SEED=N is
 * --seed N, CLATTN_TEST_CACHE is a directory. Without a seed there are two: 1, and a fresh one.
 * Prints them. Returns 0, or 1 after a line on stderr. */
int options_read(numerics_options *out, int argc, char **argv);

#endif
