// The tile is refilled while slower warps still read it: the loop's second barrier is missing.
//@ run race_tile_reused: tiles grid=1 block=64
//@   in x: f32[256] uniform(-1, 1)
//@   out y: f32[64] raw

extern "C" __global__ void tiles(const float* x, float* y) {
    __shared__ float s[64];
    float sum = 0.0f;
    for (int i = 0; i < 4; ++i) {
        s[threadIdx.x] = x[i * 64 + threadIdx.x];
        __syncthreads();
        sum += s[63 - threadIdx.x];
    }
    y[threadIdx.x] = sum;
}
