// Rows along one axis, and scans by the threads of a block.
#pragma once
#include "common.cuh"

// Offset of a row's first element, by the row's number. The first dimension of such a shape is the
// axis, the others are those that number the rows.
__device__ __forceinline__ i64 row_offset(const Shape& shape, u64 row) {
    i64 offset = 0;
#pragma unroll
    for (int d = 7; d > 0; d--) {
        const u64 extent = shape.extents[d];
        if (extent == 1) continue;
        const u64 rest = row / extent;
        offset += (i64)(row - rest * extent) * shape.strides[d];
        row = rest;
    }
    return offset;
}

// Offset of an element, by its number in row-major order of all dimensions.
__device__ __forceinline__ i64 element_offset(const Shape& shape, u64 at) {
    i64 offset = 0;
#pragma unroll
    for (int d = 7; d > 0; d--) {
        const u64 extent = shape.extents[d];
        if (extent == 1) continue;
        const u64 rest = at / extent;
        offset += (i64)(at - rest * extent) * shape.strides[d];
        at = rest;
    }
    return offset + (i64)at * shape.strides[0];
}

// The value of the lane that is `distance` before this one; of the first lanes their own.
template <typename S>
__device__ __forceinline__ S shuffle_up(S value, u32 distance) {
    const u32 words = (sizeof(S) + 3) / 4;
    union Words {
        S whole;
        u32 word[words];
        __device__ Words() {}
    } all;
    all.word[words - 1] = 0;
    all.whole = value;
#pragma unroll
    for (u32 k = 0; k < words; k++) {
        all.word[k] = __shfl_up_sync(0xffffffff, all.word[k], distance);
    }
    return all.whole;
}

// Combines, in order, the values of the threads before this one; `total` is that of all. `warps`
// has a place for each warp of the block, of which there are whole ones.
template <typename Op>
__device__ __forceinline__ typename Op::State scan_block(typename Op::State own,
                                                         typename Op::State* warps,
                                                         typename Op::State& total) {
    typedef typename Op::State State;
    const u32 lane = threadIdx.x % 32, warp = threadIdx.x / 32;
#pragma unroll
    for (u32 distance = 1; distance < 32; distance *= 2) {
        const State before = shuffle_up(own, distance);
        if (lane >= distance) own = Op::combine(before, own);
    }
    // Values of an earlier call may still be read.
    __syncthreads();
    if (lane == 31) warps[warp] = own;
    __syncthreads();
    State before = Op::identity();
    total = Op::identity();
    for (u32 k = 0; k < blockDim.x / 32; k++) {
        if (k == warp) before = total;
        total = Op::combine(total, warps[k]);
    }
    const State inside = shuffle_up(own, 1);
    return lane == 0 ? before : Op::combine(before, inside);
}

// Sums of unsigned integers.
template <typename N>
struct Count {
    typedef N State;
    static __device__ __forceinline__ N identity() { return 0; }
    static __device__ __forceinline__ N combine(N a, N b) { return a + b; }
};
