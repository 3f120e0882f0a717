// Mistakes with what the standard library, cooperative groups and matrix instructions offer.
//@ run mixed_relaxed_flag: relaxed_flag grid=2 block=32
//@   inout data: u32[32] zero raw
//@   inout flag: u32[1] zero raw
//@   inout y: u32[32] zero raw
//@   finds global memory race
//@ run mixed_volatile_flag: volatile_flag grid=2 block=32
//@   inout data: u32[32] zero raw
//@   inout flag: u32[1] zero raw
//@   inout y: u32[32] zero raw
//@   finds global memory race
//@ run mixed_block_scope_flag: block_scope_flag grid=2 block=32
//@   inout flag: u32[1] zero raw
//@   finds atomic scope too narrow
//@ run mixed_released_too_early: released_too_early grid=2 block=32
//@   inout data: u32[2] zero raw
//@   finds global memory race
//@ run mixed_unlocked_too_early: unlocked_too_early grid=3 block=32
//@   inout lock: u32[2] zero raw
//@   finds global memory race
//@ run mixed_pipeline_no_wait: pipeline_no_wait grid=1 block=32
//@   in x: u32[32] iota
//@   inout y: u32[32] zero raw
//@   finds missing wait for an asynchronous copy
//@ run mixed_group_no_wait: group_no_wait grid=1 block=64
//@   in x: u32[64] iota
//@   inout y: u32[64] zero raw
//@   finds missing wait for an asynchronous copy
//@ run mixed_barrier_only_arrives: barrier_only_arrives grid=1 block=64
//@   inout y: u32[64] zero raw
//@   finds shared memory race
//@ run mixed_tile_no_sync: tile_no_sync grid=1 block=64
//@   in x: u32[64] iota
//@   inout y: u32[64] zero raw
//@   finds shared memory race
//@ run mixed_tile_sync_for_block: tile_sync_for_block grid=1 block=64
//@   in x: u32[64] iota
//@   inout y: u32[64] zero raw
//@   finds shared memory race
//@ run mixed_block_sync_for_grid: block_sync_for_grid grid=2 block=64
//@   inout x: u32[128] iota raw
//@   finds global memory race
//@ run mixed_sum_read_early: sum_read_early grid=1 block=128
//@   in x: u32[128] iota
//@   inout y: u32[128] zero raw
//@   finds shared memory race
//@ run mixed_variable_end: variable_end grid=1 block=32
//@   inout y: u32[32] zero raw
//@   finds out of bounds
//@ run mixed_variable_before: variable_before grid=1 block=1
//@   finds out of bounds
//@ run mixed_matrix_end: matrix_end grid=1 block=32
//@   in a: f16[250] const(1)
//@   inout c: f32[256] zero raw
//@   finds out of bounds
//@ run mixed_matrix_store_end: matrix_store_end grid=1 block=32
//@   in a: f16[256] const(1)
//@   inout c: f32[240] zero raw
//@   finds out of bounds
//@ run mixed_matrix_race: matrix_race grid=1 block=64
//@   in a: f16[256] const(1)
//@   inout c: f32[256] zero raw
//@   finds shared memory race
//@ run mixed_long_atomic: long_atomic grid=1 block=4
//@   inout x: u8[28] zero raw
//@   finds out of bounds
//@ run mixed_dynamic_uninitialised: dynamic_uninitialised grid=1 block=32 shared=256
//@   inout y: u32[32] zero raw
//@   finds uninitialised read
//@ run mixed_syncwarp_of_absent: syncwarp_of_absent grid=1 block=24
//@   inout y: u32[24] zero raw
//@   finds wrong warp mask
//@ run mixed_shuffle_up_absent: shuffle_from_absent grid=1 block=24
//@   in x: u32[24] iota
//@   inout y: u32[24] zero raw
//@   finds wrong warp mask
//@ run mixed_double_buffer_copies: double_buffer_copies grid=1 block=64
//@   in x: u32[512] iota
//@   inout y: u32[64] zero raw
//@   finds shared memory race, uninitialised read
//@ run mixed_heap_of_other: heap_twice grid=1 block=1
//@   inout y: u32[1] zero raw
//@   finds use after free
//@ run mixed_counter_64: counter_64 grid=3 block=32
//@   inout x: u64[1] zero raw
//@   finds global memory race
#include <cooperative_groups.h>
#include <cooperative_groups/memcpy_async.h>
#include <cuda/barrier>
#include <cuda/pipeline>
#include <mma.h>

namespace cg = cooperative_groups;

extern "C" __global__ void relaxed_flag(unsigned* data, unsigned* flag, unsigned* y) {
    cuda::atomic_ref<unsigned, cuda::thread_scope_device> word(*flag);
    unsigned t = threadIdx.x;
    if (blockIdx.x == 0) {
        data[t] = t;
        __syncthreads();
        if (t == 0) word.store(1, cuda::memory_order_relaxed);
    } else {
        while (word.load(cuda::memory_order_relaxed) == 0) {}
        y[t] = data[t];
    }
}

extern "C" __global__ void volatile_flag(unsigned* data, volatile unsigned* flag, unsigned* y) {
    unsigned t = threadIdx.x;
    if (blockIdx.x == 0) {
        data[t] = t;
        __syncthreads();
        if (t == 0) *flag = 1;
    } else {
        while (*flag == 0) {}
        y[t] = data[t];
    }
}

extern "C" __global__ void block_scope_flag(unsigned* flag) {
    cuda::atomic_ref<unsigned, cuda::thread_scope_block> word(*flag);
    if (threadIdx.x != 0) return;
    if (blockIdx.x == 0) word.store(1, cuda::memory_order_release);
    else while (word.load(cuda::memory_order_acquire) == 0) {}
}

extern "C" __global__ void released_too_early(unsigned* data) {
    cuda::atomic_ref<unsigned, cuda::thread_scope_device> word(data[1]);
    if (threadIdx.x != 0) return;
    if (blockIdx.x == 0) {
        word.store(1, cuda::memory_order_release);
        data[0] = 7;
    } else {
        while (word.load(cuda::memory_order_acquire) == 0) {}
        if (data[0] == 9) word.store(2, cuda::memory_order_relaxed);
    }
}

extern "C" __global__ void unlocked_too_early(unsigned* lock) {
    if (threadIdx.x != 0) return;
    while (atomicCAS(&lock[0], 0u, 1u) != 0u) {}
    __threadfence();
    unsigned v = lock[1];
    __threadfence();
    atomicExch(&lock[0], 0u);
    lock[1] = v + 1;
}

extern "C" __global__ void pipeline_no_wait(const unsigned* x, unsigned* y) {
    __shared__ unsigned s[32];
    unsigned t = threadIdx.x;
    auto pipe = cuda::make_pipeline();
    pipe.producer_acquire();
    cuda::memcpy_async(&s[t], &x[t], sizeof(unsigned), pipe);
    pipe.producer_commit();
    y[t] = s[t];
    pipe.consumer_wait();
    pipe.consumer_release();
}

extern "C" __global__ void group_no_wait(const unsigned* x, unsigned* y) {
    __shared__ __align__(16) unsigned s[64];
    auto block = cg::this_thread_block();
    cg::memcpy_async(block, s, x, sizeof(s));
    block.sync();
    y[threadIdx.x] = s[63 - threadIdx.x];
    cg::wait(block);
}

extern "C" __global__ void barrier_only_arrives(unsigned* y) {
    __shared__ cuda::barrier<cuda::thread_scope_block> bar;
    __shared__ unsigned s[64];
    unsigned t = threadIdx.x;
    s[t] = 0;
    if (t == 0) init(&bar, blockDim.x);
    __syncthreads();
    s[t] = t;
    auto token = bar.arrive();
    y[t] = s[63 - t];
    bar.wait(cuda::std::move(token));
}

extern "C" __global__ void tile_no_sync(const unsigned* x, unsigned* y) {
    __shared__ unsigned s[64];
    auto tile = cg::tiled_partition<16>(cg::this_thread_block());
    unsigned base = threadIdx.x & ~15u;
    s[threadIdx.x] = x[threadIdx.x];
    y[threadIdx.x] = s[base + 15 - tile.thread_rank()];
}

extern "C" __global__ void tile_sync_for_block(const unsigned* x, unsigned* y) {
    __shared__ unsigned s[64];
    auto tile = cg::tiled_partition<32>(cg::this_thread_block());
    s[threadIdx.x] = 0;
    __syncthreads();
    s[threadIdx.x] = x[threadIdx.x];
    tile.sync();
    y[threadIdx.x] = s[63 - threadIdx.x];
}

extern "C" __global__ void block_sync_for_grid(unsigned* x) {
    unsigned i = blockIdx.x * 64 + threadIdx.x;
    unsigned v = x[127 - i];
    cg::this_thread_block().sync();
    x[i] = v;
}

extern "C" __global__ void sum_read_early(const unsigned* x, unsigned* y) {
    __shared__ unsigned s[128];
    unsigned t = threadIdx.x;
    s[t] = x[t];
    for (unsigned d = 64; d > 0; d /= 2) {
        __syncthreads();
        if (t < d) s[t] += s[t + d];
    }
    // The last addition is not waited for.
    y[t] = s[0];
}

__device__ unsigned first[16], second[16];

extern "C" __global__ void variable_end(unsigned* y) {
    first[threadIdx.x % 16] = 1;
    second[threadIdx.x % 16] = 2;
    __syncthreads();
    y[threadIdx.x] = first[threadIdx.x / 2 + 1];
}

extern "C" __global__ void variable_before() {
    volatile unsigned* word = first + (int)threadIdx.x - 1;
    *word = 3;
}

extern "C" __global__ void matrix_end(const __half* a, float* c) {
    using namespace nvcuda::wmma;
    fragment<matrix_a, 16, 16, 16, __half, row_major> left;
    fragment<matrix_b, 16, 16, 16, __half, row_major> right;
    fragment<accumulator, 16, 16, 16, float> sum;
    fill_fragment(sum, 0.0f);
    fill_fragment(right, __half(1.0f));
    load_matrix_sync(left, a, 16);
    mma_sync(sum, left, right, sum);
    store_matrix_sync(c, sum, 16, mem_row_major);
}

extern "C" __global__ void matrix_store_end(const __half* a, float* c) {
    using namespace nvcuda::wmma;
    fragment<matrix_a, 16, 16, 16, __half, row_major> left;
    fragment<matrix_b, 16, 16, 16, __half, row_major> right;
    fragment<accumulator, 16, 16, 16, float> sum;
    fill_fragment(sum, 0.0f);
    fill_fragment(right, __half(1.0f));
    load_matrix_sync(left, a, 16);
    mma_sync(sum, left, right, sum);
    store_matrix_sync(c, sum, 16, mem_row_major);
}

extern "C" __global__ void matrix_race(const __half* a, float* c) {
    using namespace nvcuda::wmma;
    __shared__ float s[256];
    fragment<matrix_a, 16, 16, 16, __half, row_major> left;
    fragment<matrix_b, 16, 16, 16, __half, row_major> right;
    fragment<accumulator, 16, 16, 16, float> sum;
    for (unsigned k = threadIdx.x; k < 256; k += 64) s[k] = 0;
    __syncthreads();
    if (threadIdx.x < 32) {
        fill_fragment(sum, 0.0f);
        fill_fragment(right, __half(1.0f));
        load_matrix_sync(left, a, 16);
        mma_sync(sum, left, right, sum);
        store_matrix_sync(s, sum, 16, mem_row_major);
    }
    for (unsigned k = threadIdx.x; k < 256; k += 64) c[k] = s[k];
}

extern "C" __global__ void long_atomic(unsigned char* x) {
    atomicAdd((unsigned long long*)(x + 8 * threadIdx.x), 1ull);
}

extern "C" __global__ void dynamic_uninitialised(unsigned* y) {
    extern __shared__ unsigned words[];
    unsigned t = threadIdx.x;
    words[t] = t;
    __syncthreads();
    y[t] = words[63 - t];
}

extern "C" __global__ void syncwarp_of_absent(unsigned* y) {
    unsigned t = threadIdx.x;
    if (t < 8) {
        y[t] = t;
        __syncwarp(0x00ffff00u);
    } else {
        __syncwarp(0x00ffff00u);
        y[t] = t;
    }
}

extern "C" __global__ void shuffle_from_absent(const unsigned* x, unsigned* y) {
    unsigned t = threadIdx.x;
    y[t] = __shfl_sync(0xffffffffu, x[t], (t + 8) % 32);
}

extern "C" __global__ void double_buffer_copies(const unsigned* x, unsigned* y) {
    __shared__ unsigned s[2][64];
    unsigned t = threadIdx.x, sum = 0;
    for (unsigned k = 0; k < 8; k++) {
        // The buffer that is filled is the one of two steps before, which others may still read.
        unsigned to = (unsigned)__cvta_generic_to_shared(&s[k % 2][t]);
        asm volatile("cp.async.ca.shared.global [%0], [%1], 4;" :: "r"(to), "l"(x + 64 * k + t) : "memory");
        asm volatile("cp.async.wait_all;" ::: "memory");
        if (k == 0) __syncthreads();
        if (k > 0) sum += s[(k - 1) % 2][63 - t];
    }
    y[t] = sum;
}

extern "C" __global__ void heap_twice(unsigned* y) {
    unsigned* word = (unsigned*)malloc(8);
    word[0] = 1;
    free(word);
    unsigned* other = (unsigned*)malloc(8);
    other[0] = 2;
    y[0] = word[0];
    free(other);
}

extern "C" __global__ void counter_64(unsigned long long* x) {
    if (threadIdx.x == 5) x[0] += 3;
}
