// Products of four warps without a mistake.
//@ arch: sm_90a
//@ run hopper_once: once grid=1 block=128
//@   inout y: f32[1] zero raw
//@ run hopper_first_product_overwrites: first_product_overwrites grid=1 block=128
//@   inout y: f32[1] zero raw
//@ run hopper_barrier_then_fence: barrier_then_fence grid=1 block=128
//@   inout y: f32[1] zero raw
//@ run hopper_factor_in_registers: factor_in_registers grid=1 block=128
//@   inout y: f32[1] zero raw
//@ run hopper_two_slots: two_slots grid=1 block=128
//@   inout y: f32[1] zero raw
//@ run hopper_two_sums_under_way: two_sums_under_way grid=1 block=128
//@   inout y: f32[1] zero raw
//@ run hopper_rescaled: rescaled grid=1 block=128
//@   inout y: f32[1] zero raw
//@ run hopper_sums_become_a_factor: sums_become_a_factor grid=1 block=128
//@   inout y: f32[1] zero raw
//@ run hopper_producer_and_consumers: producer_and_consumers grid=1 block=384
//@   inout y: f32[1] zero raw
//@ run hopper_producer_with_few_registers: producer_with_few_registers grid=1 block=384
//@   inout y: f32[1] zero raw
//@ run hopper_elected_lane_tells: elected_lane_tells grid=1 block=256
//@   inout y: f32[1] zero raw
//@ run hopper_stored_by_matrices: stored_by_matrices grid=1 block=128
//@   inout y: f32[1] zero raw
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

// Ends the kernel if sums are not those of A, times `scale`, with B.
__device__ void verify(const float (&d)[8], int scale) {
    unsigned t = threadIdx.x % 128;
    for (unsigned i = 0; i < 8; i++) {
        unsigned row = t / 32 * 16 + t % 32 / 4 + i / 2 % 2 * 8;
        unsigned column = i / 4 * 8 + t % 4 * 2 + i % 2;
        int sum = 0;
        for (unsigned k = 0; k < 16; k++) sum += left(row, k) * right(column, k);
        if (d[i] != (float)(scale * sum)) __trap();
    }
}

__device__ void start(void* b, unsigned n) {
    asm volatile("mbarrier.init.shared.b64 [%0], %1;" ::"r"(at(b)), "r"(n) : "memory");
}
__device__ void tell(void* b) {
    asm volatile("{ .reg .b64 s; mbarrier.arrive.shared.b64 s, [%0]; }" ::"r"(at(b)) : "memory");
}
__device__ void await(void* b, unsigned phase) {
    asm volatile(
        "{ .reg .pred p; AGAIN: mbarrier.try_wait.parity.shared.b64 p, [%0], %1; @!p bra AGAIN; }"
        ::"r"(at(b)), "r"(phase) : "memory");
}
__device__ bool elected() {
    unsigned p;
    asm volatile("{ .reg .pred p; elect.sync _|p, -1; selp.u32 %0, 1, 0, p; }" : "=r"(p));
    return p;
}
// The registers of A of a thread, read from the tile.
__device__ void load(unsigned (&a)[4], const Tiles* t) {
    unsigned w = threadIdx.x % 128 / 32, l = threadIdx.x % 32;
    for (unsigned r = 0; r < 4; r++)
        a[r] = ((const unsigned*)t->a)[r / 2 * 256 + (w * 16 + r % 2 * 8 + l / 4) * 4 + l % 4];
}

extern "C" __global__ void once(float* y) {
    __shared__ Tiles t;
    fill(&t, 1, threadIdx.x, blockDim.x);
    proxy_fence();
    __syncthreads();
    float d[8] = {};
    arrive();
    product(d, desc_a(&t), desc_b(&t));
    commit();
    wait<0>();
    verify(d, 1);
}

extern "C" __global__ void first_product_overwrites(float* y) {
    __shared__ Tiles t;
    fill(&t, 1, threadIdx.x, blockDim.x);
    proxy_fence();
    __syncthreads();
    float d[8] = {};
    for (int i = 0; i < 8; i++) d[i] = 99;
    for (int i = 0; i < 8; i++) asm volatile("" : "+f"(d[i]));
    arrive();
    product(d, desc_a(&t), desc_b(&t), 0);
    product(d, desc_a(&t), desc_b(&t), 1);
    commit();
    wait<0>();
    verify(d, 2);
}

extern "C" __global__ void barrier_then_fence(float* y) {
    __shared__ Tiles t;
    fill(&t, 1, threadIdx.x, blockDim.x);
    __syncthreads();
    // The fence of each reader, behind the barrier, does for what all wrote before it.
    proxy_fence();
    float d[8] = {};
    arrive();
    product(d, desc_a(&t), desc_b(&t));
    commit();
    wait<0>();
    verify(d, 1);
}

extern "C" __global__ void factor_in_registers(float* y) {
    __shared__ Tiles t;
    fill(&t, 1, threadIdx.x, blockDim.x);
    proxy_fence();
    __syncthreads();
    float d[8] = {};
    unsigned a[4];
    load(a, &t);
    for (int k = 0; k < 3; k++) {
        arrive();
        product(d, a, desc_b(&t));
        product(d, a, desc_b(&t));
        commit();
        wait<0>();
        for (int i = 0; i < 8; i++) d[i] *= 1;
    }
    verify(d, 6);
}

extern "C" __global__ void two_slots(float* y) {
    __shared__ Tiles t[2];
    fill(&t[0], 1, threadIdx.x, blockDim.x);
    proxy_fence();
    __syncthreads();
    float d[8] = {};
    for (int k = 0; k < 6; k++) {
        arrive();
        product(d, desc_a(&t[k & 1]), desc_b(&t[k & 1]));
        commit();
        // The product before this has read the other slot.
        wait<1>();
        __syncthreads();
        fill(&t[~k & 1], k + 2, threadIdx.x, blockDim.x);
        proxy_fence();
        __syncthreads();
    }
    wait<0>();
    verify(d, 1 + 2 + 3 + 4 + 5 + 6);
}

extern "C" __global__ void two_sums_under_way(float* y) {
    __shared__ Tiles t;
    fill(&t, 1, threadIdx.x, blockDim.x);
    proxy_fence();
    __syncthreads();
    float d[8] = {};
    float e[8] = {};
    arrive();
    product(d, desc_a(&t), desc_b(&t));
    commit();
    product(e, desc_a(&t), desc_b(&t), 0);
    commit();
    wait<1>();
    verify(d, 1);
    for (int i = 0; i < 8; i++) d[i] *= 2;
    wait<0>();
    verify(e, 1);
    verify(d, 2);
}

extern "C" __global__ void rescaled(float* y) {
    __shared__ Tiles t;
    fill(&t, 1, threadIdx.x, blockDim.x);
    proxy_fence();
    __syncthreads();
    float d[8] = {};
    for (int k = 0; k < 4; k++) {
        for (int i = 0; i < 8; i++) d[i] *= 2;
        arrive();
        product(d, desc_a(&t), desc_b(&t));
        commit();
        wait<0>();
    }
    verify(d, 15);
}

extern "C" __global__ void sums_become_a_factor(float* y) {
    __shared__ Tiles t, one;
    fill(&t, 1, threadIdx.x, blockDim.x);
    // B of the second is the unit matrix.
    for (unsigned i = threadIdx.x; i < 256; i += 128)
        one.b[i % 16 / 8 * 128 + i / 16 * 8 + i % 8] = number(i / 16 == i % 16);
    proxy_fence();
    __syncthreads();
    float s[8], o[8];
    arrive();
    product(s, desc_a(&t), desc_b(&t), 0);
    commit();
    wait<0>();
    unsigned a[4];
    for (int r = 0; r < 4; r++) {
        __nv_bfloat162 both = __floats2bfloat162_rn(s[2 * r], s[2 * r + 1]);
        a[r] = *(unsigned*)&both;
    }
    for (int r = 0; r < 4; r++) asm volatile("" : "+r"(a[r])::"memory");
    arrive();
    product(o, a, desc_b(&one), 0);
    commit();
    wait<0>();
    for (int i = 0; i < 8; i++)
        if (o[i] != s[i]) __trap();
}

extern "C" __global__ void producer_and_consumers(float* y) {
    __shared__ Tiles t[3];
    __shared__ u64 full[3], empty[3];
    if (threadIdx.x == 0)
        for (int s = 0; s < 3; s++) {
            start(&full[s], 128);
            start(&empty[s], 2);
        }
    __syncthreads();
    unsigned group = threadIdx.x / 128;
    if (group == 0) {
        
        for (int k = 0; k < 8; k++) {
            int s = k % 3;
            await(&empty[s], (k / 3 & 1) ^ 1);
            fill(&t[s], k, threadIdx.x, 128);
            proxy_fence();
            tell(&full[s]);
        }
    } else {
        
        float d[8] = {};
        for (int k = 0; k < 8; k++) {
            int s = k % 3;
            await(&full[s], k / 3 & 1);
            arrive();
            product(d, desc_a(&t[s]), desc_b(&t[s]));
            commit();
            wait<1>();
            // One thread of each group tells that the four warps have read the slot before.
            if (k > 0 && threadIdx.x % 128 == 0) tell(&empty[(k - 1) % 3]);
        }
        wait<0>();
        verify(d, 28);
    }
}

extern "C" __global__ void __launch_bounds__(384, 1) producer_with_few_registers(float* y) {
    __shared__ Tiles t[3];
    __shared__ u64 full[3], empty[3];
    if (threadIdx.x == 0)
        for (int s = 0; s < 3; s++) {
            start(&full[s], 128);
            start(&empty[s], 2);
        }
    __syncthreads();
    unsigned group = threadIdx.x / 128;
    if (group == 0) {
        asm volatile("setmaxnreg.dec.sync.aligned.u32 40;");
        for (int k = 0; k < 8; k++) {
            int s = k % 3;
            await(&empty[s], (k / 3 & 1) ^ 1);
            fill(&t[s], k, threadIdx.x, 128);
            proxy_fence();
            tell(&full[s]);
        }
    } else {
        asm volatile("setmaxnreg.inc.sync.aligned.u32 232;");
        float d[8] = {};
        for (int k = 0; k < 8; k++) {
            int s = k % 3;
            await(&full[s], k / 3 & 1);
            arrive();
            product(d, desc_a(&t[s]), desc_b(&t[s]));
            commit();
            wait<1>();
            // One thread of each group tells that the four warps have read the slot before.
            if (k > 0 && threadIdx.x % 128 == 0) tell(&empty[(k - 1) % 3]);
        }
        wait<0>();
        verify(d, 28);
    }
}

extern "C" __global__ void elected_lane_tells(float* y) {
    __shared__ Tiles t;
    __shared__ u64 full, empty;
    if (threadIdx.x == 0) {
        start(&full, 4);
        start(&empty, 1);
    }
    __syncthreads();
    if (threadIdx.x < 128) {
        for (int k = 0; k < 3; k++) {
            await(&empty, (k & 1) ^ 1);
            fill(&t, k + 1, threadIdx.x, 128);
            proxy_fence();
            __syncwarp();
            if (elected()) tell(&full);
        }
    } else {
        float d[8] = {};
        for (int k = 0; k < 3; k++) {
            await(&full, k & 1);
            arrive();
            product(d, desc_a(&t), desc_b(&t));
            commit();
            wait<0>();
            if (threadIdx.x == 160) tell(&empty);
        }
        verify(d, 6);
    }
}

extern "C" __global__ void stored_by_matrices(float* y) {
    __shared__ Tiles t;
    fill(&t, 1, threadIdx.x, blockDim.x);
    proxy_fence();
    __syncthreads();
    float d[8] = {};
    __shared__ __align__(16) unsigned short out[64 * 16];
    arrive();
    product(d, desc_a(&t), desc_b(&t));
    commit();
    wait<0>();
    unsigned a[4], l = threadIdx.x % 32, w = threadIdx.x / 32;
    for (int r = 0; r < 4; r++) {
        __nv_bfloat162 both = __floats2bfloat162_rn(d[2 * r], d[2 * r + 1]);
        a[r] = *(unsigned*)&both;
    }
    asm volatile("stmatrix.sync.aligned.m8n8.x4.shared.b16 [%0], {%1,%2,%3,%4};" ::"r"(
                     at(out + (w * 16 + l % 16) * 16 + l / 16 * 8)),
                 "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]) : "memory");
    __syncwarp();
    for (unsigned i = l; i < 256; i += 32) {
        unsigned row = w * 16 + i / 16, column = i % 16;
        int sum = 0;
        for (unsigned k = 0; k < 16; k++) sum += left(row, k) * right(column, k);
        if (out[row * 16 + column] != number(sum)) __trap();
    }
}
