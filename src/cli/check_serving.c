/* check_serving.c: cases of `clattn check` whose sequences are packed, lie in pages, are appended to, or are
 * held in caches of any type. */
#include "cache_types.h"
#include "case_serving.h"
#include "check_case.h"
#include "cli.h"
#include "tensor_convert.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { MAX_BATCH = 4 };

/* How the sequences of one case lie. */
typedef struct serving_shape {
    const check_group *group;
    const check_variant *v;
    check_sizes s;
    int64_t rows[MAX_BATCH], keys[MAX_BATCH]; /* of each entry: of q; before the call */
    int64_t total_q, total_k;
    int64_t capacity; /* of padded caches and of pages: places of an entry */
    int64_t max_blocks, num_pages;
    int bshd;
} serving_shape;

/* Neighbouring entries get lengths of different kinds: all, none, one, any. */
static int64_t length_of(int64_t b, int64_t most, int vary, random_state *random)
{
    const int64_t of_kind[4] = {most, 0, most < 1 ? most : 1, random_below(random, most + 1)};
    return vary ? of_kind[b % 4] : most;
}

static void choose_shape(serving_shape *x, const call_options *o, random_state *random)
{
    const unsigned flags = x->v->flags;
    const int64_t new_len = flags & APPEND ? x->s.q_len : 0;
    x->bshd = o->layout_bshd;
    for (int64_t b = 0; b < x->s.batch; b++) {
        x->rows[b] = length_of(b, x->s.q_len, (flags & (PACKED_Q | Q_LENS)) != 0, random);
        x->keys[b] = length_of(b + 2, x->s.kv_len, (flags & (PACKED_K | KV_LENS)) != 0, random);
        x->total_q += x->rows[b];
        x->total_k += x->keys[b];
    }
    x->capacity = x->s.kv_len + new_len;
    if (x->group->variants != CHECK_PAGES)
        return;
    const int64_t page = x->group->page_size;
    x->max_blocks = (x->capacity + page - 1) / page + 1;
    x->num_pages = x->s.batch * x->max_blocks + 3;
}

/* ---- Tensors ------------------------------------------------------------------------------------ */

static int form_of(const serving_shape *x, int is_q)
{
    const unsigned flags = x->v->flags;
    return !is_q && x->max_blocks                 ? FORM_PAGES
           : flags & (is_q ? PACKED_Q : PACKED_K) ? FORM_PACKED
           : x->bshd                              ? FORM_BSHD
                                                  : FORM_BHSD;
}

/* The axes of a tensor before its last, as its form orders them. Returns how many. */
static int outer_shape(const serving_shape *x, int is_q, int64_t heads, int64_t tokens, int64_t shape[4])
{
    const int form = form_of(x, is_q);
    const int64_t by_form[4][3] = {{x->s.batch, heads, tokens},
                                   {x->s.batch, tokens, heads},
                                   {is_q ? x->total_q : x->total_k, heads, 0},
                                   {x->num_pages, x->group->page_size, heads}};
    memcpy(shape, by_form[form], sizeof by_form[form]);
    return form == FORM_PACKED ? 2 : 3;
}

static void layout(const serving_shape *x, call_options *o, int tensor, int is_q, const int64_t *shape,
                   int axes, int64_t dim, size_t unit)
{
    const int form = form_of(x, is_q);
    const check_layout l = {shape[form == FORM_BHSD ? axes - 2 : axes - 1],
                            shape[form == FORM_BHSD ? axes - 1 : axes - 2],
                            dim,
                            form != FORM_BHSD,
                            (int64_t)unit,
                            (x->v->flags & STRIDED) != 0};
    check_choose_layout(o, tensor, &l);
}

/* q, k_new or v_new: random floats. */
static int add_floats(check_case *out, const serving_shape *x, call_options *o, int tensor, int64_t heads,
                      int64_t dim, random_state *random)
{
    const int32_t dtype = x->group->dtype[0];
    int64_t shape[4];
    const int axes = outer_shape(x, 1, heads, x->s.q_len, shape);
    shape[axes] = dim;
    int64_t count = 1;
    for (int i = 0; i <= axes; i++)
        count *= shape[i];
    unsigned char *values = check_add(out, tensor_names[tensor], dtype_safetensors_name(dtype),
                                      dtype_size(dtype), axes + 1, shape);
    for (int64_t i = 0; values && i < count; i++)
        tensor_store(values + (size_t)i * dtype_size(dtype), dtype, random_normal(random));
    layout(x, o, tensor, 1, shape, axes, dim, dtype_size(dtype));
    return values != NULL;
}

/* The scale of row `row` of a cache with scales of one of three kinds. */
static float *scale_at(float *scales, unsigned flags, int64_t row, int64_t heads, int64_t heads_stride)
{
    return flags & ONE_SCALE       ? scales
           : flags & SCALE_BY_HEAD ? scales + row / heads_stride % heads
                                   : scales + row;
}

static float *add_scales(check_case *out, const serving_shape *x, call_options *o, int tensor,
                         const int64_t *shape, int axes, int per_row, random_state *random)
{
    const unsigned flags = per_row ? 0 : x->v->flags;
    const int64_t one[1] = {1};
    const int by_head = (flags & SCALE_BY_HEAD) != 0, single = (flags & ONE_SCALE) != 0;
    float *scales = single    ? check_add(out, tensor_names[tensor], "F32", sizeof *scales, 1, one)
                    : by_head ? check_add(out, tensor_names[tensor], "F32", sizeof *scales, 1, &x->s.heads_kv)
                              : check_add(out, tensor_names[tensor], "F32", sizeof *scales, axes, shape);
    const size_t count = scales ? out->extra[out->inputs.num_extra - 1].bytes / sizeof *scales : 0;
    for (size_t i = 0; i < count; i++)
        scales[i] = 0.25f + 0.125f * (float)random_below(random, 8);
    if (scales && !single && !by_head)
        layout(x, o, tensor, 0, shape, axes, 1, sizeof *scales);
    return scales;
}

/* k or v: random rows, stored as their type stores them. */
static int add_cache(check_case *out, const serving_shape *x, call_options *o, int tensor,
                     random_state *random)
{
    const int is_k = tensor == TENSOR_K;
    const int32_t dtype = x->group->dtype[is_k ? 1 : 2];
    const int64_t dim = is_k ? x->group->head_dim_qk : x->group->head_dim_v,
                  units = dim / dtype_elements(dtype);
    const int scaled = dtype >= CLATTN_DTYPE_I8 && dtype <= CLATTN_DTYPE_F8_E5M2,
              is_i8 = dtype == CLATTN_DTYPE_I8;
    const unsigned flags = x->v->flags;
    int64_t shape[4], rows = 1;
    float row[CLATTN_MAX_HEAD_DIM], *scales = NULL, used;
    const int axes = outer_shape(x, 0, x->s.heads_kv, x->capacity, shape);
    for (int i = 0; i < axes; i++)
        rows *= shape[i];
    shape[axes] = dtype_elements(dtype) > 1 ? units * (int64_t)dtype_size(dtype) : dim;
    unsigned char *values = check_add(out, tensor_names[tensor], dtype_safetensors_name(dtype),
                                      dtype_elements(dtype) > 1 ? 1 : dtype_size(dtype), axes + 1, shape);
    if (scaled)
        scales = add_scales(out, x, o, is_k ? TENSOR_K_SCALE : TENSOR_V_SCALE, shape, axes, is_i8, random);
    if (!values || (scaled && !scales))
        return 0;
    const int64_t heads_stride = form_of(x, 0) == FORM_BHSD ? shape[axes - 1] : 1;
    /* Caches of codes and bytes keep their range. */
    const int may_enlarge = is_k && dtype_is_plain(dtype) && flags & (KEYS_TIMES_10 | KEYS_TIMES_200);
    for (int64_t r = 0; r < rows; r++) {
        const float factor = !may_enlarge || random_below(random, 7) > 0 ? 1.0f
                             : flags & KEYS_TIMES_10                     ? 10.0f
                                                                         : 200.0f;
        for (int64_t e = 0; e < dim; e++)
            row[e] = factor * random_normal(random);
        float *scale = !scaled ? NULL
                       : is_i8 ? scales + r
                               : scale_at(scales, flags, r, x->s.heads_kv, heads_stride);
        cache_encode_row(dtype, row, dim, is_i8 || !scale ? 0 : *scale,
                         values + (size_t)(r * units) * dtype_size(dtype), &used);
        if (is_i8)
            *scale = used;
    }
    if (dtype_elements(dtype) > 1)
        o->serving.kv_dtype[is_k ? 0 : 1] = dtype; /* which blocks the bytes are */
    layout(x, o, tensor, 0, shape, axes, units, dtype_size(dtype));
    return 1;
}

static int add_integers(check_case *out, const char *name, const int64_t *value, int64_t count)
{
    int32_t *values = check_add(out, name, "I32", sizeof *values, 1, &count);
    for (int64_t i = 0; values && i < count; i++)
        values[i] = (int32_t)value[i];
    return values != NULL;
}

static int add_starts(check_case *out, const char *name, const int64_t *lens, int64_t batch)
{
    int64_t starts[MAX_BATCH + 1] = {0};
    for (int64_t b = 0; b < batch; b++)
        starts[b + 1] = starts[b] + lens[b];
    return add_integers(out, name, starts, batch + 1);
}

/* Pages in any order; entries beyond an entry's keys name none. */
static int add_table(check_case *out, const serving_shape *x, random_state *random)
{
    const int64_t shape[2] = {x->s.batch, x->max_blocks}, count = shape[0] * shape[1];
    int32_t *table = check_add(out, "block_table", "I32", sizeof *table, 2, shape);
    int32_t *order = malloc((size_t)x->num_pages * sizeof *order);
    for (int64_t i = 0; order && i < x->num_pages; i++) {
        const int64_t j = random_below(random, i + 1);
        order[i] = order[j];
        order[j] = (int32_t)i;
    }
    for (int64_t i = 0; table && order && i < count; i++) {
        const int64_t b = i / x->max_blocks, new_len = x->v->flags & APPEND ? x->rows[b] : 0;
        const int used = i % x->max_blocks * x->group->page_size < x->keys[b] + new_len;
        table[i] = used ? order[i] : i % 2 ? -1 : INT32_MAX;
    }
    free(order);
    return table && order;
}

static int add_rope_tables(check_case *out, const serving_shape *x)
{
    const int64_t shape[2] = {x->s.kv_len + x->s.q_len + 1, x->group->head_dim_qk / 2};
    float *cosine = check_add(out, "rope_cos", "F32", sizeof *cosine, 2, shape);
    float *sine = check_add(out, "rope_sin", "F32", sizeof *sine, 2, shape);
    for (int64_t i = 0; cosine && sine && i < shape[0] * shape[1]; i++) {
        const double angle = (double)(i / shape[1]) * pow(1000, -(double)(i % shape[1]) / (double)shape[1]);
        cosine[i] = (float)cos(angle);
        sine[i] = (float)sin(angle);
    }
    return cosine && sine;
}

static int add_tensors(check_case *out, const serving_shape *x, call_options *o, random_state *random)
{
    const unsigned flags = x->v->flags;
    const int64_t batch = x->s.batch;
    int enough = add_floats(out, x, o, TENSOR_Q, x->s.heads_q, x->group->head_dim_qk, random) &&
                 add_cache(out, x, o, TENSOR_K, random) && add_cache(out, x, o, TENSOR_V, random);
    if (enough && flags & APPEND)
        enough = add_floats(out, x, o, TENSOR_K_NEW, x->s.heads_kv, x->group->head_dim_qk, random) &&
                 add_floats(out, x, o, TENSOR_V_NEW, x->s.heads_kv, x->group->head_dim_v, random);
    if (enough && flags & PACKED_Q)
        enough = add_starts(out, "cu_seqlens_q", x->rows, batch);
    if (enough && flags & PACKED_K)
        enough = add_starts(out, "cu_seqlens_k", x->keys, batch);
    if (enough && flags & Q_LENS)
        enough = add_integers(out, "q_lens", x->rows, batch);
    if (enough && flags & KV_LENS)
        enough = add_integers(out, "kv_lens", x->keys, batch);
    if (enough && x->max_blocks)
        enough = add_table(out, x, random);
    return enough && flags & ROPE_TABLES ? add_rope_tables(out, x) : enough;
}

/* ---- Poison ------------------------------------------------------------------------------------- */

static int is_seen(const reference_call *call, int64_t b, int64_t head_kv, int64_t key)
{
    const int64_t group = call->heads_q / call->heads_kv;
    for (int64_t h = head_kv * group; h < (head_kv + 1) * group; h++)
        for (int64_t i = 0; i < reference_sequence_of(call, b).q_len; i++)
            if (reference_is_allowed(call, b, h, i, key))
                return 1;
    return 0;
}

static void *values_of(const attention_case *c, int tensor)
{
    return (void *)(uintptr_t)c->tensor[tensor].values;
}

/* Bytes of 0xff, which no type's rows survive, in every row of k and v that no row of q may see: in other
 * pages, beyond the lengths, masked, or where new tokens will lie. The scale of a row is made NaN with it. */
static int poison(const attention_case *c)
{
    const case_tensor *k = &c->tensor[TENSOR_K];
    const reference_call call = case_reference(c);
    unsigned char *seen = calloc((size_t)(k->dim[0] * k->dim[1] * k->dim[2]) + 1, 1);
    if (!seen)
        return cli_fail(CLI_FAILED, "out of memory");
    for (int64_t b = 0; b < c->batch; b++)
        for (int64_t h = 0; h < c->heads_kv; h++)
            for (int64_t j = 0; j < case_old_len(c, b); j++) {
                int64_t batch, token;
                if (case_key_place(c, b, j, &batch, &token) && is_seen(&call, b, h, j))
                    seen[(batch * k->dim[1] + h) * k->dim[2] + token] = 1;
            }
    static const int tensors[] = {TENSOR_K, TENSOR_V, TENSOR_K_SCALE, TENSOR_V_SCALE};
    for (int n = 0; n < 4; n++) {
        const case_tensor *t = &c->tensor[tensors[n]];
        unsigned char *values = values_of(c, tensors[n]);
        const int read_by_append = case_appends(c) && c->tensor[tensors[n & 1]].dtype != CLATTN_DTYPE_I8;
        if (!values ||
            (n >= 2 && (t->value_stride[2] == 0 || read_by_append))) /* or one scale for many rows */
            continue;
        for (int64_t r = 0; r < k->dim[0] * k->dim[1] * k->dim[2]; r++) {
            const int64_t batch = r / k->dim[2] / k->dim[1], h = r / k->dim[2] % k->dim[1],
                          token = r % k->dim[2];
            const int64_t at =
                batch * t->value_stride[0] + h * t->value_stride[1] + token * t->value_stride[2];
            if (!seen[r])
                memset(values + (size_t)at * t->element, 0xff, (size_t)t->dim[3] * t->element);
        }
    }
    free(seen);
    return CLI_OK;
}

/* ---- One case ----------------------------------------------------------------------------------- */

int check_serving_make(check_case *out, const check_group *group, const check_variant *v,
                       const check_sizes *sizes, call_options *options, random_state *random)
{
    serving_shape x = {0};
    x.group = group;
    x.v = v;
    x.s = *sizes;
    out->inputs.extra = out->extra;
    choose_shape(&x, options, random);
    if (!add_tensors(out, &x, options, random))
        return cli_fail(CLI_FAILED, "out of memory");
    const safetensors_file file = {out->extra, out->inputs.num_extra, NULL, NULL};
    const int status = case_from_file(&out->c, &file, "inputs", options);
    if (status != CLI_OK)
        return status;
    out->c.checks_numbers = 1;
    return poison(&out->c);
}
