/* reference.c: attention in double precision, one row at a time. */
#include "reference.h"

#include "clattn.h"
#include "tensor_convert.h"

#include <math.h>
#include <stdlib.h>

float reference_load(const reference_tensor *t, int64_t b, int64_t h, int64_t i, int64_t c)
{
    const int64_t element = b * t->stride[0] + h * t->stride[1] + i * t->stride[2] + c * t->stride[3];
    return tensor_load((const unsigned char *)t->data + element * (int64_t)dtype_size(t->dtype), t->dtype);
}

/* a + b, or the nearest number that there is: offsets and windows may be any 64-bit number. */
static int64_t saturating_add(int64_t a, int64_t b)
{
    if (b > 0 && a > INT64_MAX - b)
        return INT64_MAX;
    if (b < 0 && a < INT64_MIN - b)
        return INT64_MIN;
    return a + b;
}

static int64_t clamp(int64_t value, int64_t least, int64_t most)
{
    return value < least ? least : value > most ? most : value;
}

reference_sequence reference_sequence_of(const reference_call *call, int64_t b)
{
    reference_sequence s = {call->q_len, call->kv_len, 0};
    if (call->q_lens)
        s.q_len = clamp(call->q_lens[b], 0, call->q_len);
    if (call->kv_lens)
        s.kv_len = clamp(call->kv_lens[b], 0, call->kv_len);
    if (call->position_mode == CLATTN_POSITION_BOTTOM_RIGHT)
        s.offset = s.kv_len - s.q_len;
    else if (call->position_mode == CLATTN_POSITION_EXPLICIT)
        s.offset = call->q_offsets ? call->q_offsets[b] : call->q_offset;
    return s;
}

void reference_keys_of_row(const reference_call *call, int64_t b, int64_t i, int64_t *begin, int64_t *end)
{
    const reference_sequence s = reference_sequence_of(call, b);
    *begin = 0;
    *end = s.kv_len;
    if (call->causal && *end > saturating_add(s.offset, i + 1))
        *end = saturating_add(s.offset, i + 1);
    if (call->has_window) {
        const int64_t first = saturating_add(s.offset, i - call->window_left);
        const int64_t past = saturating_add(saturating_add(s.offset, call->window_right), i + 1);
        if (call->window_left >= 0 && *begin < first)
            *begin = first;
        if (call->window_right >= 0 && *end > past)
            *end = past;
    }
}

static int tile_is_listed(const reference_tiles *t, int64_t b, int64_t h, int64_t row_tile, int64_t key_tile)
{
    const int64_t *c = t->count_stride, *x = t->index_stride;
    const int64_t count = clamp(t->count[b * c[0] + h * c[1] + row_tile * c[2]], 0, t->capacity);
    for (int64_t n = 0; n < count; n++)
        if (t->index[b * x[0] + h * x[1] + row_tile * x[2] + n * x[3]] == key_tile)
            return 1;
    return 0;
}

/* The masks of step 4 that are not by position. */
static int mask_allows(const reference_call *call, int64_t b, int64_t h, int64_t i, int64_t j)
{
    const int64_t *m = call->mask.stride;
    if (call->mask.data &&
        ((const unsigned char *)call->mask.data)[b * m[0] + h * m[1] + i * m[2] + j * m[3]] == 0)
        return 0;
    if (call->tiles.count && !tile_is_listed(&call->tiles, b, h, i / call->tiles.rows, j / call->tiles.keys))
        return 0;
    return !call->mod.mask || call->mod.mask(call->mod.user, b, h, h / (call->heads_q / call->heads_kv), i,
                                             i + reference_sequence_of(call, b).offset, j) != 0;
}

int reference_is_allowed(const reference_call *call, int64_t b, int64_t h, int64_t i, int64_t j)
{
    int64_t begin, end;
    reference_keys_of_row(call, b, i, &begin, &end);
    if (j < begin || j >= end || !mask_allows(call, b, h, i, j))
        return 0;
    return !call->bias.data || call->mod.score || reference_load(&call->bias, b, h, i, j) != -INFINITY;
}

double reference_final_score(const reference_call *call, double score, int64_t b, int64_t h, int64_t i,
                             int64_t j)
{
    if (!mask_allows(call, b, h, i, j))
        return -INFINITY;
    if (call->bias.data) {
        const double bias = (double)reference_load(&call->bias, b, h, i, j);
        const double head_scale =
            call->bias_head_scale.data ? (double)reference_load(&call->bias_head_scale, b, h, 0, 0) : 1;
        score = bias == -INFINITY ? -INFINITY : score + head_scale * bias;
    }
    const int64_t position = i + reference_sequence_of(call, b).offset;
    if (call->alibi_slopes.data)
        score -= (double)reference_load(&call->alibi_slopes, b, h, 0, 0) * fabs((double)(position - j));
    if (call->mod.score)
        score = call->mod.score(call->mod.user, score, b, h, h / (call->heads_q / call->heads_kv), i,
                                position, j);
    return score > -INFINITY && score < -1e30 ? -1e30 : score;
}

double reference_sink(const reference_call *call, int64_t b, int64_t h)
{
    return call->sinks.data ? (double)reference_load(&call->sinks, b, h, 0, 0) : -INFINITY;
}

/* Steps 1 to 4 of the score pipeline for one key; -inf: the key is forbidden. */
static double score_of(const reference_call *call, const double *q, const double *k, int64_t b, int64_t h,
                       int64_t i, int64_t j)
{
    double score = 0;
    for (int64_t c = 0; c < call->head_dim_qk; c++)
        score += q[c] * k[c];
    score *= call->scale != 0 ? call->scale : 1 / sqrt((double)call->head_dim_qk);
    if (call->softcap > 0)
        score = call->softcap * tanh(score / call->softcap);
    return reference_final_score(call, score, b, h, i, j);
}

/* One row of o and its lse from the final scores of the keys begin .. end - 1 and the head's sink. */
static void softmax_row(const reference_call *call, const double *score, const double *v, int64_t begin,
                        int64_t end, double sink, double *o, double *lse)
{
    for (int64_t c = 0; c < call->head_dim_v; c++)
        o[c] = 0;
    double largest = sink;
    int broken = isnan(sink) || sink == INFINITY;
    for (int64_t j = begin; j < end; j++) {
        broken |= isnan(score[j]) || score[j] == INFINITY;
        if (score[j] > largest)
            largest = score[j];
    }
    if (broken) {
        for (int64_t c = 0; c < call->head_dim_v; c++)
            o[c] = NAN;
        *lse = NAN;
        return;
    }
    if (largest == -INFINITY) {
        *lse = -INFINITY;
        return;
    }
    double sum = exp(sink - largest);
    for (int64_t j = begin; j < end; j++) {
        if (score[j] == -INFINITY)
            continue;
        const double weight = exp(score[j] - largest);
        sum += weight;
        for (int64_t c = 0; c < call->head_dim_v; c++)
            o[c] += weight * v[j * call->head_dim_v + c];
    }
    for (int64_t c = 0; c < call->head_dim_v; c++)
        o[c] /= sum;
    *lse = largest + log(sum);
}

/* One head of a tensor as a plain matrix. */
static void gather_head(const reference_tensor *t, int64_t b, int64_t h, int64_t rows, int64_t columns,
                        double *out)
{
    for (int64_t i = 0; i < rows; i++)
        for (int64_t c = 0; c < columns; c++)
            out[i * columns + c] = (double)reference_load(t, b, h, i, c);
}

static double *array_of(int64_t count)
{
    return (double *)calloc(count > 0 ? (size_t)count : 1, sizeof(double));
}

int reference_forward(const reference_call *call, double *o, double *lse)
{
    const int64_t dim = call->head_dim_qk, dim_v = call->head_dim_v;
    double *q = array_of(dim);
    double *k = array_of(call->kv_len * dim);
    double *v = array_of(call->kv_len * dim_v);
    double *score = array_of(call->kv_len);
    double *row_o = array_of(dim_v);
    const int enough = q && k && v && score && row_o;

    for (int64_t b = 0; enough && call->q_len > 0 && b < call->batch; b++)
        for (int64_t h = 0; h < call->heads_q; h++) {
            const int64_t head_kv = h / (call->heads_q / call->heads_kv);
            gather_head(&call->k, b, head_kv, call->kv_len, dim, k);
            gather_head(&call->v, b, head_kv, call->kv_len, dim_v, v);
            const int64_t rows = reference_sequence_of(call, b).q_len;
            for (int64_t i = 0; i < rows; i++) {
                int64_t begin, end;
                reference_keys_of_row(call, b, i, &begin, &end);
                for (int64_t c = 0; c < dim; c++)
                    q[c] = (double)reference_load(&call->q, b, h, i, c);
                for (int64_t j = begin; j < end; j++)
                    score[j] = score_of(call, q, k + j * dim, b, h, i, j);
                double row_lse;
                softmax_row(call, score, v, begin, end, reference_sink(call, b, h), row_o, &row_lse);
                const int64_t row = (b * call->heads_q + h) * call->q_len + i;
                for (int64_t c = 0; o && c < dim_v; c++)
                    o[row * dim_v + c] = row_o[c];
                if (lse)
                    lse[row] = call->lse_base_2 ? row_lse / log(2.0) : row_lse;
            }
        }

    free(row_o);
    free(score);
    free(v);
    free(k);
    free(q);
    return enough ? 0 : -1;
}
