// Matrix products of at most 16 rows, of 16-bit floats: the right factor is read once, by all
// warps of a block, each of which has parts of the depth; their sums meet in shared memory.
//
// What a lane reads is eight neighbours, which are not those of a fragment; but the order of the
// depth and of columns is free, as long as both factors have the same.
#include "epilogue.cuh"
#include "fragments.cuh"

// Warps of a block.
#define WARPS (THREADS / 32)

#if RIGHT_ALONG_K
// Neighbours follow the depth: a lane has eight of them in one column of each tile of 8 columns.
#define TILES (COLUMNS / 8)
// Of the depth, what a warp reads at once.
#define DEPTH 32
#else
// Neighbours follow the columns: a lane has eight of four rows, in 8 tiles of every eighth column.
#define TILES 8
#define DEPTH 16
#endif

// Sums of a tile that a warp adds up.
typedef float Partial[16][COLUMNS];

struct Factors {
    const ELEMENT* left;
    const ELEMENT* right;
    i64 left_row, left_k, right_k, right_column;
    u64 rows, columns, depth, column;
};

#if RIGHT_ALONG_K
template <bool IS_WHOLE>
__device__ __forceinline__ void add_part(float (&sums)[TILES][4], const Factors& of, u64 first) {
    const u32 lane = threadIdx.x % 32, group = lane / 4;
    const u64 k = first + lane % 4 * 8;
    const u32 valid = IS_WHOLE ? 8 : places_left(k, of.depth, 8);
    uint4 b[TILES];
#pragma unroll
    for (u32 tile = 0; tile < TILES; tile++) {
        const u64 column = of.column + tile * 8 + group;
        b[tile] = load_eight<RIGHT_VECTOR>(
            of.right + (i64)column * of.right_column + (i64)k * of.right_k, of.right_k,
            column < of.columns ? valid : 0);
    }
    uint4 a[2];
#pragma unroll
    for (u32 half = 0; half < 2; half++) {
        const u64 row = group + half * 8;
        a[half] = load_eight<LEFT_VECTOR>(of.left + (i64)row * of.left_row + (i64)k * of.left_k,
                                     of.left_k, row < of.rows ? valid : 0);
    }
#pragma unroll
    for (u32 tile = 0; tile < TILES; tile++) {
        TensorCore<ELEMENT>::multiply(sums[tile], a[0].x, a[1].x, a[0].y, a[1].y, b[tile].x,
                                      b[tile].y);
        TensorCore<ELEMENT>::multiply(sums[tile], a[0].z, a[1].z, a[0].w, a[1].w, b[tile].z,
                                      b[tile].w);
    }
}

// Column of a sum: of a tile, and of the place in a fragment.
__device__ __forceinline__ u32 column_of(u32 tile, u32 place) { return tile * 8 + place; }
#else
__device__ __forceinline__ u32 word(const uint4& of, u32 at) {
    return at == 0 ? of.x : at == 1 ? of.y : at == 2 ? of.z : of.w;
}

template <bool IS_WHOLE>
__device__ __forceinline__ void add_part(float (&sums)[TILES][4], const Factors& of, u64 first) {
    const u32 lane = threadIdx.x % 32, group = lane / 4;
    const u64 k = first + lane % 4 * 4, column = of.column + group * 8;
    const u32 across = places_left(column, of.columns, 8);
    uint4 b[4];
#pragma unroll
    for (u32 i = 0; i < 4; i++) {
        b[i] = load_eight<RIGHT_VECTOR>(
            of.right + (i64)(k + i) * of.right_k + (i64)column * of.right_column, of.right_column,
            IS_WHOLE || k + i < of.depth ? across : 0);
    }
    u32 a[2][2];
#pragma unroll
    for (u32 half = 0; half < 2; half++) {
        const u64 row = group + half * 8;
#pragma unroll
        for (u32 pair = 0; pair < 2; pair++) {
            u32 bits = 0;
#pragma unroll
            for (u32 i = 0; i < 2; i++) {
                const u64 at = k + pair * 2 + i;
                if (row < of.rows && (IS_WHOLE || at < of.depth)) {
                    const i64 offset = (i64)row * of.left_row + (i64)at * of.left_k;
                    bits |= (u32)of.left[offset].bits << (i * 16);
                }
            }
            a[half][pair] = bits;
        }
    }
#pragma unroll
    for (u32 tile = 0; tile < TILES; tile++) {
        const u32 halves = tile % 2 == 0 ? 0x5410 : 0x7632;
        const u32 b0 = __byte_perm(word(b[0], tile / 2), word(b[1], tile / 2), halves);
        const u32 b1 = __byte_perm(word(b[2], tile / 2), word(b[3], tile / 2), halves);
        TensorCore<ELEMENT>::multiply(sums[tile], a[0][0], a[1][0], a[0][1], a[1][1], b0, b1);
    }
}

__device__ __forceinline__ u32 column_of(u32 tile, u32 place) { return place * 8 + tile; }
#endif

extern "C" __global__ void __launch_bounds__(THREADS)
    skinny(RESULT* __restrict__ to, const Shape to_shape, const ELEMENT* __restrict__ left,
           const Shape left_shape, const ELEMENT* __restrict__ right, const Shape right_shape,
           const ELEMENT* __restrict__ bias, i64 bias_stride, const RESULT* __restrict__ residual,
           const Shape residual_shape, double scale, u64 depth, u64 tiles_down, u64 tiles_across) {
    __shared__ Partial partial[WARPS / 2];
    const u64 column = blockIdx.x % tiles_across * COLUMNS;
    const u64 at = blockIdx.x / tiles_across;
    const u64 first_row = at % tiles_down * 16;
    const Batch batch(at / tiles_down, to_shape, left_shape, right_shape, residual_shape);
    const u64 rows = to_shape.extents[DIMS - 2] - first_row;
    const Factors of = {left + batch.left + (i64)first_row * row_stride(left_shape),
                        right + batch.right,
                        row_stride(left_shape),
                        column_stride(left_shape),
                        row_stride(right_shape),
                        column_stride(right_shape),
                        rows,
                        to_shape.extents[DIMS - 1],
                        depth,
                        column};
    const u32 warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    float sums[TILES][4] = {};
    const u64 step = WARPS * DEPTH;
    u64 k = (u64)warp * DEPTH;
    for (; k + (UNROLLED - 1) * step + DEPTH <= depth; k += UNROLLED * step) {
#pragma unroll
        for (u32 part = 0; part < UNROLLED; part++) add_part<true>(sums, of, k + part * step);
    }
    for (; k < depth; k += step) add_part<false>(sums, of, k);
    // Pairs of warps, then of pairs: an order that the number of warps alone determines.
#pragma unroll
    for (u32 others = WARPS / 2; others > 0; others /= 2) {
        const bool is_given = warp >= others && warp < 2 * others;
#pragma unroll
        for (u32 turn = 0; turn < 2; turn++) {
            Partial& shared = partial[warp % others];
            if (turn == 0 ? is_given : warp < others) {
#pragma unroll
                for (u32 tile = 0; tile < TILES; tile++) {
#pragma unroll
                    for (u32 i = 0; i < 4; i++) {
                        float& place = shared[lane / 4 + i / 2 * 8]
                                             [column_of(tile, lane % 4 * 2 + i % 2)];
                        if (turn == 0) {
                            place = sums[tile][i];
                        } else {
                            sums[tile][i] += place;
                        }
                    }
                }
            }
            __syncthreads();
        }
    }
    if (warp == 0) {
#pragma unroll
        for (u32 tile = 0; tile < TILES; tile++) {
#pragma unroll
            for (u32 i = 0; i < 4; i++) {
                partial[0][lane / 4 + i / 2 * 8][column_of(tile, lane % 4 * 2 + i % 2)] =
                    sums[tile][i];
            }
        }
    }
    __syncthreads();
    const Epilogue epilogue(to, to_shape, bias, bias_stride, residual, residual_shape, scale, batch);
    for (u32 i = threadIdx.x; i < 16 * COLUMNS; i += THREADS) {
        const u32 row = i / COLUMNS, across = i % COLUMNS;
        if (row < rows && column + across < of.columns) {
            epilogue.store(partial[0][row][across], first_row + row, column + across);
        }
    }
}
