// Codes of 8 bits of activations, as llama.cpp's reference quantisers give them. A block with an
// element that is not finite has a scale that is NaN.
#pragma once
#include "rows.cuh"

#define EACH_LANE 0xffffffffu

// Half away from zero, as 8 bits. Beyond 32 bits, which the inverse of a tiny scale makes, it is 0.
__device__ __forceinline__ int rounded_code(float x) {
    return fabsf(x) < 2147483648.0f ? (int)(signed char)(int)roundf(x) : 0;
}

// The largest magnitude of a warp; NaN if there is one.
__device__ __forceinline__ float warp_magnitude(float own) {
    own = fabsf(own);
#pragma unroll
    for (u32 distance = 16; distance > 0; distance /= 2) {
        const float other = __shfl_xor_sync(EACH_LANE, own, distance);
        own = own != own || own > other ? own : other;
    }
    return own;
}

__device__ __forceinline__ int warp_sum(int own, u32 lanes) {
    for (u32 distance = lanes / 2; distance > 0; distance /= 2) {
        own += __shfl_xor_sync(EACH_LANE, own, distance);
    }
    return own;
}

// A block of 32 elements, one of each lane: its scale is the largest magnitude by 127.
struct Codes32 {
    int code, sum;
    // Before it is rounded to f16, and the f16 itself.
    float scale;
    u16 bits;

    __device__ __forceinline__ explicit Codes32(float x) {
        const float most = warp_magnitude(x);
        scale = __fdiv_rn(most, 127.0f);
        const float inverse = scale == 0 ? 0.0f : __fdiv_rn(1.0f, scale);
        if (!(most - most == 0)) scale = as_float(0x7fc00000);
        code = rounded_code(__fmul_rn(x, inverse));
        sum = warp_sum(code, 32);
        bits = half_bits(scale);
    }
};

// A block of 256 elements, eight of each lane: the first element of the largest magnitude is -127.
struct Codes256 {
    int codes[8];
    float scale;
    // Of 16 elements: those of this lane and its neighbour.
    int sum;

    __device__ __forceinline__ explicit Codes256(const float (&x)[8]) {
        float extreme = 0, most = 0;
        bool is_finite = true;
#pragma unroll
        for (int i = 0; i < 8; i++) {
            is_finite = is_finite && x[i] - x[i] == 0;
            if (fabsf(x[i]) > most) {
                extreme = x[i];
                most = fabsf(extreme);
            }
        }
        // Of equal ones that of the first lane.
#pragma unroll
        for (u32 distance = 1; distance < 32; distance *= 2) {
            const float other = __shfl_xor_sync(EACH_LANE, extreme, distance);
            const bool is_behind = (threadIdx.x & distance) != 0;
            const bool takes = is_behind ? fabsf(other) >= fabsf(extreme) : fabsf(other) > fabsf(extreme);
            extreme = takes ? other : extreme;
        }
        is_finite = __all_sync(EACH_LANE, is_finite);
        const float factor = extreme == 0 ? 0.0f : __fdiv_rn(-127.0f, extreme);
        scale = factor == 0 ? 0.0f : __fdiv_rn(1.0f, factor);
        if (!is_finite) scale = as_float(0x7fc00000);
        int own = 0;
#pragma unroll
        for (int i = 0; i < 8; i++) {
            // The nearest whole number, as the low bits of a sum.
            const float product = __fmul_rn(factor, x[i]);
            const u32 sum_bits = __float_as_uint(__fadd_rn(product, 12582912.0f));
            const int near = (int)(sum_bits & 0x007fffff) - 0x00400000;
            const int code = product - product == 0 ? near : 0;
            codes[i] = (int)(signed char)(code > 127 ? 127 : code);
            own += codes[i];
        }
        sum = warp_sum(own, 2);
    }
};
