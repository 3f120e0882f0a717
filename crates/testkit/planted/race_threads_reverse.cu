// A reversal through global memory without the barrier between writing and reading.
//@ run race_threads_reverse: reverse grid=1 block=64
//@   inout x: i32[64] bits raw
//@   out y: i32[64] raw

extern "C" __global__ void reverse(int* x, int* y) {
    x[threadIdx.x] += 1;
    y[threadIdx.x] = x[63 - threadIdx.x];
}
