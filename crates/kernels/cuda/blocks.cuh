// Reductions by the threads of a block, in a fixed order, and loops of a grid.
#pragma once
#include "common.cuh"

#define EACH_ELEMENT(number, count)                                                       \
    for (u64 number = (u64)blockIdx.x * blockDim.x + threadIdx.x; number < (count);       \
         number += (u64)gridDim.x * blockDim.x)

#define EACH_OF_BLOCK(number, count)                                                      \
    for (u64 number = threadIdx.x; number < (count); number += blockDim.x)

template <typename T>
struct AddOf {
    static __device__ __forceinline__ T combine(T a, T b) { return a + b; }
};

// NaN if either is.
template <typename T>
struct MostOf {
    static __device__ __forceinline__ T combine(T a, T b) {
        return a != a || a > b ? a : b;
    }
};

// Combines a value of each thread of the block, of which there are a power of two; `places` has one
// place for each. All threads get the result.
template <typename Op, typename T>
__device__ __forceinline__ T reduce_block(T own, T* places) {
    // The result of an earlier call may still be read.
    __syncthreads();
    places[threadIdx.x] = own;
    for (u32 half = blockDim.x / 2; half > 0; half /= 2) {
        __syncthreads();
        if (threadIdx.x < half) {
            places[threadIdx.x] = Op::combine(places[threadIdx.x], places[threadIdx.x + half]);
        }
    }
    __syncthreads();
    return places[0];
}

// Offsets of one element in several shapes of the same extents, by its number in row-major order of
// their first N dimensions.
template <int N, int VIEWS>
__device__ __forceinline__ void all_offsets(const Shape* const (&shapes)[VIEWS], u64 at,
                                            i64 (&offsets)[VIEWS]) {
#pragma unroll
    for (int v = 0; v < VIEWS; v++) offsets[v] = 0;
#pragma unroll
    for (int d = N - 1; d > 0; d--) {
        const u64 extent = shapes[0]->extents[d], rest = at / extent;
        const i64 own = (i64)(at - rest * extent);
#pragma unroll
        for (int v = 0; v < VIEWS; v++) offsets[v] += own * shapes[v]->strides[d];
        at = rest;
    }
#pragma unroll
    for (int v = 0; v < VIEWS; v++) offsets[v] += (i64)at * shapes[v]->strides[0];
}
