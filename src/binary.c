#include "binary.h"

unsigned char *clattn__binary_of(clattn_context *context, cl_program program, size_t *size)
{
    enum { MAX_DEVICES = 64 };
    const clattn__cl *cl = &context->cl;
    cl_device_id devices[MAX_DEVICES] = {NULL};
    size_t sizes[MAX_DEVICES] = {0};
    unsigned char *binaries[MAX_DEVICES] = {NULL};
    size_t bytes = 0, mine = 0;
    if (cl->clGetProgramInfo(program, CL_PROGRAM_DEVICES, sizeof devices, devices, &bytes) != CL_SUCCESS ||
        cl->clGetProgramInfo(program, CL_PROGRAM_BINARY_SIZES, sizeof sizes, sizes, NULL) != CL_SUCCESS)
        return NULL;
    const size_t count = bytes / sizeof *devices;
    while (mine < count && devices[mine] != context->device_id)
        mine++;
    if (mine == count || sizes[mine] == 0 ||
        (binaries[mine] = clattn__allocate(&context->allocator, sizes[mine] + 1)) == NULL)
        return NULL;
    /* The other devices' entries stay NULL: they are not asked for. */
    if (cl->clGetProgramInfo(program, CL_PROGRAM_BINARIES, count * sizeof *binaries, binaries, NULL) ==
        CL_SUCCESS) {
        *size = sizes[mine];
        return binaries[mine];
    }
    clattn__release(&context->allocator, binaries[mine]);
    return NULL;
}
