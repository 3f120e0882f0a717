/* The driver's interface as its programs know it, and what the programs here share. */
#ifndef DRIVER_H
#define DRIVER_H

#include <dirent.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

typedef unsigned long long ptr;
typedef void *handle;

typedef struct { int type, id; } location;
typedef struct { int type, handles; location place; void *windows; unsigned char flags[8]; } physical;
typedef struct { location place; int flags; } access_to;
typedef struct { int type, handles; location place; void *windows; size_t most; unsigned short usage; unsigned char rest[54]; } pool_kind;
typedef struct { size_t width, height; int format; unsigned channels; } array_kind;

enum { LEGACY = 1, PER_THREAD = 2 };
enum { ON_DEVICE = 1, ON_HOST_NODE = 3 };
enum { SUCCESS = 0, INVALID_VALUE = 1, OUT_OF_MEMORY = 2 };

int cuInit(unsigned);
int cuDriverGetVersion(int *);
int cuDeviceGetCount(int *);
int cuDeviceTotalMem_v2(size_t *, int);
int cuDeviceGetDefaultMemPool(handle *, int);
int cuDeviceSetMemPool(int, handle);
int cuCtxCreate_v2(handle *, unsigned, int);
int cuCtxDestroy_v2(handle);
int cuCtxAttach(handle *, unsigned);
int cuCtxDetach(handle);
int cuCtxSetCurrent(handle);
int cuCtxGetCurrent(handle *);
int cuCtxPushCurrent(handle);
int cuCtxPushCurrent_v2(handle);
int cuCtxPopCurrent(handle *);
int cuCtxPopCurrent_v2(handle *);
int cuCtxSynchronize(void);
int cuDevicePrimaryCtxRetain(handle *, int);
int cuDevicePrimaryCtxRelease_v2(int);
int cuDevicePrimaryCtxReset_v2(int);
int cuModuleLoadData(handle *, const void *);
int cuModuleUnload(handle);
int cuModuleGetFunction(handle *, handle, const char *);
int cuLaunchKernel(handle, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, handle, void **, void **);
int cuLaunchKernel_ptsz(handle, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, handle, void **, void **);
int cuLaunchHostFunc(handle, void (*)(void *), void *);
int cuLaunchHostFunc_ptsz(handle, void (*)(void *), void *);
int cuMemAlloc_v2(ptr *, size_t);
int cuMemFree_v2(ptr);
int cuMemAllocPitch_v2(ptr *, size_t *, size_t, size_t, unsigned);
int cuMemAllocManaged(ptr *, size_t, unsigned);
int cuMemAllocHost_v2(void **, size_t);
int cuMemHostAlloc(void **, size_t, unsigned);
int cuMemFreeHost(void *);
int cuMemHostRegister_v2(void *, size_t, unsigned);
int cuMemHostUnregister(void *);
int cuMemAllocAsync(ptr *, size_t, handle);
int cuMemAllocAsync_ptsz(ptr *, size_t, handle);
int cuMemFreeAsync(ptr, handle);
int cuMemFreeAsync_ptsz(ptr, handle);
int cuMemAllocFromPoolAsync(ptr *, size_t, handle, handle);
int cuMemPoolCreate(handle *, const pool_kind *);
int cuMemPoolDestroy(handle);
int cuMemPoolTrimTo(handle, size_t);
int cuMemPoolSetAccess(handle, const access_to *, size_t);
int cuMemPoolGetAccess(int *, handle, location *);
int cuCtxEnablePeerAccess(handle, unsigned);
int cuCtxDisablePeerAccess(handle);
int cuMemPoolGetAttribute(handle, int, void *);
int cuMemPoolSetAttribute(handle, int, void *);
int cuMemGetInfo_v2(size_t *, size_t *);
int cuMemGetAddressRange_v2(ptr *, size_t *, ptr);
int cuPointerGetAttribute(void *, int, ptr);
int cuPointerGetAttributes(unsigned, int *, void **, ptr);
int cuMemcpyDtoH_v2(void *, ptr, size_t);
int cuMemcpyHtoD_v2(ptr, const void *, size_t);
int cuMemcpyDtoD_v2(ptr, ptr, size_t);
int cuMemcpyDtoDAsync_v2(ptr, ptr, size_t, handle);
int cuMemcpyPeer(ptr, handle, ptr, handle, size_t);
int cuMemsetD8_v2(ptr, unsigned char, size_t);
int cuMemsetD32_v2(ptr, unsigned, size_t);
int cuMemsetD32Async(ptr, unsigned, size_t, handle);
int cuMemsetD2D8_v2(ptr, size_t, unsigned char, size_t, size_t);
int cuMemGetAllocationGranularity(size_t *, const physical *, int);
int cuMemCreate(unsigned long long *, size_t, const physical *, unsigned long long);
int cuMemRelease(unsigned long long);
int cuMemRetainAllocationHandle(unsigned long long *, void *);
int cuMemAddressReserve(ptr *, size_t, size_t, ptr, unsigned long long);
int cuMemAddressFree(ptr, size_t);
int cuMemMap(ptr, size_t, size_t, unsigned long long, unsigned long long);
int cuMemUnmap(ptr, size_t);
int cuMemSetAccess(ptr, size_t, const access_to *, size_t);
int cuIpcGetMemHandle(void *, ptr);
int cuArrayCreate_v2(handle *, const array_kind *);
int cuArrayDestroy(handle);
int cuStreamCreate(handle *, unsigned);
int cuStreamCreateWithPriority(handle *, unsigned, int);
int cuStreamDestroy_v2(handle);
int cuStreamSynchronize(handle);
int cuStreamQuery(handle);
int cuStreamWaitEvent(handle, handle, unsigned);
int cuStreamIsCapturing(handle, int *);
int cuStreamBeginCapture_v2(handle, int);
int cuStreamEndCapture(handle, handle *);
int cuThreadExchangeStreamCaptureMode(int *);
int cuEventCreate(handle *, unsigned);
int cuEventRecord(handle, handle);
int cuEventQuery(handle);
int cuEventSynchronize(handle);
int cuEventDestroy_v2(handle);
int cuGraphInstantiateWithFlags(handle *, handle, unsigned long long);
int cuGraphLaunch(handle, handle);
int cuGraphExecDestroy(handle);
int cuGraphDestroy(handle);
int cuDeviceGraphMemTrim(int);
int cuGetProcAddress_v2(const char *, void **, int, unsigned long long, int *);

static inline void must(int code, const char *what, int line)
{
    if (code) {
        printf("line %d: %s answered %d\n", line, what, code);
        fflush(stdout);
        _exit(3);
    }
}
/* A call that has to succeed. */
#define OK(call) must((call), #call, __LINE__)
/* A call with a result that the program tests. */
#define SAY(call) printf("%s = %d\n", #call, (call))

/* Copies this process's ledger as it is now, for the test to read. */
static inline void mark(const char *name)
{
    const char *base = getenv("XDG_RUNTIME_DIR");
    char path[4096], own[32];
    snprintf(path, sizeof path, "%s/fercuda", base ? base : "/nowhere");
    int length = snprintf(own, sizeof own, "%d", (int)getpid());
    DIR *folder = opendir(path);
    for (struct dirent *it; folder && (it = readdir(folder));) {
        size_t n = strlen(it->d_name);
        if (strncmp(it->d_name, own, length) || it->d_name[length] < '!' || (it->d_name[length] >= '0' && it->d_name[length] <= '9')
            || n < 7 || strcmp(it->d_name + n - 7, ".ledger"))
            continue;
        char from[8192], to[8192], bytes[1 << 16];
        snprintf(from, sizeof from, "%s/%s", path, it->d_name);
        snprintf(to, sizeof to, "%s/%s.mark", base, name);
        FILE *in = fopen(from, "r"), *out = fopen(to, "w");
        for (size_t got; in && out && (got = fread(bytes, 1, sizeof bytes, in));) fwrite(bytes, 1, got, out);
        if (in) fclose(in);
        if (out) fclose(out);
    }
    if (folder) closedir(folder);
}

/* fill: n words become value. differ: counts words that are not value. */
static const char *const PTX =
    ".version 8.0\n.target sm_80\n.address_size 64\n"
    ".visible .entry fill(.param .u64 p, .param .u32 n, .param .u32 value)\n{\n"
    " .reg .b64 %a, %o; .reg .b32 %i, %n, %v; .reg .pred %p;\n"
    " ld.param.u64 %a, [p]; ld.param.u32 %n, [n]; ld.param.u32 %v, [value];\n"
    " mov.u32 %i, %tid.x;\n"
    "LOOP: setp.ge.u32 %p, %i, %n; @%p ret;\n"
    " mul.wide.u32 %o, %i, 4; add.u64 %o, %a, %o; st.global.u32 [%o], %v;\n"
    " add.u32 %i, %i, 64; bra LOOP;\n}\n"
    ".visible .entry differ(.param .u64 p, .param .u32 n, .param .u32 value, .param .u64 count)\n{\n"
    " .reg .b64 %a, %o, %c; .reg .b32 %i, %n, %v, %w; .reg .pred %p, %q;\n"
    " ld.param.u64 %a, [p]; ld.param.u32 %n, [n]; ld.param.u32 %v, [value]; ld.param.u64 %c, [count];\n"
    " mov.u32 %i, %tid.x;\n"
    "LOOP: setp.ge.u32 %p, %i, %n; @%p ret;\n"
    " mul.wide.u32 %o, %i, 4; add.u64 %o, %a, %o; ld.global.u32 %w, [%o];\n"
    " setp.ne.u32 %q, %w, %v; @%q red.global.add.u32 [%c], 1;\n"
    " add.u32 %i, %i, 64; bra LOOP;\n}\n";

static handle context, module, fill_kernel, differ_kernel;

/* A context with the kernels. */
static inline void begin(void)
{
    OK(cuInit(0));
    OK(cuCtxCreate_v2(&context, 0, 0));
    OK(cuModuleLoadData(&module, PTX));
    OK(cuModuleGetFunction(&fill_kernel, module, "fill"));
    OK(cuModuleGetFunction(&differ_kernel, module, "differ"));
}

static inline void fill(handle stream, ptr p, unsigned words, unsigned value)
{
    void *arguments[] = {&p, &words, &value};
    OK(cuLaunchKernel(fill_kernel, 1, 1, 1, 64, 1, 1, 0, stream, arguments, 0));
}

static inline void differ(handle stream, ptr p, unsigned words, unsigned value, ptr count)
{
    void *arguments[] = {&p, &words, &value, &count};
    OK(cuLaunchKernel(differ_kernel, 1, 1, 1, 64, 1, 1, 0, stream, arguments, 0));
}

/* splitmix64 */
static inline uint64_t random_bits(uint64_t *state)
{
    uint64_t z = (*state += 0x9e3779b97f4a7c15);
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9;
    z = (z ^ (z >> 27)) * 0x94d049bb133111eb;
    return z ^ (z >> 31);
}

typedef struct { const char *name; void (*run)(void); } test_case;

static inline int run_case(const test_case *cases, int argc, char **argv)
{
    for (; cases->name; ++cases)
        if (argc > 1 && !strcmp(cases->name, argv[1])) {
            cases->run();
            printf("end\n");
            return 0;
        }
    printf("there is no such case\n");
    return 2;
}

#endif
