#include "numerics_verify.h"

#include "tensor_convert.h"

#include <float.h>
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define UNIT_FLOAT 0x1p-24

/* In units of float32; numerics_verify.h says what for. */
#define SUM_UNITS 8
#define SCORE_UNITS 2
#define TANH_UNITS 5
#define LSE_UNITS 16

typedef struct expectation {
    double *o, *lse; /* float64 */
    float *naive_o, *naive_lse;
    double largest_v;
    double size;                       /* of scores and lse, of plain rows; at least 1 */
    double tolerance_o, tolerance_lse; /* of plain rows */
    double naive_extra_o;              /* how much larger the naive error of other rows is */
} expectation;

static void find_fault(verdict *out, const char *format, ...)
{
    va_list values;
    if (out->fault[0] != '\0')
        return; /* the first one is the most telling */
    va_start(values, format);
    vsnprintf(out->fault, sizeof out->fault, format, values);
    va_end(values);
}

/* ---- Tolerance ---- */

static double unit_of(int32_t dtype)
{
    return dtype == CLATTN_DTYPE_F32 ? 0x1p-24 : dtype == CLATTN_DTYPE_F16 ? 0x1p-11 : 0x1p-8;
}

/* f16: its subnormals are exact everywhere. The others' may be flushed, as OpenCL permits. */
static double least_of(int32_t dtype) { return dtype == CLATTN_DTYPE_F16 ? 0x1p-25 : FLT_MIN; }

static double largest(const double *values, int64_t count)
{
    double most = 0;
    for (int64_t i = 0; i < count; i++)
        if (isfinite(values[i]) && fabs(values[i]) > most)
            most = fabs(values[i]);
    return most;
}

static double squared(double value) { return value * value; }

/* The largest root mean square of a tensor's rows; what is no number counts as 0. With `each`, the
 * largest single element instead. */
static double largest_row(const tensor_view *view, int each)
{
    double most = 0;
    for (int64_t b = 0; b < view->size[0]; b++)
        for (int64_t h = 0; h < view->size[1]; h++)
            for (int64_t j = 0; j < view->size[2]; j++) {
                double sum = 0;
                for (int64_t c = 0; c < view->size[3]; c++) {
                    const double value = (double)view_load(view, b, h, j, c);
                    const double square = isfinite(value) ? squared(value) : 0;
                    sum = each ? fmax(sum, square) : sum + square / (double)view->size[3];
                }
                most = fmax(most, sum);
            }
    return sqrt(most);
}

/* How large scores are before softcap and bias: what rows of random numbers come to. */
static double size_of_scores(const call_data *data)
{
    const double dim = (double)data->spec.head_dim_qk;
    const double scale = data->spec.scale != 0 ? fabs((double)data->spec.scale) : 1 / sqrt(dim);
    return scale * sqrt(dim) * largest_row(&data->view[TENSOR_Q], 0) * largest_row(&data->view[TENSOR_K], 0);
}

/* Rows with scores beyond all measure (at the floor of -1e30, say) are not to loosen what is asked
 * of the others. */
static int is_plain(double lse) { return fabs(lse) < 4096; }

/* The naive computation's largest error in a row, where both are finite: the extremes are compared one by
 * one. */
static double naive_row_error(const expectation *e, int64_t row, int64_t dim)
{
    double most = 0;
    for (int64_t n = row * dim; n < (row + 1) * dim; n++) {
        const double error = fabs(e->o[n] - (double)e->naive_o[n]);
        if (isfinite(error) && error > most)
            most = error;
    }
    return most;
}

/* The errors of the naive computation and the size of lse, over plain rows; and over the others. */
static void measure_rows(expectation *e, int64_t rows, int64_t dim, double *naive_o, double *naive_lse)
{
    double others = 0;
    *naive_o = *naive_lse = 0;
    e->size = 1;
    for (int64_t row = 0; row < rows; row++) {
        const double error = naive_row_error(e, row, dim);
        if (is_plain(e->lse[row])) {
            *naive_o = fmax(*naive_o, error);
            *naive_lse = fmax(*naive_lse, fabs(e->lse[row] - (double)e->naive_lse[row]));
            e->size = fmax(e->size, fabs(e->lse[row]));
        } else {
            others = fmax(others, error);
        }
    }
    e->naive_extra_o = fmax(others - *naive_o, 0);
}

/* How large scaled bias is, of plain size. */
static double size_of_bias(const call_data *data)
{
    const tensor_view *bias = &data->view[TENSOR_BIAS], *scale = &data->view[TENSOR_HEAD_SCALE];
    double most = 0;
    if (bias->buffer == NULL || scale->buffer == NULL)
        return 0;
    for (int64_t b = 0; b < bias->size[0]; b++)
        for (int64_t h = 0; h < bias->size[1]; h++)
            for (int64_t i = 0; i < bias->size[2]; i++)
                for (int64_t j = 0; j < bias->size[3]; j++) {
                    const double value = fabs((double)view_load(bias, b, h, i, j));
                    if (is_plain(value))
                        most = fmax(most, value * fabs((double)view_load(scale, b, h, 0, 0)));
                }
    return most;
}

static void set_tolerance(expectation *e, const call_data *data)
{
    const call_spec *spec = &data->spec;
    const int64_t rows = spec->batch * spec->heads_q * spec->q_len;
    const double gain = score_mod_gain(spec->score_mod);
    const double tanh_floor = gain * TANH_UNITS * UNIT_FLOAT * (double)spec->softcap;
    double naive_o, naive_lse;
    measure_rows(e, rows, spec->head_dim_v, &naive_o, &naive_lse);
    const double scores = size_of_scores(data);
    if (is_plain(scores))
        e->size = fmax(e->size, scores);
    e->size = gain * fmax(e->size, size_of_bias(data));
    e->largest_v = largest_row(&data->view[TENSOR_V], 1);
    e->tolerance_o =
        2 * naive_o + ((SUM_UNITS + SCORE_UNITS * e->size) * UNIT_FLOAT + tanh_floor) * e->largest_v +
        unit_of(spec->dtype_o) * largest(e->o, rows * spec->head_dim_v) + least_of(spec->dtype_o);
    e->tolerance_lse = 2 * naive_lse + (LSE_UNITS * UNIT_FLOAT * e->size + tanh_floor) *
                                           (spec_has(spec, CLATTN_FEATURE_LSE_BASE_2) ? 1 / log(2.0) : 1);
}

/* What a row's own lse adds, if it is larger than those of plain rows. At the floor weights are
 * uniform and nothing is lost. */
static double extra_o(const expectation *e, double lse)
{
    if (is_plain(lse) || !isfinite(lse))
        return 0;
    return 2 * e->naive_extra_o +
           (lse < -0.9e30 ? 0 : fmin(SCORE_UNITS * fabs(lse) * UNIT_FLOAT, 1) * e->largest_v);
}

static double extra_lse(double lse)
{
    return is_plain(lse) || !isfinite(lse) ? 0 : LSE_UNITS * UNIT_FLOAT * fabs(lse);
}

/* ---- Expectation ---- */

static void *array_of(int64_t count, size_t element)
{
    return calloc(count > 0 ? (size_t)count : 1, element);
}

/* q as float32, so that the naive computation does not round its scores to the type of q. */
static float *widen_q(const tensor_view *q)
{
    float *wide = array_of(q->size[0] * q->size[1] * q->size[2] * q->size[3], sizeof *wide);
    float *next = wide;
    for (int64_t b = 0; wide != NULL && b < q->size[0]; b++)
        for (int64_t h = 0; h < q->size[1]; h++)
            for (int64_t i = 0; i < q->size[2]; i++)
                for (int64_t c = 0; c < q->size[3]; c++)
                    *next++ = view_load(q, b, h, i, c);
    return wide;
}

static int make_naive(expectation *e, const call_data *data)
{
    const tensor_view *q = &data->view[TENSOR_Q];
    reference_call call = data_reference(data);
    float *wide = widen_q(q);
    const reference_tensor wide_q = {
        wide,
        CLATTN_DTYPE_F32,
        {q->size[1] * q->size[2] * q->size[3], q->size[2] * q->size[3], q->size[3], 1}};
    call.q = wide_q;
    const int done =
        wide != NULL && reference_naive(&call, data->spec.dtype_o, e->naive_o, e->naive_lse) == 0;
    free(wide);
    return done;
}

static int expectation_make(expectation *e, const call_data *data)
{
    const reference_call call = data_reference(data);
    const int64_t rows = call.batch * call.heads_q * call.q_len;
    e->o = array_of(rows * call.head_dim_v, sizeof *e->o);
    e->lse = array_of(rows, sizeof *e->lse);
    e->naive_o = array_of(rows * call.head_dim_v, sizeof *e->naive_o);
    e->naive_lse = array_of(rows, sizeof *e->naive_lse);
    if (e->o == NULL || e->lse == NULL || e->naive_o == NULL || e->naive_lse == NULL ||
        reference_forward(&call, e->o, e->lse) != 0 || !make_naive(e, data))
        return 0;
    set_tolerance(e, data);
    return 1;
}

static void expectation_free(expectation *e)
{
    free(e->o);
    free(e->lse);
    free(e->naive_o);
    free(e->naive_lse);
}

/* ---- Comparison ---- */

/* How far off, in tolerances; infinite where a NaN or an infinity is on one side alone. */
static double distance(double expected, double found, double tolerance)
{
    if (isnan(expected) || isnan(found))
        return isnan(expected) && isnan(found) ? 0 : INFINITY;
    if (isinf(expected) || isinf(found))
        return expected == found ? 0 : INFINITY;
    return fabs(expected - found) / tolerance;
}

/* A row without keys, or one whose sink leaves nothing to them. */
static int is_zero_row(const expectation *e, int64_t row, int64_t dim)
{
    int zero = 1;
    for (int64_t c = 0; c < dim; c++)
        zero &= e->o[row * dim + c] == 0;
    return zero;
}

static void compare_row(verdict *out, const call_data *data, const expectation *e, int64_t b, int64_t h,
                        int64_t i)
{
    const call_spec *spec = &data->spec;
    const int64_t row = (b * spec->heads_q + h) * spec->q_len + i;
    const double row_lse = e->lse[row];
    const double tolerance_o =
        is_zero_row(e, row, spec->head_dim_v) ? 0x1p-1000 : e->tolerance_o + extra_o(e, row_lse);
    const double tolerance_lse = e->tolerance_lse + extra_lse(row_lse);
    for (int64_t c = 0; c < spec->head_dim_v; c++) {
        const double expected = e->o[row * spec->head_dim_v + c];
        const double found = (double)view_load(&data->view[TENSOR_O], b, h, i, c);
        const double off = distance(expected, found, tolerance_o);
        if (off > out->worst_o)
            out->worst_o = off;
        if (off > 1)
            find_fault(out, "o[%lld, %lld, %lld, %lld] = %.9g; expected %.9g +- %.3g (%.3g times that)",
                       (long long)b, (long long)h, (long long)i, (long long)c, found, expected, tolerance_o,
                       off);
    }
    if ((spec->features & CLATTN_FEATURE_LSE) == 0)
        return;
    const double found = (double)view_load(&data->view[TENSOR_LSE], b, h, i, 0);
    const double off = distance(row_lse, found, tolerance_lse);
    if (off > out->worst_lse)
        out->worst_lse = off;
    if (off > 1)
        find_fault(out, "lse[%lld, %lld, %lld] = %.9g; expected %.9g +- %.3g (%.3g times that)", (long long)b,
                   (long long)h, (long long)i, found, row_lse, tolerance_lse, off);
}

static void check_rows_beyond(verdict *out, const call_data *data)
{
    const call_spec *spec = &data->spec;
    const reference_call call = data_reference(data);
    for (int64_t b = 0; b < spec->batch; b++)
        for (int64_t i = reference_sequence_of(&call, b).q_len; i < spec->q_len; i++) {
            if (!view_row_is_untouched(&data->view[TENSOR_O], b, i))
                find_fault(out, "o[%lld, .., %lld] was written, beyond the entry's q length", (long long)b,
                           (long long)i);
            if (spec_has(spec, CLATTN_FEATURE_LSE) && !view_row_is_untouched(&data->view[TENSOR_LSE], b, i))
                find_fault(out, "lse[%lld, .., %lld] was written, beyond the entry's q length", (long long)b,
                           (long long)i);
        }
}

static void compare_all(verdict *out, const call_data *data, const expectation *e)
{
    const call_spec *spec = &data->spec;
    const reference_call call = data_reference(data);
    for (int64_t b = 0; b < spec->batch; b++)
        for (int64_t h = 0; h < spec->heads_q; h++)
            for (int64_t i = 0; i < reference_sequence_of(&call, b).q_len; i++)
                compare_row(out, data, e, b, h, i);
    out->tolerance_o = e->tolerance_o;
    out->tolerance_lse = e->tolerance_lse;
}

void verify_call(verdict *out, const call_data *data)
{
    const call_spec *spec = &data->spec;
    expectation e;
    memset(out, 0, sizeof *out);
    memset(&e, 0, sizeof e);
    if (!expectation_make(&e, data))
        find_fault(out, "the reference ran out of host memory");
    else
        compare_all(out, data, &e);
    check_rows_beyond(out, data);
    if (data->workspace_overrun)
        find_fault(out, "something was written beside the workspace");
    if (!view_surroundings_are_untouched(&data->view[TENSOR_O]))
        find_fault(out, "something was written between or beside the rows of o");
    if ((spec->features & CLATTN_FEATURE_LSE) != 0 &&
        !view_surroundings_are_untouched(&data->view[TENSOR_LSE]))
        find_fault(out, "something was written between or beside the elements of lse");
    expectation_free(&e);
}

int same_bits(const byte_buffer *a, const byte_buffer *b)
{
    return a->size == b->size && memcmp(a->bytes, b->bytes, a->size) == 0;
}
