/* Two processes that share memory: this one prints what happens, the other executes its commands. On any device:
   ipc CASE [SEED]. */
#include <dirent.h>
#include <fcntl.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <time.h>

#include "driver.h"

#define KiB (1ull << 10)
#define MiB (1ull << 20)

typedef struct { char bytes[64]; } ipc_handle;
int cuIpcOpenMemHandle_v2(ptr *, ipc_handle, unsigned);
int cuIpcCloseMemHandle(ptr);

enum { LAZY_PEERS = 1 };
enum { CONTEXT = 1, BUFFER_ID = 7, IPC_CAPABLE = 10, RANGE_START = 11, RANGE_SIZE = 12 };
enum { CALL_OPEN = 1, CALL_CLOSE, CALL_CHECK, CALL_WRITE, CALL_RANGE, CALL_ATTRIBUTE, CALL_MARK, CALL_EXPORT, CALL_CONTEXT, CALL_CLOSE_BUSY, CALL_FORK, CALL_END };

typedef struct { int call, flags; ipc_handle handle; ptr at; uint64_t words, seed; char name[32]; } request;
typedef struct { int code; ptr at; uint64_t value; ipc_handle handle; } reply;

static uint64_t seed = 1;
static const char *self;

static void all(int is_read, int fd, void *bytes, size_t left)
{
    for (char *at = bytes; left;) {
        ssize_t done = is_read ? read(fd, at, left) : write(fd, at, left);
        if (done <= 0) {
            printf("the other process is gone\n");
            fflush(stdout);
            _exit(4);
        }
        at += done, left -= done;
    }
}

/* Memory becomes what a seed says; how many words of it are not. */
static void write_words(ptr p, uint64_t words, uint64_t from)
{
    uint64_t *host = malloc(words * 8);
    for (uint64_t n = 0; n < words; ++n) host[n] = random_bits(&from);
    OK(cuMemcpyHtoD_v2(p, host, words * 8));
    /* Small copies return when the bytes are staged, and the other process knows nothing of this one's queues. */
    OK(cuCtxSynchronize());
    free(host);
}

static uint64_t wrong_words(ptr p, uint64_t words, uint64_t from)
{
    uint64_t *host = malloc(words * 8), wrong = 0;
    OK(cuMemcpyDtoH_v2(host, p, words * 8));
    for (uint64_t n = 0; n < words; ++n) wrong += host[n] != random_bits(&from);
    free(host);
    return wrong;
}

static void sleep_long(void *unused)
{
    (void)unused;
    usleep(300 * 1000);
}

/* Closes a block that queued work is still to read; what that work's stream says then. */
static reply close_busy(ptr p, uint64_t words)
{
    reply out = {0};
    handle stream;
    ptr copy;
    OK(cuMemAlloc_v2(&copy, words * 8));
    OK(cuStreamCreate(&stream, 1));
    OK(cuLaunchHostFunc(stream, sleep_long, 0));
    OK(cuMemcpyDtoDAsync_v2(copy, p, words * 8, stream));
    out.code = cuIpcCloseMemHandle(p);
    out.value = cuStreamQuery(stream);
    OK(cuStreamDestroy_v2(stream));
    OK(cuMemFree_v2(copy));
    return out;
}

/* The other process. */
static int serve(int fd)
{
    OK(cuInit(0));
    OK(cuCtxCreate_v2(&context, 0, 0));
    for (;;) {
        request it;
        reply out = {0};
        ssize_t got = read(fd, &it, 1);
        if (got <= 0) return 0;
        all(1, fd, (char *)&it + 1, sizeof it - 1);
        size_t bytes = 0;
        switch (it.call) {
        case CALL_OPEN: out.code = cuIpcOpenMemHandle_v2(&out.at, it.handle, it.flags); break;
        case CALL_CLOSE: out.code = cuIpcCloseMemHandle(it.at); break;
        case CALL_CLOSE_BUSY: out = close_busy(it.at, it.words); break;
        case CALL_CHECK: out.value = wrong_words(it.at, it.words, it.seed); break;
        case CALL_WRITE: write_words(it.at, it.words, it.seed); break;
        case CALL_RANGE: out.code = cuMemGetAddressRange_v2(&out.at, &bytes, it.at), out.value = bytes; break;
        case CALL_ATTRIBUTE: out.code = cuPointerGetAttribute(&out.value, it.flags, it.at); break;
        case CALL_MARK: mark(it.name); break;
        case CALL_EXPORT:
            OK(cuMemAlloc_v2(&out.at, it.words * 8));
            write_words(out.at, it.words, it.seed);
            out.code = cuIpcGetMemHandle(&out.handle, out.at);
            break;
        case CALL_CONTEXT:
            out.code = cuCtxDestroy_v2(context);
            OK(cuCtxCreate_v2(&context, 0, 0));
            break;
        case CALL_FORK:
            /* A child that stays after this process, with all that it has open. */
            if (!(out.value = fork())) {
                close(fd);
                sleep(30);
                _exit(0);
            }
            break;
        case CALL_END: all(0, fd, &out, sizeof out); return 0;
        }
        all(0, fd, &out, sizeof out);
    }
}

typedef struct { int fd; pid_t pid; } other;

/* Starts it: under what this one runs under, or without a hook. */
static other begin_other(int hooked)
{
    int pair[2];
    char number[16];
    socketpair(AF_UNIX, SOCK_STREAM, 0, pair);
    fcntl(pair[0], F_SETFD, FD_CLOEXEC);
    snprintf(number, sizeof number, "%d", pair[1]);
    pid_t pid = fork();
    if (!pid) {
        const char *driver = getenv("FERCUDA_DRIVER");
        if (!hooked) {
            unsetenv("LD_PRELOAD");
            if (driver && !getenv("LD_LIBRARY_PATH")) {
                char folder[4096];
                snprintf(folder, sizeof folder, "%s", driver);
                *strrchr(folder, '/') = 0;
                setenv("LD_LIBRARY_PATH", folder, 1);
            }
        }
        execl(self, self, "--serve", number, (char *)0);
        _exit(9);
    }
    close(pair[1]);
    return (other){pair[0], pid};
}

static reply call(other to, request it)
{
    reply out;
    all(0, to.fd, &it, sizeof it);
    all(1, to.fd, &out, sizeof out);
    return out;
}

static reply open_there(other to, ipc_handle handle) { return call(to, (request){.call = CALL_OPEN, .flags = LAZY_PEERS, .handle = handle}); }
static int close_there(other to, ptr at) { return call(to, (request){.call = CALL_CLOSE, .at = at}).code; }
static uint64_t wrong_there(other to, ptr at, uint64_t words, uint64_t from) { return call(to, (request){.call = CALL_CHECK, .at = at, .words = words, .seed = from}).value; }
static void write_there(other to, ptr at, uint64_t words, uint64_t from) { call(to, (request){.call = CALL_WRITE, .at = at, .words = words, .seed = from}); }
static reply asked_there(other to, ptr at, int attribute) { return call(to, (request){.call = CALL_ATTRIBUTE, .flags = attribute, .at = at}); }
static void mark_there(other to, const char *name)
{
    request it = {.call = CALL_MARK};
    snprintf(it.name, sizeof it.name, "%s", name);
    call(to, it);
}
static void end_other(other to)
{
    int status;
    call(to, (request){.call = CALL_END});
    waitpid(to.pid, &status, 0);
    printf("the other ended with %d\n", status);
}

static ptr made(uint64_t words, uint64_t from)
{
    ptr p;
    OK(cuMemAlloc_v2(&p, words * 8));
    write_words(p, words, from);
    return p;
}

static ipc_handle exported(ptr p)
{
    ipc_handle handle;
    OK(cuIpcGetMemHandle(&handle, p));
    return handle;
}

static void begin_here(void)
{
    OK(cuInit(0));
    OK(cuCtxCreate_v2(&context, 0, 0));
}

enum { BLOCKS = 6 };
static const uint64_t WORDS[BLOCKS] = {100, 375, 16 * KiB, 33 * KiB + 1, 128 * KiB, 700 * KiB + 3};

/* Written here, read there, changed there, read here: several blocks, of one slab and of others. */
static void both_ways(void)
{
    other there = begin_other(1);
    begin_here();
    ptr block[BLOCKS], far[BLOCKS];
    for (int n = 0; n < BLOCKS; ++n) block[n] = made(WORDS[n], seed + n);
    for (int n = 0; n < BLOCKS; ++n) {
        ipc_handle handle = exported(block[n]), again = exported(block[n] + 8);
        reply out = open_there(there, handle);
        far[n] = out.at;
        printf("block %d: %d, one handle %d, wrong there %llu\n", n, out.code, !memcmp(&handle, &again, 64),
            (unsigned long long)wrong_there(there, far[n], WORDS[n], seed + n));
    }
    for (int n = 0; n < BLOCKS; ++n) {
        write_there(there, far[n], WORDS[n], seed + 100 + n);
        reply range = call(there, (request){.call = CALL_RANGE, .at = far[n] + WORDS[n] * 4});
        reply start = asked_there(there, far[n] + 5, RANGE_START), size = asked_there(there, far[n], RANGE_SIZE);
        printf("range %d from %lld of %llu; %d %lld, %d %llu\n", range.code, (long long)(range.at - far[n]), (unsigned long long)range.value,
            start.code, (long long)(start.value - far[n]), size.code, (unsigned long long)size.value);
    }
    reply first = asked_there(there, far[0], BUFFER_ID), second = asked_there(there, far[1] + 1, BUFFER_ID);
    printf("buffers differ %d\n", first.value != second.value);
    mark_there(there, "open");
    for (int n = 0; n < BLOCKS; ++n) printf("changed %d: wrong here %llu\n", n, (unsigned long long)wrong_words(block[n], WORDS[n], seed + 100 + n));
    for (int n = 0; n < BLOCKS; ++n) printf("close %d\n", close_there(there, far[n]));
    mark_there(there, "closed");
    for (int n = 0; n < BLOCKS; ++n) SAY(cuMemFree_v2(block[n]));
    mark("end");
    end_other(there);
}

/* Blocks of one slab, opened twice, closed in another order. */
static void close_order(void)
{
    other there = begin_other(1);
    begin_here();
    ptr a = made(1000, seed), b = made(1000, seed + 1);
    ipc_handle ha = exported(a), hb = exported(b);
    reply a1 = open_there(there, ha), b1 = open_there(there, hb), a2 = open_there(there, ha);
    printf("opened %d %d %d, the same again %d\n", a1.code, b1.code, a2.code, a1.at == a2.at);
    mark_there(there, "three");
    printf("close %d, wrong %llu\n", close_there(there, a1.at), (unsigned long long)wrong_there(there, a2.at, 1000, seed));
    printf("close inside refused %d\n", close_there(there, b1.at + 256) != SUCCESS);
    printf("close %d, wrong %llu\n", close_there(there, a2.at), (unsigned long long)wrong_there(there, b1.at, 1000, seed + 1));
    mark_there(there, "one");
    printf("once more refused %d\n", close_there(there, a1.at) != SUCCESS);
    reply range = call(there, (request){.call = CALL_RANGE, .at = a1.at});
    printf("closed, it is in a range: %d\n", range.code == SUCCESS);
    printf("close %d\n", close_there(there, b1.at));
    mark_there(there, "none");
    printf("once more refused %d\n", close_there(there, b1.at) != SUCCESS);
    reply a3 = open_there(there, ha);
    printf("again %d, wrong %llu\n", a3.code, (unsigned long long)wrong_there(there, a3.at, 1000, seed));
    printf("strange flags refused %d\n", call(there, (request){.call = CALL_OPEN, .flags = 6, .handle = hb}).code != SUCCESS);
    printf("close %d\n", close_there(there, a3.at));
    end_other(there);
    SAY(cuMemFree_v2(a));
    SAY(cuMemFree_v2(b));
    mark("end");
}

/* Two blocks of one slab, closed while work that reads them is queued. */
static void closed_while_read(void)
{
    other there = begin_other(1);
    begin_here();
    ptr p[2];
    reply out[2];
    for (int n = 0; n < 2; ++n) p[n] = made(1000, seed + n);
    for (int n = 0; n < 2; ++n) out[n] = open_there(there, exported(p[n]));
    for (int n = 0; n < 2; ++n) {
        reply closed = call(there, (request){.call = CALL_CLOSE_BUSY, .at = out[n].at, .words = 1000});
        printf("open %d, close %d, its work %llu\n", out[n].code, closed.code, (unsigned long long)closed.value);
    }
    mark("end");
    end_other(there);
}

/* The owner frees what the other has open, and uses as much memory as there is. It can open no file then. */
static void freed_while_open(void)
{
    enum { COUNT = 64 };
    other there = begin_other(1);
    begin_here();
    ptr kept = made(16 * KiB, seed), more[COUNT], base;
    ipc_handle handle = exported(kept);
    reply out = open_there(there, handle);
    printf("open %d\n", out.code);
    struct rlimit files, none;
    getrlimit(RLIMIT_NOFILE, &files);
    none = files, none.rlim_cur = 0;
    setrlimit(RLIMIT_NOFILE, &none);
    SAY(cuMemFree_v2(kept));
    setrlimit(RLIMIT_NOFILE, &files);
    SAY(cuMemFree_v2(kept));
    SAY(cuMemFreeAsync(kept, 0));
    SAY(cuMemGetAddressRange_v2(&base, 0, kept));
    SAY(cuIpcGetMemHandle(&handle, kept));
    int again = 0;
    for (int n = 0; n < COUNT; ++n) more[n] = made(16 * KiB, seed + 1 + n), again += more[n] == kept;
    printf("given again %d, wrong there %llu\n", again, (unsigned long long)wrong_there(there, out.at, 16 * KiB, seed));
    mark("lingers");
    printf("open what was freed: %d\n", open_there(there, handle).code != SUCCESS);
    write_there(there, out.at, 16 * KiB, seed + 1000);
    uint64_t wrong = 0;
    for (int n = 0; n < COUNT; ++n) wrong += wrong_words(more[n], 16 * KiB, seed + 1 + n);
    printf("wrong here %llu\n", (unsigned long long)wrong);
    printf("close %d\n", close_there(there, out.at));
    for (int n = 0; n < COUNT; ++n) OK(cuMemFree_v2(more[n]));
    size_t free_bytes, total;
    OK(cuMemGetInfo_v2(&free_bytes, &total));
    mark("closed");
    end_other(there);
}

/* One freed while open by a process that is killed: then it is given again. */
static void importer_dies(void)
{
    other there = begin_other(1);
    begin_here();
    ptr p = made(16 * KiB, seed), all[64];
    reply out = open_there(there, exported(p));
    printf("open %d\n", out.code);
    SAY(cuMemFree_v2(p));
    kill(there.pid, SIGKILL);
    waitpid(there.pid, 0, 0);
    size_t free_bytes, total;
    OK(cuMemGetInfo_v2(&free_bytes, &total));
    OK(cuCtxSynchronize());
    int again = 0;
    for (int n = 0; n < 64; ++n) {
        OK(cuMemAlloc_v2(&all[n], 128 * KiB));
        again += all[n] == p;
    }
    printf("given again %d\n", again);
    mark("end");
}

/* The other is the owner, and is killed. */
static void exporter_dies(void)
{
    other there = begin_other(1);
    begin_here();
    reply out = call(there, (request){.call = CALL_EXPORT, .words = 5000, .seed = seed});
    call(there, (request){.call = CALL_EXPORT, .words = 5000, .seed = seed});
    ptr p;
    printf("exported %d, open %d\n", out.code, cuIpcOpenMemHandle_v2(&p, out.handle, LAZY_PEERS));
    printf("wrong %llu\n", (unsigned long long)wrong_words(p, 5000, seed));
    kill(there.pid, SIGKILL);
    waitpid(there.pid, 0, 0);
    SAY(cuIpcCloseMemHandle(p));
    printf("open again: %d\n", cuIpcOpenMemHandle_v2(&p, out.handle, LAZY_PEERS) != SUCCESS);
    mark("end");
}

/* A process that does not run under what this one does. */
static void without_hook(void)
{
    other there = begin_other(0);
    begin_here();
    ptr first = made(1000, seed), p = made(1000, seed + 1);
    ipc_handle handle = exported(p);
    reply out = open_there(there, handle);
    printf("refused %d\n", out.code != SUCCESS);
    /* What is the driver's own goes through. */
    out = call(there, (request){.call = CALL_EXPORT, .words = 5000, .seed = seed});
    ptr its = 0;
    printf("exported %d, open %d\n", out.code, cuIpcOpenMemHandle_v2(&its, out.handle, LAZY_PEERS));
    printf("wrong %llu\n", (unsigned long long)wrong_words(its, 5000, seed));
    mark("open");
    SAY(cuIpcCloseMemHandle(its));
    mark("closed");
    end_other(there);
    OK(cuMemFree_v2(first));
    OK(cuMemFree_v2(p));
}

/* A context that ends with blocks of others open. */
static void context_ends(void)
{
    other there = begin_other(1);
    begin_here();
    ptr a = made(1000, seed), b = made(1000, seed + 1);
    ipc_handle ha = exported(a), hb = exported(b);
    printf("open %d %d\n", open_there(there, ha).code, open_there(there, hb).code);
    printf("context %d\n", call(there, (request){.call = CALL_CONTEXT}).code);
    mark_there(there, "ended");
    reply out = open_there(there, hb);
    printf("open %d, wrong %llu\n", out.code, (unsigned long long)wrong_there(there, out.at, 1000, seed + 1));
    /* Here it ends with blocks of its own open there. */
    SAY(cuCtxDestroy_v2(context));
    OK(cuCtxCreate_v2(&context, 0, 0));
    printf("open what ended: %d\n", open_there(there, ha).code != SUCCESS);
    ptr c = made(1000, seed + 2);
    reply other_one = open_there(there, exported(c));
    printf("open %d, wrong %llu\n", other_one.code, (unsigned long long)wrong_there(there, other_one.at, 1000, seed + 2));
    mark("end");
    end_other(there);
}

/* What has handles, and what has none. */
static void capable(void)
{
    begin_here();
    ptr plain = made(1000, seed), ordered, managed, p;
    OK(cuMemAllocAsync(&ordered, 1000, 0));
    OK(cuMemAllocManaged(&managed, 1000, 1));
    ptr at[] = {plain, plain + 500, ordered, managed};
    for (int n = 0; n < 4; ++n) {
        ipc_handle handle;
        unsigned says = 0;
        int which[] = {IPC_CAPABLE, RANGE_SIZE};
        size_t size = 0;
        unsigned listed = 0;
        void *into[] = {&listed, &size};
        printf("%d: attribute %d", n, cuPointerGetAttribute(&says, IPC_CAPABLE, at[n]));
        printf(" says %u", says);
        printf(", list %d", cuPointerGetAttributes(2, which, into, at[n]));
        printf(" says %u of %zu", listed, size);
        printf(", handle %d\n", cuIpcGetMemHandle(&handle, at[n]));
    }
    SAY(cuIpcGetMemHandle(0, plain));
    ipc_handle own = exported(plain), none = {{1, 2, 3}};
    SAY(cuIpcOpenMemHandle_v2(&p, own, LAZY_PEERS));
    SAY(cuIpcOpenMemHandle_v2(&p, none, LAZY_PEERS));
    SAY(cuIpcOpenMemHandle_v2(0, own, LAZY_PEERS));
    SAY(cuIpcCloseMemHandle(plain));
    SAY(cuIpcCloseMemHandle(0x1234));
    SAY(cuMemFree_v2(plain));
    SAY(cuIpcGetMemHandle(&own, plain));
    mark("end");
}

static void share_path(char *path, size_t size, ipc_handle handle)
{
    int n = snprintf(path, size, "%s/fercuda/", getenv("XDG_RUNTIME_DIR"));
    for (int byte = 16; byte < 32; ++byte) n += snprintf(path + n, size - n, "%02x", (unsigned char)handle.bytes[byte]);
    snprintf(path + n, size - n, ".share");
}

/* Handles that were made up or damaged, and shares that were tampered with: with the hook the answer is the one
   without. This one knows how handles name shares. */
static void forged(void)
{
    other there = begin_other(1), bare = begin_other(0);
    begin_here();
    ptr p = made(1000, seed);
    ipc_handle good = exported(p);
    uint64_t random = seed;
    int opened = 0, differ = 0;
    for (int n = 0; n < 400; ++n) {
        ipc_handle bad = good;
        if (n < 64) bad.bytes[n] ^= 1 << (n % 8);
        else if (n < 200) bad.bytes[random_bits(&random) % 64] ^= 1 + random_bits(&random) % 255;
        else for (int byte = 8; byte < 64; ++byte) bad.bytes[byte] = (char)random_bits(&random);
        if (n >= 300) bad.bytes[8] = 1, memset(bad.bytes + 9, 0, 7), memset(bad.bytes + 48, 0, 16);
        int with = open_there(there, bad).code, without = open_there(bare, bad).code;
        opened += with == SUCCESS, differ += with != without;
    }
    printf("made up: %d opened, %d answered otherwise\n", opened, differ);
    char path[4096], kept[4200], bytes[4096] = {0};
    share_path(path, sizeof path, good);
    snprintf(kept, sizeof kept, "%s.kept", path);
    FILE *file = fopen(path, "r");
    size_t length = file ? fread(bytes, 1, sizeof bytes, file) : 0;
    if (file) fclose(file);
    struct stat meta = {0};
    stat(path, &meta);
    printf("the share is private: %d, %d links\n", (meta.st_mode & 0777) == 0600 && length > 64, (int)meta.st_nlink);
    for (int kind = 0; kind < 9; ++kind) {
        rename(path, kept);
        size_t written = kind == 0 ? 0 : kind == 1 ? length - 1 : kind == 2 ? length + 1 : length;
        char content[4096];
        memcpy(content, bytes, sizeof content);
        if (kind == 3) content[0] ^= 1;         /* of another kind */
        if (kind == 4) content[8] ^= 1;         /* of another version */
        if (kind == 5) content[30] ^= 0x40;     /* more than the whole */
        if (kind == 8) content[35] ^= 1;        /* the whole larger than it is */
        if (kind == 6 && symlink(kept, path)) return;
        if (kind != 6) {
            int fd = open(path, O_CREAT | O_EXCL | O_WRONLY, 0600);
            if (write(fd, content, written) != (ssize_t)written) return;
            if (kind == 7) fchmod(fd, 0644);    /* others may read it */
            close(fd);
        }
        int with = open_there(there, good).code, without = open_there(bare, good).code;
        printf("share %d: opened %d, answered otherwise %d\n", kind, with == SUCCESS, with != without);
        unlink(path);
        rename(kept, path);
    }
    if (!getuid()) {
        if (chown(path, 12345, 12345)) return;
        printf("another's: opened %d\n", open_there(there, good).code == SUCCESS);
        if (chown(path, 0, 0)) return;
    }
    reply out = open_there(there, good);
    printf("as it was: %d, wrong %llu\n", out.code, (unsigned long long)wrong_there(there, out.at, 1000, seed));
    end_other(there);
    end_other(bare);
}

/* Blocks come, go, are opened and closed and written on both sides, in any order. */
static void random_order(void)
{
    enum { SLOTS = 40, STEPS = 3000 };
    struct { ptr here, there; uint64_t words, from; ipc_handle handle; int opens, is_freed; } slot[SLOTS] = {0}, *it;
    other there = begin_other(1);
    begin_here();
    uint64_t random = seed, next = seed << 20, wrong = 0;
    int refused = 0, opened = 0, lingered = 0, stale = 0;
    for (int step = 0; step < STEPS + 20 * SLOTS; ++step) {
        /* In the end all are closed and freed. */
        int ends = step >= STEPS, kind = ends ? 2 + step / SLOTS % 2 : random_bits(&random) % 8;
        it = &slot[ends ? step % SLOTS : random_bits(&random) % SLOTS];
        int is_live = it->words && !it->is_freed;
        if (!it->words) {
            if (ends) continue;
            it->words = 1 + random_bits(&random) % (random_bits(&random) % 8 ? 4000 : 400000), it->from = ++next;
            it->here = made(it->words, it->from);
        } else if (kind == 0 && is_live && it->opens < 3) {
            it->handle = exported(it->here);
            reply out = open_there(there, it->handle);
            refused += out.code != SUCCESS || (it->opens && out.at != it->there);
            it->there = out.at, ++it->opens, ++opened;
        } else if (kind == 2 && it->opens) {
            refused += close_there(there, it->there) != SUCCESS;
            if (!--it->opens && it->is_freed) it->words = 0, it->is_freed = 0;
        } else if (kind == 3 && is_live) {
            refused += cuMemFree_v2(it->here) != SUCCESS;
            lingered += it->opens > 0;
            if (it->opens) it->is_freed = 1, stale += open_there(there, it->handle).code == SUCCESS;
            else it->words = 0;
        } else if (kind == 4 && it->opens) {
            it->from = ++next;
            write_there(there, it->there, it->words, it->from);
        } else if (kind == 5 && is_live) {
            it->from = ++next;
            write_words(it->here, it->words, it->from);
        } else if (kind == 6 && it->opens) {
            wrong += wrong_there(there, it->there, it->words, it->from);
        } else if (is_live) {
            wrong += wrong_words(it->here, it->words, it->from);
        }
    }
    int left = 0;
    for (int n = 0; n < SLOTS; ++n) left += slot[n].words != 0;
    printf("wrong %llu, refused %d, stale %d, left %d\n", (unsigned long long)wrong, refused, stale, left);
    printf("enough %d\n", opened > 100 && lingered > 20);
    size_t free_bytes, total;
    OK(cuMemGetInfo_v2(&free_bytes, &total));
    mark("end");
    mark_there(there, "closed");
    end_other(there);
}

static int count_files(void)
{
    int count = 0;
    DIR *all = opendir("/proc/self/fd");
    while (readdir(all)) ++count;
    closedir(all);
    return count;
}

/* How many files are open, once that is at most `expected` or has not been for a while: other threads open some. */
static int open_files(int expected)
{
    int count = 0;
    for (int tries = 0; tries < 500; ++tries, usleep(10000)) {
        count = count_files();
        if (count <= expected) break;
    }
    return count;
}

static double seconds(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return now.tv_sec + now.tv_nsec / 1e9;
}

/* Blocks of all sizes, in one handle and over several, exported by an address somewhere inside. All are open at a
   time, and change there; some are freed here while they are open there, and others opened again. */
static void any_size(void)
{
    enum { FIXED = 14, COUNT = 30 };
    static const uint64_t fixed[FIXED] = {1, 7, 255, 256, 4097, MiB - 1, MiB, MiB + 1, 2 * MiB, 2 * MiB + 8, 5 * MiB + 3, 16 * MiB - 1, 33 * MiB, 64 * MiB};
    other there = begin_other(1);
    begin_here();
    uint64_t random = seed, bytes[COUNT];
    ptr here[COUNT], far[COUNT], junk[COUNT];
    int refused = 0, elsewhere = 0;
    uint64_t wrong = 0;
    for (int n = 0; n < COUNT; ++n) {
        OK(cuMemAlloc_v2(&junk[n], 1 + random_bits(&random) % (random_bits(&random) % 3 ? 9000 : 3 * MiB)));
        bytes[n] = n < FIXED ? fixed[n] : 1 + random_bits(&random) % (random_bits(&random) % 2 ? 40000 : 7 * MiB);
        OK(cuMemAlloc_v2(&here[n], bytes[n]));
        write_words(here[n], bytes[n] / 8, seed + n);
        reply out = open_there(there, exported(here[n] + random_bits(&random) % bytes[n]));
        refused += out.code != SUCCESS, far[n] = out.at;
    }
    for (int n = 0; n < COUNT; ++n) {
        wrong += wrong_there(there, far[n], bytes[n] / 8, seed + n);
        reply range = call(there, (request){.call = CALL_RANGE, .at = far[n] + bytes[n] - 1});
        elsewhere += range.code != SUCCESS || range.at != far[n] || range.value != bytes[n];
        write_there(there, far[n], bytes[n] / 8, seed + 100 + n);
    }
    for (int n = 0; n < COUNT; ++n) wrong += wrong_words(here[n], bytes[n] / 8, seed + 100 + n);
    printf("refused %d, elsewhere %d, wrong %llu\n", refused, elsewhere, (unsigned long long)wrong);
    mark_there(there, "open");
    /* What is freed is not given to the blocks that are made and written now. */
    for (int n = 0; n < COUNT; n += 2) OK(cuMemFree_v2(here[n]));
    for (int n = 0; n < COUNT; n += 2) here[n] = made(bytes[n] / 8 + 1, seed + 200 + n);
    for (int n = 0; n < COUNT; ++n) wrong += wrong_there(there, far[n], bytes[n] / 8, seed + 100 + n);
    for (int n = COUNT - 1; n >= 0; --n) refused += close_there(there, far[n]) != SUCCESS;
    for (int n = 1; n < COUNT; n += 2) {
        reply out = open_there(there, exported(here[n]));
        refused += out.code != SUCCESS;
        wrong += wrong_there(there, out.at, bytes[n] / 8, seed + 100 + n);
        refused += close_there(there, out.at) != SUCCESS;
    }
    for (int n = 0; n < COUNT; n += 2) wrong += wrong_words(here[n], bytes[n] / 8, seed + 200 + n);
    printf("refused %d, wrong %llu\n", refused, (unsigned long long)wrong);
    mark_there(there, "closed");
    for (int n = 0; n < COUNT; ++n) OK(cuMemFree_v2(here[n])), OK(cuMemFree_v2(junk[n]));
    mark("end");
    end_other(there);
}

/* The owner is stopped, and goes on. */
static void owner_stops(void)
{
    other there = begin_other(1);
    begin_here();
    reply out = call(there, (request){.call = CALL_EXPORT, .words = 5000, .seed = seed});
    ptr p = 0;
    /* The first time, the folder of shares stays open. */
    OK(cuIpcOpenMemHandle_v2(&p, call(there, (request){.call = CALL_EXPORT, .words = 1, .seed = seed}).handle, LAZY_PEERS));
    OK(cuIpcCloseMemHandle(p));
    int files = count_files();
    kill(there.pid, SIGSTOP);
    /* The signal is delivered to each thread on its own: until the last one has stopped, it answers. */
    siginfo_t stopped;
    if (waitid(P_PID, there.pid, &stopped, WSTOPPED) != 0) {
        perror("waitid");
    }
    double begun = seconds();
    int code = cuIpcOpenMemHandle_v2(&p, out.handle, LAZY_PEERS);
    printf("refused %d, late %d\n", code != SUCCESS, seconds() - begun > 30);
    kill(there.pid, SIGCONT);
    printf("open %d\n", cuIpcOpenMemHandle_v2(&p, out.handle, LAZY_PEERS));
    printf("wrong %llu\n", (unsigned long long)wrong_words(p, 5000, seed));
    SAY(cuIpcCloseMemHandle(p));
    printf("left open %d\n", open_files(files) - files);
    mark("end");
    end_other(there);
}

/* A block of many handles is opened with hardly a descriptor free. */
static void few_descriptors(void)
{
    other there = begin_other(1);
    begin_here();
    reply out = call(there, (request){.call = CALL_EXPORT, .words = 8 * MiB, .seed = seed});
    ptr p = 0;
    /* The first time, the folder of shares stays open. */
    OK(cuIpcOpenMemHandle_v2(&p, out.handle, LAZY_PEERS));
    OK(cuIpcCloseMemHandle(p));
    int files = count_files(), refused = 0, fits = 0;
    struct rlimit before, few;
    getrlimit(RLIMIT_NOFILE, &before);
    for (int more = 0; more < 40; ++more) {
        few = before, few.rlim_cur = files - 3 + more;
        setrlimit(RLIMIT_NOFILE, &few);
        int code = cuIpcOpenMemHandle_v2(&p, out.handle, LAZY_PEERS);
        setrlimit(RLIMIT_NOFILE, &before);
        refused += code != SUCCESS;
        if (code == SUCCESS) ++fits, OK(cuIpcCloseMemHandle(p));
        if (open_files(files) != files) printf("%d more: %d are open, of %d\n", more, count_files(), files);
    }
    printf("some are refused %d, some not %d\n", refused > 0, fits > 0);
    printf("open %d\n", cuIpcOpenMemHandle_v2(&p, out.handle, LAZY_PEERS));
    printf("wrong %llu\n", (unsigned long long)wrong_words(p, 8 * MiB, seed));
    SAY(cuIpcCloseMemHandle(p));
    mark("end");
    end_other(there);
}

/* Children of an owner are not the owner: neither one that ends, nor one that outlives it. */
static void owner_forks(void)
{
    other there = begin_other(1);
    begin_here();
    ptr p = made(5000, seed), its = 0;
    ipc_handle handle = exported(p), other_one;
    pid_t child = fork();
    if (!child) exit(cuIpcGetMemHandle(&other_one, p) != SUCCESS);
    int status = 0;
    waitpid(child, &status, 0);
    printf("a child exports nothing %d\n", WEXITSTATUS(status));
    reply out = open_there(there, handle);
    printf("open %d, wrong %llu\n", out.code, (unsigned long long)wrong_there(there, out.at, 5000, seed));
    printf("close %d\n", close_there(there, out.at));
    out = call(there, (request){.call = CALL_EXPORT, .words = 5000, .seed = seed});
    printf("open %d\n", cuIpcOpenMemHandle_v2(&its, out.handle, LAZY_PEERS));
    SAY(cuIpcCloseMemHandle(its));
    pid_t left = call(there, (request){.call = CALL_FORK}).value;
    kill(there.pid, SIGKILL);
    waitpid(there.pid, 0, 0);
    double begun = seconds();
    int code = cuIpcOpenMemHandle_v2(&its, out.handle, LAZY_PEERS);
    printf("refused %d, late %d\n", code != SUCCESS, seconds() - begun > 5);
    kill(left, SIGKILL);
    mark("end");
}

/* A share whose file was replaced by one of the same content: its lock would not be seen by the owner. */
static void replaced(void)
{
    other there = begin_other(1);
    begin_here();
    ptr p = made(1000, seed);
    ipc_handle handle = exported(p);
    char path[4096], kept[4200], bytes[4096];
    share_path(path, sizeof path, handle);
    snprintf(kept, sizeof kept, "%s.kept", path);
    FILE *file = fopen(path, "r");
    size_t length = fread(bytes, 1, sizeof bytes, file);
    fclose(file);
    rename(path, kept);
    int fd = open(path, O_CREAT | O_EXCL | O_WRONLY, 0600);
    if (write(fd, bytes, length) != (ssize_t)length) return;
    close(fd);
    printf("replaced: refused %d\n", open_there(there, handle).code != SUCCESS);
    rename(kept, path);
    printf("as it was: %d\n", open_there(there, handle).code);
    mark("end");
    end_other(there);
}

int main(int argc, char **argv)
{
    static const test_case cases[] = {{"both_ways", both_ways}, {"close_order", close_order}, {"closed_while_read", closed_while_read}, {"freed_while_open", freed_while_open},
        {"importer_dies", importer_dies}, {"exporter_dies", exporter_dies}, {"without_hook", without_hook}, {"context_ends", context_ends},
        {"capable", capable}, {"forged", forged},
        {"any_size", any_size}, {"owner_stops", owner_stops}, {"few_descriptors", few_descriptors}, {"owner_forks", owner_forks},
        {"replaced", replaced}, {"random_order", random_order}, {0, 0}};
    setvbuf(stdout, 0, _IOLBF, 0);
    signal(SIGPIPE, SIG_IGN);
    self = argv[0];
    if (argc > 2 && !strcmp(argv[1], "--serve")) return serve(atoi(argv[2]));
    if (argc > 2) seed = strtoull(argv[2], 0, 0);
    return run_case(cases, argc, argv);
}
