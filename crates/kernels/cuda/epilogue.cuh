// What is done to each element of a matrix product: f(scale * sum + bias[n]) + residual[m, n].
#pragma once
#include "common.cuh"

__device__ __forceinline__ ACC activated(ACC x) {
#if ACTIVATION == 1
    return x > 0 ? x : (x != x ? x : 0);
#elif ACTIVATION == 2
    return (ACC)0.5 * x * ((ACC)1 + (ACC)ERF(x * (ACC)0.70710678118654752440));
#elif ACTIVATION == 3
    return x / ((ACC)1 + (ACC)EXP(-x));
#else
    return x;
#endif
}

// Strides of a matrix.
__device__ __forceinline__ i64 row_stride(const Shape& shape) { return shape.strides[DIMS - 2]; }
__device__ __forceinline__ i64 column_stride(const Shape& shape) {
    return shape.strides[DIMS - 1];
}

// The matrices of one batch, by its number in row-major order of the dimensions before the last two.
struct Batch {
    i64 to, left, right, residual;

    __device__ __forceinline__ Batch() : to(0), left(0), right(0), residual(0) {}

    __device__ __forceinline__ Batch(u32 at, const Shape& to_shape, const Shape& left_shape,
                                     const Shape& right_shape, const Shape& residual_shape)
        : to(0), left(0), right(0), residual(0) {
#pragma unroll
        for (int d = DIMS - 3; d >= 0; d--) {
            // An extent beyond 32 bits would have more blocks than there can be.
            const u32 extent = (u32)to_shape.extents[d], rest = at / extent;
            const i64 own = (i64)(at - rest * extent);
            at = rest;
            to += own * to_shape.strides[d];
            left += own * left_shape.strides[d];
            right += own * right_shape.strides[d];
            residual += own * residual_shape.strides[d];
        }
    }
};

// Where the result of one matrix goes, and what is added to it.
struct Epilogue {
    RESULT* to;
    i64 to_row, to_column;
    const ELEMENT* bias;
    i64 bias_column;
    const RESULT* residual;
    i64 residual_row, residual_column;
    double scale;

    __device__ __forceinline__ Epilogue(RESULT* to, const Shape& to_shape, const ELEMENT* bias,
                                        i64 bias_stride, const RESULT* residual,
                                        const Shape& residual_shape, double scale,
                                        const Batch& batch)
        : to(to + batch.to),
          to_row(row_stride(to_shape)),
          to_column(column_stride(to_shape)),
          bias(bias),
          bias_column(bias_stride),
          residual(residual == nullptr ? nullptr : residual + batch.residual),
          residual_row(row_stride(residual_shape)),
          residual_column(column_stride(residual_shape)),
          scale(scale) {}

    __device__ __forceinline__ ACC before_rounding(ACC value, u64 row, u64 column) const {
#if IS_SCALED
        value = value * (ACC)scale;
#endif
        if (bias != nullptr) {
            value += (ACC)Computed<ELEMENT>::load(bias[(i64)column * bias_column]);
        }
        value = activated(value);
        if (residual != nullptr) {
            value += (ACC)Computed<RESULT>::load(
                residual[(i64)row * residual_row + (i64)column * residual_column]);
        }
        return value;
    }

    __device__ __forceinline__ RESULT of(ACC value, u64 row, u64 column) const {
        value = before_rounding(value, row, column);
        return Computed<RESULT>::store((typename Computed<RESULT>::type)value);
    }

    __device__ __forceinline__ void store(ACC value, u64 row, u64 column) const {
        to[(i64)row * to_row + (i64)column * to_column] = of(value, row, column);
    }
};
