// A smoothing done in place: a block reads what its neighbour may already have changed.
//@ run race_blocks_neighbour: smooth grid=4 block=64
//@   inout x: f32[256] uniform(-1, 1) raw

extern "C" __global__ void smooth(float* x) {
    int i = blockIdx.x * 64 + threadIdx.x;
    float before = i > 0 ? x[i - 1] : 0.0f;
    __syncthreads();
    x[i] = 0.5f * (x[i] + before);
}
