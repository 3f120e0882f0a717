// Copies of elements, and fills. An element's type does not matter: UNIT has its size, or is
// several neighbours. DIMS dimensions; INDEX counts elements.
#include "common.cuh"

// Elements in flight of one thread.
#define EACH 4

#ifdef KERNEL_copy_elements
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
#endif

#ifdef KERNEL_copy_transposed
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
#endif

#ifdef NEAR
#ifdef KERNEL_copy_transposed_wide
// As copy_transposed, of tiles of TILE by TILE, NEAR neighbours at a time, which are 16 bytes and begin
// at multiples of 16 in both views. Extents of both dimensions are multiples of NEAR.
extern "C" __global__ void __launch_bounds__(256)
    copy_transposed_wide(UNIT* __restrict__ to, const Shape to_shape,
                         const UNIT* __restrict__ from, const Shape from_shape, u64 tiles_across,
                         u64 tiles_down) {
    const u32 SIDE = TILE, CHUNKS = SIDE / NEAR;
    u64 at = blockIdx.x;
    const u64 across = at % tiles_across * SIDE;
    at /= tiles_across;
    const u64 down = at % tiles_down * SIDE;
    at /= tiles_down;
#pragma unroll
    for (int d = DIMS - 3; d >= 0; d--) {
        const u64 own = at % to_shape.extents[d];
        at /= to_shape.extents[d];
        to += (i64)own * to_shape.strides[d];
        from += (i64)own * from_shape.strides[d];
    }
    const u64 rows = to_shape.extents[DIMS - 2], columns = to_shape.extents[DIMS - 1];
    from += down;
    to += across;
#if NEAR == 8
    // A matrix of 8 by 8 comes out of shared memory transposed. Its rows are chosen such that a lane
    // gets eight neighbours of the result from four matrices; they lie in different banks.
    __shared__ __align__(16) uint4 tile[SIDE][CHUNKS];
#define PLACE(row, chunk) tile[row][(chunk) ^ ((row) % 2 + (row) / 8 % 4 * 2)]
#else
    __shared__ UNIT tile[SIDE][SIDE + 1];
#endif
    union {
        uint4 bits;
        UNIT units[NEAR];
    } pack[SIDE * CHUNKS / 256];
#pragma unroll
    for (u32 k = 0; k < SIDE * CHUNKS / 256; k++) {
        const u32 number = threadIdx.x + k * 256, line = number / CHUNKS, chunk = number % CHUNKS;
        pack[k].bits = make_uint4(0, 0, 0, 0);
        if (across + line < columns && down + chunk * NEAR < rows) {
            const UNIT* source = from + (i64)(across + line) * from_shape.strides[DIMS - 1];
            pack[k].bits = __ldg(reinterpret_cast<const uint4*>(source) + chunk);
        }
    }
#pragma unroll
    for (u32 k = 0; k < SIDE * CHUNKS / 256; k++) {
        const u32 number = threadIdx.x + k * 256, line = number / CHUNKS, chunk = number % CHUNKS;
#if NEAR == 8
        PLACE(line, chunk) = pack[k].bits;
#else
#pragma unroll
        for (u32 i = 0; i < NEAR; i++) tile[line][chunk * NEAR + i] = pack[k].units[i];
#endif
    }
    __syncthreads();
#if NEAR == 8
    // Each of eight warps has eight rows of the result at once, 32 columns after another.
    const u32 warp = threadIdx.x / 32, lane = threadIdx.x % 32;
#pragma unroll
    for (u32 part = 0; part < SIDE / 32 * CHUNKS / 8; part++) {
        const u32 chunk = part / (SIDE / 32) * 8 + warp, first = part % (SIDE / 32) * 32;
        const u32 matrix = lane / 8, own = lane % 8;
        const u32 line = first + own / 2 * 8 + matrix * 2 + own % 2;
        const u32 shared = (u32)__cvta_generic_to_shared(&PLACE(line, chunk));
        uint4 bits;
        asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
                     : "=r"(bits.x), "=r"(bits.y), "=r"(bits.z), "=r"(bits.w)
                     : "r"(shared)
                     : "memory");
        const u64 row = chunk * 8 + lane / 4, column = first + lane % 4 * 8;
        if (down + row < rows && across + column < columns) {
            UNIT* target = to + (i64)(down + row) * to_shape.strides[DIMS - 2] + column;
            *reinterpret_cast<uint4*>(target) = bits;
        }
    }
#else
#pragma unroll
    for (u32 k = 0; k < SIDE * CHUNKS / 256; k++) {
        const u32 number = threadIdx.x + k * 256, row = number / CHUNKS, chunk = number % CHUNKS;
        if (down + row >= rows || across + chunk * NEAR >= columns) continue;
        union {
            uint4 bits;
            UNIT units[NEAR];
        } own;
#pragma unroll
        for (u32 i = 0; i < NEAR; i++) own.units[i] = tile[chunk * NEAR + i][row];
        UNIT* target = to + (i64)(down + row) * to_shape.strides[DIMS - 2];
        reinterpret_cast<uint4*>(target)[chunk] = own.bits;
    }
#endif
}
#endif
#endif

#ifdef KERNEL_fill_elements
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
#endif
