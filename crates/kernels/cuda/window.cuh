// Windows over operands of five dimensions: batch, channels, and three of space, some of extent 1.
#pragma once
#include "common.cuh"

// Extents and steps of a window, along the three dimensions of space.
struct Window {
    u64 kernel[3], dilation[3], unused[2];
    i64 stride[3], padding[3], unused_too[2];
};

struct Place {
    u64 batch, channel, at[3];
};

__device__ __forceinline__ Place place_of(const Shape& shape, u64 number) {
    Place place;
    for (int d = 2; d >= 0; d--) {
        place.at[d] = number % shape.extents[2 + d];
        number /= shape.extents[2 + d];
    }
    place.channel = number % shape.extents[1];
    place.batch = number / shape.extents[1];
    return place;
}

__device__ __forceinline__ i64 offset_in(const Shape& shape, u64 batch, u64 channel, u64 z, u64 y,
                                         u64 x) {
    return (i64)batch * shape.strides[0] + (i64)channel * shape.strides[1] +
           (i64)z * shape.strides[2] + (i64)y * shape.strides[3] + (i64)x * shape.strides[4];
}

__device__ __forceinline__ bool is_inside(i64 at, u64 extent) { return (u64)at < extent; }
