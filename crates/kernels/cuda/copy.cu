// Copies of elements, and fills. An element's type does not matter: UNIT has its size, or is
// several neighbours. DIMS dimensions; INDEX counts elements.
#include "common.cuh"

// Elements in flight of one thread.
#define EACH 4

extern "C" __global__ void copy_elements(UNIT* __restrict__ to, const Shape to_shape,
                                         const UNIT* __restrict__ from, const Shape from_shape,
                                         u64 count) {
    const INDEX step = (INDEX)gridDim.x * blockDim.x;
    for (INDEX first = (INDEX)blockIdx.x * blockDim.x + threadIdx.x; first < (INDEX)count;
         first += EACH * step) {
        UNIT values[EACH];
        i64 targets[EACH];
#pragma unroll
        for (int k = 0; k < EACH; k++) {
            const INDEX at = first + k * step;
            if (at < (INDEX)count) {
                i64 source;
                offsets_of<DIMS, INDEX>(to_shape, from_shape, at, targets[k], source);
                values[k] = from[source];
            }
        }
#pragma unroll
        for (int k = 0; k < EACH; k++) {
            if (first + k * step < (INDEX)count) to[targets[k]] = values[k];
        }
    }
}

// The last dimension is contiguous in `to`, the one before it in `from`: both are accessed in rows,
// through a tile of shared memory. A block moves one tile.
extern "C" __global__ void copy_transposed(UNIT* __restrict__ to, const Shape to_shape,
                                           const UNIT* __restrict__ from, const Shape from_shape,
                                           u64 tiles_across, u64 tiles_down) {
    // Rows are an odd number of words, so that a column's elements are in different banks.
    __shared__ UNIT tile[TILE][TILE + (sizeof(UNIT) < 4 ? 4 / sizeof(UNIT) : 1)];
    u64 at = blockIdx.x;
    const u64 across = at % tiles_across * TILE;
    at /= tiles_across;
    const u64 down = at % tiles_down * TILE;
    at /= tiles_down;
    i64 to_base = 0, from_base = 0;
#pragma unroll
    for (int d = DIMS - 3; d >= 0; d--) {
        const u64 own = at % to_shape.extents[d];
        at /= to_shape.extents[d];
        to_base += (i64)own * to_shape.strides[d];
        from_base += (i64)own * from_shape.strides[d];
    }
    const u64 rows = to_shape.extents[DIMS - 2], columns = to_shape.extents[DIMS - 1];
    const u32 lane = threadIdx.x % TILE, first = threadIdx.x / TILE;
    const u32 step = blockDim.x / TILE;
    // Neighbouring threads read neighbouring rows of the result.
    if (down + lane < rows) {
        const UNIT* source = from + from_base + (i64)(down + lane);
#pragma unroll
        for (u32 k = 0; k < TILE; k += step) {
            const u64 column = across + first + k;
            if (column < columns) {
                tile[first + k][lane] = source[(i64)column * from_shape.strides[DIMS - 1]];
            }
        }
    }
    __syncthreads();
    if (across + lane < columns) {
        UNIT* target = to + to_base + (i64)(across + lane);
#pragma unroll
        for (u32 k = 0; k < TILE; k += step) {
            const u64 row = down + first + k;
            if (row < rows) {
                target[(i64)row * to_shape.strides[DIMS - 2]] = tile[lane][first + k];
            }
        }
    }
}

extern "C" __global__ void fill_elements(UNIT* __restrict__ to, const Shape to_shape, u64 count,
                                         u64 bits) {
    union {
        UNIT unit;
        u64 words[2];
    } value;
    value.words[0] = bits;
    value.words[1] = bits;
    const INDEX step = (INDEX)gridDim.x * blockDim.x;
    for (INDEX at = (INDEX)blockIdx.x * blockDim.x + threadIdx.x; at < (INDEX)count; at += step) {
        to[offset_of<DIMS, INDEX>(to_shape, at)] = value.unit;
    }
}
