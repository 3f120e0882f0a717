/* A library that calls on behalf of its callers, as CUDA's runtime library does, from one place and from different
   depths below its caller. */
#include "driver.h"

static __attribute__((noinline)) int ask(ptr *p, size_t bytes)
{
    int code = cuMemAlloc_v2(p, bytes);
    __asm__ volatile("");
    return code;
}

static __attribute__((noinline)) int ask_from_below(ptr *p, size_t bytes)
{
    volatile char room[20 << 10];
    room[0] = 1;
    int code = ask(p, bytes);
    room[1] = 2;
    return code;
}

int bridge_alloc(ptr *p, size_t bytes, int below)
{
    int code = below ? ask_from_below(p, bytes) : ask(p, bytes);
    __asm__ volatile("");
    return code;
}
