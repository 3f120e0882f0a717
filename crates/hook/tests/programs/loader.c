/* Finds the driver in every way that programs do. Knows it by nothing but the names of its functions. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <link.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

typedef int (*any)();
typedef unsigned long long ptr;
typedef any (*finder)(const char *);

static void *library;

static any by_symbol(const char *name)
{
    any found = (any)dlsym(library, name);
    if (!found) {
        printf("no %s: %s\n", name, dlerror());
        exit(3);
    }
    return found;
}

/* As NVIDIA's runtime library does: one function by its symbol, all others from that one, itself included. */
static any by_proc_address(const char *name)
{
    static int (*ask)(const char *, void **, int, unsigned long long, int *);
    if (!ask) {
        int (*first)(const char *, void **, int, unsigned long long, int *) = (void *)dlsym(library, "cuGetProcAddress_v2");
        void *again = 0;
        int status = -1;
        if (!first || first("cuGetProcAddress", &again, 13000, 0, &status) || status) {
            printf("no cuGetProcAddress\n");
            exit(3);
        }
        ask = again;
    }
    char base[100];
    snprintf(base, sizeof base, "%s", name);
    char *version = strstr(base, "_v2");
    if (version) *version = 0;
    void *found = 0;
    int status = -1;
    if (ask(base, &found, 13000, 0, &status) || status) {
        printf("no %s: %d\n", base, status);
        exit(3);
    }
    return (any)found;
}

/* Allocates a MiB in the first device's primary context, writes, reads, and gives it back. */
static int use(finder find)
{
    void *context;
    ptr p;
    unsigned word = 0;
    int code = find("cuInit")(0);
    if (!code) code = find("cuDevicePrimaryCtxRetain")(&context, 0);
    if (!code) code = find("cuCtxSetCurrent")(context);
    if (!code) code = ((int (*)(ptr *, size_t))find("cuMemAlloc_v2"))(&p, 1 << 20);
    if (!code) code = ((int (*)(ptr, unsigned, size_t))find("cuMemsetD32_v2"))(p, 42, 1 << 18);
    if (!code) code = ((int (*)(void *, ptr, size_t))find("cuMemcpyDtoH_v2"))(&word, p + 400, 4);
    if (!code) code = ((int (*)(ptr))find("cuMemFree_v2"))(p);
    printf("code %d, holds %u\n", code, word);
    fflush(stdout);
    return code;
}

static int open_and_use(const char *name, int flags, finder find)
{
    library = dlopen(name, flags);
    if (!library) {
        printf("cannot open: %s\n", dlerror());
        return 4;
    }
    return use(find);
}

/* A wrapper of the program's own: what it finds behind itself must not be itself, the second time either. */
int cuMemFree_v2(ptr p)
{
    void *first = dlsym(RTLD_NEXT, "cuMemFree_v2"), *second = dlsym(RTLD_NEXT, "cuMemFree_v2");
    printf("next: %s, %s\n", first && first != (void *)cuMemFree_v2 ? "another" : "none",
           first == second ? "the same again" : "something else");
    return first ? ((int (*)(ptr))first)(p) : 999;
}

static any wrapped(const char *name)
{
    return strcmp(name, "cuMemFree_v2") ? by_symbol(name) : (any)cuMemFree_v2;
}

static void versions(void)
{
    printf("malloc of the first version: %s\n", dlvsym(RTLD_DEFAULT, "malloc", "GLIBC_2.2.5") ? "there" : "none");
    printf("malloc of no version: %s\n", dlvsym(RTLD_DEFAULT, "malloc", "GLIBC_9.9") ? "there" : "none");
    library = dlopen("libcuda.so.1", RTLD_NOW);
    printf("cuInit of the C library's version: %s\n", dlvsym(library, "cuInit", "GLIBC_2.2.5") ? "there" : "none");
    printf("dlopen of the first version: %s\n", dlvsym(RTLD_DEFAULT, "dlopen", "GLIBC_2.2.5") ? "there" : "none");
    use(by_symbol);
}

static void unknown(void)
{
    library = dlopen("libcuda.so.1", RTLD_NOW);
    int (*ask)(const char *, void **, int, unsigned long long, int *) = (void *)dlsym(library, "cuGetProcAddress_v2");
    const char *names[] = {"cuThereIsNoSuchThing", "", "cuMemAlloc_v2", "cuMemAlloc_v9", "cudnnCreate", "curl_easy_init"};
    for (int n = 0; n < 6; ++n) {
        void *found = (void *)1;
        int status = -1, code = ask(names[n], &found, 12000, 0, &status);
        printf("%s: %d %d %d\n", names[n], code, status, found == 0);
        printf("  as a symbol: %d\n", dlsym(library, *names[n] ? names[n] : "cuNo") != 0);
    }
    void *found;
    printf("null: %d\n", ask(0, &found, 12000, 0, 0));
    printf("null: %d\n", ask("cuInit", 0, 12000, 0, 0));
    printf("a library that is not there: %s\n", dlopen("libcudaX.so.7", RTLD_NOW) ? "opened" : dlerror());
    printf("one with a name like it: %s\n", dlopen("libcuda.so.1.bak", RTLD_NOW) ? "opened" : dlerror());
    printf("the program itself: %d\n", dlopen(0, RTLD_NOW) != 0);
}

static void *for_ever(void *nothing)
{
    for (;;) pause();
}

/* For each line of `base version flags`: in which library the answer is, and where. */
static int resolve(void)
{
    library = dlopen("libcuda.so.1", RTLD_NOW);
    int (*ask)(const char *, void **, int, unsigned long long, int *) = (void *)by_symbol("cuGetProcAddress_v2");
    int (*older)(const char *, void **, int, unsigned long long) = (void *)by_symbol("cuGetProcAddress");
    char base[200];
    int version;
    unsigned long long flags;
    while (scanf("%199s %d %llu", base, &version, &flags) == 3) {
        void *found = 0, *second = 0, *old = 0;
        int status = -1, code = ask(base, &found, version, flags, &status);
        ask(base, &second, version, flags, 0);
        int old_code = older(base, &old, version, flags);
        Dl_info at = {0};
        if (found) dladdr(found, &at);
        const char *file = at.dli_fname ? strrchr(at.dli_fname, '/') : 0;
        printf("%s %d %llu %d %d %d %s %llx\n", base, version, flags, code, status,
               found == second && (old_code ? !old : old == found), file ? file + 1 : "-",
               (ptr)found - (ptr)at.dli_fbase);
    }
    return 0;
}

/* Which of the names on standard input the library has. */
static int symbols(void)
{
    char name[200];
    library = dlopen("libcuda.so.1", RTLD_NOW);
    while (scanf("%199s", name) == 1) printf("%s %d\n", name, dlsym(library, name) != 0);
    return 0;
}

static int child_of(pid_t child)
{
    int status = 0;
    waitpid(child, &status, 0);
    return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
}

/* Both live until both have used the driver: a ledger is swept when its process is gone. */
static int fork_first(void)
{
    int used[2], done[2];
    char one = 1;
    library = dlopen("libcuda.so.1", RTLD_NOW);
    fflush(stdout);
    if (pipe(used) || pipe(done)) return 5;
    pid_t child = fork();
    if (!child) {
        close(done[1]);
        int code = use(by_symbol);
        if (write(used[1], &one, 1) != 1) code = 6;
        while (read(done[0], &one, 1) > 0);
        _exit(code);
    }
    close(used[1]);
    if (read(used[0], &one, 1) != 1) return 7;
    int code = use(by_symbol);
    close(done[1]);
    printf("child %d\n", child_of(child));
    return code;
}

/* The child of a process that has used the driver: whatever its calls return, it ends, and the parent goes on. */
static int fork_later(void)
{
    library = dlopen("libcuda.so.1", RTLD_NOW);
    ptr p, q;
    int code = use(by_symbol);
    code += ((int (*)(ptr *, size_t))by_symbol("cuMemAlloc_v2"))(&p, 1 << 20);
    fflush(stdout);
    pid_t child = fork();
    if (!child) {
        int first = ((int (*)(ptr *, size_t))by_symbol("cuMemAlloc_v2"))(&q, 1 << 20);
        int second = ((int (*)(ptr))by_symbol("cuMemFree_v2"))(p);
        printf("child: alloc %d, free %d\n", first, second);
        fflush(stdout);
        _exit(7);
    }
    printf("child %d\n", child_of(child));
    code += ((int (*)(ptr))by_symbol("cuMemFree_v2"))(p);
    printf("parent %d\n", code);
    return code || use(by_symbol);
}

static int fork_and_exec(char *program)
{
    library = dlopen("libcuda.so.1", RTLD_NOW);
    int code = use(by_symbol);
    fflush(stdout);
    pid_t child = fork();
    if (!child) {
        execl(program, program, "soname", (char *)0);
        _exit(9);
    }
    printf("child %d\n", child_of(child));
    return code;
}

/* The same short program many times, as build systems and shells do it. */
static int storm(char *program, int count)
{
    int failed = 0;
    pid_t all[16];
    for (int n = 0; n < count; n += 16) {
        for (int k = 0; k < 16; ++k) {
            all[k] = fork();
            if (!all[k]) {
                execl(program, program, "nothing", (char *)0);
                _exit(9);
            }
        }
        for (int k = 0; k < 16; ++k) failed += child_of(all[k]) != 0;
    }
    printf("%d failed\n", failed);
    return failed;
}

int main(int argc, char **argv)
{
    const char *way = argc > 1 ? argv[1] : "";
    const char *path = argc > 2 ? argv[2] : "";
    if (!strcmp(way, "nothing")) return 0;
    if (!strcmp(way, "soname")) return open_and_use("libcuda.so.1", RTLD_NOW, by_symbol);
    if (!strcmp(way, "lazy")) return open_and_use("libcuda.so.1", RTLD_LAZY | RTLD_GLOBAL, by_symbol);
    if (!strcmp(way, "short")) return open_and_use("libcuda.so", RTLD_NOW, by_symbol);
    if (!strcmp(way, "path")) return open_and_use(path, RTLD_NOW, by_symbol);
    if (!strcmp(way, "deepbind")) return open_and_use("libcuda.so.1", RTLD_NOW | RTLD_DEEPBIND, by_symbol);
    if (!strcmp(way, "runtime")) return open_and_use("libcuda.so.1", RTLD_NOW, by_proc_address);
    if (!strcmp(way, "next")) return open_and_use("libcuda.so.1", RTLD_NOW, wrapped);
    if (!strcmp(way, "plugin")) {
        void *plugin = dlopen(path, RTLD_NOW | RTLD_LOCAL | RTLD_DEEPBIND);
        if (!plugin) return printf("cannot open: %s\n", dlerror()), 4;
        return ((int (*)(void))dlsym(plugin, "plugin_use"))();
    }
    if (!strcmp(way, "namespace")) {
        /* There the driver has a C library of its own, and its threads use this one's heap and the loader's lock. glibc's
           (2.36) takes neither in earnest while it knows of no thread; so it knows of one. */
        pthread_t other;
        if (pthread_create(&other, 0, for_ever, 0)) return 5;
        library = dlmopen(LM_ID_NEWLM, path, RTLD_NOW);
        if (!library) return printf("cannot open: %s\n", dlerror()), 4;
        return use(by_symbol);
    }
    if (!strcmp(way, "noload")) {
        printf("before: %d\n", dlopen("libcuda.so.1", RTLD_NOW | RTLD_NOLOAD) != 0);
        return 0;
    }
    if (!strcmp(way, "versions")) return versions(), 0;
    if (!strcmp(way, "unknown")) return unknown(), 0;
    if (!strcmp(way, "resolve")) return resolve();
    if (!strcmp(way, "symbols")) return symbols();
    if (!strcmp(way, "fork_first")) return fork_first();
    if (!strcmp(way, "fork_later")) return fork_later();
    if (!strcmp(way, "fork_and_exec")) return fork_and_exec(argv[0]);
    if (!strcmp(way, "storm")) return storm(argv[0], 320);
    return 2;
}
