#include "serving_choices.h"

#include "numerics_cache.h"

#include <string.h>

#define F32 CLATTN_DTYPE_F32
#define F16 CLATTN_DTYPE_F16
#define BF16 CLATTN_DTYPE_BF16

static const int32_t cache_types[] = {CLATTN_DTYPE_F32,     CLATTN_DTYPE_Q8_0, CLATTN_DTYPE_F16,
                                      CLATTN_DTYPE_F8_E4M3, CLATTN_DTYPE_Q4_0, CLATTN_DTYPE_BF16,
                                      CLATTN_DTYPE_I8,      CLATTN_DTYPE_Q5_1, CLATTN_DTYPE_Q4_1,
                                      CLATTN_DTYPE_F8_E5M2, CLATTN_DTYPE_Q5_0, CLATTN_DTYPE_IQ4_NL};

enum { CACHE_TYPES = sizeof cache_types / sizeof *cache_types };

/* ---- Programs ---- */

static int32_t in_turn(const int32_t *table, int count, uint64_t first, int number)
{
    return table[(first + (uint64_t)number) % (uint64_t)count];
}

static void choose_types(serving_program *out, uint64_t first, int number, random_state *random)
{
    static const int32_t types_q[] = {F32, F16, F32, BF16, F16};
    out->q = in_turn(types_q, 5, first, number);
    out->o = random_chance(random, 70) ? out->q : F32;
    out->k = in_turn(cache_types, CACHE_TYPES, first, number);
    out->v =
        random_chance(random, 50) ? out->k : in_turn(cache_types, CACHE_TYPES, 5 * first + 3, 5 * number);
}

static void choose_dims(serving_program *out, random_state *random)
{
    static const head_choice dims[] = {{32, 32},   {64, 64},   {64, 64},   {64, 64},   {96, 96},
                                       {128, 128}, {128, 128}, {192, 128}, {256, 256}, {576, 512}};
    const head_choice choice = PICK(random, dims);
    out->dim_qk = choice.q;
    out->dim_v = choice.kv;
    out->v_in_k = choice.q == 576 || random_chance(random, 8);
    if (out->v_in_k)
        out->v = out->k;
}

serving_program choose_serving_program(int32_t path, uint64_t seed, int number)
{
    static const int32_t phases[] = {CLATTN_PHASE_DECODE, CLATTN_PHASE_PREFILL, CLATTN_PHASE_DECODE,
                                     CLATTN_PHASE_BOTH};
    static const int32_t pages[] = {16, 7, 64, 8, 1, 33, 5, 32, 12};
    static const int32_t groups[] = {1, 4, 2, 3, 8, 1, 5};
    static const int32_t bias_types[] = {F32, F32, F16, BF16};
    random_state random = random_for(seed, path == CLATTN_PATH_CPU ? "cpu" : "portable", (uint64_t)number);
    random_state common = random_for(seed, "serving", 0);
    const uint64_t first = random_bits(&common) % 1024;
    serving_program out;
    memset(&out, 0, sizeof out);
    out.path = path;
    out.phase = in_turn(phases, 4, first, number);
    /* Each phase comes with pages and without. */
    const uint64_t turn = first + (uint64_t)number;
    const int is_paged = (turn / 4 + turn / 2) % 2 != 0;
    out.page_size = is_paged ? PICK(&random, pages) : 0;
    choose_types(&out, first, number, &random);
    choose_dims(&out, &random);
    out.group = in_turn(groups, 7, first, number);
    out.has_status = random_chance(&random, 40);
    out.full = random_chance(&random, 50);
    out.bias = out.full ? PICK(&random, bias_types) : F32;
    if (random_chance(&random, 30))
        out.mods = choose_mods(&random);
    out.appends = random_chance(&random, 75);
    out.rope = (int32_t)random_between(&random, 0, 2);
    out.has_tables = out.rope != CLATTN_ROPE_NONE && random_chance(&random, 50);
    return out;
}

/* ---- Shapes ---- */

/* Rows of types of blocks are whole blocks. */
static int32_t dim_in_class(int32_t most, int is_whole, random_state *random)
{
    const int32_t step = most <= 128 ? 32 : 64;
    if (is_whole)
        return most;
    return random_chance(random, 60) ? most : most - (int32_t)random_between(random, 0, step - 1);
}

static void choose_head_dims(serving_spec *spec, const serving_program *program, random_state *random)
{
    const int whole_k = cache_unit_elements(program->k) > 1, whole_v = cache_unit_elements(program->v) > 1;
    call_spec *call = &spec->call;
    call->head_dim_qk =
        dim_in_class(program->dim_qk, whole_k || (program->dim_qk == program->dim_v && whole_v), random);
    call->head_dim_v =
        program->dim_qk == program->dim_v ? call->head_dim_qk : dim_in_class(program->dim_v, whole_v, random);
    if (program->v_in_k && call->head_dim_v > call->head_dim_qk)
        call->head_dim_v = call->head_dim_qk;
}

static int64_t choose_q_len(int32_t phase, random_state *random)
{
    const int64_t edges[] = {2, 4, 8, 16, 32, 64};
    const int64_t kind = random_between(random, 0, 99);
    if (kind < 1)
        return 0;
    if (phase != CLATTN_PHASE_PREFILL) {
        if (kind < 45)
            return 1;
        return kind < 75 ? PICK(random, edges) + random_between(random, -1, 1)
                         : random_between(random, 1, kind < 90 ? 20 : 70);
    }
    return kind < 10   ? 1
           : kind < 50 ? 8 * PICK(random, edges) / 2 + random_between(random, -1, 1)
                       : random_between(random, 2, 140);
}

static int64_t choose_kv_len(random_state *random)
{
    const int64_t edges[] = {16, 32, 64, 128, 256, 512};
    const int64_t kind = random_between(random, 0, 99);
    return kind < 2    ? 0
           : kind < 40 ? PICK(random, edges) + random_between(random, -1, 1)
           : kind < 85 ? random_between(random, 1, 300)
                       : random_between(random, 300, 1500);
}

static int64_t cost_of(const call_spec *call)
{
    return call->q_len * call->kv_len * (call->head_dim_qk + call->head_dim_v) * call->heads_q * call->batch;
}

/* The reference is slow. */
static void keep_cheap(call_spec *call, int32_t group)
{
    const int64_t most = 3 * 1000 * 1000;
    while (cost_of(call) > most && call->batch > 2)
        call->batch--;
    if (cost_of(call) > most) {
        call->heads_kv = 1;
        call->heads_q = group;
    }
    while (cost_of(call) > most && call->kv_len > 64)
        call->kv_len = call->kv_len * 3 / 4;
    while (cost_of(call) > most && call->q_len > 1)
        call->q_len = call->q_len * 3 / 4;
}

static void choose_shape(serving_spec *spec, const serving_program *program, random_state *random)
{
    call_spec *call = &spec->call;
    const int has_mods = program->mods.score != SCORE_MOD_NONE || program->mods.mask != MASK_MOD_NONE;
    choose_head_dims(spec, program, random);
    call->heads_kv = (int32_t)random_between(random, 1, 2);
    call->heads_q = call->heads_kv * program->group;
    call->q_len = choose_q_len(program->phase, random);
    call->kv_len = choose_kv_len(random);
    call->batch = random_chance(random, 1) ? 0 : random_between(random, 1, has_mods ? MODS_MAX_BATCH : 6);
    if (has_mods && call->kv_len > MODS_MAX_LENGTH)
        call->kv_len = MODS_MAX_LENGTH;
    keep_cheap(call, program->group);
}

/* ---- Storage ---- */

static scale_granularity choose_granularity(int32_t dtype, int is_appended, random_state *random)
{
    if (!cache_is_scaled(dtype))
        return SCALE_NONE;
    if (dtype == CLATTN_DTYPE_I8 && is_appended)
        return SCALE_OF_TOKEN; /* each new token writes its own */
    return (scale_granularity)random_between(random, dtype == CLATTN_DTYPE_I8 ? SCALE_OF_TENSOR : SCALE_NONE,
                                             SCALE_OF_TOKEN);
}

static void choose_append(serving_spec *spec, const serving_program *program, random_state *random)
{
    const float bases[] = {0, 0, 500000, 100}, scales[] = {0, 0, 0.25f};
    call_spec *call = &spec->call;
    append_spec *append = &spec->append;
    if (!program->appends || spec->keys == KEYS_PACKED || !random_chance(random, 60))
        return;
    if (call->kv_len < call->q_len)
        call->kv_len = call->q_len;
    call->keys_cover_rows = 1;
    append->takes_part = 1;
    append->rope = program->rope;
    append->has_tables = program->has_tables;
    append->has_slots = random_chance(random, 25);
    append->has_positions = random_chance(random, 25);
    if (append->rope == CLATTN_ROPE_NONE)
        append->has_positions = 0;
    if (append->rope != CLATTN_ROPE_NONE) {
        const int32_t half = call->head_dim_qk / 2;
        append->rotary_dim =
            half == 0
                ? 0
                : 2 * (random_chance(random, 60) ? half : 1 + (int32_t)random_between(random, 0, half - 1));
        append->rope_base = append->has_tables ? 0 : PICK(random, bases);
        append->rope_scale = append->has_tables ? 0 : PICK(random, scales);
    }
    if (append->rope != CLATTN_ROPE_NONE && append->rotary_dim == 0)
        append->takes_part = 0;
}

static void choose_storage(serving_spec *spec, const serving_program *program, random_state *random)
{
    const int64_t slacks[] = {0, 1, 5, 40};
    spec->packed_q = random_chance(random, 50);
    spec->keys = program->page_size > 0 ? KEYS_PAGED : random_chance(random, 50) ? KEYS_PACKED : KEYS_PADDED;
    spec->page_size = program->page_size;
    spec->gives_q_lens = random_chance(random, 30);
    spec->gives_kv_lens = random_chance(random, 30);
    spec->shared_percent = random_chance(random, 40) ? 60 : 0;
    spec->slack = PICK(random, slacks);
    choose_append(spec, program, random);
    spec->v_in_k = program->v_in_k;
    spec->one_pool = spec->keys == KEYS_PAGED && !spec->v_in_k && spec->dtype_k == spec->dtype_v &&
                     random_chance(random, 40);
    spec->scale_k = choose_granularity(spec->dtype_k, spec->append.takes_part, random);
    spec->scale_v =
        spec->v_in_k ? SCALE_NONE : choose_granularity(spec->dtype_v, spec->append.takes_part, random);
    spec->layout_q = (tensor_layout)random_between(random, 0, LAYOUT_OUTPUTS - 1);
    spec->layout_k = (tensor_layout)random_between(random, 0, LAYOUT_OUTPUTS - 1);
    spec->layout_v = (tensor_layout)random_between(random, 0, LAYOUT_OUTPUTS - 1);
    if (spec->packed_q)
        spec->call.features |= CLATTN_FEATURE_Q_LENS;
    if (spec->keys != KEYS_PADDED)
        spec->call.features |= CLATTN_FEATURE_KV_LENS;
}

static void choose_splits(serving_spec *spec, const serving_program *program, random_state *random)
{
    const int32_t counts[] = {0, 0, 1, 2, 3, 7, 64};
    spec->phase = program->phase;
    spec->is_invariant = program->phase != CLATTN_PHASE_BOTH && random_chance(random, 25);
    spec->splits = program->phase == CLATTN_PHASE_PREFILL || spec->is_invariant ? 0 : PICK(random, counts);
}

/* ---- The whole ---- */

static void choose_outputs(call_spec *call, random_state *random)
{
    call->layout_o = (tensor_layout)random_between(random, 0, LAYOUT_OUTPUTS - 1);
    call->layout_lse = (tensor_layout)random_between(random, 0, LAYOUT_OUTPUTS - 1);
    if (!random_chance(random, 80))
        call->features &= ~CLATTN_FEATURE_LSE;
    else
        choose_feature(call, CLATTN_FEATURE_LSE_BASE_2, 25, random);
    call->workspace = random_chance(random, 60) ? WORKSPACE_GIVEN : WORKSPACE_NONE;
}

serving_spec choose_serving(const serving_program *program, uint64_t seed, int number)
{
    const float amplitudes[] = {1, 1, 1, 8, 0.1f};
    random_state random = random_for(seed, "serving case", (uint64_t)number);
    serving_spec spec;
    memset(&spec, 0, sizeof spec);
    call_spec *call = &spec.call;
    *call = spec_plain(program->path);
    call->dtype_q = program->q;
    call->dtype_o = program->o;
    spec.dtype_k = program->k;
    spec.dtype_v = program->v;
    call->dtype_k = cache_is_plain(program->k) ? program->k : F32;
    call->dtype_v = cache_is_plain(program->v) ? program->v : F32;
    call->dtype_bias = program->bias;
    call->score_mod = program->mods.score;
    call->mask_mod = program->mods.mask;
    spec.has_status = program->has_status;
    choose_shape(&spec, program, &random);
    choose_storage(&spec, program, &random);
    choose_splits(&spec, program, &random);
    choose_position(call,
                    random_chance(&random, 40)
                        ? SEES_ALL
                        : (position_choice)random_between(&random, 0, POSITION_CHOICES - 1),
                    &random);
    if (!spec_has(call, CLATTN_FEATURE_CAUSAL | CLATTN_FEATURE_WINDOW))
        call->position_mode = (int32_t)random_between(&random, 0, 1);
    if (program->full)
        choose_full(call, &random);
    choose_feature(call, CLATTN_FEATURE_SINKS, 30, &random);
    call->plain_sinks = random_chance(&random, 70);
    choose_entries(call, &random);
    choose_values(call, &random);
    choose_outputs(call, &random);
    call->scale = choose_scale((scale_choice)random_between(&random, 0, 2 * SCALE_CHOICES), &random);
    call->q_amplitude = PICK(&random, amplitudes);
    call->seed = random_bits(&random);
    return spec;
}
