// Losses of rows by the class that an index in memory names, and their gradients. A row has a loss
// and a gradient of 0, and is not counted, if its index is `ignored` or outside of the classes. With
// IS_LOGITS rows are logits, else logarithms of probabilities. A row's loss has the weight of its
// class, if there are weights, and those spread over all classes theirs. A block computes a row at a
// time.
#include "blocks.cuh"
#include "classes.cuh"

typedef Computed<ELEMENT> As;
typedef As::type Real;

#define MOST_THREADS 256
#ifndef VECTOR
#define VECTOR 0
#endif

// The weight of a class; 1 without weights.
__device__ __forceinline__ Real weight_of(const ELEMENT* weights, i64 stride, u64 at) {
    return weights == nullptr ? (Real)1 : As::load(weights[(i64)at * stride]);
}

// Neighbours that a thread takes at once, from 16 bytes with VECTOR; the order is the same without.
#define NEAR (16 / sizeof(ELEMENT))

union Neighbours {
    uint4 bits;
    ELEMENT values[NEAR];

    __device__ __forceinline__ Neighbours() {}
};

// ln of the sum of e^x of a row, in one pass: a thread's sum is of e^(x - most), where `most` is the
// largest of its elements so far. Milakov and Gimelshein, "Online normalizer calculation for
// softmax", 2018.
__device__ __forceinline__ Real log_sum(const ELEMENT* x, i64 stride, u64 classes, Real* places) {
    const Real none = (Real)as_float(0xff800000);
    Real most = none, sum = 0;
    const u64 step = (u64)blockDim.x * NEAR;
#pragma unroll 2
    for (u64 first = (u64)threadIdx.x * NEAR; first < classes; first += step) {
        Real values[NEAR];
        Neighbours near;
        const bool is_whole = first + NEAR <= classes;
        if (VECTOR && is_whole) near.bits = *reinterpret_cast<const uint4*>(x + first);
        Real largest = most;
#pragma unroll
        for (u32 k = 0; k < NEAR; k++) {
            if (VECTOR && is_whole) {
                values[k] = As::load(near.values[k]);
            } else {
                values[k] = first + k < classes ? (Real)As::load(x[(i64)(first + k) * stride]) : none;
            }
            largest = MostOf<Real>::combine(largest, values[k]);
        }
        if (largest != most) {
            sum *= exponential(most - largest);
            most = largest;
        }
        // Equal ones may be infinite, and have no difference.
        if (most - most == 0) {
#pragma unroll
            for (u32 k = 0; k < NEAR; k++) sum += exponential(values[k] - most);
        } else {
#pragma unroll
            for (u32 k = 0; k < NEAR; k++) {
                sum += values[k] == most ? (Real)1 : exponential(values[k] - most);
            }
        }
    }
    const Real all = reduce_block<MostOf<Real>>(most, places);
    if (most != all) sum *= exponential(most - all);
    return all + logarithm(reduce_block<AddOf<Real>>(sum, places));
}

#ifdef KERNEL_class_losses
// The loss of each row.
extern "C" __global__ void class_losses(LOSS* __restrict__ to, const Shape to_shape,
                                        const ELEMENT* __restrict__ x, const Shape x_shape,
                                        const INDEX* __restrict__ index, const Shape index_shape,
                                        const ELEMENT* __restrict__ weights, i64 weights_stride,
                                        double smoothing, double z_weight, i64 ignored, u64 classes,
                                        u64 rows, u64* fault) {
    __shared__ Real places[MOST_THREADS];
    const i64 stride = x_shape.strides[0];
    for (u64 row = blockIdx.x; row < rows; row += gridDim.x) {
        const ELEMENT* own = x + row_offset(x_shape, row);
        // The index is recorded by one thread.
        const i64 chosen = class_of(index, index_shape, row, classes, ignored,
                                    threadIdx.x == 0 ? fault : nullptr);
        Real loss = 0;
        if (chosen >= 0) {
            const Real of_class = As::load(own[chosen * stride]);
#if IS_LOGITS
            const Real sum = log_sum(own, stride, classes, places);
            loss = (Real)(1 - smoothing) * (sum - of_class);
            if (z_weight != 0) loss += (Real)z_weight * sum * sum;
            loss *= weight_of(weights, weights_stride, (u64)chosen);
            if (smoothing != 0) {
                Real all = 0;
                EACH_OF_BLOCK(at, classes) {
                    all += weight_of(weights, weights_stride, at) *
                           (sum - As::load(own[(i64)at * stride]));
                }
                all = reduce_block<AddOf<Real>>(all, places);
                loss += (Real)smoothing * (all / (Real)classes);
            }
#else
            loss = -of_class * weight_of(weights, weights_stride, (u64)chosen);
#endif
        }
        if (threadIdx.x == 0) {
            to[element_offset(to_shape, row)] =
                Computed<LOSS>::store((Computed<LOSS>::type)loss);
        }
    }
}
#endif

#ifdef KERNEL_count_rows
// The number of rows that are counted, or the sum of the weights of their classes. One block.
extern "C" __global__ void count_rows(Real* __restrict__ to, const INDEX* __restrict__ index,
                                      const Shape index_shape, const ELEMENT* __restrict__ weights,
                                      i64 weights_stride, i64 ignored, u64 classes, u64 rows) {
    __shared__ u64 places[MOST_THREADS];
    __shared__ Real sums[MOST_THREADS];
    u64 count = 0;
    Real sum = 0;
    EACH_OF_BLOCK(row, rows) {
        const i64 chosen = class_of(index, index_shape, row, classes, ignored, nullptr);
        if (chosen < 0) continue;
        count++;
        if (weights != nullptr) sum += weight_of(weights, weights_stride, (u64)chosen);
    }
    count = reduce_block<AddOf<u64>>(count, places);
    sum = reduce_block<AddOf<Real>>(sum, sums);
    if (threadIdx.x == 0) *to = weights == nullptr ? (Real)count : sum;
}
#endif

#ifdef KERNEL_sum_losses
// The sum of losses, by their number if that is given. One block.
extern "C" __global__ void sum_losses(ELEMENT* __restrict__ to, const Real* __restrict__ losses,
                                      const Real* __restrict__ count, u64 rows) {
    __shared__ Real places[MOST_THREADS];
    Real sum = 0;
    EACH_OF_BLOCK(row, rows) sum += losses[row];
    sum = reduce_block<AddOf<Real>>(sum, places);
    if (count != nullptr) sum = sum / *count;
    if (threadIdx.x == 0) *to = As::store(sum);
}
#endif

#ifdef KERNEL_class_gradients
// The gradient of each row, of the losses' gradient: one for each row, or for all.
extern "C" __global__ void class_gradients(ELEMENT* __restrict__ to, const Shape to_shape,
                                           const ELEMENT* __restrict__ gradient,
                                           const Shape gradient_shape,
                                           const ELEMENT* __restrict__ x, const Shape x_shape,
                                           const INDEX* __restrict__ index, const Shape index_shape,
                                           const Real* __restrict__ count,
                                           const ELEMENT* __restrict__ weights, i64 weights_stride,
                                           double smoothing, double z_weight, i64 ignored, u64 classes, u64 rows,
                                           u64* fault) {
    __shared__ Real places[MOST_THREADS];
    const i64 stride = x_shape.strides[0];
    for (u64 row = blockIdx.x; row < rows; row += gridDim.x) {
        const ELEMENT* own = x + row_offset(x_shape, row);
        ELEMENT* target = to + row_offset(to_shape, row);
        const i64 chosen = class_of(index, index_shape, row, classes, ignored,
                                    threadIdx.x == 0 ? fault : nullptr);
        if (chosen < 0) {
            EACH_OF_BLOCK(at, classes) target[(i64)at * to_shape.strides[0]] = As::store(0);
            continue;
        }
        Real by = As::load(gradient[element_offset(gradient_shape, row)]);
        if (count != nullptr) by = by / *count;
        const Real of_class = weight_of(weights, weights_stride, (u64)chosen);
#if IS_LOGITS
        const Real sum = log_sum(own, stride, classes, places);
        // Of all weights, of which a share is spread.
        Real spread = (Real)classes;
        if (weights != nullptr && smoothing != 0) {
            spread = 0;
            EACH_OF_BLOCK(at, classes) spread += weight_of(weights, weights_stride, at);
            spread = reduce_block<AddOf<Real>>(spread, places);
        }
        const Real even = (Real)(smoothing / (double)classes);
        const Real factor = (Real)(1 - smoothing) + (Real)2 * (Real)z_weight * sum;
        const Real share = of_class * factor + even * spread;
#endif
        EACH_OF_BLOCK(at, classes) {
#if IS_LOGITS
            Real value = exponential(As::load(own[(i64)at * stride]) - sum) * share;
            // A weight may be infinite, of a class that has no share.
            if (even != 0) value -= even * weight_of(weights, weights_stride, at);
            if (at == (u64)chosen) value -= (Real)(1 - smoothing) * of_class;
#else
            const Real value = at == (u64)chosen ? -of_class : (Real)0;
#endif
            target[(i64)at * to_shape.strides[0]] = As::store(by * value);
        }
    }
}
#endif
