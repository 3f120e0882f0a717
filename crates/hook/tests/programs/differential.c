/* A random program that prints all its results: the same with a driver alone and with something in front of it.
   What is printed of an address is which allocation it is in and where. Sizes of free memory are not printed. */
#include "driver.h"

enum { BLOCKS = 40, STREAMS = 6, CONTEXTS = 3, RANGES = 6 };
enum { PLAIN, ORDERED, MANAGED, PITCHED, FROM_POOL };

typedef struct { ptr address; size_t bytes; int kind, context, stream, is_written; unsigned value; } block;
typedef struct { ptr address; size_t bytes; unsigned long long handle; int is_mapped, has_handle; } range;

static uint64_t state;
static block blocks[BLOCKS];
static range ranges[RANGES];
static handle contexts[CONTEXTS], streams[STREAMS], pools[2], events[4];
static int current, capturing = -1;
static size_t granule;

static unsigned below(unsigned n) { return random_bits(&state) % n; }

static size_t size(void)
{
    switch (below(8)) {
    case 0: return below(256);
    case 1: return 1 << below(20);
    case 2: return 512 * (1 + below(2000));
    default: return 1 + below(200000);
    }
}

static void where(const char *what, ptr address)
{
    for (int n = 0; n < BLOCKS; ++n)
        if (blocks[n].address && address - blocks[n].address < blocks[n].bytes) {
            printf(" %s=%d+%llu", what, n, address - blocks[n].address);
            return;
        }
    for (int n = 0; n < RANGES; ++n)
        if (ranges[n].address && address - ranges[n].address < ranges[n].bytes) {
            printf(" %s=r%d+%llu", what, n, address - ranges[n].address);
            return;
        }
    printf(" %s=%s", what, address ? "?" : "0");
}

static block *some(void)
{
    int from = below(BLOCKS);
    for (int n = 0; n < BLOCKS; ++n) {
        block *it = &blocks[(from + n) % BLOCKS];
        if (it->address) return it;
    }
    return 0;
}

static int vacant(void)
{
    for (int n = 0; n < BLOCKS; ++n)
        if (!blocks[n].address) return n;
    return -1;
}

static void allocate(void)
{
    int n = vacant(), kind = below(5), stream = below(STREAMS), code;
    size_t bytes = size(), pitch = 0, height = 1 + below(30);
    if (n < 0 || (capturing >= 0 && kind != ORDERED)) return;
    ptr p = 0;
    switch (kind) {
    case PLAIN: code = cuMemAlloc_v2(&p, bytes); break;
    case ORDERED:
        if (stream == capturing) return;
        code = cuMemAllocAsync(&p, bytes, streams[stream]);
        break;
    case MANAGED: code = cuMemAllocManaged(&p, bytes, below(4)); break;
    case PITCHED:
        code = cuMemAllocPitch_v2(&p, &pitch, bytes % 3000, height, 4 << below(4));
        bytes = pitch * height;
        break;
    default: code = cuMemAllocFromPoolAsync(&p, bytes, pools[below(2)], streams[stream]);
    }
    printf("alloc kind %d of %zu: %d pitch %zu aligned %d\n", kind, bytes, code, pitch, p % 256 == 0);
    if (code) return;
    for (int k = 0; k < BLOCKS; ++k)
        if (blocks[k].address && p < blocks[k].address + blocks[k].bytes && blocks[k].address < p + bytes) printf("OVERLAPS %d\n", k);
    /* Work of other streams may use it only when its own has come so far. */
    if (kind == ORDERED || kind == FROM_POOL) printf("sync: %d\n", stream == capturing ? 0 : cuStreamSynchronize(streams[stream]));
    blocks[n] = (block){p, bytes, kind, current, stream, 0, 0};
}

static void release(void)
{
    block *it = some();
    if (!it || capturing >= 0) return;
    ptr p = it->address;
    int twice = below(4) == 0;
    if (below(6) == 0) {
        ptr strange = p + 1 + below(it->bytes > 1 ? it->bytes - 1 : 1);
        if (strange != p + it->bytes) printf("free inside: %d\n", cuMemFree_v2(strange));
    }
    int code = below(2) || it->kind == MANAGED ? cuMemFree_v2(p) : cuMemFreeAsync(p, streams[below(STREAMS)]);
    printf("free of %d: %d\n", (int)(it - blocks), code);
    if (!code) {
        it->address = 0;
        if (twice) {
            printf("sync: %d\n", cuCtxSynchronize());
            printf("twice: %d\n", cuMemFree_v2(p));
        }
    }
}

static void write_it(void)
{
    block *it = some();
    if (!it || it->bytes < 4) return;
    int stream = below(STREAMS);
    if (stream == capturing) return;
    unsigned value = below(1 << 30);
    int code = cuMemsetD32Async(it->address, value, it->bytes / 4, streams[stream]);
    printf("set %d: %d\n", (int)(it - blocks), code);
    if (!code) it->is_written = 1, it->value = value;
    printf("sync: %d\n", cuStreamSynchronize(streams[stream]));
}

static void read_it(void)
{
    block *it = some();
    unsigned words[4] = {0};
    if (!it || it->bytes < 4 || !it->is_written) return;
    size_t at = below(it->bytes / 4) * 4, bytes = it->bytes / 4 * 4 - at;
    if (bytes > 16) bytes = 16;
    int code = cuMemcpyDtoH_v2(words, it->address + at, bytes);
    printf("read %d: %d, %08x, as written %d\n", (int)(it - blocks), code, words[0], words[0] == it->value);
}

static void copy(void)
{
    block *from = some(), *to = some();
    /* Behind it everything is waited for, which a capture forbids. */
    if (capturing >= 0 || !from || !to || from == to || from->bytes < 8 || to->bytes < 8 || !from->is_written) return;
    size_t bytes = (from->bytes < to->bytes ? from->bytes : to->bytes) / 4 * 4;
    int code = cuMemcpyDtoD_v2(to->address, from->address, bytes);
    printf("copy %d to %d: %d\n", (int)(from - blocks), (int)(to - blocks), code);
    if (!code) {
        code = cuMemsetD32_v2(to->address, from->value, to->bytes / 4);
        printf("set: %d\n", code);
        to->is_written = 1, to->value = from->value;
    }
    printf("sync: %d\n", cuCtxSynchronize());
}

static void ask(void)
{
    block *it = some();
    if (!it) return;
    ptr address = it->address + below(it->bytes), base = 1;
    size_t bytes = 1;
    int code = cuMemGetAddressRange_v2(&base, &bytes, address);
    printf("range: %d", code);
    if (!code) where("base", base), printf(" %zu", bytes);
    static const int which[] = {1, 2, 3, 4, 7, 8, 9, 11, 12, 13, 15, 16};
    for (unsigned n = 0; n < sizeof which / sizeof *which; ++n) {
        unsigned long long value[8] = {0};
        code = cuPointerGetAttribute(value, which[n], address);
        printf(" %d:%d", which[n], code);
        if (code) continue;
        if (which[n] == 1) {
            int k = 0;
            while (k < CONTEXTS && value[0] != (unsigned long long)contexts[k]) ++k;
            printf(" context %d", value[0] ? k : -1);
        } else if (which[n] == 3 || which[n] == 4 || which[n] == 11)
            where("", value[0]);
        else if (which[n] != 7)
            printf(" %llu", value[0]);
    }
    printf("\n");
}

static void strange(void)
{
    static const ptr all[] = {0, 1, 0x1234, 0x100000, 0x7fffffffffff, ~0ull};
    ptr p = all[below(sizeof all / sizeof *all)], base;
    size_t bytes;
    unsigned long long value[8];
    if (capturing >= 0) return;
    switch (below(6)) {
    case 0: printf("strange free: %d\n", cuMemFree_v2(p)); break;
    case 1: printf("strange async free: %d\n", cuMemFreeAsync(p, streams[below(STREAMS)])); break;
    case 2: printf("strange range: %d\n", cuMemGetAddressRange_v2(&base, &bytes, p)); break;
    case 3: printf("strange attribute: %d\n", cuPointerGetAttribute(value, 1 + below(16), p)); break;
    case 4: printf("strange release: %d\n", cuMemRelease(p)); break;
    default: printf("strange unmap: %d\n", cuMemUnmap(p, granule));
    }
}

static void virtual_memory(void)
{
    range *it = &ranges[below(RANGES)];
    physical kind = {1, 0, {ON_DEVICE, 0}, 0, {0}};
    access_to access = {{ON_DEVICE, 0}, 3};
    int n = it - ranges;
    if (capturing >= 0) return;
    if (!it->address) {
        it->bytes = granule * (1 + below(3));
        int code = cuMemAddressReserve(&it->address, it->bytes, 0, 0, 0);
        printf("reserve %d: %d\n", n, code);
        if (code) it->address = 0;
        return;
    }
    int code;
    switch (below(7)) {
    case 0:
    case 1:
        if (it->has_handle) break;
        code = cuMemCreate(&it->handle, it->bytes, &kind, 0);
        printf("create %d: %d\n", n, code);
        it->has_handle = !code;
        break;
    case 2:
        if (!it->has_handle) break;
        code = cuMemMap(it->address, it->bytes, 0, it->handle, 0);
        printf("map %d: %d access %d\n", n, code, code ? -1 : cuMemSetAccess(it->address, it->bytes, &access, 1));
        if (!code) it->is_mapped = 1;
        break;
    case 3:
        if (!it->has_handle || !it->is_mapped) break;
        printf("release %d: %d\n", n, cuMemRelease(it->handle));
        it->has_handle = 0;
        break;
    case 4:
        if (!it->is_mapped) break;
        printf("set r%d: %d free %d\n", n, cuMemsetD32_v2(it->address, 7, 100), cuMemFree_v2(it->address));
        break;
    case 5:
        code = cuMemUnmap(it->address, it->bytes);
        printf("unmap %d: %d\n", n, code);
        if (!code) it->is_mapped = 0;
        break;
    default:
        code = cuMemAddressFree(it->address, it->bytes);
        printf("free range %d: %d\n", n, code);
        if (!code) {
            if (it->has_handle) printf("release %d: %d\n", n, cuMemRelease(it->handle));
            *it = (range){0};
        }
    }
}

static void change_context(void)
{
    if (capturing >= 0) return;
    if (below(15) == 0) {
        int n = below(CONTEXTS);
        printf("sync: %d\n", cuCtxSynchronize());
        /* Its streams are its own. */
        for (int s = 0; s < STREAMS; ++s)
            if (s % CONTEXTS == n) printf("destroy stream: %d\n", cuStreamDestroy_v2(streams[s]));
        printf("destroy context %d: %d\n", n, cuCtxDestroy_v2(contexts[n]));
        for (int k = 0; k < BLOCKS; ++k)
            if (blocks[k].address && blocks[k].context == n && blocks[k].kind != FROM_POOL && blocks[k].kind != ORDERED) blocks[k].address = 0;
        /* What is ordered goes with the context of its stream, or with its pool: it is freed to be sure. */
        for (int k = 0; k < BLOCKS; ++k)
            if (blocks[k].address && (blocks[k].kind == FROM_POOL || blocks[k].kind == ORDERED) && blocks[k].stream % CONTEXTS == n) blocks[k].address = 0;
        printf("create context %d: %d\n", n, cuCtxCreate_v2(&contexts[n], 0, 0));
        for (int s = 0; s < STREAMS; ++s)
            if (s % CONTEXTS == n) printf("create stream: %d\n", cuStreamCreate(&streams[s], s < 3));
        current = n;
    } else
        current = below(CONTEXTS);
    printf("current %d: %d\n", current, cuCtxSetCurrent(contexts[current]));
}

static void change_stream(void)
{
    int n = below(STREAMS);
    if (n == capturing) return;
    printf("destroy stream: %d\n", cuStreamDestroy_v2(streams[n]));
    printf("current: %d\n", cuCtxSetCurrent(contexts[n % CONTEXTS]));
    printf("create stream: %d\n", cuStreamCreate(&streams[n], below(2)));
    printf("current: %d\n", cuCtxSetCurrent(contexts[current]));
}

static void events_and_waits(void)
{
    int n = below(STREAMS), e = below(4);
    if (n == capturing) return;
    if (below(2))
        printf("record: %d\n", cuEventRecord(events[e], streams[n]));
    else
        printf("wait: %d\n", cuStreamWaitEvent(streams[n], events[e], 0));
}

static void capture(void)
{
    int code;
    if (capturing < 0) {
        int n = below(STREAMS);
        code = cuStreamBeginCapture_v2(streams[n], 2);
        printf("begin capture: %d\n", code);
        if (!code) capturing = n;
        return;
    }
    ptr inner;
    if (below(2)) {
        code = cuMemAllocAsync(&inner, 1 + below(100000), streams[capturing]);
        printf("captured alloc: %d\n", code);
        if (!code) {
            printf("captured set: %d\n", cuMemsetD32Async(inner, 1, 1, streams[capturing]));
            printf("captured free: %d\n", cuMemFreeAsync(inner, streams[capturing]));
        }
        return;
    }
    handle graph = 0, program = 0;
    code = cuStreamEndCapture(streams[capturing], &graph);
    printf("end capture: %d\n", code);
    if (!code) {
        code = cuGraphInstantiateWithFlags(&program, graph, 0);
        printf("instantiate: %d\n", code);
        if (!code) {
            printf("launch: %d\n", cuGraphLaunch(program, streams[capturing]));
            printf("sync: %d\n", cuStreamSynchronize(streams[capturing]));
            printf("destroy: %d\n", cuGraphExecDestroy(program));
        }
        printf("destroy: %d\n", cuGraphDestroy(graph));
    }
    capturing = -1;
}

static void other_things(void)
{
    size_t a, b;
    void *host;
    static char registered[1 << 16] __attribute__((aligned(4096)));
    if (capturing >= 0) return;
    switch (below(5)) {
    case 0: printf("info: %d", cuMemGetInfo_v2(&a, &b)); printf(" sensible %d\n", a <= b); break;
    case 1:
        printf("host: %d", cuMemHostAlloc(&host, 1 + below(100000), below(8)));
        printf(" %d\n", cuMemFreeHost(host));
        break;
    case 2:
        printf("register: %d", cuMemHostRegister_v2(registered, sizeof registered, 0));
        printf(" %d %d\n", cuMemHostUnregister(registered), cuMemHostUnregister(registered));
        break;
    case 3: printf("trim: %d\n", cuMemPoolTrimTo(pools[below(2)], below(1 << 20))); break;
    default: printf("zero: %d %d\n", cuMemAlloc_v2(&(ptr){0}, 0), cuMemAllocAsync(&(ptr){0}, 0, streams[0]));
    }
}

int main(int argc, char **argv)
{
    if (argc < 3) return 2;
    setvbuf(stdout, 0, _IOLBF, 0);
    state = strtoull(argv[1], 0, 0);
    int steps = atoi(argv[2]);
    OK(cuInit(0));
    for (int n = 0; n < CONTEXTS; ++n) OK(cuCtxCreate_v2(&contexts[n], 0, 0));
    for (int n = 0; n < STREAMS; ++n) {
        OK(cuCtxSetCurrent(contexts[n % CONTEXTS]));
        OK(cuStreamCreate(&streams[n], n < 3));
    }
    OK(cuCtxSetCurrent(contexts[0]));
    for (int n = 0; n < 4; ++n) OK(cuEventCreate(&events[n], 2));
    pool_kind props = {1, 0, {ON_DEVICE, 0}, 0, 0, 0, {0}};
    OK(cuMemPoolCreate(&pools[0], &props));
    OK(cuDeviceGetDefaultMemPool(&pools[1], 0));
    physical kind = {1, 0, {ON_DEVICE, 0}, 0, {0}};
    OK(cuMemGetAllocationGranularity(&granule, &kind, 0));
    for (int step = 0; step < steps; ++step) {
        printf("%d: ", step);
        switch (capturing >= 0 && below(4) == 0 ? 18 : below(20)) {
        case 0: case 1: case 2: case 3: allocate(); break;
        case 4: case 5: case 6: release(); break;
        case 7: case 8: write_it(); break;
        case 9: case 10: read_it(); break;
        case 11: copy(); break;
        case 12: ask(); break;
        case 13: strange(); break;
        case 14: case 15: virtual_memory(); break;
        case 16: change_context(); break;
        case 17: below(3) ? events_and_waits() : change_stream(); break;
        case 18: capturing >= 0 || below(3) == 0 ? capture() : strange(); break;
        default: other_things();
        }
        printf("\n");
    }
    mark("end");
    printf("end\n");
    return 0;
}
