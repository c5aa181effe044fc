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
