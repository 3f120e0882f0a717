/* One thread uses the driver in a library's constructor, with the loader's lock; another uses it at the same time. Each
   round is a process, since a first call is the first only once. */
#define _GNU_SOURCE
#include "driver.h"
#include <dlfcn.h>
#include <pthread.h>
#include <sys/wait.h>

static pthread_barrier_t meeting, ready;
static unsigned head_start_us;
static int by_pointer, growing;

static void *found(const char *name)
{
    void *address = 0;
    OK(cuGetProcAddress_v2(name, &address, 12050, 0, 0));
    return address;
}

static void use(void)
{
    handle own;
    ptr p;
    if (growing) {
        /* More than the pool has: one of the two makes it grow, and the other waits for that. */
        OK(cuMemAlloc_v2(&p, 64 << 20));
        return;
    }
    OK(cuInit(0));
    OK(cuDevicePrimaryCtxRetain(&own, 0));
    OK(cuCtxSetCurrent(own));
    if (by_pointer) {
        int (*take)(ptr *, size_t) = found("cuMemAlloc"), (*give)(ptr) = found("cuMemFree");
        OK(take(&p, 1000));
        OK(give(p));
    } else {
        OK(cuMemAlloc_v2(&p, 1000));
        OK(cuMemFree_v2(p));
    }
    OK(cuMemAllocAsync(&p, 1 << 21, 0));
    OK(cuMemFreeAsync(p, 0));
}

/* Called by the library's constructor. */
void while_loading(void)
{
    pthread_barrier_wait(&meeting);
    usleep(head_start_us);
    use();
}

static void *meanwhile(void *nothing)
{
    handle own;
    if (growing) {
        OK(cuInit(0));
        OK(cuDevicePrimaryCtxRetain(&own, 0));
        OK(cuCtxSetCurrent(own));
        pthread_barrier_wait(&ready);
    }
    pthread_barrier_wait(&meeting);
    use();
    return nothing;
}

/* How much the process has done before. */
static void prepare(int stage)
{
    handle own;
    ptr p;
    if (stage > 0) OK(cuInit(0));
    if (stage == 4) {
        /* All functions up to the first context are bound, so a thread takes locks before it ever waits for the loader. */
        OK(cuDevicePrimaryCtxRetain(&own, 0));
        OK(cuDevicePrimaryCtxRelease_v2(0));
        return;
    }
    if (stage > 1) {
        OK(cuDevicePrimaryCtxRetain(&own, 0));
        OK(cuCtxSetCurrent(own));
    }
    if (stage > 2) {
        OK(cuMemAlloc_v2(&p, 1000));
        OK(cuMemFree_v2(p));
    }
}

int main(int argc, char **argv)
{
    int failed = 0, rounds = argc > 2 ? atoi(argv[2]) : 1;
    for (int round = 0; round < rounds; ++round) {
        pid_t child = fork();
        if (!child) {
            pthread_t other;
            alarm(20);
            by_pointer = round & 1;
            /* The other thread comes to wait for the loader, or has begun, or is about as far. */
            head_start_us = round < 12 ? 50000 : (round * 7919) % 3000;
            /* In the last stage both threads have contexts, and the first allocation of the other one grows the pool. */
            growing = round / 2 % 6 == 5;
            prepare(round / 2 % 6);
            pthread_barrier_init(&meeting, 0, 2);
            pthread_barrier_init(&ready, 0, 2);
            pthread_create(&other, 0, meanwhile, 0);
            if (growing) pthread_barrier_wait(&ready);
            void *library = dlopen(argv[1], RTLD_NOW);
            if (!library) _exit(4);
            pthread_join(other, 0);
            _exit(0);
        }
        int status = 0;
        waitpid(child, &status, 0);
        if (status) printf("round %d: %s %d\n", round, WIFSIGNALED(status) ? "signal" : "code",
                           WIFSIGNALED(status) ? WTERMSIG(status) : WEXITSTATUS(status));
        failed += status != 0;
    }
    printf("%d failed\n", failed);
    return failed != 0;
}
