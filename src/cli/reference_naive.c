/* reference_naive.c: the textbook computation in storage precision, emulated on the host. Its error
 * against reference.c is what a low-precision kernel's error is measured by. */
#include "reference.h"

#include "clattn.h"
#include "tensor_convert.h"

#include <math.h>
#include <stdlib.h>

typedef struct naive_scratch {
    float *q, *k, *v, *row;
} naive_scratch;

static float *array_of(int64_t count)
{
    return (float *)calloc(count > 0 ? (size_t)count : 1, sizeof(float));
}

static void gather_head(const reference_tensor *t, int64_t b, int64_t h, int64_t rows, int64_t columns,
                        float *out)
{
    for (int64_t i = 0; i < rows; i++)
        for (int64_t c = 0; c < columns; c++)
            out[i * columns + c] = reference_load(t, b, h, i, c);
}

/* Step 1: one row of S, rounded as a buffer of the storage type would. */
static void scores_of_row(const reference_call *call, naive_scratch *s, int64_t b, int64_t h, int64_t i,
                          int64_t begin, int64_t end)
{
    const float largest_rounded = call->q.dtype == CLATTN_DTYPE_F16 ? 128.0f : 16.0f;
    const float scale = call->scale != 0 ? (float)call->scale : 1 / sqrtf((float)call->head_dim_qk);
    const float softcap = (float)call->softcap;
    for (int64_t j = begin; j < end; j++) {
        float score = 0;
        for (int64_t c = 0; c < call->head_dim_qk; c++)
            score += s->q[c] * s->k[j * call->head_dim_qk + c];
        score *= scale;
        if (softcap > 0)
            score = softcap * tanhf(score / softcap);
        score = (float)reference_final_score(call, (double)score, b, h, i, j);
        if (fabsf(score) <= largest_rounded)
            score = dtype_round(score, call->q.dtype);
        s->row[j] = score;
    }
}

/* Steps 2 and 3: softmax, rounded, times V. */
static float weigh_row(const reference_call *call, naive_scratch *s, int64_t begin, int64_t end, float sink,
                       float *o)
{
    for (int64_t c = 0; c < call->head_dim_v; c++)
        o[c] = 0;
    float largest = sink;
    for (int64_t j = begin; j < end; j++)
        largest = fmaxf(largest, s->row[j]);
    if (largest == -INFINITY)
        return -INFINITY;
    const int32_t dtype = call->weight_dtype ? call->weight_dtype : call->v.dtype;
    float sum = expf(sink - largest);
    for (int64_t j = begin; j < end; j++) {
        s->row[j] = expf(s->row[j] - largest);
        sum += s->row[j];
    }
    for (int64_t j = begin; j < end; j++) {
        const float weight = dtype_round(s->row[j] / sum, dtype);
        if (weight != 0) /* so that a forbidden key's V stays out */
            for (int64_t c = 0; c < call->head_dim_v; c++)
                o[c] += weight * s->v[j * call->head_dim_v + c];
    }
    return largest + logf(sum);
}

int reference_naive(const reference_call *call, int32_t dtype_o, float *o, float *lse)
{
    const int64_t dim = call->head_dim_qk, dim_v = call->head_dim_v;
    naive_scratch s = {array_of(dim), array_of(call->kv_len * dim), array_of(call->kv_len * dim_v),
                       array_of(call->kv_len)};
    float *row_o = array_of(dim_v);
    const int enough = s.q && s.k && s.v && s.row && row_o;

    for (int64_t b = 0; enough && call->q_len > 0 && b < call->batch; b++)
        for (int64_t h = 0; h < call->heads_q; h++) {
            const int64_t head_kv = h / (call->heads_q / call->heads_kv);
            gather_head(&call->k, b, head_kv, call->kv_len, dim, s.k);
            gather_head(&call->v, b, head_kv, call->kv_len, dim_v, s.v);
            const int64_t rows = reference_sequence_of(call, b).q_len;
            for (int64_t i = 0; i < rows; i++) {
                int64_t begin, end;
                reference_keys_of_row(call, b, i, &begin, &end);
                for (int64_t c = 0; c < dim; c++)
                    s.q[c] = reference_load(&call->q, b, h, i, c);
                scores_of_row(call, &s, b, h, i, begin, end);
                const float row_lse =
                    weigh_row(call, &s, begin, end, (float)reference_sink(call, b, h), row_o);
                const int64_t row = (b * call->heads_q + h) * call->q_len + i;
                for (int64_t c = 0; o && c < dim_v; c++)
                    o[row * dim_v + c] = dtype_round(row_o[c], dtype_o);
                if (lse)
                    lse[row] = call->lse_base_2 ? row_lse / logf(2.0f) : row_lse;
            }
        }

    free(row_o);
    free(s.row);
    free(s.v);
    free(s.k);
    free(s.q);
    return enough ? 0 : -1;
}
