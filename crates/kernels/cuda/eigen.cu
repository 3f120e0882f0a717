// Eigenvalues of matrices that need not be symmetric: reflections make them zero below the first
// subdiagonal, and steps of two shifts at once make that zero too, from the end on. A block has a
// matrix. All threads follow the same path: what they decide by was written before a barrier.
#include "matrices.cuh"

// Steps for one eigenvalue after which there is none.
#define MOST_STEPS 60

// Reduces a matrix, with `v` as room for a vector.
__device__ __forceinline__ void reduce(REAL* a, REAL* v, u32 n) {
    for (u32 k = 0; k + 2 < n; k++) {
        REAL squares = 0, below = 0;
        for (u32 i = k + 1 + threadIdx.x; i < n; i += blockDim.x) {
            const REAL own = a[i * n + k];
            v[i] = own;
            squares += own * own;
            if (i > k + 1) below += own * own;
        }
        squares = block_sum(squares);
        below = block_sum(below);
        if (below == 0) continue;
        const REAL norm = root(squares), first = v[k + 1];
        const REAL factor = 1 / (norm * (norm + magnitude(first)));
        __syncthreads();
        if (threadIdx.x == 0) v[k + 1] = first > 0 ? first + norm : first - norm;
        __syncthreads();
        for (u32 j = k + threadIdx.x; j < n; j += blockDim.x) {
            REAL sum = 0;
            for (u32 i = k + 1; i < n; i++) sum += v[i] * a[i * n + j];
            for (u32 i = k + 1; i < n; i++) a[i * n + j] -= factor * sum * v[i];
        }
        __syncthreads();
        for (u32 i = threadIdx.x; i < n; i += blockDim.x) {
            REAL sum = 0;
            for (u32 j = k + 1; j < n; j++) sum += a[i * n + j] * v[j];
            for (u32 j = k + 1; j < n; j++) a[i * n + j] -= factor * sum * v[j];
        }
        __syncthreads();
        for (u32 i = k + 2 + threadIdx.x; i < n; i += blockDim.x) a[i * n + k] = 0;
        __syncthreads();
    }
}

// One step of two shifts, of this sum and product, of rows and columns from `low` to `high`.
__device__ __forceinline__ void sweep(REAL* a, u32 n, u32 low, u32 high, REAL sum, REAL product) {
    const REAL* const top = a + low * n + low;
    REAL p = top[0] * (top[0] - sum) + product + top[1] * top[n];
    REAL q = top[n] * (top[0] + top[n + 1] - sum);
    REAL r = top[n] * top[2 * n + 1];
    for (u32 k = low; k < high; k++) {
        const bool is_three = k + 2 <= high;
        if (k > low) {
            p = a[k * n + k - 1];
            q = a[(k + 1) * n + k - 1];
            r = is_three ? a[(k + 2) * n + k - 1] : (REAL)0;
        }
        __syncthreads();
        const REAL scale = magnitude(p) + magnitude(q) + magnitude(r);
        if (scale == 0) continue;
        const REAL x = p / scale, y = q / scale, z = r / scale;
        const REAL size = root(x * x + y * y + z * z), norm = x < 0 ? -size : size;
        const REAL first = x + norm, factor = 1 / (norm * first);
        if (k > low && threadIdx.x == 0) {
            a[k * n + k - 1] = -norm * scale;
            a[(k + 1) * n + k - 1] = 0;
            if (is_three) a[(k + 2) * n + k - 1] = 0;
        }
        for (u32 j = k + threadIdx.x; j <= high; j += blockDim.x) {
            REAL* const own = a + k * n + j;
            REAL along = first * own[0] + y * own[n];
            if (is_three) along += z * own[2 * n];
            along *= factor;
            own[0] -= along * first;
            own[n] -= along * y;
            if (is_three) own[2 * n] -= along * z;
        }
        __syncthreads();
        const u32 last = k + 3 < high ? k + 3 : high;
        for (u32 i = low + threadIdx.x; i <= last; i += blockDim.x) {
            REAL* const own = a + i * n + k;
            REAL along = first * own[0] + y * own[1];
            if (is_three) along += z * own[2];
            along *= factor;
            own[0] -= along * first;
            own[1] -= along * y;
            if (is_three) own[2] -= along * z;
        }
        __syncthreads();
    }
}

// The eigenvalues of the two rows and columns that end at `high`.
__device__ __forceinline__ void last_two(const REAL* a, u32 n, u32 high, REAL* real, REAL* imaginary) {
    const REAL x = a[high * n + high], y = a[(high - 1) * n + high - 1];
    const REAL across = a[high * n + high - 1] * a[(high - 1) * n + high];
    const REAL half = (y - x) / 2, square = half * half + across;
    if (square >= 0) {
        const REAL beyond = half < 0 ? half - root(square) : half + root(square);
        real[high - 1] = x + beyond;
        real[high] = beyond == 0 ? x : x - across / beyond;
        imaginary[high - 1] = imaginary[high] = 0;
    } else {
        real[high - 1] = real[high] = x + half;
        imaginary[high] = root(-square);
        imaginary[high - 1] = -imaginary[high];
    }
}

// In ascending order of the real parts, then of the imaginary ones, with both as columns.
extern "C" __global__ void eigenvalues(ELEMENT* __restrict__ to, const Shape to_shape, i64 to_row,
                                       const ELEMENT* __restrict__ x, const Shape x_shape,
                                       i64 x_row, REAL* work, u64 count, u64 size, u32 n) {
    REAL* const a = WORK(size);
    REAL* const real = a + n * n;
    REAL* const imaginary = real + n;
    REAL* const v = imaginary + n;
    for (u64 number = blockIdx.x; number < count; number += gridDim.x) {
        const Operand from(x, x_shape, x_row, number);
        const Result result(to, to_shape, to_row, number);
        REAL sizes = 0;
        for (u32 at = threadIdx.x; at < n * n; at += blockDim.x) {
            a[at] = from.load(at / n, at % n);
            sizes += magnitude(a[at]);
        }
        const REAL norm = block_sum(sizes);
        bool is_found = norm - norm == 0;
        if (is_found) reduce(a, v, n);
        i64 high = (i64)n - 1;
        u32 steps = 0;
        while (is_found && high >= 0) {
            __syncthreads();
            u32 low = (u32)high;
            while (low > 0) {
                const REAL beside = magnitude(a[(low - 1) * n + low - 1]) + magnitude(a[low * n + low]);
                const REAL least = EPSILON * (beside == 0 ? norm : beside);
                if (magnitude(a[low * n + low - 1]) <= least) break;
                low--;
            }
            __syncthreads();
            if (low + 1 >= (u32)high) {
                const bool is_one = low == (u32)high;
                if (threadIdx.x == 0 && is_one) {
                    real[high] = a[high * n + high];
                    imaginary[high] = 0;
                } else if (threadIdx.x == 0) {
                    last_two(a, n, (u32)high, real, imaginary);
                }
                high -= is_one ? 1 : 2;
                steps = 0;
                continue;
            }
            if (steps == MOST_STEPS) {
                is_found = false;
                break;
            }
            const REAL last = a[high * n + high], before = a[(high - 1) * n + high - 1];
            const REAL across = a[high * n + high - 1] * a[(high - 1) * n + high];
            REAL sum = last + before, product = last * before - across;
            if (steps % 10 == 9) {
                // Other shifts, where these have not led on.
                const REAL beside =
                    magnitude(a[high * n + high - 1]) + magnitude(a[(high - 1) * n + high - 2]);
                sum = (REAL)1.5 * beside;
                product = beside * beside;
            }
            steps++;
            sweep(a, n, low, (u32)high, sum, product);
        }
        __syncthreads();
        if (threadIdx.x == 0) {
            for (u32 i = 1; is_found && i < n; i++) {
                const REAL own = real[i], beside = imaginary[i];
                u32 at = i;
                while (at > 0 && (real[at - 1] > own ||
                                  (real[at - 1] == own && imaginary[at - 1] > beside))) {
                    real[at] = real[at - 1];
                    imaginary[at] = imaginary[at - 1];
                    at--;
                }
                real[at] = own;
                imaginary[at] = beside;
            }
            for (u32 i = 0; i < n; i++) {
                const REAL none = (REAL)as_float(0x7fc00000);
                result.store(i, 0, is_found ? real[i] : none);
                result.store(i, 1, is_found ? imaginary[i] : none);
            }
        }
        __syncthreads();
    }
}
