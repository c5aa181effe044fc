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

/* Appends a tensor of `rank` dimensions whose elements have `size` bytes. Returns its memory, NULL without.
 */
void *check_add(check_case *out, const char *name, const char *dtype, size_t size, int rank,
                const int64_t *shape);

/* Adds the optional tensors of a variant to the inputs. */
int check_add_extras(check_case *out, const check_group *group, const check_variant *v,
                     const call_options *options, random_state *random);

/* ---- check_serving.c ---- */

/* Makes the tensors of a group that is serving, all of them among `extra`, and the case. */
int check_serving_make(check_case *out, const check_group *group, const check_variant *v,
                       const check_sizes *sizes, call_options *options, random_state *random);

/* ---- check_case.c ---- */

/* How a tensor is laid out in its buffer: guard zones in front, and with `strided` gaps between everything.
 */
typedef struct check_layout {
    int64_t heads, tokens, dim; /* of a row in units of the type */
    int tokens_first;           /* tokens, then heads, as [B,N,H,D] */
    int64_t unit;               /* bytes */
    int strided;
} check_layout;

void check_choose_layout(call_options *options, int tensor, const check_layout *layout);

#endif
