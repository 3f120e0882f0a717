/* Kernels and copies that leave their blocks, read what was not written, or use what was freed.
   The device's checks report each; results of calls are printed, to be compared between runs. */
#include "driver.h"

static handle stream;

/* Writes one word there. */
static void write_word(ptr p)
{
    fill(stream, p, 1, 7);
    OK(cuStreamSynchronize(stream));
}

static ptr allocate(int ordered, size_t bytes)
{
    ptr p;
    if (ordered) OK(cuMemAllocAsync(&p, bytes, stream));
    else OK(cuMemAlloc_v2(&p, bytes));
    return p;
}

static void release(int ordered, ptr p)
{
    if (ordered) OK(cuMemFreeAsync(p, stream));
    else OK(cuMemFree_v2(p));
}

static void plant(int ordered, size_t bytes)
{
    printf("%zu bytes\n", bytes);
    fprintf(stderr, "%zu bytes, %s\n", bytes, ordered ? "ordered" : "plain");
    ptr count = allocate(0, 4), blocks[3];
    OK(cuMemsetD8_v2(count, 0, 4));
    OK(cuCtxSynchronize());
    for (int i = 0; i < 3; i++) blocks[i] = allocate(ordered, bytes);
    OK(cuStreamSynchronize(stream));
    /* Never written. */
    differ(stream, blocks[1], 1, 7, count);
    OK(cuStreamSynchronize(stream));
    for (int i = 0; i < 3; i++) {
        fill(stream, blocks[i], (unsigned)(bytes / 4), 7);
        OK(cuStreamSynchronize(stream));
        /* Past its end and before its start, near and as far as its guard. */
        write_word(blocks[i] + bytes);
        write_word(blocks[i] + bytes + 4092);
        write_word(blocks[i] - 4);
        write_word(blocks[i] - 4096);
        SAY(cuMemsetD8_v2(blocks[i], 1, bytes + 1));
        SAY(cuMemcpyDtoD_v2(blocks[i], blocks[(i + 1) % 3], bytes + 4));
    }
    for (int i = 0; i < 3; i++) release(ordered, blocks[i]);
    OK(cuStreamSynchronize(stream));
    write_word(blocks[1]);
    /* Others of the same size may have its memory, and not its address. */
    for (int i = 0; i < 3; i++) blocks[i] = allocate(ordered, bytes);
    OK(cuStreamSynchronize(stream));
    differ(stream, blocks[0], 1, 7, count);
    OK(cuStreamSynchronize(stream));
    for (int i = 0; i < 3; i++) release(ordered, blocks[i]);
    release(0, count);
}

/* A size in bytes, a multiple of 4; whether blocks are allocated in a stream's order. The device
   reports a kernel's line once a process. */
int main(int argc, char **argv)
{
    if (argc != 3) return 2;
    begin();
    OK(cuStreamCreate(&stream, 1));
    plant(atoi(argv[2]), strtoull(argv[1], 0, 10));
    OK(cuCtxSynchronize());
    printf("end\n");
    return 0;
}
