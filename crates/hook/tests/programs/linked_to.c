/* A library that is linked to CUDA's runtime library, or to none: allocates blocks and frees them. */
#include "driver.h"

int cudaMallocAsync(ptr *, size_t, handle);
int cudaFreeAsync(ptr, handle);

/* So many blocks, each freed at once, unless it is kept; the first code that is none of success. */
int use(int count, size_t bytes, int keep)
{
    int code = 0;
    for (int n = 0; n < count && !code; ++n) {
        ptr p = 0;
        code = cudaMallocAsync(&p, bytes, 0);
        if (!code && !keep) code = cudaFreeAsync(p, 0);
    }
    return code;
}

int give(ptr p)
{
    int code = cudaFreeAsync(p, 0);
    __asm__ volatile("");
    return code;
}
