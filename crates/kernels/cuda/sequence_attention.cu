// Attention of whole sequences, of all floats and layouts: a warp has a row, which is one head of a
// query, and goes over 32 keys at a time. It keeps the largest score, the sum of weights, and the sum
// of values by them ("Online normalizer calculation for softmax", Milakov and Gimelshein, 2018).
#include "common.cuh"

#define WARPS 4
#define VALUES ((VALUE_LENGTH + 31) / 32)
#define ALL_LANES 0xffffffff

typedef Computed<ELEMENT> As;
typedef As::type Real;

__device__ __forceinline__ float tangent(float x) { return tanhf(x); }
__device__ __forceinline__ double tangent(double x) { return tanh(x); }

__device__ __forceinline__ i64 row_of(const Shape& shape, u64 batch, u64 token, u64 head) {
    return (i64)batch * shape.strides[0] + (i64)token * shape.strides[1] +
           (i64)head * shape.strides[2];
}

// The larger of two, or NaN if either is.
__device__ __forceinline__ Real larger(Real a, Real b) { return a != a || a > b ? a : b; }

extern "C" __global__ void __launch_bounds__(WARPS * 32)
    sequence_attention(ELEMENT* to, const Shape to_shape, const ELEMENT* q, const Shape q_shape,
                       const ELEMENT* k, const Shape k_shape, const ELEMENT* v,
                       const Shape v_shape, const float* sink, i64 sink_stride, double scale,
                       double limit, u64 window, u64 group, u64 rows) {
    __shared__ Real queries[WARPS][LENGTH];
    const u32 warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    const u64 row = (u64)blockIdx.x * WARPS + warp;
    if (row >= rows) return;
    const u64 tokens = q_shape.extents[1], heads = q_shape.extents[2], keys = k_shape.extents[1];
    const u64 head = row % heads, token = row / heads % tokens, batch = row / heads / tokens;
    const Real least = -(Real)as_float(0x7f800000);
    const ELEMENT* from = q + row_of(q_shape, batch, token, head);
    for (u32 d = lane; d < LENGTH; d += 32) {
        queries[warp][d] = As::load(from[(i64)d * q_shape.strides[3]]) * (Real)scale;
    }
    __syncwarp();
    // The key of this query is that at its place; there may be fewer keys than queries.
    i64 begin = 0, end = (i64)keys;
    const i64 place = (i64)token + (i64)keys - (i64)tokens;
    if (IS_CAUSAL && place + 1 < end) end = place + 1;
    if (window > 0 && place - (i64)window + 1 > 0) begin = place - (i64)window + 1;
    Real largest = least, total = 0, sums[VALUES] = {};
    for (i64 base = begin; base < end; base += 32) {
        const i64 key = base + lane;
        Real score = least;
        if (key < end) {
            const ELEMENT* own = k + row_of(k_shape, batch, (u64)key, head / group);
            score = 0;
            for (u32 d = 0; d < LENGTH; d++) {
                score += queries[warp][d] * As::load(own[(i64)d * k_shape.strides[3]]);
            }
            if (limit > 0) score = (Real)limit * tangent(score / (Real)limit);
        }
        Real most = larger(largest, score);
#pragma unroll
        for (u32 across = 16; across > 0; across /= 2) {
            most = larger(most, __shfl_xor_sync(ALL_LANES, most, across));
        }
        const Real by = largest == most ? (Real)1 : exponential(largest - most);
        const Real weight = key < end && most != least ? exponential(score - most) : (Real)0;
        largest = most;
        total = total * by + weight;
#pragma unroll
        for (u32 i = 0; i < VALUES; i++) sums[i] *= by;
        const u32 count = end - base < 32 ? (u32)(end - base) : 32;
        for (u32 other = 0; other < count; other++) {
            const Real of_other = __shfl_sync(ALL_LANES, weight, other);
            const ELEMENT* own = v + row_of(v_shape, batch, (u64)(base + other), head / group);
#pragma unroll
            for (u32 i = 0; i < VALUES; i++) {
                const u32 d = i * 32 + lane;
                if (d >= VALUE_LENGTH) break;
                sums[i] += of_other * As::load(own[(i64)d * v_shape.strides[3]]);
            }
        }
    }
#pragma unroll
    for (u32 across = 16; across > 0; across /= 2) {
        total += __shfl_xor_sync(ALL_LANES, total, across);
    }
    if (sink != nullptr) {
        const Real other = (Real)sink[(i64)head * sink_stride];
        const Real most = larger(largest, other);
        const Real by = largest == least ? (Real)0 : exponential(largest - most);
        total = total * by + (other == least ? (Real)0 : exponential(other - most));
#pragma unroll
        for (u32 i = 0; i < VALUES; i++) sums[i] *= by;
    }
    ELEMENT* const target = to + row_of(to_shape, batch, token, head);
#pragma unroll
    for (u32 i = 0; i < VALUES; i++) {
        const u32 d = i * 32 + lane;
        if (d >= VALUE_LENGTH) break;
        // Without a key the result is 0.
        const Real value = total == 0 ? (Real)0 : sums[i] / total;
        target[(i64)d * to_shape.strides[3]] = As::store(value);
    }
}
