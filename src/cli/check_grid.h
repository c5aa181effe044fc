/* check_grid.h: what `clattn check` runs: groups that share a compiled program, in each the variants of a
 * call, and lengths. */
#ifndef CLATTN_CHECK_GRID_H
#define CLATTN_CHECK_GRID_H

#include "check_mods.h"

/* Which variants a group has. */
enum { CHECK_LEAN, CHECK_FULL, CHECK_DIMS, CHECK_MODS, CHECK_SEQUENCES, CHECK_PAGES };

/* What one program serves. */
typedef struct check_group {
    int32_t dtype[4]; /* q, k, v, o */
    int32_t head_dim_qk, head_dim_v;
    int variants;       /* CHECK_* */
    int32_t dtype_bias; /* of CHECK_FULL and CHECK_MODS */
    int mod;            /* of CHECK_MODS: check_mods[mod] */
    int32_t phase;      /* CLATTN_PHASE_* */
    int32_t page_size;  /* of CHECK_PAGES */
    int quick;          /* part of --quick: QUICK, or QUICK_MEANT: not where portable stands in on a CPU */
} check_group;

enum { QUICK = 1, QUICK_MEANT = 2 };

extern const check_group check_groups[];
extern const int num_check_groups;

enum {
    STRIDED = 0x1,          /* gaps between rows, heads and batches; odd offsets */
    BIAS = 0x2,             /* of the shape that `bias_axes` names */
    BIAS_FORBIDS = 0x4,     /* a third of the bias is -inf, and so is one whole row */
    BIAS_LOWEST = 0x8,      /* one row is filled with the type's most negative number */
    NAN_LAST_KEY = 0x10,    /* NaN in k at the last key: forbidden to all rows but those that see it */
    INF_KEYS = 0x20,        /* -inf in k, so that q.k is -inf for some keys */
    TIES = 0x40,            /* all keys alike: every weight the same */
    HEAD_SCALE = 0x80,      /* a factor of the bias for each head, 0 for the first */
    MASK = 0x100,           /* of the shape that `mask_axes` names; half of it allows */
    MASK_EMPTY_ROW = 0x200, /* one row allows nothing */
    MASK_HIDES = 0x400,     /* every third key is forbidden to all */
    MASK_BLOCKS = 0x800,    /* whole blocks of 32 x 32 allow or forbid, like a chessboard */
    ALIBI = 0x1000,         /* slopes for each head, one of them negative */
    ALIBI_BATCH = 0x2000,   /* and for each batch entry */
    SINKS = 0x4000,
    SINKS_NONE = 0x8000, /* the first head's is -inf */
    Q_LENS = 0x10000,    /* lengths of every kind, 0 among them */
    KV_LENS = 0x20000,
    OFFSETS = 0x40000,
    TILES = 0x80000,       /* random lists, some empty; the options say how large tiles are */
    TILES_WILD = 0x100000, /* in any order, with entries that name no tile and such as come twice */
    PACKED_Q = 0x200000,   /* of CHECK_SEQUENCES and CHECK_PAGES, all from here on */
    PACKED_K = 0x400000,
    APPEND = 0x800000,     /* as many tokens as q has rows */
    ONE_SCALE = 0x1000000, /* with F8: one scale for all */
    SCALE_BY_HEAD = 0x2000000,
    ROPE_TABLES = 0x4000000,
    KEYS_TIMES_10 = 0x8000000,  /* some rows of k so much larger: they move a running maximum, late too */
    KEYS_TIMES_200 = 0x10000000 /* of floats, both */
};

typedef struct check_variant {
    const char *name;
    const char *options; /* as on the command line, without blanks inside a word */
    unsigned flags;
    unsigned bias_axes; /* bit 0: batch, 1: head, 2: row, 3: key; the others are repeated */
    unsigned mask_axes;
} check_variant;

/* Whether the sequences of a group's cases are packed, in pages, or appended to. */
int check_is_serving(const check_group *group);

/* How many cases a group has. */
int check_case_count(const check_group *group, int quick);

/* The variant of case number `index`. */
const check_variant *check_variant_of(const check_group *group, int quick, int index);

typedef struct check_sizes {
    int64_t batch, heads_q, heads_kv, q_len, kv_len;
} check_sizes;

/* The sizes of case number `index`. */
check_sizes check_sizes_of(const check_group *group, int quick, int index);

#endif
