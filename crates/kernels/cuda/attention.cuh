// What forms of attention have in common, and the angles of rotary positions.
#pragma once
#include "common.cuh"

// The offset of no key and no value.
#define NO_ROW ((i64)(1ull << 63))
// What a split has: the sum of values by their weights, then the largest score and the weights' sum.
#define PART (VALUE_LENGTH + 2)

__device__ __forceinline__ void sine_cosine(float x, float* sine, float* cosine) {
    sincosf(x, sine, cosine);
}
__device__ __forceinline__ void sine_cosine(double x, double* sine, double* cosine) {
    sincos(x, sine, cosine);
}

// How much a head's score grows with the distance of a key, which is not above 0 ("Train Short, Test
// Long", Press and others, 2021): powers of 2, in steps of bias / heads for as many heads as are a
// power of two, and those between them for others.
template <typename Real>
__device__ __forceinline__ Real slope(double bias, u64 biased, u64 head) {
    const double at = head < biased ? (double)(head + 1) : (double)(head - biased) + 0.5;
    return (Real)exp2(-bias * at / (double)biased);
}

// The pair of an element of a head, and the pair's other element.
struct PairPlace {
    u32 pair, other;
    bool is_second;
};

template <bool ADJACENT>
__device__ __forceinline__ PairPlace pair_place(u32 d, u32 pairs) {
    if (ADJACENT) return PairPlace{d / 2, d ^ 1, d % 2 == 1};
    const bool is_second = d >= pairs;
    return PairPlace{is_second ? d - pairs : d, is_second ? d - pairs : d + pairs, is_second};
}

// An element of a head turned by its position; elements behind the pairs are as they are.
template <bool ADJACENT, typename Real>
__device__ __forceinline__ Real turned(const Real* own, u32 d, u32 pairs, Real at,
                                       const float* frequency, i64 frequency_stride,
                                       Real magnitude) {
    if (d >= 2 * pairs) return own[d];
    const PairPlace place = pair_place<ADJACENT>(d, pairs);
    Real sine, cosine;
    sine_cosine(at * (Real)frequency[(i64)place.pair * frequency_stride], &sine, &cosine);
    sine *= magnitude;
    cosine *= magnitude;
    return place.is_second ? own[place.other] * sine + own[d] * cosine
                           : own[d] * cosine - own[place.other] * sine;
}
