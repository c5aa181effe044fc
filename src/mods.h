/* mods.h: the caller's OpenCL C texts, score_mod and mask_mod, as functions that the kernels call
 * (cl/score.cl). */
#ifndef CLATTN_MODS_H
#define CLATTN_MODS_H

#include "program.h"

/* The two functions as OpenCL C, to come before all kernel files; without either, "". NULL: out of host
 * memory. The text is released by clattn__release. */
char *clattn__mods_source(const clattn_allocator *allocator, const char *score_mod, const char *mask_mod);

/* Builds them alone, after a program with them failed: COMPILE_FAILED if the fault is theirs, with the
 * compiler's words in the log. */
clattn_status clattn__mods_check(clattn_context *context, const char *score_mod, const char *mask_mod);

#endif
