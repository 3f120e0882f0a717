// A counter that all threads of a block increment, without an atomic.
//@ run race_threads_counter: count grid=1 block=64
//@   inout total: u32[1] zero raw

extern "C" __global__ void count(unsigned* total) {
    *total = *total + 1;
}
