/* call_options.c: options of one attention call, from and to text. */
#include "call_options.h"

#include "clattn.h"
#include "cli.h"
#include "tensor_convert.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

const char *const tensor_names[TENSOR_COUNT] = {"q", "k", "v", "bias", "o", "lse"};

const option_row call_rows[] = {
    {OPTION_CAUSAL, "causal", 0, ARGUMENT_OPTIONAL, "bottom-right|top-left",
     "keys up to the row's own position only"},
    {OPTION_OFFSET, "offset", 0, ARGUMENT_REQUIRED, "N", "position of query row 0 (no alignment)"},
    {OPTION_WINDOW, "window", 0, ARGUMENT_REQUIRED, "L,R",
     "keys seen left and right of the position; -1: all"},
    {OPTION_SCALE, "scale", 0, ARGUMENT_REQUIRED, "X", "default: 1/sqrt(head dim)"},
    {OPTION_SOFTCAP, "softcap", 0, ARGUMENT_REQUIRED, "X", "scores become X * tanh(score / X)"},
    {OPTION_LAYOUT, "layout", 0, ARGUMENT_REQUIRED, "bhsd|bshd", "of q, k, v and o; default: bhsd"},
    {OPTION_OUT_DTYPE, "out-dtype", 0, ARGUMENT_REQUIRED, "TYPE", "f32, f16 or bf16; default: q's"},
    {OPTION_LSE, "lse", 0, ARGUMENT_NONE, NULL, "also the log-sum-exp of every row"},
    {OPTION_PATH, "path", 0, ARGUMENT_REQUIRED, "NAME", "auto, portable or cpu"},
    {OPTION_STRIDES, "strides", 0, ARGUMENT_REQUIRED, "T=B,H,N",
     "lay tensor T (q,k,v,bias,o,lse) out so; in elements"},
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
    NOT_OFFERED("splits"),         NOT_OFFERED("deterministic"), NOT_OFFERED("batch-invariant"),
    NOT_OFFERED("dropout"),        NOT_OFFERED("seed"),          NOT_OFFERED("dropout-offset"),
    NOT_OFFERED("alibi-max-bias"), NOT_OFFERED("lse-base"),      NOT_OFFERED("kv-dtype"),
    NOT_OFFERED("emit-cache"),     NOT_OFFERED("score-mod"),     NOT_OFFERED("mask-mod"),
    NOT_OFFERED("backward"),       NOT_OFFERED("rope"),          {OPTION_END, NULL, 0, 0, NULL, NULL},
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
    return cli_fail(CLI_USAGE, "--%s '%.60s': expected T=..., T one of q, k, v, bias, o, lse", name, value);
}

static int apply_strides(call_options *o, const char *value)
{
    int t = 0;
    const char *rest = NULL;
    int status = split_tensor("strides", value, &t, &rest);
    if (status != CLI_OK)
        return status;
    const int least = t == TENSOR_BIAS ? 4 : 3; /* the bias has a stride from key to key as well */
    status = option_integers("strides", rest, ',', o->strides[t], least, least, &o->num_strides[t]);
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
        return -1;
    }
}

int call_options_check(const call_options *o)
{
    if (o->alignment_given && o->position_mode == CLATTN_POSITION_EXPLICIT)
        return cli_fail(CLI_USAGE, "--offset: expected instead of an alignment, not beside "
                                   "--causal=bottom-right or --causal=top-left");
    if (!o->want_lse && (o->num_strides[TENSOR_LSE] || o->offset_bytes[TENSOR_LSE]))
        return cli_fail(CLI_USAGE, "a layout is given for 'lse', but --lse is not");
    return CLI_OK;
}

static void append(char *out, size_t capacity, const char *text)
{
    const size_t used = strlen(out);
    cli_format(out + used, capacity - used, "%s%s", used ? " " : "", text);
}

static void append_layout(const call_options *o, int t, char *out, size_t capacity)
{
    char text[160];
    if (o->num_strides[t]) {
        cli_format(text, sizeof text, "--strides=%s=%" PRId64 ",%" PRId64 ",%" PRId64, tensor_names[t],
                   o->strides[t][0], o->strides[t][1], o->strides[t][2]);
        append(out, capacity, text);
        if (o->num_strides[t] == 4) {
            const size_t used = strlen(out);
            cli_format(out + used, capacity - used, ",%" PRId64, o->strides[t][3]);
        }
    }
    if (o->offset_bytes[t]) {
        cli_format(text, sizeof text, "--offset-bytes=%s=%" PRId64, tensor_names[t], o->offset_bytes[t]);
        append(out, capacity, text);
    }
}

void call_options_text(const call_options *o, char *out, size_t capacity)
{
    char text[96];
    out[0] = 0;
    if (o->causal)
        append(out, capacity,
               o->position_mode == CLATTN_POSITION_TOP_LEFT ? "--causal=top-left" : "--causal");
    if (o->position_mode == CLATTN_POSITION_EXPLICIT) {
        cli_format(text, sizeof text, "--offset=%" PRId64, o->q_offset);
        append(out, capacity, text);
    }
    if (o->has_window) {
        cli_format(text, sizeof text, "--window=%" PRId64 ",%" PRId64, o->window_left, o->window_right);
        append(out, capacity, text);
    }
    if (o->scale != 0) {
        cli_format(text, sizeof text, "--scale=%.9g", (double)o->scale);
        append(out, capacity, text);
    }
    if (o->softcap != 0) {
        cli_format(text, sizeof text, "--softcap=%.9g", (double)o->softcap);
        append(out, capacity, text);
    }
    if (o->layout_bshd)
        append(out, capacity, "--layout=bshd");
    if (o->out_dtype) {
        cli_format(text, sizeof text, "--out-dtype=%s", dtype_name(o->out_dtype));
        append(out, capacity, text);
    }
    if (o->want_lse)
        append(out, capacity, "--lse");
    if (o->path) {
        cli_format(text, sizeof text, "--path=%s", path_name(o->path));
        append(out, capacity, text);
    }
    for (int t = 0; t < TENSOR_COUNT; t++)
        append_layout(o, t, out, capacity);
    if (o->verify)
        append(out, capacity, "--verify");
}

static int apply_from_text(void *user, int id, const char *name, const char *value)
{
    return call_options_apply(user, id, name, value);
}

int call_options_from_text(call_options *options, common_options *common, const char *text,
                           const char *source)
{
    enum { MAX_WORDS = 64 };
    char program[] = "run";
    char *words[MAX_WORDS + 1] = {program};
    int count = 1;
    char *copy = malloc(strlen(text) + 1);
    if (!copy)
        return cli_fail(CLI_FAILED, "out of memory");
    strcpy(copy, text);
    cli_set_file(source);
    int status = CLI_OK;
    for (char *word = strtok(copy, " "); word; word = strtok(NULL, " ")) {
        if (count == MAX_WORDS)
            status = cli_fail(CLI_USAGE, "more than %d options in its metadata", MAX_WORDS);
        if (status != CLI_OK)
            break;
        words[count++] = word;
    }
    common_options ignored = {0}; /* a case file chooses neither device nor cache */
    const option_set set = {{call_rows, call_rows_not_offered}, apply_from_text, options};
    int operands = 0;
    if (status == CLI_OK)
        status = options_parse(&set, &ignored, count, words, &operands);
    if (status == CLI_OK && operands > 0)
        status = cli_fail(CLI_USAGE, "unexpected '%.60s' in its options", words[0]);
    if (status == CLI_OK && ignored.local_bytes)
        common->local_bytes = ignored.local_bytes;
    cli_set_file(NULL);
    free(copy);
    return status;
}
