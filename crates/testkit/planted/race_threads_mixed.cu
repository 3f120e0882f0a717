// One warp adds atomically, the other one reads the sum plainly.
//@ run race_threads_mixed: tally grid=1 block=64
//@   inout sum: u32[1] zero raw
//@   out seen: u32[64] raw

extern "C" __global__ void tally(unsigned* sum, unsigned* seen) {
    if (threadIdx.x < 32) atomicAdd(sum, 1u);
    else seen[threadIdx.x] = *sum;
}
