// Products of matrices in compressed rows: row i has the elements from offset i to before offset
// i + 1, each with its column. Offsets that are outside of the elements, or do not ascend, make a row
// empty; a column outside is skipped.
#include "blocks.cuh"
#include "checked.cuh"

typedef Computed<ELEMENT> As;
typedef As::type Real;

#define MOST_THREADS 256

struct Span {
    u64 begin, end;
};

__device__ __forceinline__ Span span_of(const OFFSET* offsets, i64 stride, u64 row, u64 elements,
                                        u64* fault) {
    const i64 begin = (i64)offsets[(i64)row * stride], end = (i64)offsets[(i64)(row + 1) * stride];
    const bool from = is_inside(begin, elements + 1, row, fault);
    const bool to = is_inside(end, elements + 1, row + 1, fault);
    return from && to ? Span{(u64)begin, (u64)end} : Span{0, 0};
}

#ifdef KERNEL_multiply_rows
// Each element of the product of [rows, columns] by [columns, width]: by a thread, or with BY_BLOCK
// by a block.
extern "C" __global__ void multiply_rows(ELEMENT* __restrict__ to, const Shape to_shape,
                                         const ELEMENT* __restrict__ values, const Shape values_shape,
                                         const INDEX* __restrict__ index, const Shape index_shape,
                                         const OFFSET* __restrict__ offsets,
                                         const Shape offsets_shape, const ELEMENT* __restrict__ x,
                                         const Shape x_shape, u64 elements, u64 width, u64 count,
                                         u64* fault) {
#if BY_BLOCK
    __shared__ Real places[MOST_THREADS];
    const u64 first = blockIdx.x, step = gridDim.x, lane = threadIdx.x, lanes = blockDim.x;
#else
    const u64 first = (u64)blockIdx.x * blockDim.x + threadIdx.x;
    const u64 step = (u64)gridDim.x * blockDim.x, lane = 0, lanes = 1;
#endif
    for (u64 number = first; number < count; number += step) {
        const u64 row = number / width, own = number % width;
        const Span span = span_of(offsets, offsets_shape.strides[0], row, elements, fault);
        Real sum = 0;
        for (u64 at = span.begin + lane; at < span.end; at += lanes) {
            const i64 column = (i64)index[(i64)at * index_shape.strides[0]];
            if (!is_inside(column, x_shape.extents[0], at, fault)) continue;
            sum += As::load(values[(i64)at * values_shape.strides[0]]) *
                   As::load(x[column * x_shape.strides[0] + (i64)own * x_shape.strides[1]]);
        }
#if BY_BLOCK
        sum = reduce_block<AddOf<Real>>(sum, places);
#endif
        if (lane == 0) {
            to[(i64)row * to_shape.strides[0] + (i64)own * to_shape.strides[1]] = As::store(sum);
        }
    }
}
#endif

#ifdef KERNEL_sample_product
// Elements of the product of [rows, depth] by [depth, columns] where there are elements, times those.
// A block goes over a row, a thread over each element's depth.
extern "C" __global__ void sample_product(ELEMENT* __restrict__ to, const Shape to_shape,
                                          const ELEMENT* __restrict__ values,
                                          const Shape values_shape, const INDEX* __restrict__ index,
                                          const Shape index_shape,
                                          const OFFSET* __restrict__ offsets,
                                          const Shape offsets_shape, const ELEMENT* __restrict__ x,
                                          const Shape x_shape, const ELEMENT* __restrict__ y,
                                          const Shape y_shape, u64 elements, u64 depth, u64 rows,
                                          u64* fault) {
    for (u64 row = blockIdx.x; row < rows; row += gridDim.x) {
        const Span span = span_of(offsets, offsets_shape.strides[0], row, elements, fault);
        for (u64 at = span.begin + threadIdx.x; at < span.end; at += blockDim.x) {
            const i64 column = (i64)index[(i64)at * index_shape.strides[0]];
            if (!is_inside(column, y_shape.extents[1], at, fault)) continue;
            Real sum = 0;
            for (u64 k = 0; k < depth; k++) {
                sum += As::load(x[(i64)row * x_shape.strides[0] + (i64)k * x_shape.strides[1]]) *
                       As::load(y[(i64)k * y_shape.strides[0] + column * y_shape.strides[1]]);
            }
            const Real value = As::load(values[(i64)at * values_shape.strides[0]]);
            to[(i64)at * to_shape.strides[0]] = As::store(value * sum);
        }
    }
}
#endif
