// Matrix products of 16-bit floats on tensor cores. A block has a tile of ROWS by COLUMNS of the
// result; tiles of both factors come through shared memory, STAGES at a time, while another is
// multiplied. Each of its four warps has a quarter of the tile.
//
// Shared memory has chunks of eight neighbours. A chunk's place among those of its row is xored
// with the row's number, so that eight rows of one column lie in different banks.
#include "epilogue.cuh"
#include "fragments.cuh"

#define THREADS 128
#define DEPTH 32
#define STAGES 3
// Tiles of 16 rows and of 8 columns that a warp has.
#define TILES_DOWN (ROWS / 32)
#define TILES_ACROSS (COLUMNS / 16)
// Neighbouring rows of tiles whose blocks run together, to read the same columns from the cache.
#define NEIGHBOURS 8

// Place of a chunk of a tile: `across` and the chunk along k, or k and the chunk across.
template <int EXTENT, bool ALONG_K>
__device__ __forceinline__ u32 place_of(u32 line, u32 chunk) {
    return ALONG_K ? line * (DEPTH / 8) + (chunk ^ (line / 2 % 4))
                   : line * (EXTENT / 8) + (chunk ^ (line % 8));
}

// Loads tiles of one factor, of which EXTENT rows or columns lie across the depth. With VECTOR,
// chunks are neighbours in memory at multiples of 16 bytes.
template <int EXTENT, bool ALONG_K, bool VECTOR>
struct TileLoader {
    // Chunks of a line, lines that all threads load at once, and times that they do.
    static const u32 CHUNKS = ALONG_K ? DEPTH / 8 : EXTENT / 8;
    static const u32 LINES = THREADS / CHUNKS;
    static const u32 TIMES = (ALONG_K ? EXTENT : DEPTH) / LINES;

    const ELEMENT* origin;
    const ELEMENT* base;
    i64 line_stride, near_stride, k_stride;
    u64 first, extent, depth;
    u32 line, chunk;

    __device__ __forceinline__ TileLoader(const ELEMENT* from, u64 first, u64 extent,
                                          i64 across_stride, u64 depth, i64 k_stride)
        : origin(from),
          line_stride(ALONG_K ? across_stride : k_stride),
          near_stride(ALONG_K ? k_stride : across_stride),
          k_stride(k_stride),
          first(first),
          extent(extent),
          depth(depth),
          line(threadIdx.x / CHUNKS),
          chunk(threadIdx.x % CHUNKS) {
        base = from + (i64)first * across_stride + (i64)line * line_stride +
               (i64)chunk * 8 * near_stride;
    }

    __device__ __forceinline__ void load(uint4* tile, u64 k) const {
        const ELEMENT* from = base + (i64)k * k_stride;
        const u32 along = ALONG_K ? places_left(k + chunk * 8, depth, 8)
                                  : places_left(first + chunk * 8, extent, 8);
#pragma unroll
        for (u32 time = 0; time < TIMES; time++) {
            const u32 own = line + time * LINES;
            const bool is_inside = ALONG_K ? first + own < extent : k + own < depth;
            const u32 valid = is_inside ? along : 0;
            const ELEMENT* source = from + (i64)(time * LINES) * line_stride;
            uint4* place = tile + place_of<EXTENT, ALONG_K>(own, chunk);
            if (!VECTOR) {
                *place = load_eight<false>(source, near_stride, valid);
                continue;
            }
            copy_eight(place, valid == 0 ? origin : source, valid);
        }
    }
};

extern "C" __global__ void __launch_bounds__(THREADS)
    tensor(RESULT* to, const Shape to_shape, const ELEMENT* __restrict__ left,
           const Shape left_shape, const ELEMENT* __restrict__ right, const Shape right_shape,
           const ELEMENT* __restrict__ bias, i64 bias_stride, const RESULT* residual,
           const Shape residual_shape, double scale, u64 depth, u64 tiles_down, u64 tiles_across) {
    __shared__ union __align__(128) {
        struct {
            uint4 left[STAGES][ROWS * DEPTH / 8];
            uint4 right[STAGES][COLUMNS * DEPTH / 8];
        } tiles;
        float bands[THREADS / 32][16][COLUMNS / 2 + 4];
    } shared;
    uint4(*left_tiles)[ROWS * DEPTH / 8] = shared.tiles.left;
    uint4(*right_tiles)[COLUMNS * DEPTH / 8] = shared.tiles.right;
    // Numbers of tiles are fewer than blocks, so divisions of 32 bits suffice.
    const u32 down = (u32)tiles_down, across = (u32)tiles_across;
    const u32 batch_number = blockIdx.x / (down * across);
    const u32 tile_number = blockIdx.x - batch_number * (down * across);
    const Batch batch(batch_number, to_shape, left_shape, right_shape, residual_shape);
    const u32 strip = tile_number / across / NEIGHBOURS;
    const u32 in_strip = tile_number - strip * NEIGHBOURS * across;
    const u32 left_down = down - strip * NEIGHBOURS;
    const u32 height = left_down < NEIGHBOURS ? left_down : NEIGHBOURS;
    const u64 row = (u64)(strip * NEIGHBOURS + in_strip % height) * ROWS;
    const u64 column = (u64)(in_strip / height) * COLUMNS;
    const u64 rows = to_shape.extents[DIMS - 2], columns = to_shape.extents[DIMS - 1];
    const TileLoader<ROWS, LEFT_ALONG_K, LEFT_VECTOR> of_left(
        left + batch.left, row, rows, row_stride(left_shape), depth, column_stride(left_shape));
    const TileLoader<COLUMNS, RIGHT_ALONG_K, RIGHT_VECTOR> of_right(
        right + batch.right, column, columns, column_stride(right_shape), depth,
        row_stride(right_shape));
    const u32 warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    const u32 warp_row = warp / 2 * (ROWS / 2), warp_column = warp % 2 * (COLUMNS / 2);
    float sums[TILES_DOWN][TILES_ACROSS][4] = {};
#pragma unroll
    for (u32 stage = 0; stage < STAGES - 1; stage++) {
        if (stage * DEPTH < depth) {
            of_left.load(left_tiles[stage], stage * DEPTH);
            of_right.load(right_tiles[stage], stage * DEPTH);
        }
        commit();
    }
    u32 stage = 0;
    for (u64 k = 0; k < depth; k += DEPTH) {
        wait_for_all_but<STAGES - 2>();
        __syncthreads();
        const u64 next = k + (STAGES - 1) * DEPTH;
        const u32 free = stage == 0 ? STAGES - 1 : stage - 1;
        if (next < depth) {
            of_left.load(left_tiles[free], next);
            of_right.load(right_tiles[free], next);
        }
        commit();
        // All fragments first: those of the second half are on their way while the first is used.
        u32 a[DEPTH / 16][TILES_DOWN][4], b[DEPTH / 16][TILES_ACROSS / 2][4];
#pragma unroll
        for (u32 half = 0; half < DEPTH / 16; half++) {
#pragma unroll
            for (u32 i = 0; i < TILES_DOWN; i++) {
                const u32 first = warp_row + i * 16;
                const u32 place =
                    LEFT_ALONG_K
                        ? place_of<ROWS, true>(first + lane % 16, half * 2 + lane / 16)
                        : place_of<ROWS, false>(half * 16 + lane % 8 + lane / 16 * 8,
                                                first / 8 + lane / 8 % 2);
                load_matrices<!LEFT_ALONG_K>(a[half][i], left_tiles[stage] + place);
            }
#pragma unroll
            for (u32 j = 0; j < TILES_ACROSS / 2; j++) {
                const u32 first = warp_column + j * 16;
                const u32 place =
                    RIGHT_ALONG_K
                        ? place_of<COLUMNS, true>(first + lane % 8 + lane / 16 * 8,
                                                  half * 2 + lane / 8 % 2)
                        : place_of<COLUMNS, false>(half * 16 + lane % 16, first / 8 + lane / 16);
                load_matrices<!RIGHT_ALONG_K>(b[half][j], right_tiles[stage] + place);
            }
        }
#pragma unroll
        for (u32 half = 0; half < DEPTH / 16; half++) {
#pragma unroll
            for (u32 i = 0; i < TILES_DOWN; i++) {
#pragma unroll
                for (u32 j = 0; j < TILES_ACROSS; j++) {
                    const u32* pair = b[half][j / 2] + j % 2 * 2;
                    TensorCore<ELEMENT>::multiply(sums[i][j], a[half][i][0], a[half][i][1],
                                                  a[half][i][2], a[half][i][3], pair[0], pair[1]);
                }
            }
        }
        stage = stage == STAGES - 1 ? 0 : stage + 1;
    }
    wait_for_all_but<0>();
    __syncthreads();
    // Each warp brings 16 rows after another into an order in which neighbours write together.
    float(*band)[COLUMNS / 2 + 4] = shared.bands[warp];
    const Epilogue epilogue(to, to_shape, bias, bias_stride, residual, residual_shape, scale, batch);
#pragma unroll
    for (u32 i = 0; i < TILES_DOWN; i++) {
#pragma unroll
        for (u32 j = 0; j < TILES_ACROSS; j++) {
#pragma unroll
            for (u32 part = 0; part < 4; part++) {
                band[lane / 4 + part / 2 * 8][j * 8 + lane % 4 * 2 + part % 2] = sums[i][j][part];
            }
        }
        __syncwarp();
        const u64 first_row = row + warp_row + i * 16, first_column = column + warp_column;
        const u64 left_over = first_row < rows ? rows - first_row : 0;
        const u32 height_here = left_over < 16 ? (u32)left_over : 16;
#pragma unroll 1
        for (u32 at = lane; at < height_here * (COLUMNS / 2); at += 32) {
            const u32 own_row = at / (COLUMNS / 2), own_column = at % (COLUMNS / 2);
            if (first_column + own_column < columns) {
                epilogue.store(band[own_row][own_column], first_row + own_row,
                               first_column + own_column);
            }
        }
        __syncwarp();
    }
}
