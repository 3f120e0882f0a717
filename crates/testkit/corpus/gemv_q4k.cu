// Q4_K: 256 weights in 144 bytes (two f16 scales, twelve bytes of 6-bit scales and minima, nibbles): expand, and multiply.
//@ options: --fmad=false
//@ run dequantise_q4k: dequantise_q4k grid=10 block=64
//@   in weights: u8[1440] made
//@   out y: f32[2560] exact
//@ run gemv_q4k: gemv_q4k grid=6 block=64
//@   in weights: u8[3456] made
//@   in q: i8[1024] int(-127, 127)
//@   in scale: f32[32] uniform(0.01, 0.05)
//@   out y: f32[6] bound
//@   val blocks: i32 4
#include <cuda_fp16.h>

// The 6-bit scale and minimum of sub-block `j`: the first four plain, the rest with their high bits kept apart.
__device__ void scale_and_min(const unsigned char* s, int j, int& scale, int& low) {
    if (j < 4) {
        scale = s[j] & 63;
        low = s[j + 4] & 63;
    } else {
        scale = (s[j + 4] & 15) | (s[j - 4] >> 6 << 4);
        low = (s[j + 4] >> 4) | (s[j] >> 6 << 4);
    }
}

extern "C" __global__ void dequantise_q4k(const unsigned char* weights, float* y) {
    const unsigned char* w = weights + blockIdx.x * 144;
    __half2 d = *reinterpret_cast<const __half2*>(w);
    for (int i = threadIdx.x; i < 256; i += 64) {
        int sub = i / 32, scale, low;
        scale_and_min(w + 4, sub, scale, low);
        int byte = w[16 + sub / 2 * 32 + i % 32];
        int nibble = sub & 1 ? byte >> 4 : byte & 15;
        y[blockIdx.x * 256 + i] = __low2float(d) * (float)scale * (float)nibble - __high2float(d) * (float)low;
    }
}

// A row a block of 64 threads; a thread takes one sub-block of 32 at a time, the vector being 32-wise int8.
extern "C" __global__ void gemv_q4k(const unsigned char* weights, const signed char* q, const float* scale, float* y, int blocks) {
    __shared__ float warps[2];
    float sum = 0.0f;
    for (int u = threadIdx.x; u < blocks * 8; u += 64) {
        const unsigned char* w = weights + ((long long)blockIdx.x * blocks + u / 8) * 144;
        int sub = u % 8, s, low;
        scale_and_min(w + 4, sub, s, low);
        const unsigned* nibbles = reinterpret_cast<const unsigned*>(w + 16 + sub / 2 * 32);
        const int* v = reinterpret_cast<const int*>(q + u * 32);
        int dot = 0, ones = 0;
        for (int i = 0; i < 8; ++i) {
            unsigned n = sub & 1 ? nibbles[i] >> 4 : nibbles[i];
            dot = __dp4a((int)(n & 0x0f0f0f0fu), v[i], dot);
            ones = __dp4a(0x01010101, v[i], ones);
        }
        float2 d = __half22float2(*reinterpret_cast<const __half2*>(w));
        sum += scale[u] * (d.x * (float)(s * dot) - d.y * (float)(low * ones));
    }
    for (int m = 16; m > 0; m >>= 1) sum += __shfl_xor_sync(0xffffffffu, sum, m);
    if ((threadIdx.x & 31) == 0) warps[threadIdx.x >> 5] = sum;
    __syncthreads();
    if (threadIdx.x == 0) y[blockIdx.x] = warps[0] + warps[1];
}
