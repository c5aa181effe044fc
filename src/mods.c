#include "mods.h"

#include <stdio.h>
#include <string.h>

#define WHERE "clattn_plan_create"

/* The parameters' names are the header's promise. */
#define PLACE                                                                                           \
    "int batch, int head_q, int head_kv, int query, int position, int key, const __global void *user, " \
    "float4 values"

static int is_identifier(char c)
{
    return c == '_' || (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9');
}

/* Whether the text is the body of a function, not an expression. */
static int has_return(const char *text)
{
    static const char word[] = "return";
    for (const char *at = strstr(text, word); at != NULL; at = strstr(at + 1, word))
        if ((at == text || !is_identifier(at[-1])) && !is_identifier(at[strlen(word)]))
            return 1;
    return 0;
}

/* One function; #line makes the compiler count the caller's lines. Returns the length, `out` may be NULL. */
static size_t write_function(char *out, size_t capacity, const char *result, const char *name,
                             const char *parameters, const char *text)
{
    if (text == NULL)
        return 0;
    const int is_body = has_return(text);
    const int length = snprintf(
        out, capacity, "#define HAS_%s 1\nstatic inline %s %s_text(%s)\n{\n%s#line 1 \"%s\"\n%s\n%s}\n",
        strcmp(name, "score_mod") == 0 ? "SCORE_MOD" : "MASK_MOD", result, name, parameters,
        is_body ? "" : "return (\n", name, text, is_body ? "" : ");\n");
    return (size_t)length;
}

static size_t write_functions(char *out, size_t capacity, const char *score_mod, const char *mask_mod)
{
    const size_t first =
        write_function(out, capacity, "float", "score_mod", "float score, " PLACE, score_mod);
    char *rest = out != NULL ? out + first : NULL;
    return first +
           write_function(rest, out != NULL ? capacity - first : 0, "int", "mask_mod", PLACE, mask_mod);
}

char *clattn__mods_source(const clattn_allocator *allocator, const char *score_mod, const char *mask_mod)
{
    const size_t capacity = write_functions(NULL, 0, score_mod, mask_mod) + 1;
    char *text = clattn__allocate(allocator, capacity);
    if (text != NULL) {
        text[0] = '\0';
        write_functions(text, capacity, score_mod, mask_mod);
    }
    return text;
}

static void say_build_log(clattn_context *context, cl_program program)
{
    size_t size = 0;
    char *text = NULL;
    if (context->cl.clGetProgramBuildInfo(program, context->device_id, CL_PROGRAM_BUILD_LOG, 0, NULL,
                                          &size) != CL_SUCCESS ||
        (text = clattn__allocate(&context->allocator, size + 1)) == NULL)
        return;
    if (context->cl.clGetProgramBuildInfo(program, context->device_id, CL_PROGRAM_BUILD_LOG, size, text,
                                          NULL) == CL_SUCCESS)
        clattn__say_text(&context->log, CLATTN_LOG_ERROR, text);
    clattn__release(&context->allocator, text);
}

clattn_status clattn__mods_check(clattn_context *context, const char *score_mod, const char *mask_mod)
{
    /* A kernel, as some drivers build nothing without one. */
    static const char kernel[] = "__kernel void check(__global int *out) { *out = 0; }\n";
    cl_int code = CL_SUCCESS;
    char *text = clattn__mods_source(&context->allocator, score_mod, mask_mod);
    RETURN_ERROR_IF(text == NULL, &context->log, CLATTN_OUT_OF_HOST_MEMORY, WHERE ": out of host memory");
    const char *texts[] = {text, kernel};
    cl_program program = context->cl.clCreateProgramWithSource(context->cl_context, 2, texts, NULL, &code);
    clattn__release(&context->allocator, text);
    FORWARD_IF_CL_ERROR(&context->log, WHERE, "clCreateProgramWithSource", code);
    code = context->cl.clBuildProgram(program, 1, &context->device_id, CLATTN__LANGUAGE_OPTION, NULL, NULL);
    if (code == CL_BUILD_PROGRAM_FAILURE)
        say_build_log(context, program);
    context->cl.clReleaseProgram(program);
    RETURN_ERROR_IF(code == CL_BUILD_PROGRAM_FAILURE, &context->log, CLATTN_COMPILE_FAILED,
                    WHERE ": %s does not compile; the compiler's words came before this",
                    score_mod == NULL  ? "mask_mod"
                    : mask_mod == NULL ? "score_mod"
                                       : "score_mod or mask_mod");
    FORWARD_IF_CL_ERROR(&context->log, WHERE, "clBuildProgram", code);
    return CLATTN_SUCCESS;
}
