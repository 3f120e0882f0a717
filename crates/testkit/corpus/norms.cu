// RMS norm and layer norm of rows, f32 and bf16 storage, sums across the block.
//@ run rmsnorm: rmsnorm grid=5 block=96
//@   in x: f32[2500] uniform(-2, 2)
//@   in weight: f32[500] uniform(0.5, 1.5)
//@   out y: f32[2500] bound loose
//@   val cols: i32 500
//@   val eps: f32 0.00001
//@ run layernorm: layernorm grid=4 block=256
//@   in x: f32[3600] uniform(-1, 3)
//@   in gamma: f32[900] uniform(0.5, 1.5)
//@   in beta: f32[900] uniform(-1, 1)
//@   out y: f32[3600] bound loose
//@   val cols: i32 900
//@   val eps: f32 0.00001
//@ run rmsnorm_bf16: rmsnorm_bf16 grid=3 block=64
//@   in x: bf16[768] uniform(-2, 2)
//@   in weight: bf16[256] uniform(0.5, 1.5)
//@   out y: bf16[768] bound loose
//@   val eps: f32 0.000001
#include <cuda_bf16.h>

__device__ float block_sum(float v) {
    __shared__ float s[32];
    for (int m = 16; m > 0; m >>= 1) v += __shfl_xor_sync(0xffffffffu, v, m);
    if ((threadIdx.x & 31) == 0) s[threadIdx.x >> 5] = v;
    __syncthreads();
    float sum = 0.0f;
    for (unsigned w = 0; w < blockDim.x / 32; ++w) sum += s[w];
    __syncthreads();
    return sum;
}

extern "C" __global__ void rmsnorm(const float* x, const float* weight, float* y, int cols, float eps) {
    const float* row = x + blockIdx.x * cols;
    float squares = 0.0f;
    for (int c = threadIdx.x; c < cols; c += blockDim.x) squares += row[c] * row[c];
    float scale = rsqrtf(block_sum(squares) / (float)cols + eps);
    for (int c = threadIdx.x; c < cols; c += blockDim.x) y[blockIdx.x * cols + c] = row[c] * scale * weight[c];
}

extern "C" __global__ void layernorm(const float* x, const float* gamma, const float* beta, float* y, int cols, float eps) {
    const float* row = x + blockIdx.x * cols;
    float sum = 0.0f;
    for (int c = threadIdx.x; c < cols; c += blockDim.x) sum += row[c];
    float mean = block_sum(sum) / (float)cols;
    float squares = 0.0f;
    for (int c = threadIdx.x; c < cols; c += blockDim.x) squares += (row[c] - mean) * (row[c] - mean);
    float scale = rsqrtf(block_sum(squares) / (float)cols + eps);
    for (int c = threadIdx.x; c < cols; c += blockDim.x)
        y[blockIdx.x * cols + c] = (row[c] - mean) * scale * gamma[c] + beta[c];
}

extern "C" __global__ void rmsnorm_bf16(const __nv_bfloat162* x, const __nv_bfloat162* weight, __nv_bfloat162* y, float eps) {
    constexpr int PAIRS = 128;
    float squares = 0.0f;
    for (int c = threadIdx.x; c < PAIRS; c += blockDim.x) {
        float2 v = __bfloat1622float2(x[blockIdx.x * PAIRS + c]);
        squares += v.x * v.x + v.y * v.y;
    }
    float scale = rsqrtf(block_sum(squares) / (2.0f * PAIRS) + eps);
    for (int c = threadIdx.x; c < PAIRS; c += blockDim.x) {
        float2 v = __bfloat1622float2(x[blockIdx.x * PAIRS + c]), w = __bfloat1622float2(weight[c]);
        y[blockIdx.x * PAIRS + c] = __floats2bfloat162_rn(v.x * scale * w.x, v.y * scale * w.y);
    }
}
