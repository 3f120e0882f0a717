// Matrix products of one row: each column of the right factor, whose elements follow the depth, is
// read by SPLIT warps, which add products in registers; their sums meet in shared memory.
#include "epilogue.cuh"

#define WARPS (THREADS / 32)
// Elements of 16 bytes.
#define NEAR (16 / sizeof(ELEMENT))
// Parts of the right factor that are on their way.
#define AHEAD 2

typedef Computed<ELEMENT> In;

union Pack {
    uint4 bits;
    ELEMENT values[NEAR];

    __device__ __forceinline__ Pack() {}
};

extern "C" __global__ void __launch_bounds__(THREADS, 2048 / THREADS)
    gemv(RESULT* __restrict__ to, const Shape to_shape, const ELEMENT* __restrict__ left,
         const Shape left_shape, const ELEMENT* __restrict__ right, const Shape right_shape,
         const ELEMENT* __restrict__ bias, i64 bias_stride, const RESULT* __restrict__ residual,
         const Shape residual_shape, double scale, u64 depth, u64 tiles_down, u64 tiles_across) {
    __shared__ ACC partial[WARPS];
    const u32 warp = threadIdx.x / 32, lane = threadIdx.x % 32;
#if IS_SINGLE
    // One row by one matrix: divisions would cost a tenth of a block's time.
    const u64 column = (u64)blockIdx.x * COLUMNS + warp / SPLIT, row = 0;
    const Batch batch;
#else
    // Numbers of tiles are fewer than blocks, so divisions of 32 bits suffice.
    const u32 tile_row = blockIdx.x / (u32)tiles_across;
    const u64 column = (u64)(blockIdx.x - tile_row * (u32)tiles_across) * COLUMNS + warp / SPLIT;
    const u32 number = tile_row / (u32)tiles_down;
    const u64 row = tile_row - number * (u32)tiles_down;
    const Batch batch(number, to_shape, left_shape, right_shape, residual_shape);
#endif
    const bool is_inside = column < to_shape.extents[DIMS - 1];
    const ELEMENT* x = left + batch.left + (i64)row * row_stride(left_shape);
    const ELEMENT* w = right + batch.right;
    if (is_inside) w += (i64)column * column_stride(right_shape);
    const i64 x_stride = column_stride(left_shape), w_stride = row_stride(right_shape);
    const u64 step = SPLIT * 32 * NEAR;
    const u64 first = (u64)(warp % SPLIT) * 32 * NEAR + lane * NEAR;
    ACC sum = 0;
#if LEFT_VECTOR && RIGHT_VECTOR
    const u64 whole = depth - depth % NEAR;
    const u64 packs = first < whole ? (whole - first + step - 1) / step : 0;
    const ELEMENT* x_next = x + first;
    const ELEMENT* w_next = w + first;
    Pack ahead[AHEAD];
#pragma unroll
    for (u32 i = 0; i < AHEAD; i++) {
        if (i < packs) ahead[i].bits = __ldcs(reinterpret_cast<const uint4*>(w_next + i * step));
    }
    for (u64 pack = 0; pack < packs; pack += AHEAD) {
#pragma unroll
        for (u32 i = 0; i < AHEAD; i++) {
            if (pack + i >= packs) break;
            Pack a;
            a.bits = __ldg(reinterpret_cast<const uint4*>(x_next + i * step));
            const Pack b = ahead[i];
            if (pack + i + AHEAD < packs) {
                const ELEMENT* from = w_next + (i + AHEAD) * step;
                ahead[i].bits = __ldcs(reinterpret_cast<const uint4*>(from));
            }
#pragma unroll
            for (u32 j = 0; j < NEAR; j++) {
                sum = MULTIPLY_ADD((ACC)In::load(a.values[j]), (ACC)In::load(b.values[j]), sum);
            }
        }
        x_next += AHEAD * step;
        w_next += AHEAD * step;
    }
    // What is left is of the lane that the other form gives it to.
    if (whole / NEAR % (SPLIT * 32) == warp % SPLIT * 32 + lane) {
        for (u64 k = whole; k < depth; k++) {
            sum = MULTIPLY_ADD((ACC)In::load(x[k]), (ACC)In::load(w[k]), sum);
        }
    }
#else
    for (u64 begin = first; begin < depth; begin += step) {
#pragma unroll
        for (u32 j = 0; j < NEAR; j++) {
            const u64 k = begin + j;
            if (k >= depth) break;
            sum = MULTIPLY_ADD((ACC)In::load(x[(i64)k * x_stride]),
                               (ACC)In::load(w[(i64)k * w_stride]), sum);
        }
    }
#endif
#pragma unroll
    for (u32 distance = 16; distance > 0; distance /= 2) {
        sum += __shfl_xor_sync(0xffffffffu, sum, distance);
    }
    if (lane == 0) partial[warp] = sum;
    __syncthreads();
    if (lane != 0 || warp % SPLIT != 0 || !is_inside) return;
#pragma unroll
    for (u32 other = 1; other < SPLIT; other++) sum += partial[warp + other];
    const Epilogue epilogue(to, to_shape, bias, bias_stride, residual, residual_shape, scale, batch);
    epilogue.store(sum, row, column);
}
