// Neighbours in a warp exchange through shared memory as if lanes still ran in step.
//@ run race_in_warp: exchange grid=1 block=32
//@   in x: u32[32] bits
//@   out y: u32[32] raw

extern "C" __global__ void exchange(const unsigned* x, unsigned* y) {
    __shared__ unsigned s[32];
    s[threadIdx.x] = x[threadIdx.x];
    y[threadIdx.x] = s[threadIdx.x ^ 1];
}
