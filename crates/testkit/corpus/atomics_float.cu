// Floating-point atomics on small whole numbers, whose sums are exact in any order: f32, f64, f16x2, bf16x2, vectors of a warp.
//@ run atomics_float: atomics_float grid=4 block=64
//@   in x: i32[256] int(-3, 3)
//@   inout single: f32[2] zero exact
//@   inout twice: f64[1] zero exact
//@   inout halves: f16[2] zero exact
//@   inout brains: bf16[2] zero exact
//@   inout one_half: f16[2] zero exact
//@   out in_block: f32[4] exact
#include <cuda_bf16.h>
#include <cuda_fp16.h>

extern "C" __global__ void atomics_float(const int* x, float* single, double* twice, __half2* halves, __nv_bfloat162* brains,
                                         __half* one_half, float* in_block) {
    __shared__ float s;
    int v = x[blockIdx.x * 64 + threadIdx.x];
    if (threadIdx.x == 0) s = 0.0f;
    __syncthreads();
    atomicAdd(&s, (float)v * 0.5f);
    atomicAdd(&single[threadIdx.x & 1], (float)v);
    atomicAdd(twice, (double)v * 0.25);
    atomicAdd(halves, __floats2half2_rn((float)v, 0.5f));
    // 256 is the last whole number up to which bf16 counts by ones: only some threads add.
    if (threadIdx.x < 16) atomicAdd(brains, __floats2bfloat162_rn((float)v, 1.0f));
    atomicAdd(&one_half[1], __float2half((float)(v & 1)));
    __syncthreads();
    if (threadIdx.x == 0) in_block[blockIdx.x] = s;
}
