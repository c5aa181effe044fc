/* self_test.h: a small attention by a program's kernel, against values computed here. For programs that go a
 * way the driver does not promise: run once when one is built; what the cache holds has passed. */
#ifndef CLATTN_SELF_TEST_H
#define CLATTN_SELF_TEST_H

#include "program.h"

/* Several query tiles in one work-group, causal, with blocks of all kinds; softcap and ALiBi too where the
 * program has them. Of programs for 16-bit q, k, v and o of one type. CLATTN_COMPILE_FAILED: the values are
 * wrong, and *reason says how. */
clattn_status clattn__self_test(clattn__program *program, clattn_context *context, char *reason,
                                size_t capacity);

#endif
