// Elements chosen by indices in memory. DIMS dimensions of the loop, counted by COUNTED; INDEX is
// the type of indices. An index outside of the axis touches nothing; if `fault` is given, the first
// one that is seen is recorded there: its place in the loop plus one, and itself.
#include "checked.cuh"

template <int N, typename Counted>
__device__ __forceinline__ void offsets_of3(const Shape& a, const Shape& b, const Shape& c,
                                            Counted at, i64& in_a, i64& in_b, i64& in_c) {
    in_a = in_b = in_c = 0;
#pragma unroll
    for (int d = N - 1; d > 0; d--) {
        const Counted extent = (Counted)a.extents[d];
        const Counted rest = at / extent;
        const i64 own = (i64)(at - rest * extent);
        in_a += own * a.strides[d];
        in_b += own * b.strides[d];
        in_c += own * c.strides[d];
        at = rest;
    }
    in_a += (i64)at * a.strides[0];
    in_b += (i64)at * b.strides[0];
    in_c += (i64)at * c.strides[0];
}

#ifdef UNIT
#ifdef KERNEL_gather_elements
// to[..] = from[.., index[..], ..]: `along` is the stride of `from` that the index multiplies.
extern "C" __global__ void gather_elements(UNIT* __restrict__ to, const Shape to_shape,
                                           const UNIT* __restrict__ from, const Shape from_shape,
                                           const INDEX* __restrict__ index, const Shape index_shape,
                                           i64 along, u64 extent, u64 count, u64* fault) {
    const COUNTED step = (COUNTED)gridDim.x * blockDim.x;
    for (COUNTED at = (COUNTED)blockIdx.x * blockDim.x + threadIdx.x; at < (COUNTED)count;
         at += step) {
        i64 target, source, place;
        offsets_of3<DIMS, COUNTED>(to_shape, from_shape, index_shape, at, target, source, place);
        const i64 chosen = (i64)index[place];
        UNIT value = {};
        if (is_inside(chosen, extent, at, fault)) value = from[source + chosen * along];
        to[target] = value;
    }
}
#endif
#endif

#ifdef ELEMENT
// How a scattered value and the one that is there become one.
#define STORE 0
#define ADD 1
#define MULTIPLY 2
#define LEAST 3
#define MOST 4

__device__ __forceinline__ u32 load_relaxed(u32* at) {
    u32 value;
    asm volatile("ld.relaxed.gpu.global.u32 %0, [%1];" : "=r"(value) : "l"(at) : "memory");
    return value;
}

__device__ __forceinline__ u64 load_relaxed(u64* at) {
    u64 value;
    asm volatile("ld.relaxed.gpu.global.u64 %0, [%1];" : "=l"(value) : "l"(at) : "memory");
    return value;
}

template <int BYTES>
struct Word;
template <>
struct Word<4> {
    typedef u32 type;
};
template <>
struct Word<8> {
    typedef u64 type;
};

__device__ __forceinline__ ELEMENT joined(ELEMENT a, ELEMENT b) {
    if (COMBINE == ADD) return a + b;
    if (COMBINE == MULTIPLY) return a * b;
    // NaN stays, whichever it is.
    if (a != a) return a;
    if (b != b) return b;
    if (COMBINE == LEAST) return b < a ? b : a;
    return b > a ? b : a;
}

__device__ __forceinline__ void combine(ELEMENT* at, ELEMENT value) {
    typedef Word<sizeof(ELEMENT)>::type Bits;
    union {
        ELEMENT value;
        Bits bits;
    } before, after;
    Bits* word = (Bits*)at;
    before.bits = load_relaxed(word);
    while (true) {
        after.value = joined(before.value, value);
        const Bits seen = atomicCAS(word, before.bits, after.bits);
        if (seen == before.bits) return;
        before.bits = seen;
    }
}

#ifdef KERNEL_scatter_elements
// to[.., index[..], ..] joined with from[..].
extern "C" __global__ void scatter_elements(ELEMENT* __restrict__ to, const Shape to_shape,
                                            const FROM* __restrict__ from, const Shape from_shape,
                                            const INDEX* __restrict__ index,
                                            const Shape index_shape, i64 along, u64 extent,
                                            u64 count, u64* fault) {
    const COUNTED step = (COUNTED)gridDim.x * blockDim.x;
    for (COUNTED at = (COUNTED)blockIdx.x * blockDim.x + threadIdx.x; at < (COUNTED)count;
         at += step) {
        i64 target, source, place;
        offsets_of3<DIMS, COUNTED>(to_shape, from_shape, index_shape, at, target, source, place);
        const i64 chosen = (i64)index[place];
        if (!is_inside(chosen, extent, at, fault)) continue;
        const ELEMENT value = (ELEMENT)Computed<FROM>::load(from[source]);
        combine(to + target + chosen * along, value);
    }
}
#endif

#ifdef KERNEL_convert_to
// Elements to the type in which they are combined, and back to where they came from.
extern "C" __global__ void convert_to(ELEMENT* __restrict__ to, const Shape to_shape,
                                      const FROM* __restrict__ from, const Shape from_shape,
                                      u64 count) {
    const COUNTED step = (COUNTED)gridDim.x * blockDim.x;
    for (COUNTED at = (COUNTED)blockIdx.x * blockDim.x + threadIdx.x; at < (COUNTED)count;
         at += step) {
        i64 target, source;
        offsets_of<DIMS, COUNTED>(to_shape, from_shape, at, target, source);
        to[target] = (ELEMENT)Computed<FROM>::load(from[source]);
    }
}
#endif

#ifdef KERNEL_convert_from
extern "C" __global__ void convert_from(FROM* to, const Shape to_shape,
                                        const ELEMENT* __restrict__ from, const Shape from_shape,
                                        u64 count) {
    const COUNTED step = (COUNTED)gridDim.x * blockDim.x;
    for (COUNTED at = (COUNTED)blockIdx.x * blockDim.x + threadIdx.x; at < (COUNTED)count;
         at += step) {
        i64 target, source;
        offsets_of<DIMS, COUNTED>(to_shape, from_shape, at, target, source);
        const ELEMENT combined = from[source];
        const ELEMENT before = (ELEMENT)Computed<FROM>::load(to[target]);
        // What nothing was combined with keeps its bits: an infinity, or a NaN.
        const bool stays = combined == before || (combined != combined && before != before);
        if (!stays) to[target] = Computed<FROM>::store(combined);
    }
}
#endif
#endif

#ifdef STORED
// to[.., index[..], ..] = from[..]. Of several values for one element one is stored whole.
__device__ __forceinline__ void store_relaxed(u8* at, u8 value) {
    asm volatile("st.relaxed.gpu.global.u8 [%0], %1;" ::"l"(at), "r"((u32)value) : "memory");
}
__device__ __forceinline__ void store_relaxed(u16* at, u16 value) {
    asm volatile("st.relaxed.gpu.global.u16 [%0], %1;" ::"l"(at), "h"(value) : "memory");
}
__device__ __forceinline__ void store_relaxed(u32* at, u32 value) {
    asm volatile("st.relaxed.gpu.global.u32 [%0], %1;" ::"l"(at), "r"(value) : "memory");
}
__device__ __forceinline__ void store_relaxed(u64* at, u64 value) {
    asm volatile("st.relaxed.gpu.global.u64 [%0], %1;" ::"l"(at), "l"(value) : "memory");
}

#ifdef KERNEL_put_elements
extern "C" __global__ void put_elements(STORED* __restrict__ to, const Shape to_shape,
                                        const STORED* __restrict__ from, const Shape from_shape,
                                        const INDEX* __restrict__ index, const Shape index_shape,
                                        i64 along, u64 extent, u64 count, u64* fault) {
    const COUNTED step = (COUNTED)gridDim.x * blockDim.x;
    for (COUNTED at = (COUNTED)blockIdx.x * blockDim.x + threadIdx.x; at < (COUNTED)count;
         at += step) {
        i64 target, source, place;
        offsets_of3<DIMS, COUNTED>(to_shape, from_shape, index_shape, at, target, source, place);
        const i64 chosen = (i64)index[place];
        if (!is_inside(chosen, extent, at, fault)) continue;
        store_relaxed(to + target + chosen * along, from[source]);
    }
}
#endif

#ifdef KERNEL_one_hot
// Index and place of the last dimension are equal, or not.
extern "C" __global__ void one_hot(STORED* __restrict__ to, const Shape to_shape,
                                   const INDEX* __restrict__ index, const Shape index_shape,
                                   u64 classes, u64 count, u64 one, u64* fault) {
    const COUNTED step = (COUNTED)gridDim.x * blockDim.x;
    for (COUNTED at = (COUNTED)blockIdx.x * blockDim.x + threadIdx.x; at < (COUNTED)count;
         at += step) {
        i64 target, place;
        offsets_of<DIMS, COUNTED>(to_shape, index_shape, at, target, place);
        const i64 chosen = (i64)index[place];
        const bool inside = is_inside(chosen, classes, at, fault);
        to[target] = inside && (u64)chosen == (u64)at % classes ? (STORED)one : (STORED)0;
    }
}
#endif
#endif
