// Norms of groups of elements, and their gradients. A view is read at the sum of two offsets: of the
// group's number, and of the element's number in the group. With CENTRED the mean is subtracted, with
// GIVEN statistics are operands. A block computes a group at a time.
#include "blocks.cuh"
#include "rows.cuh"

typedef Computed<ELEMENT> As;
typedef As::type Real;

#define MOST_THREADS 256

struct Statistics {
    Real mean, variance, by;
};

__device__ __forceinline__ Real inverse_root(Real variance, double eps) {
    return SCALED ? (Real)1 / root(variance + (Real)eps) : (Real)1;
}

// Of a group of `count` elements.
__device__ __forceinline__ Statistics statistics_of(const ELEMENT* x, const Shape& shape, u64 count,
                                                    double eps, Real* places) {
    Statistics all{0, 0, 0};
#if CENTRED
    Real sum = 0;
    EACH_OF_BLOCK(at, count) sum += As::load(x[element_offset(shape, at)]);
    all.mean = reduce_block<AddOf<Real>>(sum, places) / (Real)count;
#endif
    Real squares = 0;
    EACH_OF_BLOCK(at, count) {
        const Real own = As::load(x[element_offset(shape, at)]) - all.mean;
        squares += own * own;
    }
    all.variance = reduce_block<AddOf<Real>>(squares, places) / (Real)count;
    all.by = inverse_root(all.variance, eps);
    return all;
}

#if GIVEN
// Of operands, which have one element for each group.
__device__ __forceinline__ Statistics given(const ELEMENT* mean, const Shape& mean_shape,
                                            const ELEMENT* variance, const Shape& variance_shape,
                                            u64 group, double eps) {
    Statistics all;
    all.mean = As::load(mean[element_offset(mean_shape, group)]);
    all.variance = As::load(variance[element_offset(variance_shape, group)]);
    all.by = inverse_root(all.variance, eps);
    return all;
}
#endif

#ifdef KERNEL_normalise
// With GIVEN, `mean` and `variance` are read, else they are written if they are there.
extern "C" __global__ void normalise(
    ELEMENT* __restrict__ to, const Shape to_groups, const Shape to_shape,
    const ELEMENT* __restrict__ x, const Shape x_groups, const Shape x_shape,
    const ELEMENT* __restrict__ gamma, const Shape gamma_groups, const Shape gamma_shape,
    const ELEMENT* __restrict__ beta, const Shape beta_groups, const Shape beta_shape,
    ELEMENT* mean, const Shape mean_shape, ELEMENT* variance, const Shape variance_shape,
    double eps, u64 groups, u64 count) {
    __shared__ Real places[MOST_THREADS];
    for (u64 group = blockIdx.x; group < groups; group += gridDim.x) {
        const ELEMENT* own = x + element_offset(x_groups, group);
#if GIVEN
        const Statistics all = given(mean, mean_shape, variance, variance_shape, group, eps);
#else
        const Statistics all = statistics_of(own, x_shape, count, eps, places);
        if (threadIdx.x == 0 && mean != nullptr) {
            mean[element_offset(mean_shape, group)] = As::store(all.mean);
            variance[element_offset(variance_shape, group)] = As::store(all.variance);
        }
#endif
        ELEMENT* target = to + element_offset(to_groups, group);
        const i64 in_gamma = element_offset(gamma_groups, group);
        const i64 in_beta = element_offset(beta_groups, group);
        EACH_OF_BLOCK(at, count) {
            Real value = (As::load(own[element_offset(x_shape, at)]) - all.mean) * all.by;
            if (gamma != nullptr) {
                value *= As::load(gamma[in_gamma + element_offset(gamma_shape, at)]);
            }
            if (beta != nullptr) {
                value += As::load(beta[in_beta + element_offset(beta_shape, at)]);
            }
            target[element_offset(to_shape, at)] = As::store(value);
        }
    }
}
#endif

#ifdef KERNEL_gradients_of_groups
// The gradient of the operand. The statistics of each group are written for `gradients_of_weights`.
extern "C" __global__ void gradients_of_groups(
    ELEMENT* __restrict__ to, const Shape to_groups, const Shape to_shape,
    const ELEMENT* __restrict__ gradient, const Shape gradient_groups, const Shape gradient_shape,
    const ELEMENT* __restrict__ x, const Shape x_groups, const Shape x_shape,
    const ELEMENT* __restrict__ gamma, const Shape gamma_groups, const Shape gamma_shape,
    const ELEMENT* __restrict__ mean, const Shape mean_shape, const ELEMENT* __restrict__ variance,
    const Shape variance_shape, Real* __restrict__ means, Real* __restrict__ factors, double eps,
    u64 groups, u64 count) {
    __shared__ Real places[MOST_THREADS];
    for (u64 group = blockIdx.x; group < groups; group += gridDim.x) {
        const ELEMENT* own = x + element_offset(x_groups, group);
        const ELEMENT* from = gradient + element_offset(gradient_groups, group);
        const i64 in_gamma = element_offset(gamma_groups, group);
#if GIVEN
        const Statistics all = given(mean, mean_shape, variance, variance_shape, group, eps);
#else
        const Statistics all = statistics_of(own, x_shape, count, eps, places);
#endif
        if (threadIdx.x == 0) {
            means[group] = all.mean;
            factors[group] = all.by;
        }
        Real sum = 0, along = 0;
#if !GIVEN
        EACH_OF_BLOCK(at, count) {
            Real g = As::load(from[element_offset(gradient_shape, at)]);
            if (gamma != nullptr) g *= As::load(gamma[in_gamma + element_offset(gamma_shape, at)]);
            sum += g;
            along += g * ((As::load(own[element_offset(x_shape, at)]) - all.mean) * all.by);
        }
        sum = CENTRED ? reduce_block<AddOf<Real>>(sum, places) / (Real)count : (Real)0;
        along = reduce_block<AddOf<Real>>(along, places) / (Real)count;
#endif
        ELEMENT* target = to + element_offset(to_groups, group);
        EACH_OF_BLOCK(at, count) {
            Real g = As::load(from[element_offset(gradient_shape, at)]);
            if (gamma != nullptr) g *= As::load(gamma[in_gamma + element_offset(gamma_shape, at)]);
            const Real normed = (As::load(own[element_offset(x_shape, at)]) - all.mean) * all.by;
            target[element_offset(to_shape, at)] = As::store(all.by * (g - sum - normed * along));
        }
    }
}
#endif

#ifdef KERNEL_gradients_of_weights
// The gradients of gamma and beta: sums over the elements of each channel. A block has COLUMNS
// channels at a time, and as many threads for each as there are then.
extern "C" __global__ void gradients_of_weights(
    ELEMENT* __restrict__ to_gamma, const Shape to_gamma_shape, ELEMENT* __restrict__ to_beta,
    const Shape to_beta_shape, const ELEMENT* __restrict__ gradient, const Shape gradient_channels,
    const Shape gradient_shape, const ELEMENT* __restrict__ x, const Shape x_channels,
    const Shape x_shape, const Real* __restrict__ means, const Shape means_channels,
    const Shape means_shape, const Real* __restrict__ factors, u64 channels, u64 count) {
    __shared__ Real places[2][MOST_THREADS];
    const u32 column = threadIdx.x % COLUMNS, lane = threadIdx.x / COLUMNS;
    const u32 lanes = blockDim.x / COLUMNS;
    for (u64 first = (u64)blockIdx.x * COLUMNS; first < channels; first += (u64)gridDim.x * COLUMNS) {
        const u64 channel = first + column;
        Real along = 0, sum = 0;
        if (channel < channels) {
            const ELEMENT* from = gradient + element_offset(gradient_channels, channel);
            const ELEMENT* own = x + element_offset(x_channels, channel);
            const i64 in_means = element_offset(means_channels, channel);
            for (u64 at = lane; at < count; at += lanes) {
                const Real g = As::load(from[element_offset(gradient_shape, at)]);
                const i64 group = in_means + element_offset(means_shape, at);
                sum += g;
                along += g * ((As::load(own[element_offset(x_shape, at)]) - means[group]) *
                              factors[group]);
            }
        }
        // The results of an earlier turn may still be read.
        __syncthreads();
        places[0][threadIdx.x] = along;
        places[1][threadIdx.x] = sum;
        for (u32 half = lanes / 2; half > 0; half /= 2) {
            __syncthreads();
            if (lane < half) {
                for (u32 k = 0; k < 2; k++) {
                    places[k][threadIdx.x] += places[k][threadIdx.x + half * COLUMNS];
                }
            }
        }
        if (lane == 0 && channel < channels) {
            to_gamma[element_offset(to_gamma_shape, channel)] = As::store(places[0][threadIdx.x]);
            if (to_beta != nullptr) {
                to_beta[element_offset(to_beta_shape, channel)] = As::store(places[1][threadIdx.x]);
            }
        }
    }
}
#endif

#ifdef KERNEL_sparsemax
// The nearest point to each row whose elements are not negative and have the sum 1: what is above a
// threshold, which grows as long as there is less above it. A block computes a row at a time.
extern "C" __global__ void sparsemax(ELEMENT* __restrict__ to, const Shape to_shape,
                                     const ELEMENT* __restrict__ x, const Shape x_shape, u64 length,
                                     u64 rows) {
    __shared__ Real places[MOST_THREADS];
    __shared__ u64 counts[MOST_THREADS];
    for (u64 row = blockIdx.x; row < rows; row += gridDim.x) {
        const ELEMENT* own = x + row_offset(x_shape, row);
        ELEMENT* target = to + row_offset(to_shape, row);
        const i64 stride = x_shape.strides[0];
        Real most = (Real)as_float(0xff800000);
        EACH_OF_BLOCK(at, length) {
            most = MostOf<Real>::combine(most, As::load(own[(i64)at * stride]));
        }
        most = reduce_block<MostOf<Real>>(most, places);
        // All that is kept is less than 1 below the largest.
        Real threshold = -1;
        u64 before = length + 1;
        while (true) {
            Real sum = 0;
            u64 count = 0;
            EACH_OF_BLOCK(at, length) {
                const Real value = As::load(own[(i64)at * stride]) - most;
                if (value > threshold) {
                    sum += value;
                    count++;
                }
            }
            sum = reduce_block<AddOf<Real>>(sum, places);
            count = reduce_block<AddOf<u64>>(count, counts);
            if (count == 0 || count >= before) break;
            before = count;
            threshold = (sum - 1) / (Real)count;
        }
        EACH_OF_BLOCK(at, length) {
            const Real value = As::load(own[(i64)at * stride]) - most - threshold;
            // NaN stays.
            target[(i64)at * to_shape.strides[0]] = As::store(value <= 0 ? (Real)0 : value);
        }
    }
}
#endif
