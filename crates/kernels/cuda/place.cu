// Elements that depend on their place: numbers in order, triangles, diagonals.
#include "common.cuh"

#ifdef NUMBERED
#ifdef KERNEL_number_elements
// start + i * step, where i is the number in row-major order.
extern "C" __global__ void number_elements(NUMBERED* __restrict__ to, const Shape to_shape,
                                           double start, double step_size, i64 whole_start,
                                           i64 whole_step, u64 count) {
    typedef Computed<NUMBERED> As;
    const COUNTED step = (COUNTED)gridDim.x * blockDim.x;
    for (COUNTED at = (COUNTED)blockIdx.x * blockDim.x + threadIdx.x; at < (COUNTED)count;
         at += step) {
#if IS_FLOAT
        const As::type value = (As::type)fma((double)at, step_size, start);
#else
        const As::type value = (As::type)((u64)whole_start + (u64)at * (u64)whole_step);
#endif
        to[offset_of<DIMS, COUNTED>(to_shape, at)] = As::store(value);
    }
}
#endif
#endif

#ifdef UNIT
// Of the last two dimensions of `to_shape`: those at or below a diagonal, at or above it, or on it.
__device__ __forceinline__ bool is_kept(const Shape& shape, COUNTED at, i64 diagonal) {
    const COUNTED columns = (COUNTED)shape.extents[DIMS - 1];
    const COUNTED line = at / columns;
    const i64 column = (i64)(at - line * columns);
    const i64 row = (i64)(line % (COUNTED)shape.extents[DIMS - 2]);
    return PART == 0 ? column - row <= diagonal
                     : PART == 1 ? column - row >= diagonal : column - row == diagonal;
}

#ifdef KERNEL_keep_triangle
extern "C" __global__ void keep_triangle(UNIT* to, const Shape to_shape, const UNIT* from, const Shape from_shape,
                                         i64 diagonal, u64 count) {
    const COUNTED step = (COUNTED)gridDim.x * blockDim.x;
    for (COUNTED at = (COUNTED)blockIdx.x * blockDim.x + threadIdx.x; at < (COUNTED)count;
         at += step) {
        i64 target, source;
        offsets_of<DIMS, COUNTED>(to_shape, from_shape, at, target, source);
        UNIT value = 0;
        if (is_kept(to_shape, at, diagonal)) value = from[source];
        to[target] = value;
    }
}
#endif

#ifdef KERNEL_write_diagonal
extern "C" __global__ void write_diagonal(UNIT* __restrict__ to, const Shape to_shape, i64 diagonal,
                                          u64 count, u64 one) {
    const COUNTED step = (COUNTED)gridDim.x * blockDim.x;
    for (COUNTED at = (COUNTED)blockIdx.x * blockDim.x + threadIdx.x; at < (COUNTED)count;
         at += step) {
        const UNIT value = is_kept(to_shape, at, diagonal) ? (UNIT)one : (UNIT)0;
        to[offset_of<DIMS, COUNTED>(to_shape, at)] = value;
    }
}
#endif
#endif
