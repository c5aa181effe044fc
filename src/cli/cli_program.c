/* cli_program.c: building, with the first line of the log as the message. */
#include "cli_program.h"

#include "cli.h"

#include <stdlib.h>
#include <string.h>

static void tell_log(const cli_device *device, cl_program program, const char *name, cl_int status)
{
    char log[4096] = "";
    clGetProgramBuildInfo(program, device->entry.device, CL_PROGRAM_BUILD_LOG, sizeof log - 1, log, NULL);
    cli_note("%s does not build: %s: %.*s", name, clattn_status_string(status), (int)strcspn(log, "\n"), log);
}

/* Takes the program. */
static cl_program build(const cli_device *device, cl_program program, const char *options, const char *name)
{
    const cl_int status = clBuildProgram(program, 1, &device->entry.device, options, NULL, NULL);
    if (status != CL_SUCCESS) {
        tell_log(device, program, name, status);
        clReleaseProgram(program);
        return NULL;
    }
    return program;
}

cl_program cli_program_build(const cli_device *device, const unsigned char *source, size_t size,
                             const char *options, const char *name)
{
    const char *text = (const char *)source;
    cl_int status;
    cl_program program = clCreateProgramWithSource(device->context, 1, &text, &size, &status);
    if (status != CL_SUCCESS) {
        cli_opencl_fail(status, name);
        return NULL;
    }
    return build(device, program, options, name);
}

cl_program cli_program_load(const cli_device *device, const unsigned char *binary, size_t size,
                            const char *name)
{
    cl_int status, taken = CL_SUCCESS;
    cl_program program =
        clCreateProgramWithBinary(device->context, 1, &device->entry.device, &size, &binary, &taken, &status);
    if (status != CL_SUCCESS) {
        cli_note("%s is not taken by the driver: %s", name, clattn_status_string(status));
        return NULL;
    }
    return build(device, program, NULL, name);
}
