/* kernel_args.h: cl/args.cl, those of other operations and cl/bounds.cl as the host sees them: the very
 * files, compiled as C. */
#ifndef CLATTN_KERNEL_ARGS_H
#define CLATTN_KERNEL_ARGS_H

#include "clattn.h"

/* OpenCL's long has 64 bits everywhere, C's has not. */
#ifdef __clang__
#pragma clang diagnostic push
#pragma clang diagnostic ignored "-Wkeyword-macro"
#endif
#define long cl_long
#include "../cl/args.cl"

#include "../cl/append_args.cl"
#include "../cl/bounds.cl"
#include "../cl/convert_args.cl"
#include "../cl/merge_args.cl"
#undef long
#ifdef __clang__
#pragma clang diagnostic pop
#endif

#endif
