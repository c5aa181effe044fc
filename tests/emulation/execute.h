#ifndef EXECUTE_H
#define EXECUTE_H

#include "ptx.h"

void execute_statement(const ptx_statement *s, int num_slots, uint64_t *slots);

/* The memory that a program has of its own (warp.c). */
uint64_t program_memory(void);

#endif
