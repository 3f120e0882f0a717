/* Memory of several contexts of one device, and what a slab's beginning is. */
#include "driver.h"

#define MiB (1ull << 20)

static unsigned first_word(ptr p)
{
    unsigned word = 0;
    OK(cuMemcpyDtoH_v2(&word, p, sizeof word));
    return word;
}

/* The context that asked first is destroyed before the others. */
static void owners(void)
{
    OK(cuInit(0));
    handle first, second, third;
    ptr a, b, c, base;
    OK(cuCtxCreate_v2(&first, 0, 0));
    OK(cuMemAlloc_v2(&a, MiB));
    OK(cuMemsetD32_v2(a, 11, MiB / 4));
    /* The other context waits for nothing of this one. */
    OK(cuCtxSynchronize());
    OK(cuCtxCreate_v2(&second, 0, 0));
    OK(cuMemAlloc_v2(&b, MiB));
    OK(cuMemsetD32_v2(b, 22, MiB / 4));
    mark("both");
    printf("%u and %u\n", first_word(a), first_word(b));
    SAY(cuCtxDestroy_v2(first));
    mark("one");
    OK(cuCtxSetCurrent(second));
    SAY(cuMemGetAddressRange_v2(&base, 0, a));
    SAY(cuMemFree_v2(a));
    printf("still %u\n", first_word(b));
    OK(cuCtxCreate_v2(&third, 0, 0));
    for (int n = 0; n < 20; ++n) {
        OK(cuMemAlloc_v2(&c, MiB));
        OK(cuMemsetD32_v2(c, 33 + n, MiB / 4));
        printf("%u\n", first_word(c));
        if (n < 19) OK(cuMemFree_v2(c));
    }
    mark("three");
    OK(cuCtxSetCurrent(second));
    printf("still %u\n", first_word(b));
    SAY(cuMemFree_v2(b));
    OK(cuCtxSetCurrent(third));
    SAY(cuMemFree_v2(c));
    mark("end");
}

/* Memory in streams' order of the context that asked first, and of another. */
static void ordered(void)
{
    OK(cuInit(0));
    handle first, second;
    ptr a, b;
    OK(cuCtxCreate_v2(&first, 0, 0));
    OK(cuMemAllocAsync(&a, 2 * MiB, 0));
    OK(cuCtxSynchronize());
    OK(cuCtxCreate_v2(&second, 0, 0));
    OK(cuMemAllocAsync(&b, MiB, 0));
    OK(cuMemsetD32_v2(b, 22, MiB / 4));
    OK(cuCtxSynchronize());
    mark("both");
    printf("its owner ends: %d\n", cuCtxDestroy_v2(first));
    mark("one");
    OK(cuCtxSetCurrent(second));
    printf("of the owner: %d\n", cuMemFree_v2(a));
    unsigned word = first_word(b);
    printf("of the other: %u, %d\n", word, cuMemFree_v2(b));
    OK(cuCtxDestroy_v2(second));
    mark("end");
}

/* A block that fills a slab is freed twice; other blocks live on. */
static void freed_twice(void)
{
    begin();
    ptr p[8], again;
    for (int n = 0; n < 8; ++n) {
        OK(cuMemAlloc_v2(&p[n], 2 * MiB));
        OK(cuMemsetD32_v2(p[n], n, MiB / 2));
    }
    for (int n = 0; n < 8; n += 2) {
        SAY(cuMemFree_v2(p[n]));
        SAY(cuMemFree_v2(p[n]));
        SAY(cuMemFreeAsync(p[n], 0));
        SAY(cuMemGetAddressRange_v2(&again, 0, p[n]));
    }
    for (int n = 1; n < 8; n += 2) printf("%u\n", first_word(p[n]));
    for (int n = 0; n < 8; n += 2) {
        OK(cuMemAlloc_v2(&p[n], 2 * MiB));
        OK(cuMemsetD32_v2(p[n], 100 + n, MiB / 2));
    }
    for (int n = 0; n < 8; ++n) printf("%u\n", first_word(p[n]));
    for (int n = 0; n < 8; ++n) OK(cuMemFree_v2(p[n]));
    mark("end");
}

/* A stream of one device allocates from another's pool before anybody else does. */
static void other_device(void)
{
    OK(cuInit(0));
    handle first, second, stream, pool;
    ptr p, q;
    int device;
    OK(cuCtxCreate_v2(&second, 0, 1));
    OK(cuCtxCreate_v2(&first, 0, 0));
    OK(cuStreamCreate(&stream, 1));
    OK(cuDeviceGetDefaultMemPool(&pool, 1));
    OK(cuMemAllocFromPoolAsync(&p, MiB, pool, stream));
    OK(cuStreamSynchronize(stream));
    SAY(cuPointerGetAttribute(&device, 9, p));
    printf("of device %d\n", device);
    OK(cuCtxSetCurrent(second));
    OK(cuMemAlloc_v2(&q, MiB));
    SAY(cuPointerGetAttribute(&device, 9, q));
    printf("of device %d\n", device);
    mark("both");
    OK(cuCtxSetCurrent(first));
    OK(cuMemFreeAsync(p, stream));
    SAY(cuCtxDestroy_v2(first));
    OK(cuCtxSetCurrent(second));
    OK(cuMemsetD32_v2(q, 5, MiB / 4));
    printf("still %u\n", first_word(q));
    SAY(cuMemFree_v2(q));
    mark("end");
}

int main(int argc, char **argv)
{
    static const test_case cases[] = {{"owners", owners}, {"ordered", ordered}, {"freed_twice", freed_twice}, {"other_device", other_device}, {0, 0}};
    setvbuf(stdout, 0, _IOLBF, 0);
    return run_case(cases, argc, argv);
}
