// Products of four warps and register counts used wrongly.
//@ arch: sm_90a
//@ run hopper_sum_read_early: sum_read_early grid=1 block=128
//@   inout y: f32[1024] zero raw
//@   finds missing wait for a wgmma
//@ run hopper_sum_scaled_early: sum_scaled_early grid=1 block=128
//@   inout y: f32[1024] zero raw
//@   finds missing wait for a wgmma
//@ run hopper_factor_changed: factor_changed grid=1 block=128
//@   inout y: f32[1024] zero raw
//@   finds missing wait for a wgmma
//@ run hopper_one_group_too_many: one_group_too_many grid=1 block=128
//@   inout y: f32[1024] zero raw
//@   finds missing wait for a wgmma
//@ run hopper_never_committed: never_committed grid=1 block=128
//@   inout y: f32[1024] zero raw
//@   finds missing wait for a wgmma
//@ run hopper_sums_as_factor: sums_as_factor grid=1 block=128
//@   inout y: f32[1024] zero raw
//@   finds missing wait for a wgmma
//@ run hopper_read_in_next_round: read_in_next_round grid=1 block=128
//@   inout y: f32[1024] zero raw
//@   finds missing wait for a wgmma
//@ run hopper_no_first_fence: no_first_fence grid=1 block=128
//@   inout y: f32[1024] zero raw
//@   finds missing wgmma.fence
//@ run hopper_scaled_without_fence: scaled_without_fence grid=1 block=128
//@   inout y: f32[1024] zero raw
//@   finds missing wgmma.fence
//@ run hopper_factor_loaded_behind_fence: factor_loaded_behind_fence grid=1 block=128
//@   inout y: f32[1024] zero raw
//@   finds missing wgmma.fence
//@ run hopper_no_proxy_fence: no_proxy_fence grid=1 block=128
//@   inout y: f32[1024] zero raw
//@   finds missing proxy fence
//@ run hopper_one_thread_fences: one_thread_fences grid=1 block=128
//@   inout y: f32[1024] zero raw
//@   finds missing proxy fence
//@ run hopper_fence_before_write: fence_before_write grid=1 block=128
//@   inout y: f32[1024] zero raw
//@   finds missing proxy fence
//@ run hopper_no_barrier: no_barrier grid=1 block=128
//@   inout y: f32[1024] zero raw
//@   finds shared memory race, missing wait for a wgmma, uninitialised read
//@ run hopper_operand_never_written: operand_never_written grid=1 block=128
//@   inout y: f32[1024] zero raw
//@   finds uninitialised read
//@ run hopper_operand_overwritten: operand_overwritten grid=1 block=128
//@   inout y: f32[1024] zero raw
//@   finds missing wait for a wgmma
//@ run hopper_slot_freed_by_wrong_wait: slot_freed_by_wrong_wait grid=1 block=128
//@   inout y: f32[1024] zero raw
//@   finds missing wait for a wgmma
//@ run hopper_other_group_overwrites: other_group_overwrites grid=1 block=256
//@   inout y: f32[1024] zero raw
//@   finds missing wait for a wgmma
//@ run hopper_beyond_shared_memory: beyond_shared_memory grid=1 block=128
//@   inout y: f32[1024] zero raw
//@   finds out of bounds
//@ run hopper_pattern_begins_elsewhere: pattern_begins_elsewhere grid=1 block=128
//@   inout y: f32[1024] zero raw
//@   finds misaligned
//@ run hopper_two_warps_alone: two_warps_alone grid=1 block=64
//@   inout y: f32[1024] zero raw
//@   finds wrong warp mask
//@ run hopper_descriptors_of_warps_differ: descriptors_of_warps_differ grid=1 block=128
//@   inout y: f32[1024] zero raw
//@   finds wrong warp mask
//@ run hopper_descriptors_of_lanes_differ: descriptors_of_lanes_differ grid=1 block=128
//@   inout y: f32[1024] zero raw
//@   finds wrong warp mask
//@ run hopper_warps_at_two_products: warps_at_two_products grid=1 block=128
//@   inout y: f32[1024] zero raw
//@   finds wrong warp mask
//@ run hopper_half_a_warp: half_a_warp grid=1 block=128
//@   inout y: f32[1024] zero raw
//@   finds wrong warp mask
//@ run hopper_warp_left_before: warp_left_before grid=1 block=128
//@   inout y: f32[1024] zero raw
//@   finds wrong warp mask
//@ run hopper_more_registers_than_there_are: more_registers_than_there_are grid=1 block=384
//@   inout y: f32[1024] zero raw
//@   finds wrong register count
//@ run hopper_registers_never_given_back: registers_never_given_back grid=1 block=256
//@   inout y: f32[1024] zero raw
//@   finds wrong register count
//@ run hopper_registers_without_bounds: registers_without_bounds grid=1 block=256
//@   inout y: f32[1024] zero raw
//@   finds wrong register count
//@ run hopper_more_by_dec: more_by_dec grid=1 block=256
//@   inout y: f32[1024] zero raw
//@   finds wrong register count
//@ run hopper_fewer_by_inc: fewer_by_inc grid=1 block=256
//@   inout y: f32[1024] zero raw
//@   finds wrong register count
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

extern "C" __global__ void sum_read_early(float* y) {
    __shared__ Tiles t;
    fill(&t, 1, threadIdx.x, blockDim.x);
    proxy_fence();
    __syncthreads();
    float d[8] = {};
    arrive();
    product(d, desc_a(&t), desc_b(&t));
    commit();
    y[threadIdx.x] = d[3] + 1;
    wait<0>();
}

extern "C" __global__ void sum_scaled_early(float* y) {
    __shared__ Tiles t;
    fill(&t, 1, threadIdx.x, blockDim.x);
    proxy_fence();
    __syncthreads();
    float d[8] = {};
    arrive();
    product(d, desc_a(&t), desc_b(&t));
    commit();
    for (int i = 0; i < 8; i++) d[i] *= 2;
    wait<0>();
    store(y, d);
}

extern "C" __global__ void factor_changed(float* y) {
    __shared__ Tiles t;
    fill(&t, 1, threadIdx.x, blockDim.x);
    proxy_fence();
    __syncthreads();
    float d[8] = {};
    unsigned a[4] = {threadIdx.x, 1, 2, 3};
    for (int i = 0; i < 4; i++) asm volatile("" : "+r"(a[i]));
    arrive();
    product(d, a, desc_b(&t));
    commit();
    asm volatile("add.u32 %0, %0, 1;" : "+r"(a[0]));
    wait<0>();
    d[0] += a[0];
    store(y, d);
}

extern "C" __global__ void one_group_too_many(float* y) {
    __shared__ Tiles t;
    fill(&t, 1, threadIdx.x, blockDim.x);
    proxy_fence();
    __syncthreads();
    float d[8] = {};
    float e[8] = {};
    arrive();
    product(d, desc_a(&t), desc_b(&t));
    commit();
    product(e, desc_a(&t), desc_b(&t));
    commit();
    wait<1>();
    for (int i = 0; i < 8; i++) d[i] += e[i];
    store(y, d);
    wait<0>();
}

extern "C" __global__ void never_committed(float* y) {
    __shared__ Tiles t;
    fill(&t, 1, threadIdx.x, blockDim.x);
    proxy_fence();
    __syncthreads();
    float d[8] = {};
    arrive();
    product(d, desc_a(&t), desc_b(&t));
    wait<0>();
    store(y, d);
}

extern "C" __global__ void sums_as_factor(float* y) {
    __shared__ Tiles t;
    fill(&t, 1, threadIdx.x, blockDim.x);
    proxy_fence();
    __syncthreads();
    float d[8] = {};
    float e[8] = {};
    arrive();
    product(d, desc_a(&t), desc_b(&t));
    commit();
    unsigned a[4] = {__float_as_uint(d[0]), __float_as_uint(d[1]), __float_as_uint(d[2]), 0};
    product(e, a, desc_b(&t));
    commit();
    wait<0>();
    store(y, e);
}

extern "C" __global__ void read_in_next_round(float* y) {
    __shared__ Tiles t;
    fill(&t, 1, threadIdx.x, blockDim.x);
    proxy_fence();
    __syncthreads();
    float d[8] = {};
    float sum = 0;
    for (int k = 0; k < 3; k++) {
        sum += d[1];
        arrive();
        product(d, desc_a(&t), desc_b(&t));
        commit();
    }
    wait<0>();
    d[0] += sum;
    store(y, d);
}

extern "C" __global__ void no_first_fence(float* y) {
    __shared__ Tiles t;
    fill(&t, 1, threadIdx.x, blockDim.x);
    proxy_fence();
    __syncthreads();
    float d[8] = {};
    product(d, desc_a(&t), desc_b(&t), 0);
    commit();
    wait<0>();
    store(y, d);
}

extern "C" __global__ void scaled_without_fence(float* y) {
    __shared__ Tiles t;
    fill(&t, 1, threadIdx.x, blockDim.x);
    proxy_fence();
    __syncthreads();
    float d[8] = {};
    arrive();
    for (int k = 0; k < 3; k++) {
        product(d, desc_a(&t), desc_b(&t));
        commit();
        wait<0>();
        for (int i = 0; i < 8; i++) d[i] *= 0.5f;
    }
    store(y, d);
}

extern "C" __global__ void factor_loaded_behind_fence(float* y) {
    __shared__ Tiles t;
    fill(&t, 1, threadIdx.x, blockDim.x);
    proxy_fence();
    __syncthreads();
    float d[8] = {};
    unsigned a[4];
    arrive();
    for (int i = 0; i < 4; i++)
        asm volatile("ld.shared.u32 %0, [%1];" : "=r"(a[i]) : "r"(at(t.a) + threadIdx.x * 4 + i * 512));
    product(d, a, desc_b(&t));
    commit();
    wait<0>();
    store(y, d);
}

extern "C" __global__ void no_proxy_fence(float* y) {
    __shared__ Tiles t;
    fill(&t, 1, threadIdx.x, blockDim.x);
    __syncthreads();
    float d[8] = {};
    arrive();
    product(d, desc_a(&t), desc_b(&t));
    commit();
    wait<0>();
    store(y, d);
}

extern "C" __global__ void one_thread_fences(float* y) {
    __shared__ Tiles t;
    fill(&t, 1, threadIdx.x, blockDim.x);
    if (threadIdx.x == 0) proxy_fence();
    __syncthreads();
    float d[8] = {};
    arrive();
    product(d, desc_a(&t), desc_b(&t));
    commit();
    wait<0>();
    store(y, d);
}

extern "C" __global__ void fence_before_write(float* y) {
    __shared__ Tiles t;
    fill(&t, 1, threadIdx.x, blockDim.x);
    proxy_fence();
    __syncthreads();
    float d[8] = {};
    proxy_fence();
    t.b[threadIdx.x] = number(1);
    __syncthreads();
    arrive();
    product(d, desc_a(&t), desc_b(&t));
    commit();
    wait<0>();
    store(y, d);
}

extern "C" __global__ void no_barrier(float* y) {
    __shared__ Tiles t;
    fill(&t, 1, threadIdx.x, blockDim.x);
    proxy_fence();
    float d[8] = {};
    arrive();
    product(d, desc_a(&t), desc_b(&t));
    commit();
    wait<0>();
    store(y, d);
}

extern "C" __global__ void operand_never_written(float* y) {
    __shared__ Tiles t;
    if (threadIdx.x < 64) t.b[threadIdx.x] = number(1);
    proxy_fence();
    __syncthreads();
    float d[8] = {};
    unsigned a[4] = {};
    arrive();
    product(d, a, desc_b(&t), 0);
    commit();
    wait<0>();
    store(y, d);
}

extern "C" __global__ void operand_overwritten(float* y) {
    __shared__ Tiles t;
    fill(&t, 1, threadIdx.x, blockDim.x);
    proxy_fence();
    __syncthreads();
    float d[8] = {};
    arrive();
    product(d, desc_a(&t), desc_b(&t));
    commit();
    __syncthreads();
    t.b[threadIdx.x] = number(1);
    wait<0>();
    store(y, d);
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

extern "C" __global__ void other_group_overwrites(float* y) {
    __shared__ Tiles t;
    fill(&t, 1, threadIdx.x, blockDim.x);
    proxy_fence();
    __syncthreads();
    float d[8] = {};
    arrive();
    product(d, desc_a(&t), desc_b(&t));
    commit();
    if (threadIdx.x >= 128) {
        // This group waits for its own product, and not for that of the first.
        wait<0>();
        asm volatile("bar.sync 1, 128;" ::: "memory");
        t.a[threadIdx.x] = 0;
    }
    wait<0>();
    store(y, d);
}

extern "C" __global__ void beyond_shared_memory(float* y) {
    __shared__ Tiles t;
    fill(&t, 1, threadIdx.x, blockDim.x);
    proxy_fence();
    __syncthreads();
    float d[8] = {};
    arrive();
    product(d, desc_a(&t), plain((const char*)&t + 2048, 2048));
    commit();
    wait<0>();
    store(y, d);
}

extern "C" __global__ void pattern_begins_elsewhere(float* y) {
    __shared__ __align__(1024) unsigned short t[64 * 64 + 64];
    for (unsigned i = threadIdx.x; i < 64 * 64 + 64; i += 128) t[i] = number(1);
    proxy_fence();
    __syncthreads();
    float d[8] = {};
    u64 swizzled = (u64)(at(t + 64) >> 4) | (u64)64 << 32 | (u64)1 << 62;
    arrive();
    product(d, swizzled, swizzled);
    commit();
    wait<0>();
    store(y, d);
}

extern "C" __global__ void two_warps_alone(float* y) {
    __shared__ Tiles t;
    fill(&t, 1, threadIdx.x, blockDim.x);
    proxy_fence();
    __syncthreads();
    float d[8] = {};
    arrive();
    product(d, desc_a(&t), desc_b(&t));
    commit();
    wait<0>();
    store(y, d);
}

extern "C" __global__ void descriptors_of_warps_differ(float* y) {
    __shared__ Tiles t[2];
    for (int s = 0; s < 2; s++) fill(&t[s], 1, threadIdx.x, blockDim.x);
    proxy_fence();
    __syncthreads();
    float d[8] = {};
    arrive();
    product(d, desc_a(&t[0]), desc_b(&t[threadIdx.x / 32 % 2]));
    commit();
    wait<0>();
    store(y, d);
}

extern "C" __global__ void descriptors_of_lanes_differ(float* y) {
    __shared__ Tiles t[2];
    for (int s = 0; s < 2; s++) fill(&t[s], 1, threadIdx.x, blockDim.x);
    proxy_fence();
    __syncthreads();
    float d[8] = {};
    arrive();
    product(d, desc_a(&t[threadIdx.x % 32 != 0]), desc_b(&t[0]));
    commit();
    wait<0>();
    store(y, d);
}

extern "C" __global__ void warps_at_two_products(float* y) {
    __shared__ Tiles t;
    fill(&t, 1, threadIdx.x, blockDim.x);
    proxy_fence();
    __syncthreads();
    float d[8] = {};
    arrive();
    if (threadIdx.x < 64)
        product(d, desc_a(&t), desc_b(&t));
    else
        product(d, desc_a(&t), desc_b(&t), 0);
    commit();
    wait<0>();
    store(y, d);
}

extern "C" __global__ void half_a_warp(float* y) {
    __shared__ Tiles t;
    fill(&t, 1, threadIdx.x, blockDim.x);
    proxy_fence();
    __syncthreads();
    float d[8] = {};
    if (threadIdx.x % 32 < 16) {
        arrive();
        product(d, desc_a(&t), desc_b(&t));
        commit();
        wait<0>();
    }
    store(y, d);
}

extern "C" __global__ void warp_left_before(float* y) {
    __shared__ Tiles t;
    fill(&t, 1, threadIdx.x, blockDim.x);
    proxy_fence();
    __syncthreads();
    float d[8] = {};
    if (threadIdx.x >= 96) return;
    arrive();
    product(d, desc_a(&t), desc_b(&t));
    commit();
    wait<0>();
    store(y, d);
}

extern "C" __global__ void __launch_bounds__(384, 1) more_registers_than_there_are(float* y) {
    if (threadIdx.x < 128)
        asm volatile("setmaxnreg.dec.sync.aligned.u32 40;");
    else
        asm volatile("setmaxnreg.inc.sync.aligned.u32 240;");
    y[threadIdx.x] = 1;
}

extern "C" __global__ void __launch_bounds__(256, 2) registers_never_given_back(float* y) {
    if (threadIdx.x < 128)
        asm volatile("setmaxnreg.dec.sync.aligned.u32 128;");
    else
        asm volatile("setmaxnreg.inc.sync.aligned.u32 200;");
    y[threadIdx.x] = 1;
}

extern "C" __global__ void registers_without_bounds(float* y) {
    if (threadIdx.x < 128)
        asm volatile("setmaxnreg.dec.sync.aligned.u32 24;");
    else
        asm volatile("setmaxnreg.inc.sync.aligned.u32 64;");
    y[threadIdx.x] = 1;
}

extern "C" __global__ void __launch_bounds__(256, 2) more_by_dec(float* y) {
    asm volatile("setmaxnreg.dec.sync.aligned.u32 160;");
    y[threadIdx.x] = 1;
}

extern "C" __global__ void __launch_bounds__(256, 2) fewer_by_inc(float* y) {
    asm volatile("setmaxnreg.inc.sync.aligned.u32 64;");
    y[threadIdx.x] = 1;
}
