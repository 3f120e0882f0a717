/* Calls functions of CUDA's runtime library, which the hook has too, and says which of the calls reached the library.

   THROUGH: by pointers from the library itself, which the hook does not stand before.
   ALONE: the program is linked to no runtime library, and loads what is. */
#define _GNU_SOURCE
#include "driver.h"
#include <dlfcn.h>
#include <pthread.h>
#include <sys/wait.h>

#define MiB ((size_t)1 << 20)
enum { PAIRS = 50 };

static char **libraries;

#ifdef ALONE
static int calls_of_1(void) { return 0; }
static int cudaMallocAsync(ptr *p, size_t bytes, handle stream) { return 999; }
static int cudaFreeAsync(ptr p, handle stream) { return 999; }
static int cudaGetDevice(int *device) { return 999; }
static int cudaSetDevice(int device) { return 999; }
#else
int calls_of_1(void);
int cudaGetDevice(int *);
int cudaSetDevice(int);
#ifdef THROUGH
static int (*malloc_through)(ptr *, size_t, handle), (*free_through)(ptr, handle);
static void find(void)
{
    void *library = dlopen(THROUGH, RTLD_NOW | RTLD_NOLOAD);
    malloc_through = (int (*)(ptr *, size_t, handle))dlsym(library, "cudaMallocAsync");
    free_through = (int (*)(ptr, handle))dlsym(library, "cudaFreeAsync");
}
#define cudaMallocAsync malloc_through
#define cudaFreeAsync free_through
#else
static void find(void) {}
int cudaMallocAsync(ptr *, size_t, handle);
int cudaFreeAsync(ptr, handle);
#endif
#endif

/* How many calls have come to the library since this was asked last. */
static void reached(const char *what)
{
    static int before;
    int now = calls_of_1();
    printf("  %s: reached %d\n", what, now - before);
    before = now;
}

#define CALL(call) do { printf("%s = %d\n", #call, (call)); reached("it"); } while (0)

/* Which device is current, says the library, or the hook for it. */
static void device(const char *what)
{
    int is = -1, code = cudaGetDevice(&is);
    printf("%s: %d, device %d\n", what, code, is);
    reached(what);
}

/* What a block holds that a stream has written. */
static void written(handle stream, ptr p, unsigned value)
{
    unsigned word = 0;
    OK(cuMemsetD32Async(p, value, 1024, stream));
    OK(cuStreamSynchronize(stream));
    OK(cuMemcpyDtoH_v2(&word, p + 4092, 4));
    if (word != value) printf("holds %u, not %u\n", word, value);
}

static void pairs_in(const char *name, handle stream)
{
    ptr p, q;
    for (unsigned n = 0; n < PAIRS; ++n) {
        OK(cudaMallocAsync(&p, 4096 << n % 12, stream));
        OK(cudaMallocAsync(&q, 5000, stream));
        if (n % 10 == 0) {
            written(stream, p, n);
            written(stream, q, n);
        }
        OK(cudaFreeAsync(p, stream));
        OK(cudaFreeAsync(q, stream));
    }
    reached(name);
}

/* A thread's first call is the library's; all others of it are not. */
static void *in_thread(void *kept)
{
    ptr p, q;
    OK(cuCtxSetCurrent(context));
    OK(cudaMallocAsync(&p, MiB, 0));
    reached("first");
    OK(cudaMallocAsync(&q, 2 * MiB, 0));
    reached("second");
    pairs_in("pairs", 0);
    pairs_in("pairs in the thread's own", (handle)PER_THREAD);
    if (kept) return 0;
    OK(cudaFreeAsync(p, 0));
    OK(cudaFreeAsync(q, 0));
    reached("frees");
    return 0;
}

static void thread(void *(*work)(void *), void *argument)
{
    pthread_t thread;
    if (pthread_create(&thread, 0, work, argument)) _exit(5);
    pthread_join(thread, 0);
}

static void pairs(void)
{
    handle blocking, other;
    ptr p;
    begin();
    OK(cuStreamCreate(&blocking, 0));
    OK(cuStreamCreate(&other, 1));
    pairs_in("null", 0);
    pairs_in("legacy", (handle)LEGACY);
    pairs_in("per thread", (handle)PER_THREAD);
    pairs_in("blocking", blocking);
    pairs_in("non-blocking", other);
    thread(in_thread, (void *)1);
    thread(in_thread, 0);
    /* Memory of no stream, and from one stream to another. */
    OK(cuMemAlloc_v2(&p, MiB));
    OK(cudaFreeAsync(p, other));
    OK(cudaMallocAsync(&p, MiB, blocking));
    OK(cuStreamSynchronize(blocking));
    OK(cudaFreeAsync(p, other));
    OK(cudaMallocAsync(&p, MiB, 0));
    OK(cuMemFree_v2(p));
    reached("crossed");
    mark("end");
}

static void reaching(void)
{
    ptr p;
    begin();
    OK(cudaMallocAsync(&p, MiB, 0));
    OK(cudaFreeAsync(p, 0));
    reached("a pair");
    CALL(cudaMallocAsync(&p, 0, 0));
    CALL(cudaMallocAsync(0, MiB, 0));
    mark("before");
    CALL(cudaMallocAsync(&p, (size_t)1 << 45, 0));
    mark("after");
    CALL(cudaFreeAsync(0, 0));
    CALL(cudaFreeAsync(0xdead0000, 0));
    OK(cudaMallocAsync(&p, MiB, 0));
    reached("a pair");
    CALL(cudaFreeAsync(p + 512, 0));
    SAY(cudaFreeAsync(p, 0));
    reached("the block itself");
    CALL(cudaFreeAsync(p, 0));
    OK(cuCtxSynchronize());
}

static void capture(const char *name, int mode)
{
    handle stream, beside, graph = 0;
    ptr p = 0, q = 0, kept;
    OK(cuStreamCreate(&stream, 1));
    OK(cuStreamCreate(&beside, 1));
    OK(cudaMallocAsync(&kept, MiB, beside));
    printf("%s\n", name);
    reached("before");
    OK(cuStreamBeginCapture_v2(stream, mode));
    SAY(cudaMallocAsync(&p, MiB, stream));
    reached("captured");
    SAY(cudaFreeAsync(p, stream));
    reached("captured");
    /* What others may do beside any other capture is shown elsewhere. */
    if (mode == 2) {
        SAY(cudaMallocAsync(&q, MiB, beside));
        reached("beside");
        SAY(cudaFreeAsync(q, beside));
        reached("beside");
    }
    SAY(cuStreamEndCapture(stream, &graph));
    OK(cudaFreeAsync(kept, beside));
    reached("after");
    if (graph) OK(cuGraphDestroy(graph));
}

static void captures(void)
{
    begin();
    capture("global", 0);
    capture("thread-local", 1);
    capture("relaxed", 2);
}

static void *after_its_end(void *nothing)
{
    handle other;
    ptr p, kept;
    OK(cuCtxCreate_v2(&other, 0, 0));
    OK(cuCtxSetCurrent(context));
    OK(cudaMallocAsync(&kept, MiB, 0));
    OK(cudaMallocAsync(&p, MiB, 0));
    OK(cudaFreeAsync(p, 0));
    reached("before");
    OK(cuCtxDestroy_v2(context));
    device("of one that has ended");
    SAY(cudaMallocAsync(&p, MiB, 0));
    reached("ended");
    SAY(cudaFreeAsync(kept, 0));
    reached("again");
    /* One that has ended may be made current once more. */
    OK(cuCtxSetCurrent(other));
    OK(cuCtxDestroy_v2(other));
    cuCtxSetCurrent(other);
    SAY(cudaMallocAsync(&p, MiB, 0));
    reached("elsewhere");
    return 0;
}

static void ended(void)
{
    begin();
    thread(after_its_end, 0);
}

static void *without(void *stream)
{
    ptr p, q;
    handle now = 0;
    OK(cuCtxSetCurrent(context));
    OK(cudaMallocAsync(&p, MiB, stream));
    OK(cudaFreeAsync(p, stream));
    reached("before");
    for (int way = 0; way < 3; ++way) {
        OK(cudaMallocAsync(&p, MiB, stream));
        reached("with a context");
        OK(cuCtxSetCurrent(0));
        if (way == 0) SAY(cudaMallocAsync(&q, MiB, stream));
        if (way == 1) SAY(cudaFreeAsync(p, stream));
        if (way == 2) SAY(cudaMallocAsync(&q, MiB, 0));
        reached("without");
        OK(cuCtxGetCurrent(&now));
        printf("a context is current: %d\n", now != 0);
        OK(cuCtxSetCurrent(context));
        reached("no call");
    }
    return 0;
}

static void without_context(void)
{
    handle stream;
    begin();
    OK(cuStreamCreate(&stream, 1));
    thread(without, stream);
}

static void *devices_in_thread(void *of)
{
    ptr p;
    device("in a thread");
    OK(cuCtxSetCurrent(of));
    OK(cuMemAlloc_v2(&p, MiB));
    device("with a seat");
    device("again");
    OK(cuMemFree_v2(p));
    return 0;
}

static void devices(void)
{
    handle first, second, other, stream, graph;
    ptr p;
    begin();
    OK(cudaMallocAsync(&p, MiB, 0));
    reached("a block");
    device("the context that there is");
    for (int n = 0, is = 7; n < 100; ++n)
        if (cudaGetDevice(&is) || is) printf("not the first device\n");
    reached("a hundred more");
    CALL(cudaGetDevice(0));
    OK(cuStreamCreate(&stream, 1));
    OK(cuStreamBeginCapture_v2(stream, 0));
    device("while a stream captures");
    OK(cuStreamEndCapture(stream, &graph));
    thread(devices_in_thread, context);
    OK(cuCtxSetCurrent(0));
    device("none is current");
    OK(cudaSetDevice(0));
    OK(cuCtxGetCurrent(&first));
    device("the first, chosen");
    OK(cudaSetDevice(1));
    OK(cuCtxGetCurrent(&second));
    reached("chosen");
    device("the second, chosen");
    device("again");
    SAY(cudaSetDevice(-1));
    reached("none");
    device("one that is not there, chosen");
    thread(devices_in_thread, second);
    OK(cuCtxSetCurrent(first));
    device("the driver's call");
    OK(cuCtxPushCurrent_v2(second));
    device("pushed");
    OK(cuCtxPopCurrent_v2(&other));
    device("popped");
    OK(cuCtxCreate_v2(&other, 0, 1));
    device("one of its own");
    OK(cuCtxDestroy_v2(other));
    device("without it");
    OK(cuCtxDestroy_v2(context));
    OK(cuCtxSetCurrent(second));
    OK(cuDevicePrimaryCtxReset_v2(1));
    device("after a reset");
    OK(cudaSetDevice(0));
    reached("chosen");
    /* The only one now. */
    device("the first again");
    OK(cuCtxPushCurrent_v2(second));
    device("one that has ended, pushed");
    SAY(cudaMallocAsync(&p, MiB, 0));
    reached("no block");
    OK(cuCtxPopCurrent_v2(&other));
    device("without it");
    OK(cuCtxSetCurrent(second));
    device("one that has ended, set");
    SAY(cudaMallocAsync(&p, MiB, 0));
    reached("no block");
    OK(cuCtxSetCurrent(first));
    device("at last");
}

static void chosen(void)
{
    int of = -1;
    ptr p;
    begin();
    for (int n = 0; n < 6; ++n) {
        OK(cudaSetDevice(n % 2));
        device("chosen");
        device("again");
        OK(cudaMallocAsync(&p, MiB, 0));
        OK(cuPointerGetAttribute(&of, 9, p));
        printf("a block of device %d\n", of);
        device("after a block");
        OK(cudaFreeAsync(p, 0));
    }
    reached("all");
}

/* By now the thread has no context of ours any more. */
static void at_its_end(void *block)
{
    ptr p;
    CALL(cudaMallocAsync(&p, MiB, 0));
    CALL(cudaFreeAsync(p, 0));
    CALL(cudaFreeAsync((ptr)block, 0));
    device("at the thread's end");
}

static void *ending(void *nothing)
{
    pthread_key_t key;
    ptr p, q;
    pthread_key_create(&key, at_its_end);
    OK(cuCtxSetCurrent(context));
    OK(cudaMallocAsync(&p, MiB, 0));
    OK(cudaMallocAsync(&q, MiB, 0));
    OK(cudaFreeAsync(q, 0));
    reached("before");
    pthread_setspecific(key, (void *)p);
    return 0;
}

static void threads_end(void)
{
    begin();
    thread(ending, 0);
    mark("end");
}

static void forks(void)
{
    ptr p, q = 0;
    int status = 0;
    begin();
    OK(cudaMallocAsync(&p, MiB, 0));
    reached("parent");
    fflush(stdout);
    pid_t child = fork();
    if (!child) {
        alarm(20);
        CALL(cudaMallocAsync(&q, MiB, 0));
        CALL(cudaFreeAsync(p, 0));
        device("child");
        fflush(stdout);
        _exit(7);
    }
    waitpid(child, &status, 0);
    printf("child %d\n", WIFEXITED(status) ? WEXITSTATUS(status) : -1);
    OK(cudaFreeAsync(p, 0));
    reached("parent");
}

/* ---- libraries that are linked to one of their own ------------------------- */

typedef struct { void *library; int (*use)(int, size_t, int), (*give)(ptr), (*calls)(void); } user;

static user opened(const char *path, const char *calls)
{
    user it = {dlopen(path, RTLD_NOW | RTLD_LOCAL)};
    if (!it.library) {
        printf("cannot open: %s\n", dlerror());
        fflush(stdout);
        _exit(4);
    }
    it.use = (int (*)(int, size_t, int))dlsym(it.library, "use");
    it.give = (int (*)(ptr))dlsym(it.library, "give");
    it.calls = (int (*)(void))dlsym(it.library, calls);
    return it;
}

static void *several_in_thread(void *nothing)
{
    user one = opened(libraries[0], "calls_of_2"), two = opened(libraries[1], "calls_of_3");
    OK(cuCtxSetCurrent(context));
    int before_one = one.calls(), before_two = two.calls();
    OK(one.use(1, MiB, 1));
    OK(two.use(2, MiB, 1));
    printf("calls %d %d\n", one.calls() - before_one, two.calls() - before_two);
    return 0;
}

static void several(void)
{
    begin();
    user one = opened(libraries[0], "calls_of_2"), two = opened(libraries[1], "calls_of_3");
    ptr p;
    OK(one.use(10, MiB, 0));
    OK(two.use(10, MiB, 0));
    printf("calls %d %d\n", one.calls(), two.calls());
    for (int n = 0; n < 3; ++n) {
        printf("code %d %d\n", one.use(1, 0, 0), two.use(1, 0, 0));
        printf("code %d %d\n", one.give(0xdead0000), two.give(0xdead0000));
    }
    printf("calls %d %d\n", one.calls(), two.calls());
#ifndef ALONE
    printf("code %d\n", cudaMallocAsync(&p, 0, 0));
#endif
    thread(several_in_thread, 0);
    mark("end");
}

/* One is unloaded, and the other loaded where it was. */
static void in_turn(void)
{
    void *before = 0;
    int same = 0;
    begin();
    for (int n = 0; n < (libraries[1] ? 10 : 1); ++n) {
        user it = opened(libraries[n % 2], n % 2 ? "calls_of_3" : "calls_of_2");
        same += before == (void *)it.use;
        before = (void *)it.use;
        OK(it.use(5, MiB, 0));
        int code = it.use(1, 0, 0), again = it.use(1, 0, 0);
        printf("code %d %d, calls %d\n", code, again, it.calls());
        dlclose(it.library);
        if (dlopen(libraries[n % 2], RTLD_NOW | RTLD_NOLOAD)) printf("it is still there\n");
    }
    if (libraries[1]) printf("in another's place: %d\n", same);
}

static void none(void)
{
    begin();
    user it = opened(libraries[0], "use");
    printf("served: %d\n", it.use(5, MiB, 0));
    printf("not there: %d %d\n", it.use(1, 0, 0), it.give(0));
    char *error = dlerror();
    printf("error: %s\n", error ? error : "none");
}

int main(int argc, char **argv)
{
    static const test_case cases[] = {{"pairs", pairs},
                                      {"reaching", reaching},
                                      {"captures", captures},
                                      {"ended", ended},
                                      {"without_context", without_context},
                                      {"devices", devices},
                                      {"chosen", chosen},
                                      {"threads_end", threads_end},
                                      {"forks", forks},
                                      {"several", several},
                                      {"in_turn", in_turn},
                                      {"none", none},
                                      {0, 0}};
    libraries = argv + 2;
#ifndef ALONE
    find();
#endif
    return run_case(cases, argc, argv);
}
