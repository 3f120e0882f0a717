// A causal convolution of each channel alone, whose window goes on from token to token. TAPS is its
// length; the state of a channel is what the window had before.
#include "runs.cuh"

#define CHUNK 32

// What the window has so many tokens behind the beginning of a run: an earlier state, or x.
__device__ __forceinline__ Real input_at(const ELEMENT* x, i64 x_step, const Real (&before)[TAPS],
                                         u64 at) {
    if (at >= TAPS - 1) return As::load(x[(i64)(at - (TAPS - 1)) * x_step]);
    Real value = 0;
#pragma unroll
    for (u32 tap = 0; tap < TAPS; tap++) value = at == tap ? before[tap] : value;
    return value;
}

__device__ __forceinline__ void keep_window(KEPT* state, const Shape& shape, i64 slot, u64 channel,
                                            const ELEMENT* x, i64 x_step,
                                            const Real (&before)[TAPS], u64 tokens) {
    KEPT* to = state + slot * shape.strides[0] + (i64)channel * shape.strides[2];
#pragma unroll
    for (u32 tap = 0; tap + 1 < TAPS; tap++) {
        const Real value = input_at(x, x_step, before, tokens + tap);
        to[(i64)tap * shape.strides[1]] = Stored::store((Stored::type)value);
    }
}

// A thread has a channel of some tokens of a run. The first tokens' threads read the state, and
// write those that follow from it: later ones read x alone.
extern "C" __global__ void __launch_bounds__(128)
    causal_convolution(ELEMENT* y, const Shape y_shape, KEPT* state, const Shape state_shape,
                       const ELEMENT* __restrict__ x, const Shape x_shape,
                       const ELEMENT* __restrict__ weight, const Shape weight_shape,
                       const RUN* __restrict__ runs, const Shape runs_shape,
                       const ELEMENT* __restrict__ bias, i64 bias_stride) {
    const u64 channel = (u64)blockIdx.x * blockDim.x + threadIdx.x;
    const u64 tokens = x_shape.extents[0];
    if (channel >= x_shape.extents[1]) return;
    const Run run = run_of(runs, runs_shape, blockIdx.z, tokens, state_shape.extents[0]);
    const u64 first = (u64)blockIdx.y * CHUNK;
    const bool is_first = first == 0;
    const i64 x_step = x_shape.strides[0], y_step = y_shape.strides[0];
    const ELEMENT* own = x + (i64)channel * x_shape.strides[1];
    ELEMENT* to = y + (i64)channel * y_shape.strides[1];
    if (is_first) {
        const u64 until = blockIdx.z == 0 ? run.begin : 0;
        for (u64 token = 0; token < until; token++) to[(i64)token * y_step] = As::store((Real)0);
        for (u64 token = run.end; token < run.next; token++) {
            to[(i64)token * y_step] = As::store((Real)0);
        }
    }
    const u64 count = run.end - run.begin;
    if (first >= count) return;
    own += (i64)run.begin * x_step;
    to += (i64)run.begin * y_step;
    Real factor[TAPS], before[TAPS], window[TAPS];
#pragma unroll
    for (u32 tap = 0; tap < TAPS; tap++) {
        factor[tap] = As::load(weight[(i64)channel * weight_shape.strides[0] +
                                      (i64)tap * weight_shape.strides[1]]);
        before[tap] = 0;
        if (tap + 1 < TAPS && is_first && run.from >= 0) {
            before[tap] = (Real)Stored::load(state[run.from * state_shape.strides[0] +
                                                   (i64)tap * state_shape.strides[1] +
                                                   (i64)channel * state_shape.strides[2]]);
        }
        window[tap] = 0;
        if (tap + 1 < TAPS) window[tap] = input_at(own, x_step, before, first + tap);
    }
    const Real more = bias == nullptr ? (Real)0 : As::load(bias[(i64)channel * bias_stride]);
    const u64 last = first + CHUNK < count ? first + CHUNK : count;
    for (u64 token = first; token < last; token++) {
        window[TAPS - 1] = As::load(own[(i64)token * x_step]);
        Real sum = more;
#pragma unroll
        for (u32 tap = 0; tap < TAPS; tap++) sum += factor[tap] * window[tap];
#pragma unroll
        for (u32 tap = 0; tap + 1 < TAPS; tap++) window[tap] = window[tap + 1];
        to[(i64)token * y_step] = As::store(IS_SILU ? sum * sigmoid(sum) : sum);
    }
    if (!is_first) return;
    if (run.to >= 0) keep_window(state, state_shape, run.to, channel, own, x_step, before, count);
    if (run.kept >= 0) {
        keep_window(state, state_shape, run.kept, channel, own, x_step, before, run.mark);
    }
}
