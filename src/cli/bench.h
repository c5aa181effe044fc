/* bench.h: what the files of `clattn bench` share. */
#ifndef CLATTN_BENCH_H
#define CLATTN_BENCH_H

#include "cli_device.h"
#include "device_call.h"
#include "naive.h"

enum {
    BENCH_MAX_SHAPES = 32,
    BENCH_MAX_SEQLENS = 64,
    BENCH_MAX_SETS = 64,   /* of K and V that decode takes in turns */
    BENCH_DECODE_ROWS = 64 /* queries up to which a shape is decode unless told otherwise */
};

/* As --shape gives it. */
typedef struct shape_option {
    int64_t size[5]; /* batch, query heads, KV heads, q_len, kv_len */
    int32_t head_dim_qk, head_dim_v;
} shape_option;

typedef struct bench_options {
    common_options common;
    int paper, decode;
    shape_option shape[BENCH_MAX_SHAPES];
    int num_shapes;
    int32_t dtype[4]; /* q, k, v, o */
    int causal;       /* with --shape; presets measure both */
    int has_window;
    int64_t window[2];
    float block_sparse; /* share of the key tiles that are listed; 0: no lists */
    int32_t path;
    call_options call; /* layout, lse, softcap and ALiBi; what has a member of its own here is not used */
    int sinks, lens;
    int64_t seqlens[BENCH_MAX_SEQLENS]; /* of packed sequences */
    int num_seqlens;                    /* 0: not packed */
    int64_t repeat;                     /* 0: as many as make sense */
    float seconds;                      /* for a measurement; 0: about one */
    int lines;                          /* further measurements come by standard input */
    int naive;
    int has_phase;
    int32_t phase;       /* CLATTN_PHASE_* */
    int32_t kv_dtype[2]; /* of K and V; 0: as dtype says */
    int64_t page_size;   /* 0: not paged */
    int64_t splits;      /* 0: the library chooses */
    int64_t sets;        /* of K and V that calls take in turns; 0: as many as are more than caches hold */
    const char *json, *plot, *input;
} bench_options;

/* ---- bench_measure.c ---- */

/* Seconds for one call. */
typedef struct bench_time {
    double median, least, most;
    int repeats;
} bench_time;

typedef int (*bench_enqueue)(void *user);

/* Times what `enqueue` puts in the queue: `repeat` times, or (0) as often as fits into `budget`
 * seconds, at least three times; once if it takes longer than that. With both, the repetitions share the
 * budget, and calls follow each other without a pause in each. */
int bench_measure(bench_time *out, cl_command_queue queue, bench_enqueue enqueue, void *user, int64_t repeat,
                  double budget);

/* The budget of a measurement: --seconds, or `usual`, but 0 where --repeat alone says when to stop. */
double bench_budget(const bench_options *options, double usual);

/* ---- bench_ceiling.c ---- */

typedef enum bench_unit {
    BENCH_MULTIPLY_ADDS, /* in f32 */
    BENCH_MATRIX_16,     /* NVIDIA's matrix units, with sums in f32: f16 and bf16 */
    BENCH_MATRIX_32,     /* f32, as three TF32 products */
    NUM_BENCH_UNITS
} bench_unit;

typedef struct bench_ceiling {
    double flops[NUM_BENCH_UNITS]; /* operations per second, a multiply-add being two; 0: none or not known */
    double copy_bytes;             /* bytes per second, read and written */
    double read_bytes;             /* bytes per second, read alone */
} bench_ceiling;

int bench_measure_ceiling(bench_ceiling *out, cli_device *device);

/* ---- bench_unit.c ---- */

const char *bench_unit_name(bench_unit unit);

/* What a path multiplies by, whose q is of this type; multiply-adds, if no ceiling of that is known. */
bench_unit bench_unit_of(const bench_ceiling *ceiling, const char *path, int32_t dtype);

/* ---- bench_call.c ---- */

typedef struct bench_shape {
    int64_t batch, heads_q, heads_kv, q_len, kv_len;
    int32_t head_dim_qk, head_dim_v;
    int causal; /* bottom right */
} bench_shape;

/* ---- bench_cache.c ---- */

size_t bench_cache_row_bytes(int32_t dtype, int32_t head_dim);

/* New buffers: with random values of that type, with the scale that makes those of i8 alike, with integers.
 */
int bench_cache_tensor(cl_mem *out, cli_device *device, size_t bytes, int32_t dtype);
int bench_cache_scales(cl_mem *out, cli_device *device, size_t count);
int bench_cache_integers(cl_mem *out, cli_device *device, const int32_t *values, size_t count);

/* ---- bench_tiles.c ---- */

enum { BENCH_TILE = 128 }; /* rows and keys of a tile of --block-sparse */

/* Lists of key tiles for each head and query tile, as tensors of a file. */
typedef struct bench_tiles {
    int32_t *count, *index; /* owned */
    safetensors_tensor tensor[2];
} bench_tiles;

/* Random lists: of the key tiles that causal bound and window leave to a query tile, `density` of them, at
 * least one. `c` is the call without lists. */
int bench_tiles_make(bench_tiles *out, const attention_case *c, double density);
void bench_tiles_release(bench_tiles *tiles);

/* Pairs of query and key, over all heads, that causal bound, window and lists allow. */
double bench_count_pairs(const attention_case *c);

/* ---- bench_inputs.c ---- */

typedef struct bench_inputs {
    safetensors_tensor tensor[12];
    void *owned[12]; /* their values */
    size_t count;
} bench_inputs;

int bench_inputs_make(bench_inputs *out, const bench_options *options, const bench_shape *shape);
void bench_inputs_release(bench_inputs *inputs);

/* ---- bench_call.c, again ---- */

/* A shape on the device with random inputs, ready to be timed. */
typedef struct bench_call {
    bench_shape shape;
    attention_case c;
    device_call call;
    bench_inputs inputs;
    bench_tiles tiles;
    double pairs;         /* of query and key, over all heads, that may see each other */
    naive_program *naive; /* borrowed; NULL: none */
    cl_mem scores, naive_o;
    uint64_t naive_bytes; /* what naive needs altogether, whether or not it is allocated */
} bench_call;

int bench_call_open(bench_call *out, cli_device *device, const bench_options *options,
                    const bench_shape *shape);

/* The same with the q, k, v of a file instead of random numbers. */
int bench_call_from_case(bench_call *out, cli_device *device, const attention_case *c);
void bench_call_close(bench_call *call);

/* Whether the device can hold what naive needs beside what is there. */
int bench_naive_fits(const bench_call *call);

/* Allocates naive's buffers. */
int bench_naive_open(bench_call *call, naive_program *program);

/* For bench_measure; `user` is the bench_call. */
int bench_enqueue_flash(void *user);
int bench_enqueue_naive(void *user);

/* Fetches both outputs (both must have run) as floats, to be freed. */
int bench_fetch(bench_call *call, float **flash, float **naive);

/* 2 * pairs * (head_dim_qk + head_dim_v): a multiply-add is two operations, and pairs that may not see each
 * other are not counted. */
double bench_flops(const bench_call *call);

/* Bytes of q, k, v and o, each touched once: the least that has to be moved. */
double bench_bytes(const bench_call *call);

/* ---- bench_report.c ---- */

typedef struct bench_result {
    const char *op; /* "forward" or "decode" */
    bench_shape shape;
    int32_t dtype;
    char path[32], tiles[96];
    bench_time time;
    double flops, bytes, ceiling_fraction;
    uint32_t features; /* CLATTN_FEATURE_* */
    uint64_t peak_bytes;
    /* Of decode; there `bytes` are those of K and V. */
    int32_t dtype_k, dtype_v, phase;
    int64_t page_size; /* 0: not paged */
    int64_t splits;
    int sets, calls;         /* calls back to back in one repetition */
    double latency, enqueue; /* seconds of a single call with clFinish; of the host for a call */
    double plan;             /* seconds of clattn_plan_create */
    int tuned;               /* its plan has tiles that a tuning text chose */
} bench_result;

typedef struct bench_results {
    bench_result *entry;
    size_t count;
} bench_results;

/* Adds a result of this call, flash or naive. */
int bench_results_add(bench_results *results, const bench_call *call, int naive, const bench_time *time,
                      const bench_ceiling *ceiling);
int bench_results_append(bench_results *results, const bench_result *result);
void bench_results_release(bench_results *results);
int bench_write_json(const bench_results *results, const cli_device *device, const bench_ceiling *ceiling,
                     const char *path);

/* The results alone, as one line on standard output: {"status": 0, "results": [...]}. */
int bench_print_json(const bench_results *results, int status);

/* "1.23 MiB" */
void bench_format_bytes(char *out, size_t capacity, uint64_t bytes);

/* ---- bench_plot.c ---- */

/* Whether --plot can be done at all; to be asked before anything is measured. */
int bench_plot_check(const char *path);
int bench_write_plot(const bench_results *results, const cli_device *device, const bench_ceiling *ceiling,
                     const char *path);

/* ---- bench_options.c ---- */

/* Whether the bytes of K and V are what counts. */
int bench_is_decode(const bench_options *o);

/* Takes one --shape: five numbers, then the head dims. */
int bench_option_shape(bench_options *o, const char *value);

/* Parses and checks; prints the help if that is asked for (common.help). Returns an exit status. */
int bench_options_parse(bench_options *out, int argc, char **argv);

/* ---- cmd_bench.c, bench_lines.c, bench_paper.c ---- */

/* Everything that is open while benchmarks run. */
typedef struct bench_state {
    const bench_options *options;
    cli_device device;
    bench_ceiling ceiling;
    naive_program naive; /* opened by the first that needs it */
    int naive_open;
    int32_t naive_dtype;
    bench_results results;
    int quiet; /* no rows are printed */
} bench_state;

int bench_need_naive(bench_state *state);

/* The measurements that state->options ask for, but --lines. */
int bench_run_list(bench_state *state);

/* Those of each line of standard input, until it ends. */
int bench_run_lines(bench_state *state);

/* Times a shape, with naive if asked for and possible; prints a row and keeps the results. */
int bench_run_shape(bench_state *state, const bench_shape *shape);
int bench_run_paper(bench_state *state);

/* ---- bench_decode.c ---- */

/* Times a shape by the bytes of K and V that it reads; prints a row and keeps the result. */
int bench_run_decode(bench_state *state, const bench_shape *shape, int64_t page_size);
int bench_run_decode_preset(bench_state *state);
void bench_print_decode_heading(void);

#endif
