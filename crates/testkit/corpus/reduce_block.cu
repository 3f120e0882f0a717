// A block's sum and maximum through shared memory: a halving tree, and warps first.
//@ run block_tree: block_tree grid=6 block=256
//@   in x: f32[1536] uniform(-4, 4)
//@   out sums: f32[6] bound
//@ run block_warps_first: block_warps_first grid=5 block=200
//@   in x: i32[1000] int(-1000000, 1000000)
//@   out sums: i32[5] exact
//@   out highs: i32[5] exact

extern "C" __global__ void block_tree(const float* x, float* sums) {
    __shared__ float s[256];
    int t = threadIdx.x;
    s[t] = x[blockIdx.x * 256 + t];
    __syncthreads();
    for (int half = 128; half > 0; half >>= 1) {
        if (t < half) s[t] += s[t + half];
        __syncthreads();
    }
    if (t == 0) sums[blockIdx.x] = s[0];
}

// 200 threads: the seventh warp is only a quarter full, so masks are not all ones.
extern "C" __global__ void block_warps_first(const int* x, int* sums, int* highs) {
    __shared__ int warp_sum[7];
    __shared__ int warp_high[7];
    int t = threadIdx.x, lane = t & 31, warp = t >> 5;
    int v = x[blockIdx.x * blockDim.x + t], high = v;
    unsigned mask = __ballot_sync(warp == 6 ? 0xffu : 0xffffffffu, 1);
    int width = __popc(mask);
    for (int d = 16; d > 0; d >>= 1) {
        int a = __shfl_down_sync(mask, v, d);
        int b = __shfl_down_sync(mask, high, d);
        if (lane + d < width) {
            v += a;
            high = b > high ? b : high;
        }
    }
    if (lane == 0) {
        warp_sum[warp] = v;
        warp_high[warp] = high;
    }
    __syncthreads();
    if (t == 0) {
        int sum = 0, top = warp_high[0];
        for (int w = 0; w < 7; ++w) {
            sum += warp_sum[w];
            top = max(top, warp_high[w]);
        }
        sums[blockIdx.x] = sum;
        highs[blockIdx.x] = top;
    }
}
