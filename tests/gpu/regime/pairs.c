// What an allocation and a launch cost a program that knows only the driver:
// pairs of allocation and free, alone and in 32 threads, and an empty kernel.
// Prints one JSON object. Run with and without the hook.
//
//   cc -O2 -pthread pairs.c -o pairs -ldl && ./pairs
#define _GNU_SOURCE
#include <dlfcn.h>
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

typedef unsigned long long ptr_t;
static int (*init)(unsigned), (*retain)(void **, int), (*current)(void *), (*stream)(void **, unsigned);
static int (*sync_all)(void), (*alloc)(ptr_t *, size_t), (*release)(ptr_t);
static int (*alloc_async)(ptr_t *, size_t, void *), (*free_async)(ptr_t, void *);
static int (*load)(void **, const void *), (*function)(void **, void *, const char *);
static int (*launch)(void *, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, void *, void **, void **);
static int (*set_attribute)(void *, int, void *), (*default_pool)(void **, int);

static const char *KERNEL = ".version 8.0\n.target sm_80\n.address_size 64\n"
                            ".visible .entry nothing()\n{\n    ret;\n}\n";

#define OK(call) do { int code_ = (call); if (code_) { fprintf(stderr, "%s: %d\n", #call, code_); exit(1); } } while (0)

static double now_ns(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return t.tv_sec * 1e9 + t.tv_nsec;
}

static int by_value(const void *a, const void *b) {
    double x = *(const double *)a, y = *(const double *)b;
    return x < y ? -1 : x > y;
}

static void percentiles(const char *name, double *samples, int n, const char *end) {
    double sum = 0;
    for (int i = 0; i < n; i++) sum += samples[i];
    qsort(samples, n, sizeof *samples, by_value);
    printf("\"%s\": {\"mean_ns\": %.1f, \"p50_ns\": %.1f, \"p99_ns\": %.1f, \"p999_ns\": %.1f}%s\n", name, sum / n, samples[n / 2],
           samples[(int)(n * 0.99)], samples[(int)(n * 0.999)], end);
}

// Each sample is the mean of so many pairs, so that the clock does not count.
enum { PAIRS = 20, SAMPLES = 2000 };

static void ordered(size_t bytes, void *on, double *samples) {
    for (int i = 0; i < SAMPLES; i++) {
        double begun = now_ns();
        for (int k = 0; k < PAIRS; k++) {
            ptr_t p;
            OK(alloc_async(&p, bytes, on));
            OK(free_async(p, on));
        }
        samples[i] = (now_ns() - begun) / PAIRS;
        if (i % 100 == 99) OK(sync_all());
    }
}

enum { LIVE = 400, SWEPT = 1 << 20 };

static uint64_t random_bits(void) {
    static uint64_t state = 88172645463325252u;
    state ^= state << 13; state ^= state >> 7; state ^= state << 17;
    return state;
}

static void sweep(void) {
    static char swept[SWEPT];
    for (size_t i = 0; i < SWEPT; i += 64) ((volatile char *)swept)[i]++;
}

// One pair each, of a program that has other things in its processor's caches by the next call.
static void among_other_work(void *on, double *samples) {
    static const size_t SIZES[] = {1 << 20, 1 << 20, 4 << 20, 8 << 20};
    static ptr_t live[LIVE];
    for (int i = 0; i < LIVE; i++) OK(alloc_async(&live[i], SIZES[random_bits() % 4], on));
    for (int i = 0; i < SAMPLES; i++) {
        ptr_t *block = &live[random_bits() % LIVE];
        size_t bytes = SIZES[random_bits() % 4];
        sweep();
        double begun = now_ns();
        OK(free_async(*block, on));
        samples[i] = now_ns() - begun;
        sweep();
        begun = now_ns();
        OK(alloc_async(block, bytes, on));
        samples[i] += now_ns() - begun;
        if (i % 100 == 99) OK(sync_all());
    }
    for (int i = 0; i < LIVE; i++) OK(free_async(live[i], on));
    OK(sync_all());
}

static void plain(size_t bytes, double *samples, int count) {
    for (int i = 0; i < count; i++) {
        double begun = now_ns();
        for (int k = 0; k < PAIRS; k++) {
            ptr_t p;
            OK(alloc(&p, bytes));
            OK(release(p));
        }
        samples[i] = (now_ns() - begun) / PAIRS;
    }
}

static void *context;
static pthread_barrier_t together;
enum { THREADS = 32, EACH = 50000 };

// When each thread began and ended: the one that counts may be late itself.
static double times[THREADS][2];

static void *worker(void *argument) {
    long number = (long)argument;
    void *mine;
    OK(current(context));
    OK(stream(&mine, 1));
    unsigned seed = (unsigned)(number + 1) * 2654435761u + 1;
    pthread_barrier_wait(&together);
    times[number][0] = now_ns();
    for (int i = 0; i < EACH; i++) {
        seed = seed * 1664525u + 1013904223u;
        size_t bytes = 512u << (seed >> 29);
        ptr_t p;
        OK(alloc_async(&p, bytes, mine));
        OK(free_async(p, mine));
    }
    times[number][1] = now_ns();
    return NULL;
}

int main(void) {
    void *library = dlopen("libcuda.so.1", RTLD_NOW);
    if (!library) { fprintf(stderr, "%s\n", dlerror()); return 1; }
#define GET(name, symbol) *(void **)&name = dlsym(library, symbol)
    GET(init, "cuInit"); GET(retain, "cuDevicePrimaryCtxRetain"); GET(current, "cuCtxSetCurrent");
    GET(stream, "cuStreamCreate"); GET(sync_all, "cuCtxSynchronize"); GET(alloc, "cuMemAlloc_v2");
    GET(release, "cuMemFree_v2"); GET(alloc_async, "cuMemAllocAsync"); GET(free_async, "cuMemFreeAsync");
    GET(load, "cuModuleLoadData"); GET(function, "cuModuleGetFunction"); GET(launch, "cuLaunchKernel");
    GET(set_attribute, "cuMemPoolSetAttribute"); GET(default_pool, "cuDeviceGetDefaultMemPool");
    OK(init(0)); OK(retain(&context, 0)); OK(current(context));
    // The driver's own pool keeps what is freed, as a warm pool does.
    void *pool; uint64_t keep = UINT64_MAX;
    OK(default_pool(&pool, 0)); OK(set_attribute(pool, 4, &keep));
    void *on, *module, *kernel;
    OK(stream(&on, 1)); OK(load(&module, KERNEL)); OK(function(&kernel, module, "nothing"));

    static double samples[SAMPLES];
    printf("{");
    ordered(4096, on, samples);
    percentiles("ordered_4KiB", samples, SAMPLES, ",");
    ordered(1 << 20, on, samples);
    percentiles("ordered_1MiB", samples, SAMPLES, ",");
    ordered(20 << 20, on, samples);
    percentiles("ordered_20MiB", samples, SAMPLES, ",");
    among_other_work(on, samples);
    percentiles("ordered_among_other_work", samples, SAMPLES, ",");
    plain(4096, samples, 200);
    percentiles("plain_4KiB", samples, 200, ",");
    plain(1 << 20, samples, 200);
    percentiles("plain_1MiB", samples, 200, ",");
    plain(20 << 20, samples, 200);
    percentiles("plain_20MiB", samples, 200, ",");

    for (int i = 0; i < SAMPLES; i++) {
        double begun = now_ns();
        for (int k = 0; k < PAIRS; k++) OK(launch(kernel, 1, 1, 1, 1, 1, 1, 0, on, NULL, NULL));
        samples[i] = (now_ns() - begun) / PAIRS;
        OK(sync_all());
    }
    percentiles("launch", samples, SAMPLES, ",");

    pthread_t threads[THREADS];
    pthread_barrier_init(&together, NULL, THREADS);
    for (long t = 0; t < THREADS; t++) pthread_create(&threads[t], NULL, worker, (void *)t);
    for (int t = 0; t < THREADS; t++) pthread_join(threads[t], NULL);
    double begun = times[0][0], ended = times[0][1];
    for (int t = 1; t < THREADS; t++) {
        if (times[t][0] < begun) begun = times[t][0];
        if (times[t][1] > ended) ended = times[t][1];
    }
    printf("\"threads_32_pairs_per_s\": %.0f}\n", (double)THREADS * EACH / (ended - begun) * 1e9);
    return 0;
}
