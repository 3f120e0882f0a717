// One sum over the whole grid in one launch: the block that finishes last adds the partial sums.
//@ run last_block_sum: last_block_sum grid=24 block=128
//@   in x: f32[20000] uniform(0, 1)
//@   val n: i32 20000
//@   inout partial: f32[24] zero bound
//@   inout ticket: u32[1] zero exact
//@   out total: f32[1] bound

__device__ float block_sum(float v) {
    __shared__ float warps[4];
    for (int d = 16; d > 0; d >>= 1) v += __shfl_down_sync(0xffffffffu, v, d);
    if ((threadIdx.x & 31) == 0) warps[threadIdx.x >> 5] = v;
    __syncthreads();
    float sum = warps[0] + warps[1] + warps[2] + warps[3];
    __syncthreads();
    return sum;
}

extern "C" __global__ void last_block_sum(const float* x, int n, float* partial, unsigned* ticket, float* total) {
    __shared__ bool last;
    float v = 0.0f;
    for (int i = blockIdx.x * blockDim.x + threadIdx.x; i < n; i += gridDim.x * blockDim.x) v += x[i];
    v = block_sum(v);
    if (threadIdx.x == 0) {
        partial[blockIdx.x] = v;
        __threadfence();
        last = atomicInc(ticket, gridDim.x - 1) == gridDim.x - 1;
        __threadfence();
    }
    __syncthreads();
    if (last) {
        float p = threadIdx.x < gridDim.x ? __ldcg(&partial[threadIdx.x]) : 0.0f;
        p = block_sum(p);
        if (threadIdx.x == 0) *total = p;
    }
}
