#include "cl_api.h"

#include <string.h>

#ifdef CLATTN_LINK_SVM
/* A header for OpenCL 1.2 does not declare it. */
#ifndef CL_VERSION_2_0
extern cl_int CL_API_CALL clSetKernelArgSVMPointer(cl_kernel kernel, cl_uint index, const void *pointer);
#endif
#endif

clattn_status clattn__cl_load(clattn__cl *out, void *(*get_proc)(void *, const char *), void *user,
                              const char **missing)
{
    memset(out, 0, sizeof *out);
    *missing = NULL;
    if (get_proc != NULL) {
        /* A function pointer comes back as void *; POSIX and Windows both guarantee the conversion,
         * and the copy keeps ISO C content. */
#define CLATTN__CL_FETCH(name)                        \
    {                                                 \
        void *address = get_proc(user, #name);        \
        memcpy(&out->name, &address, sizeof address); \
    }
#define CLATTN__CL_FETCH_OPTIONAL(name, type) CLATTN__CL_FETCH(name)
        CLATTN__CL_FUNCTIONS(CLATTN__CL_FETCH)
        CLATTN__CL_OPTIONAL_FUNCTIONS(CLATTN__CL_FETCH_OPTIONAL)
#undef CLATTN__CL_FETCH_OPTIONAL
#undef CLATTN__CL_FETCH
    } else {
#ifdef CLATTN_LINK_OPENCL
#define CLATTN__CL_LINK(name) out->name = name;
        CLATTN__CL_FUNCTIONS(CLATTN__CL_LINK)
#undef CLATTN__CL_LINK
        out->clGetExtensionFunctionAddressForPlatform = clGetExtensionFunctionAddressForPlatform;
#ifdef CLATTN_LINK_SVM
        out->clSetKernelArgSVMPointer = clSetKernelArgSVMPointer;
#endif
#endif
    }
#define CLATTN__CL_PRESENT(name)               \
    if (out->name == NULL && *missing == NULL) \
        *missing = #name;
    CLATTN__CL_FUNCTIONS(CLATTN__CL_PRESENT)
#undef CLATTN__CL_PRESENT
    return *missing == NULL ? CLATTN_SUCCESS : CLATTN_UNSUPPORTED;
}

int clattn__is_listed(const char *list, const char *name)
{
    const size_t length = strlen(name);
    for (const char *at = list; *at != '\0'; at += strspn(at, " ")) {
        const size_t word = strcspn(at, " ");
        if (word == length && memcmp(at, name, length) == 0)
            return 1;
        at += word;
    }
    return 0;
}

void clattn__cl_load_extensions(clattn__cl *cl, cl_platform_id platform, const char *extensions)
{
    if (cl->clGetExtensionFunctionAddressForPlatform == NULL)
        return;
#define CLATTN__CL_FETCH(name, type, extension)                                        \
    if (clattn__is_listed(extensions, extension)) {                                    \
        void *address = cl->clGetExtensionFunctionAddressForPlatform(platform, #name); \
        memcpy(&cl->name, &address, sizeof address);                                   \
    }
    CLATTN__CL_EXTENSION_FUNCTIONS(CLATTN__CL_FETCH)
#undef CLATTN__CL_FETCH
}
