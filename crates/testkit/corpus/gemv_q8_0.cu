// A matrix of Q8_0 blocks (an f16 scale, 32 bytes) times a vector quantised likewise, by dp4a.
//@ run quantise_q8_0: quantise_q8_0 grid=1 block=128
//@   in x: f32[512] uniform(-3, 3)
//@   out scale: f16[16] exact
//@   out q: i8[512] exact
//@ run gemv_q8_0: gemv_q8_0 grid=12 block=32
//@   in weights: u8[6528] made
//@   in scale: f16[16] uniform(0.01, 0.05)
//@   in q: i8[512] int(-127, 127)
//@   out y: f32[12] bound
//@   val blocks: i32 16
#include <cuda_fp16.h>

extern "C" __global__ void quantise_q8_0(const float* x, __half* scale, signed char* q) {
    int lane = threadIdx.x & 31;
    for (int block = threadIdx.x >> 5; block < 16; block += 4) {
        float v = x[block * 32 + lane], high = fabsf(v);
        for (int m = 16; m > 0; m >>= 1) high = fmaxf(high, __shfl_xor_sync(0xffffffffu, high, m));
        float d = __fdiv_rn(high, 127.0f);
        q[block * 32 + lane] = d > 0.0f ? (signed char)__float2int_rn(__fdiv_rn(v, d)) : 0;
        if (lane == 0) scale[block] = __float2half_rn(d);
    }
}

// A block is 34 bytes, so its bytes are only 2-aligned: words are put together from halves.
__device__ int word(const unsigned char* p) {
    const unsigned short* h = reinterpret_cast<const unsigned short*>(p);
    return (int)(h[0] | ((unsigned)h[1] << 16));
}

extern "C" __global__ void gemv_q8_0(const unsigned char* weights, const __half* scale, const signed char* q, float* y, int blocks) {
    const unsigned char* row = weights + (long long)blockIdx.x * blocks * 34;
    float sum = 0.0f;
    for (int b = threadIdx.x; b < blocks; b += 32) {
        const unsigned char* w = row + b * 34;
        int dot = 0;
        for (int i = 0; i < 8; ++i) dot = __dp4a(word(w + 2 + 4 * i), reinterpret_cast<const int*>(q)[b * 8 + i], dot);
        float d = __half2float(*reinterpret_cast<const __half*>(w)) * __half2float(scale[b]);
        sum += d * (float)dot;
    }
    for (int m = 16; m > 0; m >>= 1) sum += __shfl_xor_sync(0xffffffffu, sum, m);
    if (threadIdx.x == 0) y[blockIdx.x] = sum;
}
