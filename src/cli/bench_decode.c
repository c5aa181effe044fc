/* bench_decode.c: attention over a KV cache, where reading K and V is what takes the time.
 *
 * Between two calls of one layer a model reads the caches of all others, so K and V are never in the device's
 * own caches. Here each call takes the next of several sets of K and V; a round over all of them is more than
 * the last level holds. The rate is that of many calls enqueued back to back with one clFinish, as a model
 * enqueues its layers; latency is that of a single call with its clFinish, and the host's cost that of
 * enqueueing alone. */
#include "bench.h"

#include "cli.h"
#include "cli_platform.h"
#include "progress.h"
#include "random_values.h"
#include "tensor_convert.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { LEAST_CALLS = 100, MAX_CALLS = 4000, SINGLE_CALLS = 20, HOST_CALLS = 16 };

static const double round_seconds = 0.1; /* of calls back to back, where 100 take less */
static const double most_seconds = 1.0;  /* of a round, even if these are fewer than 100 */

typedef struct decode_call {
    cli_device *device; /* borrowed */
    const bench_options *options;
    bench_shape shape;
    int32_t dtype[4]; /* q, k, v, o */
    clattn_plan *plan;
    clattn_forward_args args;
    cl_mem q, o, workspace, kv_lens, block_table;
    cl_mem k[BENCH_MAX_SETS], v[BENCH_MAX_SETS], k_scale, v_scale;
    int sets, next;
    int64_t page_size, pages; /* of an entry; 0: not paged */
    size_t k_bytes, v_bytes, workspace_bytes;
    uint64_t device_bytes;
    double plan_seconds;
} decode_call;

/* ---- Sizes --------------------------------------------------------------------------------------
 */

static int64_t rows_of(const decode_call *call) /* of K, over batch and heads */
{
    const bench_shape *s = &call->shape;
    const int64_t tokens = call->pages ? call->pages * call->page_size : s->kv_len;
    return s->batch * s->heads_kv * tokens;
}

/* The keys that row i may see. */
static void keys_of_row(const decode_call *call, int64_t i, int64_t *begin, int64_t *end)
{
    const bench_shape *s = &call->shape;
    const bench_options *o = call->options;
    const int64_t position = i + s->kv_len - s->q_len;
    *begin = 0;
    *end = s->kv_len;
    if (s->causal && *end > position + 1)
        *end = position + 1;
    if (o->has_window && o->window[0] >= 0 && *begin < position - o->window[0])
        *begin = position - o->window[0];
    if (o->has_window && o->window[1] >= 0 && *end > position + o->window[1] + 1)
        *end = position + o->window[1] + 1;
    if (*end < *begin)
        *end = *begin;
}

/* What a call must read of K and V, with the scales of I8. */
static double bytes_read(const decode_call *call)
{
    const bench_shape *s = &call->shape;
    int64_t first_begin, last_end, unused;
    keys_of_row(call, 0, &first_begin, &unused);
    keys_of_row(call, s->q_len - 1, &unused, &last_end);
    const double keys = last_end > first_begin ? (double)(last_end - first_begin) : 0;
    double row = (double)bench_cache_row_bytes(call->dtype[1], s->head_dim_qk) +
                 (double)bench_cache_row_bytes(call->dtype[2], s->head_dim_v);
    for (int i = 1; i <= 2; i++)
        row += call->dtype[i] == CLATTN_DTYPE_I8 ? sizeof(cl_float) : 0;
    return (double)s->batch * (double)s->heads_kv * keys * row;
}

/* Bytes that a round has to read: well beyond the last-level cache, as far as a sixteenth of a CPU's memory
 * allows; its last level may be one of a large machine that this program has a few cores of. */
static uint64_t bytes_of_round(const cli_device *device)
{
    cl_ulong cache = 0;
    const uint64_t least = (uint64_t)256 << 20, share = device->global_bytes / 16;
    clGetDeviceInfo(device->entry.device, CL_DEVICE_GLOBAL_MEM_CACHE_SIZE, sizeof cache, &cache, NULL);
    uint64_t bytes = 4 * cache > least ? 4 * cache : least;
    if (bytes > share)
        bytes = share;
    return bytes;
}

static int sets_of(const decode_call *call)
{
    const uint64_t set = (uint64_t)call->k_bytes + call->v_bytes;
    if (call->options->sets > 0)
        return (int)call->options->sets;
    const uint64_t sets = (bytes_of_round(call->device) + set - 1) / set;
    return sets < 1 ? 1 : sets > BENCH_MAX_SETS ? BENCH_MAX_SETS : (int)sets;
}

/* ---- Opening ------------------------------------------------------------------------------------
 */

static int32_t phase_of(const decode_call *call)
{
    if (call->options->has_phase)
        return call->options->phase;
    return call->shape.q_len <= BENCH_DECODE_ROWS ? CLATTN_PHASE_DECODE : CLATTN_PHASE_PREFILL;
}

static clattn_plan_desc desc_of(const decode_call *call)
{
    const bench_options *o = call->options;
    const bench_shape *s = &call->shape;
    clattn_plan_desc desc = CLATTN_PLAN_DESC_INIT;
    desc.phase = phase_of(call);
    desc.dtype_q = call->dtype[0];
    desc.dtype_k = call->dtype[1];
    desc.dtype_v = call->dtype[2];
    desc.dtype_o = call->dtype[3];
    desc.heads_q = (int32_t)s->heads_q;
    desc.heads_kv = (int32_t)s->heads_kv;
    desc.head_dim_qk = s->head_dim_qk;
    desc.head_dim_v = s->head_dim_v;
    desc.path = o->path;
    desc.splits = (int32_t)o->splits;
    desc.page_size = (int32_t)call->page_size;
    desc.features = CLATTN_FEATURE_KV_LENS;
    desc.features |= s->causal ? CLATTN_FEATURE_CAUSAL : 0;
    desc.features |= o->has_window ? CLATTN_FEATURE_WINDOW : 0;
    desc.features |= call->page_size ? CLATTN_FEATURE_BLOCK_TABLE : 0;
    desc.features |= call->dtype[1] == CLATTN_DTYPE_I8 ? CLATTN_FEATURE_K_SCALE : 0;
    desc.features |= call->dtype[2] == CLATTN_DTYPE_I8 ? CLATTN_FEATURE_V_SCALE : 0;
    return desc;
}

/* Pages of all entries in random order, as an allocator leaves them. */
static int make_block_table(decode_call *call)
{
    const int64_t count = call->shape.batch * call->pages;
    random_state random = {2};
    int32_t *table = malloc((size_t)count * sizeof *table);
    if (!table)
        return cli_fail(CLI_FAILED, "not enough memory for the block table");
    for (int64_t i = 0; i < count; i++) { /* Fisher and Yates, inside out */
        const int64_t j = random_below(&random, i + 1);
        table[i] = table[j];
        table[j] = (int32_t)i;
    }
    const int status = bench_cache_integers(&call->block_table, call->device, table, (size_t)count);
    free(table);
    return status;
}

static int make_lengths(decode_call *call)
{
    int32_t *lengths = malloc((size_t)call->shape.batch * sizeof *lengths);
    if (!lengths)
        return cli_fail(CLI_FAILED, "not enough memory for the lengths");
    for (int64_t b = 0; b < call->shape.batch; b++)
        lengths[b] = (int32_t)call->shape.kv_len;
    const int status = bench_cache_integers(&call->kv_lens, call->device, lengths, (size_t)call->shape.batch);
    free(lengths);
    return status;
}

/* [batch, heads, tokens, columns], or in pages [pages, tokens, heads, columns]. */
static void set_cache_strides(clattn_tensor *t, const decode_call *call, int64_t columns)
{
    const int64_t heads = call->shape.heads_kv;
    const int64_t tokens = call->pages ? call->page_size : call->shape.kv_len;
    t->stride[0] = heads * tokens * columns;
    t->stride[1] = call->pages ? columns : tokens * columns;
    t->stride[2] = call->pages ? heads * columns : columns;
}

static void set_args(decode_call *call)
{
    const bench_shape *s = &call->shape;
    clattn_forward_args args = CLATTN_FORWARD_ARGS_INIT;
    args.q.handle = call->q;
    args.q.stride[0] = s->heads_q * s->q_len * s->head_dim_qk;
    args.q.stride[1] = s->head_dim_qk; /* tokens before heads, as projections leave them */
    args.q.stride[2] = s->heads_q * s->head_dim_qk;
    args.o.handle = call->o;
    args.o.stride[0] = s->heads_q * s->q_len * s->head_dim_v;
    args.o.stride[1] = s->head_dim_v;
    args.o.stride[2] = s->heads_q * s->head_dim_v;
    set_cache_strides(&args.k, call, s->head_dim_qk / dtype_elements(call->dtype[1]));
    set_cache_strides(&args.v, call, s->head_dim_v / dtype_elements(call->dtype[2]));
    args.kv_lens.handle = call->kv_lens;
    args.kv_lens.stride[0] = 1;
    args.k_scale.handle = call->k_scale;
    args.v_scale.handle = call->v_scale;
    if (call->k_scale)
        set_cache_strides(&args.k_scale, call, 1);
    if (call->v_scale)
        set_cache_strides(&args.v_scale, call, 1);
    if (call->pages) {
        args.block_table.handle = call->block_table;
        args.block_table.stride[0] = call->pages;
        args.block_table.stride[1] = 1;
        args.num_pages = s->batch * call->pages;
        args.max_blocks = call->pages;
    }
    args.workspace.handle = call->workspace;
    args.batch = s->batch;
    args.q_len = s->q_len;
    args.kv_len = s->kv_len;
    args.window_left = call->options->window[0];
    args.window_right = call->options->window[1];
    call->args = args;
}

static int make_sets(decode_call *call)
{
    int status = CLI_OK;
    for (int i = 0; status == CLI_OK && i < call->sets; i++) {
        status = bench_cache_tensor(&call->k[i], call->device, call->k_bytes, call->dtype[1]);
        if (status == CLI_OK)
            status = bench_cache_tensor(&call->v[i], call->device, call->v_bytes, call->dtype[2]);
    }
    if (status == CLI_OK && call->dtype[1] == CLATTN_DTYPE_I8)
        status = bench_cache_scales(&call->k_scale, call->device, (size_t)rows_of(call));
    if (status == CLI_OK && call->dtype[2] == CLATTN_DTYPE_I8)
        status = bench_cache_scales(&call->v_scale, call->device, (size_t)rows_of(call));
    return status;
}

static int make_workspace(decode_call *call)
{
    const bench_shape *s = &call->shape;
    clattn_bounds bounds = CLATTN_BOUNDS_INIT;
    cl_int error = CL_SUCCESS;
    bounds.batch = s->batch;
    bounds.q_len = s->q_len;
    bounds.kv_len = s->kv_len;
    const clattn_status status = clattn_forward_workspace(call->plan, &bounds, &call->workspace_bytes);
    if (status != CLATTN_SUCCESS)
        return cli_library_fail(call->device, status, "clattn_forward_workspace");
    if (call->workspace_bytes > 0)
        call->workspace =
            clCreateBuffer(call->device->context, CL_MEM_READ_WRITE, call->workspace_bytes, NULL, &error);
    return error == CL_SUCCESS ? CLI_OK : cli_opencl_fail(error, "the workspace");
}

static int open_parts(decode_call *call)
{
    const bench_shape *s = &call->shape;
    const clattn_plan_desc desc = desc_of(call);
    const size_t rows_q = (size_t)(s->batch * s->heads_q * s->q_len);
    const size_t q_bytes = rows_q * bench_cache_row_bytes(call->dtype[0], s->head_dim_qk);
    const size_t o_bytes = rows_q * bench_cache_row_bytes(call->dtype[3], s->head_dim_v);
    const double start = platform_seconds();
    const clattn_status created = clattn_plan_create(&call->plan, call->device->clattn, &desc);
    call->plan_seconds = platform_seconds() - start;
    if (created != CLATTN_SUCCESS)
        return cli_library_fail(call->device, created, "clattn_plan_create");
    int status = make_sets(call);
    if (status == CLI_OK)
        status = bench_cache_tensor(&call->q, call->device, q_bytes, call->dtype[0]);
    if (status == CLI_OK)
        status = bench_cache_tensor(&call->o, call->device, o_bytes, call->dtype[3]);
    if (status == CLI_OK)
        status = make_lengths(call);
    if (status == CLI_OK && call->pages)
        status = make_block_table(call);
    if (status == CLI_OK)
        status = make_workspace(call);
    call->device_bytes =
        (uint64_t)call->sets * (call->k_bytes + call->v_bytes) + q_bytes + o_bytes + call->workspace_bytes;
    set_args(call);
    return status;
}

static void release_buffer(cl_mem buffer)
{
    if (buffer)
        clReleaseMemObject(buffer);
}

static void decode_close(decode_call *call)
{
    for (int i = 0; i < call->sets; i++) {
        release_buffer(call->k[i]);
        release_buffer(call->v[i]);
    }
    release_buffer(call->k_scale);
    release_buffer(call->v_scale);
    release_buffer(call->q);
    release_buffer(call->o);
    release_buffer(call->workspace);
    release_buffer(call->kv_lens);
    release_buffer(call->block_table);
    clattn_plan_release(call->plan);
}

/* ---- Measuring ----------------------------------------------------------------------------------
 */

static int enqueue_next(decode_call *call)
{
    call->args.k.handle = call->k[call->next];
    call->args.v.handle = call->v[call->next];
    call->next = (call->next + 1) % call->sets;
    const clattn_status status =
        clattn_enqueue_forward(call->plan, call->device->queue, &call->args, 0, NULL, NULL);
    return status == CLATTN_SUCCESS ? CLI_OK
                                    : cli_library_fail(call->device, status, "clattn_enqueue_forward");
}

/* Seconds for each of `calls` back to back: until all are enqueued, and until all have ended. */
static int run_calls(decode_call *call, int calls, double *enqueued, double *ended)
{
    const double start = platform_seconds();
    for (int i = 0; i < calls; i++) {
        const int status = enqueue_next(call);
        if (status != CLI_OK)
            return status;
    }
    *enqueued = (platform_seconds() - start) / calls;
    const cl_int status = clFinish(call->device->queue);
    *ended = (platform_seconds() - start) / calls;
    return status == CL_SUCCESS ? CLI_OK : cli_opencl_fail(status, "clFinish");
}

static int compare_doubles(const void *a, const void *b)
{
    const double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static double median_of(double *values, int count)
{
    qsort(values, (size_t)count, sizeof *values, compare_doubles);
    return (values[(count - 1) / 2] + values[count / 2]) / 2;
}

/* Medians of a single call with its clFinish, and of the host's time for one of a few. */
static int measure_single(decode_call *call, int times, bench_result *out)
{
    double single[SINGLE_CALLS], host[SINGLE_CALLS], unused;
    int status = CLI_OK;
    for (int i = 0; status == CLI_OK && i < times; i++)
        status = run_calls(call, 1, &unused, &single[i]);
    for (int i = 0; status == CLI_OK && i < times; i++)
        status = run_calls(call, times < HOST_CALLS ? times : HOST_CALLS, &host[i], &unused);
    if (status == CLI_OK) {
        out->latency = median_of(single, times);
        out->enqueue = median_of(host, times);
    }
    return status;
}

static int measure_rounds(decode_call *call, bench_result *out)
{
    double times[1000], unused, one;
    int status = CLI_OK;
    for (int i = 0; status == CLI_OK && i < 2; i++) /* the first touches memory and wakes the device */
        status = run_calls(call, i ? 3 : 1, &unused, &one);
    if (status != CLI_OK)
        return status;
    const double wanted = ceil(round_seconds / one), most = ceil(most_seconds / one);
    int calls = wanted > MAX_CALLS ? MAX_CALLS : wanted > LEAST_CALLS ? (int)wanted : LEAST_CALLS;
    calls = calls > most ? (int)most : calls;
    const int repeats = call->options->repeat > 0 ? (int)call->options->repeat : 3;
    status = measure_single(call, calls < SINGLE_CALLS ? calls : SINGLE_CALLS, out);
    for (int i = 0; status == CLI_OK && i < repeats; i++)
        status = run_calls(call, calls, &unused, &times[i]);
    if (status != CLI_OK)
        return status;
    out->time.median = median_of(times, repeats);
    out->time.least = times[0];
    out->time.most = times[repeats - 1];
    out->time.repeats = repeats;
    out->calls = calls;
    return CLI_OK;
}

/* Values of -2 to 2 give results that are numbers; a launch that silently failed leaves none. */
static int check_result(decode_call *call)
{
    const bench_shape *s = &call->shape;
    const size_t size = dtype_size(call->dtype[3]);
    const size_t count = (size_t)(s->batch * s->heads_q * s->q_len * s->head_dim_v);
    const uint32_t nan = 0xffffffffu;
    unsigned char *o = malloc(count * size);
    double unused;
    if (!o)
        return cli_fail(CLI_FAILED, "not enough memory for the result");
    cl_int error =
        clEnqueueFillBuffer(call->device->queue, call->o, &nan, size, 0, count * size, 0, NULL, NULL);
    int status = error == CL_SUCCESS ? run_calls(call, 1, &unused, &unused)
                                     : cli_opencl_fail(error, "clEnqueueFillBuffer");
    if (status == CLI_OK) {
        error = clEnqueueReadBuffer(call->device->queue, call->o, CL_TRUE, 0, count * size, o, 0, NULL, NULL);
        status = error == CL_SUCCESS ? CLI_OK : cli_opencl_fail(error, "clEnqueueReadBuffer");
    }
    for (size_t i = 0; status == CLI_OK && i < count; i++)
        if (!isfinite(tensor_load(o + i * size, call->dtype[3])))
            status = cli_fail(CLI_FAILED, "element %zu of the result is not a number", i);
    free(o);
    return status;
}

/* ---- Results ------------------------------------------------------------------------------------
 */

/* Pairs of query and key that causal bound and window leave, over all heads. */
static double pairs_of(const decode_call *call)
{
    double pairs = 0;
    for (int64_t i = 0; i < call->shape.q_len; i++) {
        int64_t begin, end;
        keys_of_row(call, i, &begin, &end);
        pairs += (double)(end - begin);
    }
    return pairs * (double)call->shape.batch * (double)call->shape.heads_q;
}

/* The library's message about a call tells "4 splits". */
static void read_splits(void *user, int32_t level, const char *message)
{
    const char *end = strstr(message, " splits"), *begin = end;
    if (level != CLATTN_LOG_DEBUG || !end)
        return;
    while (begin > message && begin[-1] >= '0' && begin[-1] <= '9')
        begin--;
    if (begin < end)
        *(int64_t *)user = strtoll(begin, NULL, 10);
}

/* How many splits the library chooses, which it says in messages that the measured calls do without: one more
 * call, by a library context of its own. 0: it does not say. */
static int find_splits(const decode_call *call, int64_t *splits)
{
    clattn_context_options options = CLATTN_CONTEXT_OPTIONS_INIT;
    const clattn_plan_desc desc = desc_of(call);
    clattn_context *context = NULL;
    clattn_plan *plan = NULL;
    *splits = 0;
    options.log_level = CLATTN_LOG_DEBUG;
    options.log = read_splits;
    options.log_user = splits;
    options.cache = call->device->cache;
    options.max_local_bytes = call->device->max_local_bytes;
    options.tuning = call->device->tuning;
    options.tuning_bytes = call->device->tuning_bytes;
    clattn_status status =
        clattn_context_create(&context, call->device->context, call->device->entry.device, &options);
    if (status == CLATTN_SUCCESS)
        status = clattn_plan_create(&plan, context, &desc);
    if (status == CLATTN_SUCCESS)
        status = clattn_enqueue_forward(plan, call->device->queue, &call->args, 0, NULL, NULL);
    if (status == CLATTN_SUCCESS)
        status = clFinish(call->device->queue);
    clattn_plan_release(plan);
    clattn_context_release(context);
    return status == CLATTN_SUCCESS ? CLI_OK : cli_library_fail(call->device, status, "one more call");
}

static void describe(const decode_call *call, bench_result *r)
{
    char text[1024];
    plan_text(call->plan, text, sizeof text);
    plan_path_and_tiles(text, r->path, r->tiles);
    r->tuned = strstr(text, "tuned ") != NULL;
    r->op = "decode";
    r->shape = call->shape;
    r->dtype = call->dtype[0];
    r->dtype_k = call->dtype[1];
    r->dtype_v = call->dtype[2];
    r->phase = phase_of(call);
    r->page_size = call->page_size;
    r->features = desc_of(call).features;
    r->sets = call->sets;
    r->plan = call->plan_seconds;
    r->peak_bytes = call->device_bytes;
    r->bytes = bytes_read(call);
    r->flops = 2.0 * pairs_of(call) * (double)(call->shape.head_dim_qk + call->shape.head_dim_v);
}

void bench_print_decode_heading(void)
{
    printf("%-15s %-22s %-7s %5s %-9s %10s %7s %8s %6s %6s %7s %11s %10s %5s\n", "types", "B,Hq/Hkv,Nq/Nk",
           "D", "page", "path", "ms", "spread", "GB/s", "of", "of", "splits", "single", "enqueue", "sets");
    printf("%-15s %-22s %-7s %5s %-9s %10s %7s %8s %6s %6s %7s %11s %10s %5s\n", "q,k,v", "", "", "", "", "",
           "", "of K, V", "copy", "read", "", "call ms", "us", "");
}

static void print_row(const bench_result *r, const bench_ceiling *ceiling)
{
    const bench_shape *s = &r->shape;
    char types[40], shape[64], dims[16];
    cli_format(types, sizeof types, "%s,%s,%s", dtype_name(r->dtype), dtype_name(r->dtype_k),
               dtype_name(r->dtype_v));
    cli_format(shape, sizeof shape, "%" PRId64 ",%" PRId64 "/%" PRId64 ",%" PRId64 "/%" PRId64, s->batch,
               s->heads_q, s->heads_kv, s->q_len, s->kv_len);
    cli_format(dims, sizeof dims, s->head_dim_qk == s->head_dim_v ? "%d" : "%d:%d", (int)s->head_dim_qk,
               (int)s->head_dim_v);
    const double rate = r->bytes / r->time.median;
    printf("%-15s %-22s %-7s %5" PRId64 " %-9s %10.4f %6.1f%% %8.1f %5.1f%% %5.1f%% %7" PRId64
           " %11.4f %10.2f %5d\n",
           types, shape, dims, r->page_size, r->path, r->time.median * 1e3,
           100 * (r->time.most - r->time.least) / r->time.median, rate * 1e-9,
           100 * rate / ceiling->copy_bytes, 100 * rate / ceiling->read_bytes, r->splits, r->latency * 1e3,
           r->enqueue * 1e6, r->sets);
    fflush(stdout);
}

/* A quarter of the memory is left to others; tensors have one buffer each. */
static int fits(const decode_call *call)
{
    const cli_device *d = call->device;
    const uint64_t sets = (uint64_t)call->sets * ((uint64_t)call->k_bytes + call->v_bytes);
    return call->k_bytes <= d->max_alloc_bytes && call->v_bytes <= d->max_alloc_bytes &&
           sets <= d->global_bytes / 4 * 3;
}

static int check_dims(const decode_call *call)
{
    const int32_t dim[3] = {0, call->shape.head_dim_qk, call->shape.head_dim_v};
    for (int i = 1; i <= 2; i++)
        if (dim[i] % dtype_elements(call->dtype[i]) != 0)
            return cli_fail(CLI_USAGE, "--kv-dtype: %s needs a head dim that is a multiple of %d, not %d",
                            dtype_name(call->dtype[i]), dtype_elements(call->dtype[i]), (int)dim[i]);
    return CLI_OK;
}

int bench_run_decode(bench_state *state, const bench_shape *shape, int64_t page_size)
{
    const bench_options *o = state->options;
    decode_call call = {.device = &state->device, .options = o, .shape = *shape, .page_size = page_size};
    bench_result result = {0};
    memcpy(call.dtype, o->dtype, sizeof call.dtype);
    for (int i = 0; i < 2; i++)
        if (o->kv_dtype[i])
            call.dtype[1 + i] = o->kv_dtype[i];
    int status = check_dims(&call);
    if (status != CLI_OK)
        return status;
    if (page_size)
        call.pages = (shape->kv_len + page_size - 1) / page_size;
    call.k_bytes = (size_t)rows_of(&call) * bench_cache_row_bytes(call.dtype[1], shape->head_dim_qk);
    call.v_bytes = (size_t)rows_of(&call) * bench_cache_row_bytes(call.dtype[2], shape->head_dim_v);
    call.sets = sets_of(&call);
    if (!fits(&call)) {
        printf("%" PRId64 " x %" PRId64 " keys of %" PRId64 " heads do not fit\n", shape->batch,
               shape->kv_len, shape->heads_kv);
        return CLI_OK;
    }
    progress_show("%" PRId64 " x %" PRId64 " keys", shape->batch, shape->kv_len);
    status = open_parts(&call);
    if (status == CLI_OK)
        status = check_result(&call);
    if (status == CLI_OK)
        status = measure_rounds(&call, &result);
    if (status == CLI_OK)
        status = find_splits(&call, &result.splits);
    progress_clear();
    if (status == CLI_OK) {
        describe(&call, &result);
        result.ceiling_fraction = result.bytes / result.time.median / state->ceiling.copy_bytes;
        if (!state->quiet)
            print_row(&result, &state->ceiling);
        status = bench_results_append(&state->results, &result);
    }
    decode_close(&call);
    return status;
}

int bench_run_decode_preset(bench_state *state)
{
    static const int64_t heads[3][2] = {{32, 8}, {32, 32}, {8, 8}};
    static const int64_t gpu_shapes[4][2] = {{1, 8192}, {1, 65536}, {16, 8192}, {64, 4096}};
    static const int64_t cpu_shapes[3][2] = {{1, 2048}, {1, 16384}, {8, 2048}};
    const int cpu = (state->device.entry.type & CL_DEVICE_TYPE_CPU) != 0;
    const bench_options *o = state->options;
    int status = CLI_OK;
    bench_print_decode_heading();
    for (int64_t q_len = 1; q_len <= 8; q_len += 7)
        for (int h = 0; h < 3; h++)
            for (int i = 0; i < (cpu ? 3 : 4); i++)
                for (int paged = o->page_size > 0; status == CLI_OK && paged <= 1; paged++) {
                    const int64_t *of = cpu ? cpu_shapes[i] : gpu_shapes[i];
                    const bench_shape shape = {of[0], heads[h][0], heads[h][1], q_len,
                                               of[1], 128,         128,         o->causal};
                    status = bench_run_decode(state, &shape, !paged ? 0 : o->page_size ? o->page_size : 16);
                }
    return status;
}
