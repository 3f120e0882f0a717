/* Stands in for NVML: the same names and types, figures of its own. Its devices are the driver's, and one more that the
   driver does not know. Built as libnvidia-ml.so.1. */
#include <dlfcn.h>
#include <stdio.h>
#include <string.h>

enum { DEVICES = 3 };
static const unsigned long long TOTAL = 1000 << 20, RESERVED = 10 << 20, FREE = 700 << 20;
static int begun;
static char devices[DEVICES];

typedef struct { unsigned long long total, free, used; } memory;
typedef struct { unsigned version; unsigned long long total, reserved, free, used; } memory_v2;

int nvmlInit_v2(void)
{
    begun = 1;
    return 0;
}

int nvmlShutdown(void)
{
    begun = 0;
    return 0;
}

int nvmlDeviceGetCount_v2(unsigned *count)
{
    *count = DEVICES;
    return 0;
}

int nvmlDeviceGetHandleByIndex_v2(unsigned index, void **device)
{
    if (!begun) return 1;
    if (index >= DEVICES) return 2;
    *device = &devices[index];
    return 0;
}

static int index_of(void *device)
{
    return (char *)device >= devices && (char *)device < devices + DEVICES ? (int)((char *)device - devices) : -1;
}

/* Asks the driver, which has to be there by then. */
int nvmlDeviceGetUUID(void *device, char *text, unsigned length)
{
    unsigned char uuid[16];
    int index = index_of(device);
    if (index < 0 || length < 41) return 2;
    void *driver = dlopen("libcuda.so.1", RTLD_NOW);
    int (*ask)(void *, int) = driver ? (int (*)(void *, int))dlsym(driver, "cuDeviceGetUuid_v2") : 0;
    if (!ask || ask(uuid, index)) memset(uuid, 0xee, sizeof uuid);
    text += sprintf(text, "GPU-");
    for (int n = 0; n < 16; ++n) text += sprintf(text, n == 4 || n == 6 || n == 8 || n == 10 ? "-%02x" : "%02x", uuid[n]);
    return 0;
}

int nvmlDeviceGetMemoryInfo(void *device, memory *told)
{
    if (!begun) return 1;
    if (index_of(device) < 0 || !told) return 2;
    *told = (memory){TOTAL, FREE, TOTAL - FREE};
    return 0;
}

int nvmlDeviceGetMemoryInfo_v2(void *device, memory_v2 *told)
{
    if (!begun) return 1;
    if (index_of(device) < 0 || !told) return 2;
    if (told->version != (sizeof *told | 2 << 24)) return 25;
    *told = (memory_v2){told->version, TOTAL, RESERVED, FREE, TOTAL - FREE - RESERVED};
    return 0;
}

/* One that is not interposed. */
int nvmlDeviceGetIndex(void *device, unsigned *index)
{
    *index = index_of(device);
    return 0;
}
