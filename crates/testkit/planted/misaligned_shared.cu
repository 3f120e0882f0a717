// Packs floats behind a flag byte in shared memory.
//@ run misaligned_shared: pack grid=1 block=4
//@   in x: f32[4] uniform(-1, 1)
//@   out y: f32[4] raw

extern "C" __global__ void pack(const float* x, float* y) {
    __shared__ __align__(8) unsigned char s[32];
    float* f = reinterpret_cast<float*>(s + 1);
    f[threadIdx.x] = x[threadIdx.x];
    __syncthreads();
    y[threadIdx.x] = f[3 - threadIdx.x];
}
