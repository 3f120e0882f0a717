// mma.sync m16n8k8 and m16n8k4 on tf32, and f64 m8n8k4.
//@ run mma_tf32: mma_tf32 grid=1 block=32
//@   in a: f32[128] uniform(-1, 1)
//@   in b: f32[64] uniform(-1, 1)
//@   out d: f32[128] bound loose
//@   out half_k: f32[128] bound loose
//@ run mma_f64: mma_f64 grid=1 block=32
//@   in a: f64[32] uniform(-1, 1)
//@   in b: f64[32] uniform(-1, 1)
//@   in c: f64[64] uniform(-1, 1)
//@   out d: f64[64] bound loose

__device__ unsigned tf32(float v) {
    unsigned r;
    asm("cvt.rna.tf32.f32 %0, %1;" : "=r"(r) : "f"(v));
    return r;
}

// a is 16 x 8 row major, b is 8 x 8 column major.
extern "C" __global__ void mma_tf32(const float* a, const float* b, float* d, float* half_k) {
    int group = threadIdx.x / 4, member = threadIdx.x % 4;
    unsigned a0 = tf32(a[group * 8 + member]), a1 = tf32(a[(group + 8) * 8 + member]);
    unsigned a2 = tf32(a[group * 8 + member + 4]), a3 = tf32(a[(group + 8) * 8 + member + 4]);
    unsigned b0 = tf32(b[group * 8 + member]), b1 = tf32(b[group * 8 + member + 4]);
    int low = group * 8 + member * 2, high = low + 64;
    float r0, r1, r2, r3;
    asm("mma.sync.aligned.m16n8k8.row.col.f32.tf32.tf32.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%10, %10, %10, %10};"
        : "=f"(r0), "=f"(r1), "=f"(r2), "=f"(r3) : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "r"(b0), "r"(b1), "f"(0.0f));
    d[low] = r0, d[low + 1] = r1, d[high] = r2, d[high + 1] = r3;
    asm("mma.sync.aligned.m16n8k4.row.col.f32.tf32.tf32.f32 {%0, %1, %2, %3}, {%4, %5}, {%6}, {%7, %7, %7, %7};"
        : "=f"(r0), "=f"(r1), "=f"(r2), "=f"(r3) : "r"(a0), "r"(a1), "r"(b0), "f"(0.5f));
    half_k[low] = r0, half_k[low + 1] = r1, half_k[high] = r2, half_k[high + 1] = r3;
}

// a is 8 x 4 row major, b is 4 x 8 column major.
extern "C" __global__ void mma_f64(const double* a, const double* b, const double* c, double* d) {
    int group = threadIdx.x / 4, member = threadIdx.x % 4, at = group * 8 + member * 2;
    double r0, r1;
    asm("mma.sync.aligned.m8n8k4.row.col.f64.f64.f64.f64 {%0, %1}, {%2}, {%3}, {%4, %5};"
        : "=d"(r0), "=d"(r1) : "d"(a[group * 4 + member]), "d"(b[group * 4 + member]), "d"(c[at]), "d"(c[at + 1]));
    d[at] = r0, d[at + 1] = r1;
}
