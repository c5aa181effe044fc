/* check_mods.h: texts for score_mod and mask_mod, and the same in C for the reference. */
#ifndef CLATTN_CHECK_MODS_H
#define CLATTN_CHECK_MODS_H

#include "reference.h"

enum { CHECK_TABLE = 7 }; /* floats in the user buffer, where there is one */

typedef struct check_mod {
    const char *score_mod, *mask_mod; /* OpenCL C */
    float values[4];
    int num_values;
    int has_table;
    reference_mod twin; /* its `user` is to be set to this check_mod */
} check_mod;

extern const check_mod check_mods[];
extern const float check_table[CHECK_TABLE];

/* The twin, ready for a reference_call. */
reference_mod check_mod_twin(const check_mod *mod);

#endif
