/* local_memory.c: a work-group's local memory, and who may see what was written there last. */
#include "machine.h"

#include <stdlib.h>
#include <string.h>

enum { CHUNK = 16 };

/* Of each chunk: when a work-item last wrote it, 0 if it did not, or that a copy is on its way. */
#define ON_ITS_WAY UINT32_MAX

static unsigned char *memory;
static size_t memory_bytes;
static uint32_t *written;
static const lane **writers; /* that did; NULL: a copy of some work-item's */
static size_t num_written;
static uint32_t now;

/* What nobody has written: NaN in either 16-bit type, and no number that anything would count from. */
static void spoil(void *at, size_t bytes)
{
    const uint16_t nothing = 0xffc1;
    for (size_t i = 0; i + 2 <= bytes; i += 2)
        memcpy((char *)at + i, &nothing, sizeof nothing);
}

void local_begin(void *begin, size_t bytes)
{
    const size_t chunks = bytes / CHUNK + 2;
    memory = begin;
    memory_bytes = bytes;
    now = 1;
    spoil(memory, bytes);
    if (chunks > num_written && ((written = realloc(written, chunks * sizeof *written)) == NULL ||
                                 (writers = realloc(writers, chunks * sizeof *writers)) == NULL))
        fail("out of memory");
    num_written = chunks > num_written ? chunks : num_written;
    memset(written, 0, num_written * sizeof *written);
}

uint32_t local_clock(void) { return ++now; }

static size_t offset_of(uint32_t address) { return (uint32_t)(address - (uint32_t)(uintptr_t)memory); }

void *local_at(uint32_t address, size_t bytes)
{
    const size_t offset = offset_of(address);
    if (offset + bytes > memory_bytes)
        fail("0x%x is no address in local memory", (unsigned)address);
    return memory + offset;
}

uint32_t local_of_matrix(uint64_t address)
{
    enum { WINDOW = 1 << 18 };
    return (uint32_t)(uintptr_t)memory + (uint32_t)((address - (uintptr_t)memory) & (WINDOW - 1));
}

static size_t chunk_at(uint32_t address)
{
    if (address % CHUNK != 0)
        fail("0x%x is no multiple of 16", (unsigned)address);
    local_at(address, CHUNK);
    /* Chunks begin at multiples of 16; the memory need not. */
    return (offset_of(address) + CHUNK - 1) / CHUNK;
}

void local_spoil(uint32_t address)
{
    written[chunk_at(address)] = ON_ITS_WAY;
    spoil(local_at(address, CHUNK), CHUNK);
}

void local_land(uint32_t address, const void *bytes, int by_engine)
{
    const size_t chunk = chunk_at(address);
    memcpy(local_at(address, CHUNK), bytes, CHUNK);
    written[chunk] = by_engine ? 0 : local_clock();
    writers[chunk] = NULL;
}

void local_written(uint32_t address, size_t bytes)
{
    local_at(address, bytes);
    if (bytes > CHUNK - address % CHUNK)
        fail("a store across chunks at 0x%x", (unsigned)address);
    const size_t chunk = chunk_at(address - address % CHUNK);
    if (written[chunk] == ON_ITS_WAY)
        fail("local memory at 0x%x is written while a copy is on its way there", (unsigned)address);
    written[chunk] = local_clock();
    writers[chunk] = current;
}

const void *local_read(uint32_t address)
{
    if (written[chunk_at(address)] == ON_ITS_WAY)
        fail("local memory at 0x%x is read while a copy is on its way there", (unsigned)address);
    return local_at(address, CHUNK);
}

const void *local_product_read(uint32_t address, uint32_t shown)
{
    const size_t chunk = chunk_at(address);
    const uint32_t when = written[chunk];
    if (when == ON_ITS_WAY)
        fail("a product reads local memory at 0x%x, where a copy is on its way", (unsigned)address);
    /* Either side's fence will do (PTX ISA, "Memory Consistency Model", proxies). */
    if (when > shown && (writers[chunk] == NULL || when > writers[chunk]->shown))
        fail("a product reads local memory at 0x%x, which was written behind the last fence.proxy.async",
             (unsigned)address);
    return local_at(address, CHUNK);
}
