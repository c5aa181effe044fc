/* check_case.h: one case of the grid, with inputs that are as unpleasant as the contract allows. */
#ifndef CLATTN_CHECK_CASE_H
#define CLATTN_CHECK_CASE_H

#include "attention_case.h"
#include "check_grid.h"
#include "random_values.h"

typedef struct check_case {
    char name[200]; /* "causal: [2,4/2,63/129]" */
    attention_case c;
    case_inputs inputs;
    void *matrix[3]; /* q, k, v */
    safetensors_tensor extra[NUM_INPUTS];
    void *extra_values[NUM_INPUTS]; /* of extra[i] */
} check_case;

/* Makes number `index` of a group from a seed. Keys that no row may see hold NaN and infinity in k and v, and
 * so do rows of q beyond an entry's length. Returns an exit status; to be released on success. */
int check_case_make(check_case *out, const check_group *group, int quick, int index, int32_t path,
                    uint64_t seed);
void check_case_release(check_case *check);

/* ---- check_extras.c ---- */

/* Adds the optional tensors of a variant to the inputs. */
int check_add_extras(check_case *out, const check_group *group, const check_variant *v,
                     const call_options *options, random_state *random);

#endif
