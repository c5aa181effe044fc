/* program.h: programs of the emulated device. */
#ifndef PROGRAM_H
#define PROGRAM_H

#include "../layer/layer.h"
#include "warp.h"

typedef struct emulated_program {
    struct emulated_program *next;
    char *source; /* NULL: made from PTX */
    char *ptx;
    cl_device_id device;
    int capability;
    void *library;
    warp_program warp;
    char log[512];
} emulated_program;

/* Takes the source over. */
emulated_program *program_from_source(char *source);

/* From the PTX of one of those programs, changed or not; NULL if it is of none. */
emulated_program *program_from_ptx(const emulated_program *programs, const char *ptx, size_t length);

/* Returns whether it could be built; the log says why not. */
int program_build(emulated_program *p, const char *options);

warp_kernel program_kernel(const emulated_program *p, const char *name);

#endif
