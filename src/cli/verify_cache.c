/* verify_cache.c: rotation, conversion and append, over again on the host. */
#include "verify_cache.h"

#include "case_layout.h"
#include "case_serving.h"
#include "cli.h"
#include "tensor_convert.h"

#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

typedef struct cache_check {
    const attention_case *c;
    const case_state *state;
    char *reason;
    size_t capacity;
    double *want, *slack; /* of one row: what should be stored, and how uncertain float32 makes it */
    float *have;
} cache_check;

/* ---- What should be there ------------------------------------------------------------------------ */

static void load_row(const case_tensor *t, int64_t batch, int64_t head, int64_t token, double *out)
{
    const int64_t first = batch * t->value_stride[0] + head * t->value_stride[1] + token * t->value_stride[2];
    for (int64_t e = 0; e < t->dim[3]; e++)
        out[e] = (double)tensor_load((const unsigned char *)t->values + (size_t)(first + e) * t->element,
                                     t->dtype);
}

static double table_entry(const case_tensor *t, int64_t position, int64_t pair)
{
    return (double)tensor_load((const unsigned char *)t->values +
                                   (size_t)(position * t->value_stride[0] + pair) * t->element,
                               CLATTN_DTYPE_F32);
}

/* One row at its position. An angle in float32 is uncertain by some units of its last place. */
static void rotate(cache_check *k, int64_t position)
{
    const attention_case *c = k->c;
    const serving_options *o = &c->options.serving;
    const int64_t dim = case_rotary_dim(c), half = dim / 2;
    const double base = o->rope_base != 0 ? (double)o->rope_base : 10000;
    const double scale = o->rope_scale != 0 ? (double)o->rope_scale : 1;
    for (int64_t pair = 0; pair < half; pair++) {
        const int64_t first = o->rope == CLATTN_ROPE_NEOX ? pair : 2 * pair;
        const int64_t second = o->rope == CLATTN_ROPE_NEOX ? pair + half : 2 * pair + 1;
        const double angle = (double)position * scale * pow(base, -2.0 * (double)pair / (double)dim);
        const int tables = c->tensor[TENSOR_ROPE_COS].present;
        const double cosine = tables ? table_entry(&c->tensor[TENSOR_ROPE_COS], position, pair) : cos(angle);
        const double sine = tables ? table_entry(&c->tensor[TENSOR_ROPE_SIN], position, pair) : sin(angle);
        const double x = k->want[first], y = k->want[second];
        const double slack = (fabs(x) + fabs(y)) * (0x1p-21 + (tables ? 0 : fabs(angle) * 0x1p-21));
        k->want[first] = x * cosine - y * sine;
        k->want[second] = y * cosine + x * sine;
        k->slack[first] = k->slack[second] = slack;
    }
}

/* ---- Within what a type can hold ----------------------------------------------------------------- */

/* The largest error of blocks, as a part of the block's largest magnitude: half a step, or a whole one at the
 * end of the range that has one step less. */
static double block_error(int32_t dtype)
{
    switch (dtype) {
    case CLATTN_DTYPE_Q8_0:
        return 0.0046;
    case CLATTN_DTYPE_Q4_0:
        return 0.127;
    case CLATTN_DTYPE_Q4_1:
        return 0.069;
    case CLATTN_DTYPE_Q5_0:
        return 0.064;
    case CLATTN_DTYPE_Q5_1:
        return 0.034;
    default: /* IQ4_NL */
        return 0.113;
    }
}

static double largest(const double *x, int64_t count)
{
    double most = 0;
    for (int64_t i = 0; i < count; i++)
        most = fmax(most, fabs(x[i]));
    return most;
}

/* What is stored for x, at the nearest, and how far from it rounding may be. */
static double allowed_error(int32_t dtype, const double *row, int64_t at, int64_t count, double scale,
                            double *nearest)
{
    const double x = row[at];
    *nearest = x;
    switch (dtype) {
    case CLATTN_DTYPE_F32:
        return fabs(x) * 0x1p-24;
    case CLATTN_DTYPE_F16:
        return fabs(x) * 0x1p-11 + 0x1p-25;
    case CLATTN_DTYPE_BF16:
        return fabs(x) * 0x1p-9;
    case CLATTN_DTYPE_I8:
        return largest(row, count) / 127 * 0.5001;
    case CLATTN_DTYPE_F8_E4M3:
        *nearest = fmax(-448 * scale, fmin(448 * scale, x));
        return fabs(x) * 0x1.001p-4 + scale * 0x1p-10;
    case CLATTN_DTYPE_F8_E5M2:
        *nearest = fmax(-57344 * scale, fmin(57344 * scale, x));
        return fabs(x) * 0x1.001p-3 + scale * 0x1p-17;
    default:
        return largest(row + at / 32 * 32, 32) * block_error(dtype) + 0x1p-24;
    }
}

/* Only finite numbers in range have a value that is promised. */
static int is_promised(int32_t dtype, const double *row, int64_t count)
{
    for (int64_t e = 0; e < count; e++)
        if (!isfinite(row[e]) || (dtype == CLATTN_DTYPE_F16 && fabs(row[e]) >= 65504))
            return 0;
    return dtype < CLATTN_DTYPE_Q8_0 || largest(row, count) < 65504;
}

static void compare_row(cache_check *k, int32_t dtype, int64_t count, double scale, const char *name,
                        int64_t b, int64_t h, int64_t token)
{
    if (k->reason[0] || !is_promised(dtype, k->want, count))
        return;
    for (int64_t e = 0; e < count; e++) {
        double nearest;
        const double most = allowed_error(dtype, k->want, e, count, scale, &nearest) + 1.01 * k->slack[e];
        if (!(fabs((double)k->have[e] - nearest) <= most)) {
            cli_format(k->reason, k->capacity,
                       "%s[%" PRId64 ",%" PRId64 ",%" PRId64 ",%" PRId64
                       "] (batch or page, head, token, column) is %.6g; expected %.6g, at most %.3g off",
                       name, b, h, token, e, (double)k->have[e], nearest, most);
            return;
        }
    }
}

/* ---- Caches -------------------------------------------------------------------------------------- */

/* Row `token` of the cache against k->want. */
static void check_stored(cache_check *k, int which, int64_t batch, int64_t head, int64_t token)
{
    const int tensor = state_tensors[which];
    const case_tensor *t = &k->c->tensor[tensor];
    const case_tensor *s = &k->c->tensor[tensor == TENSOR_K ? TENSOR_K_SCALE : TENSOR_V_SCALE];
    const void *scales = case_state_values(k->c, k->state, which == STATE_K ? STATE_K_SCALE : STATE_V_SCALE);
    const int64_t at = batch * s->value_stride[0] + head * s->value_stride[1] + token * s->value_stride[2];
    float scale = 1;
    if (scales)
        memcpy(&scale, (const char *)scales + (size_t)at * sizeof scale, sizeof scale);
    case_load_row(k->c, tensor, k->state->values[which], scales, batch, head, token, k->have);
    compare_row(k, t->dtype, t->dim[3] * dtype_elements(t->dtype), fabs((double)scale), tensor_names[tensor],
                batch, head, token);
}

/* New tokens in their places, which are noted in `written`. */
static void check_new(cache_check *k, int which, unsigned char *written)
{
    const attention_case *c = k->c;
    const int tensor = state_tensors[which];
    const case_tensor *t = &c->tensor[tensor],
                      *from = &c->tensor[tensor == TENSOR_K ? TENSOR_K_NEW : TENSOR_V_NEW];
    for (int64_t b = 0; b < c->batch; b++)
        for (int64_t n = 0; n < case_new_len(c, b); n++) {
            int64_t batch, token, row_batch, row;
            if (!case_key_place(c, b, case_old_len(c, b) + n, &batch, &token))
                continue;
            case_row_place(c, b, n, &row_batch, &row);
            for (int64_t h = 0; h < c->heads_kv; h++) {
                load_row(from, row_batch, h, row, k->want);
                memset(k->slack, 0, (size_t)CLATTN_MAX_HEAD_DIM * sizeof *k->slack);
                if (tensor == TENSOR_K && c->options.serving.rope)
                    rotate(k, case_old_len(c, b) + n);
                check_stored(k, which, batch, h, token);
                written[(batch * t->dim[1] + h) * t->dim[2] + token] = 1;
            }
        }
}

/* Everything else: as it was given, or as conversion makes it. */
static void check_old(cache_check *k, int which, const unsigned char *written)
{
    const attention_case *c = k->c;
    const int tensor = state_tensors[which];
    const case_tensor *t = &c->tensor[tensor], *given = &c->given[tensor - TENSOR_K];
    const size_t bytes = (size_t)t->dim[3] * t->element;
    memset(k->slack, 0, (size_t)CLATTN_MAX_HEAD_DIM * sizeof *k->slack);
    for (int64_t b = 0; b < t->dim[0]; b++)
        for (int64_t h = 0; h < t->dim[1]; h++)
            for (int64_t i = 0; !k->reason[0] && i < t->dim[2]; i++) {
                const size_t at =
                    (size_t)(b * t->value_stride[0] + h * t->value_stride[1] + i * t->value_stride[2]) *
                    t->element;
                if (written[(b * t->dim[1] + h) * t->dim[2] + i])
                    continue;
                if (given->present) {
                    load_row(given, b, h, i, k->want);
                    check_stored(k, which, b, h, i);
                } else if (memcmp(k->state->values[which] + at, (const unsigned char *)t->values + at,
                                  bytes) != 0)
                    cli_format(k->reason, k->capacity,
                               "%s[%" PRId64 ",%" PRId64 ",%" PRId64
                               "] (batch or page, head, token) was changed, but nothing was appended there",
                               tensor_names[tensor], b, h, i);
            }
}

static int check_cache(cache_check *k, int which)
{
    const case_tensor *t = &k->c->tensor[state_tensors[which]];
    if (!k->state->values[which] || case_elements(t) == 0)
        return CLI_OK;
    unsigned char *written = calloc((size_t)(t->dim[0] * t->dim[1] * t->dim[2]), 1);
    if (!written)
        return cli_fail(CLI_FAILED, "not enough memory for the reference");
    if (case_appends(k->c))
        check_new(k, which, written);
    check_old(k, which, written);
    free(written);
    return CLI_OK;
}

static void check_q(cache_check *k)
{
    const attention_case *c = k->c;
    const case_tensor *t = &c->tensor[TENSOR_Q];
    for (int64_t b = 0; k->state->values[STATE_Q] && b < c->batch; b++)
        for (int64_t i = 0; i < case_q_len(c, b); i++) {
            int64_t batch, token;
            case_row_place(c, b, i, &batch, &token);
            for (int64_t h = 0; h < c->heads_q; h++) {
                const int64_t at =
                    batch * t->value_stride[0] + h * t->value_stride[1] + token * t->value_stride[2];
                load_row(t, batch, h, token, k->want);
                memset(k->slack, 0, (size_t)CLATTN_MAX_HEAD_DIM * sizeof *k->slack);
                rotate(k, case_old_len(c, b) + i);
                for (int64_t e = 0; e < t->dim[3]; e++)
                    k->have[e] =
                        tensor_load(k->state->values[STATE_Q] + (size_t)(at + e) * t->element, t->dtype);
                compare_row(k, t->dtype, t->dim[3], 1, "the rotated q", batch, h, token);
            }
        }
}

int verify_cache(const attention_case *c, const case_state *state, char *reason, size_t capacity)
{
    cache_check k = {c, state, reason, capacity, NULL, NULL, NULL};
    reason[0] = 0;
    if (!state)
        return CLI_OK;
    k.want = calloc(CLATTN_MAX_HEAD_DIM, sizeof *k.want);
    k.slack = calloc(CLATTN_MAX_HEAD_DIM, sizeof *k.slack);
    k.have = calloc(CLATTN_MAX_HEAD_DIM, sizeof *k.have);
    int status =
        k.want && k.slack && k.have ? CLI_OK : cli_fail(CLI_FAILED, "not enough memory for the reference");
    if (status == CLI_OK)
        status = check_cache(&k, STATE_K);
    if (status == CLI_OK)
        status = check_cache(&k, STATE_V);
    if (status == CLI_OK)
        check_q(&k);
    free(k.want);
    free(k.slack);
    free(k.have);
    return status;
}
