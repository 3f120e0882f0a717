// Eight coefficients, sixteen wanted.
//@ run oob_constant: apply grid=1 block=16
//@   set taps: f32[8] uniform(-1, 1)
//@   out y: f32[16] raw

__constant__ float taps[8];

extern "C" __global__ void apply(float* y) { y[threadIdx.x] = taps[threadIdx.x]; }
