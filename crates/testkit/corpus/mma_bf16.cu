// mma.sync m16n8k16 on bf16 fed by ldmatrix (plain and transposed), and the f16 shape m16n8k8.
//@ run mma_bf16: mma_bf16 grid=2,2 block=32
//@   in a: bf16[1536] uniform(-1, 1)
//@   in b: bf16[768] uniform(-1, 1)
//@   out d: f32[512] bound loose
//@ run mma_f16_k8: mma_f16_k8 grid=1 block=32
//@   in a: f16[128] uniform(-1, 1)
//@   in b: f16[64] uniform(-1, 1)
//@   in c: f32[128] uniform(-1, 1)
//@   out d: f32[128] bound loose
//@ run ldmatrix_moves: ldmatrix_moves grid=1 block=32
//@   in x: u16[256] bits
//@   out plain: u32[128] exact
//@   out turned: u32[64] exact
#include <cuda_bf16.h>
#include <cuda_fp16.h>

__device__ unsigned shared_address(const void* p) { return (unsigned)__cvta_generic_to_shared(p); }

// 32 x 16 from 32 x 48 and 48 x 16, all row major: b must be transposed on the way in.
extern "C" __global__ void mma_bf16(const __nv_bfloat16* a, const __nv_bfloat16* b, float* d) {
    constexpr int K = 48, N = 16;
    __shared__ __align__(16) __nv_bfloat16 sa[16][24], sb[16][8];
    int lane = threadIdx.x, row = blockIdx.y * 16, col = blockIdx.x * 8;
    float c[4] = {0.0f, 0.0f, 0.0f, 0.0f};
    for (int k = 0; k < K; k += 16) {
        for (int i = lane; i < 256; i += 32) sa[i / 16][i % 16] = a[(row + i / 16) * K + k + i % 16];
        for (int i = lane; i < 128; i += 32) sb[i / 8][i % 8] = b[(k + i / 8) * N + col + i % 8];
        __syncwarp();
        unsigned ra[4], rb[2];
        unsigned pa = shared_address(&sa[lane % 16][lane / 16 * 8]);
        unsigned pb = shared_address(&sb[lane % 16][0]);
        asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
                     : "=r"(ra[0]), "=r"(ra[1]), "=r"(ra[2]), "=r"(ra[3]) : "r"(pa) : "memory");
        asm volatile("ldmatrix.sync.aligned.m8n8.x2.trans.shared.b16 {%0, %1}, [%2];"
                     : "=r"(rb[0]), "=r"(rb[1]) : "r"(pb) : "memory");
        asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
                     : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
                     : "r"(ra[0]), "r"(ra[1]), "r"(ra[2]), "r"(ra[3]), "r"(rb[0]), "r"(rb[1]));
        __syncwarp();
    }
    int r = row + lane / 4, n = col + lane % 4 * 2;
    d[r * N + n] = c[0];
    d[r * N + n + 1] = c[1];
    d[(r + 8) * N + n] = c[2];
    d[(r + 8) * N + n + 1] = c[3];
}

// Fragments straight from global memory; b is stored column major.
extern "C" __global__ void mma_f16_k8(const __half* a, const __half* b, const float* c, float* d) {
    int group = threadIdx.x / 4, member = threadIdx.x % 4;
    unsigned a0 = *reinterpret_cast<const unsigned*>(&a[group * 8 + member * 2]);
    unsigned a1 = *reinterpret_cast<const unsigned*>(&a[(group + 8) * 8 + member * 2]);
    unsigned b0 = *reinterpret_cast<const unsigned*>(&b[group * 8 + member * 2]);
    int low = group * 8 + member * 2, high = low + 64;
    float d0, d1, d2, d3;
    asm("mma.sync.aligned.m16n8k8.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, {%4, %5}, {%6}, {%7, %8, %9, %10};"
        : "=f"(d0), "=f"(d1), "=f"(d2), "=f"(d3)
        : "r"(a0), "r"(a1), "r"(b0), "f"(c[low]), "f"(c[low + 1]), "f"(c[high]), "f"(c[high + 1]));
    d[low] = d0;
    d[low + 1] = d1;
    d[high] = d2;
    d[high + 1] = d3;
}

// What ldmatrix does, seen alone: four 8 x 8 matrices plain, two transposed.
extern "C" __global__ void ldmatrix_moves(const unsigned short* x, unsigned* plain, unsigned* turned) {
    __shared__ __align__(16) unsigned short s[256];
    int lane = threadIdx.x;
    for (int i = lane; i < 256; i += 32) s[i] = x[i];
    __syncwarp();
    unsigned r[4], t[2];
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3]) : "r"(shared_address(&s[lane * 8])) : "memory");
    asm volatile("ldmatrix.sync.aligned.m8n8.x2.trans.shared.b16 {%0, %1}, [%2];"
                 : "=r"(t[0]), "=r"(t[1]) : "r"(shared_address(&s[lane % 16 * 8])) : "memory");
    for (int i = 0; i < 4; ++i) plain[i * 32 + lane] = r[i];
    for (int i = 0; i < 2; ++i) turned[i * 32 + lane] = t[i];
}
