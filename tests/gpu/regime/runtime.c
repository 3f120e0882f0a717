/* A program of NVIDIA's runtime library, which it may be linked to in either way. Knows it by the names of its functions,
   so that it is compiled without its headers.

     cc -O1 runtime.c libcudart.so.13 | libcudart_static.a -ldl -lrt -lpthread

   Every line that it prints is the same with the hook and without it. On standard error it says how often it allocated
   linear memory, which the ledger has to have seen. */
#include <dlfcn.h>
#include <pthread.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

typedef void *handle;
typedef struct { unsigned x, y, z; } size3;
typedef struct { int type, device; void *there, *host; char later[256]; } attributes_of;
typedef struct { int x, y, z, w, kind; } channels;
typedef struct { int type, handles, place, id; void *windows; size_t most; unsigned short usage; unsigned char rest[54]; } pool_kind;

enum { TO_DEVICE = 1, TO_HOST = 2, NON_BLOCKING = 1 };

int cudaFree(void *);
int cudaMalloc(void **, size_t);
int cudaMallocPitch(void **, size_t *, size_t, size_t);
int cudaMallocManaged(void **, size_t, unsigned);
int cudaMallocHost(void **, size_t);
int cudaFreeHost(void *);
int cudaMallocArray(handle *, const channels *, size_t, size_t, unsigned);
int cudaFreeArray(handle);
int cudaMallocAsync(void **, size_t, handle);
int cudaMallocAsync_ptsz(void **, size_t, handle);
int cudaMallocFromPoolAsync(void **, size_t, handle, handle);
int cudaFreeAsync(void *, handle);
int cudaFreeAsync_ptsz(void *, handle);
int cudaMemPoolCreate(handle *, const pool_kind *);
int cudaMemPoolDestroy(handle);
int cudaMemcpy(void *, const void *, size_t, int);
int cudaMemcpyAsync(void *, const void *, size_t, int, handle);
int cudaMemset(void *, int, size_t);
int cudaMemsetAsync(void *, int, size_t, handle);
int cudaMemGetInfo(size_t *, size_t *);
int cudaPointerGetAttributes(attributes_of *, const void *);
int cudaDeviceSynchronize(void);
int cudaDeviceReset(void);
int cudaGetLastError(void);
int cudaPeekAtLastError(void);
int cudaGetDevice(int *);
int cudaGetDeviceCount(int *);
int cudaSetDevice(int);
int cudaStreamBeginCapture(handle, int);
int cudaStreamEndCapture(handle, handle *);
int cudaGraphDestroy(handle);
int cudaStreamCreateWithFlags(handle *, unsigned);
int cudaStreamSynchronize(handle);
int cudaStreamSynchronize_ptsz(handle);
int cudaStreamWaitEvent(handle, handle, unsigned);
int cudaStreamDestroy(handle);
int cudaEventCreate(handle *);
int cudaEventRecord(handle, handle);
int cudaEventSynchronize(handle);
int cudaEventElapsedTime(float *, handle, handle);
int cudaEventDestroy(handle);
int cudaLibraryLoadData(handle *, const void *, void *, void *, unsigned, void *, void *, unsigned);
int cudaLibraryGetKernel(handle *, handle, const char *);
int cudaLibraryUnload(handle);
int cudaLaunchKernel(const void *, size3, size3, void **, size_t, handle);

static void must(int code, const char *what, int line)
{
    if (code) {
        printf("line %d: %s answered %d\n", line, what, code);
        fflush(stdout);
        _exit(3);
    }
}
#define OK(call) must((call), #call, __LINE__)
/* A call with a result that the program tests, and the state that it leaves. */
#define SAY(call) (printf("%s = %d", #call, (call)), printf(", then %d\n", cudaGetLastError()))

#define MiB ((size_t)1 << 20)

static unsigned allocations;
#define ALLOCATED(call) (OK(call), __atomic_fetch_add(&allocations, 1, __ATOMIC_RELAXED))

/* splitmix64 */
static uint64_t random_bits(uint64_t *state)
{
    uint64_t z = (*state += 0x9e3779b97f4a7c15);
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9;
    z = (z ^ (z >> 27)) * 0x94d049bb133111eb;
    return z ^ (z >> 31);
}

/* late: waits for the given ns, then counts the words that differ from value. */
static const char *const PTX =
    ".version 8.0\n.target sm_80\n.address_size 64\n"
    ".visible .entry late(.param .u64 p, .param .u32 n, .param .u32 value, .param .u64 ns, .param .u64 count)\n{\n"
    " .reg .b64 %a, %o, %c, %t, %u, %d; .reg .b32 %i, %n, %v, %w; .reg .pred %p, %q;\n"
    " ld.param.u64 %a, [p]; ld.param.u32 %n, [n]; ld.param.u32 %v, [value]; ld.param.u64 %d, [ns];\n"
    " ld.param.u64 %c, [count];\n"
    " mov.u64 %t, %globaltimer;\n"
    "WAIT: mov.u64 %u, %globaltimer; sub.u64 %u, %u, %t; setp.lt.u64 %p, %u, %d; @%p bra WAIT;\n"
    " mov.u32 %i, %tid.x;\n"
    "LOOP: setp.ge.u32 %p, %i, %n; @%p ret;\n"
    " mul.wide.u32 %o, %i, 4; add.u64 %o, %a, %o; ld.global.u32 %w, [%o];\n"
    " setp.ne.u32 %q, %w, %v; @%q red.global.add.u32 [%c], 1;\n"
    " add.u32 %i, %i, 64; bra LOOP;\n}\n";

static void late(handle kernel, handle stream, void *p, unsigned words, unsigned value, uint64_t ns, void *count)
{
    void *arguments[] = {&p, &words, &value, &ns, &count};
    size3 one = {1, 1, 1}, threads = {64, 1, 1};
    OK(cudaLaunchKernel(kernel, one, threads, arguments, 0, stream));
}

/* Writes random bytes to memory and reads them back. */
static unsigned holds(void *p, size_t bytes, uint64_t *state)
{
    unsigned char *in = malloc(bytes), *out = malloc(bytes);
    for (size_t n = 0; n < bytes; n += 8) {
        uint64_t word = random_bits(state);
        memcpy(in + n, &word, bytes - n < 8 ? bytes - n : 8);
    }
    OK(cudaMemcpy(p, in, bytes, TO_DEVICE));
    OK(cudaMemcpy(out, p, bytes, TO_HOST));
    unsigned same = !memcmp(in, out, bytes);
    free(in);
    free(out);
    return same;
}

static void calls(uint64_t seed)
{
    void *p = 0, *q[64];
    size_t pitch, before, after, total;
    attributes_of is;
    SAY(cudaFree(0));
    SAY(cudaMalloc(&p, 0));
    SAY(cudaMalloc(0, 10));
    SAY(cudaMallocPitch(&p, &pitch, 0, 0));
    uint64_t state = seed;
    unsigned good = 0, own = 0, apart = 0;
    size_t bytes[64];
    for (int n = 0; n < 64; ++n) {
        bytes[n] = 1 + random_bits(&state) % (n % 4 ? 100000 : 5 * MiB);
        ALLOCATED(cudaMalloc(&q[n], bytes[n]));
        OK(cudaPointerGetAttributes(&is, q[n]));
        own += is.type == 2 && is.device == 0 && is.there == q[n];
        good += holds(q[n], bytes[n], &state);
    }
    for (int a = 0; a < 64; ++a)
        for (int b = 0; b < 64; ++b) apart += (char *)q[a] + bytes[a] <= (char *)q[b] || (char *)q[b] + bytes[b] <= (char *)q[a];
    printf("%u hold, %u are its own, %u apart\n", good, own, apart);
    for (int n = 0; n < 64; ++n) OK(cudaFree(q[n]));
    OK(cudaPointerGetAttributes(&is, q[0]));
    printf("freed memory is of type %d\n", is.type);
    for (size_t width = 1; width < 5000; width += 1 + random_bits(&state) % 300) {
        ALLOCATED(cudaMallocPitch(&p, &pitch, width, 7));
        printf("width %zu: pitch %zu\n", width, pitch);
        OK(cudaFree(p));
    }
    OK(cudaMallocManaged(&p, 3 * MiB, 1));
    OK(cudaMemset(p, 7, 3 * MiB));
    OK(cudaDeviceSynchronize());
    OK(cudaPointerGetAttributes(&is, p));
    printf("managed holds %d, of type %d\n", ((char *)p)[2 * MiB], is.type);
    OK(cudaFree(p));
    OK(cudaMallocHost(&p, MiB));
    OK(cudaPointerGetAttributes(&is, p));
    printf("pinned is of type %d\n", is.type);
    OK(cudaFreeHost(p));
    handle array;
    channels kind = {32, 0, 0, 0, 2};
    OK(cudaMallocArray(&array, &kind, 1000, 1000, 0));
    OK(cudaFreeArray(array));
    OK(cudaMemGetInfo(&before, &total));
    ALLOCATED(cudaMalloc(&p, 256 * MiB));
    OK(cudaMemGetInfo(&after, &total));
    printf("256 MiB are gone: %d\n", before - after >= 256 * MiB && before - after < 264 * MiB);
    OK(cudaFree(p));
    OK(cudaDeviceSynchronize());
    OK(cudaMemGetInfo(&after, &total));
    printf("and back: %d\n", before - after < 8 * MiB || after >= before);
}

static void wrong_frees(uint64_t seed)
{
    (void)seed;
    void *p, *q, *host = malloc(100);
    int here = 0;
    ALLOCATED(cudaMalloc(&p, 100000));
    ALLOCATED(cudaMalloc(&q, 100000));
    OK(cudaFree(p));
    SAY(cudaFree(p));
    SAY(cudaFree((char *)q + 256));
    SAY(cudaFree((char *)q + 1));
    SAY(cudaFree(host));
    SAY(cudaFree(&here));
    SAY(cudaFree((void *)0x1234500));
    SAY(cudaFree(0));
    SAY(cudaFreeHost(q));
    OK(cudaMemset(q, 5, 100000));
    SAY(cudaFree(q));
    ALLOCATED(cudaMallocAsync(&p, 100000, 0));
    SAY(cudaFree(p));
    ALLOCATED(cudaMalloc(&p, 100000));
    SAY(cudaFreeAsync(p, 0));
    OK(cudaDeviceSynchronize());
    free(host);
}

static void streams(uint64_t seed)
{
    enum { WORDS = 200000 };
    handle s[2], library, kernel, event, start, pool;
    void *p, *q, *count;
    unsigned wrong;
    OK(cudaFree(0));
    OK(cudaLibraryLoadData(&library, PTX, 0, 0, 0, 0, 0, 0));
    OK(cudaLibraryGetKernel(&kernel, library, "late"));
    for (int n = 0; n < 2; ++n) OK(cudaStreamCreateWithFlags(&s[n], NON_BLOCKING));
    OK(cudaEventCreate(&event));
    OK(cudaEventCreate(&start));
    ALLOCATED(cudaMalloc(&count, 4));
    OK(cudaMemset(count, 0, 4));
    OK(cudaDeviceSynchronize());
    pool_kind kind = {.type = 1, .place = 1};
    OK(cudaMemPoolCreate(&pool, &kind));
    uint64_t state = seed;
    for (int round = 0; round < 40; ++round) {
        handle a = s[round % 2], b = s[(round + 1) % 2];
        unsigned char byte = random_bits(&state);
        int from = random_bits(&state) % 3;
        if (from == 0) ALLOCATED(cudaMalloc(&p, 4 * WORDS));
        if (from == 1) ALLOCATED(cudaMallocAsync(&p, 4 * WORDS, a));
        if (from == 2) ALLOCATED(cudaMallocFromPoolAsync(&p, 4 * WORDS, pool, a));
        OK(cudaEventRecord(start, a));
        OK(cudaMemsetAsync(p, byte, 4 * WORDS, a));
        late(kernel, a, p, WORDS, byte * 0x01010101u, 2000000, count);
        /* Freed while the kernel waits, and allocated again in the other stream. */
        if (random_bits(&state) % 2) {
            OK(cudaFreeAsync(p, a));
        } else {
            /* For stream-ordered memory, cudaFree assumes that its use is over. */
            if (from != 0) OK(cudaStreamSynchronize(a));
            OK(cudaFree(p));
        }
        ALLOCATED(cudaMallocAsync(&q, 4 * WORDS, b));
        OK(cudaMemsetAsync(q, byte + 1, 4 * WORDS, b));
        late(kernel, b, q, WORDS, (unsigned char)(byte + 1) * 0x01010101u, 0, count);
        OK(cudaFreeAsync(q, b));
        if (random_bits(&state) % 2) {
            OK(cudaEventRecord(event, b));
            OK(cudaStreamWaitEvent(a, event, 0));
        }
    }
    float ms = -1;
    OK(cudaEventRecord(event, s[1]));
    OK(cudaEventSynchronize(event));
    OK(cudaEventElapsedTime(&ms, start, event));
    OK(cudaDeviceSynchronize());
    OK(cudaMemcpy(&wrong, count, 4, TO_HOST));
    printf("wrong %u, time went on %d\n", wrong, ms >= 0);
    OK(cudaMemPoolDestroy(pool));
    for (int n = 0; n < 2; ++n) OK(cudaStreamDestroy(s[n]));
    OK(cudaEventDestroy(event));
    OK(cudaEventDestroy(start));
    OK(cudaFree(count));
    OK(cudaLibraryUnload(library));
}

static void *one_thread(void *of)
{
    uint64_t state = *(uint64_t *)of;
    void *p[8] = {0};
    size_t good = 0;
    for (int round = 0; round < 300; ++round) {
        int n = random_bits(&state) % 8;
        size_t bytes = 1 + random_bits(&state) % 300000;
        if (p[n]) {
            OK(n % 2 ? cudaFreeAsync_ptsz(p[n], 0) : cudaFree(p[n]));
        }
        if (n % 2) {
            ALLOCATED(cudaMallocAsync_ptsz(&p[n], bytes, 0));
            OK(cudaStreamSynchronize_ptsz(0));
        } else {
            ALLOCATED(cudaMalloc(&p[n], bytes));
        }
        good += holds(p[n], bytes, &state);
    }
    for (int n = 0; n < 8; ++n) OK(cudaFree(p[n]));
    *(uint64_t *)of = good;
    return 0;
}

static void threads(uint64_t seed)
{
    pthread_t all[8];
    uint64_t state[8], good = 0;
    OK(cudaFree(0));
    for (int n = 0; n < 8; ++n) {
        state[n] = seed + n;
        pthread_create(&all[n], 0, one_thread, &state[n]);
    }
    for (int n = 0; n < 8; ++n) {
        pthread_join(all[n], 0);
        good += state[n];
    }
    printf("%llu of 2400 hold\n", (unsigned long long)good);
}

static void out_of_memory(uint64_t seed)
{
    (void)seed;
    enum { PARTS = 64 };
    void *p[2 * PARTS], *large;
    size_t available, total, end;
    OK(cudaFree(0));
    OK(cudaMemGetInfo(&available, &total));
    size_t part = total / PARTS, half = total / 2;
    int count = 0, code = 0, again = 0;
    while (count < 2 * PARTS && !(code = cudaMalloc(&p[count], part))) ++count;
    allocations += count;
    printf("as many as there are: %d, then %d\n", count >= (int)(available / part) - 2 && count <= PARTS, code);
    int first = cudaGetLastError();
    printf("%d, %d\n", first, cudaGetLastError());
    for (int n = 0; n < count; n += 2) OK(cudaFree(p[n]));
    for (int n = 0; n < count; n += 2) again += !cudaMalloc(&p[n], part);
    allocations += again;
    printf("half again: %d\n", again == (count + 1) / 2);
    SAY(cudaMalloc(&large, half));
    for (int n = 0; n < count; ++n) OK(cudaMemset(p[n], n, 4096));
    for (int n = 0; n < count; ++n) OK(cudaFree(p[n]));
    ALLOCATED(cudaMalloc(&large, half));
    OK(cudaMemset(large, 1, half));
    OK(cudaFree(large));
    SAY(cudaMalloc(&large, total + total / 8));
    OK(cudaDeviceSynchronize());
    OK(cudaMemGetInfo(&end, &total));
    printf("all is back: %d\n", end + 64 * MiB >= available);
}

static void reset(uint64_t seed)
{
    uint64_t state = seed;
    size_t free[3], total;
    void *p;
    for (int round = 0; round < 3; ++round) {
        OK(cudaFree(0));
        OK(cudaMemGetInfo(&free[round], &total));
        for (int n = 0; n < 20; ++n) ALLOCATED(cudaMalloc(&p, 1 + random_bits(&state) % (4 * MiB)));
        void *ordered;
        ALLOCATED(cudaMalloc(&p, MiB));
        ALLOCATED(cudaMallocAsync(&ordered, MiB, 0));
        printf("holds %u %u\n", holds(p, MiB, &state), holds(ordered, MiB, &state));
        /* Stream-ordered memory belongs to its pool, which belongs to no context, and stays. */
        unsigned before, after;
        OK(cudaMemcpy(&before, ordered, sizeof before, TO_HOST));
        SAY(cudaDeviceReset());
        SAY(cudaFree(p));
        OK(cudaMemcpy(&after, ordered, sizeof after, TO_HOST));
        printf("stays %d\n", before == after);
        SAY(cudaFree(ordered));
        SAY(cudaFree(ordered));
    }
    printf("nothing is lost: %d\n", free[2] + 64 * MiB >= free[0]);
}

/* Which device is current, and the state that the query leaves. */
static void device(const char *when)
{
    int is = -7, code = cudaGetDevice(&is);
    printf("%s: %d, device %d, last %d\n", when, code, is, cudaPeekAtLastError());
}

static void *device_in_thread(void *kept)
{
    void *p;
    device("in a thread");
    ALLOCATED(cudaMallocAsync(&p, MiB, 0));
    device("there, with a block");
    OK(cudaFreeAsync(p, 0));
    return 0;
}

static void devices(uint64_t seed)
{
    (void)seed;
    void *driver = dlopen("libcuda.so.1", RTLD_NOW), *p;
    int (*set)(handle) = (int (*)(handle))dlsym(driver, "cuCtxSetCurrent");
    int (*get)(handle *) = (int (*)(handle *))dlsym(driver, "cuCtxGetCurrent");
    int (*push)(handle) = (int (*)(handle))dlsym(driver, "cuCtxPushCurrent_v2");
    int (*pop)(handle *) = (int (*)(handle *))dlsym(driver, "cuCtxPopCurrent_v2");
    int (*create)(handle *, unsigned, int) = (int (*)(handle *, unsigned, int))dlsym(driver, "cuCtxCreate_v2");
    int (*destroy)(handle) = (int (*)(handle))dlsym(driver, "cuCtxDestroy_v2");
    handle first, other, stream, graph;
    pthread_t thread;
    int count;
    attributes_of is;
    device("before anything");
    for (int n = 0; n < 2; ++n) {
        ALLOCATED(cudaMallocAsync(&p, MiB, 0));
        device("with a block");
        OK(cudaFreeAsync(p, 0));
    }
    OK(get(&first));
    SAY(cudaGetDevice(0));
    printf("%d\n", cudaMemcpy(0, p, 7, 99));
    device("with an error");
    printf("%d\n", cudaGetLastError());
    SAY(cudaSetDevice(99));
    device("one that is not there, chosen");
    OK(cudaStreamCreateWithFlags(&stream, NON_BLOCKING));
    OK(cudaStreamBeginCapture(stream, 0));
    device("while a stream captures");
    OK(cudaStreamEndCapture(stream, &graph));
    OK(cudaGraphDestroy(graph));
    OK(cudaStreamDestroy(stream));
    pthread_create(&thread, 0, device_in_thread, 0);
    pthread_join(thread, 0);
    OK(set(0));
    device("none is current");
    OK(get(&other));
    printf("none became current: %d\n", !other);
    OK(push(first));
    device("pushed");
    OK(pop(&other));
    device("popped");
    OK(set(first));
    OK(create(&other, 0, 0));
    device("a context of its own");
    OK(destroy(other));
    device("without it");
    OK(cudaGetDeviceCount(&count));
    for (int n = 1; n >= 0 && count > 1; --n) {
        OK(cudaSetDevice(n));
        device("chosen");
        ALLOCATED(cudaMallocAsync(&p, MiB, 0));
        OK(cudaPointerGetAttributes(&is, p));
        printf("a block of device %d\n", is.device);
        device("with a block");
        OK(set(first));
        device("the first's context");
        OK(cudaSetDevice(n));
        OK(cudaFreeAsync(p, 0));
        OK(cudaDeviceSynchronize());
    }
    OK(cudaDeviceReset());
    device("after a reset");
    ALLOCATED(cudaMallocAsync(&p, MiB, 0));
    device("with a block again");
    OK(cudaFreeAsync(p, 0));
    OK(cudaDeviceSynchronize());
}

int main(int argc, char **argv)
{
    static const struct { const char *name; void (*run)(uint64_t); } CASES[] = {
        {"calls", calls}, {"wrong_frees", wrong_frees}, {"streams", streams}, {"threads", threads},
        {"out_of_memory", out_of_memory}, {"reset", reset}, {"devices", devices}};
    uint64_t seed = argc > 2 ? strtoull(argv[2], 0, 10) : 0;
    for (size_t n = 0; n < sizeof CASES / sizeof *CASES; ++n)
        if (argc > 1 && !strcmp(argv[1], CASES[n].name)) {
            CASES[n].run(seed);
            printf("end\n");
            fprintf(stderr, "allocations %u\n", allocations);
            return 0;
        }
    printf("there is no such case\n");
    return 2;
}
