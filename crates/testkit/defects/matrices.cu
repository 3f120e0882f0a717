// Matrix instructions of a part of a warp, odd places of matrices, and variables that are gone.
//@ run matrices_half_warp: half_warp grid=1 block=64
//@   inout y: f32[64] zero raw
//@   finds wrong warp mask
//@ run matrices_tail_gone: tail_gone grid=1 block=64
//@   in x: f16[256] uniform(-1, 1)
//@   inout y: f32[512] zero raw
//@   finds wrong warp mask
//@ run matrices_two_branches: two_branches grid=1 block=32
//@   in x: f16[512] uniform(-1, 1)
//@   inout y: f32[256] zero raw
//@   finds wrong warp mask
//@ run matrices_odd_start: odd_start grid=1 block=32
//@   in x: f16[512] uniform(-1, 1)
//@   inout y: f32[256] zero raw
//@   finds misaligned
//@ run matrices_odd_rows: odd_rows grid=1 block=32
//@   in x: f16[512] uniform(-1, 1)
//@   inout y: f32[256] zero raw
//@   finds misaligned
//@ run matrices_returned_array: returned_array grid=1 block=32
//@   inout y: u32[32] zero raw
//@   finds use after free
//@ run matrices_source_overwritten: source_overwritten grid=1 block=32
//@   inout x: u32[32] iota
//@   inout y: u32[32] zero raw
//@   finds global memory race
//@ run matrices_barrier_17: barrier_17 grid=1 block=64
//@   inout y: u32[64] zero raw
//@   finds barrier divergence
#include <cuda_pipeline.h>
#include <mma.h>
using namespace nvcuda::wmma;
typedef fragment<matrix_a, 16, 16, 16, __half, row_major> left;
typedef fragment<matrix_b, 16, 16, 16, __half, col_major> right;
typedef fragment<accumulator, 16, 16, 16, float> sums;

__device__ void product(const __half* x, unsigned step, float* y) {
    left a;
    right b;
    sums c;
    fill_fragment(c, 0.0f);
    load_matrix_sync(a, x, step);
    load_matrix_sync(b, x, step);
    mma_sync(c, a, b, c);
    store_matrix_sync(y, c, 16, mem_row_major);
}

extern "C" __global__ void half_warp(float* y) {
    unsigned t = threadIdx.x;
    float d[4] = {};
    if (t % 32 < 16)
        asm volatile(
            "mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0,%1,%2,%3}, {%4,%4,%4,%4}, "
            "{%4,%4}, {%0,%1,%2,%3};"
            : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3]) : "r"(t));
    y[t] = d[0];
}

extern "C" __global__ void tail_gone(const __half* x, float* y) {
    // Of the second warp eight threads have nothing to do, and leave.
    if (threadIdx.x >= 56) return;
    product(x, 16, y + threadIdx.x / 32 * 256);
}

extern "C" __global__ void two_branches(const __half* x, float* y) {
    if (threadIdx.x & 1)
        product(x, 16, y);
    else
        product(x + 256, 16, y);
}

extern "C" __global__ void odd_start(const __half* x, float* y) { product(x + 8, 16, y); }

extern "C" __global__ void odd_rows(const __half* x, float* y) { product(x, 20, y); }

__device__ __noinline__ unsigned* numbers(unsigned k) {
    unsigned a[4] = {k, k + 1, k + 2, k + 3};
    unsigned* p = &a[k & 3];
    asm volatile("" : "+l"(p)::"memory");
    return p;
}

extern "C" __global__ void returned_array(unsigned* y) { y[threadIdx.x] = *numbers(threadIdx.x); }

extern "C" __global__ void source_overwritten(unsigned* x, unsigned* y) {
    __shared__ unsigned s[32];
    unsigned t = threadIdx.x;
    __pipeline_memcpy_async(s + t, x + t, 4);
    __pipeline_commit();
    x[t] = 0;
    __pipeline_wait_prior(0);
    y[t] = s[t];
}

extern "C" __global__ void barrier_17(unsigned* y) {
    unsigned n = 17;
    asm volatile("" : "+r"(n));
    asm volatile("bar.sync %0;" ::"r"(n) : "memory");
    y[threadIdx.x] = n;
}
