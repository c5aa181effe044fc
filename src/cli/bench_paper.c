/* bench_paper.c: naive against flash attention, as the paper tells it: the same result, memory that
 * does not grow with N x N, and less time the longer the sequence. */
#include "bench.h"

#include "case_layout.h"
#include "cli.h"
#include "progress.h"
#include "tensor_convert.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>

/* Naive attention at most this long per measurement. */
static const double naive_limit = 4.0;

/* ---- The same result ----------------------------------------------------------------------------
 */

static double largest_difference(const float *a, const float *b, int64_t count)
{
    double largest = 0;
    for (int64_t i = 0; i < count; i++) {
        const double difference = fabs((double)a[i] - (double)b[i]);
        if (!(difference <= largest)) /* also when it is NaN */
            largest = difference;
    }
    return largest;
}

static int compare_outputs(bench_call *call, const float *flash, const float *naive)
{
    const reference_call reference = case_reference(&call->c);
    const int64_t count = case_elements(&call->c.tensor[TENSOR_O]);
    double *exact = malloc((size_t)count * sizeof *exact);
    if (!exact || reference_forward(&reference, exact, NULL) != 0) {
        free(exact);
        return cli_fail(CLI_FAILED, "not enough memory for the reference");
    }
    double flash_error = 0, naive_error = 0;
    for (int64_t i = 0; i < count; i++) {
        flash_error = fmax(flash_error, fabs((double)flash[i] - exact[i]));
        naive_error = fmax(naive_error, fabs((double)naive[i] - exact[i]));
    }
    free(exact);
    printf("  %-8s  %12.3g    %12.3g    %12.3g\n", call->shape.causal ? "causal" : "full",
           largest_difference(flash, naive, count), flash_error, naive_error);
    return CLI_OK;
}

static int show_deviation_of(bench_state *state, bench_call *call)
{
    float *flash = NULL, *naive = NULL;
    int status = bench_need_naive(state);
    if (status == CLI_OK)
        status = bench_naive_open(call, &state->naive);
    if (status == CLI_OK)
        status = bench_enqueue_flash(call);
    if (status == CLI_OK)
        status = bench_enqueue_naive(call);
    if (status == CLI_OK)
        status = bench_fetch(call, &flash, &naive);
    if (status == CLI_OK)
        status = compare_outputs(call, flash, naive);
    free(flash);
    free(naive);
    return status;
}

/* Deviation on a file's tensors, full or causal. */
static int open_input(bench_call *call, bench_state *state, const safetensors_file *file, int causal)
{
    attention_case c;
    call_options o = {0};
    o.causal = causal;
    o.path = state->options->path;
    for (int t = TENSOR_V + 1; t < NUM_INPUTS; t++)
        if (safetensors_find(file, tensor_names[t]))
            return cli_fail(CLI_USAGE, "%.200s: tensor '%s': expected q, k and v only", state->options->input,
                            tensor_names[t]);
    const int status = case_from_file(&c, file, state->options->input, &o);
    if (status != CLI_OK)
        return status;
    return bench_call_from_case(call, &state->device, &c);
}

/* Converts a file's q, k and v to the type that is measured. `converted` receives what is to be freed
 * after the file's last use. */
static int convert_input(safetensors_file *file, int32_t dtype, void *converted[3])
{
    static const char *const names[3] = {"q", "k", "v"};
    for (int i = 0; i < 3; i++) {
        safetensors_tensor *t = (safetensors_tensor *)safetensors_find(file, names[i]);
        const int32_t from = t ? dtype_from_safetensors_name(t->dtype) : 0;
        if (!dtype_is_plain(from) || from == dtype)
            continue; /* what is missing or no float type is refused by case_from_file */
        const size_t count = t->bytes / dtype_size(from);
        unsigned char *values = converted[i] = malloc(count * dtype_size(dtype) + 1);
        if (!values)
            return cli_fail(CLI_FAILED, "not enough memory for %s", names[i]);
        for (size_t k = 0; k < count; k++)
            tensor_store(values + k * dtype_size(dtype), dtype,
                         tensor_load((const char *)t->data + k * dtype_size(from), from));
        t->data = values;
        t->bytes = count * dtype_size(dtype);
        t->dtype = dtype_safetensors_name(dtype);
    }
    return CLI_OK;
}

static int show_deviation(bench_state *state)
{
    const char *input = state->options->input;
    safetensors_file file = {0};
    char error[800];
    if (input && safetensors_read(&file, input, error, sizeof error) != 0)
        return cli_fail(CLI_USAGE, "%s", error);
    void *converted[3] = {NULL, NULL, NULL};
    int status = input ? convert_input(&file, state->options->dtype[0], converted) : CLI_OK;
    for (int causal = 0; status == CLI_OK && causal <= 1; causal++) {
        const bench_shape shape = {1, 8, 8, 512, 512, 64, 64, causal};
        bench_call call;
        progress_show("deviation");
        status = input ? open_input(&call, state, &file, causal)
                       : bench_call_open(&call, &state->device, state->options, &shape);
        progress_clear();
        if (status != CLI_OK)
            break;
        if (!causal) {
            char plan[1024];
            device_call_describe(&call.call, plan, sizeof plan);
            printf("plan      %s\n\n", plan);
            printf("Deviation (largest absolute), %s, %s, B=%" PRId64 " H=%" PRId64 " N=%" PRId64 " D=%d\n",
                   input ? input : "random input", dtype_name(state->options->dtype[0]), call.shape.batch,
                   call.shape.heads_q, call.shape.q_len, (int)call.shape.head_dim_qk);
            printf("            naive-flash     flash-exact     naive-exact\n");
        }
        status = show_deviation_of(state, &call);
        bench_call_close(&call);
    }
    for (int i = 0; i < 3; i++)
        free(converted[i]);
    safetensors_close(&file);
    return status;
}

/* ---- Time ---------------------------------------------------------------------------------------
 */

/* Times naive if it fits and is expected to end in time. `rate` is the last one seen, 0 at first;
 * the time is left at 0 if it was not measured. */
static int time_naive(bench_state *state, bench_call *call, double *rate, bench_time *time)
{
    time->median = 0;
    if (!bench_naive_fits(call) || (*rate > 0 && bench_flops(call) / *rate > naive_limit))
        return CLI_OK;
    int status = bench_naive_open(call, &state->naive);
    if (status == CLI_OK)
        status = bench_measure(time, state->device.queue, bench_enqueue_naive, call, state->options->repeat,
                               bench_budget(state->options, 0.5));
    if (status == CLI_OK) {
        *rate = bench_flops(call) / time->median;
        status = bench_results_add(&state->results, call, 1, time, &state->ceiling);
    }
    return status;
}

static int time_both(bench_state *state, bench_call *call, double *rate, bench_time *flash, bench_time *naive)
{
    progress_show("N = %" PRId64, call->shape.q_len);
    int status = bench_measure(flash, state->device.queue, bench_enqueue_flash, call, state->options->repeat,
                               bench_budget(state->options, 0.5));
    if (status == CLI_OK)
        status = bench_results_add(&state->results, call, 0, flash, &state->ceiling);
    if (status == CLI_OK)
        status = time_naive(state, call, rate, naive);
    progress_clear();
    return status;
}

/* ---- Memory -------------------------------------------------------------------------------------
 */

static void print_memory_row(const bench_call *call, const bench_time *flash, const bench_time *naive)
{
    char flash_bytes[24], naive_bytes[24], naive_ms[24];
    const double ratio = (double)call->naive_bytes / (double)call->call.device_bytes;
    bench_format_bytes(flash_bytes, sizeof flash_bytes, call->call.device_bytes);
    bench_format_bytes(naive_bytes, sizeof naive_bytes, call->naive_bytes);
    if (naive->median > 0)
        cli_format(naive_ms, sizeof naive_ms, "%.1f", naive->median * 1e3);
    else
        cli_format(naive_ms, sizeof naive_ms, "-");
    printf("  %6" PRId64 "  %12s  %11s%c  %8.1fx  %10.1f  %10s\n", call->shape.q_len, flash_bytes,
           naive_bytes, naive->median > 0 ? ' ' : '*', ratio, flash->median * 1e3, naive_ms);
    fflush(stdout);
}

static int show_memory(bench_state *state)
{
    static const int64_t lengths[] = {2048, 8192, 32768};
    double rate = 0;
    int computed = 0, status = CLI_OK;
    printf("\nMemory on the device, %s, B=1 H=1 D=64: all buffers of a call\n",
           dtype_name(state->options->dtype[0]));
    printf("       N         flash        naive  naive/flash    flash ms    naive ms\n");
    for (size_t i = 0; status == CLI_OK && i < sizeof lengths / sizeof lengths[0]; i++) {
        const bench_shape shape = {1, 1, 1, lengths[i], lengths[i], 64, 64, 0};
        bench_call call;
        bench_time flash, naive;
        status = bench_call_open(&call, &state->device, state->options, &shape);
        if (status != CLI_OK)
            return status;
        status = time_both(state, &call, &rate, &flash, &naive);
        if (status == CLI_OK)
            print_memory_row(&call, &flash, &naive);
        computed |= status == CLI_OK && !(naive.median > 0);
        bench_call_close(&call);
    }
    if (computed)
        printf("  * computed: not run here, because it does not fit or would take too long\n");
    return status;
}

/* ---- Growth -------------------------------------------------------------------------------------
 */

static void print_growth_row(const bench_call *call, const bench_time *flash, const bench_time *naive)
{
    const double flops = bench_flops(call);
    char ms[24] = "-", rate[24] = "-", gain[24] = "-";
    if (naive->median > 0) {
        cli_format(ms, sizeof ms, "%.2f", naive->median * 1e3);
        cli_format(rate, sizeof rate, "%.1f", flops / naive->median * 1e-9);
        cli_format(gain, sizeof gain, "%.1fx", naive->median / flash->median);
    }
    printf("  %6" PRId64 "  %-6s  %10.2f  %10s  %9s  %9.1f  %9s\n", call->shape.q_len,
           call->shape.causal ? "yes" : "no", flash->median * 1e3, ms, gain, flops / flash->median * 1e-9,
           rate);
    fflush(stdout);
}

static int show_growth(bench_state *state)
{
    const int cpu = (state->device.entry.type & CL_DEVICE_TYPE_CPU) != 0;
    const int64_t longest = cpu ? 4096 : 16384;
    int status = CLI_OK;
    printf("\nTime and rate, %s, B=1 H=8 D=64 (GFLOP/s count allowed pairs only)\n",
           dtype_name(state->options->dtype[0]));
    printf("       N  causal    flash ms    naive ms  gain       flash G/s  naive G/s\n");
    for (int causal = 0; causal <= 1; causal++) {
        double rate = 0;
        for (int64_t n = 256; status == CLI_OK && n <= longest; n *= 2) {
            const bench_shape shape = {1, 8, 8, n, n, 64, 64, causal};
            bench_call call;
            bench_time flash, naive;
            status = bench_call_open(&call, &state->device, state->options, &shape);
            if (status != CLI_OK)
                return status;
            status = time_both(state, &call, &rate, &flash, &naive);
            if (status == CLI_OK)
                print_growth_row(&call, &flash, &naive);
            bench_call_close(&call);
        }
    }
    return status;
}

int bench_run_paper(bench_state *state)
{
    int status = show_deviation(state);
    if (status == CLI_OK)
        status = show_memory(state);
    if (status == CLI_OK)
        status = show_growth(state);
    return status;
}
