/* case_extras.c: the optional tensors of a call. */
#include "case_serving.h"
#include "case_tensors.h"

#include "cli.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

typedef int (*read_values)(case_tensor *t, const safetensors_tensor *source, const char *name);

/* Which shapes a tensor may have: aligned right on `full`, whose first `axes` count. */
typedef struct shape_rule {
    read_values read;
    int axes;
    int64_t full[4];
    int least_rank, most_rank;
    unsigned repeatable; /* bit i: axis i may be 1 instead, and is then repeated */
} shape_rule;

static int64_t tiles_of(int64_t length, int64_t size) { return length > 0 ? (length - 1) / size + 1 : 0; }

static shape_rule rule_of(const attention_case *c, int tensor, const safetensors_tensor *source)
{
    const int64_t b = c->batch, h = c->heads_q;
    const int64_t row_tiles = c->options.tile_rows ? tiles_of(c->q_len, c->options.tile_rows) : 0;
    switch (tensor) {
    case TENSOR_BIAS:
        return (shape_rule){case_read_floats, 4, {b, h, c->q_len, c->kv_len}, 1, 4, 15};
    case TENSOR_MASK:
        return (shape_rule){case_read_bools, 4, {b, h, c->q_len, c->kv_len}, 1, 4, 15};
    case TENSOR_ALIBI_SLOPES:
        return (shape_rule){case_read_f32, 2, {b, h}, 1, 2, 0};
    case TENSOR_TILES_COUNT:
        return (shape_rule){case_read_integers, 3, {b, h, row_tiles}, 3, 3, 3};
    case TENSOR_TILES_INDEX: /* any capacity */
        return (shape_rule){
            case_read_integers, 4, {b, h, row_tiles, source->rank == 4 ? source->shape[3] : 0}, 4, 4, 3};
    case TENSOR_Q_LENS:
    case TENSOR_KV_LENS:
    case TENSOR_OFFSETS:
        return (shape_rule){case_read_integers, 1, {b}, 1, 1, 0};
    default: /* bias_head_scale, sinks */
        return (shape_rule){case_read_f32, 2, {b, h}, 1, 1, 0};
    }
}

/* "[4] or [2,4]"; "[2 or 1,4 or 1,3]" */
static void expected_shapes(char *out, size_t capacity, const shape_rule *rule, int tensor)
{
    out[0] = 0;
    for (int rank = rule->least_rank; rank <= rule->most_rank; rank++) {
        size_t used = strlen(out);
        cli_format(out + used, capacity - used, "%s[", used ? " or " : "");
        for (int axis = rule->axes - rank; axis < rule->axes; axis++) {
            used = strlen(out);
            if (tensor == TENSOR_TILES_INDEX && axis == 3)
                cli_format(out + used, capacity - used, ",capacity");
            else
                cli_format(out + used, capacity - used, "%s%" PRId64 "%s",
                           axis > rule->axes - rank ? "," : "", rule->full[axis],
                           rule->repeatable >> axis & 1 && rule->full[axis] != 1 ? " or 1" : "");
        }
        used = strlen(out);
        cli_format(out + used, capacity - used, "]");
    }
}

static int refuse_shape(const shape_rule *rule, int tensor, const safetensors_tensor *source,
                        const char *name)
{
    char have[160], want[200];
    safetensors_shape_text(have, sizeof have, source->shape, source->rank);
    if (rule->repeatable == 15) {
        safetensors_shape_text(want, sizeof want, rule->full, 4);
        return cli_fail(CLI_USAGE, "%.200s: tensor '%s' has shape %s; expected one that broadcasts to %s",
                        name, source->name, have, want);
    }
    expected_shapes(want, sizeof want, rule, tensor);
    return cli_fail(CLI_USAGE, "%.200s: tensor '%s' has shape %s; expected %s", name, source->name, have,
                    want);
}

static int read_extra(attention_case *c, int tensor, const safetensors_tensor *source, const char *name)
{
    case_tensor *t = &c->tensor[tensor];
    const shape_rule rule = rule_of(c, tensor, source);
    const int status = rule.read(t, source, name);
    if (status != CLI_OK)
        return status;
    if (source->rank < rule.least_rank || source->rank > rule.most_rank)
        return refuse_shape(&rule, tensor, source, name);
    int64_t stride = 1;
    for (int i = 0; i < 4; i++) {
        t->dim[i] = i < rule.axes ? rule.full[i] : 1;
        t->value_stride[i] = 0;
    }
    for (int i = rule.axes - 1, axis = source->rank - 1; axis >= 0; i--, axis--) {
        const int64_t size = source->shape[axis];
        const int repeated = rule.repeatable >> i & 1 && size == 1;
        if (size != rule.full[i] && !repeated)
            return refuse_shape(&rule, tensor, source, name);
        t->value_stride[i] = repeated ? 0 : stride;
        stride *= size > 0 ? size : 1; /* within 62 bits: checked against the file's size */
    }
    memcpy(t->stride, t->value_stride, sizeof t->stride);
    return CLI_OK;
}

/* In pages, the longest sequence that there can be is seldom the longest that there is: bias and mask may
 * have as many keys as some number between the two, which then bounds the call. */
static void take_key_bound(attention_case *c, const safetensors_file *file)
{
    int64_t longest = 0;
    for (int64_t b = 0; b < c->batch; b++)
        if (case_kv_len(c, b) > longest)
            longest = case_kv_len(c, b);
    for (int t = TENSOR_BIAS; c->num_pages && t <= TENSOR_MASK; t++) {
        const safetensors_tensor *source = safetensors_find(file, tensor_names[t]);
        const int64_t keys = source && source->rank > 0 ? source->shape[source->rank - 1] : 1;
        if (keys != 1 && keys >= longest && keys < c->kv_len) {
            c->kv_len = keys;
            return;
        }
    }
}

static int read_user(attention_case *c, const safetensors_tensor *source, const char *name)
{
    case_tensor *t = &c->tensor[TENSOR_USER];
    for (int i = 0; i < 4; i++)
        t->dim[i] = 1;
    return case_read_raw(t, source, name);
}

/* ---- What takes part only together, or not together ---------------------------------------------- */

static int check_tiles(const attention_case *c, const safetensors_file *file, const char *name)
{
    const int option = c->options.tile_rows != 0;
    for (int t = TENSOR_TILES_COUNT; t <= TENSOR_TILES_INDEX; t++) {
        const int other = t == TENSOR_TILES_COUNT ? TENSOR_TILES_INDEX : TENSOR_TILES_COUNT;
        const int here = safetensors_find(file, tensor_names[t]) != NULL;
        const int there = safetensors_find(file, tensor_names[other]) != NULL;
        if (here && !option)
            return cli_fail(CLI_USAGE, "%.200s: tensor '%s': expected with --tiles ROWS,KEYS", name,
                            tensor_names[t]);
        if (!here && (option || there))
            return cli_fail(CLI_USAGE,
                            "%.200s: tensor '%s' is missing; expected tiles_count, tiles_index and --tiles "
                            "together",
                            name, tensor_names[t]);
    }
    return CLI_OK;
}

static int check_combination(const attention_case *c, const safetensors_file *file, const char *name)
{
    const call_options *o = &c->options;
    if (safetensors_find(file, "bias_head_scale") && !safetensors_find(file, "bias"))
        return cli_fail(CLI_USAGE, "%.200s: tensor 'bias_head_scale': expected with 'bias', which is missing",
                        name);
    if (safetensors_find(file, "alibi_slopes") && o->alibi_max_bias != 0)
        return cli_fail(CLI_USAGE,
                        "%.200s: tensor 'alibi_slopes': expected instead of --alibi-max-bias, not "
                        "beside it",
                        name);
    if (safetensors_find(file, "offsets") &&
        (o->position_mode == CLATTN_POSITION_EXPLICIT || o->alignment_given))
        return cli_fail(CLI_USAGE,
                        "%.200s: tensor 'offsets': expected instead of --offset and of an alignment, "
                        "not beside %s",
                        name, o->alignment_given ? "--causal=bottom-right or --causal=top-left" : "--offset");
    if (safetensors_find(file, "user") && !o->score_mod && !o->mask_mod)
        return cli_fail(CLI_USAGE,
                        "%.200s: tensor 'user': expected with --score-mod or --mask-mod, which read "
                        "it",
                        name);
    return check_tiles(c, file, name);
}

/* ---- Values --------------------------------------------------------------------------------------- */

/* The library clamps what is out of range, because it cannot see it in time; a file is refused. */
static int check_range(const attention_case *c, int tensor, int64_t least, int64_t most, const char *name)
{
    const case_tensor *t = &c->tensor[tensor];
    const int32_t *value = t->values;
    const size_t count = t->present ? t->value_bytes / sizeof *value : 0;
    for (size_t i = 0; i < count; i++)
        if (value[i] < least || value[i] > most)
            return cli_fail(
                CLI_USAGE, "%.200s: tensor '%s' holds %d (its element %zu); expected %" PRId64 " to %" PRId64,
                name, tensor_names[tensor], (int)value[i], i, least, most);
    return CLI_OK;
}

/* A valid length is at most that of its packed sequence. */
static int check_within(const attention_case *c, int lens, int cu_seqlens, const char *name)
{
    const int32_t *value = c->tensor[lens].values, *begin = c->tensor[cu_seqlens].values;
    for (int64_t b = 0; value && begin && b < c->batch; b++)
        if (value[b] > begin[b + 1] - begin[b])
            return cli_fail(CLI_USAGE,
                            "%.200s: tensor '%s' holds %d (its element %" PRId64
                            "); expected 0 to %d, the rows that '%s' gives that entry",
                            name, tensor_names[lens], (int)value[b], b, (int)(begin[b + 1] - begin[b]),
                            tensor_names[cu_seqlens]);
    return CLI_OK;
}

static int check_lengths(const attention_case *c, const char *name)
{
    int status = check_range(c, TENSOR_Q_LENS, 0, c->q_len, name);
    if (status == CLI_OK)
        status = check_range(c, TENSOR_KV_LENS, 0, c->kv_len, name);
    if (status == CLI_OK)
        status = check_within(c, TENSOR_Q_LENS, TENSOR_CU_SEQLENS_Q, name);
    return status == CLI_OK ? check_within(c, TENSOR_KV_LENS, TENSOR_CU_SEQLENS_K, name) : status;
}

static int check_numbers(const attention_case *c, const char *name)
{
    int status = check_range(c, TENSOR_OFFSETS, -CLATTN_MAX_LENGTH, CLATTN_MAX_LENGTH, name);
    if (status == CLI_OK)
        status = check_range(c, TENSOR_TILES_COUNT, 0, c->tensor[TENSOR_TILES_INDEX].dim[3], name);
    return status; /* entries that name no tile have a meaning: they are passed over */
}

/* ---- Slopes --------------------------------------------------------------------------------------- */

static int compute_slopes(attention_case *c)
{
    case_tensor *t = &c->tensor[TENSOR_ALIBI_SLOPES];
    float *slopes = t->owned = malloc((size_t)c->heads_q * sizeof *slopes);
    if (!slopes)
        return cli_fail(CLI_FAILED, "not enough memory for the slopes");
    const clattn_status result = clattn_alibi_slopes(slopes, (int32_t)c->heads_q, c->options.alibi_max_bias);
    if (result != CLATTN_SUCCESS)
        return cli_fail(CLI_FAILED, "clattn_alibi_slopes: %s", clattn_status_string(result));
    const safetensors_tensor source = {tensor_names[TENSOR_ALIBI_SLOPES],  "F32", 1, {c->heads_q}, slopes,
                                       (size_t)c->heads_q * sizeof *slopes};
    return read_extra(c, TENSOR_ALIBI_SLOPES, &source, "--alibi-max-bias");
}

static int read_some(attention_case *c, int first, int last, const safetensors_file *file, const char *name)
{
    int status = CLI_OK;
    for (int t = first; status == CLI_OK && t <= last; t++) {
        const safetensors_tensor *source = safetensors_find(file, tensor_names[t]);
        if (source)
            status = t == TENSOR_USER ? read_user(c, source, name) : read_extra(c, t, source, name);
    }
    return status;
}

/* Lengths come first: what is appended, and how many keys bias and mask have, goes by them. */
int case_read_extras(attention_case *c, const safetensors_file *file, const char *name)
{
    int status = check_combination(c, file, name);
    if (status == CLI_OK)
        status = read_some(c, TENSOR_Q_LENS, TENSOR_OFFSETS, file, name);
    if (status == CLI_OK)
        status = check_lengths(c, name);
    if (status == CLI_OK)
        status = case_read_serving(c, file, name);
    if (status == CLI_OK) {
        take_key_bound(c, file);
        status = read_some(c, TENSOR_BIAS, TENSOR_SINKS, file, name);
    }
    if (status == CLI_OK)
        status = read_some(c, TENSOR_TILES_COUNT, TENSOR_USER, file, name);
    if (status == CLI_OK)
        status = check_numbers(c, name);
    if (status == CLI_OK && c->options.alibi_max_bias != 0)
        status = compute_slopes(c);
    return status;
}
