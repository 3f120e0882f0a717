/* Green contexts: parts of a device's processors, each with streams of its own. Memory goes between them while work on it
   is still queued, and lives on when they are gone. */
#include "../../../crates/hook/tests/programs/driver.h"

#define MiB (1ull << 20)
enum { WORDS = 200000, BYTES = WORDS * 4, PARTS = 2 };

/* What it contains is up to the driver. */
typedef struct { int type; unsigned char rest[140]; } resource;

int cuDeviceGetDevResource(int, resource *, int);
int cuDevSmResourceSplitByCount(resource *, unsigned *, const resource *, resource *, unsigned, unsigned);
int cuDevResourceGenerateDesc(handle *, resource *, unsigned);
int cuGreenCtxCreate(handle *, handle, int, unsigned);
int cuCtxFromGreenCtx(handle *, handle);
int cuGreenCtxStreamCreate(handle *, handle, unsigned, int);
int cuGreenCtxDestroy(handle);
int cuLibraryLoadData(handle *, const void *, void *, void *, unsigned, void *, void *, unsigned);
int cuLibraryGetKernel(handle *, handle, const char *);
int cuLibraryUnload(handle);

static void delay(void *unused)
{
    (void)unused;
    usleep(3000);
}

static unsigned allocations;
#define ALLOCATED(call) (OK(call), ++allocations)

static handle primary;
static ptr counter;

static void counted(const char *what)
{
    unsigned wrong;
    OK(cuCtxSetCurrent(primary));
    OK(cuCtxSynchronize());
    OK(cuMemcpyDtoH_v2(&wrong, counter, 4));
    printf("%s: wrong %u\n", what, wrong);
}

int main(int argc, char **argv)
{
    uint64_t state = argc > 1 ? strtoull(argv[1], 0, 10) : 0;
    handle green[PARTS], of[PARTS], stream[PARTS], plain;
    ptr kept[PARTS], last;
    OK(cuInit(0));
    OK(cuDevicePrimaryCtxRetain(&primary, 0));
    OK(cuCtxSetCurrent(primary));
    /* A library's kernels belong to no context. */
    OK(cuLibraryLoadData(&module, PTX, 0, 0, 0, 0, 0, 0));
    OK(cuLibraryGetKernel(&fill_kernel, module, "fill"));
    OK(cuLibraryGetKernel(&differ_kernel, module, "differ"));
    OK(cuStreamCreate(&plain, 1));
    ALLOCATED(cuMemAlloc_v2(&counter, 4));
    OK(cuMemsetD32_v2(counter, 0, 1));
    OK(cuCtxSynchronize());

    for (int again = 0; again < 3; ++again) {
        resource all, part[PARTS], rest;
        unsigned parts = PARTS;
        memset(part, 0, sizeof part);
        OK(cuDeviceGetDevResource(0, &all, 1));
        OK(cuDevSmResourceSplitByCount(part, &parts, &all, &rest, 0, 8));
        printf("%u parts\n", parts);
        for (int n = 0; n < PARTS; ++n) {
            handle description;
            OK(cuDevResourceGenerateDesc(&description, &part[n], 1));
            OK(cuGreenCtxCreate(&green[n], description, 0, 1));
            OK(cuCtxFromGreenCtx(&of[n], green[n]));
            OK(cuGreenCtxStreamCreate(&stream[n], green[n], 1, 0));
        }
        for (int round = 0; round < 12; ++round) {
            int n = round % PARTS, other = (round + 1) % PARTS;
            unsigned value = random_bits(&state), ordered = random_bits(&state) % 2, in_order = random_bits(&state) % 2;
            handle late = random_bits(&state) % 3 ? stream[other] : plain;
            ptr p, q, r;
            OK(cuCtxSetCurrent(round % 3 ? of[n] : primary));
            ALLOCATED(ordered ? cuMemAllocAsync(&p, BYTES, stream[n]) : cuMemAlloc_v2(&p, BYTES));
            fill(stream[n], p, WORDS, value);
            OK(cuLaunchHostFunc(stream[n], delay, 0));
            differ(stream[n], p, WORDS, value, counter);
            /* Freed before that kernel has begun, and allocated again in another part, in no stream and in the same. */
            /* For stream-ordered memory, cuMemFree assumes that its use is over. */
            if (ordered && !in_order) OK(cuStreamSynchronize(stream[n]));
            OK(in_order ? cuMemFreeAsync(p, stream[n]) : cuMemFree_v2(p));
            ALLOCATED(cuMemAllocAsync(&q, BYTES, late));
            fill(late, q, WORDS, ~value);
            differ(late, q, WORDS, ~value, counter);
            ALLOCATED(cuMemAlloc_v2(&r, BYTES));
            fill(stream[other], r, WORDS, value + 1);
            differ(stream[other], r, WORDS, value + 1, counter);
            OK(cuMemFreeAsync(q, late));
            OK(cuMemFree_v2(r));
        }
        counted("queued");
        /* Memory of a part that is destroyed before it is freed. */
        for (int n = 0; n < PARTS; ++n) {
            OK(cuCtxSetCurrent(of[n]));
            ALLOCATED(cuMemAlloc_v2(&kept[n], 3 * MiB + n));
            OK(cuMemsetD32_v2(kept[n], 40 + n, MiB / 4));
            OK(cuCtxSynchronize());
        }
        OK(cuCtxSetCurrent(primary));
        for (int n = 0; n < PARTS; ++n) {
            OK(cuStreamDestroy_v2(stream[n]));
            OK(cuGreenCtxDestroy(green[n]));
        }
        for (int n = 0; n < PARTS; ++n) {
            unsigned word = 0;
            SAY(cuMemcpyDtoH_v2(&word, kept[n] + 4096, 4));
            printf("the destroyed part's memory holds %u\n", word);
            SAY(cuMemFree_v2(kept[n]));
        }
        /* An allocation made now does not wait for their work. */
        for (int round = 0; round < 20; ++round) {
            ALLOCATED(cuMemAlloc_v2(&last, (1 + random_bits(&state) % 32) * MiB));
            fill(plain, last, WORDS, round);
            differ(plain, last, WORDS, round, counter);
            OK(random_bits(&state) % 2 ? cuMemFreeAsync(last, plain) : cuMemFree_v2(last));
        }
        counted("after them");
    }
    OK(cuStreamDestroy_v2(plain));
    OK(cuMemFree_v2(counter));
    OK(cuLibraryUnload(module));
    OK(cuDevicePrimaryCtxRelease_v2(0));
    printf("end\n");
    fprintf(stderr, "allocations %u\n", allocations);
    return 0;
}
