#include "numerics_mods.h"

#include <math.h>
#include <stddef.h>
#include <string.h>

/* Where the sections begin, in words; as numbers for the preprocessor, because the texts quote them. */
#define RELATIVE_AT 0
#define QUERY_DOCUMENTS_AT 1024
#define KEY_DOCUMENTS_AT 3584
#define PARENTS_AT 6144
#define ROW 640 /* words of a batch entry's documents */
#define QUOTE(x) #x
#define TEXT_OF(x) QUOTE(x)

_Static_assert(ROW == MODS_MAX_LENGTH && QUERY_DOCUMENTS_AT == MODS_MAX_HEADS * MODS_DISTANCES &&
                   KEY_DOCUMENTS_AT == QUERY_DOCUMENTS_AT + MODS_MAX_BATCH * ROW &&
                   PARENTS_AT == KEY_DOCUMENTS_AT + MODS_MAX_BATCH * ROW && MODS_WORDS == PARENTS_AT + ROW,
               "sections follow one another");

static int32_t int_at(const mods_state *state, int64_t word)
{
    int32_t value;
    memcpy(&value, state->words + word * 4, sizeof value);
    return value;
}

static float float_at(const mods_state *state, int64_t word)
{
    float value;
    memcpy(&value, state->words + word * 4, sizeof value);
    return value;
}

/* ---- Scores ---- */

#define SCORE_FUNCTION(name)                                                                     \
    static double name(void *user, double score, int64_t batch, int64_t head_q, int64_t head_kv, \
                       int64_t query, int64_t position, int64_t key)

/* Each looks at some of its arguments only. */
#define UNUSED(a) (void)(a)
#define ALL_UNUSED \
    UNUSED(user), UNUSED(batch), UNUSED(head_q), UNUSED(head_kv), UNUSED(query), UNUSED(position), UNUSED(key)

SCORE_FUNCTION(score_double)
{
    ALL_UNUSED;
    return 2 * score;
}

SCORE_FUNCTION(score_softplus)
{
    ALL_UNUSED;
    return fmax(score, 0) + log1p(exp(-fabs(score)));
}

SCORE_FUNCTION(score_relative)
{
    ALL_UNUSED;
    int64_t distance = key - position;
    distance = distance < -32 ? -32 : distance > 31 ? 31 : distance;
    return score + (double)float_at(user, RELATIVE_AT + head_q * MODS_DISTANCES + distance + 32);
}

SCORE_FUNCTION(score_revive)
{
    ALL_UNUSED;
    return isinf(score) ? (double)((const mods_state *)user)->values[3] : score;
}

SCORE_FUNCTION(score_forbid)
{
    ALL_UNUSED;
    return (query + key + head_q) % 5 == 0 ? -INFINITY : score;
}

SCORE_FUNCTION(score_linear)
{
    ALL_UNUSED;
    const double weight = (double)((const mods_state *)user)->values[3];
    return score + weight * (double)(head_q - 3 * head_kv + batch) + 0.015625 * (double)(query - key) +
           0.0078125 * (double)position;
}

SCORE_FUNCTION(score_shift)
{
    ALL_UNUSED;
    return score + (double)((const mods_state *)user)->values[3];
}

typedef struct score_entry {
    const char *name, *text;
    double (*function)(void *, double, int64_t, int64_t, int64_t, int64_t, int64_t, int64_t);
    double gain;
    int needs_user;
} score_entry;

static const score_entry score_entries[SCORE_MODS] = {
    [SCORE_MOD_NONE] = {"none", NULL, NULL, 1, 0},
    [SCORE_MOD_DOUBLE] = {"double", "score * 2.0f", score_double, 2, 0},
    [SCORE_MOD_SOFTPLUS] = {"softplus", "fmax(score, 0.0f) + log1p(exp(-fabs(score)))", score_softplus, 3, 0},
    [SCORE_MOD_RELATIVE] = {"relative",
                            "int distance = clamp(key - position, -32, 31) + 32;\n"
                            "const __global float *table = (const __global float *)user;\n"
                            "return score + table[head_q * 64 + distance];\n",
                            score_relative, 2, 1},
    [SCORE_MOD_REVIVE] = {"revive", "isinf(score) ? values.w : score", score_revive, 1, 0},
    [SCORE_MOD_FORBID] = {"forbid",
                          "if ((query + key + head_q) % 5 == 0)\n"
                          "    return -INFINITY;\n"
                          "return score;",
                          score_forbid, 1, 0},
    [SCORE_MOD_LINEAR] = {"linear",
                          "score + values.w * (float)(head_q - 3 * head_kv + batch)\n"
                          "    + 0.015625f * (float)(query - key) + 0.0078125f * (float)position",
                          score_linear, 2, 0},
    [SCORE_MOD_SHIFT] = {"shift", "score + values.w", score_shift, 2, 0},
};

/* ---- Masks ---- */

#define MASK_FUNCTION(name)                                                                    \
    static int name(void *user, int64_t batch, int64_t head_q, int64_t head_kv, int64_t query, \
                    int64_t position, int64_t key)

static int64_t value_of(const void *user, int index)
{
    return (int64_t)((const mods_state *)user)->values[index];
}

MASK_FUNCTION(mask_document)
{
    ALL_UNUSED;
    return int_at(user, QUERY_DOCUMENTS_AT + batch * ROW + query) ==
           int_at(user, KEY_DOCUMENTS_AT + batch * ROW + key);
}

MASK_FUNCTION(mask_prefix)
{
    ALL_UNUSED;
    return key <= position || key < value_of(user, 1);
}

MASK_FUNCTION(mask_chunk)
{
    ALL_UNUSED;
    return position >= 0 && key / value_of(user, 0) == position / value_of(user, 0);
}

MASK_FUNCTION(mask_tree)
{
    ALL_UNUSED;
    const int64_t ancestor = key - value_of(user, 2);
    int64_t node = query;
    while (node > ancestor && ancestor >= 0)
        node = int_at(user, PARENTS_AT + node);
    return ancestor < 0 || node == ancestor;
}

MASK_FUNCTION(mask_stripes)
{
    ALL_UNUSED;
    return (query + key + head_q + 2 * head_kv + batch) % 3 != 0 || key == position;
}

MASK_FUNCTION(mask_diagonal)
{
    ALL_UNUSED;
    return key == (query + value_of(user, 1)) % value_of(user, 0);
}

typedef struct mask_entry {
    const char *name, *text;
    int (*function)(void *, int64_t, int64_t, int64_t, int64_t, int64_t, int64_t);
    int needs_user;
} mask_entry;

static const mask_entry mask_entries[MASK_MODS] = {
    [MASK_MOD_NONE] = {"none", NULL, NULL, 0},
    [MASK_MOD_DOCUMENT] = {"document",
                           "const __global int *ids = (const __global int *)user;\n"
                           "return ids[" TEXT_OF(QUERY_DOCUMENTS_AT) " + batch * " TEXT_OF(
                               ROW) " + query] ==\n"
                                    "       ids[" TEXT_OF(KEY_DOCUMENTS_AT) " + batch * " TEXT_OF(
                                        ROW) " + key];",
                           mask_document, 1},
    [MASK_MOD_PREFIX] = {"prefix", "key <= position || key < (int)values.y", mask_prefix, 0},
    [MASK_MOD_CHUNK] = {"chunk",
                        "const int size = (int)values.x;\n"
                        "return position >= 0 && key / size == position / size;",
                        mask_chunk, 0},
    [MASK_MOD_TREE] = {"tree",
                       "const __global int *parents = (const __global int *)user + " TEXT_OF(
                           PARENTS_AT) ";\n"
                                       "const int ancestor = key - (int)values.z;\n"
                                       "int node = query;\n"
                                       "while (node > ancestor && ancestor >= 0)\n"
                                       "    node = parents[node];\n"
                                       "return ancestor < 0 || node == ancestor;",
                       mask_tree, 1},
    [MASK_MOD_STRIPES] = {"stripes",
                          "(query + key + head_q + 2 * head_kv + batch) % 3 != 0 || key == position",
                          mask_stripes, 0},
    [MASK_MOD_DIAGONAL] = {"diagonal", "key == (query + (int)values.y) % (int)values.x", mask_diagonal, 0},
};

/* ---- The user buffer ---- */

static void store_int(unsigned char *words, int64_t word, int64_t number)
{
    const int32_t value = (int32_t)number;
    memcpy(words + word * 4, &value, sizeof value);
}

static void store_float(unsigned char *words, int64_t word, float value)
{
    memcpy(words + word * 4, &value, sizeof value);
}

/* Keys in documents of about 20; a query belongs to that of the key at its bottom-right position. */
static void fill_documents(unsigned char *words, int64_t b, int64_t q_len, int64_t kv_len,
                           random_state *random)
{
    int64_t document = 0;
    for (int64_t j = 0; j < kv_len; j++) {
        document += random_chance(random, 5);
        store_int(words, KEY_DOCUMENTS_AT + b * ROW + j, document);
    }
    const mods_state state = {words, {0, 0, 0, 0}};
    for (int64_t i = 0; i < q_len; i++) {
        const int64_t key = i + kv_len - q_len;
        store_int(words, QUERY_DOCUMENTS_AT + b * ROW + i,
                  key < 0 ? -1 : int_at(&state, KEY_DOCUMENTS_AT + b * ROW + key));
    }
}

void mods_fill_user(unsigned char *words, score_mod score, mask_mod mask, int64_t batch, int64_t heads,
                    int64_t q_len, int64_t kv_len, random_state *random)
{
    if (score == SCORE_MOD_RELATIVE)
        for (int64_t n = 0; n < heads * MODS_DISTANCES; n++)
            store_float(words, RELATIVE_AT + n, 2 * random_normal(random));
    for (int64_t b = 0; mask == MASK_MOD_DOCUMENT && b < batch; b++)
        fill_documents(words, b, q_len, kv_len, random);
    for (int64_t i = 0; mask == MASK_MOD_TREE && i < q_len; i++)
        store_int(words, PARENTS_AT + i, random_between(random, i < 6 ? -1 : i - 6, i - 1));
}

/* ---- The tables ---- */

const char *score_mod_text(score_mod mod) { return score_entries[mod].text; }
const char *mask_mod_text(mask_mod mod) { return mask_entries[mod].text; }
const char *score_mod_name(score_mod mod) { return score_entries[mod].name; }
const char *mask_mod_name(mask_mod mod) { return mask_entries[mod].name; }
double score_mod_gain(score_mod mod) { return score_entries[mod].gain; }

int mods_need_user(score_mod score, mask_mod mask)
{
    return score_entries[score].needs_user || mask_entries[mask].needs_user;
}

reference_mod mods_reference(const mods_state *state, score_mod score, mask_mod mask)
{
    const reference_mod mod = {score_entries[score].function, mask_entries[mask].function, (void *)state};
    return mod;
}
