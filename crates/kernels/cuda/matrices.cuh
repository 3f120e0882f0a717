// What kernels of matrices share: ELEMENT is the type in memory, REAL that of computed values. With
// IN_SHARED a block works in shared memory, else in its part of `work`.
#pragma once
#include "rows.cuh"

#define MOST_THREADS 256

#if IN_SHARED
extern __shared__ double2 shared_memory[];
#define WORK(size) reinterpret_cast<REAL*>(shared_memory)
#else
#define WORK(size) (work + (u64)blockIdx.x * (size))
#endif

__device__ __forceinline__ float magnitude(float x) { return fabsf(x); }
__device__ __forceinline__ double magnitude(double x) { return fabs(x); }

// One matrix in memory, of those that a shape numbers; its first dimension is that of columns.
template <typename T>
struct Matrix {
    T* x;
    i64 row, column;

    __device__ __forceinline__ Matrix(T* all, const Shape& shape, i64 row, u64 number)
        : x(all + row_offset(shape, number)), row(row), column(shape.strides[0]) {}
    __device__ __forceinline__ REAL load(u32 i, u32 j) const {
        return Computed<ELEMENT>::load(x[(i64)i * row + (i64)j * column]);
    }
    __device__ __forceinline__ void store(u32 i, u32 j, REAL value) const {
        x[(i64)i * row + (i64)j * column] = Computed<ELEMENT>::store(value);
    }
};
typedef Matrix<const ELEMENT> Operand;
typedef Matrix<ELEMENT> Result;

// The sum of one value of each thread, of which there is a power of two. All threads have it.
__device__ __forceinline__ REAL block_sum(REAL own) {
    __shared__ REAL sums[MOST_THREADS];
    sums[threadIdx.x] = own;
    __syncthreads();
    for (u32 half = blockDim.x / 2; half > 0; half /= 2) {
        if (threadIdx.x < half) sums[threadIdx.x] += sums[threadIdx.x + half];
        __syncthreads();
    }
    const REAL all = sums[0];
    __syncthreads();
    return all;
}
