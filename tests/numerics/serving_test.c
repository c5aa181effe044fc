/* serving_test.c: attention as serving makes it, in combinations drawn at random: sequences padded, packed
 * and in pages, cache types, appended tokens, phases and splits, each with the whole score pipeline. A
 * program is one choice of what is compiled in; some dozens of cases run on each. */
#include "numerics_options.h"
#include "serving_append.h"
#include "serving_choices.h"
#include "serving_run.h"

#include <stdio.h>
#include <string.h>

static numerics_options options;
static numerics_device device;

/* ---- Running ---- */

typedef struct tally {
    int cases, faults, appended;
    double worst_o, worst_lse;
} tally;

static int same_outputs(const serving_data *a, const serving_data *b)
{
    return same_bits(&a->call.buffer[TENSOR_O], &b->call.buffer[TENSOR_O]) &&
           (a->call.buffer[TENSOR_LSE].bytes == NULL ||
            same_bits(&a->call.buffer[TENSOR_LSE], &b->call.buffer[TENSOR_LSE]));
}

/* Every eighth case runs twice: the same bits, whoever brings the workspace. */
static void run_case(verdict *found, const serving_spec *spec, int twice)
{
    serving_data data, again;
    serving_create(&data, spec);
    serving_verify(found, &device, &data);
    if (found->fault[0] == '\0' && twice) {
        serving_spec other = *spec;
        const char *fault;
        other.call.workspace = spec->call.workspace == WORKSPACE_NONE ? WORKSPACE_GIVEN : WORKSPACE_NONE;
        serving_create(&again, &other);
        const clattn_status status = serving_run(&device, &again, &fault);
        if (status != CLATTN_SUCCESS || fault != NULL || !same_outputs(&data, &again))
            snprintf(found->fault, sizeof found->fault, "the same call gave other bits the second time");
        serving_destroy(&again);
    }
    serving_destroy(&data);
}

static const char *path_name(int32_t path) { return path == CLATTN_PATH_CPU ? "cpu" : "portable"; }

static void announce(FILE *to, const serving_spec *spec, uint64_t seed, int cases, int number,
                     const char *fault)
{
    char text[1400];
    serving_describe(spec, text, sizeof text);
    fprintf(to, "%s%s    serving_test --path %s --seed %llu --cases %d --case %d\n    %s\n", fault,
            fault[0] == '\0' ? "" : "\n", path_name(spec->call.path), (unsigned long long)seed, cases, number,
            text);
    fflush(NULL);
}

static void count(tally *sum, const verdict *found, const serving_spec *spec)
{
    sum->cases++;
    sum->appended += spec->append.takes_part;
    sum->faults += found->fault[0] != '\0';
    if (found->worst_o > sum->worst_o)
        sum->worst_o = found->worst_o;
    if (found->worst_lse > sum->worst_lse)
        sum->worst_lse = found->worst_lse;
}

/* Holds the program while its cases run: plans of one context share it. */
static clattn_plan *hold_program(const serving_program *program, uint64_t seed, int first)
{
    const serving_spec spec = choose_serving(program, seed, first);
    const clattn_plan_desc desc = serving_plan_desc(&spec);
    clattn_plan *plan;
    return clattn_plan_create(&plan, device.context, &desc) == CLATTN_SUCCESS ? plan : NULL;
}

/* Cases on one program: enough to be worth its compilation; and not too many programs in long runs. */
static int cases_per_program(int cases)
{
    enum { LEAST = 25, PROGRAMS = 60 };
    return cases > PROGRAMS * LEAST ? (cases + PROGRAMS - 1) / PROGRAMS : LEAST;
}

static void run_path(tally *sum, int32_t path, uint64_t seed, int cases)
{
    enum { SHOWN = 10 };
    const int share = cases_per_program(cases);
    for (int first = 1; first <= cases; first += share) {
        if (options.only_case != 0 && (options.only_case < first || options.only_case >= first + share))
            continue;
        const serving_program program = choose_serving_program(path, seed, first / share);
        clattn_plan *held = hold_program(&program, seed, first);
        for (int number = first; number < first + share && number <= cases; number++) {
            const serving_spec spec = choose_serving(&program, seed, number);
            verdict found;
            if (options.only_case != 0 && options.only_case != number)
                continue;
            if (options.is_verbose)
                announce(stdout, &spec, seed, cases, number, "");
            run_case(&found, &spec, number % 8 == 0);
            count(sum, &found, &spec);
            if (found.fault[0] != '\0' && sum->faults <= SHOWN)
                announce(stderr, &spec, seed, cases, number, found.fault);
        }
        clattn_plan_release(held);
    }
}

static int run_one(int32_t path, uint64_t seed, int cases)
{
    tally sum = {0, 0, 0, 0, 0};
    run_path(&sum, path, seed, cases);
    printf(
        "%s, seed %llu: %d cases (%d append), %d wrong, at most %.2f (o) and %.2f (lse) of the tolerance\n",
        path_name(path), (unsigned long long)seed, sum.cases, sum.appended, sum.faults, sum.worst_o,
        sum.worst_lse);
    return sum.faults > 0;
}

/* Seeds share the cases, and paths do. */
static int run_all(void)
{
    const int32_t paths[] = {CLATTN_PATH_CPU, CLATTN_PATH_PORTABLE};
    int result = EXIT_SKIPPED;
    for (int i = 0; i < 2; i++) {
        if ((options.path != PATHS_BOTH && options.path != paths[i]) || !device_has_path(&device, paths[i]))
            continue;
        const int cases = options.path == PATHS_BOTH ? options.cases / 2 : options.cases;
        for (int n = 0; n < options.num_seeds; n++) {
            const int failed = run_one(paths[i], options.seeds[n], cases / options.num_seeds);
            result = result == EXIT_SKIPPED ? failed : result | failed;
        }
    }
    return result;
}

int main(int argc, char **argv)
{
    if (options_read(&options, argc, argv) != 0)
        return 1;
    if (options.cases == 0)
        options.cases = 300;
    const int opened = device_open(&device);
    if (opened != 0)
        return opened;
    const int result = run_all();
    device_close(&device);
    return result;
}
