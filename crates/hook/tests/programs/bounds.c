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

/* Kernels of names of their own: the device reports a line of a kernel once a process. */
static void load_kernels(size_t bytes)
{
    char text[4096], *at = text, fill[32], differ[32];
    sprintf(fill, "fill_%zu", bytes);
    sprintf(differ, "differ_%zu", bytes);
    for (const char *from = PTX; *from;) {
        const char *name = !strncmp(from, "fill(", 5) ? fill : !strncmp(from, "differ(", 7) ? differ : 0;
        if (!name) { *at++ = *from++; continue; }
        at += sprintf(at, "%s", name);
        from = strchr(from, '(');
    }
    *at = 0;
    OK(cuModuleLoadData(&module, text));
    OK(cuModuleGetFunction(&fill_kernel, module, fill));
    OK(cuModuleGetFunction(&differ_kernel, module, differ));
}

static void plant(int ordered, size_t bytes)
{
    printf("%zu bytes\n", bytes);
    load_kernels(bytes);
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

/* Whether blocks are allocated in a stream's order; then sizes in bytes, multiples of 4. */
int main(int argc, char **argv)
{
    if (argc < 3) return 2;
    begin();
    OK(cuStreamCreate(&stream, 1));
    for (int i = 2; i < argc; i++) {
        plant(atoi(argv[1]), strtoull(argv[i], 0, 10));
        OK(cuCtxSynchronize());
    }
    printf("end\n");
    return 0;
}
