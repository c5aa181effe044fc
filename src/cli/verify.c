/* verify.c: the comparison with the reference. */
#include "verify.h"

#include "case_dense.h"
#include "case_layout.h"
#include "case_serving.h"
#include "cli.h"
#include "tensor_convert.h"
#include "verify_cache.h"

#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

typedef struct expectation {
    double *o, *lse;
    float *naive_o, *naive_lse;
} expectation;

static void *array_of(int64_t count, size_t size) { return calloc(count > 0 ? (size_t)count : 1, size); }

static void release(expectation *e)
{
    free(e->o);
    free(e->lse);
    free(e->naive_o);
    free(e->naive_lse);
}

/* Has the texts answer to the scores that the reference, or naive attention, asks about. */
static int prepare(reference_call *call, mod_evaluator *mods, int naive, int32_t dtype_o)
{
    if (!mods)
        return CLI_OK;
    call->mod = mod_collector(mods);
    if ((naive ? reference_naive(call, dtype_o, NULL, NULL) : reference_forward(call, NULL, NULL)) != 0)
        return cli_fail(CLI_FAILED, "not enough memory for the reference");
    call->mod = mod_answers(mods);
    return mod_evaluate(mods);
}

static int compute_dense(expectation *e, const attention_case *c, const case_dense *dense,
                         mod_evaluator *mods)
{
    const int64_t rows = c->batch * c->heads_q * c->q_len;
    const int32_t dtype_o = c->tensor[TENSOR_O].dtype;
    reference_call call = dense->call;
    e->o = array_of(rows * c->head_dim_v, sizeof *e->o);
    e->lse = array_of(rows, sizeof *e->lse);
    e->naive_o = array_of(rows * c->head_dim_v, sizeof *e->naive_o);
    e->naive_lse = array_of(rows, sizeof *e->naive_lse);
    int enough = e->o && e->lse && e->naive_o && e->naive_lse;
    int status = enough ? prepare(&call, mods, 0, dtype_o) : CLI_OK;
    if (enough && status == CLI_OK)
        enough = reference_forward(&call, e->o, e->lse) == 0;
    if (enough && status == CLI_OK)
        status = prepare(&call, mods, 1, dtype_o);
    if (enough && status == CLI_OK)
        enough = reference_naive(&call, dtype_o, e->naive_o, e->naive_lse) == 0;
    return enough ? status : cli_fail(CLI_FAILED, "not enough memory for the reference");
}

static int compute(expectation *e, const attention_case *c, const case_state *state, mod_evaluator *mods)
{
    case_dense dense;
    int status = case_dense_open(&dense, c, state);
    if (status == CLI_OK) {
        status = compute_dense(e, c, &dense, mods);
        case_dense_close(&dense);
    }
    return status;
}

static int same_kind(double result, double reference)
{
    if (isnan(reference))
        return isnan(result);
    if (isinf(reference))
        return result == reference;
    return isfinite(result);
}

/* Running maxima over one output. */
typedef struct comparison {
    double error, naive_error, largest;
    int64_t wrong; /* the first element of another kind (NaN, infinity); -1: none */
    int64_t worst; /* the element of the largest error */
} comparison;

static void compare(comparison *m, int64_t at, double result, double naive, double reference)
{
    if (!same_kind(result, reference)) {
        if (m->wrong < 0)
            m->wrong = at;
        return;
    }
    if (!isfinite(reference))
        return;
    if (fabs(reference) > m->largest)
        m->largest = fabs(reference);
    if (fabs(result - reference) > m->error) {
        m->error = fabs(result - reference);
        m->worst = at;
    }
    if (isfinite(naive) && fabs(naive - reference) > m->naive_error)
        m->naive_error = fabs(naive - reference);
}

/* The place of row (b, h, i) among the values of o or lse. */
static int64_t result_index(const attention_case *c, const case_tensor *t, int64_t b, int64_t h, int64_t i)
{
    int64_t batch, token;
    case_row_place(c, b, i, &batch, &token);
    return batch * t->value_stride[0] + h * t->value_stride[1] + token * t->value_stride[2];
}

/* Element (b, h, i, e) of what the reference gives for o (`columns` of them) or lse (1). */
static int64_t reference_index(const attention_case *c, int64_t b, int64_t h, int64_t i, int64_t columns)
{
    return ((b * c->heads_q + h) * c->q_len + i) * columns;
}

static void compare_o_row(const attention_case *c, const unsigned char *o, const expectation *x, int64_t b,
                          int64_t h, int64_t i, comparison *m)
{
    const case_tensor *t = &c->tensor[TENSOR_O];
    const int64_t from = result_index(c, t, b, h, i), at = reference_index(c, b, h, i, c->head_dim_v);
    for (int64_t e = 0; e < c->head_dim_v; e++)
        compare(m, at + e, (double)tensor_load(o + (size_t)(from + e) * t->element, t->dtype),
                (double)x->naive_o[at + e], x->o[at + e]);
}

/* Rows beyond an entry's length have no result. */
static void compare_all(const attention_case *c, const unsigned char *o, const float *lse,
                        const expectation *x, comparison *mo, comparison *ml)
{
    const comparison none = {0, 0, 0, -1, 0};
    *mo = *ml = none;
    ml->largest = 1;
    for (int64_t b = 0; b < c->batch; b++)
        for (int64_t h = 0; h < c->heads_q; h++)
            for (int64_t i = 0; i < case_q_len(c, b); i++) {
                const int64_t at = reference_index(c, b, h, i, 1);
                compare_o_row(c, o, x, b, h, i, mo);
                if (lse)
                    compare(ml, at, (double)lse[result_index(c, &c->tensor[TENSOR_LSE], b, h, i)],
                            (double)x->naive_lse[at], x->lse[at]);
            }
}

static double floor_of(int32_t dtype)
{
    return dtype == CLATTN_DTYPE_F32 ? 0x1p-18 : dtype == CLATTN_DTYPE_F16 ? 0x1p-10 : 0x1p-7;
}

/* The largest |slope * distance| of a call; 0 without ALiBi. */
static double largest_alibi(const reference_call *call)
{
    double largest = 0;
    for (int64_t b = 0; call->alibi_slopes.data && b < call->batch; b++) {
        const reference_sequence s = reference_sequence_of(call, b);
        const double first = (double)s.offset, last = first + (double)call->q_len;
        const double distance = fmax(fabs(first), fmax(fabs(last), fabs(first - (double)call->kv_len)));
        for (int64_t h = 0; h < call->heads_q; h++)
            largest = fmax(largest, distance * fabs((double)reference_load(&call->alibi_slopes, b, h, 0, 0)));
    }
    return largest;
}

/* About the largest score that decides anything, in natural units: lse lies at most ln(keys) above its row's
 * largest. Rows that a bias lifted or sank by thousands would make every other row's bound meaningless; where
 * ALiBi does it, all rows near them are as large. */
static double score_size(const attention_case *c, const expectation *x)
{
    const reference_call call = case_reference(c);
    const double unit = c->options.lse_base_2 ? log(2.0) : 1, limit = 1000 + largest_alibi(&call);
    const int64_t rows = c->batch * c->heads_q * c->q_len;
    double size = 0;
    for (int64_t i = 0; i < rows; i++)
        if (fabs(x->lse[i]) * unit < limit && fabs(x->lse[i]) * unit > size)
            size = fabs(x->lse[i]) * unit;
    return size;
}

static void tell_place(verdict *v, const attention_case *c, const char *name, int64_t at, int64_t columns,
                       const char *what)
{
    const int64_t row = at / columns;
    cli_format(v->reason, sizeof v->reason,
               "%s[%" PRId64 ",%" PRId64 ",%" PRId64 ",%" PRId64 "] (batch, head, row, column) %s", name,
               row / c->q_len / c->heads_q, row / c->q_len % c->heads_q, row % c->q_len, at % columns, what);
}

static void judge(verdict *v, const attention_case *c, const char *name, int64_t columns, const comparison *m,
                  double allowed)
{
    char what[96];
    /* allowed may be 0 where every row is empty; then so must the error be. */
    const double share = m->error > 0 ? m->error / allowed : 0;
    if (share > v->worst)
        v->worst = share;
    if (m->wrong >= 0) {
        v->passed = 0;
        tell_place(v, c, name, m->wrong, columns, "is NaN, infinite or finite where it should not be");
    } else if (m->error > allowed) {
        v->passed = 0;
        cli_format(what, sizeof what, "is off by %.3g, allowed %.3g", m->error, allowed);
        tell_place(v, c, name, m->worst, columns, what);
    }
}

int verify_result(verdict *out, const attention_case *c, const case_state *state, const unsigned char *o,
                  const float *lse, mod_evaluator *mods)
{
    expectation x = {0};
    memset(out, 0, sizeof *out);
    int status = verify_cache(c, state, out->reason, sizeof out->reason);
    if (status == CLI_OK && out->reason[0])
        return CLI_OK;
    if (status == CLI_OK)
        status = compute(&x, c, state, mods);
    if (status == CLI_OK) {
        comparison mo, ml;
        compare_all(c, o, lse, &x, &mo, &ml);
        out->passed = 1;
        out->error = mo.error;
        const double floor = floor_of(c->tensor[TENSOR_O].dtype) + 0x1p-22 * score_size(c, &x);
        out->allowed = 2 * mo.naive_error + floor * mo.largest;
        judge(out, c, "o", c->head_dim_v, &mo, out->allowed);
        if (lse) {
            out->lse_error = ml.error;
            out->lse_allowed = 2 * ml.naive_error + 0x1p-18 * ml.largest;
            judge(out, c, "lse", 1, &ml, out->lse_allowed);
        }
    }
    release(&x);
    return status;
}
