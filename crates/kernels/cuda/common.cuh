// What the kernels share: types of elements, shapes, and indices.
#pragma once

typedef unsigned char u8;
typedef unsigned short u16;
typedef unsigned int u32;
typedef unsigned long long u64;
typedef long long i64;

// Sixteen bytes that are moved at once.
struct __align__(16) Bytes16 {
    u64 low, high;
};

// Extents and strides, in elements. Those beyond the rank are 1 and 0.
struct Shape {
    u64 extents[8];
    i64 strides[8];
};

// Offset of an element, by its number in row-major order, of the first N dimensions.
template <int N, typename Index>
__device__ __forceinline__ i64 offset_of(const Shape& shape, Index at) {
    i64 offset = 0;
#pragma unroll
    for (int d = N - 1; d > 0; d--) {
        const Index extent = (Index)shape.extents[d];
        const Index rest = at / extent;
        offset += (i64)(at - rest * extent) * shape.strides[d];
        at = rest;
    }
    return offset + (i64)at * shape.strides[0];
}

// Offsets of one element in two shapes of the same extents.
template <int N, typename Index>
__device__ __forceinline__ void offsets_of(const Shape& a, const Shape& b, Index at, i64& in_a,
                                           i64& in_b) {
    in_a = 0;
    in_b = 0;
#pragma unroll
    for (int d = N - 1; d > 0; d--) {
        const Index extent = (Index)a.extents[d];
        const Index rest = at / extent;
        const i64 own = (i64)(at - rest * extent);
        in_a += own * a.strides[d];
        in_b += own * b.strides[d];
        at = rest;
    }
    in_a += (i64)at * a.strides[0];
    in_b += (i64)at * b.strides[0];
}

// Floats narrower than f32, and bool, in memory. They are computed as f32 and as 0 or 1.
struct Half {
    u16 bits;
};
struct Bfloat {
    u16 bits;
};
struct Float8e4m3 {
    u8 bits;
};
struct Float8e5m2 {
    u8 bits;
};
struct Bool {
    u8 bits;
};

__device__ __forceinline__ float as_float(u32 bits) { return __uint_as_float(bits); }

__device__ __forceinline__ float half_value(u16 bits) {
    float value;
    asm("cvt.f32.f16 %0, %1;" : "=f"(value) : "h"(bits));
    return value;
}

__device__ __forceinline__ u16 half_bits(float value) {
    u16 bits;
    asm("cvt.rn.f16.f32 %0, %1;" : "=h"(bits) : "f"(value));
    return bits;
}

// An element's value as it is computed.
template <typename T>
struct Computed {
    typedef T type;
    static __device__ __forceinline__ T load(T value) { return value; }
    static __device__ __forceinline__ T store(T value) { return value; }
};

template <>
struct Computed<Half> {
    typedef float type;
    static __device__ __forceinline__ float load(Half x) { return half_value(x.bits); }
    static __device__ __forceinline__ Half store(float x) { return Half{half_bits(x)}; }
};

template <>
struct Computed<Bfloat> {
    typedef float type;
    static __device__ __forceinline__ float load(Bfloat x) {
        return as_float((u32)x.bits << 16);
    }
    static __device__ __forceinline__ Bfloat store(float x) {
        const u32 bits = __float_as_uint(x);
        if (x != x) return Bfloat{(u16)0x7fff};
        return Bfloat{(u16)((bits + 0x7fff + ((bits >> 16) & 1)) >> 16)};
    }
};

// The nearest value with so many bits of exponent and fraction, even at half, saturating.
template <int FRACTION, int LEAST_EXPONENT>
__device__ __forceinline__ u32 narrow_magnitude(float magnitude) {
    // The spacing of values there; below the least exponent it stays.
    int exponent = (int)(__float_as_uint(magnitude) >> 23) - 127;
    if (exponent < LEAST_EXPONENT) exponent = LEAST_EXPONENT;
    const float scale = as_float((u32)(127 - exponent + FRACTION) << 23);
    const u32 units = (u32)__float2int_rn(magnitude * scale);
    // A carry out of the fraction is one in the exponent.
    return ((u32)(exponent - LEAST_EXPONENT) << FRACTION) + units;
}

template <>
struct Computed<Float8e4m3> {
    typedef float type;
    static __device__ __forceinline__ float load(Float8e4m3 x) {
        const u32 magnitude = x.bits & 0x7f;
        const u32 sign = (u32)(x.bits & 0x80) << 24;
        if (magnitude == 0x7f) return as_float(0x7fc00000);
        const u32 exponent = magnitude >> 3;
        const float value = exponent == 0 ? (float)magnitude * 0.001953125f
                                          : as_float(((exponent + 120) << 23) | ((magnitude & 7) << 20));
        return as_float(__float_as_uint(value) | sign);
    }
    static __device__ __forceinline__ Float8e4m3 store(float x) {
        const u8 sign = (u8)((__float_as_uint(x) >> 24) & 0x80);
        if (x != x) return Float8e4m3{(u8)(sign | 0x7f)};
        const float magnitude = fabsf(x);
        if (magnitude >= 448.0f) return Float8e4m3{(u8)(sign | 0x7e)};
        return Float8e4m3{(u8)(sign | narrow_magnitude<3, -6>(magnitude))};
    }
};

template <>
struct Computed<Float8e5m2> {
    typedef float type;
    static __device__ __forceinline__ float load(Float8e5m2 x) {
        return half_value((u16)(x.bits << 8));
    }
    static __device__ __forceinline__ Float8e5m2 store(float x) {
        const u8 sign = (u8)((__float_as_uint(x) >> 24) & 0x80);
        if (x != x) return Float8e5m2{(u8)(sign | 0x7f)};
        const float magnitude = fabsf(x);
        if (magnitude >= 57344.0f) return Float8e5m2{(u8)(sign | 0x7b)};
        return Float8e5m2{(u8)(sign | narrow_magnitude<2, -14>(magnitude))};
    }
};

template <>
struct Computed<Bool> {
    typedef u8 type;
    static __device__ __forceinline__ u8 load(Bool x) { return x.bits != 0; }
    static __device__ __forceinline__ Bool store(u8 x) { return Bool{(u8)(x != 0)}; }
};

__device__ __forceinline__ float root(float x) { return sqrtf(x); }
__device__ __forceinline__ double root(double x) { return sqrt(x); }
__device__ __forceinline__ float exponential(float x) { return expf(x); }
__device__ __forceinline__ double exponential(double x) { return exp(x); }
__device__ __forceinline__ float logarithm(float x) { return logf(x); }
__device__ __forceinline__ double logarithm(double x) { return log(x); }
