// The Game of Life for several generations in one cooperative launch, bits packed by ballots.
//@ run life: life grid=8 block=32,8 cooperative
//@   in start: u8[4096] int(0, 1)
//@   inout a: u8[4096] zero exact
//@   inout b: u8[4096] zero exact
//@   out packed: u32[128] exact
//@   val generations: i32 5
#include <cooperative_groups.h>

extern "C" __global__ void life(const unsigned char* start, unsigned char* a, unsigned char* b, unsigned* packed, int generations) {
    auto grid = cooperative_groups::this_grid();
    unsigned rank = (unsigned)grid.thread_rank(), size = (unsigned)grid.size();
    for (unsigned i = rank; i < 4096; i += size) a[i] = start[i];
    grid.sync();
    unsigned char *from = a, *to = b;
    for (int g = 0; g < generations; ++g) {
        for (unsigned i = rank; i < 4096; i += size) {
            unsigned r = i / 64, c = i % 64, n = 0;
            for (unsigned dr = 63; dr <= 65; ++dr)
                for (unsigned dc = 63; dc <= 65; ++dc)
                    if (dr != 64 || dc != 64) n += from[(r + dr) % 64 * 64 + (c + dc) % 64];
            to[i] = n == 3 || (n == 2 && from[i]);
        }
        grid.sync();
        unsigned char* p = from;
        from = to;
        to = p;
    }
    for (unsigned i = rank; i < 4096; i += size) {
        unsigned word = __ballot_sync(0xffffffffu, from[i]);
        if (i % 32 == 0) packed[i / 32] = word;
    }
}
