/* A server that queries NVML for the memory size: linked to it, or finding it by dlsym (-DOPENED). */
#define _GNU_SOURCE
#include "driver.h"
#include <dlfcn.h>
#include <sys/wait.h>

#define MiB (1ull << 20)

typedef struct { unsigned long long total, free, used; } memory;
typedef struct { unsigned version; unsigned long long total, reserved, free, used; } memory_v2;
enum { DEVICES = 3, V2 = sizeof(memory_v2) | 2 << 24 };

#ifdef OPENED
static int (*nvmlInit_v2)(void);
static int (*nvmlDeviceGetHandleByIndex_v2)(unsigned, void **);
static int (*nvmlDeviceGetMemoryInfo)(void *, memory *);
static int (*nvmlDeviceGetMemoryInfo_v2)(void *, memory_v2 *);
static int (*nvmlDeviceGetIndex)(void *, unsigned *);

static void find(void)
{
    void *library = dlopen("libnvidia-ml.so.1", RTLD_NOW);
    void **all[] = {(void **)&nvmlInit_v2, (void **)&nvmlDeviceGetHandleByIndex_v2, (void **)&nvmlDeviceGetMemoryInfo,
                    (void **)&nvmlDeviceGetMemoryInfo_v2, (void **)&nvmlDeviceGetIndex};
    const char *names[] = {"nvmlInit_v2", "nvmlDeviceGetHandleByIndex_v2", "nvmlDeviceGetMemoryInfo",
                           "nvmlDeviceGetMemoryInfo_v2", "nvmlDeviceGetIndex"};
    for (int n = 0; n < 5; ++n) {
        *all[n] = dlsym(library, names[n]);
        printf("%s: %s\n", names[n], *all[n] && *all[n] == dlsym(library, names[n]) ? "found, twice" : "not found");
    }
    printf("of no such name: %s\n", dlsym(library, "nvmlDeviceGetMemoryInfo_v9") ? "found" : dlerror() ? "none, and why" : "none");
    printf("of another library: %s\n", dlsym(dlopen("libm.so.6", RTLD_NOW), "nvmlDeviceGetMemoryInfo") ? "found" : dlerror() ? "none, and why" : "none");
}
#else
int nvmlInit_v2(void);
int nvmlDeviceGetHandleByIndex_v2(unsigned, void **);
int nvmlDeviceGetMemoryInfo(void *, memory *);
int nvmlDeviceGetMemoryInfo_v2(void *, memory_v2 *);
int nvmlDeviceGetIndex(void *, unsigned *);

static void find(void)
{
    void *self = dlopen(0, RTLD_NOW);
    printf("by the program's own handle: %d\n", dlsym(self, "nvmlDeviceGetMemoryInfo") == (void *)nvmlDeviceGetMemoryInfo);
    printf("by default: %d\n", dlsym(RTLD_DEFAULT, "nvmlDeviceGetMemoryInfo") == (void *)nvmlDeviceGetMemoryInfo);
}
#endif

static void *device[DEVICES];

static void say(const char *when)
{
    for (int n = 0; n < DEVICES; ++n) {
        memory one = {0};
        memory_v2 two = {.version = V2};
        unsigned index = 9;
        OK(nvmlDeviceGetMemoryInfo(device[n], &one));
        OK(nvmlDeviceGetMemoryInfo_v2(device[n], &two));
        OK(nvmlDeviceGetIndex(device[n], &index));
        printf("%s device %u total %llu free %llu used %llu total2 %llu reserved2 %llu free2 %llu used2 %llu\n", when, index,
               one.total, one.free, one.used, two.total, two.reserved, two.free, two.used);
    }
}

static void driver_says(const char *when)
{
    size_t free, total;
    OK(cuMemGetInfo_v2(&free, &total));
    printf("%s driver free %zu total %zu\n", when, free, total);
}

int main(int argc, char **argv)
{
    memory one;
    memory_v2 old = {.version = 7};
    setvbuf(stdout, 0, _IOLBF, 0);
    find();
    SAY(nvmlDeviceGetMemoryInfo(0, &one));
    OK(nvmlInit_v2());
    for (int n = 0; n < DEVICES; ++n) OK(nvmlDeviceGetHandleByIndex_v2(n, &device[n]));
    SAY(nvmlDeviceGetMemoryInfo(0, &one));
    SAY(nvmlDeviceGetMemoryInfo(device[0], 0));
    SAY(nvmlDeviceGetMemoryInfo_v2(device[0], &old));
    SAY(nvmlDeviceGetMemoryInfo_v2(device[0], 0));
    say("early");
    if (argc > 1 && !strcmp(argv[1], "fork_early")) {
        fflush(stdout);
        if (fork()) {
            int status;
            wait(&status);
            printf("child %d\n", status);
            return 0;
        }
    }
    ptr p, q;
    OK(cuInit(0));
    OK(cuCtxCreate_v2(&context, 0, 0));
    driver_says("made");
    say("made");
    OK(cuMemAlloc_v2(&p, 10 * MiB));
    OK(cuMemAllocAsync(&q, 3 * MiB, 0));
    driver_says("held");
    say("held");
    mark("held");
    /* From a thread, or place, with no context. */
    handle popped;
    OK(cuCtxPopCurrent_v2(&popped));
    say("outside");
    OK(cuCtxPushCurrent_v2(popped));
    if (argc > 1 && !strcmp(argv[1], "fork_late")) {
        fflush(stdout);
        if (!fork()) {
            say("child");
            fflush(stdout);
            _exit(0);
        }
        wait(0);
    }
    OK(cuMemFree_v2(p));
    OK(cuMemFreeAsync(q, 0));
    OK(cuCtxSynchronize());
    driver_says("freed");
    say("freed");
    printf("end\n");
    return 0;
}
