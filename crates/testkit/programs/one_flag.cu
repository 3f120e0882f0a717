// Threads of many blocks set one flag, and each warp leaves its result in one word of the block.
//@ run one_flag: search grid=8 block=128
//@   in x: u32[1024] bits
//@   inout found: u32[1] zero raw
//@   out most: u32[8] raw

extern "C" __global__ void search(const unsigned* x, unsigned* found, unsigned* most) {
    __shared__ unsigned any;
    if (threadIdx.x == 0) any = 0;
    __syncthreads();
    unsigned v = x[blockIdx.x * blockDim.x + threadIdx.x];
    if (v % 2 == 1) {
        any = 1;
        *found = 1;
    }
    __syncthreads();
    if (threadIdx.x == 0) most[blockIdx.x] = any;
}
