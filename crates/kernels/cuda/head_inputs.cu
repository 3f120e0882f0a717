// Queries, keys and values of tokens on their way to attention: norms of heads, rotary positions,
// and keys and values in their places of a cache. A warp has one head of a token.
//
// ELEMENT is the type of what was projected, CACHED that of the cache, POSITION and SLOT are types
// of whole numbers. Each token's row has its heads of queries, then of keys, then of values.
#include "attention.cuh"
#include "blocks.cuh"
#include "checked.cuh"
#include "overlap.cuh"

typedef Computed<ELEMENT> As;
typedef As::type Real;

#define THREADS 128
#define WARPS (THREADS / 32)

extern "C" __global__ void __launch_bounds__(THREADS)
    head_inputs(ELEMENT* q, const Shape q_shape, CACHED* k, const Shape k_shape, CACHED* v,
                const Shape v_shape, const ELEMENT* x, const Shape x_shape,
                const POSITION* position, i64 position_stride,
                const float* frequency, i64 frequency_stride,
                const SLOT* slot, i64 slot_stride, const ELEMENT* q_norm,
                i64 q_norm_stride, const ELEMENT* k_norm, i64 k_norm_stride, double eps,
                double magnitude, u64 pairs, u64 rows, u64* fault) {
    __shared__ Real row_places[WARPS][LENGTH];
    overlap_launches();
    const u32 warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    const u64 heads = q_shape.extents[1], shared_heads = k_shape.extents[2];
    const u64 places = k_shape.extents[1], slots = k_shape.extents[0] * places;
    const u64 row = (u64)blockIdx.x * WARPS + warp;
    if (row >= rows) return;
    const u64 of_token = heads + 2 * shared_heads;
    const u64 token = row / of_token, number = row - token * of_token;
    const bool is_query = number < heads, is_value = number >= heads + shared_heads;
    const u64 shared_head = is_query ? 0 : number - heads - (is_value ? shared_heads : 0);
    const u64 column = is_value ? (heads + shared_heads) * LENGTH + shared_head * VALUE_LENGTH
                                : number * LENGTH;
    const ELEMENT* from = x + (i64)token * x_shape.strides[0] + (i64)column * x_shape.strides[1];
    u64 block = 0, place = 0;
    if (!is_query) {
        const i64 chosen = (i64)slot[(i64)token * slot_stride];
        // One of the heads says so.
        if (!is_inside(chosen, slots, token, lane == 0 ? fault : nullptr)) return;
        block = (u64)chosen / places;
        place = (u64)chosen - block * places;
    }
    if (is_value) {
        CACHED* to = v + (i64)block * v_shape.strides[0] + (i64)place * v_shape.strides[1] +
                     (i64)shared_head * v_shape.strides[2];
        for (u32 d = lane; d < VALUE_LENGTH; d += 32) {
            const Real value = As::load(from[(i64)d * x_shape.strides[1]]);
            to[(i64)d * v_shape.strides[3]] =
                Computed<CACHED>::store((Computed<CACHED>::type)value);
        }
        return;
    }
    Real* own = row_places[warp];
    Real squares = 0;
    for (u32 d = lane; d < LENGTH; d += 32) {
        own[d] = As::load(from[(i64)d * x_shape.strides[1]]);
        squares += own[d] * own[d];
    }
    const ELEMENT* norm = is_query ? q_norm : k_norm;
    if (norm != nullptr) {
        const i64 norm_stride = is_query ? q_norm_stride : k_norm_stride;
#pragma unroll
        for (int distance = 16; distance > 0; distance /= 2) {
            squares += __shfl_xor_sync(0xffffffff, squares, distance);
        }
        const Real by = (Real)1 / root(squares / (Real)LENGTH + (Real)eps);
        for (u32 d = lane; d < LENGTH; d += 32) {
            own[d] = own[d] * by * As::load(norm[(i64)d * norm_stride]);
        }
    }
    __syncwarp();
    const Real at = (Real)position[(i64)token * position_stride];
    CACHED* to_cache = k + (i64)block * k_shape.strides[0] + (i64)place * k_shape.strides[1] +
                       (i64)shared_head * k_shape.strides[2];
    ELEMENT* to_q = q + (i64)token * q_shape.strides[0] + (i64)number * q_shape.strides[1];
    for (u32 d = lane; d < LENGTH; d += 32) {
        const Real value = turned<IS_ADJACENT>(own, d, (u32)pairs, at, frequency, frequency_stride,
                                               (Real)magnitude);
        if (is_query) {
            to_q[(i64)d * q_shape.strides[2]] = As::store(value);
        } else {
            to_cache[(i64)d * k_shape.strides[3]] =
                Computed<CACHED>::store((Computed<CACHED>::type)value);
        }
    }
}
