// The guard that fills the tile is not the guard that reads it.
//@ run uninit_shared: tile grid=1 block=32
//@   in x: i32[30] bits
//@   out y: i32[32] raw
//@   val n: i32 30

extern "C" __global__ void tile(const int* x, int* y, int n) {
    __shared__ int s[32];
    if ((int)threadIdx.x < n) s[threadIdx.x] = x[threadIdx.x];
    __syncthreads();
    y[threadIdx.x] = s[31 - threadIdx.x];
}
