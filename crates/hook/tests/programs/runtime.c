/* Stands in for CUDA's runtime library: finds the driver's functions as that does, makes a context current where none is,
   and has error codes of its own. Counts its calls. Built as libcudart-*.so.13, with its number.

   LATE: makes the context of a device that was chosen current only when something needs it, as was done before version 12.
   Built as libcudart-*.so.11.0. */
#define _GNU_SOURCE
#include "driver.h"
#include <dlfcn.h>

#define JOIN_(a, b) a##b
#define JOIN(a, b) JOIN_(a, b)

/* In each its functions have other addresses, behind code that must not run. */
#define TEXT_(number) #number
#define TEXT(number) TEXT_(number)
__asm__(".text\n.skip 16 * " TEXT(NUMBER) ", 0xcc\n");

static int calls;
static int (*alloc)(ptr *, size_t, handle), (*release)(ptr, handle);
static int (*current)(handle *), (*make_current)(handle), (*retain)(handle *, int), (*device_of_current)(int *);
static __thread int chosen = -1;

int JOIN(calls_of_, NUMBER)(void)
{
    return calls;
}

static void *found(const char *name)
{
    void *driver = dlopen("libcuda.so.1", RTLD_NOW), *address = 0;
    int (*ask)(const char *, void **, int, unsigned long long, int *) = (void *)dlsym(driver, "cuGetProcAddress_v2");
    return ask && !ask(name, &address, 12050, 0, 0) ? address : 0;
}

static void find(void)
{
    ++calls;
    alloc = found("cuMemAllocAsync");
    release = found("cuMemFreeAsync");
    current = found("cuCtxGetCurrent");
    make_current = found("cuCtxSetCurrent");
    retain = found("cuDevicePrimaryCtxRetain");
    device_of_current = found("cuCtxGetDevice");
}

static int make_current_of(int device)
{
    handle its = 0;
    int code = retain(&its, device);
    return code ? code : make_current(its);
}

static int begins(void)
{
    handle now = 0;
    find();
    if (!alloc || !release) return 35;
    if (chosen >= 0) {
        int code = make_current_of(chosen);
        chosen = -1;
        return code;
    }
    if (!current(&now) && now) return 0;
    return make_current_of(0);
}

static int answered(int code)
{
    return code ? 1000 * NUMBER + code : 0;
}

int cudaMallocAsync(ptr *p, size_t bytes, handle stream)
{
    int code = begins();
    return answered(code ? code : alloc(p, bytes, stream));
}

int cudaFreeAsync(ptr p, handle stream)
{
    int code = begins();
    return answered(code ? code : release(p, stream));
}

int cudaSetDevice(int device)
{
    find();
    if (device < 0) return answered(101);
#ifdef LATE
    chosen = device;
    return 0;
#else
    return answered(make_current_of(device));
#endif
}

int cudaGetDevice(int *device)
{
    find();
    if (!device) return answered(1);
    if (chosen >= 0) {
        *device = chosen;
        return 0;
    }
    int code = device_of_current(device);
    if (code != 201) return answered(code);
    *device = 0;
    return 0;
}
