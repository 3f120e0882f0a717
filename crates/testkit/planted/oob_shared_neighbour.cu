// A tile one element too small, behind which another array lies.
//@ run oob_shared_neighbour: shift grid=1 block=64
//@   in x: f32[64] uniform(-1, 1)
//@   out y: f32[64] raw

extern "C" __global__ void shift(const float* x, float* y) {
    __shared__ float tile[63];
    __shared__ float scale[64];
    scale[threadIdx.x] = 2.0f;
    __syncthreads();
    tile[threadIdx.x] = x[threadIdx.x];
    __syncthreads();
    y[threadIdx.x] = tile[62 - threadIdx.x % 63] * scale[threadIdx.x];
}
