// Accumulates into a buffer that nobody set to zero.
//@ run uninit_global: accumulate grid=1 block=32
//@   in x: f32[32] uniform(-1, 1)
//@   out sums: f32[32] raw

extern "C" __global__ void accumulate(const float* x, float* sums) { sums[threadIdx.x] += x[threadIdx.x]; }
