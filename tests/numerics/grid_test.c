/* grid_test.c: every combination that users meet, drawn at random but evenly, many calls per
 * compiled program. A group is one choice of types and head dims, lean or full (softcap, bias); its
 * calls vary in everything that is not compiled in. --all walks through lengths x positions x heads
 * instead. */
#include "numerics_choices.h"
#include "numerics_device.h"
#include "numerics_options.h"
#include "numerics_verify.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

/* ---- What can be chosen ---- */

typedef struct type_choice {
    unsigned types; /* TYPES_* it belongs to */
    int32_t q, k, v, o;
    head_dims dims; /* 0: all */
} type_choice;

#define F32 CLATTN_DTYPE_F32
#define F16 CLATTN_DTYPE_F16
#define BF16 CLATTN_DTYPE_BF16

static const type_choice type_choices[] = {
    {TYPES_F32, F32, F32, F32, F32, {0, 0}},      {TYPES_F16, F16, F16, F16, F16, {0, 0}},
    {TYPES_BF16, BF16, BF16, BF16, BF16, {0, 0}}, {TYPES_MIXED, F16, BF16, F32, F16, {64, 64}},
    {TYPES_MIXED, F32, F16, BF16, F32, {40, 59}}, {TYPES_MIXED, BF16, F32, F16, F32, {128, 128}},
    {TYPES_MIXED, F16, F16, F16, F32, {111, 80}},
};

/* Multiply-adds of a call at the most. */
enum { CHEAP = 8 * 1000 * 1000 };

/* ---- A group and its decks ---- */

typedef struct grid_group {
    char name[64];
    type_choice types;
    head_dims dims;
    int full;           /* softcap or bias take part */
    int32_t dtype_bias; /* in a full group */
} grid_group;

typedef struct grid_decks {
    deck q_len, kv_len, position, heads, batch, scale, amplitude;
    deck layout_in, layout_o, layout_lse, want_lse;
    deck extras, bias_axes, bias_values;
} grid_decks;

/* In a full group: which of softcap and bias take part. */
enum { EXTRA_BIAS, EXTRA_BOTH, EXTRA_SOFTCAP };

static numerics_options options;
static numerics_device device;

static void add_range(deck *cards, int count)
{
    for (int i = 0; i < count; i++)
        deck_add(cards, i);
}

/* One below, at and above the tile and the sub-tiles that paths use; and others. */
static void add_lengths(deck *cards, int64_t block)
{
    const int64_t edges[] = {block, 16, 32, 2 * block};
    const int64_t others[] = {1, 2, 7, 113, 203};
    for (size_t i = 0; i < sizeof edges / sizeof *edges; i++)
        for (int64_t length = edges[i] - 1; length <= edges[i] + 1; length++)
            deck_add(cards, length);
    for (size_t i = 0; i < sizeof others / sizeof *others; i++)
        deck_add(cards, others[i]);
}

static void fill_decks(grid_decks *decks, const grid_group *group, int64_t block_q, int64_t block_k)
{
    memset(decks, 0, sizeof *decks);
    add_lengths(&decks->q_len, block_q);
    add_lengths(&decks->kv_len, block_k);
    add_range(&decks->position, POSITION_CHOICES);
    deck_add(&decks->position, SEES_ALL); /* the most common two come up more often */
    deck_add(&decks->position, CAUSAL_BOTTOM_RIGHT);
    add_range(&decks->heads, HEAD_CHOICES);
    deck_add(&decks->batch, 1);
    deck_add(&decks->batch, 2);
    deck_add(&decks->batch, 3);
    add_range(&decks->scale, SCALE_CHOICES);
    deck_add(&decks->scale, SCALE_DEFAULT);
    deck_add(&decks->scale, SCALE_DEFAULT);
    deck_add(&decks->amplitude, 1);
    deck_add(&decks->amplitude, 1);
    deck_add(&decks->amplitude, 8);
    add_range(&decks->layout_in, LAYOUTS);
    add_range(&decks->layout_o, LAYOUT_OUTPUTS);
    add_range(&decks->layout_lse, LAYOUT_OUTPUTS);
    deck_add(&decks->want_lse, 0);
    deck_add(&decks->want_lse, 1);
    deck_add(&decks->want_lse, 1);
    deck_add(&decks->extras, EXTRA_BIAS);
    deck_add(&decks->extras, EXTRA_BOTH);
    if (group->dtype_bias == F32) /* a bias of another type would be a program of its own */
        deck_add(&decks->extras, EXTRA_SOFTCAP);
    add_range(&decks->bias_axes, BIAS_AXES_CHOICES);
    add_range(&decks->bias_values, BIAS_LOWEST + 1);
    deck_add(&decks->bias_values, BIAS_NORMAL);
}

static void choose_extras(call_spec *spec, grid_decks *decks, random_state *random)
{
    const int64_t extras = deck_draw(&decks->extras, random);
    if (extras != EXTRA_SOFTCAP) {
        spec->features |= CLATTN_FEATURE_BIAS;
        spec->bias_axes = bias_axes_choices[deck_draw(&decks->bias_axes, random)];
        spec->bias_values = (bias_values)deck_draw(&decks->bias_values, random);
    }
    if (extras != EXTRA_BIAS) {
        spec->features |= CLATTN_FEATURE_SOFTCAP;
        spec->softcap = (float)random_between(random, 1, 50);
    }
}

static call_spec group_spec(const grid_group *group)
{
    call_spec spec = spec_plain(options.path);
    spec.dtype_q = group->types.q;
    spec.dtype_k = group->types.k;
    spec.dtype_v = group->types.v;
    spec.dtype_o = group->types.o;
    spec.dtype_bias = group->dtype_bias;
    spec.head_dim_qk = group->dims.qk;
    spec.head_dim_v = group->dims.v;
    return spec;
}

static void draw_shape(call_spec *spec, grid_decks *decks, random_state *random)
{
    spec->q_len = deck_draw(&decks->q_len, random);
    spec->kv_len = deck_draw(&decks->kv_len, random);
    const int64_t heads = deck_draw(&decks->heads, random);
    spec->heads_q = head_choices[heads].q;
    spec->heads_kv = head_choices[heads].kv;
    spec->batch = deck_draw(&decks->batch, random);
    spec_keep_cheap(spec, CHEAP);
    choose_position(spec, (position_choice)deck_draw(&decks->position, random), random);
}

/* Shape number `number` of lengths x heads x positions; 0 beyond the last. */
static int set_shape(call_spec *spec, const grid_decks *decks, int number, random_state *random)
{
    enum { EDGES = 3 }; /* the first cards of the lengths: around the tile */
    spec->q_len = decks->q_len.card[number % EDGES];
    number /= EDGES;
    spec->kv_len = decks->kv_len.card[number % EDGES];
    number /= EDGES;
    spec->heads_q = head_choices[number % HEAD_CHOICES].q;
    spec->heads_kv = head_choices[number % HEAD_CHOICES].kv;
    number /= HEAD_CHOICES;
    if (number >= POSITION_CHOICES)
        return 0;
    choose_position(spec, (position_choice)number, random);
    return 1;
}

static void draw_rest(call_spec *spec, grid_decks *decks, int full, random_state *random)
{
    spec->scale = choose_scale((scale_choice)deck_draw(&decks->scale, random), random);
    spec->q_amplitude = (float)deck_draw(&decks->amplitude, random);
    spec->layout_in = (tensor_layout)deck_draw(&decks->layout_in, random);
    spec->layout_o = (tensor_layout)deck_draw(&decks->layout_o, random);
    spec->layout_lse = (tensor_layout)deck_draw(&decks->layout_lse, random);
    if (deck_draw(&decks->want_lse, random) == 0)
        spec->features &= ~CLATTN_FEATURE_LSE;
    if (full)
        choose_extras(spec, decks, random);
    spec->seed = random_bits(random);
}

/* ---- Running ---- */

/* The tile sizes are in the plan's own words: "cpu: tiles 128x48, ...". */
static void read_tile(const grid_group *group, int *block_q, int *block_k)
{
    call_spec spec = group_spec(group);
    clattn_plan *plan;
    char text[1024] = "";
    if (group->full)
        spec.features |= CLATTN_FEATURE_BIAS;
    const clattn_plan_desc desc = spec_plan_desc(&spec);
    assert_int_equal(clattn_plan_create(&plan, device.context, &desc), CLATTN_SUCCESS);
    clattn_plan_describe(plan, text, sizeof text, NULL);
    clattn_plan_release(plan);
    const char *tiles = strstr(text, "tiles ");
    assert_non_null(tiles);
    assert_int_equal(sscanf(tiles, "tiles %dx%d", block_q, block_k), 2);
}

/* Runs a call twice: it has to be right, and the same bits both times. */
static void run_call(verdict *out, const call_spec *spec)
{
    call_data first, second;
    data_create(&first, spec);
    data_create(&second, spec);
    const clattn_status status = device_run(&device, &first);
    if (status != CLATTN_SUCCESS || device_run(&device, &second) != CLATTN_SUCCESS) {
        memset(out, 0, sizeof *out);
        snprintf(out->fault, sizeof out->fault, "the call failed: %s", clattn_status_string(status));
    } else {
        verify_call(out, &first);
        if (out->fault[0] == '\0' && (!same_bits(&first.buffer[TENSOR_O], &second.buffer[TENSOR_O]) ||
                                      (first.buffer[TENSOR_LSE].bytes != NULL &&
                                       !same_bits(&first.buffer[TENSOR_LSE], &second.buffer[TENSOR_LSE]))))
            snprintf(out->fault, sizeof out->fault, "the same call gave other bits the second time");
    }
    data_destroy(&first);
    data_destroy(&second);
}

typedef struct tally {
    int calls, faults;
    double worst_o, worst_lse;
} tally;

static void announce(const call_spec *spec, uint64_t seed, int number)
{
    char text[512];
    if (!options.is_verbose)
        return;
    spec_describe(spec, text, sizeof text);
    print_message("--seed %llu --case %d: %s\n", (unsigned long long)seed, number, text);
    fflush(NULL);
}

static void count(tally *sum, const verdict *found, const call_spec *spec, uint64_t seed, int number)
{
    enum { SHOWN = 5 };
    char text[512];
    sum->calls++;
    sum->worst_o = found->worst_o > sum->worst_o ? found->worst_o : sum->worst_o;
    sum->worst_lse = found->worst_lse > sum->worst_lse ? found->worst_lse : sum->worst_lse;
    if (found->fault[0] == '\0')
        return;
    if (++sum->faults > SHOWN)
        return;
    spec_describe(spec, text, sizeof text);
    print_error("--seed %llu --case %d: %s\n    %s\n", (unsigned long long)seed, number, found->fault, text);
}

static void run_seed(tally *sum, const grid_group *group, uint64_t seed, int block_q, int block_k)
{
    grid_decks decks;
    fill_decks(&decks, group, block_q, block_k);
    for (int number = 1; options.all || number <= options.cases; number++) {
        random_state random = random_for(seed, group->name, (uint64_t)number);
        call_spec spec = group_spec(group);
        if (!options.all)
            draw_shape(&spec, &decks, &random);
        else if (!set_shape(&spec, &decks, number - 1, &random))
            break;
        draw_rest(&spec, &decks, group->full, &random);
        if (options.only_case != 0 && options.only_case != number)
            continue;
        verdict found;
        announce(&spec, seed, number);
        run_call(&found, &spec);
        count(sum, &found, &spec, seed, number);
    }
}

static void test_group(void **state)
{
    const grid_group *group = *state;
    tally sum = {0, 0, 0, 0};
    int block_q = 0, block_k = 0;
    read_tile(group, &block_q, &block_k);
    for (int i = 0; i < options.num_seeds; i++)
        run_seed(&sum, group, options.seeds[i], block_q, block_k);
    print_message("tile %dx%d, %d calls, at most %.2f (o) and %.2f (lse) of the tolerance\n", block_q,
                  block_k, sum.calls, sum.worst_o, sum.worst_lse);
    if (sum.faults > 0)
        fail_msg("%d of %d calls are wrong", sum.faults, sum.calls);
}

/* ---- The list of groups ---- */

enum { MAX_GROUPS = 512 };

typedef struct grid {
    grid_group groups[MAX_GROUPS];
    struct CMUnitTest tests[MAX_GROUPS];
    size_t count;
} grid;

static const char *type_name(const type_choice *types)
{
    static const char *const names[] = {"", "f32", "f16", "bf16"};
    static char text[32];
    snprintf(text, sizeof text, "%s/%s/%s/%s", names[types->q], names[types->k], names[types->v],
             names[types->o]);
    return types->types == TYPES_MIXED ? text : names[types->q];
}

/* The bias type takes turns, so that each meets most head dims over the types of q, k and v. */
static void add_group(grid *out, const type_choice *types, head_dims dims, int full)
{
    grid_group *group = &out->groups[out->count];
    if (out->count == MAX_GROUPS)
        return;
    group->types = *types;
    group->dims = dims;
    group->full = full;
    group->dtype_bias = F32 + (types->q + dims.qk / 32) % 3;
    snprintf(group->name, sizeof group->name, "%s, head dims %d/%d, %s", type_name(types), (int)dims.qk,
             (int)dims.v, full ? "full" : "lean");
    const struct CMUnitTest test = {group->name, test_group, NULL, NULL, group};
    out->tests[out->count++] = test;
}

/* Head dims up to a multiple of 32, or of 64 beyond 128, share a program; so they get the same
 * turn.
 */
static int is_full_turn(const type_choice *types, head_dims dims)
{
    const int step = dims.qk <= 128 ? 32 : 64;
    return ((dims.qk + step - 1) / step + (dims.qk != dims.v) + types->q + types->k) % 2;
}

static void add_dims(grid *out, const type_choice *types, head_dims dims)
{
    for (int full = 0; full < 2; full++)
        if (options.all || !options.half || is_full_turn(types, dims) == full)
            add_group(out, types, dims, full);
}

/* Of the mixed choices, every second one is left out when programs are to be saved. */
static int is_chosen(size_t index)
{
    const type_choice *types = &type_choices[index];
    const int saves = options.half && !options.all && types->types == TYPES_MIXED;
    return (types->types & options.types) != 0 && !(saves && index % 2 == 0);
}

static void list_groups(grid *out)
{
    for (size_t i = 0; i < sizeof type_choices / sizeof *type_choices; i++) {
        const type_choice *types = &type_choices[i];
        if (!is_chosen(i))
            continue;
        if (types->dims.qk != 0)
            add_dims(out, types, types->dims);
        else
            for (int n = 0; n < options.num_dims; n++)
                add_dims(out, types, options.dims[n]);
    }
}

int main(int argc, char **argv)
{
    static grid all;
    if (options_read(&options, argc, argv) != 0)
        return 1;
    if (options.cases == 0)
        options.cases = 16;
    const int opened = device_open(&device);
    if (opened != 0)
        return opened;
    if (!device_has_path(&device, options.path)) {
        print_message("the device does not have the path\n");
        device_close(&device);
        return EXIT_SKIPPED;
    }
    list_groups(&all);
    const int failed = _cmocka_run_group_tests("grid", all.tests, all.count, NULL, NULL);
    device_close(&device);
    return failed;
}
