// Counts of bytes: atomics on a block's shared bins, then one global add a bin; and matching lanes added once.
//@ run histogram_shared: histogram_shared grid=6 block=192
//@   in data: u8[10007] bits
//@   val n: i32 10007
//@   inout bins: u32[256] zero exact
//@ run histogram_match: histogram_match grid=4 block=128
//@   in data: u8[512] int(0, 15)
//@   inout bins: u32[16] zero exact

extern "C" __global__ void histogram_shared(const unsigned char* data, int n, unsigned* bins) {
    __shared__ unsigned s[256];
    for (int i = threadIdx.x; i < 256; i += blockDim.x) s[i] = 0;
    __syncthreads();
    for (int i = blockIdx.x * blockDim.x + threadIdx.x; i < n; i += gridDim.x * blockDim.x) atomicAdd(&s[data[i]], 1u);
    __syncthreads();
    for (int i = threadIdx.x; i < 256; i += blockDim.x)
        if (s[i]) atomicAdd(&bins[i], s[i]);
}

extern "C" __global__ void histogram_match(const unsigned char* data, unsigned* bins) {
    unsigned bin = data[blockIdx.x * blockDim.x + threadIdx.x];
    unsigned same = __match_any_sync(0xffffffffu, bin);
    if ((threadIdx.x & 31) == (unsigned)(__ffs(same) - 1)) atomicAdd(&bins[bin], (unsigned)__popc(same));
}
