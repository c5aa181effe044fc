/* numerics_mods.h: a few functions over scores, each twice: in OpenCL C for a plan, in C for the
 * reference. What they look up lies in one user buffer, in sections of its own. */
#ifndef CLATTN_NUMERICS_MODS_H
#define CLATTN_NUMERICS_MODS_H

#include "numerics_random.h"
#include "reference.h"

typedef enum score_mod {
    SCORE_MOD_NONE,
    SCORE_MOD_DOUBLE,
    SCORE_MOD_SOFTPLUS, /* -inf becomes 0 */
    SCORE_MOD_RELATIVE, /* T5: a number for each head and clamped distance */
    SCORE_MOD_REVIVE,   /* infinite scores become finite */
    SCORE_MOD_FORBID,   /* some scores become -inf */
    SCORE_MOD_LINEAR,   /* depends on everything that it is told */
    SCORE_MOD_SHIFT,    /* adds values.w */
    SCORE_MODS
} score_mod;

typedef enum mask_mod {
    MASK_MOD_NONE,
    MASK_MOD_DOCUMENT, /* query and key belong to the same document */
    MASK_MOD_PREFIX,   /* causal, but the first values.y keys are seen by all */
    MASK_MOD_CHUNK,    /* the chunk of values.x keys that the position is in */
    MASK_MOD_TREE,     /* values.z keys of context, then the query's ancestors in a tree */
    MASK_MOD_STRIPES,  /* depends on everything that it is told */
    MASK_MOD_DIAGONAL, /* the key at values.y + query, modulo values.x, alone */
    MASK_MODS
} mask_mod;

/* The user buffer holds 32-bit words; the tests' batches and lengths stay below these bounds. */
enum {
    MODS_MAX_BATCH = 4,
    MODS_MAX_LENGTH = 640,
    MODS_MAX_HEADS = 16,
    MODS_DISTANCES = 64,
    MODS_WORDS = MODS_MAX_HEADS * MODS_DISTANCES + 2 * MODS_MAX_BATCH * MODS_MAX_LENGTH + MODS_MAX_LENGTH
};

/* What the C functions look at: reference_mod.user. */
typedef struct mods_state {
    const unsigned char *words; /* NULL: no user buffer */
    float values[4];
} mods_state;

const char *score_mod_text(score_mod mod); /* NULL: none */
const char *mask_mod_text(mask_mod mod);
const char *score_mod_name(score_mod mod);
const char *mask_mod_name(mask_mod mod);
int mods_need_user(score_mod score, mask_mod mask);

/* How much an error of the score grows at most; it also has one of its own, in units of the result. */
double score_mod_gain(score_mod mod);

/* Fills the sections that the two look up, for these lengths; leaves the others. */
void mods_fill_user(unsigned char *words, score_mod score, mask_mod mask, int64_t batch, int64_t heads,
                    int64_t q_len, int64_t kv_len, random_state *random);

reference_mod mods_reference(const mods_state *state, score_mod score, mask_mod mask);

#endif
