// Waits until one group is outstanding, and reads from that one.
//@ run async_wrong_group: stages grid=1 block=32
//@   in x: f32[64] uniform(-1, 1)
//@   out y: f32[64] raw
#include <cuda_pipeline.h>

extern "C" __global__ void stages(const float* x, float* y) {
    __shared__ float s[2][32];
    int t = threadIdx.x;
    for (int i = 0; i < 2; ++i) {
        __pipeline_memcpy_async(&s[i][t], &x[i * 32 + t], 4);
        __pipeline_commit();
    }
    __pipeline_wait_prior(1);
    y[t] = s[0][t];
    y[32 + t] = s[1][t];
}
