/* Two tenants that allocate, of which one is refused: the program, and with -DLIBRARY its library. */
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>

typedef int (*allocate_type)(unsigned long long *, size_t);
typedef int (*free_type)(unsigned long long);

#ifdef LIBRARY

int take(void *allocate, unsigned long long *p, size_t bytes)
{
    int code = ((allocate_type)allocate)(p, bytes);
    return code;
}

#else

int take(void *allocate, unsigned long long *p, size_t bytes);

static void *driver;

static void *find(const char *name)
{
    void *f = dlsym(driver, name);
    if (!f) {
        fprintf(stderr, "no %s\n", name);
        exit(2);
    }
    return f;
}

int main(void)
{
    driver = dlopen("libcuda.so.1", RTLD_NOW);
    if (!driver) {
        fprintf(stderr, "%s\n", dlerror());
        return 1;
    }
    void *context, *second;
    unsigned long long own, theirs, none;
    allocate_type allocate = (allocate_type)find("cuMemAlloc_v2");
    free_type release = (free_type)find("cuMemFree_v2");
    int init = ((int (*)(unsigned))find("cuInit"))(0);
    int (*make)(void **, unsigned, int) = (int (*)(void **, unsigned, int))find("cuCtxCreate_v2");
    int create = make(&context, 0, 0);
    printf("%d %d", init, create);
    printf(" %d", allocate(&own, 3 << 20));
    printf(" %d", take((void *)allocate, &theirs, 5 << 20));
    printf(" %d", take((void *)allocate, &none, 3ull << 30));
    printf(" %d", release(own));
    /* A block that ends with its context. */
    printf(" %d", make(&second, 0, 0));
    printf(" %d", take((void *)allocate, &none, 2 << 20));
    printf(" %d\n", ((int (*)(void *))find("cuCtxDestroy_v2"))(second));
    return 0;
}

#endif
