#include "cl_api.h"

#include <string.h>

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
        CLATTN__CL_FUNCTIONS(CLATTN__CL_FETCH)
#undef CLATTN__CL_FETCH
    } else {
#ifdef CLATTN_LINK_OPENCL
#define CLATTN__CL_LINK(name) out->name = name;
        CLATTN__CL_FUNCTIONS(CLATTN__CL_LINK)
#undef CLATTN__CL_LINK
#endif
    }
#define CLATTN__CL_PRESENT(name)               \
    if (out->name == NULL && *missing == NULL) \
        *missing = #name;
    CLATTN__CL_FUNCTIONS(CLATTN__CL_PRESENT)
#undef CLATTN__CL_PRESENT
    return *missing == NULL ? CLATTN_SUCCESS : CLATTN_UNSUPPORTED;
}
