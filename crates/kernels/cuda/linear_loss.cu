// Losses of a linear layer's logits by classes, in parts of the classes: the logits of a part are in
// the workspace, and what is known of a row is joined with those before. Logits, states and sums are
// Real; a row has a loss and gradients of 0 if its index is `ignored` or outside of the classes.
#include "blocks.cuh"
#include "classes.cuh"

typedef Computed<ELEMENT> As;
typedef As::type Real;

#define MOST_THREADS 256

// e^(x - most); equal ones may be infinite, and have no difference.
__device__ __forceinline__ Real share(Real x, Real most) {
    return x == most ? (Real)1 : exponential(x - most);
}

#ifdef KERNEL_join_logits
// Joins the logits of the classes from `first` on to each row's largest one, sum of powers, sum, and
// the logit of its class. A block computes a row at a time.
extern "C" __global__ void join_logits(Real* __restrict__ most, Real* __restrict__ sum,
                                       Real* __restrict__ all, Real* __restrict__ own,
                                       const Real* __restrict__ logits,
                                       const INDEX* __restrict__ index, const Shape index_shape,
                                       i64 ignored, u64 first, u64 width, u64 classes, u64 rows,
                                       u64* fault) {
    __shared__ Real places[MOST_THREADS];
    for (u64 row = blockIdx.x; row < rows; row += gridDim.x) {
        const Real* x = logits + row * width;
        Real part = (Real)as_float(0xff800000), plain = 0, powers = 0;
        EACH_OF_BLOCK(at, width) {
            part = MostOf<Real>::combine(part, x[at]);
            plain += x[at];
        }
        part = reduce_block<MostOf<Real>>(part, places);
        plain = reduce_block<AddOf<Real>>(plain, places);
        const Real before = first == 0 ? (Real)as_float(0xff800000) : most[row];
        const Real next = MostOf<Real>::combine(before, part);
        EACH_OF_BLOCK(at, width) powers += share(x[at], next);
        powers = reduce_block<AddOf<Real>>(powers, places);
        if (threadIdx.x == 0) {
            const i64 chosen = class_of(index, index_shape, row, classes, ignored,
                                        first == 0 ? fault : nullptr);
            most[row] = next;
            sum[row] = first == 0 ? powers : sum[row] * share(before, next) + powers;
            all[row] = first == 0 ? plain : all[row] + plain;
            if (first == 0) own[row] = 0;
            if (chosen >= (i64)first && chosen < (i64)(first + width)) {
                own[row] = x[chosen - (i64)first];
            }
        }
        // Threads of the next row may not change what thread 0 reads.
        __syncthreads();
    }
}
#endif

#ifdef KERNEL_losses_of_rows
// The loss of each row, and ln of the sum of e^x.
extern "C" __global__ void losses_of_rows(LOSS* __restrict__ to, const Shape to_shape,
                                          Real* __restrict__ logarithms,
                                          const Shape logarithms_shape,
                                          const Real* __restrict__ most,
                                          const Real* __restrict__ sum, const Real* __restrict__ all,
                                          const Real* __restrict__ own,
                                          const INDEX* __restrict__ index, const Shape index_shape,
                                          double smoothing, double z_weight, i64 ignored,
                                          u64 classes, u64 rows) {
    EACH_ELEMENT(row, rows) {
        const Real total = most[row] + logarithm(sum[row]);
        Real loss = 0;
        if (class_of(index, index_shape, row, classes, ignored, nullptr) >= 0) {
            loss = (Real)(1 - smoothing) * (total - own[row]);
            if (smoothing != 0) loss += (Real)smoothing * (total - all[row] / (Real)classes);
            if (z_weight != 0) loss += (Real)z_weight * total * total;
        }
        to[element_offset(to_shape, row)] = Computed<LOSS>::store((Computed<LOSS>::type)loss);
        logarithms[element_offset(logarithms_shape, row)] = total;
    }
}
#endif

#ifdef KERNEL_gradients_of_logits
// The gradients of a part's logits, without the losses' own unless each row has one. `to` may be
// `logits`.
extern "C" __global__ void gradients_of_logits(ELEMENT* to, const Real* logits,
                                               const Real* __restrict__ logarithms,
                                               const Shape logarithms_shape,
                                               const INDEX* __restrict__ index,
                                               const Shape index_shape,
                                               const ELEMENT* __restrict__ gradient,
                                               const Shape gradient_shape, double smoothing,
                                               double z_weight, i64 ignored, u64 first, u64 width,
                                               u64 classes, u64 rows, u64* fault) {
    for (u64 row = blockIdx.x; row < rows; row += gridDim.x) {
        u64* const noted = first == 0 && threadIdx.x == 0 ? fault : nullptr;
        const i64 chosen = class_of(index, index_shape, row, classes, ignored, noted);
        const Real total = logarithms[element_offset(logarithms_shape, row)];
        const Real factor = (Real)1 + (Real)2 * (Real)z_weight * total;
        const Real even = (Real)(smoothing / (double)classes);
        Real by = chosen < 0 ? (Real)0 : (Real)1;
        if (chosen >= 0 && gradient != nullptr) {
            by = As::load(gradient[element_offset(gradient_shape, row)]);
        }
        EACH_OF_BLOCK(at, width) {
            Real value = 0;
            if (chosen >= 0) {
                value = exponential(logits[row * width + at] - total) * factor - even;
                if (first + at == (u64)chosen) value -= (Real)(1 - smoothing);
                value *= by;
            }
            to[row * width + at] = As::store(value);
        }
    }
}
#endif

// The factor of all gradients: that of the reduced losses, by the number of rows if that is given; 0
// of no rows.
__device__ __forceinline__ Real factor_of(const ELEMENT* gradient, const Real* count) {
    Real by = gradient == nullptr ? (Real)1 : As::load(*gradient);
    if (count != nullptr) by = *count == 0 ? (Real)0 : by / *count;
    return by;
}

#ifdef KERNEL_scale_sums
extern "C" __global__ void scale_sums(ELEMENT* __restrict__ to, const Shape to_shape,
                                      const Real* __restrict__ from,
                                      const ELEMENT* __restrict__ gradient,
                                      const Real* __restrict__ rows, u64 count) {
    const Real by = factor_of(gradient, rows);
    EACH_ELEMENT(at, count) to[element_offset(to_shape, at)] = As::store(from[at] * by);
}
#endif

#ifdef KERNEL_sum_columns
// Sums of the columns of a part's gradients: 32 columns of a block at a time, by 8 threads each.
extern "C" __global__ void sum_columns(ELEMENT* __restrict__ to, const Shape to_shape,
                                       const ELEMENT* __restrict__ from,
                                       const ELEMENT* __restrict__ gradient,
                                       const Real* __restrict__ count, u64 width, u64 rows) {
    __shared__ Real places[MOST_THREADS];
    const u32 column = threadIdx.x % 32, lane = threadIdx.x / 32;
    const Real by = factor_of(gradient, count);
    for (u64 first = (u64)blockIdx.x * 32; first < width; first += (u64)gridDim.x * 32) {
        const u64 at = first + column;
        Real sum = 0;
        for (u64 row = lane; at < width && row < rows; row += MOST_THREADS / 32) {
            sum += As::load(from[row * width + at]);
        }
        __syncthreads();
        places[threadIdx.x] = sum;
        for (u32 half = MOST_THREADS / 64; half > 0; half /= 2) {
            __syncthreads();
            if (lane < half) places[threadIdx.x] += places[threadIdx.x + half * 32];
        }
        if (lane == 0 && at < width) {
            to[element_offset(to_shape, at)] = As::store(places[column] * by);
        }
    }
}
#endif
