#include "cache_entry.h"

#include "hash.h"

#include <string.h>

typedef struct entry_head {
    char magic[8];
    uint64_t size; /* of the binary, which follows */
    uint64_t check;
    char key[40];
} entry_head;

static const char MAGIC[8] = {'c', 'l', 'a', 't', 't', 'n', '0', '1'};

/* More than any program: a hook that returns nonsense shall not make us allocate it. */
enum { MAX_ENTRY = 256 * 1024 * 1024 };

static uint64_t checksum(const char *key, const unsigned char *binary, size_t size)
{
    return clattn__hash(clattn__hash(CLATTN__HASH_START, key, strlen(key)), binary, size);
}

const unsigned char *clattn__cache_load(clattn_context *context, const char *key, void **entry, size_t *size)
{
    const clattn_cache_hooks *cache = &context->cache;
    *entry = NULL;
    if (cache->load == NULL)
        return NULL;
    const size_t stored = cache->load(cache->user, key, NULL, 0);
    if (stored <= sizeof(entry_head) || stored > MAX_ENTRY)
        return NULL;
    unsigned char *bytes = clattn__allocate(&context->allocator, stored);
    if (bytes == NULL)
        return NULL;
    entry_head head;
    const unsigned char *binary = bytes + sizeof head;
    /* The entry may have been replaced between the two calls: then it is another time's luck. */
    if (cache->load(cache->user, key, bytes, stored) == stored) {
        memcpy(&head, bytes, sizeof head);
        if (memcmp(head.magic, MAGIC, sizeof MAGIC) == 0 && head.size == stored - sizeof head &&
            strncmp(head.key, key, sizeof head.key) == 0 &&
            head.check == checksum(key, binary, (size_t)head.size)) {
            *entry = bytes;
            *size = (size_t)head.size;
            return binary;
        }
    }
    clattn__say(&context->log, CLATTN_LOG_INFO, "cache entry %s is damaged or foreign: rebuilding", key);
    clattn__release(&context->allocator, bytes);
    return NULL;
}

void clattn__cache_store(clattn_context *context, const char *key, const unsigned char *binary, size_t size)
{
    entry_head head = {{0}, size, checksum(key, binary, size), {0}};
    if (context->cache.store == NULL)
        return;
    unsigned char *bytes = clattn__allocate(&context->allocator, sizeof head + size);
    if (bytes == NULL)
        return;
    memcpy(head.magic, MAGIC, sizeof MAGIC);
    strncpy(head.key, key, sizeof head.key - 1);
    memcpy(bytes, &head, sizeof head);
    memcpy(bytes + sizeof head, binary, size);
    context->cache.store(context->cache.user, key, bytes, sizeof head + size);
    clattn__release(&context->allocator, bytes);
}
