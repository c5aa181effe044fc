#include "numerics_choices.h"

void choose_position(call_spec *spec, position_choice choice, random_state *random)
{
    const uint32_t causal = CLATTN_FEATURE_CAUSAL, window = CLATTN_FEATURE_WINDOW;
    const int64_t near = random_between(random, 0, 40), wide = random_between(random, 0, 100);
    const struct {
        uint32_t features;
        int32_t mode;
        int64_t offset, left, right;
    } table[POSITION_CHOICES] = {
        [SEES_ALL] = {0, CLATTN_POSITION_TOP_LEFT, 0, 0, 0},
        [CAUSAL_BOTTOM_RIGHT] = {causal, CLATTN_POSITION_BOTTOM_RIGHT, 0, 0, 0},
        [CAUSAL_TOP_LEFT] = {causal, CLATTN_POSITION_TOP_LEFT, 0, 0, 0},
        [CAUSAL_EXPLICIT] = {causal, CLATTN_POSITION_EXPLICIT, random_between(random, 0, spec->kv_len), 0, 0},
        [CAUSAL_NEGATIVE] = {causal, CLATTN_POSITION_EXPLICIT,
                             -random_between(random, spec->q_len > 0, spec->q_len), 0, 0},
        [CAUSAL_BEYOND_KEYS] = {causal, CLATTN_POSITION_EXPLICIT, spec->kv_len + wide, 0, 0},
        [WINDOW_BOTTOM_RIGHT] = {window, CLATTN_POSITION_BOTTOM_RIGHT, 0, wide, near},
        [WINDOW_CAUSAL] = {causal | window, CLATTN_POSITION_BOTTOM_RIGHT, 0, near, wide},
        [WINDOW_LEFT_UNBOUNDED] = {window, CLATTN_POSITION_TOP_LEFT, 0, -1, near},
        [WINDOW_RIGHT_UNBOUNDED] = {window, CLATTN_POSITION_EXPLICIT, wide - 50, near, -1},
        [WINDOW_OF_ONE] = {window, CLATTN_POSITION_BOTTOM_RIGHT, 0, 0, 0},
        [WINDOW_UNBOUNDED_CAUSAL] = {causal | window, CLATTN_POSITION_TOP_LEFT, 0, -1, -1},
        [WINDOW_BEYOND_KEYS] = {window, CLATTN_POSITION_EXPLICIT, spec->kv_len - spec->q_len / 2, near, near},
        [WINDOW_HUGE] = {window, CLATTN_POSITION_EXPLICIT, INT64_MIN, INT64_MAX, INT64_MAX},
    };
    spec->features |= table[choice].features;
    spec->position_mode = table[choice].mode;
    spec->q_offset = table[choice].offset;
    spec->window_left = table[choice].left;
    spec->window_right = table[choice].right;
}

const head_choice head_choices[HEAD_CHOICES] = {{2, 2}, {3, 1}, {6, 2}, {8, 1}, {5, 1}, {1, 1}};

float choose_scale(scale_choice choice, random_state *random)
{
    switch (choice) {
    case SCALE_GIVEN:
        return (float)random_between(random, 1, 40) / 100;
    case SCALE_NEGATIVE:
        return -(float)random_between(random, 1, 40) / 100;
    case SCALE_TINY:
        return 1e-30f;
    default:
        return 0;
    }
}

const int bias_axes_choices[BIAS_AXES_CHOICES] = {
    BIAS_BATCH | BIAS_HEAD | BIAS_ROW | BIAS_KEY,
    BIAS_BATCH | BIAS_HEAD | BIAS_ROW | BIAS_KEY | BIAS_TRANSPOSED,
    BIAS_HEAD | BIAS_ROW | BIAS_KEY, /* one for all sequences */
    BIAS_BATCH | BIAS_KEY,           /* key padding */
    BIAS_ROW | BIAS_KEY | BIAS_TRANSPOSED,
    BIAS_BATCH | BIAS_HEAD | BIAS_ROW, /* the same for all keys */
    0,                                 /* one number */
};

static const mod_choice mod_choices[] = {
    {SCORE_MOD_NONE, MASK_MOD_DOCUMENT},  {SCORE_MOD_NONE, MASK_MOD_TREE},
    {SCORE_MOD_DOUBLE, MASK_MOD_PREFIX},  {SCORE_MOD_SOFTPLUS, MASK_MOD_CHUNK},
    {SCORE_MOD_RELATIVE, MASK_MOD_NONE},  {SCORE_MOD_RELATIVE, MASK_MOD_DOCUMENT},
    {SCORE_MOD_REVIVE, MASK_MOD_STRIPES}, {SCORE_MOD_FORBID, MASK_MOD_NONE},
    {SCORE_MOD_LINEAR, MASK_MOD_STRIPES}, {SCORE_MOD_REVIVE, MASK_MOD_NONE},
    {SCORE_MOD_FORBID, MASK_MOD_PREFIX},  {SCORE_MOD_NONE, MASK_MOD_CHUNK},
    {SCORE_MOD_LINEAR, MASK_MOD_DIAGONAL}};

mod_choice choose_mods(random_state *random) { return PICK(random, mod_choices); }

int choose_feature(call_spec *spec, uint32_t feature, int percent, random_state *random)
{
    const int chosen = random_chance(random, percent);
    if (chosen)
        spec->features |= feature;
    return chosen;
}

void choose_entries(call_spec *spec, random_state *random)
{
    choose_feature(spec, CLATTN_FEATURE_Q_LENS, 30, random);
    choose_feature(spec, CLATTN_FEATURE_KV_LENS, 30, random);
    if (random_chance(random, 25)) {
        spec->features |= CLATTN_FEATURE_Q_OFFSETS;
        spec->position_mode = CLATTN_POSITION_EXPLICIT;
    }
    if (spec_has(spec, CLATTN_FEATURE_Q_OFFSETS))
        spec->q_offset = 0;
    else if (spec->q_offset == INT64_MIN)
        spec->q_offset = -40;
}

static int choose_axes(random_state *random)
{
    return PICK(random, bias_axes_choices) | (random_chance(random, 25) ? BIAS_GAPS : 0);
}

static void choose_tiles(call_spec *spec, random_state *random)
{
    static const int32_t sizes[][2] = {{16, 16}, {64, 32}, {128, 128}, {7, 5}, {1, 1}, {32, 64}, {50, 1000}};
    const int64_t size = random_between(random, 0, 6), percents[] = {10, 50, 75, 90};
    spec->features |= CLATTN_FEATURE_KEY_TILES;
    spec->tile_rows = sizes[size][0];
    spec->tile_keys = sizes[size][1];
    spec->tiles_percent = (int)PICK(random, percents);
    spec->tiles_slack = random_between(random, 0, 4);
}

/* The lowest bias times a factor, or through a text, may leave the range of float. */
static void choose_bias(call_spec *spec, random_state *random)
{
    spec->features |= CLATTN_FEATURE_BIAS;
    spec->bias_axes = choose_axes(random);
    spec->bias_values = (bias_values)random_between(random, 0, 2);
    if (spec->bias_values == BIAS_LOWEST && spec->score_mod != SCORE_MOD_NONE &&
        spec->dtype_bias != CLATTN_DTYPE_F16)
        spec->bias_values = BIAS_HOLES;
    choose_feature(spec, CLATTN_FEATURE_BIAS_HEAD_SCALE, 40, random);
}

static int has_mods(const call_spec *spec)
{
    return spec->score_mod != SCORE_MOD_NONE || spec->mask_mod != MASK_MOD_NONE;
}

void choose_full(call_spec *spec, random_state *random)
{
    const int less = spec->mask_mod == MASK_MOD_NONE ? 0 : 20;
    const int64_t blocks[] = {1, 1, 16, 37, 100}, percents[] = {5, 50, 50, 75, 95, 95, 100};
    if (choose_feature(spec, CLATTN_FEATURE_SOFTCAP, 25, random))
        spec->softcap = (float)random_between(random, 1, 50);
    /* Without bias its type is no part of the program. */
    if (spec->dtype_bias != CLATTN_DTYPE_F32 || random_chance(random, 40))
        choose_bias(spec, random);
    if (choose_feature(spec, CLATTN_FEATURE_MASK, 40 - less, random)) {
        spec->mask_axes = choose_axes(random);
        spec->mask_block = PICK(random, blocks);
        spec->mask_percent = (int)PICK(random, percents);
    }
    choose_feature(spec, CLATTN_FEATURE_ALIBI, 30, random);
    /* Something has to be there that the full program is needed for. */
    const uint32_t full =
        CLATTN_FEATURE_SOFTCAP | CLATTN_FEATURE_BIAS | CLATTN_FEATURE_MASK | CLATTN_FEATURE_ALIBI;
    if (random_chance(random, 30 - less) || (!has_mods(spec) && !spec_has(spec, full)))
        choose_tiles(spec, random);
}

void choose_values(call_spec *spec, random_state *random)
{
    if (!has_mods(spec))
        return;
    spec->user_values[0] = (float)random_between(random, 8, 120);
    spec->user_values[1] = (float)random_between(random, 0, 60);
    spec->user_values[2] = (float)(spec->kv_len > spec->q_len ? spec->kv_len - spec->q_len : 0);
    spec->user_values[3] = (float)random_between(random, -8, 8) / 4;
}

void spec_keep_cheap(call_spec *spec, int64_t most)
{
    const int64_t head = spec->q_len * spec->kv_len * (spec->head_dim_qk + spec->head_dim_v);
    if (head * spec->heads_q * spec->batch > most)
        spec->batch = 1;
    if (head * spec->heads_q > most) {
        spec->heads_q /= spec->heads_kv;
        spec->heads_kv = 1;
    }
    if (head * spec->heads_q > most && spec->heads_q > 2)
        spec->heads_q = 2;
}
