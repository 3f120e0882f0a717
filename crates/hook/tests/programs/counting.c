/* A driver that counts the users of a context, as old programs require, and creates contexts for graphics; all else is that of
   the library behind it. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <string.h>

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

/* How often it was asked which context is current. */
int asked;

int cuCtxGetCurrent(handle *into)
{
    ++asked;
    return ((int (*)(handle *))behind("cuCtxGetCurrent"))(into);
}

/* Under a unique name; the loader would prefer another library's. */
static int make_for_graphics(handle *into, unsigned flags, int device)
{
    return ((int (*)(handle *, unsigned, int))behind("cuCtxCreate_v2"))(into, flags, device);
}

int cuGLCtxCreate_v2(handle *, unsigned, int) __attribute__((alias("make_for_graphics")));

int cuGetProcAddress_v2(const char *name, void **function, int version, unsigned long long flags, int *found)
{
    if (!strcmp(name, "cuGLCtxCreate")) {
        *function = (void *)make_for_graphics;
        if (found) *found = 0;
        return 0;
    }
    if (!strcmp(name, "cuVDPAUCtxCreate")) {
        *function = 0;
        if (found) *found = 2;
        return 0;
    }
    return ((int (*)(const char *, void **, int, unsigned long long, int *))behind("cuGetProcAddress_v2"))(
        name, function, version, flags, found);
}
