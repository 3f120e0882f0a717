// A counter of the whole grid, with atomics that only the threads of a block see.
//@ run scope_of_block: count grid=4 block=32
//@   inout total: u32[1] zero raw

extern "C" __global__ void count(unsigned* total) {
    atomicAdd_block(total, 1u);
}
