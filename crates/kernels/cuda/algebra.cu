// Factorisations and systems of equations of matrices in the last two dimensions, a block each,
// computed in REAL.
#include "matrices.cuh"

// The row from `first` on with the largest magnitude in a column, the first of equal ones.
__device__ __forceinline__ u32 largest_row(const REAL* a, u32 first, u32 rows, u32 columns,
                                           u32 column) {
    __shared__ REAL values[MOST_THREADS];
    __shared__ u32 places[MOST_THREADS];
    REAL best = -1;
    u32 place = first;
    for (u32 i = first + threadIdx.x; i < rows; i += blockDim.x) {
        const REAL own = magnitude(a[i * columns + column]);
        if (own > best) {
            best = own;
            place = i;
        }
    }
    values[threadIdx.x] = best;
    places[threadIdx.x] = place;
    __syncthreads();
    for (u32 half = blockDim.x / 2; half > 0; half /= 2) {
        if (threadIdx.x < half) {
            const REAL other = values[threadIdx.x + half], own = values[threadIdx.x];
            const u32 at = places[threadIdx.x + half];
            if (other > own || (other == own && at < places[threadIdx.x])) {
                values[threadIdx.x] = other;
                places[threadIdx.x] = at;
            }
        }
        __syncthreads();
    }
    const u32 found = places[0];
    __syncthreads();
    return found;
}

// Gaussian elimination of the first `steps` columns, with interchanges of rows. A column of zeros
// is left as it is. The result is whether the number of interchanges is odd.
__device__ __forceinline__ bool eliminate(REAL* a, u32 rows, u32 columns, u32 steps, i64* pivots,
                                          i64 pivot_stride) {
    bool is_odd = false;
    for (u32 j = 0; j < steps; j++) {
        const u32 pivot_row = largest_row(a, j, rows, columns, j);
        if (pivots != nullptr && threadIdx.x == 0) pivots[(i64)j * pivot_stride] = pivot_row;
        if (pivot_row != j) {
            is_odd = !is_odd;
            for (u32 k = threadIdx.x; k < columns; k += blockDim.x) {
                const REAL own = a[j * columns + k];
                a[j * columns + k] = a[pivot_row * columns + k];
                a[pivot_row * columns + k] = own;
            }
        }
        __syncthreads();
        const REAL pivot = a[j * columns + j];
        if (pivot != 0) {
            for (u32 i = j + 1 + threadIdx.x; i < rows; i += blockDim.x) {
                a[i * columns + j] /= pivot;
            }
        }
        __syncthreads();
        const u32 right = columns - j - 1;
        for (u32 n = threadIdx.x; n < (rows - j - 1) * right; n += blockDim.x) {
            const u32 i = j + 1 + n / right, k = j + 1 + n % right;
            a[i * columns + k] -= a[i * columns + j] * a[j * columns + k];
        }
        __syncthreads();
    }
    return is_odd;
}

#ifdef KERNEL_cholesky
// The triangular factor of a positive definite matrix, of which one triangle is read. With `upper`
// it is the transposed one. From a column on whose pivot is not positive all is NaN.
extern "C" __global__ void cholesky(ELEMENT* __restrict__ to, const Shape to_shape, i64 to_row,
                                    const ELEMENT* __restrict__ x, const Shape x_shape, i64 x_row,
                                    REAL* work, u64 count, u64 size, u32 extent, u32 upper) {
    REAL* const a = WORK(size);
    for (u64 number = blockIdx.x; number < count; number += gridDim.x) {
        const Operand from(x, x_shape, x_row, number);
        const Result result(to, to_shape, to_row, number);
        for (u32 n = threadIdx.x; n < extent * extent; n += blockDim.x) {
            const u32 i = n / extent, j = n % extent;
            a[n] = j > i ? (REAL)0 : upper ? from.load(j, i) : from.load(i, j);
        }
        __syncthreads();
        for (u32 j = 0; j < extent; j++) {
            const REAL pivot = a[j * extent + j];
            const REAL diagonal = pivot > 0 ? root(pivot) : (REAL)as_float(0x7fc00000);
            __syncthreads();
            for (u32 i = j + threadIdx.x; i < extent; i += blockDim.x) {
                a[i * extent + j] = i == j ? diagonal : a[i * extent + j] / diagonal;
            }
            __syncthreads();
            const u32 left = extent - j - 1;
            for (u32 n = threadIdx.x; n < left * left; n += blockDim.x) {
                const u32 i = j + 1 + n / left, k = j + 1 + n % left;
                if (k <= i) a[i * extent + k] -= a[i * extent + j] * a[k * extent + j];
            }
            __syncthreads();
        }
        for (u32 n = threadIdx.x; n < extent * extent; n += blockDim.x) {
            const u32 i = n / extent, j = n % extent;
            result.store(i, j, upper ? a[j * extent + i] : a[n]);
        }
        __syncthreads();
    }
}
#endif

#ifdef KERNEL_factors
// The factors of a matrix with interchanged rows, and the row that each one was exchanged with.
extern "C" __global__ void factors(ELEMENT* __restrict__ to, const Shape to_shape, i64 to_row,
                                   i64* __restrict__ pivots, const Shape pivot_shape,
                                   const ELEMENT* __restrict__ x, const Shape x_shape, i64 x_row,
                                   REAL* work, u64 count, u64 size, u32 rows, u32 columns) {
    REAL* const a = WORK(size);
    const u32 steps = rows < columns ? rows : columns;
    for (u64 number = blockIdx.x; number < count; number += gridDim.x) {
        const Operand from(x, x_shape, x_row, number);
        const Result result(to, to_shape, to_row, number);
        for (u32 n = threadIdx.x; n < rows * columns; n += blockDim.x) {
            a[n] = from.load(n / columns, n % columns);
        }
        __syncthreads();
        eliminate(a, rows, columns, steps, pivots + row_offset(pivot_shape, number),
                  pivot_shape.strides[0]);
        for (u32 n = threadIdx.x; n < rows * columns; n += blockDim.x) {
            result.store(n / columns, n % columns, a[n]);
        }
        __syncthreads();
    }
}
#endif

#ifdef KERNEL_solve
// The solution of square systems; with `identity` the right side is that matrix.
extern "C" __global__ void solve(ELEMENT* __restrict__ to, const Shape to_shape, i64 to_row,
                                 const ELEMENT* __restrict__ x, const Shape x_shape, i64 x_row,
                                 const ELEMENT* __restrict__ right, const Shape right_shape,
                                 i64 right_row, REAL* work, u64 count, u64 size, u32 extent,
                                 u32 wide, u32 identity) {
    REAL* const a = WORK(size);
    const u32 columns = extent + wide;
    for (u64 number = blockIdx.x; number < count; number += gridDim.x) {
        const Operand from(x, x_shape, x_row, number);
        const Operand side(right, right_shape, right_row, number);
        const Result result(to, to_shape, to_row, number);
        for (u32 n = threadIdx.x; n < extent * columns; n += blockDim.x) {
            const u32 i = n / columns, j = n % columns;
            if (j < extent) a[n] = from.load(i, j);
            else if (identity) a[n] = j - extent == i ? (REAL)1 : (REAL)0;
            else a[n] = side.load(i, j - extent);
        }
        __syncthreads();
        eliminate(a, extent, columns, extent, nullptr, 0);
        for (u32 j = extent; j-- > 0;) {
            const REAL pivot = a[j * columns + j];
            for (u32 k = extent + threadIdx.x; k < columns; k += blockDim.x) {
                a[j * columns + k] /= pivot;
            }
            __syncthreads();
            for (u32 n = threadIdx.x; n < j * wide; n += blockDim.x) {
                const u32 i = n / wide, k = extent + n % wide;
                a[i * columns + k] -= a[i * columns + j] * a[j * columns + k];
            }
            __syncthreads();
        }
        for (u32 n = threadIdx.x; n < extent * wide; n += blockDim.x) {
            const u32 i = n / wide, k = n % wide;
            result.store(i, k, a[i * columns + extent + k]);
        }
        __syncthreads();
    }
}
#endif

#ifdef KERNEL_solve_triangular
// The solution of triangular systems. The other triangle is not read, nor with `unit` the diagonal.
extern "C" __global__ void solve_triangular(ELEMENT* __restrict__ to, const Shape to_shape,
                                            i64 to_row, const ELEMENT* __restrict__ x,
                                            const Shape x_shape, i64 x_row,
                                            const ELEMENT* __restrict__ right,
                                            const Shape right_shape, i64 right_row, REAL* work,
                                            u64 count, u64 size, u32 extent, u32 wide, u32 upper,
                                            u32 transposed, u32 unit) {
    REAL* const b = WORK(size);
    // From the first row on, or from the last one.
    const bool is_forward = (upper != 0) == (transposed != 0);
    for (u64 number = blockIdx.x; number < count; number += gridDim.x) {
        const Operand from(x, x_shape, x_row, number);
        const Operand side(right, right_shape, right_row, number);
        const Result result(to, to_shape, to_row, number);
        for (u32 n = threadIdx.x; n < extent * wide; n += blockDim.x) {
            b[n] = side.load(n / wide, n % wide);
        }
        __syncthreads();
        for (u32 step = 0; step < extent; step++) {
            const u32 j = is_forward ? step : extent - 1 - step;
            if (!unit) {
                const REAL pivot = from.load(j, j);
                for (u32 k = threadIdx.x; k < wide; k += blockDim.x) b[j * wide + k] /= pivot;
                __syncthreads();
            }
            for (u32 n = threadIdx.x; n < (extent - 1 - step) * wide; n += blockDim.x) {
                const u32 other = n / wide, k = n % wide;
                const u32 i = is_forward ? j + 1 + other : other;
                const REAL own = transposed ? from.load(j, i) : from.load(i, j);
                b[i * wide + k] -= own * b[j * wide + k];
            }
            __syncthreads();
        }
        for (u32 n = threadIdx.x; n < extent * wide; n += blockDim.x) {
            result.store(n / wide, n % wide, b[n]);
        }
        __syncthreads();
    }
}
#endif

#ifdef KERNEL_determinant
// Determinants; with `logarithms` their signs, and the logarithms of their magnitudes.
extern "C" __global__ void determinant(ELEMENT* __restrict__ to, const Shape to_shape,
                                       ELEMENT* __restrict__ logs, const Shape log_shape,
                                       const ELEMENT* __restrict__ x, const Shape x_shape,
                                       i64 x_row, REAL* work, u64 count, u64 size, u32 extent,
                                       u32 logarithms) {
    REAL* const a = WORK(size);
    for (u64 number = blockIdx.x; number < count; number += gridDim.x) {
        const Operand from(x, x_shape, x_row, number);
        for (u32 n = threadIdx.x; n < extent * extent; n += blockDim.x) {
            a[n] = from.load(n / extent, n % extent);
        }
        __syncthreads();
        const bool is_odd = eliminate(a, extent, extent, extent, nullptr, 0);
        if (threadIdx.x == 0) {
            REAL product = is_odd ? (REAL)-1 : (REAL)1, sum = 0;
            for (u32 j = 0; j < extent; j++) {
                const REAL pivot = a[j * extent + j];
                if (logarithms) {
                    // NaN stays, and 0.
                    product *= pivot > 0 ? (REAL)1 : pivot < 0 ? (REAL)-1 : pivot;
                    sum += logarithm(magnitude(pivot));
                } else {
                    product *= pivot;
                }
            }
            to[element_offset(to_shape, number)] = Computed<ELEMENT>::store(product);
            if (logarithms) {
                logs[element_offset(log_shape, number)] = Computed<ELEMENT>::store(sum);
            }
        }
        __syncthreads();
    }
}
#endif

// Subtracts from a column its part along the vector v, which is 1 in row `first` and in column
// `of` of `vectors` below it; by one warp.
__device__ __forceinline__ void reflect(REAL* a, u32 columns, u32 column, const REAL* vectors,
                                        u32 wide, u32 of, u32 first, u32 rows, REAL factor) {
    const u32 lane = threadIdx.x % 32;
    REAL sum = 0;
    for (u32 i = first + lane; i < rows; i += 32) {
        const REAL own = i == first ? (REAL)1 : vectors[i * wide + of];
        sum += own * a[i * columns + column];
    }
#pragma unroll
    for (u32 distance = 16; distance > 0; distance /= 2) {
        sum += __shfl_xor_sync(0xffffffff, sum, distance);
    }
    sum *= factor;
    for (u32 i = first + lane; i < rows; i += 32) {
        const REAL own = i == first ? (REAL)1 : vectors[i * wide + of];
        a[i * columns + column] -= own * sum;
    }
}

#ifdef KERNEL_orthogonal
// Orthogonal columns and a triangular factor without negative numbers on its diagonal.
extern "C" __global__ void orthogonal(ELEMENT* __restrict__ q, const Shape q_shape, i64 q_row,
                                      ELEMENT* __restrict__ r, const Shape r_shape, i64 r_row,
                                      const ELEMENT* __restrict__ x, const Shape x_shape,
                                      i64 x_row, REAL* work, u64 count, u64 size, u32 rows,
                                      u32 columns) {
    const u32 steps = rows < columns ? rows : columns;
    REAL* const a = WORK(size);
    REAL* const basis = a + rows * columns;
    REAL* const factors = basis + rows * steps;
    const u32 warp = threadIdx.x / 32, warps = blockDim.x / 32;
    for (u64 number = blockIdx.x; number < count; number += gridDim.x) {
        const Operand from(x, x_shape, x_row, number);
        const Result to_q(q, q_shape, q_row, number), to_r(r, r_shape, r_row, number);
        for (u32 n = threadIdx.x; n < rows * columns; n += blockDim.x) {
            a[n] = from.load(n / columns, n % columns);
        }
        for (u32 n = threadIdx.x; n < rows * steps; n += blockDim.x) {
            basis[n] = n / steps == n % steps ? (REAL)1 : (REAL)0;
        }
        __syncthreads();
        for (u32 j = 0; j < steps; j++) {
            REAL squares = 0;
            for (u32 i = j + threadIdx.x; i < rows; i += blockDim.x) {
                squares += a[i * columns + j] * a[i * columns + j];
            }
            const REAL norm = root(block_sum(squares)), first = a[j * columns + j];
            const REAL opposite = first > 0 ? -norm : norm;
            // Without a norm nothing is reflected.
            const REAL factor = norm == 0 ? (REAL)0 : (opposite - first) / opposite;
            const REAL scale = norm == 0 ? (REAL)0 : 1 / (first - opposite);
            __syncthreads();
            for (u32 i = j + threadIdx.x; i < rows; i += blockDim.x) {
                if (i == j) {
                    a[i * columns + j] = opposite;
                    factors[j] = factor;
                } else {
                    a[i * columns + j] *= scale;
                }
            }
            __syncthreads();
            for (u32 k = j + 1 + warp; k < columns; k += warps) {
                reflect(a, columns, k, a, columns, j, j, rows, factor);
            }
            __syncthreads();
        }
        for (u32 j = steps; j-- > 0;) {
            for (u32 k = j + warp; k < steps; k += warps) {
                reflect(basis, steps, k, a, columns, j, j, rows, factors[j]);
            }
            __syncthreads();
        }
        for (u32 n = threadIdx.x; n < rows * steps; n += blockDim.x) {
            const u32 j = n % steps;
            to_q.store(n / steps, j, a[j * columns + j] < 0 ? -basis[n] : basis[n]);
        }
        for (u32 n = threadIdx.x; n < steps * columns; n += blockDim.x) {
            const u32 i = n / columns, j = n % columns;
            const REAL own = a[i * columns + i] < 0 ? -a[n] : a[n];
            to_r.store(i, j, j < i ? (REAL)0 : own);
        }
        __syncthreads();
    }
}
#endif
