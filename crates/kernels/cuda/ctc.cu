// Connectionist temporal classification (Graves and others, 2006): the negative logarithm of the
// probability of labels, summed over all their alignments with blanks between. A block goes over a
// sample, its threads over the states: labels with a blank before, between and behind them.
#include "blocks.cuh"
#include "checked.cuh"

typedef Computed<ELEMENT> As;
typedef As::type Real;

#define THREADS 256

#define NONE ((Real)as_float(0xff800000))

// ln of e^a + e^b + e^c.
__device__ __forceinline__ Real log_sum(Real a, Real b, Real c) {
    Real most = a > b || a != a ? a : b;
    most = most > c || most != most ? most : c;
    if (most == NONE) return most;
    return most + logarithm(exponential(a - most) + exponential(b - most) + exponential(c - most));
}

// `states` has twice as many places for each sample as there are states.
extern "C" __global__ void ctc_losses(ELEMENT* __restrict__ to, const Shape to_shape,
                                      Real* states, const ELEMENT* __restrict__ x,
                                      const Shape x_shape, const INDEX* __restrict__ labels,
                                      const Shape labels_shape, const LENGTH* __restrict__ lengths,
                                      const Shape lengths_shape,
                                      const LABEL_LENGTH* __restrict__ label_lengths,
                                      const Shape label_lengths_shape, u64 blank, u64 samples,
                                      u64* fault) {
    __shared__ u64 outside[THREADS];
    const u64 steps = x_shape.extents[0], classes = x_shape.extents[2];
    const u64 most_labels = labels_shape.extents[1], apart = 2 * most_labels + 1;
    for (u64 sample = blockIdx.x; sample < samples; sample += gridDim.x) {
        u64* const noted = threadIdx.x == 0 ? fault : nullptr;
        const i64 length = (i64)lengths[(i64)sample * lengths_shape.strides[0]];
        const i64 count = (i64)label_lengths[(i64)sample * label_lengths_shape.strides[0]];
        const bool fits = is_inside(length, steps + 1, sample, noted) &&
                          is_inside(count, most_labels + 1, sample, noted);
        const INDEX* own = labels + (i64)sample * labels_shape.strides[0];
        const i64 step = labels_shape.strides[1];
        u64 wrong = 0;
        if (fits) {
            EACH_OF_BLOCK(at, (u64)count) {
                const i64 label = (i64)own[(i64)at * step];
                wrong += is_inside(label, classes, sample * most_labels + at, fault) ? 0 : 1;
            }
        }
        wrong = reduce_block<AddOf<u64>>(wrong, outside);
        ELEMENT* const result = to + (i64)sample * to_shape.strides[0];
        if (!fits || wrong > 0) {
            if (threadIdx.x == 0) *result = As::store(0);
            continue;
        }
        const u64 number = 2 * (u64)count + 1;
        Real* before = states + 2 * sample * apart;
        Real* after = before + apart;
        for (u64 t = 0; t < (u64)length; t++) {
            const ELEMENT* row = x + (i64)t * x_shape.strides[0] + (i64)sample * x_shape.strides[1];
            EACH_OF_BLOCK(state, number) {
                const bool is_label = state % 2 == 1;
                const i64 label = is_label ? (i64)own[(i64)(state / 2) * step] : (i64)blank;
                Real value = NONE;
                if (t == 0) {
                    value = state < 2 ? (Real)0 : NONE;
                } else {
                    // Past a blank too, between labels that differ.
                    const bool jumps =
                        is_label && state > 1 && (i64)own[(i64)(state / 2 - 1) * step] != label;
                    value = log_sum(before[state], state > 0 ? before[state - 1] : NONE,
                                    jumps ? before[state - 2] : NONE);
                }
                // Labels are read again.
                if ((u64)label < classes) {
                    value += As::load(row[label * x_shape.strides[2]]);
                }
                after[state] = value;
            }
            __syncthreads();
            Real* const other = before;
            before = after;
            after = other;
        }
        if (threadIdx.x == 0) {
            Real last = number > 1 ? NONE : (Real)0;
            if (length > 0) {
                last = log_sum(before[number - 1], number > 1 ? before[number - 2] : NONE, NONE);
            }
            *result = As::store(-last);
        }
    }
}
