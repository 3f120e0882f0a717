// Sums and extrema within a warp: shuffles down, a butterfly, and the integer reduction unit.
//@ run warp_sums: warp_sums grid=4 block=128
//@   in x: f32[512] uniform(-1, 1)
//@   out down: f32[16] bound
//@   out butterfly: f32[512] bound
//@ run warp_redux: warp_redux grid=2 block=96
//@   in x: u32[192] bits
//@   out sums: u32[6] exact
//@   out lows: i32[6] exact
//@   out highs: u32[6] exact
//@   out masks: u32[18] exact

extern "C" __global__ void warp_sums(const float* x, float* down, float* butterfly) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    float v = x[i];
    for (int d = 16; d > 0; d >>= 1) v += __shfl_down_sync(0xffffffffu, v, d);
    if ((threadIdx.x & 31) == 0) down[i >> 5] = v;

    float w = x[i];
    for (int m = 1; m < 32; m <<= 1) w += __shfl_xor_sync(0xffffffffu, w, m);
    butterfly[i] = w;
}

extern "C" __global__ void warp_redux(const unsigned* x, unsigned* sums, int* lows, unsigned* highs, unsigned* masks) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    int warp = i >> 5;
    unsigned v = x[i];
    unsigned sum = __reduce_add_sync(0xffffffffu, v);
    int low = __reduce_min_sync(0xffffffffu, (int)v);
    unsigned high = __reduce_max_sync(0xffffffffu, v);
    unsigned both = __reduce_and_sync(0xffffffffu, v | 0x00ff00ffu);
    unsigned any = __reduce_or_sync(0xffffffffu, v & 0x0f0f0f0fu);
    unsigned odd = __reduce_xor_sync(0xffffffffu, v);
    if ((threadIdx.x & 31) == 7) {
        sums[warp] = sum;
        lows[warp] = low;
        highs[warp] = high;
        masks[warp * 3] = both;
        masks[warp * 3 + 1] = any;
        masks[warp * 3 + 2] = odd;
    }
}
