/* Descriptors of address ranges: what the driver answers, with the hook and without, and that memory with a
   descriptor stays where it is while other memory comes and goes. On any device: dmabuf ranges. */
#include <fcntl.h>

#include "driver.h"

#define MiB (1ull << 20)

int cuDeviceGetAttribute(int *, int, int);
int cuMemGetHandleForAddressRange(void *, ptr, size_t, int, unsigned long long);

enum { DMA_BUF_SUPPORTED = 124, DMA_BUF_FD = 1, COUNT = 24 };

/* The descriptor of a range, and whether it is one. */
static int descriptor(const char *what, ptr at, size_t bytes)
{
    int fd = -1;
    int code = cuMemGetHandleForAddressRange(&fd, at, bytes, DMA_BUF_FD, 0);
    printf("%s: %d, a descriptor %d\n", what, code, code == SUCCESS && fcntl(fd, F_GETFD) >= 0);
    return code == SUCCESS ? fd : -1;
}

static void check(ptr p, unsigned value)
{
    unsigned wrong = 0, *words = malloc(4 * MiB);
    OK(cuMemcpyDtoH_v2(words, p, 4 * MiB));
    for (unsigned n = 0; n < MiB; ++n) wrong += words[n] != value;
    if (wrong) printf("wrong: %u words\n", wrong);
    free(words);
}

static void ranges(void)
{
    begin();
    int supported = -1;
    OK(cuDeviceGetAttribute(&supported, DMA_BUF_SUPPORTED, 0));
    printf("supported %d\n", supported);
    ptr p[COUNT];
    for (int n = 0; n < COUNT; ++n) {
        OK(cuMemAlloc_v2(&p[n], 4 * MiB));
        OK(cuMemsetD32_v2(p[n], 1000 + n, MiB));
    }
    int fds[8], used = 0;
    fds[used++] = descriptor("a block", p[5], 4 * MiB);
    fds[used++] = descriptor("the same", p[5], 4 * MiB);
    fds[used++] = descriptor("a part", p[7] + 65536, MiB);
    fds[used++] = descriptor("another kind", p[7], 0);
    printf("no place for it: %d\n", cuMemGetHandleForAddressRange(0, p[7], 4 * MiB, DMA_BUF_FD, 0));
    printf("strange kind: %d\n", cuMemGetHandleForAddressRange(&fds[used], p[7], 4 * MiB, 77, 0));
    OK(cuMemFree_v2(p[9]));
    fds[used++] = descriptor("freed", p[9], 4 * MiB);
    fds[used++] = descriptor("nothing", 0x1000, 4096);
    /* All but a few go, and others come that are too large for the holes. */
    for (int n = 0; n < COUNT; ++n)
        if (n != 9 && n % 6) OK(cuMemFree_v2(p[n]));
    OK(cuCtxSynchronize());
    for (int round = 0; round < 4; ++round) {
        ptr large[3];
        for (int n = 0; n < 3; ++n) {
            OK(cuMemAlloc_v2(&large[n], (10 + round) * 2 * MiB));
            OK(cuMemsetD32_v2(large[n], 7, (10 + round) * MiB / 2));
        }
        for (int n = 0; n < COUNT; n += 6) check(p[n], 1000 + n);
        for (int n = 0; n < 3; ++n) OK(cuMemFree_v2(large[n]));
        OK(cuCtxSynchronize());
    }
    for (int n = 0; n < used; ++n)
        if (fds[n] >= 0) close(fds[n]);
    for (int n = 0; n < COUNT; n += 6) OK(cuMemFree_v2(p[n]));
    mark("end");
}

int main(int argc, char **argv)
{
    static const test_case cases[] = {{"ranges", ranges}, {0, 0}};
    setvbuf(stdout, 0, _IOLBF, 0);
    return run_case(cases, argc, argv);
}
