// Selection of elements, which stay in order, and counts of elements by their values. SELECT says
// which; for BINS an element's type is ELEMENT.
#define MASKED 0
#define NONZERO 1
#define UNIQUE 2
#define BINS 3

#include "rows.cuh"

#if SELECT != BINS
#include "keys.cuh"

#define EACH 8
#define THREADS 256
#define WARPS (THREADS / 32)
#define CHUNK (EACH * THREADS)

#if SELECT == MASKED
typedef u8 Source;
#else
typedef KEY Source;
#endif

// Whether an element is chosen: by its mask; unless it is 0; or if the key before is another one.
__device__ __forceinline__ bool is_chosen(const Source* source, const Shape& shape, u64 at) {
    const Source own = source[element_offset(shape, at)];
#if SELECT == MASKED
    return own != 0;
#elif SELECT == NONZERO
    return (KIND == FLOAT ? (KEY)(own & (KEY)~SIGN_BIT) : own) != 0;
#else
    return at == 0 || source[element_offset(shape, at - 1)] != own;
#endif
}

#ifdef KERNEL_count_chosen
// The number of chosen elements of each chunk.
extern "C" __global__ void count_chosen(u64* __restrict__ counts, const Source* __restrict__ source,
                                        const Shape shape, u64 len, u64 chunks) {
    __shared__ u32 warps[WARPS];
    const u32 lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    for (u64 chunk = blockIdx.x; chunk < chunks; chunk += gridDim.x) {
        u32 found = 0;
#pragma unroll
        for (u32 k = 0; k < EACH; k++) {
            const u64 at = chunk * CHUNK + k * THREADS + threadIdx.x;
            const bool is = at < len && is_chosen(source, shape, at);
            found += __popc(__ballot_sync(0xffffffff, is));
        }
        if (lane == 0) warps[warp] = found;
        __syncthreads();
        if (threadIdx.x == 0) {
            u64 all = 0;
            for (u32 k = 0; k < WARPS; k++) all += warps[k];
            counts[chunk] = all;
        }
        __syncthreads();
    }
}
#endif

#ifdef KERNEL_scan_counts
// Replaces the counts by the sums of those before, and gives their total twice. One block.
extern "C" __global__ void scan_counts(u64* __restrict__ counts, u64* __restrict__ total,
                                       i64* __restrict__ number, u64 chunks) {
    __shared__ u64 warps[32];
    u64 carry = 0;
    for (u64 begin = 0; begin < chunks; begin += EACH * blockDim.x) {
        const u64 first = begin + threadIdx.x * EACH;
        u64 values[EACH], own = 0, all;
#pragma unroll
        for (u32 k = 0; k < EACH; k++) {
            values[k] = first + k < chunks ? counts[first + k] : 0;
            own += values[k];
        }
        u64 before = carry + scan_block<Count<u64>>(own, warps, all);
#pragma unroll
        for (u32 k = 0; k < EACH; k++) {
            if (first + k < chunks) counts[first + k] = before;
            before += values[k];
        }
        carry += all;
    }
    if (threadIdx.x == 0) {
        *total = carry;
        *number = (i64)carry;
    }
}
#endif

// What is written for a chosen element.
struct Target {
#if SELECT == MASKED
    KEY* out;
    i64 stride;
    const KEY* x;
    const Shape& x_shape;
    __device__ __forceinline__ void take(u64 at, u64 rank) const {
        out[(i64)rank * stride] = x[element_offset(x_shape, at)];
    }
#elif SELECT == NONZERO
    i64* out;
    i64 stride, apart;
    const Shape& extents;
    u32 rank_of_x;
    __device__ __forceinline__ void take(u64 at, u64 rank) const {
#pragma unroll
        for (int d = 7; d >= 0; d--) {
            if (d >= (int)rank_of_x) continue;
            const u64 extent = extents.extents[d], rest = at / extent;
            out[(i64)rank * stride + d * apart] = (i64)(at - rest * extent);
            at = rest;
        }
    }
#else
    KEY* values;
    i64 stride;
    u64* starts;
    const KEY* keys;
    const PLACE* places;
    const KEY* x;
    i64 x_stride;
    u64 len;
    __device__ __forceinline__ void take(u64 at, u64 rank) const {
        const KEY key = keys[at];
        KEY bits = bits_of(key);
        if (is_ambiguous(key)) {
            const u64 place = places[at];
            // It comes from memory.
            if (place < len) bits = x[(i64)place * x_stride];
        }
        values[(i64)rank * stride] = bits;
        starts[rank] = at;
    }
#endif
};

// Writes the chosen elements of each chunk behind those of earlier chunks. A warp's elements are
// neighbours, and it goes over them in order.
__device__ __forceinline__ void take_chosen(const Target& target, const u64* counts,
                                            const Source* source, const Shape& shape, u64 len,
                                            u64 chunks) {
    __shared__ u32 warps[WARPS];
    const u32 lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    for (u64 chunk = blockIdx.x; chunk < chunks; chunk += gridDim.x) {
        const u64 first = chunk * CHUNK + warp * EACH * 32 + lane;
        u32 chosen[EACH], found = 0;
#pragma unroll
        for (u32 k = 0; k < EACH; k++) {
            const u64 at = first + k * 32;
            const bool is = at < len && is_chosen(source, shape, at);
            chosen[k] = __ballot_sync(0xffffffff, is);
            found += __popc(chosen[k]);
        }
        if (lane == 0) warps[warp] = found;
        __syncthreads();
        u64 before = counts[chunk];
        for (u32 k = 0; k < warp; k++) before += warps[k];
#pragma unroll
        for (u32 k = 0; k < EACH; k++) {
            const u64 rank = before + __popc(chosen[k] & ((1u << lane) - 1));
            // Counts come from memory.
            if ((chosen[k] >> lane & 1) && rank < len) target.take(first + k * 32, rank);
            before += __popc(chosen[k]);
        }
        __syncthreads();
    }
}

#if SELECT == MASKED
#ifdef KERNEL_take_masked
extern "C" __global__ void take_masked(KEY* __restrict__ out, const Shape out_shape,
                                       const u64* __restrict__ counts,
                                       const u8* __restrict__ mask, const Shape mask_shape,
                                       const KEY* __restrict__ x, const Shape x_shape, u64 len,
                                       u64 chunks) {
    const Target target{out, out_shape.strides[0], x, x_shape};
    take_chosen(target, counts, mask, mask_shape, len, chunks);
}
#endif

#ifdef KERNEL_clear_rest
// Zeros behind what was chosen.
extern "C" __global__ void clear_rest(KEY* __restrict__ out, const Shape out_shape,
                                      const u64* __restrict__ total, u64 len) {
    const u64 step = (u64)gridDim.x * blockDim.x;
    const u64 first = (u64)blockIdx.x * blockDim.x + threadIdx.x;
    for (u64 at = first; at < len; at += step) {
        if (at >= *total) out[(i64)at * out_shape.strides[0]] = 0;
    }
}
#endif
#elif SELECT == NONZERO
#ifdef KERNEL_take_nonzero
extern "C" __global__ void take_nonzero(i64* __restrict__ out, const Shape out_shape,
                                        const u64* __restrict__ counts,
                                        const KEY* __restrict__ x, const Shape x_shape,
                                        const Shape extents, u64 len, u64 chunks, u32 rank) {
    const Target target{out, out_shape.strides[0], out_shape.strides[1], extents, rank};
    take_chosen(target, counts, x, x_shape, len, chunks);
}
#endif

#ifdef KERNEL_clear_rest
extern "C" __global__ void clear_rest(i64* __restrict__ out, const Shape out_shape,
                                      const u64* __restrict__ total, u64 len) {
    const u64 step = (u64)gridDim.x * blockDim.x, rank = out_shape.extents[1];
    const u64 first = (u64)blockIdx.x * blockDim.x + threadIdx.x;
    for (u64 at = first; at < len; at += step) {
        if (at < *total) continue;
        for (u64 d = 0; d < rank; d++) {
            out[(i64)at * out_shape.strides[0] + (i64)d * out_shape.strides[1]] = 0;
        }
    }
}
#endif
#else
#ifdef KERNEL_take_unique
extern "C" __global__ void take_unique(KEY* __restrict__ values, const Shape values_shape,
                                       u64* __restrict__ starts, const u64* __restrict__ counts,
                                       const KEY* __restrict__ keys, const Shape keys_shape,
                                       const PLACE* __restrict__ places,
                                       const KEY* __restrict__ x, const Shape x_shape, u64 len,
                                       u64 chunks) {
    const Target target{values, values_shape.strides[0], starts, keys, places,
                        x, x_shape.strides[0], len};
    take_chosen(target, counts, keys, keys_shape, len, chunks);
}
#endif

#ifdef KERNEL_count_unique
// The numbers of equal elements, from the places at which each value starts; zeros behind.
extern "C" __global__ void count_unique(KEY* __restrict__ values, const Shape values_shape,
                                        i64* __restrict__ numbers, const Shape numbers_shape,
                                        const u64* __restrict__ starts,
                                        const u64* __restrict__ total, u64 len) {
    const u64 step = (u64)gridDim.x * blockDim.x, all = *total;
    const u64 first = (u64)blockIdx.x * blockDim.x + threadIdx.x;
    for (u64 at = first; at < len; at += step) {
        u64 number = 0;
        if (at < all) {
            number = (at + 1 < all && at + 1 < len ? starts[at + 1] : len) - starts[at];
        } else {
            values[(i64)at * values_shape.strides[0]] = 0;
        }
        numbers[(i64)at * numbers_shape.strides[0]] = (i64)number;
    }
}
#endif
#endif

#else
// Bins that a block counts in shared memory, before it adds them.
#define NEAR_BINS 4096

#ifdef KERNEL_count_bins
// Adds the number of elements of each bin. With IS_HISTOGRAM a bin is a part of the range from
// `low` to `high`, both included; else it is an element's value. Other elements are in none.
extern "C" __global__ void count_bins(u64* __restrict__ out, const Shape out_shape,
                                      const ELEMENT* __restrict__ x, const Shape x_shape, u64 len,
                                      u64 bins, double low, double high) {
    __shared__ u32 near[NEAR_BINS];
    const bool is_near = bins <= NEAR_BINS;
    if (is_near) {
        for (u32 bin = threadIdx.x; bin < bins; bin += blockDim.x) near[bin] = 0;
    }
    __syncthreads();
    const u64 step = (u64)gridDim.x * blockDim.x;
    for (u64 at = (u64)blockIdx.x * blockDim.x + threadIdx.x; at < len; at += step) {
        const ELEMENT own = x[element_offset(x_shape, at)];
#ifdef IS_HISTOGRAM
        const double value = (double)Computed<ELEMENT>::load(own);
        if (!(value >= low && value <= high)) continue;
        u64 bin = (u64)((value - low) * (double)bins / (high - low));
        if (bin >= bins) bin = bins - 1;
#else
        // A negative one is beyond all.
        const u64 bin = (u64)own;
        if (bin >= bins) continue;
#endif
        if (is_near) {
            atomicAdd(&near[bin], 1u);
        } else {
            atomicAdd(&out[(i64)bin * out_shape.strides[0]], 1ull);
        }
    }
    __syncthreads();
    if (!is_near) return;
    for (u32 bin = threadIdx.x; bin < bins; bin += blockDim.x) {
        if (near[bin] > 0) atomicAdd(&out[(i64)bin * out_shape.strides[0]], (u64)near[bin]);
    }
}
#endif
#endif
