// The gated delta rule, and a selective scan: states of heads that go from token to token. A column
// of a state, which is one element of the values by KEY_LENGTH elements of the keys, depends on no
// other one.
#include "runs.cuh"

__device__ __forceinline__ float log_of_more(float x) { return log1pf(x); }
__device__ __forceinline__ double log_of_more(double x) { return log1p(x); }

__device__ __forceinline__ Real softplus(Real x) {
    const Real magnitude = x < (Real)0 ? -x : x;
    return (x > (Real)0 ? x : (Real)0) + log_of_more(exponential(-magnitude));
}

// Threads that have a column of a state together, and elements of a thread.
#define LANES 8
#define EACH ((KEY_LENGTH + LANES - 1) / LANES)
#define THREADS 128
#define COLUMNS (THREADS / LANES)

__device__ __forceinline__ Real over_lanes(Real value) {
#pragma unroll
    for (int distance = LANES / 2; distance > 0; distance /= 2) {
        value += __shfl_xor_sync(0xffffffff, value, distance);
    }
    return value;
}

// The elements of a vector that a thread has; 0 behind its end.
__device__ __forceinline__ void load_part(Real (&to)[EACH], const ELEMENT* from, i64 step,
                                          u32 lane) {
#pragma unroll
    for (u32 at = 0; at < EACH; at++) {
        const u32 element = at * LANES + lane;
        to[at] = element < KEY_LENGTH ? As::load(from[(i64)element * step]) : (Real)0;
    }
}

__device__ __forceinline__ void load_state(Real (&to)[EACH], const KEPT* column, i64 step,
                                           u32 lane) {
#pragma unroll
    for (u32 at = 0; at < EACH; at++) {
        const u32 element = at * LANES + lane;
        to[at] = element < KEY_LENGTH ? (Real)Stored::load(column[(i64)element * step]) : (Real)0;
    }
}

__device__ __forceinline__ void store_state(const Real (&from)[EACH], KEPT* column, i64 step,
                                            u32 lane) {
#pragma unroll
    for (u32 at = 0; at < EACH; at++) {
        const u32 element = at * LANES + lane;
        if (element < KEY_LENGTH) {
            column[(i64)element * step] = Stored::store((Stored::type)from[at]);
        }
    }
}

__device__ __forceinline__ Real dot(const Real (&a)[EACH], const Real (&b)[EACH]) {
    // Four sums, as each waits for itself.
    Real sums[4] = {0, 0, 0, 0};
#pragma unroll
    for (u32 at = 0; at < EACH; at++) sums[at % 4] += a[at] * b[at];
    return over_lanes((sums[0] + sums[1]) + (sums[2] + sums[3]));
}

// What a thread reads of a token: its elements of two vectors, and numbers of the head. They are read
// while the token before is computed.
struct TokenPart {
    Real first[EACH], second[EACH];
    Real value, step, beta;
};

// Where the parts of a token's row begin, and the numbers of a head for all tokens.
struct TokenSource {
    const ELEMENT *x, *step, *beta;
    i64 row, element, step_row, beta_row;
    u64 first, second, value;

    __device__ __forceinline__ TokenPart load(u64 token, u32 lane) const {
        TokenPart part;
        const ELEMENT* own = x + (i64)token * row;
        load_part(part.first, own + (i64)first * element, element, lane);
        load_part(part.second, own + (i64)second * element, element, lane);
        part.value = As::load(own[(i64)value * element]);
        part.step = As::load(step[(i64)token * step_row]);
        part.beta = IS_DELTA ? As::load(beta[(i64)token * beta_row]) : (Real)0;
        return part;
    }
};

// A token of the gated delta rule: what the state has for the key goes towards the value by the
// rate beta.
__device__ __forceinline__ Real delta_token(Real (&state)[EACH], TokenPart& token, Real decay,
                                            Real eps) {
    const Real (&query)[EACH] = token.first;
    Real (&key)[EACH] = token.second;
    const Real by_query = (Real)1 / root((dot(query, query) + eps) * (Real)KEY_LENGTH);
    const Real by_key = (Real)1 / root(dot(key, key) + eps);
#pragma unroll
    for (u32 at = 0; at < EACH; at++) {
        key[at] *= by_key;
        state[at] *= decay;
    }
    const Real change = (token.value - dot(state, key)) * sigmoid(token.beta);
#pragma unroll
    for (u32 at = 0; at < EACH; at++) state[at] += key[at] * change;
    return dot(state, query) * by_query;
}

// A token of a selective scan: the state falls by decay, and gets the input by the vector that says
// what is written.
__device__ __forceinline__ Real scan_token(Real (&state)[EACH], const TokenPart& token, Real decay,
                                           Real input) {
#pragma unroll
    for (u32 at = 0; at < EACH; at++) state[at] = state[at] * decay + token.first[at] * input;
    return dot(state, token.second);
}

// Eight threads have a column of a head's state, through all tokens of a run. Each row of x has
// parts of `keys` heads and the values of all heads: queries, keys, values of the delta rule;
// values, what is written and what is read of a scan.
extern "C" __global__ void __launch_bounds__(THREADS)
    recurrence(ELEMENT* y, const Shape y_shape, KEPT* state, const Shape state_shape,
               const ELEMENT* __restrict__ x, const Shape x_shape,
               const ELEMENT* __restrict__ step_size, const Shape step_shape,
               const ELEMENT* __restrict__ beta, const Shape beta_shape,
               const ELEMENT* __restrict__ rate, i64 rate_stride,
               const ELEMENT* __restrict__ bias, i64 bias_stride,
               const ELEMENT* __restrict__ skip, i64 skip_stride, const RUN* __restrict__ runs,
               const Shape runs_shape, u64 keys, u64 tiles, double least, double most) {
    const u32 lane = threadIdx.x % LANES;
    const u64 head = blockIdx.x / tiles, heads = y_shape.extents[1];
    const u64 column = (blockIdx.x - head * tiles) * COLUMNS + threadIdx.x / LANES;
    const u64 tokens = x_shape.extents[0];
    const bool has_column = column < VALUE_LENGTH;
    const Run run = run_of(runs, runs_shape, blockIdx.y, tokens, state_shape.extents[0]);
    ELEMENT* to = y + (i64)head * y_shape.strides[1] + (i64)column * y_shape.strides[2];
    if (has_column && lane == 0) {
        const u64 until = blockIdx.y == 0 ? run.begin : 0;
        for (u64 token = 0; token < until; token++) {
            to[(i64)token * y_shape.strides[0]] = As::store((Real)0);
        }
        for (u64 token = run.end; token < run.next; token++) {
            to[(i64)token * y_shape.strides[0]] = As::store((Real)0);
        }
    }
    if (run.begin >= run.end) return;
    const i64 state_step = state_shape.strides[3];
    KEPT* columns_of = state + (i64)head * state_shape.strides[1] +
                       (i64)column * state_shape.strides[2];
    Real own[EACH];
#pragma unroll
    for (u32 at = 0; at < EACH; at++) own[at] = 0;
    if (has_column && run.from >= 0) {
        load_state(own, columns_of + run.from * state_shape.strides[0], state_step, lane);
    }
    const u64 key = IS_TILED ? head % keys : head / (heads / keys);
    const u64 of_keys = keys * KEY_LENGTH, of_values = heads * VALUE_LENGTH;
    const u64 values_at = IS_DELTA ? 2 * of_keys : 0;
    const u64 keys_at = IS_DELTA ? 0 : of_values;
    TokenSource source;
    source.x = x;
    source.step = step_size + (i64)head * step_shape.strides[1];
    source.beta = beta + (i64)head * beta_shape.strides[1];
    source.row = x_shape.strides[0];
    source.element = x_shape.strides[1];
    source.step_row = step_shape.strides[0];
    source.beta_row = beta_shape.strides[0];
    source.first = keys_at + key * KEY_LENGTH;
    source.second = source.first + of_keys;
    source.value = values_at + head * VALUE_LENGTH + (has_column ? column : 0);
    const Real own_rate = As::load(rate[(i64)head * rate_stride]);
    const Real own_bias = As::load(bias[(i64)head * bias_stride]);
    const Real own_skip =
        skip == nullptr ? (Real)0 : As::load(skip[(i64)head * skip_stride]);
    TokenPart next = source.load(run.begin, lane);
    for (u64 token = run.begin; token < run.end; token++) {
        TokenPart part = next;
        if (token + 1 < run.end) next = source.load(token + 1, lane);
        Real size = softplus(part.step + own_bias);
        Real result;
        if (IS_DELTA) {
            result = delta_token(own, part, exponential(own_rate * size), (Real)least);
        } else {
            size = size < (Real)least ? (Real)least : size > (Real)most ? (Real)most : size;
            result = scan_token(own, part, exponential(own_rate * size), part.value * size) +
                     own_skip * part.value;
        }
        if (has_column && lane == 0) {
            to[(i64)token * y_shape.strides[0]] = As::store(result);
        }
        if (has_column && run.kept >= 0 && token + 1 == run.begin + run.mark) {
            store_state(own, columns_of + run.kept * state_shape.strides[0], state_step, lane);
        }
    }
    if (has_column && run.to >= 0) {
        store_state(own, columns_of + run.to * state_shape.strides[0], state_step, lane);
    }
}
