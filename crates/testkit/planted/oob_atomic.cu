// Seventeen values for sixteen bins.
//@ run oob_atomic: count grid=1 block=34
//@   inout bins: u32[16] zero raw

extern "C" __global__ void count(unsigned* bins) { atomicAdd(&bins[threadIdx.x % 17], 1u); }
