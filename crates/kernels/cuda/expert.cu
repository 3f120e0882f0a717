// Products of tokens with the weights of experts that an index chooses. A row of a result is a pair
// of a token and one of its choices, numbered as the elements of the index are.
//
// INDEX is the type of the index. Weights of experts that no pair has chosen are not read.
#include "checked.cuh"
#include "rows.cuh"

#ifdef KERNEL_group_pairs
// Pairs by their expert, and tiles of at most TILE pairs of one expert: expert, place of the first
// pair in the order, number of pairs. Pairs whose choice is none of the EXPERTS are behind, as those
// of expert EXPERTS. Tiles that are left have no pairs. One block; the order of the pairs of an
// expert is not fixed, and no result depends on it.
#define GROUPING 256

__device__ __forceinline__ u32 expert_of(const INDEX* index, const Shape& shape, u64 pair,
                                         u64* fault) {
    const i64 expert = (i64)index[element_offset(shape, pair)];
    return is_inside(expert, EXPERTS, pair, fault) ? (u32)expert : EXPERTS;
}

extern "C" __global__ void __launch_bounds__(GROUPING)
    group_pairs(u32* __restrict__ order, uint4* __restrict__ tiles,
                const INDEX* __restrict__ index, const Shape index_shape, u64 pairs,
                u64 most_tiles, u64* fault) {
    __shared__ u32 counts[EXPERTS + 1], places[EXPERTS + 1];
    for (u32 e = threadIdx.x; e <= EXPERTS; e += GROUPING) counts[e] = 0;
    for (u64 tile = threadIdx.x; tile < most_tiles; tile += GROUPING) {
        tiles[tile] = make_uint4(0, 0, 0, 0);
    }
    __syncthreads();
    for (u64 pair = threadIdx.x; pair < pairs; pair += GROUPING) {
        atomicAdd(&counts[expert_of(index, index_shape, pair, fault)], 1u);
    }
    __syncthreads();
    for (u32 e = threadIdx.x; e <= EXPERTS; e += GROUPING) {
        u32 first = 0, tile = 0;
        for (u32 other = 0; other < e; other++) {
            first += counts[other];
            tile += (counts[other] + TILE - 1) / TILE;
        }
        places[e] = first;
        for (u32 done = 0; done < counts[e]; done += TILE, tile++) {
            const u32 left = counts[e] - done;
            tiles[tile] = make_uint4(e, first + done, left < TILE ? left : TILE, 0);
        }
    }
    __syncthreads();
    for (u64 pair = threadIdx.x; pair < pairs; pair += GROUPING) {
        const u32 expert = expert_of(index, index_shape, pair, nullptr);
        order[atomicAdd(&places[expert], 1u)] = (u32)pair;
    }
}
#endif

#ifdef KERNEL_multiply_pairs
// ELEMENT is the type of tokens and results, WEIGHT that of weights, of which WIDTH are read at
// once. A warp has a column of the result and at most TILE pairs of one expert: those of a tile if
// IS_SORTED, else one pair.
#define WARPS 4
#define THREADS (WARPS * 32)

template <int COUNT>
struct __align__(sizeof(WEIGHT) * COUNT) Packed {
    WEIGHT all[COUNT];
};

extern "C" __global__ void __launch_bounds__(THREADS)
    multiply_pairs(ELEMENT* __restrict__ to, i64 to_row, i64 to_column,
                   const ELEMENT* __restrict__ x, i64 x_row, i64 x_column,
                   const WEIGHT* __restrict__ weight, const Shape weight_shape,
                   const ELEMENT* __restrict__ bias, i64 bias_expert, i64 bias_column,
                   const INDEX* __restrict__ index, const Shape index_shape,
                   const u32* __restrict__ order, const uint4* __restrict__ tiles, u64 slots,
                   u64* fault) {
    typedef Computed<ELEMENT> As;
    const u64 experts = weight_shape.extents[0], columns = weight_shape.extents[1];
    const u64 depth = weight_shape.extents[2];
    const u32 lane = threadIdx.x % 32;
    const u64 column = (u64)blockIdx.y * WARPS + threadIdx.x / 32;
#if IS_SORTED
    const uint4 tile = tiles[blockIdx.x];
    const u64 expert = tile.x;
    const u32 count = tile.z;
    const u64 first = tile.y;
    const bool is_known = expert < experts;
#else
    const i64 expert = (i64)index[element_offset(index_shape, blockIdx.x)];
    const u32 count = 1;
    const u64 first = 0;
    const bool is_known = is_inside(expert, experts, blockIdx.x, fault);
#endif
    if (count == 0 || column >= columns) return;
    u64 pairs[TILE];
    const ELEMENT* from[TILE];
    float sums[TILE] = {};
#pragma unroll
    for (u32 m = 0; m < TILE; m++) {
        // Beyond the last pair the work is that of the last one.
        const u32 own = m < count ? m : count - 1;
        pairs[m] = IS_SORTED ? order[first + own] : blockIdx.x;
        from[m] = x + (i64)(pairs[m] / slots) * x_row;
    }
    if (is_known) {
        const WEIGHT* row = weight + (i64)expert * weight_shape.strides[0] +
                            (i64)column * weight_shape.strides[1];
#pragma unroll 2
        for (u64 d = (u64)lane * WIDTH; d < depth; d += 32 * WIDTH) {
            Packed<WIDTH> some;
            if (WIDTH > 1) {
                some = *(const Packed<WIDTH>*)(row + d);
            } else {
                some.all[0] = row[(i64)d * weight_shape.strides[2]];
            }
#pragma unroll
            for (int e = 0; e < WIDTH; e++) {
                const float w = Computed<WEIGHT>::load(some.all[e]);
#pragma unroll
                for (u32 m = 0; m < TILE; m++) {
                    sums[m] = fmaf(As::load(from[m][(i64)(d + e) * x_column]), w, sums[m]);
                }
            }
        }
    }
#pragma unroll
    for (u32 m = 0; m < TILE; m++) {
#pragma unroll
        for (int distance = 16; distance > 0; distance /= 2) {
            sums[m] += __shfl_xor_sync(0xffffffff, sums[m], distance);
        }
        if (lane != 0 || m >= count) continue;
        float value = is_known ? sums[m] : 0.0f;
        if (is_known && bias != nullptr) {
            value += As::load(bias[(i64)expert * bias_expert + (i64)column * bias_column]);
        }
        to[(i64)pairs[m] * to_row + (i64)column * to_column] = As::store(value);
    }
}
#endif
