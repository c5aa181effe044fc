/* ptx_route.h: the way to instructions that NVIDIA's OpenCL compiler does not offer.
 *
 * For compute capability 9.0 the driver compiles OpenCL C to PTX for sm_90, which has no wgmma, and that PTX
 * is what CL_PROGRAM_BINARIES gives; but it assembles PTX for sm_90a, which has. So a kernel hides such
 * instructions in comments of its inline assembly, "//@wgmma...", and the PTX is taken, uncovered, given the
 * other target and, if the kernel names it, 128 KiB of memory of the program's own, and built again as a
 * binary. (Driver 580.159.04, 2026-11-29.) Nothing of that is promised by anybody: every step is verified,
 * the program is run against values computed here before it is used (self_test.h), and whoever asks falls
 * back to another path if any of that fails. */
#ifndef CLATTN_PTX_ROUTE_H
#define CLATTN_PTX_ROUTE_H

#include "context.h"

/* What the PTX shall have. */
typedef struct clattn__ptx_wish {
    int statements; /* hidden ones, at least; a compiler may copy some */
    int work_items; /* of the work-group of the one kernel that has them */
    int registers;  /* that a work-item of it may have before the kernel shares them out anew */
} clattn__ptx_wish;

/* What the uncovered program is built with. */
#define CLATTN__PTX_OPTIONS "-cl-nv-verbose"

/* From a program built from source one that is still to be built. On CLATTN_COMPILE_FAILED, *reason says what
 * is not as it should be. */
clattn_status clattn__ptx_uncover(cl_program *out, clattn_context *context, cl_program covered,
                                  const clattn__ptx_wish *wish, char *reason, size_t capacity);

/* Whether the assembler had nothing to say against it: *reason. It warns if products wait for each other. */
int clattn__ptx_is_sound(clattn_context *context, cl_program program, char *reason, size_t capacity);

#endif
