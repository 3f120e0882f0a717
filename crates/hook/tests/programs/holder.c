/* A library that allocates; its tenant is named by the path that it is loaded from. */
#include <stddef.h>
#include <unistd.h>
#include <time.h>
int cuMemAlloc_v2(unsigned long long *, size_t);
int cuMemFree_v2(unsigned long long);
int cuMemAllocManaged(unsigned long long *, size_t, unsigned);
int cuCtxSetCurrent(void *);

static unsigned took;

static unsigned now(void)
{
    struct timespec at;
    clock_gettime(CLOCK_MONOTONIC, &at);
    return at.tv_sec * 1000 + at.tv_nsec / 1000000;
}

/* How long the last `take` took. */
unsigned took_ms(void)
{
    return took;
}

unsigned long long take(size_t bytes, void *context, int managed)
{
    unsigned long long p = 0;
    if (cuCtxSetCurrent(context)) return 0;
    unsigned begun = now();
    int result = managed ? cuMemAllocManaged(&p, bytes, 1) : cuMemAlloc_v2(&p, bytes);
    took = now() - begun;
    return result ? 0 : p;
}

int give(unsigned long long p, void *context)
{
    return cuCtxSetCurrent(context) || cuMemFree_v2(p);
}

/* Called through a binding that keeps the interpreter. */
int hold(unsigned milliseconds)
{
    return usleep(milliseconds * 1000);
}
