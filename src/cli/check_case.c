/* check_case.c: one case of `clattn check`. */
#include "check_case.h"

#include "case_serving.h"
#include "cli.h"
#include "tensor_convert.h"

#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

/* ---- Inputs ------------------------------------------------------------------------------------- */

static void set_element(void *values, int32_t dtype, int64_t element, float value)
{
    tensor_store((unsigned char *)values + (size_t)element * dtype_size(dtype), dtype, value);
}

/* Sets component `c` (-1: all) of row `row` of a head in a contiguous tensor. */
static void set_row(const attention_case *c, int tensor, void *values, int64_t b, int64_t h, int64_t row,
                    int64_t component, float value)
{
    const case_tensor *t = &c->tensor[tensor];
    const int64_t begin = b * t->value_stride[0] + h * t->value_stride[1] + row * t->value_stride[2];
    for (int64_t e = 0; e < t->dim[3]; e++)
        if (component < 0 || component == e)
            set_element(values, t->dtype, begin + e, value);
}

/* The same for a key of all heads. */
static void set_key(check_case *check, int tensor, int64_t key, int64_t component, float value)
{
    for (int64_t b = 0; b < check->c.batch; b++)
        for (int64_t h = 0; h < check->c.heads_kv; h++)
            set_row(&check->c, tensor, check->matrix[tensor], b, h, key, component, value);
}

static int is_seen(const reference_call *call, int64_t b, int64_t head_kv, int64_t key)
{
    const int64_t group = call->heads_q / call->heads_kv;
    const int64_t rows = reference_sequence_of(call, b).q_len;
    for (int64_t h = head_kv * group; h < (head_kv + 1) * group; h++)
        for (int64_t i = 0; i < rows; i++)
            if (reference_is_allowed(call, b, h, i, key))
                return 1;
    return 0;
}

/* NaN and infinity where they may change no result: at keys that no row sees, in rows beyond the valid. */
static void poison(check_case *check)
{
    const attention_case *c = &check->c;
    const reference_call call = case_reference(c);
    for (int64_t b = 0; b < c->batch; b++) {
        for (int64_t h = 0; h < c->heads_kv; h++)
            for (int64_t key = 0; key < c->kv_len; key++)
                if (!is_seen(&call, b, h, key)) {
                    set_row(c, TENSOR_K, check->matrix[1], b, h, key, -1, key % 2 ? NAN : INFINITY);
                    set_row(c, TENSOR_V, check->matrix[2], b, h, key, -1, key % 4 < 2 ? NAN : -INFINITY);
                }
        for (int64_t h = 0; h < c->heads_q; h++)
            for (int64_t i = case_q_len(c, b); i < c->q_len; i++)
                set_row(c, TENSOR_Q, check->matrix[0], b, h, i, -1, NAN);
    }
}

/* A seventh of the keys of each head, in places of its own. */
static void enlarge_keys(check_case *check, float factor, random_state *random)
{
    const case_tensor *k = &check->c.tensor[TENSOR_K];
    for (int64_t row = 0; row < k->dim[0] * k->dim[1] * k->dim[2]; row++)
        for (int64_t e = 0, taken = random_below(random, 7) == 0; taken && e < k->dim[3]; e++) {
            unsigned char *at =
                (unsigned char *)check->matrix[1] + (size_t)(row * k->dim[3] + e) * k->element;
            tensor_store(at, k->dtype, factor * tensor_load(at, k->dtype));
        }
}

static void change_keys(check_case *check, unsigned flags, random_state *random)
{
    const attention_case *c = &check->c;
    if (flags & (KEYS_TIMES_10 | KEYS_TIMES_200))
        enlarge_keys(check, flags & KEYS_TIMES_10 ? 10.0f : 200.0f, random);
    if (flags & NAN_LAST_KEY && c->kv_len > 0)
        set_key(check, TENSOR_K, c->kv_len - 1, 0, NAN);
    if (flags & TIES)
        for (int64_t key = 0; key < c->kv_len; key++)
            set_key(check, TENSOR_K, key, -1, 0.5f);
    if (flags & INF_KEYS) {
        /* With q[.,0] = 1 the product is -inf exactly for every third key, but never for key 0. */
        const int64_t rows = c->batch * c->heads_q * c->q_len;
        for (int64_t row = 0; row < rows; row++)
            set_element(check->matrix[0], c->tensor[TENSOR_Q].dtype, row * c->head_dim_qk, 1.0f);
        for (int64_t key = 1; key < c->kv_len; key += 3)
            set_key(check, TENSOR_K, key, 0, -INFINITY);
    }
}

static int make_matrices(check_case *out, const check_group *group, const check_sizes *s,
                         random_state *random)
{
    case_inputs *in = &out->inputs;
    const int64_t rows_q = s->batch * s->heads_q * s->q_len, rows_kv = s->batch * s->heads_kv * s->kv_len;
    in->batch = s->batch;
    in->heads_q = s->heads_q;
    in->heads_kv = s->heads_kv;
    in->q_len = s->q_len;
    in->kv_len = s->kv_len;
    in->head_dim_qk = group->head_dim_qk;
    in->head_dim_v = group->head_dim_v;
    in->dtype_q = group->dtype[0];
    in->dtype_k = group->dtype[1];
    in->dtype_v = group->dtype[2];
    in->extra = out->extra;
    in->q = out->matrix[0] = random_tensor(random, rows_q * in->head_dim_qk, in->dtype_q, 1.0f);
    in->k = out->matrix[1] = random_tensor(random, rows_kv * in->head_dim_qk, in->dtype_k, 1.0f);
    in->v = out->matrix[2] = random_tensor(random, rows_kv * in->head_dim_v, in->dtype_v, 1.0f);
    return in->q && in->k && in->v ? CLI_OK : cli_fail(CLI_FAILED, "out of memory");
}

/* ---- Options ------------------------------------------------------------------------------------ */

/* Offsets leave guard zones in front; strides, if asked for, gaps between everything. The numbers
 * are multiples of four elements by default (rows that kernels may read in whole vectors) and odd
 * otherwise. */
void check_choose_layout(call_options *o, int tensor, const check_layout *l)
{
    const int64_t odd = l->unit <= 4 ? 36 : 3 * l->unit, even = l->unit <= 4 ? 64 : 2 * l->unit;
    o->offset_bytes[tensor] = l->strided ? odd : even;
    if (!l->strided)
        return;
    const int64_t inner = l->dim + 3 + tensor % 5;
    const int64_t tokens = l->tokens > 0 ? l->tokens : 1;
    int64_t *stride = o->strides[tensor];
    o->num_strides[tensor] = 3;
    stride[2] = l->tokens_first ? inner * l->heads + 1 : inner;
    stride[1] = l->tokens_first ? inner : inner * tokens + 2;
    stride[0] = (l->tokens_first ? stride[2] * tokens : stride[1] * l->heads) + 5;
}

static void choose_layout(call_options *o, int tensor, int64_t heads, int64_t tokens, int64_t dim,
                          int strided)
{
    const check_layout layout = {heads, tokens, dim, o->layout_bshd, 1, strided};
    check_choose_layout(o, tensor, &layout);
}

/* Tensors that work score by score get a gap between keys as well; repeated axes stay so. */
static void choose_extra_layout(call_options *o, int tensor, const safetensors_tensor *t, int strided)
{
    o->offset_bytes[tensor] = tensor == TENSOR_USER ? 64 : !strided ? 16 : tensor == TENSOR_MASK ? 37 : 36;
    if (!strided || (tensor != TENSOR_BIAS && tensor != TENSOR_MASK))
        return;
    int64_t reach = 2;
    o->num_strides[tensor] = 4;
    for (int axis = 3; axis >= 0; axis--) {
        o->strides[tensor][axis] = t->shape[axis] == 1 ? 0 : reach;
        reach = (t->shape[axis] > 0 ? t->shape[axis] : 1) * reach + 1;
    }
}

static void choose_layouts(check_case *check, call_options *o, int strided)
{
    const case_inputs *in = &check->inputs;
    choose_layout(o, TENSOR_Q, in->heads_q, in->q_len, in->head_dim_qk, strided);
    choose_layout(o, TENSOR_K, in->heads_kv, in->kv_len, in->head_dim_qk, strided);
    choose_layout(o, TENSOR_V, in->heads_kv, in->kv_len, in->head_dim_v, strided);
    choose_layout(o, TENSOR_O, in->heads_q, in->q_len, in->head_dim_v, strided);
    if (o->want_lse)
        choose_layout(o, TENSOR_LSE, in->heads_q, in->q_len, 1, strided);
    for (size_t i = 0; i < in->num_extra; i++)
        for (int t = TENSOR_BIAS; t < NUM_INPUTS; t++)
            if (strcmp(tensor_names[t], check->extra[i].name) == 0)
                choose_extra_layout(o, t, &check->extra[i], strided);
}

/* A variant's options, which are words with blanks between them. */
static int parse_options(call_options *o, const char *text)
{
    enum { MAX_WORDS = 16 };
    char copy[256];
    const char *words[MAX_WORDS];
    int count = 0;
    common_options unused = {0};
    cli_format(copy, sizeof copy, "%s", text);
    for (char *word = strtok(copy, " "); word && count < MAX_WORDS; word = strtok(NULL, " "))
        words[count++] = word;
    return call_options_from_words(o, &unused, words, count);
}

static int choose_options(call_options *o, const check_group *group, const check_variant *v, int32_t path)
{
    const int status = parse_options(o, v->options);
    o->path = path;
    o->verify = 1; /* so that the saved case tells what was wrong */
    if (group->dtype[3] != group->dtype[0])
        o->out_dtype = group->dtype[3];
    o->serving.phase = PHASE_GIVEN(group->phase);
    if (group->variants == CHECK_MODS) {
        const check_mod *mod = &check_mods[group->mod];
        o->score_mod = mod->score_mod;
        o->mask_mod = mod->mask_mod;
        o->num_user_values = mod->num_values;
        memcpy(o->user_values, mod->values, sizeof o->user_values);
    }
    return status;
}

/* ---- One case ----------------------------------------------------------------------------------- */

/* Padded sequences of floats. */
static int make_padded(check_case *out, const check_group *group, const check_variant *v,
                       const check_sizes *s, call_options *options, random_state *random)
{
    int status = make_matrices(out, group, s, random);
    if (status == CLI_OK)
        status = check_add_extras(out, group, v, options, random);
    if (status != CLI_OK)
        return status;
    choose_layouts(out, options, (v->flags & STRIDED) != 0);
    status = case_from_inputs(&out->c, &out->inputs, options);
    if (status != CLI_OK)
        return status;
    out->c.checks_numbers = 0; /* so that cases with and without lengths share a program */
    if (group->variants == CHECK_MODS)
        out->c.mod = check_mod_twin(&check_mods[group->mod]);
    change_keys(out, v->flags, random);
    poison(out);
    return CLI_OK;
}

int check_case_make(check_case *out, const check_group *group, int quick, int index, int32_t path,
                    uint64_t seed)
{
    const check_variant *v = check_variant_of(group, quick, index);
    const check_sizes s = check_sizes_of(group, quick, index);
    random_state random = {seed};
    call_options options = {0};
    memset(out, 0, sizeof *out);
    int status = choose_options(&options, group, v, path);
    if (status == CLI_OK)
        status = check_is_serving(group) ? check_serving_make(out, group, v, &s, &options, &random)
                                         : make_padded(out, group, v, &s, &options, &random);
    if (status != CLI_OK) {
        check_case_release(out);
        return status;
    }
    out->c.guard_bytes = 128;
    cli_format(out->name, sizeof out->name,
               "%s: [%" PRId64 ",%" PRId64 "/%" PRId64 ",%" PRId64 "/%" PRId64 "]", v->name, s.batch,
               s.heads_q, s.heads_kv, s.q_len, s.kv_len);
    return CLI_OK;
}

void check_case_release(check_case *check)
{
    case_release(&check->c);
    for (int i = 0; i < 3; i++)
        free(check->matrix[i]);
    for (int i = 0; i < NUM_INPUTS; i++)
        free(check->extra_values[i]);
    memset(check, 0, sizeof *check);
}
