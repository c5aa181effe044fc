/* verify_cache.h: what a call left in caches and in a rotated q, against double precision: new tokens where
 * they belong and within what their type can hold, everything else as it was, bit by bit. */
#ifndef CLATTN_VERIFY_CACHE_H
#define CLATTN_VERIFY_CACHE_H

#include "case_dense.h"

/* `reason` is empty if all is well. Returns an exit status. */
int verify_cache(const attention_case *c, const case_state *state, char *reason, size_t capacity);

#endif
