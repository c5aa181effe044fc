/* append_test.c: what clattn_enqueue_kv_append stores and rotates, where it stores it, what it leaves alone,
 * what it notes, and what it refuses. References are in double; rows that are not rotated must match byte for
 * byte. */
#include "fixture.h"
#include "strided.h"

#include <cache_types.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <tensor_convert.h>

#include <fakedev.h>

static log_record log_ = LOG_RECORD_INIT;
static clattn_context *context;

/* ---- Models: what is compiled, so few ---- */

static const struct model {
    int32_t new_type, k_type, v_type;
    int dim_qk, dim_v;
    int v_in_k;
} models[] = {
    {CLATTN_DTYPE_F32, CLATTN_DTYPE_F32, CLATTN_DTYPE_F32, 40, 31, 0},
    {CLATTN_DTYPE_F16, CLATTN_DTYPE_F16, CLATTN_DTYPE_BF16, 64, 96, 0},
    {CLATTN_DTYPE_BF16, CLATTN_DTYPE_BF16, CLATTN_DTYPE_F16, 33, 130, 0},
    {CLATTN_DTYPE_F32, CLATTN_DTYPE_I8, CLATTN_DTYPE_F16, 80, 64, 0},
    {CLATTN_DTYPE_F16, CLATTN_DTYPE_F8_E4M3, CLATTN_DTYPE_F8_E5M2, 64, 40, 0},
    {CLATTN_DTYPE_BF16, CLATTN_DTYPE_F8_E5M2, CLATTN_DTYPE_I8, 48, 70, 0},
    {CLATTN_DTYPE_F32, CLATTN_DTYPE_Q8_0, CLATTN_DTYPE_Q4_0, 64, 32, 0},
    {CLATTN_DTYPE_F16, CLATTN_DTYPE_Q4_1, CLATTN_DTYPE_Q5_0, 96, 64, 0},
    {CLATTN_DTYPE_BF16, CLATTN_DTYPE_Q5_1, CLATTN_DTYPE_IQ4_NL, 32, 128, 0},
    {CLATTN_DTYPE_F32, CLATTN_DTYPE_IQ4_NL, CLATTN_DTYPE_Q5_1, 64, 64, 0},
    {CLATTN_DTYPE_F16, CLATTN_DTYPE_Q4_0, CLATTN_DTYPE_Q4_1, 64, 64, 0},
    {CLATTN_DTYPE_F32, CLATTN_DTYPE_Q5_0, CLATTN_DTYPE_Q8_0, 128, 64, 0},
    {CLATTN_DTYPE_F16, CLATTN_DTYPE_F16, CLATTN_DTYPE_F16, 576, 512, 1},
    {CLATTN_DTYPE_F32, CLATTN_DTYPE_Q8_0, CLATTN_DTYPE_Q8_0, 96, 64, 1},
};

enum { MODELS = sizeof models / sizeof *models };

/* ---- Cases ---- */

enum { NOT_GIVEN, GIVEN, IN_PLACE }; /* q_out and kv_lens_out */

typedef struct append_case {
    const struct model *model;
    int batch, heads_q, heads_kv, new_len, total_new, kv_len;
    int page_size, num_pages, max_blocks; /* 0: no pages */
    int packed, has_q_lens, mapped, status;
    int rope, rotary_dim, tables, rope_len, gives_positions;
    int q, lens_out, gives_lens;
    int f8_scale;
    int new_layout, cache_layout;
    float rope_base, rope_scale;
    strided k_new, v_new, k, v, k_scale, v_scale, q_in, q_out, cos, sin;
    int_list kv_lens, lens, q_lens, cu_seqlens, block_table, slots, positions, words;
} append_case;

static int is_scaled(const append_case *c, int32_t dtype)
{
    return dtype == CLATTN_DTYPE_I8 ||
           (c->f8_scale && (dtype == CLATTN_DTYPE_F8_E4M3 || dtype == CLATTN_DTYPE_F8_E5M2));
}

static uint32_t features_of(const append_case *c)
{
    return (c->packed ? CLATTN_FEATURE_CU_SEQLENS_Q : 0) | (c->has_q_lens ? CLATTN_FEATURE_Q_LENS : 0) |
           (c->page_size > 0 ? CLATTN_FEATURE_BLOCK_TABLE : 0) |
           (c->mapped ? CLATTN_FEATURE_SLOT_MAPPING : 0) | (c->tables ? CLATTN_FEATURE_ROPE_TABLES : 0) |
           (is_scaled(c, c->model->k_type) ? CLATTN_FEATURE_K_SCALE : 0) |
           (is_scaled(c, c->model->v_type) && !c->model->v_in_k ? CLATTN_FEATURE_V_SCALE : 0) |
           (c->model->v_in_k ? CLATTN_FEATURE_V_IN_K : 0) | (c->status ? CLATTN_FEATURE_STATUS : 0);
}

static clattn_plan_desc desc_of(const append_case *c)
{
    clattn_plan_desc desc = CLATTN_PLAN_DESC_INIT;
    desc.operation = CLATTN_OPERATION_KV_APPEND;
    desc.dtype_q = c->model->new_type;
    desc.dtype_k = c->model->k_type;
    desc.dtype_v = c->model->v_type;
    desc.heads_q = c->heads_q;
    desc.heads_kv = c->heads_kv;
    desc.head_dim_qk = c->model->dim_qk;
    desc.head_dim_v = c->model->dim_v;
    desc.features = features_of(c);
    desc.page_size = c->page_size;
    desc.rope = c->rope;
    desc.rotary_dim = c->rope != CLATTN_ROPE_NONE && c->rotary_dim != c->model->dim_qk ? c->rotary_dim : 0;
    return desc;
}

/* The integers 0 .. count - 1 in random order. */
static void shuffle(int32_t *numbers, int count, uint32_t *random)
{
    for (int i = 0; i < count; i++) {
        const int j = random_below(random, i + 1);
        numbers[i] = numbers[j];
        numbers[j] = i;
    }
}

/* Tokens of an entry by its own numbers. */
static int tokens_of(const append_case *c, int batch)
{
    int count = c->new_len;
    if (c->packed)
        count = c->cu_seqlens.host[batch + 1] - c->cu_seqlens.host[batch];
    if (c->has_q_lens) {
        const int given = c->q_lens.host[batch];
        count = given < 0 ? 0 : given < count ? given : count;
    }
    return count;
}

static int number_of_tokens(const append_case *c) { return c->packed ? c->total_new : c->batch * c->new_len; }

/* Where token t of an entry stands in k_new. */
static int row_of_token(const append_case *c, int batch, int t)
{
    return c->packed ? c->cu_seqlens.host[batch] + t : t;
}

static int number_of_token(const append_case *c, int batch, int t)
{
    return c->packed ? row_of_token(c, batch, t) : batch * c->new_len + t;
}

static int sometimes(uint32_t *random, int of) { return random_below(random, of) == 0; }

static void choose(append_case *c, uint32_t *random, const struct model *model)
{
    memset(c, 0, sizeof *c);
    c->model = model;
    c->batch = random_below(random, 4) + 1;
    c->heads_kv = random_below(random, 2) + 1;
    c->heads_q = c->heads_kv * (random_below(random, 2) + 1);
    c->new_len = random_below(random, 5) + 1;
    c->kv_len = random_below(random, 12) + c->new_len;
    if (sometimes(random, 16))
        c->batch = 0;
    if (sometimes(random, 16))
        c->new_len = 0;
    c->packed = sometimes(random, 3);
    c->has_q_lens = sometimes(random, 3);
    c->mapped = sometimes(random, 3);
    c->status = !sometimes(random, 4);
    if (sometimes(random, 2)) {
        c->page_size = random_below(random, 5) + 1;
        c->max_blocks = (c->kv_len + c->page_size - 1) / c->page_size;
        c->num_pages = c->batch * c->max_blocks + 2;
        if (c->mapped)
            c->max_blocks = 0;
    }
    c->rope = random_below(random, 3);
    if (c->rope != CLATTN_ROPE_NONE) {
        c->rotary_dim = sometimes(random, 2) ? model->dim_qk / 2 * 2 : (model->dim_qk / 4 + 1) * 2;
        c->tables = sometimes(random, 3);
        c->rope_len = c->tables ? random_below(random, 20) + 1 : 0;
        c->rope_base = c->tables || sometimes(random, 2) ? 0.0f : 500.0f;
        c->rope_scale = c->tables || sometimes(random, 2) ? 0.0f : 0.25f;
        c->gives_positions = sometimes(random, 2);
        c->q = random_below(random, 3);
    }
    c->lens_out = random_below(random, 3);
    c->gives_lens = !c->mapped || (c->rope != CLATTN_ROPE_NONE && !c->gives_positions) ||
                    c->lens_out != NOT_GIVEN || sometimes(random, 2);
    c->f8_scale = sometimes(random, 2);
    c->new_layout = random_below(random, LAYOUTS);
    c->cache_layout = random_below(random, LAYOUTS);
}

static void fill_lengths(append_case *c, uint32_t *random)
{
    c->kv_lens = int_list_new(c->batch);
    c->lens = int_list_new(c->batch);
    c->q_lens = int_list_new(c->batch);
    c->cu_seqlens = int_list_new(c->batch + 1);
    c->cu_seqlens.host[0] = 0;
    for (int b = 0; b < c->batch; b++) {
        c->kv_lens.host[b] = random_below(random, c->kv_len + 2 - c->new_len / 2);
        c->q_lens.host[b] = random_below(random, c->new_len + 1);
        if (sometimes(random, 12))
            c->kv_lens.host[b] = sometimes(random, 2) ? -1 : c->kv_len + 3;
        if (sometimes(random, 12))
            c->q_lens.host[b] = sometimes(random, 2) ? -2 : c->new_len + 1;
        c->cu_seqlens.host[b + 1] = c->cu_seqlens.host[b] + random_below(random, c->new_len + 1);
    }
    c->total_new = c->packed ? c->cu_seqlens.host[c->batch] + random_below(random, 3) : 0;
}

static const int32_t far_off[] = {-1, INT32_MIN, INT32_MAX, 1 << 30};

static void fill_places(append_case *c, uint32_t *random)
{
    const int tokens = number_of_tokens(c);
    const int places = c->page_size > 0 ? c->num_pages * c->page_size : c->kv_len;
    int32_t *order = malloc((size_t)(places + tokens + c->num_pages + 1) * sizeof *order);
    c->block_table = int_list_new(c->batch * c->max_blocks);
    c->slots = int_list_new(tokens);
    c->positions = int_list_new(tokens);
    shuffle(order, c->num_pages, random);
    for (int i = 0; i < c->block_table.count; i++) {
        c->block_table.host[i] = order[i];
        if (sometimes(random, 10))
            c->block_table.host[i] = sometimes(random, 2) ? c->num_pages : far_off[random_below(random, 4)];
    }
    /* Of a padded, unpaged cache each entry has places of its own. */
    const int separate = c->page_size == 0 && !c->packed;
    shuffle(order, places, random);
    for (int i = 0; i < tokens; i++) {
        const int n = separate ? i % c->new_len : i;
        c->slots.host[i] = n < places ? order[n] : -1;
        if (sometimes(random, 8))
            c->slots.host[i] = sometimes(random, 2) ? places : far_off[random_below(random, 4)];
        c->positions.host[i] = random_below(random, 60) - 8;
    }
    free(order);
}

static void fill_tensors(append_case *c, uint32_t *random)
{
    const struct model *m = c->model;
    const int64_t batch = c->packed ? 1 : c->batch, tokens = c->packed ? c->total_new : c->new_len;
    const int64_t planes = c->page_size > 0 ? c->num_pages : c->batch;
    const int64_t places = c->page_size > 0 ? c->page_size : c->kv_len;
    c->k_new = strided_new(m->new_type, batch, c->heads_kv, tokens, m->dim_qk, c->new_layout);
    c->v_new = strided_new(m->new_type, batch, c->heads_kv, tokens, m->dim_v, c->new_layout);
    c->q_in = strided_new(m->new_type, batch, c->heads_q, tokens, m->dim_qk, c->new_layout);
    c->q_out = strided_new(m->new_type, batch, c->heads_q, tokens, m->dim_qk, c->cache_layout);
    c->k = strided_new(m->k_type, planes, c->heads_kv, places, m->dim_qk, c->cache_layout);
    c->v = strided_new(m->v_type, planes, c->heads_kv, places, m->dim_v, c->cache_layout);
    c->k_scale = strided_new(CLATTN_DTYPE_F32, planes, c->heads_kv, places, 1, c->cache_layout);
    c->v_scale = strided_new(CLATTN_DTYPE_F32, planes, c->heads_kv, places, 1, c->cache_layout);
    c->cos = strided_new(CLATTN_DTYPE_F32, c->rope_len, 1, 1, c->rotary_dim / 2, c->new_layout);
    c->sin = strided_new(CLATTN_DTYPE_F32, c->rope_len, 1, 1, c->rotary_dim / 2, c->cache_layout);
    strided_fill(&c->k_new, random);
    strided_fill(&c->v_new, random);
    strided_fill(&c->q_in, random);
    strided_fill(&c->cos, random);
    strided_fill(&c->sin, random);
    if (c->k_new.size[0] > 0 && tokens > 0 && sometimes(random, 4))
        memset(strided_row(&c->k_new, 0, 0, 0), 0, strided_row_bytes(&c->k_new));
    strided *const scales[] = {&c->k_scale, &c->v_scale};
    for (int i = 0; i < 2; i++)
        if (c->f8_scale && (i == 0 ? m->k_type : m->v_type) != CLATTN_DTYPE_I8)
            for (int64_t p = 0; p < planes; p++)
                for (int64_t h = 0; h < c->heads_kv; h++)
                    for (int64_t t = 0; t < places; t++)
                        tensor_store(strided_row(scales[i], p, h, t), CLATTN_DTYPE_F32,
                                     random_between(random, 0.01f, 0.5f));
}

enum { TENSORS = 10, LISTS = 8 };

static void list_all(append_case *c, strided *tensors[TENSORS], int_list *lists[LISTS])
{
    strided *const all[TENSORS] = {&c->k_new,   &c->v_new, &c->k,     &c->v,   &c->k_scale,
                                   &c->v_scale, &c->q_in,  &c->q_out, &c->cos, &c->sin};
    int_list *const ints[LISTS] = {&c->kv_lens,     &c->lens,  &c->q_lens,    &c->cu_seqlens,
                                   &c->block_table, &c->slots, &c->positions, &c->words};
    memcpy(tensors, all, sizeof all);
    memcpy(lists, ints, sizeof ints);
}

static void case_open(append_case *c, uint32_t *random, const struct model *model)
{
    strided *tensors[TENSORS];
    int_list *lists[LISTS];
    choose(c, random, model);
    fill_lengths(c, random);
    fill_places(c, random);
    fill_tensors(c, random);
    c->words = int_list_new(4);
    memset(c->words.host, 0, 4 * sizeof *c->words.host);
    list_all(c, tensors, lists);
    for (int i = 0; i < TENSORS; i++)
        strided_send(tensors[i]);
    for (int i = 0; i < LISTS; i++)
        int_list_send(lists[i]);
}

static void case_close(append_case *c)
{
    strided *tensors[TENSORS];
    int_list *lists[LISTS];
    list_all(c, tensors, lists);
    for (int i = 0; i < TENSORS; i++)
        strided_release(tensors[i]);
    for (int i = 0; i < LISTS; i++)
        int_list_release(lists[i]);
}

static clattn_append_args args_of(const append_case *c)
{
    const uint32_t features = features_of(c);
    const int64_t token_batch = c->packed ? 0 : c->new_len;
    clattn_append_args args = CLATTN_APPEND_ARGS_INIT;
    args.k_new = strided_argument(&c->k_new);
    args.k = strided_argument(&c->k);
    if (!c->model->v_in_k) {
        args.v_new = strided_argument(&c->v_new);
        args.v = strided_argument(&c->v);
    }
    if ((features & CLATTN_FEATURE_K_SCALE) != 0)
        args.k_scale = strided_argument(&c->k_scale);
    if ((features & CLATTN_FEATURE_V_SCALE) != 0)
        args.v_scale = strided_argument(&c->v_scale);
    if (c->q != NOT_GIVEN) {
        args.q = strided_argument(&c->q_in);
        args.q_out = strided_argument(c->q == IN_PLACE ? &c->q_in : &c->q_out);
    }
    if (c->gives_lens)
        args.kv_lens = int_list_argument(&c->kv_lens, 1, 0);
    if (c->lens_out != NOT_GIVEN)
        args.kv_lens_out = int_list_argument(c->lens_out == IN_PLACE ? &c->kv_lens : &c->lens, 1, 0);
    if (c->has_q_lens)
        args.q_lens = int_list_argument(&c->q_lens, 1, 0);
    if (c->packed)
        args.cu_seqlens_q = int_list_argument(&c->cu_seqlens, 0, 0);
    if (c->mapped)
        args.slot_mapping = int_list_argument(&c->slots, token_batch, 1);
    else if (c->page_size > 0)
        args.block_table = int_list_argument(&c->block_table, c->max_blocks, 0);
    if (c->gives_positions)
        args.positions = int_list_argument(&c->positions, token_batch, 1);
    if (c->tables) {
        args.rope_cos = strided_argument(&c->cos);
        args.rope_sin = strided_argument(&c->sin);
    }
    if (c->status)
        args.status_words = int_list_argument(&c->words, 0, 0);
    args.batch = c->batch;
    args.new_len = c->new_len;
    args.total_new = c->total_new;
    args.kv_len = c->kv_len;
    args.num_pages = c->num_pages;
    args.max_blocks = c->max_blocks;
    args.rope_len = c->rope_len;
    args.rope_base = c->rope_base;
    args.rope_scale = c->rope_scale;
    return args;
}

/* ---- The reference ---- */

static int length_before(const append_case *c, int batch)
{
    const int given = c->gives_lens ? c->kv_lens.host[batch] : 0;
    return given < 0 ? 0 : given > c->kv_len ? c->kv_len : given;
}

static int position_of(const append_case *c, int batch, int t)
{
    return c->gives_positions ? c->positions.host[number_of_token(c, batch, t)] : length_before(c, batch) + t;
}

enum { NO_PLACE = -1, LEFT_OUT = -2, BAD_PAGE = -3 };

/* The plane, or one of the above. */
static int64_t place_of(const append_case *c, int batch, int t, int64_t *place)
{
    const int64_t slot =
        c->mapped ? c->slots.host[number_of_token(c, batch, t)] : (int64_t)length_before(c, batch) + t;
    if (slot < 0)
        return LEFT_OUT;
    if (!(c->mapped && c->page_size > 0) && slot >= c->kv_len)
        return NO_PLACE;
    *place = slot;
    if (c->page_size == 0)
        return batch;
    *place = slot % c->page_size;
    const int64_t page =
        c->mapped ? slot / c->page_size : c->block_table.host[batch * c->max_blocks + slot / c->page_size];
    return page < 0 || page >= c->num_pages ? BAD_PAGE : page;
}

static void rotate(const append_case *c, int position, double *x)
{
    const int pairs = c->rotary_dim / 2;
    const double base = c->rope_base != 0 ? (double)c->rope_base : 10000.0;
    const double scale = c->rope_scale != 0 ? (double)c->rope_scale : 1.0;
    if (c->rope == CLATTN_ROPE_NONE)
        return;
    for (int p = 0; p < pairs; p++) {
        const double angle = position * scale * pow(base, -2.0 * p / c->rotary_dim);
        const int row = position < 0 ? 0 : position >= c->rope_len ? c->rope_len - 1 : position;
        const double cosine = c->tables ? (double)strided_get(&c->cos, row, 0, 0, p) : cos(angle);
        const double sine = c->tables ? (double)strided_get(&c->sin, row, 0, 0, p) : sin(angle);
        const int first = c->rope == CLATTN_ROPE_NEOX ? p : 2 * p;
        const int second = c->rope == CLATTN_ROPE_NEOX ? p + pairs : 2 * p + 1;
        const double a = x[first], b = x[second];
        x[first] = a * cosine - b * sine;
        x[second] = b * cosine + a * sine;
    }
}

/* The row as it should be: `exact` as floats of the source, x after RoPE. */
static void row_as_is(const strided *from, int batch, int head, int row, double *x)
{
    for (int64_t i = 0; i < from->size[3]; i++)
        x[i] = (double)strided_get(from, batch, head, row, i);
}

/* How far a value of the type may be from x, in a row whose largest magnitude is `largest`. */
static double step_of(int32_t dtype, double x, double largest, double scale)
{
    switch (dtype) {
    case CLATTN_DTYPE_F32:
        return 1e-7 * fabs(x);
    case CLATTN_DTYPE_F16:
        return fabs(x) / 2048;
    case CLATTN_DTYPE_BF16:
        return fabs(x) / 256;
    case CLATTN_DTYPE_F8_E4M3:
        return fabs(x) / 16 + scale / 512;
    case CLATTN_DTYPE_F8_E5M2:
        return fabs(x) / 8 + scale / 65536;
    case CLATTN_DTYPE_I8:
        return largest / 254;
    case CLATTN_DTYPE_Q8_0:
        return largest / 200;
    case CLATTN_DTYPE_Q5_0:
        return largest / 15.9;
    case CLATTN_DTYPE_Q5_1:
        return largest / 30;
    case CLATTN_DTYPE_IQ4_NL:
        return largest / 6;
    default:
        return largest / 7.5;
    }
}

/* A stored row against x: byte for byte if `exact`. scale: as on the device, 1 without. */
static void expect_row(const char *what, int32_t dtype, const unsigned char *stored, const double *x,
                       int64_t count, float scale, float given_scale, int exact)
{
    static float row[CLATTN_MAX_HEAD_DIM], decoded[CLATTN_MAX_HEAD_DIM];
    static unsigned char expected[4 * CLATTN_MAX_HEAD_DIM];
    double largest = 0.0;
    float used = 1.0f;
    for (int64_t i = 0; i < count; i++) {
        row[i] = (float)x[i];
        largest = fmax(largest, fabs(x[i]));
    }
    cache_encode_row(dtype, row, count, given_scale, expected, &used);
    if (exact) {
        const size_t bytes = (size_t)(count / dtype_elements(dtype)) * dtype_size(dtype);
        for (size_t i = 0; i < bytes; i++)
            if (stored[i] != expected[i])
                fail_msg("%s (%s): byte %d is %02x; expected %02x", what, dtype_name(dtype), (int)i,
                         stored[i], expected[i]);
    }
    cache_decode_row(dtype, stored, count, scale, decoded);
    for (int64_t i = 0; i < count; i++) {
        const double most = step_of(dtype, x[i], largest, (double)scale) + 2e-5 * largest;
        if (!(fabs((double)decoded[i] - x[i]) <= most))
            fail_msg("%s (%s): element %d is %g; expected %g +- %g", what, dtype_name(dtype), (int)i,
                     (double)decoded[i], x[i], most);
    }
    if (dtype == CLATTN_DTYPE_I8 && !(fabsf(scale - used) <= 1e-5f * used))
        fail_msg("%s: scale %g; expected %g", what, (double)scale, (double)used);
}

/* The received bytes of a tensor, checked row by row; what is left must be what was sent. */
typedef struct outcome {
    strided seen; /* as the tensor, with the received bytes */
} outcome;

static outcome outcome_of(const strided *tensor)
{
    outcome result = {*tensor};
    result.seen.host = strided_receive(tensor);
    return result;
}

static void row_is_checked(outcome *result, const strided *tensor, int64_t batch, int64_t head, int64_t token)
{
    memcpy(strided_row(&result->seen, batch, head, token), strided_row(tensor, batch, head, token),
           strided_row_bytes(tensor));
}

static void outcome_close(outcome *result, const strided *tensor, const char *what)
{
    for (size_t i = 0; i < tensor->bytes; i++)
        if (result->seen.host[i] != tensor->host[i])
            fail_msg("%s: byte %d of %d was written outside of what the call stores", what, (int)i,
                     (int)tensor->bytes);
    free(result->seen.host);
}

static void expect_cache(const append_case *c, const char *what, const strided *from, const strided *cache,
                         const strided *scales, int is_k)
{
    static double x[CLATTN_MAX_HEAD_DIM];
    outcome rows = outcome_of(cache), numbers = outcome_of(scales);
    const int has_scale = is_scaled(c, cache->dtype);
    for (int b = 0; b < c->batch; b++)
        for (int t = 0; t < tokens_of(c, b); t++) {
            int64_t place = 0;
            const int64_t plane = place_of(c, b, t, &place);
            if (plane < 0)
                continue;
            for (int h = 0; h < c->heads_kv; h++) {
                const float scale = has_scale ? strided_get(&numbers.seen, plane, h, place, 0) : 1.0f;
                const float given = has_scale && cache->dtype != CLATTN_DTYPE_I8 ? scale : 0.0f;
                row_as_is(from, c->packed ? 0 : b, h, row_of_token(c, b, t), x);
                if (is_k)
                    rotate(c, position_of(c, b, t), x);
                expect_row(what, cache->dtype, strided_row(&rows.seen, plane, h, place), x, cache->size[3],
                           scale, given, !is_k || c->rope == CLATTN_ROPE_NONE);
                row_is_checked(&rows, cache, plane, h, place);
                if (cache->dtype == CLATTN_DTYPE_I8)
                    row_is_checked(&numbers, scales, plane, h, place);
            }
        }
    outcome_close(&rows, cache, what);
    outcome_close(&numbers, scales, "scales");
}

static void expect_q(const append_case *c)
{
    static double x[CLATTN_MAX_HEAD_DIM];
    const strided *out = c->q == IN_PLACE ? &c->q_in : &c->q_out;
    outcome rows = outcome_of(out);
    for (int b = 0; b < c->batch && c->q != NOT_GIVEN; b++)
        for (int t = 0; t < tokens_of(c, b); t++)
            for (int h = 0; h < c->heads_q; h++) {
                const int batch = c->packed ? 0 : b, row = row_of_token(c, b, t);
                row_as_is(&c->q_in, batch, h, row, x);
                rotate(c, position_of(c, b, t), x);
                expect_row("q_out", out->dtype, strided_row(&rows.seen, batch, h, row), x, out->size[3], 1.0f,
                           0.0f, 0);
                row_is_checked(&rows, out, batch, h, row);
            }
    outcome_close(&rows, out, "q_out");
}

static void note(int32_t *word, int batch)
{
    if (*word < batch + 1)
        *word = batch + 1;
}

static void expect_numbers(append_case *c)
{
    int32_t words[4] = {0}, lens[4] = {0};
    for (int b = 0; b < c->batch; b++) {
        const int most = c->packed ? c->cu_seqlens.host[b + 1] - c->cu_seqlens.host[b] : c->new_len;
        if ((c->has_q_lens && (c->q_lens.host[b] < 0 || c->q_lens.host[b] > most)) ||
            (c->gives_lens && c->kv_lens.host[b] != length_before(c, b)))
            note(&words[1], b);
        for (int t = 0; t < tokens_of(c, b); t++) {
            int64_t place;
            const int64_t plane = place_of(c, b, t, &place);
            if (plane == BAD_PAGE)
                note(&words[0], b);
            if (plane == BAD_PAGE || plane == NO_PLACE)
                note(&words[2], b);
        }
        const int after = length_before(c, b) + tokens_of(c, b);
        lens[b] = after > c->kv_len ? c->kv_len : after;
    }
    int_list *out = c->lens_out == IN_PLACE ? &c->kv_lens : &c->lens;
    int_list before = int_list_new(c->batch);
    memcpy(before.host, out->host, (size_t)c->batch * sizeof *before.host);
    int_list_receive(out);
    for (int b = 0; b < c->batch; b++)
        assert_int_equal(out->host[b], c->lens_out == NOT_GIVEN ? before.host[b] : lens[b]);
    int_list_release(&before);
    int_list_receive(&c->words);
    for (int i = 0; i < 4; i++)
        assert_int_equal(c->words.host[i], c->status ? words[i] : 0);
}

static void run_case(append_case *c)
{
    const clattn_plan_desc desc = desc_of(c);
    const clattn_append_args args = args_of(c);
    cl_event event = NULL;
    log_clear(&log_);
    clattn_plan *plan = plan_with(context, &desc);
    if (clattn_enqueue_kv_append(plan, device.queue, &args, 0, NULL, &event) != CLATTN_SUCCESS)
        fail_msg("%s", log_.last_error);
    event_finish(event);
    expect_cache(c, "k", &c->k_new, &c->k, &c->k_scale, 1);
    if (!c->model->v_in_k)
        expect_cache(c, "v", &c->v_new, &c->v, &c->v_scale, 0);
    expect_q(c);
    expect_numbers(c);
    clattn_plan_release(plan);
}

static void test_random_cases(void **state)
{
    (void)state;
    for (int model = 0; model < MODELS; model++)
        for (int i = 0; i < 40; i++) {
            uint32_t random = 1u + (uint32_t)(model * 1000 + i) * 2654435761u;
            append_case c;
            for (int n = 0; n < 8; n++)
                random_bits(&random);
            case_open(&c, &random, &models[model]);
            run_case(&c);
            case_close(&c);
        }
}

/* ---- Far positions ---- */

/* The first pair turns by the position itself, which is exact in float32: so must cosine and sine be. */
static void test_far_positions(void **state)
{
    static const int32_t far[] = {1, 8191, 131072, 999999, 1048575, 4194303, -777777};
    enum { COUNT = sizeof far / sizeof *far, WIDTH = 32 };
    clattn_plan_desc desc = CLATTN_PLAN_DESC_INIT;
    clattn_append_args args = CLATTN_APPEND_ARGS_INIT;
    uint32_t random = 3;
    (void)state;
    desc.operation = CLATTN_OPERATION_KV_APPEND;
    desc.heads_q = 1;
    desc.head_dim_qk = WIDTH;
    desc.rope = CLATTN_ROPE_INTERLEAVED;
    desc.rotary_dim = 2;
    clattn_plan *plan = plan_with(context, &desc);
    strided from = strided_new(CLATTN_DTYPE_F32, 1, 1, COUNT, WIDTH, DENSE);
    strided k = strided_new(CLATTN_DTYPE_F32, 1, 1, COUNT, WIDTH, DENSE);
    strided v = strided_new(CLATTN_DTYPE_F32, 1, 1, COUNT, WIDTH, DENSE);
    int_list positions = int_list_new(COUNT), lens = int_list_new(1);
    strided_fill(&from, &random);
    memcpy(positions.host, far, sizeof far);
    lens.host[0] = 0;
    strided_send(&from);
    strided_send(&k);
    strided_send(&v);
    int_list_send(&positions);
    int_list_send(&lens);
    args.k_new = args.v_new = strided_argument(&from);
    args.k = strided_argument(&k);
    args.v = strided_argument(&v);
    args.kv_lens = int_list_argument(&lens, 1, 0);
    args.positions = int_list_argument(&positions, COUNT, 1);
    args.batch = 1;
    args.new_len = args.kv_len = COUNT;
    assert_int_equal(clattn_enqueue_kv_append(plan, device.queue, &args, 0, NULL, NULL), CLATTN_SUCCESS);
    unsigned char *bytes = strided_receive(&k);
    for (int t = 0; t < COUNT; t++) {
        const double x = (double)strided_get(&from, 0, 0, t, 0), y = (double)strided_get(&from, 0, 0, t, 1);
        const double expected = x * cos((double)far[t]) - y * sin((double)far[t]);
        const double found =
            (double)tensor_load(bytes + (strided_row(&k, 0, 0, t) - k.host), CLATTN_DTYPE_F32);
        if (!(fabs(found - expected) <= 1e-6))
            fail_msg("position %d: %.9g; expected %.9g", (int)far[t], found, expected);
    }
    free(bytes);
    strided_release(&from);
    strided_release(&k);
    strided_release(&v);
    int_list_release(&positions);
    int_list_release(&lens);
    clattn_plan_release(plan);
}

/* ---- Packed rows that make no sense ---- */

/* Whatever cu_seqlens hold, nothing outside is touched, and it is noted. */
static void test_senseless_sequences(void **state)
{
    static const int32_t senseless[][4] = {{0, 3, 2, 5},        {-4, 2, 3, 5},         {0, 2, 90, 5},
                                           {5, 4, 1, 0},        {0, INT32_MAX, -1, 2}, {INT32_MIN, 0, 0, 5},
                                           {0, 0, INT32_MIN, 5}};
    (void)state;
    for (size_t i = 0; i < sizeof senseless / sizeof *senseless; i++) {
        uint32_t random = 4711;
        append_case c;
        do { /* one with three packed sequences and status words */
            if (random != 4711)
                case_close(&c);
            random_bits(&random);
            case_open(&c, &random, &models[1]);
        } while (!(c.packed && c.batch == 3 && c.status && c.new_len >= 2 && !c.has_q_lens && c.gives_lens));
        memcpy(c.cu_seqlens.host, senseless[i], sizeof senseless[i]);
        int_list_send(&c.cu_seqlens);
        clattn_append_args args = args_of(&c);
        const clattn_plan_desc desc = desc_of(&c);
        clattn_plan *plan = plan_with(context, &desc);
        assert_int_equal(clattn_enqueue_kv_append(plan, device.queue, &args, 0, NULL, NULL), CLATTN_SUCCESS);
        int_list_receive(&c.words);
        assert_true(c.words.host[1] > 0);
        /* Guards around the cache's rows. */
        outcome rows = outcome_of(&c.k);
        for (int64_t p = 0; p < c.k.size[0]; p++)
            for (int64_t h = 0; h < c.k.size[1]; h++)
                for (int64_t t = 0; t < c.k.size[2]; t++)
                    row_is_checked(&rows, &c.k, p, h, t);
        outcome_close(&rows, &c.k, "k");
        clattn_plan_release(plan);
        case_close(&c);
    }
}

/* ---- Append and attention in one call ---- */

enum { TOKENS = 3, PLACES = 12, DIM = 32 };

typedef struct both {
    clattn_plan *append, *forward;
    clattn_append_args append_args;
    clattn_forward_args args;
    strided k_new, v_new, q, k, v, o;
    int_list lens;
} both;

static void both_open(both *b, uint32_t seed)
{
    clattn_plan_desc desc = CLATTN_PLAN_DESC_INIT;
    desc.heads_q = desc.heads_kv = 2;
    desc.head_dim_qk = DIM;
    desc.operation = CLATTN_OPERATION_KV_APPEND;
    desc.rope = CLATTN_ROPE_NEOX;
    memset(b, 0, sizeof *b);
    b->append = plan_with(context, &desc);
    desc.operation = CLATTN_OPERATION_FORWARD;
    desc.rope = CLATTN_ROPE_NONE;
    desc.features = CLATTN_FEATURE_KV_LENS | CLATTN_FEATURE_CAUSAL;
    b->forward = plan_with(context, &desc);
    b->k_new = strided_new(CLATTN_DTYPE_F32, 2, 2, TOKENS, DIM, DENSE);
    b->v_new = strided_new(CLATTN_DTYPE_F32, 2, 2, TOKENS, DIM, DENSE);
    b->q = strided_new(CLATTN_DTYPE_F32, 2, 2, TOKENS, DIM, DENSE);
    b->k = strided_new(CLATTN_DTYPE_F32, 2, 2, PLACES, DIM, TOKEN_MAJOR);
    b->v = strided_new(CLATTN_DTYPE_F32, 2, 2, PLACES, DIM, TOKEN_MAJOR);
    b->o = strided_new(CLATTN_DTYPE_F32, 2, 2, TOKENS, DIM, DENSE);
    b->lens = int_list_new(2);
    b->lens.host[0] = 4;
    b->lens.host[1] = 0;
    strided *const tensors[] = {&b->k_new, &b->v_new, &b->q, &b->k, &b->v, &b->o};
    for (int i = 0; i < 6; i++) {
        strided_fill(tensors[i], &seed);
        strided_send(tensors[i]);
    }
    int_list_send(&b->lens);
    b->append_args = (clattn_append_args)CLATTN_APPEND_ARGS_INIT;
    b->append_args.k_new = strided_argument(&b->k_new);
    b->append_args.v_new = strided_argument(&b->v_new);
    b->append_args.k = strided_argument(&b->k);
    b->append_args.v = strided_argument(&b->v);
    b->append_args.q = b->append_args.q_out = strided_argument(&b->q);
    b->append_args.kv_lens = b->append_args.kv_lens_out = int_list_argument(&b->lens, 1, 0);
    b->append_args.batch = 2;
    b->append_args.new_len = TOKENS;
    b->append_args.kv_len = PLACES;
    b->args = (clattn_forward_args)CLATTN_FORWARD_ARGS_INIT;
    b->args.q = b->append_args.q;
    b->args.k = b->append_args.k;
    b->args.v = b->append_args.v;
    b->args.o = strided_argument(&b->o);
    b->args.kv_lens = b->append_args.kv_lens;
    b->args.batch = 2;
    b->args.q_len = TOKENS;
    b->args.kv_len = PLACES;
}

static void both_close(both *b)
{
    strided *const tensors[] = {&b->k_new, &b->v_new, &b->q, &b->k, &b->v, &b->o};
    for (int i = 0; i < 6; i++)
        strided_release(tensors[i]);
    int_list_release(&b->lens);
    clattn_plan_release(b->append);
    clattn_plan_release(b->forward);
}

/* The same bits as two calls, on an out-of-order queue too, and nothing before what the caller waits for. */
static void test_append_forward(void **state)
{
    both apart, together;
    cl_int code;
    cl_event event = NULL;
    (void)state;
    both_open(&apart, 5);
    both_open(&together, 5);
    assert_int_equal(clattn_enqueue_kv_append(apart.append, device.queue, &apart.append_args, 0, NULL, NULL),
                     CLATTN_SUCCESS);
    assert_int_equal(clattn_enqueue_forward(apart.forward, device.queue, &apart.args, 0, NULL, &event),
                     CLATTN_SUCCESS);
    event_finish(event);

    cl_command_queue queue =
        clCreateCommandQueue(device.context, device.id, CL_QUEUE_OUT_OF_ORDER_EXEC_MODE_ENABLE, &code);
    assert_int_equal(code, CL_SUCCESS);
    cl_event gate = clCreateUserEvent(device.context, &code);
    assert_int_equal(clattn_enqueue_append_forward(together.append, &together.append_args, together.forward,
                                                   &together.args, queue, 1, &gate, &event),
                     CLATTN_SUCCESS);
    assert_false(event_is_complete(event));
    clSetUserEventStatus(gate, CL_COMPLETE);
    event_finish(event);
    clReleaseEvent(gate);
    clReleaseCommandQueue(queue);

    unsigned char *const o[] = {strided_receive(&apart.o), strided_receive(&together.o)};
    unsigned char *const k[] = {strided_receive(&apart.k), strided_receive(&together.k)};
    assert_memory_equal(o[0], o[1], apart.o.bytes);
    assert_memory_equal(k[0], k[1], apart.k.bytes);
    assert_memory_not_equal(o[0], apart.o.host, apart.o.bytes);
    int_list_receive(&together.lens);
    assert_int_equal(together.lens.host[0], 4 + TOKENS);
    assert_int_equal(together.lens.host[1], TOKENS);
    for (int i = 0; i < 2; i++) {
        free(o[i]);
        free(k[i]);
    }
    both_close(&apart);
    both_close(&together);
}

/* If attention is refused, nothing is appended either. */
static void test_append_forward_is_one_call(void **state)
{
    struct clattn_fakedev_counters counters;
    both b;
    (void)state;
    both_open(&b, 6);
    b.args.q_len = -1;
    log_clear(&log_);
    clattn_fakedev_reset();
    expect_refusal(&log_,
                   clattn_enqueue_append_forward(b.append, &b.append_args, b.forward, &b.args, device.queue,
                                                 0, NULL, NULL),
                   CLATTN_INVALID_ARGUMENT, "clattn_enqueue_append_forward: q_len = -1");
    b.args.q_len = TOKENS;
    b.append_args.new_len = -1;
    expect_refusal(&log_,
                   clattn_enqueue_append_forward(b.append, &b.append_args, b.forward, &b.args, device.queue,
                                                 0, NULL, NULL),
                   CLATTN_INVALID_ARGUMENT, "clattn_enqueue_append_forward: new_len = -1");
    clattn_fakedev_counters(&counters);
    assert_int_equal(counters.launches, 0);
    both_close(&b);
}

/* Each OpenCL call of it fails in turn: the status comes back and nothing leaks. */
static void test_failures(void **state)
{
    struct clattn_fakedev_counters before, after;
    both b;
    int nth = 0;
    (void)state;
    both_open(&b, 7);
    do {
        char spec[40];
        cl_event event = NULL;
        log_clear(&log_);
        clattn_fakedev_counters(&before);
        clattn_fakedev_reset();
        snprintf(spec, sizeof spec, "*:%d:%d", ++nth, CL_OUT_OF_HOST_MEMORY);
        assert_true(clattn_fakedev_fail(spec));
        const clattn_status status = clattn_enqueue_append_forward(b.append, &b.append_args, b.forward,
                                                                   &b.args, device.queue, 0, NULL, &event);
        assert_true(clattn_fakedev_fail(NULL));
        assert_int_equal(clFinish(device.queue), CL_SUCCESS);
        if (event != NULL)
            clReleaseEvent(event);
        clattn_fakedev_counters(&after);
        assert_memory_equal(before.references, after.references, sizeof before.references);
        if (after.injected_failures > 0 && status == CLATTN_SUCCESS)
            continue; /* whether rows are aligned is a question that may stay open */
        assert_int_equal(status, after.injected_failures > 0 ? CL_OUT_OF_HOST_MEMORY : CLATTN_SUCCESS);
        assert_int_equal(log_.errors, after.injected_failures > 0);
    } while (after.injected_failures > 0);
    assert_in_range(nth, 40, 200); /* launches of three kernels, their arguments, and sizes of buffers */
    both_close(&b);
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_random_cases),   cmocka_unit_test(test_senseless_sequences),
        cmocka_unit_test(test_append_forward), cmocka_unit_test(test_append_forward_is_one_call),
        cmocka_unit_test(test_failures),       cmocka_unit_test(test_far_positions)};
    fixture_arguments(argc, argv);
    if (fixture_open(NULL) != 0)
        return 1;
    const clattn_context_options options = options_with(&log_);
    context = context_with(&options);
    const int failed = cmocka_run_group_tests(tests, NULL, NULL);
    clattn_context_release(context);
    fixture_close(NULL);
    return failed;
}
