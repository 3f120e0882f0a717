/* A driver that counts who uses a context, as old programs ask it to; all else is that of the library behind it. */
#define _GNU_SOURCE
#include <dlfcn.h>

typedef void *handle;

static handle attached;
static int users;

static void *behind(const char *name)
{
    return dlsym(dlopen(BEHIND, RTLD_NOW | RTLD_NOLOAD), name);
}

int cuCtxAttach(handle *into, unsigned flags)
{
    int code = ((int (*)(handle *))behind("cuCtxGetCurrent"))(into);
    attached = *into;
    users = 2;
    return code;
}

int cuCtxDetach(handle context)
{
    if (context == attached && --users > 0) return 0;
    attached = 0;
    return ((int (*)(handle))behind("cuCtxDestroy_v2"))(context);
}
