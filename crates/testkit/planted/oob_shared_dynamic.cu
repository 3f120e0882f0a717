// The launch gives room for 32 floats, the kernel uses 64.
//@ run oob_shared_dynamic: stage grid=1 block=64 shared=128
//@   in x: f32[64] uniform(-1, 1)
//@   out y: f32[64] raw

extern __shared__ float pool[];

extern "C" __global__ void stage(const float* x, float* y) {
    pool[threadIdx.x] = x[threadIdx.x];
    __syncthreads();
    y[threadIdx.x] = pool[threadIdx.x ^ 1];
}
