/* translate.h: an OpenCL C program with inline assembly as one that a CPU's compiler takes. Each statement of
 * assembly becomes a call with its operands:
 *
 *     void ptx_execute(int statement, int num_slots, ulong *slots);
 *
 * Slot i holds operand i: the bits of a number; or, in statements with wgmma, whose registers are under way
 * when the statement has ended, the address of the variable that stands for the register. The numbers of the
 * statements that the compiler kept, as often as it copied them, are in a table that emulated_used() gives:
 * its begin and its end. */
#ifndef TRANSLATE_H
#define TRANSLATE_H

#include <stddef.h>

typedef struct translation {
    char *source; /* with a function emulated_NAME for every kernel, which takes its arguments from memory */
    char **statements; /* their text, whose operands are %op0, %op1, ... */
    size_t num_statements;
    char *entries; /* "NAME SIZE\n" for every kernel; SIZE is of its work-group, 0 where not said */
} translation;

/* `source` is preprocessed. Returns NULL, or what is not understood. */
const char *translate(translation *out, const char *source);

void translation_release(translation *t);

#endif
