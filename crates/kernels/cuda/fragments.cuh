// Fragments of 16-bit floats for tensor cores: mma.sync.m16n8k16, summed in f32.
//
// A lane of group `lane / 4` has of the left factor its rows `group` and `group + 8`, of the right
// one column `group`; of the result those two rows of columns `lane % 4 * 2` and the next.
#pragma once
#include "common.cuh"

template <typename T>
struct TensorCore;

template <>
struct TensorCore<Half> {
    static __device__ __forceinline__ void multiply(float (&sums)[4], u32 a0, u32 a1, u32 a2,
                                                    u32 a3, u32 b0, u32 b1) {
        asm("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, "
            "{%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
            : "+f"(sums[0]), "+f"(sums[1]), "+f"(sums[2]), "+f"(sums[3])
            : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "r"(b0), "r"(b1));
    }
};

template <>
struct TensorCore<Bfloat> {
    static __device__ __forceinline__ void multiply(float (&sums)[4], u32 a0, u32 a1, u32 a2,
                                                    u32 a3, u32 b0, u32 b1) {
        asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, "
            "{%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
            : "+f"(sums[0]), "+f"(sums[1]), "+f"(sums[2]), "+f"(sums[3])
            : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "r"(b0), "r"(b1));
    }
};

// Eight elements, those from `valid` on as 0. With VECTOR they are neighbours at a multiple of 16
// bytes.
template <bool VECTOR, typename T>
__device__ __forceinline__ uint4 load_eight(const T* from, i64 stride, u32 valid) {
    if (VECTOR && valid >= 8) return __ldg(reinterpret_cast<const uint4*>(from));
    u32 words[4] = {};
#pragma unroll
    for (u32 i = 0; i < 8; i++) {
        if (i < valid) words[i / 2] |= (u32)from[(i64)i * stride].bits << (i % 2 * 16);
    }
    return make_uint4(words[0], words[1], words[2], words[3]);
}

// How many of `most` places from `first` are inside the extent.
__device__ __forceinline__ u32 places_left(u64 first, u64 extent, u32 most) {
    if (first >= extent) return 0;
    return extent - first < most ? (u32)(extent - first) : most;
}
