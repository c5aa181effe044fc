/* cache_entry.h: what lies between a program and the caller's cache hooks: a frame that tells a whole,
 * own entry from anything else. */
#ifndef CLATTN_CACHE_ENTRY_H
#define CLATTN_CACHE_ENTRY_H

#include "context.h"

/* The binary stored under `key`, or NULL. The caller releases *entry by the context's allocator; the
 * binary lies inside it. */
const unsigned char *clattn__cache_load(clattn_context *context, const char *key, void **entry, size_t *size);

/* Failing to store is no error: the program is built again next time. */
void clattn__cache_store(clattn_context *context, const char *key, const unsigned char *binary, size_t size);

#endif
