/* cmd_tune.c: the rows of the library's tile tables, measured on this device.
 *
 * A choice is what a tuning text can choose: a path's kernels of one kind for certain types, head dims and
 * scores. For each choice that the shapes touch, its candidates are tried one after another by a library
 * context whose tuning text names that candidate alone; each has to be right before its time counts. */
#include "bench.h"
#include "check_run.h"
#include "cli.h"
#include "file_write.h"
#include "plan_options.h"
#include "progress.h"
#include "tensor_convert.h"

#include <inttypes.h>
#include <math.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum {
    TUNE_OUT = OPTION_COMMAND,
    TUNE_SHAPE,
    TUNE_DTYPE,
    TUNE_CAUSAL,
    TUNE_SCORES,
    TUNE_SECONDS,
    TUNE_CANDIDATES
};

static const option_row tune_rows[] = {
    {TUNE_OUT, "output", 'o', ARGUMENT_REQUIRED, "FILE", "where the choices go; replaced if it is there"},
    {TUNE_SHAPE, "shape", 0, ARGUMENT_REQUIRED, "B,Hq,Hkv,Nq,Nk,D",
     "a shape to be fast at, may be repeated; decode for Nq <= 64"},
    {TUNE_CAUSAL, "causal", 0, ARGUMENT_NONE, NULL, "shapes are causal; default: both, of prefill"},
    {TUNE_DTYPE, "dtype", 0, ARGUMENT_REQUIRED, "TYPE", "f32, f16 or bf16; default: f16, then f32"},
    {TUNE_SCORES, "scores", 0, ARGUMENT_REQUIRED, "KIND", "lean (default), or full: prefill with softcap"},
    {OPTION_PATH, "path", 0, ARGUMENT_REQUIRED, "NAME", "default: the one that a plan would have"},
    {TUNE_SECONDS, "seconds", 0, ARGUMENT_REQUIRED, "S", "for each time of a candidate; default: 0.3"},
    {TUNE_CANDIDATES, "candidates", 0, ARGUMENT_REQUIRED, "N", "try the first N of each table only"},
    {OPTION_END, NULL, 0, 0, NULL, NULL},
};

static const command_text tune_text = {
    "tune -o FILE [options]",
    "Tries the tiles that the library has for this device, checks their results and keeps the fastest in a\n"
    "file for --tuning and for clattn_context_options.tuning. A choice goes to the file as soon as it is\n"
    "made; Ctrl-C ends the run with what was measured until then. Without --shape: common ones.",
};

enum { MAX_CHOICES = 64, MAX_SHAPES = 16, MAX_TEXT = 1024 };

static const double least_gain = 0.02; /* of the table's own choice: less may be noise */

typedef struct tune_choice {
    char key[200]; /* what is chosen: a candidate's text up to its ": " */
    clattn_plan_desc desc;
    bench_shape shape[MAX_SHAPES];
    int num_shapes;
    char best[MAX_TEXT]; /* a candidate; "": none is measured */
} tune_choice;

typedef struct tune_state {
    bench_options bench; /* shapes; dtype of all tensors, 0: several */
    const char *out;
    int full;
    int64_t candidates; /* 0: all */
    bench_state run;
    tune_choice choice[MAX_CHOICES];
    int num_choices;
} tune_state;

/* ---- Interruption ------------------------------------------------------------------------------- */

static volatile sig_atomic_t interrupted;

static void interrupt(int number)
{
    interrupted = 1;
    signal(number, SIG_DFL); /* who asks again does not want to wait */
}

/* ---- Options ------------------------------------------------------------------------------------ */

static int apply_scores(tune_state *s, const char *value)
{
    s->full = strcmp(value, "full") == 0;
    return s->full || strcmp(value, "lean") == 0
               ? CLI_OK
               : cli_fail(CLI_USAGE, "--scores '%.60s': expected lean or full", value);
}

static int apply(void *user, int id, const char *name, const char *value)
{
    tune_state *s = user;
    int status = CLI_OK;
    switch (id) {
    case TUNE_OUT:
        s->out = value;
        return CLI_OK;
    case TUNE_SHAPE:
        return bench_option_shape(&s->bench, value);
    case TUNE_CAUSAL:
        s->bench.causal = 1;
        return CLI_OK;
    case TUNE_DTYPE:
        status = option_dtype(name, value, &s->bench.dtype[0]);
        return status == CLI_OK && !dtype_is_plain(s->bench.dtype[0])
                   ? cli_fail(CLI_USAGE, "--dtype '%.60s': expected f32, f16 or bf16", value)
                   : status;
    case TUNE_SCORES:
        return apply_scores(s, value);
    case OPTION_PATH:
        return option_path(name, value, &s->bench.path);
    case TUNE_SECONDS:
        status = option_number(name, value, &s->bench.seconds);
        return status == CLI_OK && !(s->bench.seconds > 0 && s->bench.seconds <= 60)
                   ? cli_fail(CLI_USAGE, "--seconds '%.60s': expected a number above 0, at most 60", value)
                   : status;
    default:
        status = option_integer(name, value, &s->candidates);
        return status == CLI_OK && s->candidates < 1
                   ? cli_fail(CLI_USAGE, "--candidates '%.60s': expected a number >= 1", value)
                   : status;
    }
}

/* ---- What there is to choose -------------------------------------------------------------------- */

static clattn_plan_desc desc_of(const tune_state *s, const bench_shape *shape, int32_t dtype)
{
    clattn_plan_desc desc = CLATTN_PLAN_DESC_INIT;
    desc.dtype_q = dtype;
    desc.heads_q = (int32_t)shape->heads_q;
    desc.heads_kv = (int32_t)shape->heads_kv;
    desc.head_dim_qk = shape->head_dim_qk;
    desc.head_dim_v = shape->head_dim_v;
    desc.features = (s->full ? CLATTN_FEATURE_SOFTCAP : 0) | (shape->causal ? CLATTN_FEATURE_CAUSAL : 0);
    desc.phase = shape->q_len <= BENCH_DECODE_ROWS ? CLATTN_PHASE_DECODE : CLATTN_PHASE_PREFILL;
    desc.path = s->bench.path;
    return desc;
}

/* Splits a candidate's text: the part that it has in common with the others of its choice. */
static void key_of(const char *candidate, char *key, size_t capacity)
{
    const char *end = strstr(candidate, ": ");
    cli_format(key, capacity, "%.*s", end ? (int)(end - candidate) : 0, candidate);
}

/* Whether a call of this shape runs the kernels of the choice: where there are some for few rows, they take a
 * query for each KV head's group and some more. */
static int is_for(const char *key, const bench_shape *shape, int has_few)
{
    enum { FEW = 32 };
    const int few =
        has_few && (shape->q_len == 1 || shape->q_len * (shape->heads_q / shape->heads_kv) <= FEW);
    return strstr(key, " decode-few ") ? few : !strstr(key, " decode ") || !few;
}

static int add_choice(tune_state *s, const char *key, const clattn_plan_desc *desc, const bench_shape *shape)
{
    int i = 0;
    while (i < s->num_choices && strcmp(s->choice[i].key, key) != 0)
        i++;
    if (i == MAX_CHOICES || (i < s->num_choices && s->choice[i].num_shapes == MAX_SHAPES))
        return cli_fail(CLI_USAGE, "--shape: too many for one run");
    tune_choice *c = &s->choice[i];
    if (i == s->num_choices) {
        s->num_choices++;
        cli_format(c->key, sizeof c->key, "%s", key);
        c->desc = *desc;
    }
    c->shape[c->num_shapes++] = *shape;
    return CLI_OK;
}

/* Candidate number `index` of all that a plan of the description has. */
static int candidate_at(tune_state *s, const clattn_plan_desc *desc, int index, char text[MAX_TEXT])
{
    cli_device *device = &s->run.device;
    const clattn_status status = clattn_tuning_candidate(device->clattn, desc, index, text, MAX_TEXT);
    return status == CLATTN_SUCCESS ? CLI_OK : cli_library_fail(device, status, "clattn_tuning_candidate");
}

/* Adds the shape to the choices that its call depends on. */
static int add_shape(tune_state *s, const bench_shape *shape, int32_t dtype)
{
    const clattn_plan_desc desc = desc_of(s, shape, dtype);
    char text[MAX_TEXT], key[200], last[200] = "";
    int has_few = 0, status = CLI_OK;
    for (int pass = 0; pass < 2; pass++) /* first whether there are kernels for few rows */
        for (int i = 0; (status = candidate_at(s, &desc, i, text)) == CLI_OK && text[0]; i++) {
            key_of(text, key, sizeof key);
            has_few |= strstr(key, " decode-few ") != NULL;
            if (pass == 0 || strcmp(key, last) == 0 || !is_for(key, shape, has_few))
                continue;
            cli_format(last, sizeof last, "%s", key);
            status = add_choice(s, key, &desc, shape);
            if (status != CLI_OK)
                return status;
        }
    return status;
}

/* One shape as the options have it: of prefill, unless causal is asked for, full and causal. */
static int add_shapes(tune_state *s, bench_shape shape, int32_t dtype)
{
    const int both = !s->bench.causal && shape.q_len > BENCH_DECODE_ROWS;
    shape.causal = s->bench.causal;
    int status = add_shape(s, &shape, dtype);
    shape.causal = 1;
    return status == CLI_OK && both ? add_shape(s, &shape, dtype) : status;
}

static int add_common_shapes(tune_state *s, int32_t dtype)
{
    const int cpu = (s->run.device.entry.type & CL_DEVICE_TYPE_CPU) != 0;
    int status = CLI_OK;
    for (int32_t d = 64; d <= 128; d += 64) {
        const bench_shape shapes[2][3] = {
            {{4, 16, 16, 4096, 4096, d, d, 0}, {16, 32, 8, 1, 8192, d, d, 0}, {16, 32, 8, 33, 8192, d, d, 0}},
            {{1, 4, 4, 1024, 1024, d, d, 0}, {1, 8, 2, 1, 4096, d, d, 0}, {1, 8, 2, 33, 2048, d, d, 0}},
        };
        for (int i = 0; status == CLI_OK && i < (s->full ? 1 : 3); i++)
            status = add_shapes(s, shapes[cpu][i], dtype);
    }
    return status;
}

static int find_choices(tune_state *s)
{
    static const int32_t usual[] = {CLATTN_DTYPE_F16, CLATTN_DTYPE_F32};
    const bench_options *b = &s->bench;
    int status = CLI_OK;
    for (int t = 0; status == CLI_OK && t < (b->dtype[0] ? 1 : 2); t++) {
        const int32_t dtype = b->dtype[0] ? b->dtype[0] : usual[t];
        if (b->num_shapes == 0)
            status = add_common_shapes(s, dtype);
        for (int i = 0; status == CLI_OK && i < b->num_shapes; i++) {
            const shape_option *o = &b->shape[i];
            const bench_shape shape = {o->size[0], o->size[1],     o->size[2],    o->size[3],
                                       o->size[4], o->head_dim_qk, o->head_dim_v, 0};
            if (s->full && shape.q_len <= BENCH_DECODE_ROWS)
                return cli_fail(CLI_USAGE,
                                "--scores full: expected shapes of prefill, with more than %d rows",
                                BENCH_DECODE_ROWS);
            status = add_shapes(s, shape, dtype);
        }
    }
    return status;
}

/* ---- One candidate ------------------------------------------------------------------------------ */

typedef struct measurement {
    double seconds[MAX_SHAPES];
    char tiles[96];
    char why[400]; /* it is not to be used; "": it is */
} measurement;

/* A library context that has this candidate, and nothing else, chosen. */
static int open_with(tune_state *s, const char *candidate)
{
    cli_device *device = &s->run.device;
    size_t needed = 0;
    clattn_status status = clattn_tuning_write(device->clattn, &candidate, 1, NULL, 0, &needed);
    char *text = status == CLATTN_SUCCESS ? malloc(needed) : NULL;
    if (text)
        status = clattn_tuning_write(device->clattn, &candidate, 1, text, needed, NULL);
    if (text && status == CLATTN_SUCCESS)
        return cli_device_open_library(device, text, needed - 1);
    free(text);
    return status == CLATTN_SUCCESS ? cli_fail(CLI_FAILED, "out of memory")
                                    : cli_library_fail(device, status, "clattn_tuning_write");
}

/* A few unpleasant cases: wrong results may be fast. */
static int check_candidate(tune_state *s, const tune_choice *c, measurement *m)
{
    const clattn_plan_desc *d = &c->desc;
    const check_group group = {{d->dtype_q, d->dtype_q, d->dtype_q, d->dtype_q},
                               d->head_dim_qk,
                               d->head_dim_v,
                               s->full ? CHECK_FULL : CHECK_DIMS,
                               CLATTN_DTYPE_F32,
                               0,
                               d->phase,
                               0,
                               0};
    const int quick = s->full, count = check_case_count(&group, quick);
    int status = CLI_OK;
    for (int i = 0; status == CLI_OK && !m->why[0] && !interrupted && i < count; i++) {
        check_case check;
        double share;
        status = check_case_make(&check, &group, quick, i, s->bench.path, (uint64_t)i + 1);
        if (status != CLI_OK)
            break;
        status = check_run(&s->run.device, &check, 1, m->why, sizeof m->why, &share);
        check_case_release(&check);
    }
    return status;
}

static int measure_candidate(tune_state *s, const tune_choice *c, measurement *m)
{
    bench_state *run = &s->run;
    int status = CLI_OK;
    for (int t = 0; t < 4; t++)
        s->bench.dtype[t] = c->desc.dtype_q;
    for (int i = 0; status == CLI_OK && !interrupted && i < c->num_shapes; i++) {
        bench_results_release(&run->results);
        status = c->desc.phase == CLATTN_PHASE_DECODE ? bench_run_decode(run, &c->shape[i], 0)
                                                      : bench_run_shape(run, &c->shape[i]);
        if (status != CLI_OK || run->results.count == 0)
            return status == CLI_OK ? cli_fail(CLI_FAILED, "a shape does not fit the device") : status;
        const bench_result *r = &run->results.entry[0];
        m->seconds[i] = r->time.median;
        cli_format(m->tiles, sizeof m->tiles, "%s", r->tiles);
        if (!r->tuned) {
            cli_format(m->why, sizeof m->why, "does not build here");
            return CLI_OK;
        }
    }
    return status == CLI_OK ? check_candidate(s, c, m) : status;
}

/* ---- All ---------------------------------------------------------------------------------------- */

/* The file has what is chosen so far. */
static int write_file(tune_state *s)
{
    const char *lines[MAX_CHOICES];
    size_t count = 0, needed = 0;
    for (int i = 0; i < s->num_choices; i++)
        if (s->choice[i].best[0])
            lines[count++] = s->choice[i].best;
    if (count == 0)
        return CLI_OK;
    cli_device *device = &s->run.device;
    clattn_status status = clattn_tuning_write(device->clattn, lines, count, NULL, 0, &needed);
    char *text = status == CLATTN_SUCCESS ? malloc(needed) : NULL;
    if (text)
        status = clattn_tuning_write(device->clattn, lines, count, text, needed, NULL);
    file_writer writer;
    int written = text && status == CLATTN_SUCCESS ? file_write_open(&writer, s->out) : -1;
    if (written == 0) {
        file_write_bytes(&writer, text, needed - 1);
        written = file_write_commit(&writer);
    }
    free(text);
    if (status != CLATTN_SUCCESS)
        return cli_library_fail(device, status, "clattn_tuning_write");
    return written == 0 ? CLI_OK : cli_fail(CLI_FAILED, "%.200s: cannot be written", s->out);
}

/* The mean of the shapes' times, each by that of the table's own row. */
static double relative_time(const tune_choice *c, const measurement *m, const measurement *first)
{
    double sum = 0;
    for (int i = 0; i < c->num_shapes; i++)
        sum += log(m->seconds[i] / first->seconds[i]);
    return exp(sum / c->num_shapes);
}

static void print_candidate(const measurement *m, int number, double relative)
{
    progress_clear();
    if (m->why[0])
        printf("  %3d  %-44s  %s\n", number, m->tiles, m->why);
    else
        printf("  %3d  %-44s  %10.4f ms  %6.3f\n", number, m->tiles, m->seconds[0] * 1e3, relative);
    fflush(stdout);
}

/* Measures one candidate by a context of its own. */
static int try_candidate(tune_state *s, const tune_choice *c, const char *text, measurement *m)
{
    memset(m, 0, sizeof *m);
    const int status = open_with(s, text);
    return status == CLI_OK ? measure_candidate(s, c, m) : status;
}

/* What seems faster than the library's own row has to be so once more, right after it: devices that others
 * use too are fast at times. */
static int confirm(tune_state *s, tune_choice *c, const char *own)
{
    measurement first, best;
    if (strcmp(c->best, own) == 0 || interrupted)
        return CLI_OK;
    progress_show("%s: once more", c->key);
    int status = try_candidate(s, c, own, &first);
    if (status == CLI_OK && !interrupted)
        status = try_candidate(s, c, c->best, &best);
    if (status != CLI_OK || interrupted)
        return status;
    const double relative = relative_time(c, &best, &first);
    const int keep = !best.why[0] && relative < 1 - least_gain;
    progress_clear();
    printf("  once more %-38s  %10.4f ms  %6.3f%s\n", best.tiles, best.seconds[0] * 1e3, relative,
           keep ? "" : ": the library's own is kept");
    if (!keep)
        cli_format(c->best, sizeof c->best, "%s", own);
    return CLI_OK;
}

static int tune_choice_of(tune_state *s, tune_choice *c)
{
    measurement m, first = {0};
    char text[MAX_TEXT], own[MAX_TEXT] = "", key[200];
    double best = 1;
    int number = 0, status = CLI_OK;
    printf("%s\n", c->key);
    for (int i = 0; !interrupted && (!s->candidates || number < s->candidates); i++) {
        status = candidate_at(s, &c->desc, i, text);
        if (status != CLI_OK || !text[0])
            break;
        key_of(text, key, sizeof key);
        if (strcmp(key, c->key) != 0)
            continue;
        number++;
        progress_show("%s: candidate %d, best so far %.3f", c->key, number, best);
        status = try_candidate(s, c, text, &m);
        if (status != CLI_OK || interrupted)
            break;
        if (!own[0] && !m.why[0]) { /* the first that can be used is what the library takes by itself */
            first = m;
            cli_format(own, sizeof own, "%s", text);
            cli_format(c->best, sizeof c->best, "%s", text);
        }
        const double relative = m.why[0] ? 0 : relative_time(c, &m, &first);
        print_candidate(&m, number, relative);
        if (!m.why[0] && relative < best) {
            best = relative;
            cli_format(c->best, sizeof c->best, "%s", text);
        }
    }
    if (status == CLI_OK)
        status = confirm(s, c, own);
    progress_clear();
    return status == CLI_OK ? write_file(s) : status;
}

/* Whether the file can be made is asked before minutes go into measuring. */
static int check_file(const tune_state *s)
{
    file_writer writer;
    if (file_write_open(&writer, s->out) != 0)
        return cli_fail(CLI_USAGE, "-o %.200s: cannot be written", s->out);
    file_write_abandon(&writer);
    return CLI_OK;
}

static int tune_all(tune_state *s)
{
    int chosen = 0, status = check_file(s);
    if (status == CLI_OK)
        status = find_choices(s);
    if (status == CLI_OK)
        printf(
            "%d choice%s; of each candidate: the first shape's time, and all by those of the library's own\n",
            s->num_choices, s->num_choices == 1 ? "" : "s");
    for (int i = 0; status == CLI_OK && !interrupted && i < s->num_choices; i++)
        status = tune_choice_of(s, &s->choice[i]);
    for (int i = 0; i < s->num_choices; i++)
        chosen += s->choice[i].best[0] != 0;
    if (status != CLI_OK)
        return status;
    if (chosen == 0)
        return cli_fail(CLI_FAILED, "nothing was measured: %.200s is left as it was", s->out);
    printf("%s%d choice%s in %s\n", interrupted ? "interrupted; " : "", chosen, chosen == 1 ? "" : "s",
           s->out);
    return CLI_OK;
}

int cmd_tune(int argc, char **argv)
{
    tune_state *s = calloc(1, sizeof *s);
    if (!s)
        return cli_fail(CLI_FAILED, "out of memory");
    common_options common = {0};
    const option_set set = {{tune_rows}, apply, s};
    int operands;
    s->bench.seconds = 0.3f;
    int status = options_parse(&set, &common, argc, argv, &operands);
    if (status == CLI_OK && common.help)
        options_print_help(&set, &tune_text);
    else if (status == CLI_OK && operands > 0)
        status = cli_fail(CLI_USAGE, "unexpected argument '%.100s'", argv[0]);
    else if (status == CLI_OK && !s->out)
        status = cli_fail(CLI_USAGE, "-o: expected the file that the choices go to");
    else if (status == CLI_OK && common.tuning)
        status = cli_fail(CLI_USAGE, "--tuning: not for tune, which starts from the library's own tables");
    else if (status == CLI_OK) {
        s->run.options = &s->bench;
        s->run.quiet = 1;
        if (s->full)
            s->bench.call.softcap = 30;
        status = cli_device_open(&s->run.device, &common);
        if (status == CLI_OK) {
            signal(SIGINT, interrupt);
            status = tune_all(s);
            bench_results_release(&s->run.results);
            cli_device_close(&s->run.device);
        }
    }
    free(s);
    return status;
}
