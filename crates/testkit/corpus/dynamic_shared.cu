// Dynamic shared memory cut into parts, static beside dynamic, and more than 48 KiB of it.
//@ run dynamic_shared: dynamic_shared grid=2 block=64 shared=1344
//@   in x: f32[128] uniform(-1, 1)
//@   out y: f32[128] exact
//@   out order: u32[128] exact
//@ run large_shared: large_shared grid=1 block=256 shared=98304
//@   in x: u32[24576] bits
//@   out y: u32[24576] exact
//@   out size: u32[1] exact

extern __shared__ __align__(16) unsigned char pool[];

extern "C" __global__ void dynamic_shared(const float* x, float* y, unsigned* order) {
    __shared__ float last;
    double* d = reinterpret_cast<double*>(pool);
    float* f = reinterpret_cast<float*>(pool + 64 * 8);
    unsigned short* h = reinterpret_cast<unsigned short*>(pool + 64 * 12);
    int t = threadIdx.x;
    f[t] = x[blockIdx.x * 64 + t];
    d[63 - t] = (double)f[t] * 0.5;
    h[t ^ 5] = (unsigned short)t;
    if (t == 63) last = f[t];
    __syncthreads();
    y[blockIdx.x * 64 + t] = (float)(d[t] + (double)last);
    order[blockIdx.x * 64 + t] = h[t] | (unsigned)(d[t] > d[t ^ 1]) << 16;
}

extern "C" __global__ void large_shared(const unsigned* x, unsigned* y, unsigned* size) {
    unsigned* s = reinterpret_cast<unsigned*>(pool);
    for (int i = threadIdx.x; i < 24576; i += 256) s[i * 5 % 24576] = x[i];
    __syncthreads();
    for (int i = threadIdx.x; i < 24576; i += 256) y[i] = s[24575 - i];
    if (threadIdx.x == 0) asm("mov.u32 %0, %%dynamic_smem_size;" : "=r"(*size));
}
