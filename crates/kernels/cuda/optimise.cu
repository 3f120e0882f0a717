// Updates of parameters by their gradients. ELEMENT is the type of parameters and gradients, Real
// that of state and of the learning rate. With IS_DENSE the elements of all views are neighbours in
// order; else their offsets are computed. A thread reads an element before it writes the same one,
// so results may be where operands are.
#include "blocks.cuh"
#include "rows.cuh"

typedef Computed<ELEMENT> As;
typedef As::type Real;

#define SGD 0
#define MOMENTUM 1
#define ADAM 2
#define ADAM_DECOUPLED 3
#define LION 4
#define LAMB 5

#if IS_DENSE
#define AT(shape) ((i64)at)
#else
#define AT(shape) element_offset(shape, at)
#endif

#define THREADS 256

// Sums of two values of all threads to a place of this block.
__device__ __forceinline__ void store_sums(Real first, Real second, Real* sums, Real* places) {
    first = reduce_block<AddOf<Real>>(first, places);
    second = reduce_block<AddOf<Real>>(second, places);
    if (threadIdx.x == 0) {
        sums[2 * (u64)blockIdx.x] = first;
        sums[2 * (u64)blockIdx.x + 1] = second;
    }
}

#ifdef UPDATE
// What a step computes with.
struct Step {
    Real rate, beta1, beta2, rest1, rest2, eps, decay, fed, by1, by2;
    bool is_nesterov;
};

__device__ __forceinline__ Step step_of(const Real* rate, const STEP* number, double beta1,
                                        double beta2, double eps, double decay, double dampening,
                                        u64 is_nesterov) {
    Step step{*rate,          (Real)beta1, (Real)beta2,          (Real)(1 - beta1),
              (Real)(1 - beta2), (Real)eps,   (Real)decay, (Real)(1 - dampening),
              (Real)1,        (Real)1,     is_nesterov != 0};
    if (UPDATE == ADAM || UPDATE == ADAM_DECOUPLED || UPDATE == LAMB) {
        const double count = (double)*number;
        step.by1 = (Real)(1 - pow(beta1, count));
        step.by2 = (Real)(1 - pow(beta2, count));
    }
    return step;
}

// An element's change without the rate; its state is replaced.
__device__ __forceinline__ Real change_of(const Step& step, Real own, Real g, Real& first,
                                          Real& second) {
    if (UPDATE == SGD || UPDATE == MOMENTUM || UPDATE == ADAM) g = g + step.decay * own;
    if (UPDATE == SGD) return g;
    if (UPDATE == MOMENTUM) {
        first = step.beta1 * first + step.fed * g;
        return step.is_nesterov ? g + step.beta1 * first : first;
    }
    const Real mixed = step.beta1 * first + step.rest1 * g;
    if (UPDATE == LION) {
        first = step.beta2 * first + step.rest2 * g;
        return mixed > 0 ? (Real)1 : mixed < 0 ? (Real)-1 : mixed;
    }
    first = mixed;
    second = step.beta2 * second + step.rest2 * (g * g);
    return (first / step.by1) / (root(second / step.by2) + step.eps);
}

// An element less its change.
__device__ __forceinline__ Real changed(const Step& step, Real own, Real by) {
    Real kept = own;
    if (UPDATE == ADAM_DECOUPLED || UPDATE == LION) {
        kept = own * ((Real)1 - step.rate * step.decay);
    }
    return kept - step.rate * by;
}

#define HAS_FIRST (UPDATE != SGD)
#define HAS_SECOND (UPDATE == ADAM || UPDATE == ADAM_DECOUPLED || UPDATE == LAMB)

#ifdef MANY
// A tensor with elements that are neighbours in order in all of its views.
#define TENSOR(k)                                                                         \
    ELEMENT *to##k, Real *first_to##k, Real *second_to##k, const ELEMENT *x##k,           \
        const ELEMENT *gradient##k, const Real *first##k, const Real *second##k, u64 count##k
#define TAKE(k)                                                                           \
    case k:                                                                               \
        to = to##k, first_to = first_to##k, second_to = second_to##k, x = x##k;           \
        gradient = gradient##k, first = first##k, second = second##k, count = count##k;   \
        break;

#ifdef KERNEL_update_many
// One step of up to eight tensors, which the second dimension of the grid numbers.
extern "C" __global__ void update_many(TENSOR(0), TENSOR(1), TENSOR(2), TENSOR(3), TENSOR(4),
                                       TENSOR(5), TENSOR(6), TENSOR(7), const Real* rate,
                                       const STEP* number, double beta1, double beta2, double eps,
                                       double decay, double dampening, u64 is_nesterov) {
    ELEMENT* to = nullptr;
    Real *first_to = nullptr, *second_to = nullptr;
    const ELEMENT *x = nullptr, *gradient = nullptr;
    const Real *first = nullptr, *second = nullptr;
    u64 count = 0;
    switch (blockIdx.y) {
        TAKE(0) TAKE(1) TAKE(2) TAKE(3) TAKE(4) TAKE(5) TAKE(6) TAKE(7)
    }
    const Step step =
        step_of(rate, number, beta1, beta2, eps, decay, dampening, is_nesterov);
    EACH_ELEMENT(at, count) {
        const Real own = As::load(x[at]);
        Real of_first = HAS_FIRST ? first[at] : (Real)0;
        Real of_second = HAS_SECOND ? second[at] : (Real)0;
        const Real by = change_of(step, own, As::load(gradient[at]), of_first, of_second);
        if (HAS_FIRST) first_to[at] = of_first;
        if (HAS_SECOND) second_to[at] = of_second;
        to[at] = As::store(changed(step, own, by));
    }
}
#endif
#else
#ifdef KERNEL_update
// One step. LAMB writes the change that is to be scaled to `change`, and sums of squares of the
// parameters and of it.
extern "C" __global__ void update(ELEMENT* to, const Shape to_shape, Real* first_to,
                                  const Shape first_to_shape, Real* second_to,
                                  const Shape second_to_shape, const ELEMENT* x,
                                  const Shape x_shape, const ELEMENT* gradient,
                                  const Shape gradient_shape, const Real* first,
                                  const Shape first_shape, const Real* second,
                                  const Shape second_shape, const Real* rate_at,
                                  const STEP* step_at, Real* change, Real* sums, double beta1,
                                  double beta2, double eps, double decay, double dampening,
                                  u64 is_nesterov, u64 count) {
    const Step step =
        step_of(rate_at, step_at, beta1, beta2, eps, decay, dampening, is_nesterov);
    Real squares = 0, changes = 0;
    EACH_ELEMENT(at, count) {
        const Real own = As::load(x[AT(x_shape)]);
        Real of_first = HAS_FIRST ? first[AT(first_shape)] : (Real)0;
        Real of_second = HAS_SECOND ? second[AT(second_shape)] : (Real)0;
        Real by = change_of(step, own, As::load(gradient[AT(gradient_shape)]), of_first, of_second);
        if (HAS_FIRST) first_to[AT(first_to_shape)] = of_first;
        if (HAS_SECOND) second_to[AT(second_to_shape)] = of_second;
        if (UPDATE == LAMB) {
            by = by + step.decay * own;
            change[at] = by;
            squares += own * own;
            changes += by * by;
            continue;
        }
        to[AT(to_shape)] = As::store(changed(step, own, by));
    }
    if (UPDATE == LAMB) {
        __shared__ Real places[THREADS];
        store_sums(squares, changes, sums, places);
    }
}
#endif
#endif
#endif

#ifdef CHANGE
#ifdef KERNEL_trust_ratio
// The ratio of the norms of parameters and change, of the sums of blocks. One block.
extern "C" __global__ void trust_ratio(Real* __restrict__ ratio, const Real* __restrict__ sums,
                                       u64 blocks) {
    __shared__ Real places[THREADS];
    Real squares = 0, changes = 0;
    EACH_OF_BLOCK(block, blocks) {
        squares += sums[2 * block];
        changes += sums[2 * block + 1];
    }
    squares = reduce_block<AddOf<Real>>(squares, places);
    changes = reduce_block<AddOf<Real>>(changes, places);
    if (threadIdx.x == 0) {
        *ratio = squares > 0 && changes > 0 ? root(squares) / root(changes) : (Real)1;
    }
}
#endif

#ifdef KERNEL_change_scaled
extern "C" __global__ void change_scaled(ELEMENT* to, const Shape to_shape, const ELEMENT* x,
                                         const Shape x_shape, const Real* change, const Real* ratio,
                                         const Real* rate, u64 count) {
    const Real by = *rate * *ratio;
    EACH_ELEMENT(at, count) {
        to[AT(to_shape)] = As::store(As::load(x[AT(x_shape)]) - by * change[at]);
    }
}
#endif
#endif

#ifdef FACTORS
// Share of the earlier mean, of the number of the step.
__device__ __forceinline__ double earlier_share(const STEP* step, double power) {
    return 1 - pow((double)*step, -power);
}

#ifdef KERNEL_mean_squares
// Means of squares of rows, and of what was there before. A block computes a row at a time.
extern "C" __global__ void mean_squares(Real* to, const Shape to_shape, const Real* before,
                                        const Shape before_shape,
                                        const ELEMENT* __restrict__ gradient,
                                        const Shape gradient_shape, const STEP* __restrict__ step,
                                        double power, double least, u64 rows, u64 columns) {
    __shared__ Real places[THREADS];
    const double share = earlier_share(step, power);
    for (u64 row = blockIdx.x; row < rows; row += gridDim.x) {
        Real sum = 0;
        EACH_OF_BLOCK(column, columns) {
            const Real g = As::load(gradient[(i64)row * gradient_shape.strides[0] +
                                             (i64)column * gradient_shape.strides[1]]);
            sum += g * g + (Real)least;
        }
        sum = reduce_block<AddOf<Real>>(sum, places);
        if (threadIdx.x == 0) {
            to[(i64)row * to_shape.strides[0]] =
                (Real)share * before[(i64)row * before_shape.strides[0]] +
                (Real)(1 - share) * (sum / (Real)columns);
        }
    }
}
#endif

#ifdef KERNEL_mean_of
// One block.
extern "C" __global__ void mean_of(Real* __restrict__ to, const Real* __restrict__ from,
                                   const Shape from_shape, u64 count) {
    __shared__ Real places[THREADS];
    Real sum = 0;
    EACH_OF_BLOCK(at, count) sum += from[(i64)at * from_shape.strides[0]];
    sum = reduce_block<AddOf<Real>>(sum, places);
    if (threadIdx.x == 0) *to = sum / (Real)count;
}
#endif

struct Factors {
    const Real* rows;
    i64 row_stride;
    const Real* columns;
    i64 column_stride;
    const Real* mean;
    u64 width;
    __device__ __forceinline__ Real change(Real gradient, u64 at) const {
        const Real square = rows[(i64)(at / width) * row_stride] / *mean *
                            columns[(i64)(at % width) * column_stride];
        return gradient / root(square);
    }
};

#ifdef KERNEL_factored_sums
// Sums of squares of parameters and of their change.
extern "C" __global__ void factored_sums(Real* __restrict__ sums, const ELEMENT* __restrict__ x,
                                         const Shape x_shape,
                                         const ELEMENT* __restrict__ gradient,
                                         const Shape gradient_shape, const Real* __restrict__ rows,
                                         const Shape rows_shape, const Real* __restrict__ columns,
                                         const Shape columns_shape, const Real* __restrict__ mean,
                                         u64 width, u64 count) {
    __shared__ Real places[THREADS];
    const Factors factors{rows, rows_shape.strides[0], columns, columns_shape.strides[0], mean,
                          width};
    Real squares = 0, changes = 0;
    EACH_ELEMENT(at, count) {
        const Real own = As::load(x[AT(x_shape)]);
        const Real change = factors.change(As::load(gradient[AT(gradient_shape)]), at);
        squares += own * own;
        changes += change * change;
    }
    store_sums(squares, changes, sums, places);
}
#endif

#ifdef KERNEL_factored_size
// The step's size, of the sums of blocks. One block.
extern "C" __global__ void factored_size(Real* __restrict__ size, const Real* __restrict__ sums,
                                         const Real* __restrict__ rate, double least,
                                         double threshold, u64 blocks, u64 count) {
    __shared__ Real places[THREADS];
    Real squares = 0, changes = 0;
    EACH_OF_BLOCK(block, blocks) {
        squares += sums[2 * block];
        changes += sums[2 * block + 1];
    }
    squares = root(reduce_block<AddOf<Real>>(squares, places) / (Real)count);
    changes = root(reduce_block<AddOf<Real>>(changes, places) / (Real)count);
    if (threadIdx.x == 0) {
        const Real over = changes / (Real)threshold;
        *size = *rate * (squares > (Real)least ? squares : (Real)least) /
                (over > 1 ? over : (Real)1);
    }
}
#endif

#ifdef KERNEL_factored_update
extern "C" __global__ void factored_update(ELEMENT* to, const Shape to_shape, const ELEMENT* x,
                                           const Shape x_shape, const ELEMENT* gradient,
                                           const Shape gradient_shape,
                                           const Real* __restrict__ rows, const Shape rows_shape,
                                           const Real* __restrict__ columns,
                                           const Shape columns_shape,
                                           const Real* __restrict__ mean,
                                           const Real* __restrict__ size,
                                           const Real* __restrict__ rate, double decay, u64 width,
                                           u64 count) {
    const Factors factors{rows, rows_shape.strides[0], columns, columns_shape.strides[0], mean,
                          width};
    const Real kept = (Real)1 - *rate * (Real)decay;
    EACH_ELEMENT(at, count) {
        const Real change = factors.change(As::load(gradient[AT(gradient_shape)]), at);
        to[AT(to_shape)] = As::store(kept * As::load(x[AT(x_shape)]) - *size * change);
    }
}
#endif
#endif

#ifdef NORM
#ifdef KERNEL_sum_squares
// The sum of squares of a part, by each block.
extern "C" __global__ void sum_squares(Real* __restrict__ sums, const ELEMENT* __restrict__ x,
                                       const Shape x_shape, u64 first, u64 count) {
    __shared__ Real places[THREADS];
    Real sum = 0;
    EACH_ELEMENT(at, count) {
        const Real own = As::load(x[AT(x_shape)]);
        sum += own * own;
    }
    sum = reduce_block<AddOf<Real>>(sum, places);
    if (threadIdx.x == 0) sums[first + blockIdx.x] = sum;
}
#endif

#ifdef KERNEL_norm_of
// The root of the sum of sums. One block.
extern "C" __global__ void norm_of(Real* __restrict__ to, const Real* __restrict__ sums, u64 count) {
    __shared__ Real places[THREADS];
    Real sum = 0;
    EACH_OF_BLOCK(at, count) sum += sums[at];
    sum = reduce_block<AddOf<Real>>(sum, places);
    if (threadIdx.x == 0) *to = root(sum);
}
#endif

#ifdef KERNEL_clip_norm
extern "C" __global__ void clip_norm(ELEMENT* to, const Shape to_shape, const ELEMENT* x,
                                     const Shape x_shape, const Real* norm, double most, double eps,
                                     u64 count) {
    const Real by = (Real)most / (*norm + (Real)eps);
    EACH_ELEMENT(at, count) {
        const Real own = As::load(x[AT(x_shape)]);
        // A norm that is NaN is seen in the result.
        to[AT(to_shape)] = As::store(by >= 1 ? own : own * by);
    }
}
#endif

#ifdef KERNEL_unscale
// Divides by the scale. `found` is 1 if an element is infinite or NaN.
extern "C" __global__ void unscale(ELEMENT* to, const Shape to_shape, Bool* found, const ELEMENT* x,
                                   const Shape x_shape, const Real* scale, u64 count) {
    const Real by = (Real)1 / *scale;
    bool is_found = false;
    EACH_ELEMENT(at, count) {
        const Real own = As::load(x[AT(x_shape)]);
        is_found = is_found || !(own - own == 0);
        to[AT(to_shape)] = As::store(own * by);
    }
    if (is_found) {
        asm volatile("st.relaxed.gpu.global.u8 [%0], %1;" ::"l"(found), "r"(1u) : "memory");
    }
}
#endif

#ifdef KERNEL_next_scale
// The scale of the next step: smaller after one that was not finite, larger after `interval` that
// were. One thread.
extern "C" __global__ void next_scale(Real* scale_to, STEP* streak_to, const Real* scale,
                                      const STEP* streak, const Bool* found, double growth,
                                      double backoff, u64 interval) {
    if (threadIdx.x != 0 || blockIdx.x != 0) return;
    const Real own = *scale;
    const i64 before = (i64)*streak;
    if (found->bits != 0) {
        *scale_to = own * (Real)backoff;
        *streak_to = (STEP)0;
        return;
    }
    const bool grows = before + 1 >= (i64)interval;
    const Real larger = own * (Real)growth;
    *scale_to = grows && larger - larger == 0 ? larger : own;
    *streak_to = grows ? (STEP)0 : (STEP)(before + 1);
}
#endif
#endif
