#include "ptx_route.h"

#include "binary.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const char HIDDEN[] = "//@", SHOWN[] = "   ";
static const char TARGET[] = ".target sm_90,", NEW_TARGET[] = ".target sm_90a,";

/* Shows the hidden statements; returns how many there were. */
static int show_statements(char *ptx)
{
    int count = 0;
    for (char *at = strstr(ptx, HIDDEN); at != NULL; at = strstr(at, HIDDEN)) {
        memcpy(at, SHOWN, strlen(SHOWN));
        count++;
    }
    return count;
}

/* The size of the kernel's work-group, as it stands before its body; NULL if it is not there exactly once. */
static char *find_group_size(char *ptx, int work_items)
{
    static const char directive[] = ".reqntid";
    char *found = NULL;
    for (char *at = strstr(ptx, directive); at != NULL; at = strstr(at + 1, directive))
        if (strtol(at + strlen(directive), NULL, 10) == work_items) {
            if (found != NULL)
                return NULL;
            found = at;
        }
    return found;
}

/* Replaces `old_size` characters at `at` by a text; the buffer has room. */
static void replace(char *at, size_t old_size, const char *text)
{
    memmove(at + strlen(text), at + old_size, strlen(at + old_size) + 1);
    memcpy(at, text, strlen(text));
}

/* What the kernel calls the program's memory, and where that is declared: outside of functions. */
static const char MEMORY[] = "clattn_program_memory";
static const char MEMORY_DECLARED[] = "\n.global .align 128 .b8 clattn_program_memory[131072];";

/* Whether it could be declared, if the kernel asks for it. */
static int declare_memory(char *ptx)
{
    char *at = strstr(ptx, ".address_size");
    if (strstr(ptx, MEMORY) == NULL)
        return 1;
    if (at == NULL)
        return 0;
    replace(at + strcspn(at, "\n"), 0, MEMORY_DECLARED);
    return 1;
}

/* In a buffer that has room for EXTRA more characters. NULL, or what is not as it should be. */
enum { EXTRA = 128 };
static const char *uncover(char *ptx, const clattn__ptx_wish *wish)
{
    char cap[32];
    if (strstr(ptx, ".version") == NULL)
        return "the driver's binary is no PTX";
    char *target = strstr(ptx, TARGET);
    if (target == NULL || strstr(target + 1, ".target") != NULL)
        return "the driver's PTX is not for sm_90";
    if (show_statements(ptx) < wish->statements)
        return "statements of the kernel are not in the driver's PTX";
    char *group_size = find_group_size(ptx, wish->work_items);
    if (group_size == NULL)
        return "the kernel's work-group size is not in the driver's PTX";
    snprintf(cap, sizeof cap, ".maxnreg %d\n", wish->registers);
    replace(group_size, 0, cap);
    replace(target, strlen(TARGET), NEW_TARGET);
    if (!declare_memory(ptx))
        return "the driver's PTX does not name its size of addresses";
    return NULL;
}

clattn_status clattn__ptx_uncover(cl_program *out, clattn_context *context, cl_program covered,
                                  const clattn__ptx_wish *wish, char *reason, size_t capacity)
{
    size_t size = 0;
    const char *why = "the driver gives no binary";
    unsigned char *binary = clattn__binary_of(context, covered, &size);
    char *ptx = binary != NULL ? clattn__allocate(&context->allocator, size + EXTRA) : NULL;
    *out = NULL;
    if (ptx != NULL) {
        memcpy(ptx, binary, size);
        why = uncover(ptx, wish);
    }
    clattn__release(&context->allocator, binary);
    if (ptx != NULL && why == NULL) {
        cl_int code = CL_SUCCESS, taken = CL_SUCCESS;
        const unsigned char *text = (const unsigned char *)ptx;
        size = strlen(ptx);
        *out = context->cl.clCreateProgramWithBinary(context->cl_context, 1, &context->device_id, &size,
                                                     &text, &taken, &code);
        if (code != CL_SUCCESS || taken != CL_SUCCESS) {
            if (*out != NULL)
                context->cl.clReleaseProgram(*out);
            *out = NULL;
            why = "the driver does not take its PTX back";
        }
    }
    clattn__release(&context->allocator, ptx);
    if (why != NULL)
        snprintf(reason, capacity, "%s", why);
    return *out != NULL ? CLATTN_SUCCESS : CLATTN_COMPILE_FAILED;
}

int clattn__ptx_is_sound(clattn_context *context, cl_program program, char *reason, size_t capacity)
{
    static const char warning[] = "(C75"; /* C7510, C7514, ...: products are serialised */
    size_t size = 0;
    const cl_device_id device = context->device_id;
    if (context->cl.clGetProgramBuildInfo(program, device, CL_PROGRAM_BUILD_LOG, 0, NULL, &size) !=
        CL_SUCCESS)
        return 1;
    char *log = clattn__allocate(&context->allocator, size + 1);
    if (log == NULL)
        return 1;
    context->cl.clGetProgramBuildInfo(program, device, CL_PROGRAM_BUILD_LOG, size, log, NULL);
    const char *found = strstr(log, warning);
    if (found != NULL)
        snprintf(reason, capacity, "the assembler warns: %.*s", (int)strcspn(found, "\n"), found);
    clattn__release(&context->allocator, log);
    return found == NULL;
}
