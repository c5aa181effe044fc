/* cli_program.h: the command's own small OpenCL programs. */
#ifndef CLATTN_CLI_PROGRAM_H
#define CLATTN_CLI_PROGRAM_H

#include "cli_device.h"

/* Builds embedded source. NULL after a message. */
cl_program cli_program_build(const cli_device *device, const unsigned char *source, size_t size,
                             const char *options, const char *name);

/* Likewise of an embedded binary. */
cl_program cli_program_load(const cli_device *device, const unsigned char *binary, size_t size,
                            const char *name);

#endif
