/* kernel_args.h: cl/args.cl and cl/bounds.cl as the host sees them: the very files, compiled as C. */
#ifndef CLATTN_KERNEL_ARGS_H
#define CLATTN_KERNEL_ARGS_H

#include "clattn.h"

#define long cl_long
#include "../cl/args.cl"
#undef long
#include "../cl/bounds.cl"

#endif
