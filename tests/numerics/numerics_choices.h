/* numerics_choices.h: what tests draw calls from. */
#ifndef CLATTN_NUMERICS_CHOICES_H
#define CLATTN_NUMERICS_CHOICES_H

#include "numerics_random.h"
#include "numerics_spec.h"

#define PICK(random, table) (table)[random_between(random, 0, (int64_t)(sizeof(table) / sizeof *(table)) - 1)]

/* Where rows stand among the keys and what they see of them. */
typedef enum position_choice {
    SEES_ALL,
    CAUSAL_BOTTOM_RIGHT,
    CAUSAL_TOP_LEFT,
    CAUSAL_EXPLICIT,
    CAUSAL_NEGATIVE,    /* the first rows see nothing */
    CAUSAL_BEYOND_KEYS, /* every row sees everything */
    WINDOW_BOTTOM_RIGHT,
    WINDOW_CAUSAL,
    WINDOW_LEFT_UNBOUNDED,
    WINDOW_RIGHT_UNBOUNDED,
    WINDOW_OF_ONE,
    WINDOW_UNBOUNDED_CAUSAL,
    WINDOW_BEYOND_KEYS, /* the last rows see nothing */
    WINDOW_HUGE,
    POSITION_CHOICES
} position_choice;

/* Sets features, position mode, offset and window; lengths are set before. */
void choose_position(call_spec *spec, position_choice choice, random_state *random);

typedef struct head_choice {
    int32_t q, kv;
} head_choice;

enum { HEAD_CHOICES = 6, BIAS_AXES_CHOICES = 7 };

extern const head_choice head_choices[HEAD_CHOICES];
extern const int bias_axes_choices[BIAS_AXES_CHOICES];

typedef enum scale_choice {
    SCALE_DEFAULT,
    SCALE_GIVEN,
    SCALE_NEGATIVE,
    SCALE_TINY,
    SCALE_CHOICES
} scale_choice;

float choose_scale(scale_choice choice, random_state *random);

/* Two texts that go together. */
typedef struct mod_choice {
    score_mod score;
    mask_mod mask;
} mod_choice;

mod_choice choose_mods(random_state *random);

/* Adds the feature with a chance; says whether it did. */
int choose_feature(call_spec *spec, uint32_t feature, int percent, random_state *random);

/* Per-entry lengths and offsets; positions that ALiBi or a text are told stay small numbers. */
void choose_entries(call_spec *spec, random_state *random);

/* What the full score pipeline is needed for, something of it at least: softcap, bias, mask, ALiBi, key
 * tiles. With a mask_mod, fewer other masks: together they leave few keys. */
void choose_full(call_spec *spec, random_state *random);

/* The numbers that texts look up. */
void choose_values(call_spec *spec, random_state *random);

/* The double-precision reference is slow: calls of more than `most` multiply-adds get fewer heads and
 * sequences. */
void spec_keep_cheap(call_spec *spec, int64_t most);

#endif
