/* A program over the driver, for `fercuda check -- PROGRAM`. Its words are executed in order. */
#define _GNU_SOURCE
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

typedef unsigned long long address;
int cuInit(unsigned);
int cuCtxCreate_v2(void **, unsigned, int);
int cuCtxSynchronize(void);
int cuModuleLoadData(void **, const void *);
int cuModuleGetFunction(void **, void *, const char *);
int cuMemAlloc_v2(address *, size_t);
int cuMemAllocPitch_v2(address *, size_t *, size_t, size_t, unsigned);
int cuMemAllocManaged(address *, size_t, unsigned);
int cuMemAllocAsync(address *, size_t, void *);
int cuMemHostAlloc(void **, size_t, unsigned);
int cuMemCreate(unsigned long long *, size_t, const void *, unsigned long long);
int cuMemFree_v2(address);
int cuMemFreeAsync(address, void *);
int cuMemFreeHost(void *);
int cuMemRelease(unsigned long long);
int cuCtxDestroy_v2(void *);
int cuCtxGetCurrent(void **);
int cuLaunchKernel(void *, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, void *, void **, void **);

static const char *ptx =
    ".version 8.0\n.target sm_90a\n.address_size 64\n"
    /* Writes each element, then, if `spin` is set, does not end. */
    ".visible .entry iota(.param .u64 p, .param .u32 spin)\n{\n"
    "  .reg .b64 %a, %o; .reg .b32 %i, %s; .reg .pred %q;\n"
    "  .loc 1 5 1\n"
    "  ld.param.u64 %a, [p]; ld.param.u32 %s, [spin];\n"
    "  mov.u32 %i, %tid.x; mul.wide.u32 %o, %i, 4; add.u64 %a, %a, %o;\n"
    "  .loc 1 7 1\n"
    "  st.global.u32 [%a], %i;\n"
    "  setp.ne.u32 %q, %s, 0;\n"
    "again: @%q bra again;\n"
    "  ret;\n}\n"
    ".visible .entry stop() { trap; ret; }\n"
    ".visible .entry foreign() { .reg .b64 %a; .reg .b32 %r; .reg .f32 %f<4>;\n"
    "  mov.u64 %a, 0; mov.u32 %r, 0;\n"
    "  tex.2dms.v4.f32.s32 {%f0, %f1, %f2, %f3}, [%a, {%r, %r, %r, %r}]; ret; }\n"
    ".file 1 \"kernels/iota.cu\"\n";

enum { ELEMENTS = 100 };
static int ready[2];
static void *module;
static address memory;

static void check(int code, const char *what)
{
    if (code) {
        printf("%s: %d\n", what, code);
        exit(3);
    }
}

static void start(void)
{
    void *context;
    if (module) return;
    check(cuInit(0), "cuInit");
    check(cuCtxCreate_v2(&context, 0, 0), "cuCtxCreate");
    check(cuModuleLoadData(&module, ptx), "cuModuleLoadData");
    check(cuMemAlloc_v2(&memory, ELEMENTS * 4), "cuMemAlloc");
}

struct all { address device[3], rows, managed, pool; void *host; unsigned long long handle; };

/* One place for the three blocks of cuMemAlloc. */
__attribute__((noinline)) void take_three(struct all *all)
{
    for (int i = 0; i < 3; i++) check(cuMemAlloc_v2(&all->device[i], 1000), "cuMemAlloc");
}

static void take_all(struct all *all)
{
    size_t pitch;
    /* Pinned memory of device 0: a kind, kinds of handles, a place, and flags that are not used. */
    struct { int kind, handles, place, device; void *metadata; unsigned char flags[8]; } what = {1, 0, 1, 0, 0, {0}};
    start();
    take_three(all);
    check(cuMemAllocPitch_v2(&all->rows, &pitch, 100, 4, 4), "cuMemAllocPitch");
    check(cuMemAllocManaged(&all->managed, 5000, 1), "cuMemAllocManaged");
    check(cuMemAllocAsync(&all->pool, 6000, 0), "cuMemAllocAsync");
    check(cuMemHostAlloc(&all->host, 7000, 0), "cuMemHostAlloc");
    check(cuMemCreate(&all->handle, 2 << 20, &what, 0), "cuMemCreate");
}

static void free_all(struct all *all)
{
    for (int i = 0; i < 3; i++) check(cuMemFree_v2(all->device[i]), "cuMemFree");
    check(cuMemFree_v2(all->rows) || cuMemFree_v2(all->managed), "cuMemFree");
    check(cuMemFreeAsync(all->pool, 0), "cuMemFreeAsync");
    check(cuMemFreeHost(all->host), "cuMemFreeHost");
    check(cuMemRelease(all->handle), "cuMemRelease");
    check(cuMemFree_v2(memory), "cuMemFree");
}

static void launch(const char *name, unsigned threads, unsigned spin)
{
    void *function, *arguments[] = {&memory, &spin};
    start();
    check(cuModuleGetFunction(&function, module, name), name);
    check(cuLaunchKernel(function, 1, 1, 1, threads, 1, 1, 0, 0, arguments, 0), "cuLaunchKernel");
}

/* Whether a process runs: not that it has ended, and its parent has not seen it. */
static int runs(pid_t pid)
{
    char path[64], text[512];
    snprintf(path, sizeof path, "/proc/%d/stat", (int)pid);
    FILE *file = fopen(path, "r");
    if (!file) return 0;
    size_t read = fread(text, 1, sizeof text - 1, file);
    fclose(file);
    text[read] = 0;
    char *name = strrchr(text, ')');
    return name && name[1] && name[2] != 'Z';
}

int main(int count, char **words)
{
    pid_t starter = getppid();
    for (int n = 1; n < count; n++) {
        const char *word = words[n];
        if (!strcmp(word, "init")) {
            check(cuInit(0), word);
        } else if (!strcmp(word, "fits")) {
            launch("iota", ELEMENTS, 0);
            check(cuCtxSynchronize(), word);
        } else if (!strcmp(word, "overruns")) {
            launch("iota", ELEMENTS + 1, 0);
            check(cuCtxSynchronize(), word);
        } else if (!strcmp(word, "often")) {
            for (int i = 0; i < 100; i++) launch("iota", ELEMENTS + 1, 0);
            check(cuCtxSynchronize(), word);
        } else if (!strcmp(word, "endless")) {
            launch("iota", ELEMENTS + 1, 1);
        } else if (!strcmp(word, "wait")) {
            check(cuCtxSynchronize(), word);
        } else if (!strcmp(word, "leaks") || !strcmp(word, "frees")) {
            struct all all;
            take_all(&all);
            if (!strcmp(word, "frees")) free_all(&all);
        } else if (!strcmp(word, "destroy")) {
            void *context;
            check(cuCtxGetCurrent(&context) || cuCtxDestroy_v2(context), word);
        } else if (!strcmp(word, "trap")) {
            launch("stop", 1, 0);
            cuCtxSynchronize();
        } else if (!strcmp(word, "foreign")) {
            launch("foreign", 1, 0);
            cuCtxSynchronize();
        } else if (!strcmp(word, "fork")) {
            /* The child executes the other words. */
            pid_t child = fork();
            if (child) {
                waitpid(child, 0, 0);
                return 0;
            }
        } else if (!strcmp(word, "leave")) {
            /* So does this child, but nothing waits for its end, only for the word `go`. */
            char byte;
            if (pipe(ready)) return 9;
            if (fork()) {
                close(ready[1]);
                return read(ready[0], &byte, 1) < 0;
            }
        } else if (!strcmp(word, "go")) {
            close(ready[1]);
        } else if (!strcmp(word, "outlive")) {
            /* What started the program ends first, within a minute. */
            for (int i = 0; i < 6000 && runs(starter); i++) usleep(10000);
        } else if (!strcmp(word, "exec")) {
            words[n] = words[0];
            execv("/proc/self/exe", words + n);
        } else if (!strcmp(word, "close")) {
            for (int file = 3; file < 1024; file++) close(file);
            (void)!chdir("/");
        } else if (!strcmp(word, "copy")) {
            for (int c; (c = getchar()) != EOF;) putchar(c);
        } else if (!strcmp(word, "complain")) {
            fprintf(stderr, "a complaint\n");
        } else if (!strcmp(word, "sleep")) {
            sleep(1);
        } else if (!strcmp(word, "abort")) {
            abort();
        } else if (!strcmp(word, "kill")) {
            /* The kernel has had time to run. */
            sleep(2);
            raise(SIGKILL);
        } else if (!strncmp(word, "exit=", 5)) {
            exit(atoi(word + 5));
        } else if (!strncmp(word, "_exit=", 6)) {
            _exit(atoi(word + 6));
        } else {
            printf("[%s]", word);
        }
    }
    return 0;
}
