// Eigenvalues of symmetric matrices and singular values, by Jacobi's rotations, a block a matrix.
// A round has rotations of disjoint pairs of columns, a sweep one of each pair; sweeps end when
// none is left to rotate. EPSILON is the unit roundoff of REAL.
#include "matrices.cuh"

#define MOST_SWEEPS 24

// Pair k of a round, of which there are players - 1, players being even: as in a tournament in which
// the last player keeps its place, and the others move on around a circle.
__device__ __forceinline__ void pair_of(u32 round, u32 k, u32 players, u32& p, u32& q) {
    const u32 circle = players - 1;
    const u32 one = k == 0 ? circle : (round + k) % circle;
    const u32 other = (round + circle - k) % circle;
    p = one < other ? one : other;
    q = one < other ? other : one;
}

// Cosine and sine of the rotation that makes 0 of `across`, the product of two columns with these
// squares.
__device__ __forceinline__ void rotation(REAL of_p, REAL of_q, REAL across, REAL& c, REAL& s) {
    const REAL ratio = (of_q - of_p) / (2 * across);
    const REAL tangent = (ratio < 0 ? (REAL)-1 : (REAL)1) / (magnitude(ratio) + root(1 + ratio * ratio));
    c = 1 / root(1 + tangent * tangent);
    s = tangent * c;
}

__device__ __forceinline__ void rotate(REAL& x, REAL& y, REAL c, REAL s) {
    const REAL own = x;
    x = c * own - s * y;
    y = s * own + c * y;
}

// The sum of one value of each lane of a warp; all lanes have the same.
__device__ __forceinline__ REAL warp_sum(REAL own) {
#pragma unroll
    for (u32 distance = 16; distance > 0; distance /= 2) {
        own += __shfl_xor_sync(0xffffffff, own, distance);
    }
    return own;
}

// -1 if the element with the largest magnitude of a column is negative, else 1.
__device__ __forceinline__ REAL sign_of(const REAL* a, u32 rows, u32 columns, u32 column) {
    REAL best = 0;
    for (u32 i = 0; i < rows; i++) {
        const REAL own = a[i * columns + column];
        if (magnitude(own) > magnitude(best)) best = own;
    }
    return best < 0 ? (REAL)-1 : (REAL)1;
}

// Number of values before one of them, in ascending order or the other.
__device__ __forceinline__ u32 rank_of(const REAL* values, u32 apart, u32 count, u32 at,
                                       bool is_descending) {
    const REAL own = values[at * apart];
    u32 before = 0;
    for (u32 i = 0; i < count; i++) {
        const REAL other = values[i * apart];
        const bool is_before = is_descending ? other > own : other < own;
        before += is_before || (other == own && i < at);
    }
    return before;
}

#ifdef KERNEL_symmetric
// Eigenvalues in ascending order and unit vectors of a symmetric matrix, of which a triangle is
// read. Of a matrix that is not finite all results are NaN.
extern "C" __global__ void symmetric(ELEMENT* __restrict__ values, const Shape value_shape,
                                     ELEMENT* __restrict__ vectors, const Shape vector_shape,
                                     i64 vector_row, const ELEMENT* __restrict__ x,
                                     const Shape x_shape, i64 x_row, REAL* work, u64 count,
                                     u64 size, u32 extent, u32 upper) {
    REAL* const a = WORK(size);
    REAL* const v = a + extent * extent;
    REAL* const turns = v + extent * extent;
    const u32 half = (extent + 1) / 2, players = 2 * half;
    for (u64 number = blockIdx.x; number < count; number += gridDim.x) {
        const Operand from(x, x_shape, x_row, number);
        const Result to(vectors, vector_shape, vector_row, number);
        REAL squares = 0;
        for (u32 n = threadIdx.x; n < extent * extent; n += blockDim.x) {
            const u32 i = n / extent, j = n % extent;
            const REAL own = (j > i) == (upper != 0) ? from.load(i, j) : from.load(j, i);
            a[n] = own;
            v[n] = i == j ? (REAL)1 : (REAL)0;
            squares += own * own;
        }
        const REAL norm = root(block_sum(squares)), tolerance = (REAL)EPSILON * norm;
        // 0, or NaN.
        const REAL fault = norm - norm;
        for (u32 sweep = 0; sweep < MOST_SWEEPS; sweep++) {
            bool is_moved = false;
            for (u32 round = 0; round < players - 1; round++) {
                for (u32 k = threadIdx.x; k < half; k += blockDim.x) {
                    u32 p, q;
                    REAL c = 1, s = 0;
                    pair_of(round, k, players, p, q);
                    if (q < extent && magnitude(a[p * extent + q]) > tolerance) {
                        rotation(a[p * extent + p], a[q * extent + q], a[p * extent + q], c, s);
                        is_moved = true;
                    }
                    turns[2 * k] = c;
                    turns[2 * k + 1] = s;
                }
                __syncthreads();
                for (u32 n = threadIdx.x; n < half * extent; n += blockDim.x) {
                    const u32 k = n / extent, j = n % extent;
                    u32 p, q;
                    pair_of(round, k, players, p, q);
                    const REAL c = turns[2 * k], s = turns[2 * k + 1];
                    if (s != 0) rotate(a[p * extent + j], a[q * extent + j], c, s);
                }
                __syncthreads();
                for (u32 n = threadIdx.x; n < half * extent; n += blockDim.x) {
                    const u32 k = n / extent, i = n % extent;
                    u32 p, q;
                    pair_of(round, k, players, p, q);
                    const REAL c = turns[2 * k], s = turns[2 * k + 1];
                    if (s != 0) {
                        rotate(a[i * extent + p], a[i * extent + q], c, s);
                        rotate(v[i * extent + p], v[i * extent + q], c, s);
                    }
                }
                __syncthreads();
            }
            if (!__syncthreads_or(is_moved)) break;
        }
        ELEMENT* const to_values = values + row_offset(value_shape, number);
        for (u32 j = threadIdx.x; j < extent; j += blockDim.x) {
            const u32 rank = fault == 0 ? rank_of(a, extent + 1, extent, j, false) : j;
            const REAL sign = sign_of(v, extent, extent, j);
            const REAL value = a[j * extent + j] + fault;
            to_values[(i64)rank * value_shape.strides[0]] = Computed<ELEMENT>::store(value);
            for (u32 i = 0; i < extent; i++) to.store(i, rank, sign * v[i * extent + j] + fault);
        }
        __syncthreads();
    }
}
#endif

#ifdef KERNEL_singular
// Singular values in descending order and both sets of vectors: columns of the matrix, or with
// `wide` of its transpose, are rotated until they are orthogonal. The vector of a value of 0 is 0
// on that side. Of a matrix that is not finite all results are NaN.
extern "C" __global__ void singular(ELEMENT* __restrict__ u, const Shape u_shape, i64 u_row,
                                    ELEMENT* __restrict__ values, const Shape value_shape,
                                    ELEMENT* __restrict__ vh, const Shape vh_shape, i64 vh_row,
                                    const ELEMENT* __restrict__ x, const Shape x_shape, i64 x_row,
                                    REAL* work, u64 count, u64 size, u32 rows, u32 columns,
                                    u32 wide) {
    REAL* const a = WORK(size);
    REAL* const v = a + rows * columns;
    REAL* const norms = v + columns * columns;
    const u32 half = (columns + 1) / 2, players = 2 * half;
    const u32 warp = threadIdx.x / 32, warps = blockDim.x / 32, lane = threadIdx.x % 32;
    const REAL tolerance = (REAL)EPSILON * (REAL)(rows + 8);
    for (u64 number = blockIdx.x; number < count; number += gridDim.x) {
        const Operand from(x, x_shape, x_row, number);
        const Result to_u(u, u_shape, u_row, number), to_vh(vh, vh_shape, vh_row, number);
        REAL squares = 0;
        for (u32 n = threadIdx.x; n < rows * columns; n += blockDim.x) {
            const u32 i = n / columns, j = n % columns;
            const REAL own = wide ? from.load(j, i) : from.load(i, j);
            a[n] = own;
            squares += own * own;
        }
        for (u32 n = threadIdx.x; n < columns * columns; n += blockDim.x) {
            v[n] = n / columns == n % columns ? (REAL)1 : (REAL)0;
        }
        const REAL all = block_sum(squares), fault = all - all;
        for (u32 sweep = 0; sweep < MOST_SWEEPS; sweep++) {
            bool is_moved = false;
            for (u32 round = 0; round < players - 1; round++) {
                for (u32 k = warp; k < half; k += warps) {
                    u32 p, q;
                    pair_of(round, k, players, p, q);
                    if (q >= columns) continue;
                    REAL of_p = 0, of_q = 0, across = 0;
                    for (u32 i = lane; i < rows; i += 32) {
                        const REAL one = a[i * columns + p], other = a[i * columns + q];
                        of_p += one * one;
                        of_q += other * other;
                        across += one * other;
                    }
                    of_p = warp_sum(of_p);
                    of_q = warp_sum(of_q);
                    across = warp_sum(across);
                    if (!(magnitude(across) > tolerance * root(of_p) * root(of_q))) continue;
                    is_moved = true;
                    REAL c, s;
                    rotation(of_p, of_q, across, c, s);
                    for (u32 i = lane; i < rows; i += 32) {
                        rotate(a[i * columns + p], a[i * columns + q], c, s);
                    }
                    for (u32 i = lane; i < columns; i += 32) {
                        rotate(v[i * columns + p], v[i * columns + q], c, s);
                    }
                }
                __syncthreads();
            }
            if (!__syncthreads_or(is_moved)) break;
        }
        for (u32 j = warp; j < columns; j += warps) {
            REAL own = 0;
            for (u32 i = lane; i < rows; i += 32) own += a[i * columns + j] * a[i * columns + j];
            own = root(warp_sum(own));
            if (lane == 0) norms[j] = own;
        }
        __syncthreads();
        ELEMENT* const to_values = values + row_offset(value_shape, number);
        for (u32 j = threadIdx.x; j < columns; j += blockDim.x) {
            const REAL norm = norms[j];
            const u32 rank = fault == 0 ? rank_of(norms, 1, columns, j, true) : j;
            const REAL sign = wide ? sign_of(a, rows, columns, j) : sign_of(v, columns, columns, j);
            to_values[(i64)rank * value_shape.strides[0]] = Computed<ELEMENT>::store(norm + fault);
            for (u32 i = 0; i < rows; i++) {
                const REAL own = norm == 0 ? (REAL)0 : sign * a[i * columns + j] / norm;
                if (wide) to_vh.store(rank, i, own + fault);
                else to_u.store(i, rank, own + fault);
            }
            for (u32 i = 0; i < columns; i++) {
                const REAL own = sign * v[i * columns + j] + fault;
                if (wide) to_u.store(i, rank, own);
                else to_vh.store(rank, i, own);
            }
        }
        __syncthreads();
    }
}
#endif
