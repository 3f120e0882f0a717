// Quantisation: elements as small numbers by a scale, one for each group of elements.
#include "blocks.cuh"
#include "rows.cuh"

#define MOST_THREADS 256

__device__ __forceinline__ u32 bits_of(float x) { return __float_as_uint(x); }
__device__ __forceinline__ u64 bits_of(double x) { return (u64)__double_as_longlong(x); }
__device__ __forceinline__ float value_of(u32 bits) { return __uint_as_float(bits); }
__device__ __forceinline__ double value_of(u64 bits) { return __longlong_as_double((i64)bits); }
__device__ __forceinline__ float rounded(float x) { return rintf(x); }
__device__ __forceinline__ double rounded(double x) { return rint(x); }

#ifdef RANGES
// ELEMENT is the operand's type. A range is the largest value above 0 and below 0, as bits, which
// have the order of their values; NaN is the largest.
typedef Computed<ELEMENT> As;
typedef As::type Real;

#ifdef KERNEL_group_ranges
// A group is a row of as many elements as `inner`. Each block goes over a part of one.
extern "C" __global__ void group_ranges(BITS* __restrict__ ranges, const ELEMENT* __restrict__ x,
                                        const Shape x_shape, u64 groups, u64 inner, u64 parts) {
    __shared__ Real places[MOST_THREADS];
    const u64 step = parts * blockDim.x;
    for (u64 number = blockIdx.x; number < groups * parts; number += gridDim.x) {
        const u64 group = number / parts, part = number % parts;
        Real above = 0, below = 0;
        for (u64 k = part * blockDim.x + threadIdx.x; k < inner; k += step) {
            const Real value = As::load(x[element_offset(x_shape, group * inner + k)]);
            above = MostOf<Real>::combine(above, value);
            below = MostOf<Real>::combine(below, -value);
        }
        above = reduce_block<MostOf<Real>>(above, places);
        below = reduce_block<MostOf<Real>>(below, places);
        if (threadIdx.x == 0) {
            atomicMax(&ranges[2 * group], bits_of(above) & (BITS)~SIGN_BIT);
            atomicMax(&ranges[2 * group + 1], bits_of(below) & (BITS)~SIGN_BIT);
        }
    }
}
#endif

#ifdef KERNEL_group_scales
// Scales, and for asymmetric numbers the number that stands for 0.
extern "C" __global__ void group_scales(Real* __restrict__ scales, const Shape scales_shape,
                                        int* __restrict__ zeros, const Shape zeros_shape,
                                        const BITS* __restrict__ ranges, double low, double high,
                                        double least, u64 groups) {
    EACH_ELEMENT(group, groups) {
        const Real above = value_of(ranges[2 * group]), below = value_of(ranges[2 * group + 1]);
        Real scale = zeros == nullptr ? MostOf<Real>::combine(above, below) / (Real)high
                                      : above / (Real)(high - low) + below / (Real)(high - low);
        if (scale < (Real)least) scale = (Real)least;
        scales[element_offset(scales_shape, group)] = scale;
        if (zeros == nullptr) continue;
        Real zero = (Real)low + rounded(below / scale);
        // NaN of what is infinite.
        zero = zero > (Real)high ? (Real)high : zero >= (Real)low ? zero : (Real)low;
        zeros[element_offset(zeros_shape, group)] = (int)zero;
    }
}
#endif
#endif

#ifdef TO
// x / scale + zero, rounded and not outside of the range; NaN is 0. Floats saturate.
typedef Computed<FROM> As;
typedef As::type Real;

#ifdef KERNEL_quantise
extern "C" __global__ void quantise(TO* __restrict__ to, const Shape to_shape,
                                    const FROM* __restrict__ x, const Shape x_shape,
                                    const Real* __restrict__ scales, const Shape scales_shape,
                                    const ZERO* __restrict__ zeros, const Shape zeros_shape,
                                    double low, double high, u64 count) {
    const Shape* const shapes[4] = {&to_shape, &x_shape, &scales_shape, &zeros_shape};
    EACH_ELEMENT(at, count) {
        i64 places[4];
        all_offsets<DIMS>(shapes, at, places);
        const Real value = As::load(x[places[1]]) / scales[places[2]];
#if IS_FLOAT
        to[places[0]] = Computed<TO>::store((float)value);
#else
        Real number = rounded(value);
        if (zeros != nullptr) number += (Real)zeros[places[3]];
        number = number < (Real)low ? (Real)low : number > (Real)high ? (Real)high : number;
        to[places[0]] = (TO)(number == number ? (int)number : 0);
#endif
    }
}
#endif
#endif

#ifdef DEQUANTISED
typedef SCALE Real;

#ifdef KERNEL_dequantise
extern "C" __global__ void dequantise(DEQUANTISED* __restrict__ to, const Shape to_shape,
                                      const FROM* __restrict__ x, const Shape x_shape,
                                      const Real* __restrict__ scales, const Shape scales_shape,
                                      const ZERO* __restrict__ zeros, const Shape zeros_shape,
                                      u64 count) {
    const Shape* const shapes[4] = {&to_shape, &x_shape, &scales_shape, &zeros_shape};
    EACH_ELEMENT(at, count) {
        i64 places[4];
        all_offsets<DIMS>(shapes, at, places);
        Real value = (Real)Computed<FROM>::load(x[places[1]]);
        if (zeros != nullptr) value -= (Real)zeros[places[3]];
        to[places[0]] = Computed<DEQUANTISED>::store(
            (Computed<DEQUANTISED>::type)(value * scales[places[2]]));
    }
}
#endif
#endif

#ifdef NIBBLES
#ifdef KERNEL_pack
// Two numbers of 4 bits in a byte along the last dimension, the first in the low bits.
extern "C" __global__ void pack(u8* __restrict__ to, const Shape to_shape,
                                const NIBBLES* __restrict__ x, const Shape x_shape, u64 length,
                                u64 packed, u64 count) {
    EACH_ELEMENT(at, count) {
        const u64 row = at / packed, place = at % packed * 2;
        u8 both = (u8)x[element_offset(x_shape, row * length + place)] & 15;
        if (place + 1 < length) {
            both |= (u8)((u8)x[element_offset(x_shape, row * length + place + 1)] << 4);
        }
        to[element_offset(to_shape, at)] = both;
    }
}
#endif
#endif

#ifdef UNPACKED
#ifdef KERNEL_unpack
extern "C" __global__ void unpack(UNPACKED* __restrict__ to, const Shape to_shape,
                                  const PACKED* __restrict__ x, const Shape x_shape, u64 count) {
    EACH_ELEMENT(at, count) {
        // Rows are twice as long.
        const int both = (int)(u8)x[element_offset(x_shape, at / 2)];
        const int half = at % 2 == 0 ? both & 15 : both >> 4;
        to[element_offset(to_shape, at)] = (UNPACKED)(IS_SIGNED && half > 7 ? half - 16 : half);
    }
}
#endif
#endif

#ifdef HISTORY
// The history of largest magnitudes with a new one before the others, and the scale that follows.
// A thread goes over one history, from its end, so it may be where it was.
typedef Computed<HISTORY> As;
typedef As::type Real;

#ifdef KERNEL_next_scales
extern "C" __global__ void next_scales(HISTORY* to, const Shape to_shape, HISTORY* scales_to,
                                       const Shape scales_to_shape, const HISTORY* history,
                                       const Shape history_shape, const HISTORY* latest,
                                       const Shape latest_shape, const HISTORY* scales,
                                       const Shape scales_shape, double factor, u64 uses_latest,
                                       u64 length, u64 count) {
    EACH_ELEMENT(at, count) {
        const HISTORY newest = latest[element_offset(latest_shape, at)];
        Real most = As::load(newest);
        const i64 from = row_offset(history_shape, at), target = row_offset(to_shape, at);
        for (u64 k = length; k-- > 0;) {
            const HISTORY own =
                k > 0 ? history[from + (i64)(k - 1) * history_shape.strides[0]] : newest;
            to[target + (i64)k * to_shape.strides[0]] = own;
            if (!uses_latest) most = MostOf<Real>::combine(most, As::load(own));
        }
        const HISTORY before = scales[element_offset(scales_shape, at)];
        // Of 0, an infinity and NaN no scale follows.
        const bool follows = most > 0 && most - most == 0;
        scales_to[element_offset(scales_to_shape, at)] =
            follows ? As::store(most * (Real)factor) : before;
    }
}
#endif
#endif
