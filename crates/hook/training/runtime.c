/* A library that calls on behalf of its callers, as CUDA's runtime library does: it has the driver's functions from
   cuGetProcAddress, and calls them from one place. Built as libcudart-training.so, so that the hook takes it for one. */
#include "../tests/programs/driver.h"

static int (*alloc)(ptr *, size_t, handle), (*release)(ptr, handle), (*device_of_current)(int *);

void runtime_begin(void)
{
    int found;
    OK(cuGetProcAddress_v2("cuMemAllocAsync", (void **)&alloc, 12000, 0, &found));
    OK(cuGetProcAddress_v2("cuMemFreeAsync", (void **)&release, 12000, 0, &found));
    OK(cuGetProcAddress_v2("cuCtxGetDevice", (void **)&device_of_current, 12000, 0, &found));
}

/* Calls of those that the hook interposes reach it first; callers find the others here.
   What follows the calls keeps them from becoming jumps, which leave no return address. */
int runtime_alloc(ptr *p, size_t bytes, handle stream)
{
    int code = alloc(p, bytes, stream);
    __asm__ volatile("");
    return code;
}

int runtime_free(ptr p, handle stream)
{
    int code = release(p, stream);
    __asm__ volatile("");
    return code;
}

int cudaMallocAsync(ptr *p, size_t bytes, handle stream)
{
    return runtime_alloc(p, bytes, stream);
}

int cudaFreeAsync(ptr p, handle stream)
{
    return runtime_free(p, stream);
}

int cudaGetDevice(int *device)
{
    return device_of_current(device);
}
