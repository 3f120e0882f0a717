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

    // Two neighbours of a fragment, rounded.
    static __device__ __forceinline__ u32 pair(float low, float high) {
        u32 both;
        asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(both) : "f"(high), "f"(low));
        return both;
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

    static __device__ __forceinline__ u32 pair(float low, float high) {
        u32 both;
        asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(both) : "f"(high), "f"(low));
        return both;
    }
};

// The 16-bit type of products whose factors are of a type, eight elements as they are in memory, and
// as they are multiplied.
template <typename T>
struct Wide {
    typedef T type;
    typedef uint4 Raw;
    static __device__ __forceinline__ Raw none() { return make_uint4(0, 0, 0, 0); }
    static __device__ __forceinline__ uint4 eight(Raw all) { return all; }
};

// Two elements of each word that follow one another, as the high bytes of two of 16 bits.
__device__ __forceinline__ u32 high_bytes(u32 word, bool is_second) {
    return __byte_perm(word, 0, is_second ? 0x3424 : 0x1404);
}

template <>
struct Wide<Float8e5m2> {
    typedef Half type;
    typedef uint2 Raw;
    static __device__ __forceinline__ Raw none() { return make_uint2(0, 0); }
    static __device__ __forceinline__ uint4 eight(uint2 all) {
        return make_uint4(high_bytes(all.x, false), high_bytes(all.x, true),
                          high_bytes(all.y, false), high_bytes(all.y, true));
    }
};

template <>
struct Wide<Float8e4m3> {
    typedef Half type;
    typedef uint2 Raw;
    static __device__ __forceinline__ Raw none() { return make_uint2(0, 0); }
    // Its fraction and exponent, moved to those of f16, are the value by 2^-8.
    static __device__ __forceinline__ u32 two(u32 bytes) {
        u32 values;
        asm("mul.rn.f16x2 %0, %1, %2;"
            : "=r"(values)
            : "r"((bytes & 0x80008000) | (bytes & 0x7f007f00) >> 1), "r"(0x5c005c00));
        // NaN is the largest magnitude.
        const u32 nan = (bytes & 0x7f007f00) + 0x01000100 & 0x80008000;
        return values | (nan - (nan >> 15));
    }
    static __device__ __forceinline__ uint4 eight(uint2 all) {
        return make_uint4(two(high_bytes(all.x, false)), two(high_bytes(all.x, true)),
                          two(high_bytes(all.y, false)), two(high_bytes(all.y, true)));
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

// Copies eight elements of 16 bits to shared memory, asynchronously; those from `valid` on are set
// to 0, and of 0 valid ones nothing is read. Both places are multiples of 16 bytes.
template <typename T>
__device__ __forceinline__ void copy_eight(uint4* to, const T* from, u32 valid) {
    const u32 place = (u32)__cvta_generic_to_shared(to);
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;"
                 :
                 : "r"(place), "l"(from), "r"(valid * 2)
                 : "memory");
}

// Ends a group of copies.
__device__ __forceinline__ void commit() {
    asm volatile("cp.async.commit_group;" ::: "memory");
}

// Waits for all groups but the last ones.
template <int PENDING>
__device__ __forceinline__ void wait_for_all_but() {
    asm volatile("cp.async.wait_group %0;" ::"n"(PENDING) : "memory");
}

// Four matrices of 8 by 8, whose rows are at the places of lanes 0 to 31.
template <bool IS_TRANSPOSED>
__device__ __forceinline__ void load_matrices(u32 (&to)[4], const uint4* place) {
    const u32 from = (u32)__cvta_generic_to_shared(place);
    if (IS_TRANSPOSED) {
        asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
                     : "=r"(to[0]), "=r"(to[1]), "=r"(to[2]), "=r"(to[3])
                     : "r"(from)
                     : "memory");
    } else {
        asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
                     : "=r"(to[0]), "=r"(to[1]), "=r"(to[2]), "=r"(to[3])
                     : "r"(from)
                     : "memory");
    }
}
