// An asynchronous copy is committed and used, but never waited for.
//@ run async_no_wait: fetch grid=1 block=32
//@   in x: f32[32] uniform(-1, 1)
//@   out y: f32[32] raw
#include <cuda_pipeline.h>

extern "C" __global__ void fetch(const float* x, float* y) {
    __shared__ float s[32];
    __pipeline_memcpy_async(&s[threadIdx.x], &x[threadIdx.x], 4);
    __pipeline_commit();
    __syncthreads();
    y[threadIdx.x] = s[threadIdx.x];
}
