/* Memory that goes from stream to stream while work on it is still queued. */
#define _GNU_SOURCE
#include "driver.h"
#include <dlfcn.h>
#include <pthread.h>
#include <stdatomic.h>

#define MiB (1ull << 20)
enum { WORDS = 100000, BYTES = WORDS * 4 };

/* Work of a stream that takes a while. */
static void delay(void *unused)
{
    (void)unused;
    usleep(20000);
}

static ptr counter;

static void counting(void)
{
    OK(cuMemAlloc_v2(&counter, 4));
    OK(cuMemsetD32_v2(counter, 0, 1));
    OK(cuCtxSynchronize());
}

static void counted(void)
{
    unsigned wrong;
    OK(cuCtxSynchronize());
    OK(cuMemcpyDtoH_v2(&wrong, counter, 4));
    printf("wrong %u\n", wrong);
}

static int alloc_in(int per_thread, ptr *p, handle stream)
{
    return per_thread ? cuMemAllocAsync_ptsz(p, BYTES, stream) : cuMemAllocAsync(p, BYTES, stream);
}

static int free_in(int per_thread, ptr p, handle stream)
{
    return per_thread ? cuMemFreeAsync_ptsz(p, stream) : cuMemFreeAsync(p, stream);
}

static void fill_in(int per_thread, handle stream, ptr p, unsigned value)
{
    unsigned words = WORDS;
    void *arguments[] = {&p, &words, &value};
    OK(per_thread ? cuLaunchKernel_ptsz(fill_kernel, 1, 1, 1, 64, 1, 1, 0, stream, arguments, 0)
                  : cuLaunchKernel(fill_kernel, 1, 1, 1, 64, 1, 1, 0, stream, arguments, 0));
}

static void differ_in(int per_thread, handle stream, ptr p, unsigned value)
{
    unsigned words = WORDS;
    void *arguments[] = {&p, &words, &value, &counter};
    OK(per_thread ? cuLaunchKernel_ptsz(differ_kernel, 1, 1, 1, 64, 1, 1, 0, stream, arguments, 0)
                  : cuLaunchKernel(differ_kernel, 1, 1, 1, 64, 1, 1, 0, stream, arguments, 0));
}

/* A kernel that comes late reads memory that is freed meanwhile and allocated again: in this stream, in another, and
   in none. */
static void late_reader(handle stream, int per_thread)
{
    begin();
    counting();
    handle other;
    OK(cuStreamCreate(&other, 1));
    int again = 0;
    for (int round = 0; round < 6; ++round) {
        ptr p, q, r, s;
        int ordered = round % 2;
        OK(ordered ? alloc_in(per_thread, &p, stream) : cuMemAlloc_v2(&p, BYTES));
        fill_in(per_thread, stream, p, round);
        OK(per_thread ? cuLaunchHostFunc_ptsz(stream, delay, 0) : cuLaunchHostFunc(stream, delay, 0));
        differ_in(per_thread, stream, p, round);
        OK(round % 3 ? free_in(per_thread, p, stream) : cuMemFree_v2(p));
        OK(cuMemAllocAsync(&q, BYTES, other));
        fill(other, q, WORDS, 100 + round);
        OK(cuMemAlloc_v2(&r, BYTES));
        fill(other, r, WORDS, 200 + round);
        OK(alloc_in(per_thread, &s, stream));
        fill_in(per_thread, stream, s, 300 + round);
        again += s == p;
        differ(other, q, WORDS, 100 + round, counter);
        differ(other, r, WORDS, 200 + round, counter);
        differ_in(per_thread, stream, s, 300 + round);
        OK(cuMemFreeAsync(q, other));
        OK(cuMemFreeAsync(r, other));
        OK(free_in(per_thread, s, stream));
    }
    counted();
    printf("the stream's own block again: %s\n", again ? "yes" : "no");
    mark("end");
}

static void legacy(void) { late_reader(0, 0); }
static void legacy_by_name(void) { late_reader((handle)LEGACY, 0); }
static void per_thread(void) { late_reader((handle)PER_THREAD, 0); }
static void per_thread_null(void) { late_reader(0, 1); }

static void created(unsigned flags, int priority)
{
    begin();
    handle stream;
    OK(cuStreamCreateWithPriority(&stream, flags, priority));
    counting();
    handle other;
    OK(cuStreamCreate(&other, flags));
    for (int round = 0; round < 6; ++round) {
        ptr p, q;
        OK(cuMemAllocAsync(&p, BYTES, stream));
        fill(stream, p, WORDS, round);
        OK(cuLaunchHostFunc(stream, delay, 0));
        differ(stream, p, WORDS, round, counter);
        OK(round % 2 ? cuMemFreeAsync(p, stream) : cuMemFree_v2(p));
        OK(cuMemAllocAsync(&q, BYTES, other));
        fill(other, q, WORDS, 100 + round);
        differ(other, q, WORDS, 100 + round, counter);
        OK(round % 2 ? cuMemFreeAsync(q, other) : cuMemFree_v2(q));
    }
    counted();
    mark("end");
}

static void blocking(void) { created(0, 0); }
static void non_blocking(void) { created(1, 0); }
static void high_priority(void) { created(1, -5); }

/* Memory freed in one stream behind an event that it waits for, used again in both. */
static void across_streams(void)
{
    begin();
    counting();
    handle streams[4], event;
    for (int n = 0; n < 4; ++n) OK(cuStreamCreate(&streams[n], 1));
    OK(cuEventCreate(&event, 2));
    for (int round = 0; round < 60; ++round) {
        handle a = streams[round % 4], b = streams[(round + 1) % 4];
        ptr p;
        OK(cuMemAllocAsync(&p, BYTES, a));
        fill(a, p, WORDS, round);
        if (round % 10 == 0) OK(cuLaunchHostFunc(a, delay, 0));
        OK(cuEventRecord(event, a));
        OK(cuStreamWaitEvent(b, event, 0));
        differ(b, p, WORDS, round, counter);
        OK(cuMemFreeAsync(p, b));
    }
    counted();
    mark("end");
}

/* Streams that are destroyed with work in them; the next may have the same handle. */
static void recycled(void)
{
    begin();
    counting();
    handle seen = 0;
    int same = 0;
    for (int round = 0; round < 40; ++round) {
        handle stream;
        OK(cuStreamCreate(&stream, 1));
        same += stream == seen;
        seen = stream;
        ptr p, q;
        OK(cuMemAllocAsync(&p, BYTES, stream));
        OK(cuMemAllocAsync(&q, 1000, stream));
        fill(stream, p, WORDS, round);
        if (round % 8 == 0) OK(cuLaunchHostFunc(stream, delay, 0));
        differ(stream, p, WORDS, round, counter);
        OK(cuMemFreeAsync(p, stream));
        OK(cuMemFreeAsync(q, stream));
        OK(cuStreamDestroy_v2(stream));
    }
    counted();
    mark("end");
}

/* Contexts end while others use what was allocated in their streams, and what was freed there is allocated again. */
static void contexts(void)
{
    begin();
    counting();
    handle own, read;
    OK(cuStreamCreate(&own, 1));
    OK(cuEventCreate(&read, 2));
    for (int round = 0; round < 12; ++round) {
        handle first, module_there, fill_there, stream, filled;
        unsigned words = WORDS, value = round, kept_value = 50 + round;
        ptr p, kept, q, r;
        void *of_p[] = {&p, &words, &value}, *of_kept[] = {&kept, &words, &kept_value};
        OK(cuCtxCreate_v2(&first, 0, 0));
        OK(cuModuleLoadData(&module_there, PTX));
        OK(cuModuleGetFunction(&fill_there, module_there, "fill"));
        OK(cuStreamCreate(&stream, 1));
        OK(cuEventCreate(&filled, 2));
        OK(alloc_in(0, &p, stream));
        OK(alloc_in(0, &kept, stream));
        OK(cuLaunchHostFunc(stream, delay, 0));
        OK(cuLaunchKernel(fill_there, 1, 1, 1, 64, 1, 1, 0, stream, of_p, 0));
        OK(cuLaunchKernel(fill_there, 1, 1, 1, 64, 1, 1, 0, stream, of_kept, 0));
        OK(cuEventRecord(filled, stream));
        OK(cuStreamWaitEvent(own, filled, 0));
        OK(cuCtxSetCurrent(context));
        OK(cuLaunchHostFunc(own, delay, 0));
        differ(own, p, WORDS, value, counter);
        OK(cuEventRecord(read, own));
        OK(cuStreamWaitEvent(stream, read, 0));
        OK(cuMemFreeAsync(p, stream));
        if (round % 3 == 0) differ(own, kept, WORDS, kept_value, counter);
        OK(cuCtxDestroy_v2(first));
        OK(cuMemAlloc_v2(&r, BYTES));
        fill(0, r, WORDS, 200 + round);
        OK(alloc_in(0, &q, own));
        fill(own, q, WORDS, 100 + round);
        differ(own, kept, WORDS, kept_value, counter);
        differ(own, q, WORDS, 100 + round, counter);
        differ(0, r, WORDS, 200 + round, counter);
        OK(cuMemFreeAsync(kept, own));
        OK(round % 2 ? cuMemFreeAsync(q, own) : cuMemFree_v2(q));
        OK(cuMemFree_v2(r));
    }
    counted();
    mark("end");
}

static void *with_own_stream(void *number)
{
    OK(cuCtxSetCurrent(context));
    for (int round = 0; round < 10; ++round) {
        ptr p;
        unsigned value = (unsigned)(uintptr_t)number * 100 + round;
        OK(cuMemAllocAsync_ptsz(&p, BYTES, 0));
        fill_in(1, 0, p, value);
        if (round == 5) OK(cuLaunchHostFunc_ptsz(0, delay, 0));
        differ_in(1, 0, p, value);
        OK(cuMemFreeAsync_ptsz(p, 0));
    }
    return 0;
}

/* The default streams of threads, some of which end with work in theirs. */
static void threads(void)
{
    begin();
    counting();
    for (uintptr_t wave = 0; wave < 4; ++wave) {
        pthread_t all[6];
        for (uintptr_t n = 0; n < 6; ++n) pthread_create(&all[n], 0, with_own_stream, (void *)(wave * 6 + n));
        for (int n = 0; n < 6; ++n) pthread_join(all[n], 0);
    }
    counted();
    mark("end");
}

static void *few_bytes(void *unused)
{
    (void)unused;
    ptr p;
    OK(cuCtxSetCurrent(context));
    OK(cuMemAllocAsync(&p, 1000, (handle)PER_THREAD));
    OK(cuMemFreeAsync(p, (handle)PER_THREAD));
    OK(cuMemAlloc_v2(&p, 1000));
    OK(cuMemFree_v2(p));
    return 0;
}

static void ten_thousand_threads(void)
{
    begin();
    enum { WAVE = 200 };
    static pthread_t all[WAVE];
    for (int made = 0; made < 10000; made += WAVE) {
        for (int n = 0; n < WAVE; ++n)
            if (pthread_create(&all[n], 0, few_bytes, 0)) must(1, "pthread_create", __LINE__);
        for (int n = 0; n < WAVE; ++n) pthread_join(all[n], 0);
    }
    OK(cuCtxSynchronize());
    mark("end");
}

/* ---- captures ---- */

static handle capturing_other;
static int capture_mode;
static atomic_int beside_failed;

/* What other threads do while one captures. */
static void *beside(void *unused)
{
    (void)unused;
    int relaxed = 2;
    OK(cuCtxSetCurrent(context));
    OK(cuThreadExchangeStreamCaptureMode(&relaxed));
    for (int round = 0; round < 20; ++round) {
        ptr p, q;
        size_t bytes = round == 10 ? 16 * MiB : 50000;
        int code = cuMemAllocAsync(&p, bytes, capturing_other);
        if (!code) {
            fill(capturing_other, p, 1000, round);
            differ(capturing_other, p, 1000, round, counter);
            code = cuMemFreeAsync(p, capturing_other);
        }
        if (!code) code = cuMemAlloc_v2(&q, bytes);
        if (!code) code = cuMemFree_v2(q);
        if (code) beside_failed = code;
    }
    return 0;
}

static void captured(int mode)
{
    begin();
    counting();
    handle stream, graph, program;
    ptr p, inner;
    OK(cuStreamCreate(&stream, 1));
    OK(cuStreamCreate(&capturing_other, 1));
    OK(cuMemAlloc_v2(&p, BYTES));
    /* Memory that waits for marks when the capture begins. */
    ptr waiting[10];
    for (int n = 0; n < 10; ++n) {
        OK(cuMemAllocAsync(&waiting[n], BYTES, stream));
        fill(stream, waiting[n], WORDS, n);
    }
    for (int n = 0; n < 10; ++n) OK(cuMemFreeAsync(waiting[n], n % 2 ? stream : 0));
    mark("before");
    OK(cuStreamBeginCapture_v2(stream, mode));
    fill(stream, p, WORDS, 5);
    pthread_t thread;
    pthread_create(&thread, 0, beside, 0);
    pthread_join(thread, 0);
    OK(cuMemAllocAsync(&inner, BYTES, stream));
    fill(stream, inner, WORDS, 6);
    differ(stream, inner, WORDS, 6, counter);
    OK(cuMemFreeAsync(inner, stream));
    differ(stream, p, WORDS, 5, counter);
    OK(cuStreamEndCapture(stream, &graph));
    printf("beside: %d\n", beside_failed);
    OK(cuGraphInstantiateWithFlags(&program, graph, 0));
    for (int n = 0; n < 3; ++n) OK(cuGraphLaunch(program, stream));
    OK(cuStreamSynchronize(stream));
    counted();
    /* The pool goes on as before. */
    ptr after;
    OK(cuMemAllocAsync(&after, BYTES, stream));
    fill(stream, after, WORDS, 7);
    OK(cuMemFreeAsync(after, stream));
    OK(cuGraphExecDestroy(program));
    OK(cuGraphDestroy(graph));
    OK(cuMemFree_v2(p));
    counted();
    OK(cuMemFree_v2(counter));
    OK(cuCtxSynchronize());
    mark("end");
}

static void capture_global(void) { captured(0); }
static void capture_thread_local(void) { captured(1); }
static void capture_relaxed(void) { captured(2); }

/* A graph over memory of the pool, run again and again while the pool changes around it. */
static void replay(void)
{
    begin();
    counting();
    handle stream, graph, program, pool;
    ptr p;
    OK(cuDeviceGetDefaultMemPool(&pool, 0));
    OK(cuStreamCreate(&stream, 1));
    OK(cuMemAllocAsync(&p, BYTES, stream));
    OK(cuStreamBeginCapture_v2(stream, 0));
    fill(stream, p, WORDS, 9);
    differ(stream, p, WORDS, 9, counter);
    OK(cuStreamEndCapture(stream, &graph));
    OK(cuGraphInstantiateWithFlags(&program, graph, 0));
    uint64_t state = 1;
    for (int round = 0; round < 20; ++round) {
        ptr some[20];
        for (int n = 0; n < 20; ++n) {
            unsigned words = random_bits(&state) % 300000 + 1;
            OK(cuMemAllocAsync(&some[n], words * 4, stream));
            fill(stream, some[n], words, n);
        }
        OK(cuGraphLaunch(program, stream));
        for (int n = 0; n < 20; ++n) OK(n % 2 ? cuMemFreeAsync(some[n], stream) : cuMemFree_v2(some[n]));
        if (round % 5 == 0) OK(cuMemPoolTrimTo(pool, 0));
    }
    counted();
    mark("end");
}

/* Memory that a graph allocates and does not free. */
static void auto_free(void)
{
    begin();
    counting();
    handle stream, graph, program;
    ptr inner;
    OK(cuStreamCreate(&stream, 1));
    OK(cuStreamBeginCapture_v2(stream, 2));
    OK(cuMemAllocAsync(&inner, BYTES, stream));
    fill(stream, inner, WORDS, 4);
    differ(stream, inner, WORDS, 4, counter);
    OK(cuStreamEndCapture(stream, &graph));
    OK(cuGraphInstantiateWithFlags(&program, graph, 1));
    for (int n = 0; n < 4; ++n) OK(cuGraphLaunch(program, stream));
    OK(cuStreamSynchronize(stream));
    SAY(cuMemFreeAsync(inner, stream));
    OK(cuStreamSynchronize(stream));
    OK(cuGraphLaunch(program, stream));
    OK(cuStreamSynchronize(stream));
    SAY(cuMemFree_v2(inner));
    counted();
    OK(cuGraphExecDestroy(program));
    OK(cuGraphDestroy(graph));
    OK(cuDeviceGraphMemTrim(0));
    mark("end");
}

/* ---- broken rules ---- */

/* A rule of reuse that is to be broken, by a library that was built so; the checks have to see it. */
static const char *rule;

static void break_rule(void)
{
    if (!rule) return;
    int (*fercuda_break_rule)(unsigned, unsigned) = (int (*)(unsigned, unsigned))dlsym(RTLD_DEFAULT, "fercuda_break_rule");
    if (!fercuda_break_rule || fercuda_break_rule(0, atoi(rule))) must(1, "fercuda_break_rule", __LINE__);
}

/* There is memory for one block. One stream waits for what another does with it, has it, and gives it back; then the
   other has more work to do with it, for which nobody has waited. */
static void lent(void)
{
    begin();
    counting();
    break_rule();
    handle lender, other;
    OK(cuStreamCreate(&lender, 1));
    OK(cuStreamCreate(&other, 1));
    for (int round = 0; round < 10; ++round)
        for (int n = 0; n < 4; ++n) {
            handle stream = n % 2 ? other : lender;
            ptr p;
            OK(cuMemAllocAsync(&p, 12 * MiB, stream));
            fill(stream, p, WORDS, round);
            OK(cuLaunchHostFunc(stream, delay, 0));
            differ(stream, p, WORDS, round, counter);
            OK(cuMemFreeAsync(p, stream));
        }
    counted();
    mark("end");
}

/* ---- random programs ---- */

enum { STREAMS = 5 };
typedef struct { ptr address; unsigned words, value; int stream; } block;

/* random SEED STEPS [RULE] */
static int random_program(uint64_t seed, int steps)
{
    begin();
    counting();
    break_rule();
    handle streams[STREAMS], event;
    for (int n = 0; n < STREAMS - 1; ++n) OK(cuStreamCreate(&streams[n], 1));
    streams[STREAMS - 1] = (handle)PER_THREAD;
    OK(cuEventCreate(&event, 2));
    static block live[100];
    int count = 0, made = 0, refused = 0;
    for (int step = 0; step < steps; ++step) {
        uint64_t bits = random_bits(&seed);
        int stream = (bits >> 8) % STREAMS;
        if ((bits % 2 == 0 || !count) && count < 100) {
            block it = {0, (bits >> 16) % (bits % 32 == 0 ? 300000 : 4000) + 1, step, stream};
            int code = bits % 64 < 40 ? cuMemAllocAsync(&it.address, it.words * 4, streams[stream]) : cuMemAlloc_v2(&it.address, it.words * 4);
            if (code) {
                ++refused;
                continue;
            }
            ++made;
            fill(streams[stream], it.address, it.words, it.value);
            live[count++] = it;
        } else {
            int at = (bits >> 16) % count;
            block it = live[at];
            live[at] = live[--count];
            differ(streams[it.stream], it.address, it.words, it.value, counter);
            if (bits % 8 == 1)
                OK(cuMemFree_v2(it.address));
            else if (bits % 8 == 3 && stream != it.stream) {
                OK(cuEventRecord(event, streams[it.stream]));
                OK(cuStreamWaitEvent(streams[stream], event, 0));
                OK(cuMemFreeAsync(it.address, streams[stream]));
            } else
                OK(cuMemFreeAsync(it.address, streams[it.stream]));
        }
        if (bits % 700 == 1) {
            handle old = streams[0];
            for (int n = 0; n < count; ++n)
                if (live[n].stream == 0) live[n].stream = 1;
            OK(cuEventRecord(event, old));
            OK(cuStreamWaitEvent(streams[1], event, 0));
            OK(cuStreamDestroy_v2(old));
            OK(cuStreamCreate(&streams[0], 1));
        }
    }
    counted();
    printf("made %d, refused %d\n", made, refused);
    for (int n = 0; n < count; ++n) OK(cuMemFree_v2(live[n].address));
    OK(cuMemFree_v2(counter));
    OK(cuCtxDestroy_v2(context));
    mark("end");
    return 0;
}

int main(int argc, char **argv)
{
    static const test_case cases[] = {
        {"legacy", legacy}, {"legacy_by_name", legacy_by_name}, {"per_thread", per_thread},
        {"per_thread_null", per_thread_null}, {"blocking", blocking}, {"non_blocking", non_blocking},
        {"high_priority", high_priority}, {"across_streams", across_streams}, {"recycled", recycled}, {"contexts", contexts},
        {"threads", threads}, {"ten_thousand_threads", ten_thousand_threads}, {"capture_global", capture_global},
        {"capture_thread_local", capture_thread_local}, {"capture_relaxed", capture_relaxed}, {"replay", replay},
        {"auto_free", auto_free}, {"lent", lent}, {0, 0}};
    setvbuf(stdout, 0, _IOLBF, 0);
    if (argc >= 4 && !strcmp(argv[1], "random")) {
        rule = argc > 4 ? argv[4] : 0;
        return random_program(strtoull(argv[2], 0, 0), atoi(argv[3]));
    }
    rule = argc > 2 ? argv[2] : 0;
    return run_case(cases, argc, argv);
}
