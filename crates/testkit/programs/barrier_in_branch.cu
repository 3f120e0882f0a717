// A barrier that half of the block reaches: the rest has nothing more to do and exits.
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
