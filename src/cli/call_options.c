/* call_options.c: options of one attention call, from and to text. */
#include "call_options.h"

#include "clattn.h"
#include "cli.h"
#include "option_words.h"
#include "tensor_convert.h"

#include <cjson/cJSON.h>

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

const char *const tensor_names[TENSOR_COUNT] = {
    [TENSOR_Q] = "q",
    [TENSOR_K] = "k",
    [TENSOR_V] = "v",
    [TENSOR_BIAS] = "bias",
    [TENSOR_MASK] = "mask",
    [TENSOR_BIAS_HEAD_SCALE] = "bias_head_scale",
    [TENSOR_ALIBI_SLOPES] = "alibi_slopes",
    [TENSOR_SINKS] = "sinks",
    [TENSOR_Q_LENS] = "q_lens",
    [TENSOR_KV_LENS] = "kv_lens",
    [TENSOR_OFFSETS] = "offsets",
    [TENSOR_TILES_COUNT] = "tiles_count",
    [TENSOR_TILES_INDEX] = "tiles_index",
    [TENSOR_USER] = "user",
    [TENSOR_CU_SEQLENS_Q] = "cu_seqlens_q",
    [TENSOR_CU_SEQLENS_K] = "cu_seqlens_k",
    [TENSOR_BLOCK_TABLE] = "block_table",
    [TENSOR_K_SCALE] = "k_scale",
    [TENSOR_V_SCALE] = "v_scale",
    [TENSOR_K_NEW] = "k_new",
    [TENSOR_V_NEW] = "v_new",
    [TENSOR_ROPE_COS] = "rope_cos",
    [TENSOR_ROPE_SIN] = "rope_sin",
    [TENSOR_O] = "o",
    [TENSOR_LSE] = "lse",
};

const int tensor_num_strides[TENSOR_COUNT] = {
    [TENSOR_Q] = 3,
    [TENSOR_K] = 3,
    [TENSOR_V] = 3,
    [TENSOR_BIAS] = 4,
    [TENSOR_MASK] = 4,
    [TENSOR_BIAS_HEAD_SCALE] = 2,
    [TENSOR_ALIBI_SLOPES] = 2,
    [TENSOR_SINKS] = 2,
    [TENSOR_Q_LENS] = 1,
    [TENSOR_KV_LENS] = 1,
    [TENSOR_OFFSETS] = 1,
    [TENSOR_TILES_COUNT] = 3,
    [TENSOR_TILES_INDEX] = 4,
    [TENSOR_USER] = 0,
    [TENSOR_CU_SEQLENS_Q] = 1,
    [TENSOR_CU_SEQLENS_K] = 1,
    [TENSOR_BLOCK_TABLE] = 2,
    [TENSOR_K_SCALE] = 3,
    [TENSOR_V_SCALE] = 3,
    [TENSOR_K_NEW] = 3,
    [TENSOR_V_NEW] = 3,
    [TENSOR_ROPE_COS] = 1,
    [TENSOR_ROPE_SIN] = 1,
    [TENSOR_O] = 3,
    [TENSOR_LSE] = 3,
};

const option_row call_rows[] = {
    {OPTION_CAUSAL, "causal", 0, ARGUMENT_OPTIONAL, "bottom-right|top-left",
     "keys up to the row's own position only"},
    {OPTION_OFFSET, "offset", 0, ARGUMENT_REQUIRED, "N", "position of query row 0 (no alignment)"},
    {OPTION_WINDOW, "window", 0, ARGUMENT_REQUIRED, "L,R",
     "keys seen left and right of the position; -1: all"},
    {OPTION_SCALE, "scale", 0, ARGUMENT_REQUIRED, "X", "default: 1/sqrt(head dim)"},
    {OPTION_SOFTCAP, "softcap", 0, ARGUMENT_REQUIRED, "X", "scores become X * tanh(score / X)"},
    {OPTION_LAYOUT, "layout", 0, ARGUMENT_REQUIRED, "bhsd|bshd",
     "of q, k, v and o, unless packed or paged; default: bhsd"},
    {OPTION_OUT_DTYPE, "out-dtype", 0, ARGUMENT_REQUIRED, "TYPE", "f32, f16 or bf16; default: q's"},
    {OPTION_LSE, "lse", 0, ARGUMENT_NONE, NULL, "also the log-sum-exp of every row"},
    {OPTION_LSE_BASE, "lse-base", 0, ARGUMENT_REQUIRED, "2|e", "of the log-sum-exp; default: e"},
    {OPTION_ALIBI_MAX_BIAS, "alibi-max-bias", 0, ARGUMENT_REQUIRED, "M",
     "ALiBi with the standard slopes (8 is usual), without a tensor"},
    {OPTION_TILES, "tiles", 0, ARGUMENT_REQUIRED, "ROWS,KEYS",
     "the size of the key tiles that tiles_count and tiles_index list"},
    {OPTION_SCORE_MOD, "score-mod", 0, ARGUMENT_REQUIRED, "TEXT",
     "OpenCL C that gives a new score, as clattn.h describes"},
    {OPTION_MASK_MOD, "mask-mod", 0, ARGUMENT_REQUIRED, "TEXT", "OpenCL C that is 0 for a forbidden key"},
    {OPTION_USER_VALUES, "user-values", 0, ARGUMENT_REQUIRED, "A,B,C,D",
     "1 to 4 numbers that both texts see as `values`"},
    {OPTION_PATH, "path", 0, ARGUMENT_REQUIRED, "NAME", "auto, portable, cpu, nvidia_mma or nvidia_wgmma"},
    {OPTION_STRIDES, "strides", 0, ARGUMENT_REQUIRED, "T=B,H,N",
     "lay tensor T (of the input, o or lse) out so; in elements"},
    {OPTION_OFFSET_BYTES, "offset-bytes", 0, ARGUMENT_REQUIRED, "T=N",
     "tensor T begins at byte N of its buffer"},
    {OPTION_VERIFY, "verify", 0, ARGUMENT_NONE, NULL, "also compare with the double-precision reference"},
    {OPTION_END, NULL, 0, 0, NULL, NULL},
};

#define NOT_OFFERED(name)                                          \
    {                                                              \
        OPTION_NOT_OFFERED, name, 0, ARGUMENT_OPTIONAL, NULL, NULL \
    }

const option_row call_rows_not_offered[] = {
    NOT_OFFERED("deterministic"),  NOT_OFFERED("dropout"),  NOT_OFFERED("seed"),
    NOT_OFFERED("dropout-offset"), NOT_OFFERED("backward"), {OPTION_END, NULL, 0, 0, NULL, NULL},
};

static int apply_causal(call_options *o, const char *value)
{
    o->causal = 1;
    if (!value && o->position_mode == CLATTN_POSITION_TOP_LEFT)
        o->position_mode = CLATTN_POSITION_BOTTOM_RIGHT; /* overrides an earlier one */
    if (!value)
        return CLI_OK;
    if (strcmp(value, "bottom-right") == 0)
        o->position_mode = CLATTN_POSITION_BOTTOM_RIGHT;
    else if (strcmp(value, "top-left") == 0)
        o->position_mode = CLATTN_POSITION_TOP_LEFT;
    else
        return cli_fail(CLI_USAGE, "--causal '%.60s': expected bottom-right or top-left", value);
    o->alignment_given = 1;
    return CLI_OK;
}

static int apply_window(call_options *o, const char *value)
{
    int64_t side[2];
    int count;
    const int status = option_integers("window", value, ',', side, 2, 2, &count);
    if (status != CLI_OK)
        return status;
    if (side[0] < -1 || side[1] < -1)
        return cli_fail(CLI_USAGE, "--window '%.60s': expected numbers >= -1", value);
    o->has_window = 1;
    o->window_left = side[0];
    o->window_right = side[1];
    return CLI_OK;
}

static int apply_layout(call_options *o, const char *value)
{
    o->layout_bshd = strcmp(value, "bshd") == 0;
    if (!o->layout_bshd && strcmp(value, "bhsd") != 0)
        return cli_fail(CLI_USAGE, "--layout '%.60s': expected bhsd or bshd", value);
    return CLI_OK;
}

/* Splits "k=..." into the tensor's number and what follows. */
static int split_tensor(const char *name, const char *value, int *tensor, const char **rest)
{
    const char *equals = strchr(value, '=');
    for (int t = 0; equals && t < TENSOR_COUNT; t++)
        if (strlen(tensor_names[t]) == (size_t)(equals - value) &&
            strncmp(tensor_names[t], value, (size_t)(equals - value)) == 0) {
            *tensor = t;
            *rest = equals + 1;
            return CLI_OK;
        }
    return cli_fail(CLI_USAGE, "--%s '%.60s': expected T=..., T an input tensor, o or lse", name, value);
}

static int apply_strides(call_options *o, const char *value)
{
    int t = 0;
    const char *rest = NULL;
    int status = split_tensor("strides", value, &t, &rest);
    if (status != CLI_OK)
        return status;
    const int count = tensor_num_strides[t];
    if (count == 0)
        return cli_fail(CLI_USAGE, "--strides '%.60s': '%s' has none", value, tensor_names[t]);
    status = option_integers("strides", rest, ',', o->strides[t], count, count, &o->num_strides[t]);
    for (int i = 0; status == CLI_OK && i < o->num_strides[t]; i++)
        if (o->strides[t][i] < 0)
            status = cli_fail(CLI_USAGE, "--strides '%.60s': expected numbers >= 0", value);
    return status;
}

static int apply_offset_bytes(call_options *o, const char *value)
{
    int t = 0;
    const char *rest = NULL;
    int status = split_tensor("offset-bytes", value, &t, &rest);
    if (status == CLI_OK)
        status = option_integer("offset-bytes", rest, &o->offset_bytes[t]);
    if (status == CLI_OK && o->offset_bytes[t] < 0)
        status = cli_fail(CLI_USAGE, "--offset-bytes '%.60s': expected a number >= 0", value);
    return status;
}

static int apply_scale(call_options *o, const char *value)
{
    const int status = option_number("scale", value, &o->scale);
    if (status == CLI_OK && o->scale == 0)
        return cli_fail(CLI_USAGE, "--scale '%.60s': expected a number other than 0", value);
    return status;
}

static int apply_softcap(call_options *o, const char *value)
{
    const int status = option_number("softcap", value, &o->softcap);
    if (status == CLI_OK && !(o->softcap > 0))
        return cli_fail(CLI_USAGE, "--softcap '%.60s': expected a number > 0", value);
    return status;
}

static int apply_lse_base(call_options *o, const char *value)
{
    o->lse_base_given = 1;
    o->lse_base_2 = strcmp(value, "2") == 0;
    if (!o->lse_base_2 && strcmp(value, "e") != 0)
        return cli_fail(CLI_USAGE, "--lse-base '%.60s': expected 2 or e", value);
    return CLI_OK;
}

static int apply_alibi_max_bias(call_options *o, const char *value)
{
    const int status = option_number("alibi-max-bias", value, &o->alibi_max_bias);
    if (status == CLI_OK && !(o->alibi_max_bias > 0))
        return cli_fail(CLI_USAGE, "--alibi-max-bias '%.60s': expected a number > 0", value);
    return status;
}

static int apply_tiles(call_options *o, const char *value)
{
    int64_t size[2];
    int count;
    const int status = option_integers("tiles", value, ',', size, 2, 2, &count);
    if (status != CLI_OK)
        return status;
    for (int i = 0; i < 2; i++)
        if (size[i] < 1 || size[i] > CLATTN_MAX_LENGTH)
            return cli_fail(CLI_USAGE, "--tiles '%.60s': expected numbers from 1 to %d", value,
                            CLATTN_MAX_LENGTH);
    o->tile_rows = size[0];
    o->tile_keys = size[1];
    return CLI_OK;
}

static int apply_user_values(call_options *o, const char *value)
{
    memset(o->user_values, 0, sizeof o->user_values);
    return option_numbers("user-values", value, o->user_values, 4, &o->num_user_values);
}

int call_options_apply(call_options *o, int id, const char *name, const char *value)
{
    switch (id) {
    case OPTION_CAUSAL:
        return apply_causal(o, value);
    case OPTION_OFFSET:
        o->position_mode = CLATTN_POSITION_EXPLICIT;
        return option_integer(name, value, &o->q_offset);
    case OPTION_WINDOW:
        return apply_window(o, value);
    case OPTION_SCALE:
        return apply_scale(o, value);
    case OPTION_SOFTCAP:
        return apply_softcap(o, value);
    case OPTION_LAYOUT:
        return apply_layout(o, value);
    case OPTION_OUT_DTYPE:
        return option_dtype(name, value, &o->out_dtype);
    case OPTION_LSE:
        o->want_lse = 1;
        return CLI_OK;
    case OPTION_LSE_BASE:
        return apply_lse_base(o, value);
    case OPTION_ALIBI_MAX_BIAS:
        return apply_alibi_max_bias(o, value);
    case OPTION_TILES:
        return apply_tiles(o, value);
    case OPTION_SCORE_MOD:
        return option_program_text(name, value, &o->score_mod);
    case OPTION_MASK_MOD:
        return option_program_text(name, value, &o->mask_mod);
    case OPTION_USER_VALUES:
        return apply_user_values(o, value);
    case OPTION_PATH:
        return option_path(name, value, &o->path);
    case OPTION_STRIDES:
        return apply_strides(o, value);
    case OPTION_OFFSET_BYTES:
        return apply_offset_bytes(o, value);
    case OPTION_VERIFY:
        o->verify = 1;
        return CLI_OK;
    default:
        return serving_option_apply(&o->serving, id, name, value);
    }
}

int call_options_check(const call_options *o)
{
    if (o->alignment_given && o->position_mode == CLATTN_POSITION_EXPLICIT)
        return cli_fail(CLI_USAGE, "--offset: expected instead of an alignment, not beside "
                                   "--causal=bottom-right or --causal=top-left");
    if (!o->want_lse && (o->num_strides[TENSOR_LSE] || o->offset_bytes[TENSOR_LSE]))
        return cli_fail(CLI_USAGE, "a layout is given for 'lse', but --lse is not");
    if (!o->want_lse && o->lse_base_given)
        return cli_fail(CLI_USAGE, "--lse-base: expected with --lse");
    if (o->num_user_values && !o->score_mod && !o->mask_mod)
        return cli_fail(CLI_USAGE, "--user-values: expected with --score-mod or --mask-mod, which see them");
    return serving_options_check(&o->serving);
}

/* ---- To and from a case file ------------------------------------------------------------------- */

/* Numbers with commas between them after "--name=prefix". */
static void add_integers(cJSON *words, const char *name, const char *tensor, const int64_t *value, int count)
{
    char text[160] = "";
    for (int i = 0; i < count; i++) {
        const size_t used = strlen(text);
        cli_format(text + used, sizeof text - used, "%s%" PRId64, i ? "," : "", value[i]);
    }
    option_add_word(words, "--%s=%s%s%s", name, tensor ? tensor : "", tensor ? "=" : "", text);
}

/* Of any length. Returns 0, or -1 without memory. */
static int add_text(cJSON *words, const char *name, const char *value)
{
    const size_t size = strlen(name) + strlen(value) + 4;
    char *text = malloc(size);
    if (!text)
        return -1;
    snprintf(text, size, "--%s=%s", name, value);
    cJSON_AddItemToArray(words, cJSON_CreateString(text));
    free(text);
    return 0;
}

static void add_positions(cJSON *words, const call_options *o)
{
    const int64_t window[2] = {o->window_left, o->window_right};
    if (o->causal)
        option_add_word(words, "%s",
                        o->position_mode == CLATTN_POSITION_TOP_LEFT ? "--causal=top-left"
                        : o->alignment_given                         ? "--causal=bottom-right"
                                                                     : "--causal");
    if (o->position_mode == CLATTN_POSITION_EXPLICIT)
        add_integers(words, "offset", NULL, &o->q_offset, 1);
    if (o->has_window)
        add_integers(words, "window", NULL, window, 2);
}

static int add_scores(cJSON *words, const call_options *o)
{
    const int64_t tiles[2] = {o->tile_rows, o->tile_keys};
    if (o->scale != 0)
        option_add_numbers(words, "scale", &o->scale, 1);
    if (o->softcap != 0)
        option_add_numbers(words, "softcap", &o->softcap, 1);
    if (o->alibi_max_bias != 0)
        option_add_numbers(words, "alibi-max-bias", &o->alibi_max_bias, 1);
    if (o->tile_rows)
        add_integers(words, "tiles", NULL, tiles, 2);
    if (o->num_user_values)
        option_add_numbers(words, "user-values", o->user_values, o->num_user_values);
    if (o->score_mod && add_text(words, "score-mod", o->score_mod) != 0)
        return -1;
    return o->mask_mod ? add_text(words, "mask-mod", o->mask_mod) : 0;
}

static void add_results(cJSON *words, const call_options *o)
{
    if (o->layout_bshd)
        option_add_word(words, "--layout=bshd");
    if (o->out_dtype)
        option_add_word(words, "--out-dtype=%s", dtype_name(o->out_dtype));
    if (o->want_lse)
        option_add_word(words, "--lse");
    if (o->lse_base_2)
        option_add_word(words, "--lse-base=2");
    serving_options_to_words(words, &o->serving);
    if (o->path)
        option_add_word(words, "--path=%s", path_name(o->path));
    for (int t = 0; t < TENSOR_COUNT; t++) {
        if (o->num_strides[t])
            add_integers(words, "strides", tensor_names[t], o->strides[t], o->num_strides[t]);
        if (o->offset_bytes[t])
            add_integers(words, "offset-bytes", tensor_names[t], &o->offset_bytes[t], 1);
    }
    if (o->verify)
        option_add_word(words, "--verify");
}

char *call_options_to_json(const call_options *o, uint64_t local_bytes)
{
    cJSON *words = cJSON_CreateArray();
    add_positions(words, o);
    const int enough = add_scores(words, o) == 0;
    add_results(words, o);
    if (local_bytes)
        option_add_word(words, "--local-memory=%" PRIu64, local_bytes);
    char *text = enough ? cJSON_PrintUnformatted(words) : NULL;
    cJSON_Delete(words);
    return text;
}

static int apply_from_words(void *user, int id, const char *name, const char *value)
{
    return call_options_apply(user, id, name, value);
}

int call_options_from_words(call_options *options, common_options *common, const char *const *words,
                            int count)
{
    char program[] = "run";
    char **argv = malloc(((size_t)count + 2) * sizeof *argv);
    if (!argv)
        return cli_fail(CLI_FAILED, "out of memory");
    argv[0] = program;
    for (int i = 0; i < count; i++)
        argv[i + 1] = (char *)words[i]; /* getopt moves them about, but changes none */
    argv[count + 1] = NULL;
    common_options ignored = {0}; /* a case file chooses neither device nor cache */
    const option_set set = {{call_rows, serving_rows, call_rows_not_offered}, apply_from_words, options};
    int operands = 0;
    int status = options_parse(&set, &ignored, count + 1, argv, &operands);
    if (status == CLI_OK && operands > 0)
        status = cli_fail(CLI_USAGE, "unexpected '%.60s' in its options", argv[0]);
    if (status == CLI_OK && ignored.local_bytes)
        common->local_bytes = ignored.local_bytes;
    free(argv);
    return status;
}

int call_options_from_json(call_options *options, common_options *common, const char *json,
                           const char *source, void **owner)
{
    enum { MAX_WORDS = 256 };
    const char *words[MAX_WORDS];
    int count = 0, status = CLI_OK;
    cJSON *tree = cJSON_Parse(json);
    const cJSON *word;
    *owner = tree;
    cli_set_file(source);
    if (!cJSON_IsArray(tree) || cJSON_GetArraySize(tree) > MAX_WORDS)
        status = cli_fail(CLI_USAGE, "options in its metadata: expected a JSON array of at most %d texts",
                          MAX_WORDS);
    cJSON_ArrayForEach(word, tree)
    {
        if (status == CLI_OK && !cJSON_IsString(word))
            status = cli_fail(CLI_USAGE, "options in its metadata: number %d is no text", count + 1);
        else if (status == CLI_OK)
            words[count++] = word->valuestring;
    }
    if (status == CLI_OK)
        status = call_options_from_words(options, common, words, count);
    cli_set_file(NULL);
    return status;
}

void call_options_free_owner(void *owner) { cJSON_Delete(owner); }
