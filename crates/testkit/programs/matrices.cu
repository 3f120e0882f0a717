// Matrix instructions of whole warps, and memory that is used while it may be.
//@ run tiles: tiles grid=1 block=64
//@   in x: f16[1024] uniform(-1, 1)
//@   inout y: f32[1024] zero raw
//@ run one_warp_of_two: one_warp_of_two grid=1 block=96
//@   in x: f16[256] uniform(-1, 1)
//@   inout y: f32[256] zero raw
//@ run in_place: in_place grid=2 block=64
//@   inout x: u32[512] iota
//@ run arrays_of_callers: arrays_of_callers grid=1 block=64
//@   inout y: u32[64] zero raw
//@ run named_barriers: named_barriers grid=1 block=64
//@   inout y: u32[64] zero raw
#include <cuda_pipeline.h>
#include <mma.h>
using namespace nvcuda::wmma;
typedef fragment<matrix_a, 16, 16, 16, __half, row_major> left;
typedef fragment<matrix_b, 16, 16, 16, __half, col_major> right;
typedef fragment<accumulator, 16, 16, 16, float> sums;

// Of 32 by 32 elements; rows of the tile have eight halves behind them, against bank conflicts.
extern "C" __global__ void tiles(const __half* x, float* y) {
    __shared__ __align__(32) __half tile[32][40];
    unsigned t = threadIdx.x, row = t / 32 * 16;
    for (unsigned k = t; k < 1024; k += 64) tile[k / 32][k % 32] = x[k];
    __syncthreads();
    for (unsigned column = 0; column < 32; column += 16) {
        sums c;
        fill_fragment(c, 0.0f);
        for (unsigned k = 0; k < 32; k += 16) {
            left a;
            right b;
            load_matrix_sync(a, &tile[row][k], 40);
            load_matrix_sync(b, &tile[column][k], 40);
            mma_sync(c, a, b, c);
        }
        store_matrix_sync(y + row * 32 + column, c, 32, mem_row_major);
    }
}

extern "C" __global__ void one_warp_of_two(const __half* x, float* y) {
    unsigned t = threadIdx.x;
    // Lanes do different work before they meet.
    unsigned n = 0;
    for (unsigned k = 0; k < t % 5; k++) n += __popc(k);
    if (t / 32 == 1 && n < 100) {
        left a;
        right b;
        sums c;
        fill_fragment(c, 1.0f);
        load_matrix_sync(a, x, 16);
        load_matrix_sync(b, x, 16);
        mma_sync(c, a, b, c);
        store_matrix_sync(y, c, 16, mem_row_major);
    }
}

// Two stages of copies, each written back when it has come.
extern "C" __global__ void in_place(unsigned* x) {
    __shared__ unsigned s[2][64];
    unsigned t = threadIdx.x;
    unsigned* mine = x + blockIdx.x * 256 + t;
    __pipeline_memcpy_async(&s[0][t], mine, 4);
    __pipeline_commit();
    for (unsigned k = 0; k < 4; k++) {
        if (k < 3) __pipeline_memcpy_async(&s[(k + 1) % 2][t], mine + 64 * (k + 1), 4);
        __pipeline_commit();
        __pipeline_wait_prior(1);
        mine[64 * k] = s[k % 2][t] + 1;
    }
}

__device__ __noinline__ void fill(unsigned* a, unsigned n, unsigned v) {
    for (unsigned k = 0; k < n; k++) a[k] = v + k;
}

__device__ __noinline__ unsigned sum(unsigned n) {
    unsigned a[8];
    fill(a, 8, n);
    unsigned total = n == 0 ? 0 : sum(n - 1);
    for (unsigned k = 0; k < 8; k++) total += a[k ^ (n & 7)];
    return total;
}

extern "C" __global__ void arrays_of_callers(unsigned* y) {
    unsigned a[16];
    fill(a, 16, threadIdx.x);
    y[threadIdx.x] = sum(threadIdx.x % 5) + a[threadIdx.x % 16];
}

extern "C" __global__ void named_barriers(unsigned* y) {
    unsigned n = 15, all = 64;
    asm volatile("" : "+r"(n), "+r"(all));
    asm volatile("bar.sync %0, %1;" ::"r"(n), "r"(all) : "memory");
    asm volatile("bar.sync %0, 32;" ::"r"(threadIdx.x / 32 + 1) : "memory");
    y[threadIdx.x] = n;
}
