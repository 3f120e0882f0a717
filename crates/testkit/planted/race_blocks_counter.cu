// A counter shared by all blocks, incremented without an atomic.
//@ run race_blocks_counter: count grid=8 block=32
//@   inout total: u32[1] zero raw

extern "C" __global__ void count(unsigned* total) {
    if (threadIdx.x == 0) *total = *total + 32;
}
