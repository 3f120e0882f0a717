// A reversal through shared memory without the barrier between writing and reading.
//@ run race_missing_barrier: reverse grid=1 block=64
//@   in x: i32[64] bits
//@   out y: i32[64] raw

extern "C" __global__ void reverse(const int* x, int* y) {
    __shared__ int s[64];
    s[threadIdx.x] = x[threadIdx.x];
    y[threadIdx.x] = s[63 - threadIdx.x];
}
