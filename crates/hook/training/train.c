/* What the profile is taken from that the hook is built with (`cargo xtask dist`): calls as programs make them, in about
   the proportions that matter. What is never called here is laid out as if nobody ever called it.

   Most of it is a training step as PyTorch makes it in the order of the legacy stream: one thread goes forward and has the
   optimizer, another goes backward. The rest are pairs of every size, in other streams, from several threads, in no
   stream's order, and among other live blocks.

     train STEPS */
#define _GNU_SOURCE
#include "../tests/programs/driver.h"
#include <pthread.h>
#include <semaphore.h>

void runtime_begin(void);
int runtime_alloc(ptr *, size_t, handle);
int runtime_free(ptr, handle);
int cudaMallocAsync(ptr *, size_t, handle);
int cudaFreeAsync(ptr, handle);
int cudaGetDevice(int *);
int cuMemAllocFromPoolAsync_ptsz(ptr *, size_t, handle, handle);

#define KiB ((size_t)1 << 10)
#define MiB ((size_t)1 << 20)
enum { LAYERS = 24, THREADS = 4, LIVE = 256, PAIRS = 400 };

static const size_t SIZES[] = {512, 4 * KiB, 64 * KiB, MiB, 4 * MiB, 20 * MiB};
enum { COUNT = sizeof SIZES / sizeof *SIZES };

static handle primary;

/* As a library that is linked to CUDA's runtime: it queries the device each time. */
static ptr take(size_t bytes)
{
    ptr p;
    int device;
    OK(cudaGetDevice(&device));
    OK(cudaMallocAsync(&p, bytes, 0));
    return p;
}

static void give(ptr p)
{
    OK(cudaFreeAsync(p, 0));
}

/* ---- a training step ------------------------------------------------------- */

/* Layers are wide and narrow in turn: what they make has 4 MiB or 1 MiB, a weight 8 MiB, a bias 8 KiB or 2 KiB. */
static size_t made(int layer) { return layer % 2 ? MiB : 4 * MiB; }
static size_t bias(int layer) { return layer % 2 ? 2 * KiB : 8 * KiB; }
enum { WEIGHT = 8 << 20 };

static ptr before[LAYERS], after[LAYERS], weights[LAYERS], biases[LAYERS], loss;
static sem_t forward_is_done, backward_is_done;

static void *backward(void *steps)
{
    OK(cuCtxSetCurrent(primary));
    for (long step = 0; step < (long)steps; ++step) {
        sem_wait(&forward_is_done);
        ptr gradient = take(made(LAYERS - 1));
        for (int layer = LAYERS; layer--;) {
            give(after[layer]);
            ptr through = take(made(layer));
            give(gradient);
            give(before[layer]);
            gradient = take(made(layer + 1));
            weights[layer] = take(WEIGHT);
            biases[layer] = take(bias(layer));
            give(through);
        }
        give(gradient);
        give(loss);
        sem_post(&backward_is_done);
    }
    return 0;
}

static void a_while(void *ignored)
{
    usleep(300);
}

static void train(long steps)
{
    pthread_t autograd;
    ptr roots[LAYERS], small[LAYERS];
    /* Weights, and what the optimizer keeps of them. */
    for (int set = 0; set < 4; ++set)
        for (int layer = 0; layer < LAYERS; ++layer) {
            take(WEIGHT);
            if (set < 3) take(bias(layer));
        }
    sem_init(&forward_is_done, 0, 0);
    sem_init(&backward_is_done, 0, 0);
    if (pthread_create(&autograd, 0, backward, (void *)steps)) _exit(4);
    for (long step = 0; step < steps; ++step) {
        OK(cuCtxSynchronize());
        /* In every other step the device is behind its host. */
        if (step % 2) OK(cuLaunchHostFunc(0, a_while, 0));
        for (int layer = 0; layer < LAYERS; ++layer) {
            before[layer] = take(made(layer));
            after[layer] = take(made(layer));
        }
        loss = take(2);
        ptr whole = take(MiB), mean = take(4);
        give(whole);
        give(mean);
        sem_post(&forward_is_done);
        sem_wait(&backward_is_done);
        for (int layer = 0; layer < LAYERS; ++layer) {
            roots[layer] = take(WEIGHT);
            small[layer] = take(bias(layer));
        }
        for (int layer = LAYERS; layer--;) {
            give(small[layer]);
            give(roots[layer]);
        }
        for (int layer = 0; layer < LAYERS; ++layer) {
            give(weights[layer]);
            give(biases[layer]);
        }
        OK(cuCtxSynchronize());
    }
    pthread_join(autograd, 0);
}

/* ---- pairs ----------------------------------------------------------------- */

static void ordered(handle pool, handle stream, size_t bytes)
{
    ptr p;
    OK(cuMemAllocAsync(&p, bytes, stream));
    OK(cuMemFreeAsync(p, stream));
    OK(cuMemAllocFromPoolAsync(&p, bytes, pool, stream));
    OK(cuMemFreeAsync(p, stream));
}

static void in_threads_stream(handle pool, size_t bytes)
{
    ptr p;
    OK(cuMemAllocAsync_ptsz(&p, bytes, 0));
    OK(cuMemFreeAsync_ptsz(p, 0));
    OK(cuMemAllocFromPoolAsync_ptsz(&p, bytes, pool, 0));
    OK(cuMemFreeAsync_ptsz(p, 0));
}

/* As a program that links CUDA's runtime statically, or got the functions from its handle. */
static void through_runtime(size_t bytes)
{
    ptr p;
    OK(runtime_alloc(&p, bytes, 0));
    OK(runtime_free(p, 0));
}

static void plain(size_t bytes)
{
    ptr p, start;
    size_t size;
    OK(cuMemAlloc_v2(&p, bytes));
    OK(cuMemGetAddressRange_v2(&start, &size, p));
    OK(cuMemFree_v2(p));
    OK(cuMemAllocPitch_v2(&p, &size, bytes / 16, 16, 4));
    OK(cuMemFree_v2(p));
    OK(cuMemAlloc_v2(&p, bytes));
    OK(cuMemFreeAsync(p, 0));
}

static void pairs(handle pool, handle stream)
{
    size_t free_bytes, total_bytes;
    for (int size = 0; size < COUNT; ++size) {
        for (int n = 0; n < PAIRS; ++n) ordered(pool, stream, SIZES[size]);
        for (int n = 0; n < PAIRS; ++n) ordered(pool, 0, SIZES[size]);
        for (int n = 0; n < PAIRS; ++n) in_threads_stream(pool, SIZES[size]);
        for (int n = 0; n < PAIRS; ++n) plain(SIZES[size]);
        for (int n = 0; n < PAIRS; ++n) give(take(SIZES[size]));
        for (int n = 0; n < PAIRS; ++n) through_runtime(SIZES[size]);
        OK(cuMemGetInfo_v2(&free_bytes, &total_bytes));
    }
}

/* Blocks of any size, freed in any order; one of two streams waits for the other. */
static void among_others(handle stream, uint64_t seed)
{
    static __thread ptr live[LIVE];
    handle behind, event;
    OK(cuStreamCreate(&behind, 1));
    OK(cuEventCreate(&event, 2));
    for (int n = 0; n < LIVE; ++n) OK(cuMemAllocAsync(&live[n], SIZES[n % 4], stream));
    for (int n = 0; n < 10 * PAIRS; ++n) {
        ptr *block = &live[random_bits(&seed) % LIVE];
        size_t bytes = 1 + random_bits(&seed) % (n % 8 ? 64 * KiB : 2 * MiB);
        handle turn = n / 64 % 2 ? behind : stream;
        if (n % 64 == 0) {
            OK(cuEventRecord(event, turn == stream ? behind : stream));
            OK(cuStreamWaitEvent(turn, event, 0));
        }
        OK(cuMemFreeAsync(*block, turn));
        OK(cuMemAllocAsync(block, bytes, turn));
    }
    for (int n = 0; n < LIVE; ++n) OK(cuMemFreeAsync(live[n], stream));
    OK(cuEventDestroy_v2(event));
    OK(cuStreamSynchronize(stream));
    OK(cuStreamSynchronize(behind));
    OK(cuStreamDestroy_v2(behind));
}

static void *in_thread(void *number)
{
    handle stream, pool;
    OK(cuCtxSetCurrent(primary));
    OK(cuStreamCreate(&stream, 1));
    OK(cuDeviceGetDefaultMemPool(&pool, 0));
    pairs(pool, stream);
    among_others(stream, (uint64_t)(long)number);
    OK(cuStreamDestroy_v2(stream));
    return 0;
}

int main(int argc, char **argv)
{
    pthread_t threads[THREADS];
    if (argc != 2) return 2;
    OK(cuInit(0));
    OK(cuDevicePrimaryCtxRetain(&primary, 0));
    OK(cuCtxSetCurrent(primary));
    runtime_begin();
    train(atol(argv[1]));
    in_thread(0);
    for (long n = 0; n < THREADS; ++n)
        if (pthread_create(&threads[n], 0, in_thread, (void *)(n + 1))) return 4;
    for (int n = 0; n < THREADS; ++n) pthread_join(threads[n], 0);
    return 0;
}
