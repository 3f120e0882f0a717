// Matrix products: to[.., m, n] = f(scale * sum over k of left[.., m, k] * right[.., k, n]
// + bias[n]) + residual[.., m, n], in ACC. The last two of DIMS dimensions are those of a matrix;
// LEFT_ALONG_K and RIGHT_ALONG_K say which dimension of a factor neighbours in memory follow.
#include "common.cuh"

#define SIDE 64
#define DEPTH 16
#define EACH 4
#define THREADS 256

typedef Computed<ELEMENT> In;
typedef Computed<RESULT> Out;

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

// Elements of a factor to shared memory, those beyond its extents as 0. `across` counts rows of the
// left factor or columns of the right one.
template <bool ALONG_K>
__device__ __forceinline__ void load_tile(ACC (*tile)[SIDE + 1], const ELEMENT* from, u64 first,
                                          u64 extent, i64 across_stride, u64 k_first, u64 k_extent,
                                          i64 k_stride) {
#pragma unroll
    for (u32 at = threadIdx.x; at < SIDE * DEPTH; at += THREADS) {
        const u32 k = ALONG_K ? at % DEPTH : at / SIDE;
        const u32 across = ALONG_K ? at / DEPTH : at % SIDE;
        ACC value = 0;
        if (first + across < extent && k_first + k < k_extent) {
            value = (ACC)In::load(from[(i64)(first + across) * across_stride +
                                       (i64)(k_first + k) * k_stride]);
        }
        tile[k][across] = value;
    }
}

extern "C" __global__ void __launch_bounds__(THREADS)
    multiply(RESULT* __restrict__ to, const Shape to_shape, const ELEMENT* __restrict__ left,
             const Shape left_shape, const ELEMENT* __restrict__ right, const Shape right_shape,
             const ELEMENT* __restrict__ bias, i64 bias_stride,
             const RESULT* __restrict__ residual, const Shape residual_shape, double scale, u64 depth,
             u64 tiles_down, u64 tiles_across) {
    __shared__ ACC left_tile[DEPTH][SIDE + 1], right_tile[DEPTH][SIDE + 1];
    u64 at = blockIdx.x;
    const u64 column = at % tiles_across * SIDE;
    at /= tiles_across;
    const u64 row = at % tiles_down * SIDE;
    at /= tiles_down;
    i64 to_base = 0, left_base = 0, right_base = 0, residual_base = 0;
#pragma unroll
    for (int d = DIMS - 3; d >= 0; d--) {
        const i64 own = (i64)(at % to_shape.extents[d]);
        at /= to_shape.extents[d];
        to_base += own * to_shape.strides[d];
        left_base += own * left_shape.strides[d];
        right_base += own * right_shape.strides[d];
        residual_base += own * residual_shape.strides[d];
    }
    const u64 rows = to_shape.extents[DIMS - 2], columns = to_shape.extents[DIMS - 1];
    const u32 x = threadIdx.x % (SIDE / EACH) * EACH, y = threadIdx.x / (SIDE / EACH) * EACH;
    ACC sums[EACH][EACH] = {};
    for (u64 k = 0; k < depth; k += DEPTH) {
        load_tile<LEFT_ALONG_K>(left_tile, left + left_base, row, rows, left_shape.strides[DIMS - 2],
                                k, depth, left_shape.strides[DIMS - 1]);
        load_tile<RIGHT_ALONG_K>(right_tile, right + right_base, column, columns,
                                 right_shape.strides[DIMS - 1], k, depth,
                                 right_shape.strides[DIMS - 2]);
        __syncthreads();
#pragma unroll
        for (u32 inner = 0; inner < DEPTH; inner++) {
            ACC a[EACH], b[EACH];
#pragma unroll
            for (u32 i = 0; i < EACH; i++) {
                a[i] = left_tile[inner][y + i];
                b[i] = right_tile[inner][x + i];
            }
#pragma unroll
            for (u32 i = 0; i < EACH; i++) {
#pragma unroll
                for (u32 j = 0; j < EACH; j++) sums[i][j] = MULTIPLY_ADD(a[i], b[j], sums[i][j]);
            }
        }
        __syncthreads();
    }
#pragma unroll
    for (u32 i = 0; i < EACH; i++) {
        const u64 m = row + y + i;
        if (m >= rows) break;
#pragma unroll
        for (u32 j = 0; j < EACH; j++) {
            const u64 n = column + x + j;
            if (n >= columns) break;
            ACC value = sums[i][j];
#if IS_SCALED
            value = value * (ACC)scale;
#endif
            if (bias != nullptr) value += (ACC)In::load(bias[(i64)n * bias_stride]);
            value = activated(value);
            if (residual != nullptr) {
                value += (ACC)Out::load(residual[residual_base +
                                                 (i64)m * residual_shape.strides[DIMS - 2] +
                                                 (i64)n * residual_shape.strides[DIMS - 1]]);
            }
            to[to_base + (i64)m * to_shape.strides[DIMS - 2] +
               (i64)n * to_shape.strides[DIMS - 1]] = Out::store((Out::type)value);
        }
    }
}
