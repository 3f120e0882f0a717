// A slot is filled while the last product may still read it.
//@ arch: sm_90a
//@ run wgmma_slot_freed: slot_freed_by_wrong_wait grid=1 block=128
//@   inout y: f32[1024] zero raw
#include <cuda_bf16.h>
typedef unsigned long long u64;

// 64 rows of A and 16 of B, each of 16 bf16, in cores of eight rows of 16 bytes.
struct __align__(1024) Tiles {
    unsigned short a[1024];
    unsigned short b[256];
};

__device__ unsigned at(const void* p) { return (unsigned)__cvta_generic_to_shared(p); }

// Cores that follow each other along K are `leading` bytes apart, along M or N 128.
__device__ u64 plain(const void* p, unsigned leading) {
    return (u64)(at(p) >> 4 & 0x3fff) | (u64)(leading >> 4) << 16 | (u64)8 << 32;
}
__device__ u64 desc_a(const Tiles* t) { return plain(t->a, 1024); }
__device__ u64 desc_b(const Tiles* t) { return plain(t->b, 256); }

__device__ unsigned short number(int v) { return (unsigned short)(__float_as_uint((float)v) >> 16); }
__device__ int left(unsigned row, unsigned k) { return (int)((row * 5 + k * 3) % 7) - 3; }
__device__ int right(unsigned column, unsigned k) { return (int)((column * 3 + k) % 5) - 2; }

// All threads of the block write the tiles, A times `scale`.
__device__ void fill(Tiles* t, int scale, unsigned thread, unsigned threads) {
    for (unsigned i = thread; i < 1024; i += threads) {
        unsigned row = i / 16, k = i % 16;
        t->a[k / 8 * 512 + row * 8 + k % 8] = number(scale * left(row, k));
    }
    for (unsigned i = thread; i < 256; i += threads) {
        unsigned column = i / 16, k = i % 16;
        t->b[k / 8 * 128 + column * 8 + k % 8] = number(right(column, k));
    }
}

__device__ void proxy_fence() { asm volatile("fence.proxy.async.shared::cta;" ::: "memory"); }
__device__ void arrive() { asm volatile("wgmma.fence.sync.aligned;" ::: "memory"); }
__device__ void commit() { asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory"); }
template <int N> __device__ void wait() {
    asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(N) : "memory");
}

// D = A * B + D of 64 x 16.
__device__ void product(float (&d)[8], u64 a, u64 b, int adds = 1) {
    asm volatile(
        "{ .reg .pred p; setp.ne.b32 p, %10, 0;\n"
        "wgmma.mma_async.sync.aligned.m64n16k16.f32.bf16.bf16 {%0,%1,%2,%3,%4,%5,%6,%7}, %8, %9, "
        "p, 1, 1, 0, 0; }"
        : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3]), "+f"(d[4]), "+f"(d[5]), "+f"(d[6]), "+f"(d[7])
        : "l"(a), "l"(b), "r"(adds) : "memory");
}

// The same with A in registers.
__device__ void product(float (&d)[8], const unsigned (&a)[4], u64 b, int adds = 1) {
    asm volatile(
        "{ .reg .pred p; setp.ne.b32 p, %13, 0;\n"
        "wgmma.mma_async.sync.aligned.m64n16k16.f32.bf16.bf16 {%0,%1,%2,%3,%4,%5,%6,%7}, "
        "{%8,%9,%10,%11}, %12, p, 1, 1, 0; }"
        : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3]), "+f"(d[4]), "+f"(d[5]), "+f"(d[6]), "+f"(d[7])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"(adds) : "memory");
}

__device__ void store(float* y, const float (&d)[8]) {
    for (int i = 0; i < 8; i++) y[threadIdx.x % 128 * 8 + i] = d[i];
}

extern "C" __global__ void slot_freed_by_wrong_wait(float* y) {
    __shared__ Tiles t[2];
    for (int s = 0; s < 2; s++) fill(&t[s], 1, threadIdx.x, blockDim.x);
    proxy_fence();
    __syncthreads();
    float d[8] = {};
    for (int k = 0; k < 3; k++) {
        arrive();
        product(d, desc_a(&t[k & 1]), desc_b(&t[k & 1]));
        commit();
        // One product may stay under way: that of this round, the slot of which is filled.
        wait<1>();
        __syncthreads();
        fill(&t[k & 1], 1, threadIdx.x, blockDim.x);
        proxy_fence();
        __syncthreads();
    }
    wait<0>();
    store(y, d);
}
