// Each thread waits for its own copy, then reads another's.
//@ run async_no_barrier: fetch grid=1 block=64
//@   in x: f32[64] uniform(-1, 1)
//@   out y: f32[64] raw
#include <cuda_pipeline.h>

extern "C" __global__ void fetch(const float* x, float* y) {
    __shared__ float s[64];
    __pipeline_memcpy_async(&s[threadIdx.x], &x[threadIdx.x], 4);
    __pipeline_commit();
    __pipeline_wait_prior(0);
    y[threadIdx.x] = s[63 - threadIdx.x];
}
