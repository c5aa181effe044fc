/* pipeline_test.c: the whole score pipeline, in combinations drawn at random. A program is one choice of
 * what is compiled in: path, types, class of head dims, whether the full pipeline takes part, and the texts
 * of score_mod and mask_mod. Some dozens of cases run on each; they vary in everything else: shapes,
 * layouts, and each feature on or off for itself. */
#include "numerics_choices.h"
#include "numerics_device.h"
#include "numerics_options.h"
#include "numerics_verify.h"

#include <stdio.h>
#include <string.h>

static numerics_options options;
static numerics_device device;

#define F32 CLATTN_DTYPE_F32
#define F16 CLATTN_DTYPE_F16
#define BF16 CLATTN_DTYPE_BF16

/* ---- Programs ---- */

typedef struct program_choice {
    int32_t path;
    int32_t q, k, v, o, bias;
    head_dims dims; /* the largest of their class */
    int full;
    score_mod score;
    mask_mod mask;
} program_choice;

static const struct {
    int32_t q, k, v, o;
} type_choices[] = {{F32, F32, F32, F32},     {F32, F32, F32, F32},    {F32, F32, F32, F32},
                    {F16, F16, F16, F16},     {F16, F16, F16, F16},    {F16, F16, F16, F32},
                    {BF16, BF16, BF16, BF16}, {BF16, BF16, BF16, F32}, {F32, F16, F16, F32},
                    {F16, BF16, F32, F16}};

/* Large ones are rare: their calls are slow. */
static const head_dims dims_choices[] = {{32, 32},   {32, 32},   {64, 64},   {64, 64},   {64, 64},
                                         {64, 64},   {96, 96},   {128, 128}, {128, 128}, {64, 96},
                                         {128, 128}, {192, 128}, {256, 256}};

static program_choice choose_program(int32_t path, uint64_t seed, int number)
{
    random_state random = random_for(seed, path == CLATTN_PATH_CPU ? "cpu" : "portable", (uint64_t)number);
    const int32_t bias_types[] = {F32, F32, F16, BF16};
    program_choice choice;
    memset(&choice, 0, sizeof choice);
    choice.path = path;
    const size_t types =
        (size_t)random_between(&random, 0, (int64_t)(sizeof type_choices / sizeof *type_choices) - 1);
    choice.q = type_choices[types].q;
    choice.k = type_choices[types].k;
    choice.v = type_choices[types].v;
    choice.o = type_choices[types].o;
    choice.dims = PICK(&random, dims_choices);
    choice.full = number % 4 != 0;
    choice.bias = choice.full ? PICK(&random, bias_types) : F32;
    if (number % 4 >= 2) {
        const mod_choice mods = choose_mods(&random);
        choice.score = mods.score;
        choice.mask = mods.mask;
    }
    return choice;
}

/* ---- Cases ---- */

static int32_t dim_in_class(int32_t most, random_state *random)
{
    const int32_t step = most <= 128 ? 32 : 64;
    return random_chance(random, 60) ? most : most - (int32_t)random_between(random, 0, step - 1);
}

/* One, with a chance of its own; one below, at and above what tiles are made of; any; some long; rarely none.
 */
static int64_t choose_length(int percent_of_one, random_state *random)
{
    const int64_t edges[] = {16, 32, 48, 64, 96, 128, 256};
    const int64_t kind = random_between(random, 0, 99);
    if (kind < 2)
        return 0;
    if (kind < 2 + percent_of_one)
        return 1;
    if (kind < 50)
        return PICK(random, edges) + random_between(random, -1, 1);
    return kind < 92 ? random_between(random, 2, 160) : random_between(random, 160, 600);
}

static void choose_shape(call_spec *spec, const program_choice *program, random_state *random)
{
    const int64_t batches[] = {1, 1, 2, 2, 3, 4};
    const head_choice heads = PICK(random, head_choices);
    spec->head_dim_qk = dim_in_class(program->dims.qk, random);
    spec->head_dim_v =
        program->dims.qk == program->dims.v ? spec->head_dim_qk : dim_in_class(program->dims.v, random);
    spec->q_len = choose_length(10, random);
    spec->kv_len = choose_length(2, random);
    if (random_chance(random, 30) && spec->q_len + spec->kv_len <= MODS_MAX_LENGTH)
        spec->kv_len += spec->q_len;
    spec->heads_q = heads.q;
    spec->heads_kv = heads.kv;
    spec->batch = random_chance(random, 1) ? 0 : PICK(random, batches);
    spec_keep_cheap(spec, 3 * 1000 * 1000);
}

static void choose_layouts(call_spec *spec, random_state *random)
{
    spec->layout_in = (tensor_layout)random_between(random, 0, LAYOUTS - 1);
    spec->layout_o = (tensor_layout)random_between(random, 0, LAYOUT_OUTPUTS - 1);
    spec->layout_lse = (tensor_layout)random_between(random, 0, LAYOUT_OUTPUTS - 1);
    if (!random_chance(random, 80))
        spec->features &= ~CLATTN_FEATURE_LSE;
    else
        choose_feature(spec, CLATTN_FEATURE_LSE_BASE_2, 25, random);
    spec->workspace = random_chance(random, 60) ? WORKSPACE_GIVEN : WORKSPACE_NONE;
}

static call_spec choose_case(const program_choice *program, uint64_t seed, int number)
{
    const float amplitudes[] = {1, 1, 1, 8, 0.1f};
    random_state random = random_for(seed, "case", (uint64_t)number);
    call_spec spec = spec_plain(program->path);
    spec.dtype_q = program->q;
    spec.dtype_k = program->k;
    spec.dtype_v = program->v;
    spec.dtype_o = program->o;
    spec.dtype_bias = program->bias;
    spec.score_mod = program->score;
    spec.mask_mod = program->mask;
    choose_shape(&spec, program, &random);
    choose_position(&spec,
                    random_chance(&random, 40)
                        ? SEES_ALL
                        : (position_choice)random_between(&random, 0, POSITION_CHOICES - 1),
                    &random);
    if (!spec_has(&spec, CLATTN_FEATURE_CAUSAL | CLATTN_FEATURE_WINDOW))
        spec.position_mode = (int32_t)random_between(&random, 0, 1);
    if (program->full)
        choose_full(&spec, &random);
    choose_feature(&spec, CLATTN_FEATURE_SINKS, 30, &random);
    spec.plain_sinks = random_chance(&random, 70);
    choose_entries(&spec, &random);
    choose_values(&spec, &random);
    choose_layouts(&spec, &random);
    spec.scale = choose_scale((scale_choice)random_between(&random, 0, 2 * SCALE_CHOICES), &random);
    spec.q_amplitude = PICK(&random, amplitudes);
    spec.seed = random_bits(&random);
    return spec;
}

/* ---- Running ---- */

typedef struct tally {
    int cases, faults;
    double worst_o, worst_lse;
} tally;

/* Every eighth case runs twice: the same bits, whoever brings the workspace. */
static void run_case(verdict *found, const call_spec *spec, int twice)
{
    call_data data, again;
    data_create(&data, spec);
    clattn_status status = device_run(&device, &data);
    memset(found, 0, sizeof *found);
    if (status == CLATTN_SUCCESS)
        verify_call(found, &data);
    if (status == CLATTN_SUCCESS && found->fault[0] == '\0' && twice) {
        call_spec other = *spec;
        other.workspace = spec->workspace == WORKSPACE_NONE ? WORKSPACE_GIVEN : WORKSPACE_NONE;
        data_create(&again, &other);
        status = device_run(&device, &again);
        if (!same_bits(&data.buffer[TENSOR_O], &again.buffer[TENSOR_O]) ||
            (data.buffer[TENSOR_LSE].bytes != NULL &&
             !same_bits(&data.buffer[TENSOR_LSE], &again.buffer[TENSOR_LSE])))
            snprintf(found->fault, sizeof found->fault, "the same call gave other bits the second time");
        data_destroy(&again);
    }
    if (status != CLATTN_SUCCESS)
        snprintf(found->fault, sizeof found->fault, "the call failed: %s", clattn_status_string(status));
    data_destroy(&data);
}

static const char *path_name(int32_t path) { return path == CLATTN_PATH_CPU ? "cpu" : "portable"; }

static void announce(FILE *to, const program_choice *program, const call_spec *spec, uint64_t seed, int cases,
                     int number, const char *fault)
{
    char text[1024];
    spec_describe(spec, text, sizeof text);
    fprintf(to, "%s%s    pipeline_test --path %s --seed %llu --cases %d --case %d\n    %s\n", fault,
            fault[0] == '\0' ? "" : "\n", path_name(program->path), (unsigned long long)seed, cases, number,
            text);
    fflush(NULL);
}

static void count(tally *sum, const verdict *found)
{
    sum->cases++;
    sum->faults += found->fault[0] != '\0';
    if (found->worst_o > sum->worst_o)
        sum->worst_o = found->worst_o;
    if (found->worst_lse > sum->worst_lse)
        sum->worst_lse = found->worst_lse;
}

/* Holds the program while its cases run: plans of one context share it. */
static clattn_plan *hold_program(const program_choice *program, uint64_t seed, int first)
{
    const call_spec spec = choose_case(program, seed, first);
    const clattn_plan_desc desc = spec_plan_desc(&spec);
    clattn_plan *plan;
    return clattn_plan_create(&plan, device.context, &desc) == CLATTN_SUCCESS ? plan : NULL;
}

/* Cases on one program: enough to be worth its compilation, which takes long on the portable path; and not
 * too many programs in long runs. */
static int cases_per_program(int32_t path, int cases)
{
    const int least = path == CLATTN_PATH_CPU ? 30 : 50;
    const int programs = path == CLATTN_PATH_CPU ? 40 : 24;
    return cases > programs * least ? (cases + programs - 1) / programs : least;
}

static void run_path(tally *sum, int32_t path, uint64_t seed, int cases)
{
    enum { SHOWN = 10 };
    const int share = cases_per_program(path, cases);
    for (int first = 1; first <= cases; first += share) {
        if (options.only_case != 0 && (options.only_case < first || options.only_case >= first + share))
            continue;
        const program_choice program = choose_program(path, seed, 1 + first / share);
        clattn_plan *held = hold_program(&program, seed, first);
        for (int number = first; number < first + share && number <= cases; number++) {
            const call_spec spec = choose_case(&program, seed, number);
            verdict found;
            if (options.only_case != 0 && options.only_case != number)
                continue;
            if (options.is_verbose)
                announce(stdout, &program, &spec, seed, cases, number, "");
            run_case(&found, &spec, number % 8 == 0);
            count(sum, &found);
            if (found.fault[0] != '\0' && sum->faults <= SHOWN)
                announce(stderr, &program, &spec, seed, cases, number, found.fault);
        }
        clattn_plan_release(held);
    }
}

static int run_one(int32_t path, uint64_t seed, int cases)
{
    tally sum = {0, 0, 0, 0};
    run_path(&sum, path, seed, cases);
    printf("%s, seed %llu: %d cases, %d wrong, at most %.2f (o) and %.2f (lse) of the tolerance\n",
           path_name(path), (unsigned long long)seed, sum.cases, sum.faults, sum.worst_o, sum.worst_lse);
    return sum.faults > 0;
}

/* Seeds share the cases, and paths do: the portable one, whose programs take long to compile here, gets
 * fewer. */
static int run_all(void)
{
    const int32_t paths[] = {CLATTN_PATH_CPU, CLATTN_PATH_PORTABLE};
    const int percents[] = {60, 40};
    int result = EXIT_SKIPPED;
    for (int i = 0; i < 2; i++) {
        if ((options.path != PATHS_BOTH && options.path != paths[i]) || !device_has_path(&device, paths[i]))
            continue;
        const int cases = options.path == PATHS_BOTH ? options.cases * percents[i] / 100 : options.cases;
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
        options.cases = 500;
    const int opened = device_open(&device);
    if (opened != 0)
        return opened;
    const int result = run_all();
    device_close(&device);
    return result;
}
