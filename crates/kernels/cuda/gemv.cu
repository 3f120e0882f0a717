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

    __device__ __forceinline__ Pack() : bits(make_uint4(0, 0, 0, 0)) {}
};

// Neighbours along the depth from `k` on, those beyond it as 0.
template <bool VECTOR, bool ONCE>
__device__ __forceinline__ Pack load_pack(const ELEMENT* from, i64 stride, u64 k, u64 depth) {
    Pack pack;
    if (VECTOR && k + NEAR <= depth) {
        const uint4* all = reinterpret_cast<const uint4*>(from + k);
        pack.bits = ONCE ? __ldcs(all) : __ldg(all);
        return pack;
    }
#pragma unroll
    for (u32 i = 0; i < NEAR; i++) {
        if (k + i < depth) pack.values[i] = from[(i64)(k + i) * stride];
    }
    return pack;
}

extern "C" __global__ void __launch_bounds__(THREADS)
    gemv(RESULT* __restrict__ to, const Shape to_shape, const ELEMENT* __restrict__ left,
         const Shape left_shape, const ELEMENT* __restrict__ right, const Shape right_shape,
         const ELEMENT* __restrict__ bias, i64 bias_stride, const RESULT* __restrict__ residual,
         const Shape residual_shape, double scale, u64 depth, u64 tiles_down, u64 tiles_across) {
    __shared__ ACC partial[WARPS];
    const u32 warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    const u64 column = blockIdx.x % tiles_across * COLUMNS + warp / SPLIT;
    const u64 at = blockIdx.x / tiles_across;
    const u64 row = at % tiles_down;
    const Batch batch(at / tiles_down, to_shape, left_shape, right_shape, residual_shape);
    const bool is_inside = column < to_shape.extents[DIMS - 1];
    const ELEMENT* x = left + batch.left + (i64)row * row_stride(left_shape);
    const ELEMENT* w = right + batch.right;
    if (is_inside) w += (i64)column * column_stride(right_shape);
    const i64 x_stride = column_stride(left_shape), w_stride = row_stride(right_shape);
    const u64 step = SPLIT * 32 * NEAR;
    const u64 first = (u64)(warp % SPLIT) * 32 * NEAR + lane * NEAR;
    ACC sum = 0;
    Pack next[AHEAD];
#pragma unroll
    for (u32 i = 0; i < AHEAD; i++) {
        next[i] = load_pack<RIGHT_VECTOR, true>(w, w_stride, first + i * step, depth);
    }
    for (u64 k = first; k < depth; k += AHEAD * step) {
#pragma unroll
        for (u32 i = 0; i < AHEAD; i++) {
            const u64 here = k + i * step;
            const Pack b = next[i];
            const Pack a = load_pack<LEFT_VECTOR, false>(x, x_stride, here, depth);
            next[i] = load_pack<RIGHT_VECTOR, true>(w, w_stride, here + AHEAD * step, depth);
#pragma unroll
            for (u32 j = 0; j < NEAR; j++) {
                sum = MULTIPLY_ADD((ACC)In::load(a.values[j]), (ACC)In::load(b.values[j]), sum);
            }
        }
    }
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
