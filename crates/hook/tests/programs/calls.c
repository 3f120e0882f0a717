/* Edge cases of single calls: results are printed, to be compared between runs. */
#define _GNU_SOURCE
#include "driver.h"
#include <dlfcn.h>
#include <pthread.h>

#define MiB (1ull << 20)

static handle default_pool(void)
{
    handle pool;
    OK(cuDeviceGetDefaultMemPool(&pool, 0));
    return pool;
}

static void size_zero(void)
{
    begin();
    ptr p = 7;
    size_t pitch = 7;
    unsigned long long h;
    void *host;
    physical kind = {1, 0, {ON_DEVICE, 0}, 0, {0}};
    SAY(cuMemAlloc_v2(&p, 0));
    SAY(cuMemAllocAsync(&p, 0, 0));
    SAY(cuMemAllocFromPoolAsync(&p, 0, default_pool(), 0));
    SAY(cuMemAllocPitch_v2(&p, &pitch, 0, 10, 4));
    SAY(cuMemAllocPitch_v2(&p, &pitch, 10, 0, 4));
    SAY(cuMemAllocManaged(&p, 0, 1));
    SAY(cuMemHostAlloc(&host, 0, 0));
    SAY(cuMemCreate(&h, 0, &kind, 0));
    SAY(cuMemFree_v2(0));
    SAY(cuMemFreeAsync(0, 0));
}

static void null_outputs(void)
{
    begin();
    ptr p, base;
    size_t pitch, bytes;
    physical kind = {1, 0, {ON_DEVICE, 0}, 0, {0}};
    unsigned long long h;
    int which[2] = {2, 12};
    void *into[2] = {0, 0};
    OK(cuMemAlloc_v2(&p, 1000));
    SAY(cuMemAlloc_v2(0, 100));
    SAY(cuMemAllocAsync(0, 100, 0));
    SAY(cuMemAllocFromPoolAsync(0, 100, default_pool(), 0));
    SAY(cuMemAllocPitch_v2(0, &pitch, 10, 10, 4));
    SAY(cuMemAllocPitch_v2(&p, 0, 10, 10, 4));
    SAY(cuMemAllocManaged(0, 100, 1));
    SAY(cuMemGetInfo_v2(0, &bytes));
    SAY(cuMemGetInfo_v2(&bytes, 0));
    SAY(cuMemGetInfo_v2(0, 0));
    SAY(cuMemGetAddressRange_v2(&base, 0, p));
    SAY(cuMemGetAddressRange_v2(0, &bytes, p));
    SAY(cuMemGetAddressRange_v2(0, 0, p));
    SAY(cuPointerGetAttribute(0, 2, p));
    SAY(cuPointerGetAttributes(2, 0, into, p));
    SAY(cuPointerGetAttributes(2, which, 0, p));
    SAY(cuMemCreate(0, 2 * MiB, &kind, 0));
    SAY(cuMemCreate(&h, 2 * MiB, 0, 0));
    SAY(cuMemPoolCreate(0, 0));
    SAY(cuStreamCreate(0, 0));
    SAY(cuCtxCreate_v2(0, 0, 0));
    SAY(cuMemFree_v2(p));
}

/* Each kind of free, of each kind of thing that was given or was not. */
static void wrong_frees(void)
{
    begin();
    ptr plain, ordered, managed, inside;
    static int mine;
    OK(cuMemAlloc_v2(&inside, 4096));
    ptr strange[] = {0x1234, 0xdeadbeef000, (ptr)&mine, inside + 8, inside + 256, inside + 4095, inside + 4096, ~0ull};
    for (unsigned n = 0; n < sizeof strange / sizeof *strange; ++n) {
        printf("stranger %u: %d %d\n", n, cuMemFree_v2(strange[n]), cuMemFreeAsync(strange[n], 0));
    }
    OK(cuCtxSynchronize());
    SAY(cuMemFree_v2(inside));
    SAY(cuMemFree_v2(inside));
    SAY(cuMemFreeAsync(inside, 0));
    OK(cuMemAlloc_v2(&plain, 1000));
    SAY(cuMemFreeAsync(plain, 0));
    SAY(cuMemFreeAsync(plain, 0));
    OK(cuCtxSynchronize());
    SAY(cuMemFree_v2(plain));
    OK(cuMemAllocAsync(&ordered, 1000, 0));
    SAY(cuMemFree_v2(ordered));
    SAY(cuMemFree_v2(ordered));
    SAY(cuMemFreeAsync(ordered, 0));
    OK(cuMemAllocAsync(&ordered, 1000, 0));
    SAY(cuMemFreeAsync(ordered, 0));
    SAY(cuMemFreeAsync(ordered, 0));
    OK(cuCtxSynchronize());
    SAY(cuMemFree_v2(ordered));
    OK(cuMemAllocManaged(&managed, 1000, 1));
    SAY(cuMemFreeAsync(managed + 8, 0));
    SAY(cuMemFree_v2(managed));
    SAY(cuMemFree_v2(managed));
    SAY(cuMemFreeHost((void *)0x1000));
    SAY(cuArrayDestroy(0));
    mark("end");
}

/* Memory that one call gave, freed by the other's kind of free. */
static void crossed_frees(void)
{
    begin();
    handle stream;
    OK(cuStreamCreate(&stream, 1));
    for (int n = 0; n < 50; ++n) {
        ptr plain, ordered;
        OK(cuMemAlloc_v2(&plain, 10000));
        OK(cuMemAllocAsync(&ordered, 10000, stream));
        fill(stream, plain, 2500, n);
        fill(stream, ordered, 2500, n);
        SAY(cuMemFreeAsync(plain, stream));
        OK(cuStreamSynchronize(stream));
        SAY(cuMemFree_v2(ordered));
    }
    mark("end");
}

static void pitches(void)
{
    begin();
    for (unsigned width = 1; width < 5000; width = width * 7 / 3 + 1)
        for (unsigned height = 1; height < 100; height = height * 5 + 1)
            for (unsigned element = 0; element <= 32; element = element ? element * 2 : 1) {
                ptr p;
                size_t pitch = 77;
                int code = cuMemAllocPitch_v2(&p, &pitch, width, height, element);
                printf("%u x %u of %u: %d, pitch %zu", width, height, element, code, pitch);
                if (!code) {
                    ptr base;
                    size_t bytes;
                    OK(cuMemGetAddressRange_v2(&base, &bytes, p));
                    OK(cuMemsetD2D8_v2(p, pitch, 1, width, height));
                    printf(", %zu bytes, at %lld", bytes, (long long)(p - base));
                    OK(cuMemFree_v2(p));
                }
                printf("\n");
            }
    mark("end");
}

static void impossible_sizes(void)
{
    begin();
    size_t sizes[] = {(1ull << 33) + 1, 1ull << 40, 1ull << 47, 1ull << 60, 1ull << 63, ~0ull - 4096, ~0ull - 1, ~0ull};
    for (unsigned n = 0; n < sizeof sizes / sizeof *sizes; ++n) {
        ptr p;
        size_t pitch;
        unsigned long long h;
        physical kind = {1, 0, {ON_DEVICE, 0}, 0, {0}};
        printf("%zx:", sizes[n]);
        printf(" %d", cuMemAlloc_v2(&p, sizes[n]));
        printf(" %d", cuMemAllocAsync(&p, sizes[n], 0));
        printf(" %d", cuMemAllocPitch_v2(&p, &pitch, sizes[n], 3, 4));
        printf(" %d", cuMemAllocPitch_v2(&p, &pitch, 3, sizes[n], 4));
        printf(" %d", cuMemCreate(&h, sizes[n], &kind, 0));
        printf("\n");
    }
    ptr p;
    SAY(cuMemAlloc_v2(&p, MiB));
    SAY(cuMemFree_v2(p));
    mark("end");
}

/* Fills what may be had by blocks of a MiB, gives half back, and goes on. */
static void out_of_memory(void)
{
    begin();
    static ptr all[10000];
    int count = 0, code;
    while (!(code = cuMemAlloc_v2(&all[count], MiB))) ++count;
    printf("got %d, then %d\n", count, code);
    mark("full");
    for (int n = 0; n < count; n += 2) OK(cuMemFree_v2(all[n]));
    int again = 0;
    for (int n = 0; n < count; n += 2) again += cuMemAlloc_v2(&all[n], MiB) == SUCCESS;
    printf("half again: %d of %d\n", again, (count + 1) / 2);
    for (int n = 0; n < count; ++n) OK(cuMemFree_v2(all[n]));
    ptr large;
    SAY(cuMemAlloc_v2(&large, (size_t)count * MiB));
    SAY(cuMemFree_v2(large));
    SAY(cuMemAllocAsync(&large, (size_t)(count - 2) * MiB, 0));
    SAY(cuMemFreeAsync(large, 0));
    OK(cuCtxSynchronize());
    mark("end");
}

/* Memory that is not the pool's, within the limit and above it. */
static void governed_out_of_memory(void)
{
    begin();
    physical kind = {1, 0, {ON_DEVICE, 0}, 0, {0}};
    unsigned long long h[100];
    int count = 0, code;
    while (count < 100 && !(code = cuMemCreate(&h[count], 2 * MiB, &kind, 0))) ++count;
    printf("got %d, then %d\n", count, code);
    ptr p;
    printf("beside it %d\n", cuMemAlloc_v2(&p, MiB));
    for (int n = 0; n < count; ++n) OK(cuMemRelease(h[n]));
    mark("released");
    SAY(cuMemAlloc_v2(&p, 10 * MiB));
    /* What the pool has and does not use makes room. */
    SAY(cuMemFree_v2(p));
    SAY(cuMemCreate(&h[0], 10 * MiB, &kind, 0));
    SAY(cuMemRelease(h[0]));
    mark("end");
}

static void info(void)
{
    begin();
    size_t before, total, after;
    ptr p[3];
    unsigned long long h;
    physical kind = {1, 0, {ON_DEVICE, 0}, 0, {0}};
    OK(cuMemGetInfo_v2(&before, &total));
    printf("before free %zu total %zu\n", before, total);
    mark("before");
    OK(cuMemAlloc_v2(&p[0], 1000));
    OK(cuMemAllocAsync(&p[1], 10 * MiB + 5, 0));
    OK(cuMemAlloc_v2(&p[2], 777777));
    OK(cuMemGetInfo_v2(&after, &total));
    printf("blocks free %zu total %zu\n", after, total);
    mark("blocks");
    OK(cuMemCreate(&h, 4 * MiB, &kind, 0));
    OK(cuMemGetInfo_v2(&after, &total));
    printf("physical free %zu total %zu\n", after, total);
    mark("physical");
    OK(cuMemRelease(h));
    OK(cuMemFree_v2(p[0]));
    OK(cuMemFreeAsync(p[1], 0));
    OK(cuMemFree_v2(p[2]));
    OK(cuCtxSynchronize());
    OK(cuMemGetInfo_v2(&after, &total));
    printf("after free %zu total %zu\n", after, total);
    mark("after");
}

static void other_contexts(void)
{
    OK(cuInit(0));
    int count;
    OK(cuDeviceGetCount(&count));
    printf("%d devices\n", count);
    handle first, second, other, stream, popped;
    OK(cuCtxCreate_v2(&first, 0, 0));
    OK(cuCtxCreate_v2(&second, 0, 0));
    OK(cuCtxCreate_v2(&other, 0, 1));
    ptr a, b, c, d, e;
    OK(cuCtxSetCurrent(first));
    OK(cuMemAlloc_v2(&a, MiB));
    OK(cuMemAlloc_v2(&b, MiB));
    OK(cuMemAlloc_v2(&e, MiB));
    OK(cuStreamCreate(&stream, 1));
    OK(cuMemAllocAsync(&c, MiB, stream));
    OK(cuCtxSetCurrent(other));
    OK(cuMemAlloc_v2(&d, 2 * MiB));
    mark("both");
    SAY(cuMemFree_v2(a));
    SAY(cuMemFree_v2(a));
    SAY(cuMemFreeAsync(c, stream));
    OK(cuCtxSetCurrent(second));
    SAY(cuMemFree_v2(b));
    SAY(cuMemFree_v2(d));
    mark("freed");
    OK(cuCtxSetCurrent(0));
    ptr none;
    SAY(cuMemAlloc_v2(&none, MiB));
    SAY(cuMemAllocAsync(&none, MiB, 0));
    size_t x, y;
    SAY(cuMemGetInfo_v2(&x, &y));
    SAY(cuMemFree_v2(e));
    OK(cuCtxPushCurrent_v2(first));
    int code = cuMemAllocAsync(&none, MiB, stream);
    printf("of the stream's device: %d\n", code);
    OK(cuCtxPopCurrent_v2(&popped));
    OK(cuCtxSetCurrent(other));
    SAY(cuMemAllocAsync(&none, MiB, stream));
    mark("streams");
}

/* Whose the null stream is: the device of a block of its order, or the error. */
static void whose(const char *when)
{
    ptr p;
    int code = cuMemAllocAsync(&p, MiB, 0), device = -1;
    if (code == SUCCESS) {
        OK(cuPointerGetAttribute(&device, 9, p));
        OK(cuMemFreeAsync(p, 0));
    }
    printf("%s: %d, device %d\n", when, code, device);
}

/* One context on a device, by every call that makes another current or none; each queries twice, so that the second could use
   what the first has cached. */
static void current(void)
{
    handle one, popped;
    int count;
    OK(cuInit(0));
    OK(cuDeviceGetCount(&count));
    OK(cuDevicePrimaryCtxRetain(&one, 0));
    for (int n = 0; n < 2; ++n) {
        whose("none");
        whose("none");
        OK(cuCtxSetCurrent(one));
        whose("set");
        whose("set");
        OK(cuCtxSetCurrent(0));
        whose("taken away");
        OK(cuCtxPushCurrent_v2(one));
        whose("pushed");
        whose("pushed");
        OK(cuCtxPopCurrent_v2(&popped));
        whose("popped");
        OK(cuCtxPushCurrent(one));
        whose("pushed by the old name");
        whose("pushed by the old name");
        OK(cuCtxPopCurrent(&popped));
        whose("popped by the old name");
    }
    OK(cuCtxSetCurrent(one));
    whose("before there is another");
    whose("before there is another");
    handle other;
    if (count > 1) {
        OK(cuDevicePrimaryCtxRetain(&other, 1));
    } else {
        OK(cuCtxCreate_v2(&other, 0, 0));
        OK(cuCtxPopCurrent_v2(&popped));
    }
    for (int n = 0; n < 4; ++n) {
        OK(cuCtxSetCurrent(n % 2 ? one : other));
        whose("of two");
        whose("of two");
    }
    OK(cuCtxSetCurrent(0));
    whose("of none");
    mark("end");
}

/* A context for graphics, made by a function that was requested before, as CUDA's runtime library requests every function, or
   by its exported name. */
static void graphics(int asked_for)
{
    int (*make)(handle *, unsigned, int), found;
    handle one, other;
    OK(cuInit(0));
    OK(cuDevicePrimaryCtxRetain(&one, 0));
    OK(cuCtxSetCurrent(one));
    if (asked_for) {
        OK(cuGetProcAddress_v2("cuGLCtxCreate", (void **)&make, 12000, 0, &found));
        /* Nothing comes of what is not there. */
        void *none = 0;
        (void)cuGetProcAddress_v2("cuVDPAUCtxCreate", &none, 12000, 0, &found);
        if (none) printf("cuVDPAUCtxCreate has come from nowhere\n");
    } else {
        make = dlsym(RTLD_DEFAULT, "cuGLCtxCreate_v2");
    }
    whose("the first");
    whose("the first");
    int *asked = dlsym(dlopen(getenv("FERCUDA_DRIVER"), RTLD_LAZY | RTLD_NOLOAD), "asked"), before = *asked;
    for (int n = 0; n < 10; ++n) {
        ptr p;
        OK(cuMemAllocAsync(&p, MiB, 0));
        OK(cuMemFreeAsync(p, 0));
    }
    printf("the driver was asked %d times\n", *asked - before);
    OK(make(&other, 0, 0));
    whose("the other");
    mark("end");
}

static void graphics_asked_for(void) { graphics(1); }
static void graphics_exported(void) { graphics(0); }

static void host_node(void)
{
    begin();
    for (int node = 0; node < 3; ++node) {
        physical kind = {1, 0, {ON_HOST_NODE, node}, 0, {0}};
        size_t granule = 0;
        unsigned long long h = 0;
        printf("granularity %d\n", cuMemGetAllocationGranularity(&granule, &kind, 0));
        int code = cuMemCreate(&h, 2 * MiB, &kind, 0);
        printf("node %d: %d\n", node, code);
        if (!code) {
            mark("made");
            SAY(cuMemRelease(h));
        }
    }
    mark("end");
}

static void something_of_everything(ptr *out)
{
    handle array, stream, pool;
    array_kind flat = {64, 64, 0x20, 1};
    pool_kind props = {1, 0, {ON_DEVICE, 0}, 0, 0, 0, {0}};
    void *host;
    OK(cuMemAlloc_v2(&out[0], 3 * MiB));
    OK(cuStreamCreate(&stream, 1));
    OK(cuMemAllocAsync(&out[1], 5 * MiB, stream));
    OK(cuMemAllocAsync(&out[2], 1000, 0));
    OK(cuMemAllocAsync(&out[3], 1000, (handle)PER_THREAD));
    OK(cuMemAllocManaged(&out[4], MiB, 1));
    OK(cuMemPoolCreate(&pool, &props));
    OK(cuMemAllocFromPoolAsync(&out[5], MiB, pool, stream));
    printf("array: %d\n", cuArrayCreate_v2(&array, &flat));
    OK(cuMemHostAlloc(&host, MiB, 0));
    OK(cuMemsetD32_v2(out[0], 1, 1000));
}

/* Of everything, what would outlive its context. */
static void freed_in_order(ptr *out)
{
    int ordered[] = {1, 2, 3, 5};
    for (int n = 0; n < 4; ++n) OK(cuMemFreeAsync(out[ordered[n]], 0));
}

static void reset(void)
{
    OK(cuInit(0));
    handle primary;
    size_t free_bytes, total, after;
    ptr out[6];
    for (int round = 0; round < 3; ++round) {
        OK(cuDevicePrimaryCtxRetain(&primary, 0));
        OK(cuCtxSetCurrent(primary));
        OK(cuMemGetInfo_v2(&free_bytes, &total));
        something_of_everything(out);
        mark("full");
        freed_in_order(out);
        SAY(cuDevicePrimaryCtxReset_v2(0));
        mark("reset");
        OK(cuDevicePrimaryCtxRetain(&primary, 0));
        OK(cuCtxSetCurrent(primary));
        SAY(cuMemFree_v2(out[0]));
        SAY(cuMemFree_v2(out[1]));
        SAY(cuMemGetAddressRange_v2(&out[1], 0, out[0]));
        OK(cuMemGetInfo_v2(&after, &total));
        printf("lost %lld\n", (long long)(free_bytes - after));
        ptr p;
        OK(cuMemAlloc_v2(&p, MiB));
        OK(cuMemsetD32_v2(p, 1, 1000));
        OK(cuMemFree_v2(p));
        OK(cuDevicePrimaryCtxRelease_v2(0));
    }
    mark("end");
}

static void destroy(void)
{
    OK(cuInit(0));
    for (int round = 0; round < 20; ++round) {
        ptr out[6];
        OK(cuCtxCreate_v2(&context, 0, 0));
        something_of_everything(out);
        freed_in_order(out);
        SAY(cuCtxDestroy_v2(context));
        SAY(cuMemFree_v2(out[0]));
    }
    mark("end");
}

static void pool_of(const char *what, ptr p, handle wanted)
{
    handle told = (handle)1, together = (handle)1;
    int which = 17, code = cuPointerGetAttribute(&told, which, p + 10);
    void *into = &together;
    printf("%s: %d, %d", what, code, told == wanted);
    code = cuPointerGetAttributes(1, &which, &into, p);
    printf("; %d, %d\n", code, together == wanted);
}

enum { WAYS = 4, KEPT = 4, CONTEXT_OF = 1, USED_NOW = 7 };

static const size_t kept_bytes[KEPT] = {3 * MiB, 1000, 5 * MiB, 777};

static unsigned long long used_of(handle pool)
{
    unsigned long long bytes;
    OK(cuMemPoolGetAttribute(pool, USED_NOW, &bytes));
    return bytes;
}

/* How many of a block's words are not value. */
static unsigned wrong_words(ptr p, size_t bytes, unsigned value)
{
    static unsigned words[5 * MiB / 4];
    unsigned wrong = 0;
    OK(cuMemcpyDtoH_v2(words, p, bytes));
    for (size_t n = 0; n < bytes / 4; ++n) wrong += words[n] != value;
    return wrong;
}

/* Memory in streams' order when its context ends: loses its last user, is reset, is destroyed, the only one or beside
   another. */
static void outlive(void)
{
    OK(cuInit(0));
    for (int way = 0; way < WAYS; ++way) {
        handle made, other = 0, stream, pool, owner;
        pool_kind props = {1, 0, {ON_DEVICE, 0}, 0, 0, 0, {0}};
        ptr kept[KEPT], waiting, plain, later[KEPT], base;
        char name[20];
        if (way == 3) OK(cuCtxCreate_v2(&other, 0, 0));
        OK(way < 2 ? cuDevicePrimaryCtxRetain(&made, 0) : cuCtxCreate_v2(&made, 0, 0));
        OK(cuCtxSetCurrent(made));
        OK(cuStreamCreate(&stream, 1));
        OK(cuMemPoolCreate(&pool, &props));
        OK(cuMemAllocAsync(&kept[0], kept_bytes[0], stream));
        OK(cuMemAllocAsync(&kept[1], kept_bytes[1], 0));
        OK(cuMemAllocFromPoolAsync(&kept[2], kept_bytes[2], pool, stream));
        OK(cuMemAllocAsync(&kept[3], kept_bytes[3], (handle)PER_THREAD));
        OK(cuMemAllocAsync(&waiting, 7 * MiB, stream));
        OK(cuMemAlloc_v2(&plain, MiB));
        for (int n = 0; n < KEPT; ++n) OK(cuMemsetD32_v2(kept[n], 10 * way + n, kept_bytes[n] / 4));
        OK(cuMemsetD32Async(waiting, 99, 7 * MiB / 4, stream));
        OK(cuMemFreeAsync(waiting, stream));
        OK(cuPointerGetAttribute(&owner, CONTEXT_OF, plain));
        printf("plain memory is its context's: %d\n", owner == made);
        printf("used %llu %llu\n", used_of(default_pool()), used_of(pool));
        snprintf(name, sizeof name, "held %d", way);
        mark(name);
        SAY(way == 0 ? cuDevicePrimaryCtxRelease_v2(0) : way == 1 ? cuDevicePrimaryCtxReset_v2(0) : cuCtxDestroy_v2(made));
        snprintf(name, sizeof name, "ended %d", way);
        mark(name);
        printf("used %llu %llu\n", used_of(default_pool()), used_of(pool));
        for (int none = 0; none < 2 && !other; ++none) {
            /* In the context that is gone, if that is still current; then in none. */
            if (none) OK(cuCtxSetCurrent(0));
            printf("freed in order: %d, range: %d, allocated: %d\n", cuMemFreeAsync(kept[0], 0),
                   cuMemGetAddressRange_v2(&base, 0, kept[0]), cuMemAlloc_v2(&base, MiB));
            printf("plain freed: %d\n", cuMemFree_v2(plain));
            if (way < 2 || none) printf("freed: %d\n", cuMemFree_v2(kept[3]));
            OK(cuPointerGetAttribute(&owner, CONTEXT_OF, kept[1]));
            printf("context: %p, its device: %d\n", owner, cuPointerGetAttribute(&base, 3, kept[1]));
        }
        handle after = other;
        if (way < 2) OK(cuDevicePrimaryCtxRetain(&after, 0));
        if (way == 2) OK(cuCtxCreate_v2(&after, 0, 0));
        OK(cuCtxSetCurrent(after));
        if (other) SAY(cuMemFree_v2(kept[3]));
        SAY(cuMemFree_v2(kept[3]));
        SAY(cuMemFree_v2(plain));
        SAY(cuMemGetAddressRange_v2(&base, 0, plain));
        /* What is allocated now lies elsewhere. */
        for (int n = 0; n < KEPT; ++n) {
            OK(n % 2 ? cuMemAlloc_v2(&later[n], kept_bytes[n]) : cuMemAllocAsync(&later[n], kept_bytes[n], 0));
            OK(cuMemsetD32_v2(later[n], 77, kept_bytes[n] / 4));
        }
        OK(cuCtxSynchronize());
        for (int n = 0; n < KEPT - 1; ++n) {
            size_t bytes;
            OK(cuMemGetAddressRange_v2(&base, &bytes, kept[n] + 8));
            printf("wrong %u, %zu bytes from %lld\n", wrong_words(kept[n], kept_bytes[n], 10 * way + n), bytes,
                   (long long)(kept[n] - base));
            pool_of("it", kept[n], n == 2 ? pool : default_pool());
        }
        OK(cuStreamCreate(&stream, 1));
        OK(cuMemsetD32Async(kept[0], 55, kept_bytes[0] / 4, stream));
        SAY(cuMemFreeAsync(kept[0], stream));
        SAY(cuMemFreeAsync(kept[0], stream));
        SAY(cuMemPoolDestroy(pool));
        printf("wrong %u\n", wrong_words(kept[2], kept_bytes[2], 10 * way + 2));
        SAY(cuMemFreeAsync(kept[2], 0));
        SAY(cuMemFree_v2(kept[1]));
        for (int n = 0; n < KEPT; ++n) OK(cuMemFree_v2(later[n]));
        OK(cuCtxSynchronize());
        printf("used %llu\n", used_of(default_pool()));
        SAY(way < 2 ? cuDevicePrimaryCtxRelease_v2(0) : cuCtxDestroy_v2(after));
        /* Resetting has released nothing. */
        if (way == 1) SAY(cuDevicePrimaryCtxRelease_v2(0));
        OK(cuCtxSetCurrent(0));
    }
    mark("end");
}

static void physical_memory(void)
{
    begin();
    physical kind = {1, 0, {ON_DEVICE, 0}, 0, {0}};
    access_to access = {{ON_DEVICE, 0}, 3};
    size_t granule;
    OK(cuMemGetAllocationGranularity(&granule, &kind, 0));
    size_t size = granule * 2;
    unsigned long long h, again, second;
    ptr at, base;
    OK(cuMemAddressReserve(&at, size * 4, 0, 0, 0));
    SAY(cuMemCreate(&h, size, &kind, 0));
    SAY(cuMemCreate(&second, size, &kind, 0));
    mark("made");
    SAY(cuMemMap(at, size, 0, h, 0));
    SAY(cuMemMap(at + size, size, 0, h, 0));
    SAY(cuMemMap(at + 2 * size, size, 0, second, 0));
    SAY(cuMemMap(at + 2 * size, size, 0, second, 0));
    SAY(cuMemSetAccess(at, 3 * size, &access, 1));
    OK(cuMemsetD32_v2(at, 5, size / 4));
    unsigned word = 0;
    OK(cuMemcpyDtoH_v2(&word, at + size, 4));
    printf("the other view holds %u\n", word);
    SAY(cuMemRetainAllocationHandle(&again, (void *)at));
    printf("the same handle: %d\n", again == h);
    SAY(cuMemRelease(h));
    SAY(cuMemRelease(again));
    SAY(cuMemRelease(second));
    SAY(cuMemRelease(second));
    mark("released");
    printf("free inside a mapping: %d %d\n", cuMemFree_v2(at), cuMemFreeAsync(at, 0));
    printf("free inside a mapping: %d %d\n", cuMemFree_v2(at + 64), cuMemFreeAsync(at + 64, 0));
    OK(cuCtxSynchronize());
    size_t bytes = 0;
    int code = cuMemGetAddressRange_v2(&base, &bytes, at + size + 8);
    printf("range: %d, from %lld, %zu granules\n", code, (long long)(base - at), bytes / granule);
    SAY(cuMemUnmap(at, size));
    mark("one view");
    OK(cuMemcpyDtoH_v2(&word, at + size, 4));
    printf("it still holds %u\n", word);
    SAY(cuMemUnmap(at + size, 2 * size));
    SAY(cuMemUnmap(at + size, 2 * size));
    SAY(cuMemAddressFree(at, size * 4));
    SAY(cuMemAddressFree(at, size * 4));
    mark("end");
}

static int by_value(const void *a, const void *b)
{
    unsigned long long x = *(const unsigned long long *)a, y = *(const unsigned long long *)b;
    return x < y ? -1 : x > y;
}

static void buffer_ids(void)
{
    begin();
    enum { COUNT = 300, BUFFER_ID = 7 };
    ptr p[COUNT];
    unsigned long long id[2 * COUNT], again, inside;
    for (int n = 0; n < COUNT; ++n) {
        OK(n % 2 ? cuMemAlloc_v2(&p[n], 1000) : cuMemAllocAsync(&p[n], 1000, 0));
        OK(cuPointerGetAttribute(&id[n], BUFFER_ID, p[n]));
    }
    int stable = 0;
    for (int n = 0; n < COUNT; ++n) {
        OK(cuPointerGetAttribute(&again, BUFFER_ID, p[n]));
        OK(cuPointerGetAttribute(&inside, BUFFER_ID, p[n] + 999));
        stable += again == id[n] && inside == id[n];
        OK(cuMemFree_v2(p[n]));
        OK(cuMemAlloc_v2(&p[n], 1000));
        OK(cuPointerGetAttribute(&id[COUNT + n], BUFFER_ID, p[n]));
    }
    qsort(id, 2 * COUNT, sizeof *id, by_value);
    int same = 0;
    for (int n = 1; n < 2 * COUNT; ++n) same += id[n] == id[n - 1];
    printf("%d stable, %d same\n", stable, same);
    mark("end");
}

/* All that the driver says of addresses in and around allocations. */
static void ranges_and_attributes(void)
{
    begin();
    handle stream;
    OK(cuStreamCreate(&stream, 1));
    ptr p[5];
    size_t sizes[5] = {1000, 1 << 20, 100, 4096, 3000};
    OK(cuMemAlloc_v2(&p[0], sizes[0]));
    OK(cuMemAlloc_v2(&p[1], sizes[1]));
    OK(cuMemAllocAsync(&p[2], sizes[2], stream));
    OK(cuMemAllocManaged(&p[3], sizes[3], 1));
    void *host;
    OK(cuMemHostAlloc(&host, sizes[4], 2));
    p[4] = (ptr)host;
    for (int n = 0; n < 5; ++n) {
        size_t offsets[] = {0, 1, sizes[n] / 2, sizes[n] - 1};
        for (int k = 0; k < 4; ++k) {
            ptr base = 0;
            size_t bytes = 0;
            int code = cuMemGetAddressRange_v2(&base, &bytes, p[n] + offsets[k]);
            printf("range %d+%zu: %d", n, offsets[k], code);
            if (!code) printf(" %lld %zu", (long long)(base - p[n]), bytes);
            printf("\n");
            for (int attribute = 0; attribute < 25; ++attribute) {
                /* What is about the mapping below is not the block's. */
                if (attribute == 10 || (attribute >= 18 && attribute <= 20)) continue;
                unsigned long long value[8] = {0};
                code = cuPointerGetAttribute(value, attribute, p[n] + offsets[k]);
                printf("  attribute %d: %d", attribute, code);
                /* The context, where it is to the device, a number, a range: relative to what is known. */
                if (!code && attribute == 1) printf(" own context %d", value[0] == (unsigned long long)context);
                else if (!code && attribute == 17 && value[0])
                    printf(" default pool %d", value[0] == (unsigned long long)default_pool());
                else if (!code && (attribute == 3 || attribute == 4 || attribute == 11))
                    printf(" at %lld", (long long)(value[0] - p[n]));
                else if (!code && attribute != 7 && attribute != 5) printf(" %llu", value[0]);
                printf("\n");
            }
            int which[5] = {2, 9, 11, 12, 8};
            unsigned type = 9, managed = 9;
            int ordinal = 9;
            ptr start = 9;
            size_t length = 9;
            void *into[5] = {&type, &ordinal, &start, &length, &managed};
            code = cuPointerGetAttributes(5, which, into, p[n] + offsets[k]);
            printf("  together: %d %u %d %lld %zu %u\n", code, type, ordinal, (long long)(start - p[n]), length, managed & 255);
        }
    }
    OK(cuMemFree_v2(p[0]));
    ptr base;
    size_t bytes;
    unsigned long long value;
    SAY(cuMemGetAddressRange_v2(&base, &bytes, p[0]));
    SAY(cuPointerGetAttribute(&value, 2, p[0]));
    SAY(cuPointerGetAttribute(&value, 12, p[0]));
    int which[2] = {2, 12};
    unsigned type = 9;
    size_t length = 9;
    void *into[2] = {&type, &length};
    SAY(cuPointerGetAttributes(2, which, into, p[0]));
    printf("%u %zu\n", type, length);
    mark("end");
}

static void pools(void)
{
    begin();
    handle pool, stream, current = default_pool();
    pool_kind props = {1, 0, {ON_DEVICE, 0}, 0, 0, 0, {0}}, bad = {1, 0, {ON_DEVICE, 99}, 0, 0, 0, {0}};
    unsigned long long value;
    int flag;
    OK(cuStreamCreate(&stream, 1));
    SAY(cuMemPoolCreate(&pool, &bad));
    SAY(cuMemPoolCreate(&pool, &props));
    ptr p, q;
    SAY(cuMemAllocFromPoolAsync(&p, 1000, pool, stream));
    pool_of("from the pool", p, pool);
    SAY(cuMemPoolGetAttribute(pool, 1, &flag));
    for (int attribute = 0; attribute < 10; ++attribute)
        printf("attribute %d: %d\n", attribute, cuMemPoolGetAttribute(pool, attribute, &value));
    value = 5;
    printf("set used now: %d\n", cuMemPoolSetAttribute(pool, 7, &value));
    printf("set used most: %d\n", cuMemPoolSetAttribute(pool, 8, &value));
    value = 0;
    printf("set used most: %d\n", cuMemPoolSetAttribute(pool, 8, &value));
    SAY(cuMemPoolTrimTo(pool, 0));
    SAY(cuMemPoolTrimTo(0, 0));
    SAY(cuDeviceSetMemPool(0, pool));
    SAY(cuMemAllocAsync(&q, 1000, stream));
    pool_of("from the current pool", q, pool);
    SAY(cuMemFreeAsync(q, stream));
    SAY(cuDeviceSetMemPool(0, current));
    pool_of("still from the pool", p, pool);
    OK(cuMemAllocAsync(&q, 1000, stream));
    pool_of("from the default pool", q, current);
    OK(cuMemFree_v2(q));
    OK(cuMemAlloc_v2(&q, 1000));
    pool_of("from none", q, 0);
    OK(cuMemFree_v2(q));
    SAY(cuMemFreeAsync(p, stream));
    OK(cuStreamSynchronize(stream));
    SAY(cuMemPoolDestroy(pool));
    SAY(cuMemPoolDestroy(current));
    mark("end");
}

/* What is in use of each of three pools, now and at most. */
static void figures(const char *when, handle *pools, handle stream)
{
    unsigned long long now, most;
    OK(cuStreamSynchronize(stream));
    for (int n = 0; n < 3; ++n) {
        OK(cuMemPoolGetAttribute(pools[n], 7, &now));
        OK(cuMemPoolGetAttribute(pools[n], 8, &most));
        printf("%s: of pool %d %llu MiB, at most %llu\n", when, n, now / MiB, most / MiB);
    }
}

static void *free_there(void *block)
{
    OK(cuCtxSetCurrent(context));
    OK(cuMemFree_v2(*(ptr *)block));
    return 0;
}

static void pool_figures(void)
{
    begin();
    pool_kind props = {1, 0, {ON_DEVICE, 0}, 0, 0, 0, {0}};
    handle stream, pools[3] = {default_pool()};
    ptr p[6];
    pthread_t other;
    unsigned long long nothing = 0;
    OK(cuStreamCreate(&stream, 1));
    for (int n = 1; n < 3; ++n) OK(cuMemPoolCreate(&pools[n], &props));
    figures("at first", pools, stream);
    for (int n = 0; n < 6; ++n) OK(cuMemAllocFromPoolAsync(&p[n], (n + 1) * 2 * MiB, pools[n % 3], stream));
    figures("all", pools, stream);
    OK(cuMemFreeAsync(p[4], stream));
    pthread_create(&other, 0, free_there, &p[5]);
    pthread_join(other, 0);
    figures("two freed", pools, stream);
    OK(cuMemPoolSetAttribute(pools[2], 8, &nothing));
    figures("one forgotten", pools, stream);
    OK(cuDeviceSetMemPool(0, pools[2]));
    OK(cuMemAllocAsync(&p[4], 4 * MiB, stream));
    OK(cuDeviceSetMemPool(0, pools[0]));
    OK(cuMemAllocAsync(&p[5], 32 * MiB, stream));
    figures("two more", pools, stream);
    for (int n = 0; n < 6; ++n) OK(cuMemFreeAsync(p[n], stream));
    figures("none", pools, stream);
    for (int n = 1; n < 3; ++n) {
        OK(cuMemPoolDestroy(pools[n]));
        OK(cuMemPoolCreate(&pools[n], &props));
    }
    figures("made anew", pools, stream);
    mark("end");
}

/* Memory that no graph allocated, freed in a capture. */
static void captured_frees(void)
{
    begin();
    for (int kind = 0; kind < 3; ++kind) {
        handle stream, graph = 0;
        ptr p = 0x1234;
        int status;
        OK(cuStreamCreate(&stream, 1));
        if (kind == 1) OK(cuMemAlloc_v2(&p, 1000));
        if (kind == 2) OK(cuMemAllocAsync(&p, 1000, stream));
        OK(cuStreamSynchronize(stream));
        OK(cuStreamBeginCapture_v2(stream, 2));
        printf("kind %d: %d", kind, cuMemFreeAsync(p, stream));
        printf(" status %d", cuStreamIsCapturing(stream, &status) ? -1 : status);
        printf(" end %d\n", cuStreamEndCapture(stream, &graph));
        if (kind) SAY(cuMemFree_v2(p));
        OK(cuCtxSynchronize());
    }
    mark("end");
}

/* Copies between devices. */
static void peers(void)
{
    OK(cuInit(0));
    handle all[2];
    ptr p[2];
    unsigned words[1000];
    for (int n = 0; n < 2; ++n) {
        OK(cuCtxCreate_v2(&all[n], 0, n));
        OK(cuMemAlloc_v2(&p[n], sizeof words));
        OK(cuMemsetD32_v2(p[n], 10 + n, 1000));
        OK(cuCtxSynchronize());
    }
    SAY(cuMemcpyPeer(p[0], all[0], p[1], all[1], sizeof words));
    OK(cuCtxSynchronize());
    OK(cuCtxSetCurrent(all[0]));
    OK(cuMemcpyDtoH_v2(words, p[0], sizeof words));
    printf("first %u, last %u\n", words[0], words[999]);
    for (int n = 0; n < 2; ++n) {
        int ordinal = 9;
        OK(cuPointerGetAttribute(&ordinal, 9, p[n]));
        printf("%d is on %d\n", n, ordinal);
        OK(cuMemFree_v2(p[n]));
    }
    mark("end");
}

/* A handle for other processes. */
/* A context on each of two devices; the kernels are the first one's, which is current. */
static handle other_context;

static void two_devices(void)
{
    begin();
    OK(cuCtxCreate_v2(&other_context, 0, 1));
    OK(cuCtxSetCurrent(context));
}

/* Memory of the second device, filled there; the first is current again. */
static ptr of_the_other(size_t bytes, unsigned value, handle pool)
{
    ptr p;
    OK(cuCtxSetCurrent(other_context));
    OK(pool ? cuMemAllocFromPoolAsync(&p, bytes, pool, 0) : cuMemAlloc_v2(&p, bytes));
    OK(cuMemsetD32_v2(p, value, bytes / 4));
    OK(cuCtxSynchronize());
    OK(cuCtxSetCurrent(context));
    return p;
}

/* A kernel of the first device reads such memory and writes there, and the second device reads that. */
static void across(const char *what, ptr p, size_t bytes, unsigned value)
{
    ptr count;
    unsigned wrong = 9, words[2] = {0};
    OK(cuMemAlloc_v2(&count, 4));
    OK(cuMemsetD32_v2(count, 0, 1));
    differ(0, p, bytes / 4, value, count);
    fill(0, p, bytes / 4, value + 1);
    int code = cuCtxSynchronize();
    if (!code) OK(cuMemcpyDtoH_v2(&wrong, count, 4));
    OK(cuCtxSetCurrent(other_context));
    OK(cuMemcpyDtoH_v2(words, p, 4));
    OK(cuMemcpyDtoH_v2(words + 1, p + bytes - 4, 4));
    OK(cuCtxSetCurrent(context));
    printf("%s: %d, wrong %u, then it holds %d %d\n", what, code, wrong, words[0] - value, words[1] - value);
    if (!code) OK(cuMemFree_v2(count));
}

static void flags_of(const char *what, ptr p)
{
    unsigned flags = 9;
    int code = cuPointerGetAttribute(&flags, 16, p);
    printf("%s: %d, access %u\n", what, code, flags);
}

static void peer_access(void)
{
    two_devices();
    ptr before = of_the_other(MiB, 5, 0);
    flags_of("before", before);
    SAY(cuCtxEnablePeerAccess(other_context, 1));
    SAY(cuCtxEnablePeerAccess(context, 0) != 0);
    SAY(cuCtxEnablePeerAccess(other_context, 0));
    SAY(cuCtxEnablePeerAccess(other_context, 0));
    flags_of("enabled", before);
    across("allocated before", before, MiB, 5);
    mark("before");
    /* More than there was room for. */
    ptr later[6];
    for (int n = 0; n < 6; ++n) later[n] = of_the_other((1 + 4 * n) * MiB, 20 * n, 0);
    mark("later");
    for (int n = 0; n < 6; ++n) across("allocated later", later[n], (1 + 4 * n) * MiB, 20 * n);
    /* Small blocks lie elsewhere. */
    ptr small = of_the_other(1000, 7, 0);
    across("a small one", small, 1000, 7);
    /* What is freed and allocated again may be mapped anew. */
    OK(cuCtxSetCurrent(other_context));
    for (int n = 0; n < 6; n += 2) OK(cuMemFree_v2(later[n]));
    OK(cuCtxSynchronize());
    OK(cuCtxSetCurrent(context));
    ptr again = of_the_other(25 * MiB, 9, 0);
    across("allocated again", again, 25 * MiB, 9);
    OK(cuCtxSetCurrent(other_context));
    for (int n = 1; n < 6; n += 2) OK(cuMemFree_v2(later[n]));
    OK(cuMemFree_v2(again));
    OK(cuMemFree_v2(small));
    OK(cuMemFree_v2(before));
    OK(cuCtxSetCurrent(context));
    SAY(cuCtxDisablePeerAccess(other_context));
    SAY(cuCtxDisablePeerAccess(other_context));
    mark("end");
}

static void pool_access(void)
{
    two_devices();
    handle pool, default_one;
    pool_kind props = {1, 0, {ON_DEVICE, 1}, 0, 0, 0, {0}};
    access_to first = {{ON_DEVICE, 0}, 3}, own_none = {{ON_DEVICE, 1}, 0}, strange = {{ON_DEVICE, 9}, 3};
    location of_first = {ON_DEVICE, 0};
    int flags = 9;
    OK(cuDeviceGetDefaultMemPool(&default_one, 1));
    OK(cuMemPoolCreate(&pool, &props));
    for (int n = 0; n < 2; ++n) {
        handle one = n ? default_one : pool;
        ptr before = of_the_other(MiB, 5, one);
        if (!n) flags_of("before", before);
        SAY(cuMemPoolSetAccess(one, &own_none, 1));
        SAY(cuMemPoolSetAccess(one, &strange, 1));
        SAY(cuMemPoolSetAccess(one, &first, 1));
        SAY(cuMemPoolSetAccess(one, &first, 1));
        SAY(cuMemPoolGetAccess(&flags, one, &of_first));
        printf("it has %d\n", flags);
        flags_of("set", before);
        across("allocated before", before, MiB, 5);
        ptr later = of_the_other(30 * MiB, 6, one);
        across("allocated later", later, 30 * MiB, 6);
        OK(cuCtxSetCurrent(other_context));
        OK(cuMemFreeAsync(before, 0));
        OK(cuMemFreeAsync(later, 0));
        OK(cuCtxSynchronize());
        OK(cuCtxSetCurrent(context));
    }
    OK(cuMemPoolDestroy(pool));
    mark("end");
}

/* Without access, a kernel that reads there fails. It may have failed before the next call is
   made, so nothing else is launched. */
static void no_access(void)
{
    two_devices();
    ptr p = of_the_other(MiB, 5, 0), count;
    flags_of("never enabled", p);
    OK(cuMemAlloc_v2(&count, 4));
    OK(cuMemsetD32_v2(count, 0, 1));
    differ(0, p, MiB / 4, 5, count);
    printf("without access: %d\n", cuCtxSynchronize());
}

static void shared(void)
{
    begin();
    char id[64], first[64], other[64];
    ptr p, q;
    OK(cuMemAlloc_v2(&p, 1000));
    OK(cuMemAlloc_v2(&q, 1000));
    SAY(cuIpcGetMemHandle(id, p));
    memcpy(first, id, 64);
    SAY(cuIpcGetMemHandle(id, p + 4));
    OK(cuIpcGetMemHandle(other, q));
    printf("of the block alone %d\n", !memcmp(first, id, 64) && memcmp(first, other, 64));
    OK(cuMemFree_v2(p));
    OK(cuMemFree_v2(q));
    SAY(cuIpcGetMemHandle(id, p));
}

/* Calls in a thread with nothing set up at all. */
static void before_init(void)
{
    ptr p;
    size_t a, b;
    SAY(cuMemAlloc_v2(&p, 100));
    SAY(cuMemAllocAsync(&p, 100, 0));
    SAY(cuMemFree_v2(0x1000));
    SAY(cuMemFreeAsync(0x1000, 0));
    SAY(cuMemGetInfo_v2(&a, &b));
    SAY(cuCtxSynchronize());
    OK(cuInit(0));
    SAY(cuMemAlloc_v2(&p, 100));
    SAY(cuMemAllocAsync(&p, 100, 0));
    SAY(cuMemFree_v2(0x1000));
    SAY(cuMemGetInfo_v2(&a, &b));
}

/* A megabyte, given back: whether it was governed the ledger says. */
static void one(void)
{
    begin();
    ptr p;
    OK(cuMemAlloc_v2(&p, MiB));
    OK(cuMemsetD32_v2(p, 3, MiB / 4));
    unsigned word;
    OK(cuMemcpyDtoH_v2(&word, p + MiB - 4, 4));
    printf("holds %u\n", word);
    OK(cuMemFree_v2(p));
}

/* Forgets to free. */
static void leak(void)
{
    begin();
    ptr p;
    for (int n = 0; n < 10; ++n) OK(cuMemAlloc_v2(&p, MiB));
    mark("end");
}

/* Contexts that come and go in several threads at once, with memory in use. */
static void *one_of_many(void *number)
{
    for (int round = 0; round < 60; ++round) {
        handle own, primary;
        size_t free_bytes, bytes;
        ptr p, q, after;
        OK(cuCtxCreate_v2(&own, 0, 0));
        OK(cuMemAlloc_v2(&p, 3000));
        OK(cuMemAllocAsync(&q, 5000, 0));
        OK(cuMemGetInfo_v2(&free_bytes, &bytes));
        OK(cuCtxDestroy_v2(own));
        OK(cuDevicePrimaryCtxRetain(&primary, 0));
        OK(cuCtxSetCurrent(primary));
        OK(cuMemAlloc_v2(&after, 7000));
        OK(cuMemFree_v2(after));
        OK(cuMemFree_v2(q));
        OK(cuCtxSetCurrent(0));
        OK(cuDevicePrimaryCtxRelease_v2(0));
    }
    return number;
}

/* A context that is given up by its last user, and not before. */
static void detach(void)
{
    handle own, again = 0;
    ptr p, q, base;
    begin();
    for (int n = 0; n < 3; ++n) {
        OK(cuCtxCreate_v2(&own, 0, 0));
        OK(cuMemAlloc_v2(&p, 3000));
        OK(cuMemAlloc_v2(&q, 2 * MiB));
        SAY(cuCtxAttach(&again, 0));
        printf("the same: %d\n", again == own);
        SAY(cuCtxDetach(own));
        SAY(cuMemGetAddressRange_v2(&base, 0, p + 1000));
        printf("where it begins: %d\n", base == p);
        if (n == 0) mark("attached");
        SAY(cuCtxDetach(own));
        SAY(cuMemGetAddressRange_v2(&base, 0, p));
        OK(cuCtxSetCurrent(context));
        SAY(cuMemFree_v2(p));
        SAY(cuCtxDetach(own));
    }
    SAY(cuCtxDetach(0));
    mark("end");
}

static void many_contexts(void)
{
    begin();
    pthread_t all[6];
    for (int n = 0; n < 6; ++n) pthread_create(&all[n], 0, one_of_many, 0);
    for (int n = 0; n < 6; ++n) pthread_join(all[n], 0);
    mark("end");
}

int main(int argc, char **argv)
{
    static const test_case cases[] = {
        {"size_zero", size_zero}, {"null_outputs", null_outputs}, {"wrong_frees", wrong_frees},
        {"crossed_frees", crossed_frees}, {"pitches", pitches}, {"impossible_sizes", impossible_sizes},
        {"out_of_memory", out_of_memory}, {"governed_out_of_memory", governed_out_of_memory}, {"info", info}, {"current", current},
        {"graphics_asked_for", graphics_asked_for}, {"graphics_exported", graphics_exported},
        {"other_contexts", other_contexts}, {"host_node", host_node}, {"reset", reset}, {"destroy", destroy}, {"outlive", outlive},
        {"physical_memory", physical_memory}, {"buffer_ids", buffer_ids},
        {"ranges_and_attributes", ranges_and_attributes}, {"pools", pools}, {"pool_figures", pool_figures}, {"before_init", before_init},
        {"one", one}, {"leak", leak}, {"captured_frees", captured_frees}, {"peers", peers}, {"peer_access", peer_access},
        {"pool_access", pool_access}, {"no_access", no_access}, {"shared", shared},
        {"detach", detach}, {"many_contexts", many_contexts}, {0, 0}};
    setvbuf(stdout, 0, _IOLBF, 0);
    return run_case(cases, argc, argv);
}
