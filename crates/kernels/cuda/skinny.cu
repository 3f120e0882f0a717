// Matrix products of at most 16 rows, of 16-bit floats: the right factor is read once, by all
// warps of a block, each of which has parts of the depth; their sums meet in shared memory.
//
// What a lane reads at once is neighbours, which are not those of a fragment; but the order of the
// depth and of columns is free, as long as both factors have the same. A lane copies what it needs
// itself to its own places of shared memory, STAGES parts ahead, so that no barrier is needed.
#include "epilogue.cuh"
#include "fragments.cuh"

// Warps of a block.
#define WARPS (THREADS / 32)
// Parts that are on their way.
#define STAGES 2

#if RIGHT_ALONG_K
// Neighbours follow the depth: a lane has eight of them in one column of each tile of 8 columns.
#define TILES (COLUMNS / 8)
#define DEPTH 32
#define CHUNKS TILES
#define NEAR 8
#define LEFT_NEAR 8
#else
// Neighbours follow the columns: a lane has some of four rows, one for each tile.
#define TILES (COLUMNS / 8)
#define DEPTH 16
#define CHUNKS 4
#define NEAR TILES
#define LEFT_NEAR 4
#endif

// Neighbours that a lane copies at once.
struct __align__(NEAR * 2) Chunk {
    u32 words[NEAR / 2];
};

// Elements of the left factor that a lane has of a part: its two rows, in the order of fragments.
struct LeftPart {
    u32 words[2][LEFT_NEAR / 2];
};

struct Factors {
    const ELEMENT* left;
    const ELEMENT* right;
    i64 left_row, left_k, right_k, right_column;
    u64 rows, columns, depth, column;

    // The first element of the depth that a lane has of a part.
    __device__ __forceinline__ u64 first_of(u64 part) const {
        const u32 lane = threadIdx.x % 32;
        return (part * WARPS + threadIdx.x / 32) * DEPTH + lane % 4 * LEFT_NEAR;
    }

    __device__ __forceinline__ void copy(Chunk (*to)[32], u64 part) const {
        const u32 lane = threadIdx.x % 32, group = lane / 4;
        const u64 k = first_of(part);
#pragma unroll
        for (u32 chunk = 0; chunk < CHUNKS; chunk++) {
#if RIGHT_ALONG_K
            const u64 across = column + chunk * 8 + group, along = k;
            const u32 valid = across < columns ? places_left(k, depth, NEAR) : 0;
            const i64 near_stride = right_k;
#else
            const u64 across = column + group * NEAR, along = k + chunk;
            const u32 valid = along < depth ? places_left(across, columns, NEAR) : 0;
            const i64 near_stride = right_column;
#endif
            // Neighbours have a distance of 1, which is not to be multiplied.
            const i64 offset = RIGHT_VECTOR && RIGHT_ALONG_K ? (i64)along : (i64)along * right_k;
            const i64 other =
                RIGHT_VECTOR && !RIGHT_ALONG_K ? (i64)across : (i64)across * right_column;
            const ELEMENT* from = right + offset + other;
            Chunk* place = &to[chunk][lane];
            if (RIGHT_VECTOR) {
                // Bytes beyond the source's size are set to 0; of a size of 0 nothing is read.
                const u32 shared = (u32)__cvta_generic_to_shared(place);
                if (valid == 0) from = right;
                if (NEAR == 8) {
                    asm volatile("cp.async.cg.shared.global.L2::128B [%0], [%1], 16, %2;"
                                 :
                                 : "r"(shared), "l"(from), "r"(valid * 2)
                                 : "memory");
                } else {
                    asm volatile("cp.async.ca.shared.global [%0], [%1], 8, %2;"
                                 :
                                 : "r"(shared), "l"(from), "r"(valid * 2)
                                 : "memory");
                }
                continue;
            }
            Chunk own = {};
#pragma unroll
            for (u32 i = 0; i < NEAR; i++) {
                if (i < valid) {
                    own.words[i / 2] |= (u32)from[(i64)i * near_stride].bits << (i % 2 * 16);
                }
            }
            *place = own;
        }
    }

    __device__ __forceinline__ LeftPart load_left(u64 part) const {
        const u32 group = threadIdx.x % 32 / 4;
        const u64 k = first_of(part);
        LeftPart own = {};
#pragma unroll
        for (u32 half = 0; half < 2; half++) {
            const u64 row = group + half * 8;
            if (row >= rows) continue;
            const u32 valid = places_left(k, depth, LEFT_NEAR);
            const ELEMENT* from =
                left + (i64)row * left_row + (LEFT_VECTOR ? (i64)k : (i64)k * left_k);
            u32* to = own.words[half];
            if (LEFT_VECTOR && valid == LEFT_NEAR) {
                const uint2* all = reinterpret_cast<const uint2*>(from);
#pragma unroll
                for (u32 i = 0; i < LEFT_NEAR / 4; i++) {
                    const uint2 four = __ldg(all + i);
                    to[2 * i] = four.x;
                    to[2 * i + 1] = four.y;
                }
                continue;
            }
#pragma unroll
            for (u32 i = 0; i < LEFT_NEAR; i++) {
                if (i < valid) to[i / 2] |= (u32)from[(i64)i * left_k].bits << (i % 2 * 16);
            }
        }
        return own;
    }
};

__device__ __forceinline__ void add(float (&sums)[TILES][4], const LeftPart& a,
                                    const Chunk (*b)[32]) {
    const u32 lane = threadIdx.x % 32;
    Chunk own[CHUNKS];
#pragma unroll
    for (u32 chunk = 0; chunk < CHUNKS; chunk++) own[chunk] = b[chunk][lane];
#pragma unroll
    for (u32 tile = 0; tile < TILES; tile++) {
#if RIGHT_ALONG_K
#pragma unroll
        for (u32 i = 0; i < 4; i += 2) {
            const u32* words = own[tile].words + i;
            TensorCore<ELEMENT>::multiply(sums[tile], a.words[0][i], a.words[1][i],
                                          a.words[0][i + 1], a.words[1][i + 1], words[0],
                                          words[1]);
        }
#else
        const u32 halves = tile % 2 == 0 ? 0x5410 : 0x7632;
        const u32 b0 = __byte_perm(own[0].words[tile / 2], own[1].words[tile / 2], halves);
        const u32 b1 = __byte_perm(own[2].words[tile / 2], own[3].words[tile / 2], halves);
        TensorCore<ELEMENT>::multiply(sums[tile], a.words[0][0], a.words[1][0], a.words[0][1],
                                      a.words[1][1], b0, b1);
#endif
    }
}

// Column of a sum: of a tile, and of the place in a fragment.
__device__ __forceinline__ u32 column_of(u32 tile, u32 place) {
    return RIGHT_ALONG_K ? tile * 8 + place : place * NEAR + tile;
}

typedef Chunk Ring[STAGES][CHUNKS][32];
// A row of sums, with a gap so that rows begin in different banks.
typedef float Partial[16][COLUMNS + 8];

extern "C" __global__ void __launch_bounds__(THREADS)
    skinny(RESULT* __restrict__ to, const Shape to_shape, const ELEMENT* __restrict__ left,
           const Shape left_shape, const ELEMENT* __restrict__ right, const Shape right_shape,
           const ELEMENT* __restrict__ bias, i64 bias_stride, const RESULT* __restrict__ residual,
           const Shape residual_shape, double scale, u64 depth, u64 tiles_down, u64 tiles_across) {
    __shared__ union {
        Ring rings[WARPS];
        Partial partial[WARPS];
    } shared;
    // Numbers of tiles are fewer than blocks, so divisions of 32 bits suffice.
    const u32 tile_row = blockIdx.x / (u32)tiles_across;
    const u64 column = (u64)(blockIdx.x - tile_row * (u32)tiles_across) * COLUMNS;
    const u32 number = tile_row / (u32)tiles_down;
    const u64 first_row = (u64)(tile_row - number * (u32)tiles_down) * 16;
    const Batch batch(number, to_shape, left_shape, right_shape, residual_shape);
    const u64 rows = to_shape.extents[DIMS - 2] - first_row;
    const u64 columns = to_shape.extents[DIMS - 1];
    const Factors of = {left + batch.left + (i64)first_row * row_stride(left_shape),
                        right + batch.right,
                        row_stride(left_shape),
                        column_stride(left_shape),
                        row_stride(right_shape),
                        column_stride(right_shape),
                        rows,
                        columns,
                        depth,
                        column};
    const u32 warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    Ring& ring = shared.rings[warp];
    float sums[TILES][4] = {};
    const u64 parts = (depth + WARPS * DEPTH - 1) / (WARPS * DEPTH);
#pragma unroll
    for (u32 part = 0; part < STAGES - 1; part++) {
        if (part < parts) of.copy(ring[part], part);
        asm volatile("cp.async.commit_group;" ::: "memory");
    }
    LeftPart next = of.load_left(0);
    u32 stage = 0;
    for (u64 part = 0; part < parts; part++) {
        const LeftPart a = next;
        if (part + 1 < parts) next = of.load_left(part + 1);
        const u64 ahead = part + STAGES - 1;
        if (ahead < parts) of.copy(ring[stage == 0 ? STAGES - 1 : stage - 1], ahead);
        asm volatile("cp.async.commit_group;" ::: "memory");
        asm volatile("cp.async.wait_group %0;" ::"n"(STAGES - 1) : "memory");
        add(sums, a, ring[stage]);
        stage = stage == STAGES - 1 ? 0 : stage + 1;
    }
    // The rings become sums.
    asm volatile("cp.async.wait_group 0;" ::: "memory");
    __syncthreads();
#pragma unroll
    for (u32 tile = 0; tile < TILES; tile++) {
#pragma unroll
        for (u32 i = 0; i < 4; i++) {
            shared.partial[warp][lane / 4 + i / 2 * 8][column_of(tile, lane % 4 * 2 + i % 2)] =
                sums[tile][i];
        }
    }
    __syncthreads();
    const Epilogue epilogue(to, to_shape, bias, bias_stride, residual, residual_shape, scale, batch);
    for (u32 i = threadIdx.x; i < 16 * COLUMNS; i += THREADS) {
        const u32 row = i / COLUMNS, across = i % COLUMNS;
        if (row >= rows || column + across >= columns) continue;
        float sum = 0;
#pragma unroll
        for (u32 other = 0; other < WARPS; other++) sum += shared.partial[other][row][across];
        epilogue.store(sum, first_row + row, column + across);
    }
}
