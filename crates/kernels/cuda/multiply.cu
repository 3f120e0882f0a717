// Matrix products: to[.., m, n] = f(scale * sum over k of left[.., m, k] * right[.., k, n]
// + bias[n]) + residual[.., m, n], in ACC. The last two of DIMS dimensions are those of a matrix;
// LEFT_ALONG_K and RIGHT_ALONG_K say which dimension of a factor neighbours in memory follow.
#include "epilogue.cuh"

#define SIDE 64
#define DEPTH 16
#define EACH 4
#define THREADS 256

typedef Computed<ELEMENT> In;

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
    multiply(RESULT* to, const Shape to_shape, const ELEMENT* __restrict__ left,
             const Shape left_shape, const ELEMENT* __restrict__ right, const Shape right_shape,
             const ELEMENT* __restrict__ bias, i64 bias_stride,
             const RESULT* residual, const Shape residual_shape, double scale, u64 depth,
             u64 tiles_down, u64 tiles_across) {
    __shared__ ACC left_tile[DEPTH][SIDE + 1], right_tile[DEPTH][SIDE + 1];
    u64 at = blockIdx.x;
    const u64 column = at % tiles_across * SIDE;
    at /= tiles_across;
    const u64 row = at % tiles_down * SIDE;
    at /= tiles_down;
    const Batch batch((u32)at, to_shape, left_shape, right_shape, residual_shape);
    const u64 rows = to_shape.extents[DIMS - 2], columns = to_shape.extents[DIMS - 1];
    const u32 x = threadIdx.x % (SIDE / EACH) * EACH, y = threadIdx.x / (SIDE / EACH) * EACH;
    ACC sums[EACH][EACH] = {};
    for (u64 k = 0; k < depth; k += DEPTH) {
        load_tile<LEFT_ALONG_K>(left_tile, left + batch.left, row, rows, row_stride(left_shape), k,
                                depth, column_stride(left_shape));
        load_tile<RIGHT_ALONG_K>(right_tile, right + batch.right, column, columns,
                                 column_stride(right_shape), k, depth, row_stride(right_shape));
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
    const Epilogue epilogue(to, to_shape, bias, bias_stride, residual, residual_shape, scale, batch);
#pragma unroll
    for (u32 i = 0; i < EACH; i++) {
        const u64 m = row + y + i;
        if (m >= rows) break;
#pragma unroll
        for (u32 j = 0; j < EACH; j++) {
            const u64 n = column + x + j;
            if (n >= columns) break;
            epilogue.store(sums[i][j], m, n);
        }
    }
}
