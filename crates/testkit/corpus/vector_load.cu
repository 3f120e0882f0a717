// Loads and stores of two and four elements, bytes to f64, cached ways, unaligned remainders, generic addresses.
//@ run vector_copy: vector_copy grid=4 block=64
//@   in x: f32[1027] bits
//@   out y: f32[1027] exact
//@   val n: i32 1027
//@ run vector_kinds: vector_kinds grid=1 block=64
//@   in a: u8[256] bits
//@   in b: u16[128] bits
//@   in c: f64[128] uniform(-1, 1)
//@   in d: i32[256] bits
//@   out r: u32[64] exact
//@   out s: f64[64] exact
//@   out bytes: u8[256] exact
//@ run generic_space: generic_space grid=1 block=32
//@   in x: i32[32] bits
//@   out y: i32[32] exact

extern "C" __global__ void vector_copy(const float* x, float* y, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x, quads = n / 4;
    if (i < quads) {
        float4 v = reinterpret_cast<const float4*>(x)[i];
        reinterpret_cast<float4*>(y)[i] = v;
    }
    if (blockIdx.x == 0 && (int)threadIdx.x < n % 4) y[quads * 4 + threadIdx.x] = x[quads * 4 + threadIdx.x];
}

extern "C" __global__ void vector_kinds(const uchar4* a, const ushort2* b, const double2* c, const int4* d, unsigned* r, double* s, uchar4* bytes) {
    int t = threadIdx.x;
    uchar4 p = __ldg(&a[t]);
    ushort2 q = __ldcs(&b[t]);
    double2 u = __ldca(&c[t]);
    int4 w = __ldcv(&d[t]);
    r[t] = (p.x + p.y * 3u + p.z * 5u + p.w * 7u) ^ (q.x * 11u + q.y * 13u) ^ (unsigned)(w.x + w.y * 3 + w.z * 9 + w.w * 27);
    __stcg(&s[t], u.x - u.y);
    __stcs(&bytes[t], make_uchar4(p.w, p.z, p.y, (unsigned char)(p.x + 1)));
}

// One pointer that is shared, local or global as the lane has it.
extern "C" __global__ void generic_space(const int* x, int* y) {
    __shared__ int s[32];
    int own[4] = {1, 2, 3, 4};
    int t = threadIdx.x;
    s[t] = x[t] * 2;
    own[t & 3] += x[t];
    __syncwarp();
    const int* p = t % 3 == 0 ? &s[(t + 1) & 31] : t % 3 == 1 ? &own[t & 3] : &x[31 - t];
    y[t] = *p + (__isShared(p) ? 1000 : 0) + (__isLocal(p) ? 2000 : 0) + (__isGlobal(p) ? 3000 : 0);
}
