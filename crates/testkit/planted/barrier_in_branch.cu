// A barrier that only half of the block can reach.
//@ run barrier_in_branch: halve grid=1 block=64
//@   inout x: f32[64] uniform(-1, 1) raw

extern "C" __global__ void halve(float* x) {
    __shared__ float s[64];
    s[threadIdx.x] = x[threadIdx.x];
    if (threadIdx.x < 32) {
        __syncthreads();
        x[threadIdx.x] = s[threadIdx.x] * 0.5f;
    }
}
