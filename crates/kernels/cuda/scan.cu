// Scans along one axis: SCAN, one of the structs below, combines the elements up to each one.
// ELEMENT is the operand's type, RESULT the result's, VALUE that of combined values. With INDICES
// the place of an element is a second result; PLACE counts places. EACH elements of a thread are
// neighbours; with VECTOR all views have them at multiples of 16 bytes, or of all they are if less.
#include "rows.cuh"

#define MOST_THREADS 256
#define CHUNK (EACH * MOST_THREADS)

struct Sum {
    typedef VALUE State;
    static __device__ __forceinline__ State identity() { return 0; }
    static __device__ __forceinline__ State of(VALUE x, u64) { return x; }
    static __device__ __forceinline__ State combine(State a, State b) { return a + b; }
    static __device__ __forceinline__ VALUE value(State s) { return s; }
    static __device__ __forceinline__ i64 place(State) { return 0; }
};

struct Product {
    typedef VALUE State;
    static __device__ __forceinline__ State identity() { return 1; }
    static __device__ __forceinline__ State of(VALUE x, u64) { return x; }
    static __device__ __forceinline__ State combine(State a, State b) { return a * b; }
    static __device__ __forceinline__ VALUE value(State s) { return s; }
    static __device__ __forceinline__ i64 place(State) { return 0; }
};

// An element with its place; that of no element is negative.
struct Placed {
    VALUE value;
    PLACE place;
};

// The last of the largest (SIGN is 1) or smallest (-1) elements; NaN is beyond all.
template <int SIGN>
struct Extreme {
    typedef Placed State;
    static __device__ __forceinline__ State identity() { return Placed{0, -1}; }
    static __device__ __forceinline__ State of(VALUE x, u64 at) { return Placed{x, (PLACE)at}; }
    static __device__ __forceinline__ State combine(State a, State b) {
        if (b.place < 0) return a;
        if (a.place < 0 || b.value != b.value) return b;
        if (a.value != a.value) return a;
        return (SIGN > 0 ? b.value >= a.value : b.value <= a.value) ? b : a;
    }
    static __device__ __forceinline__ VALUE value(State s) { return s.value; }
    static __device__ __forceinline__ i64 place(State s) { return s.place; }
};
typedef Extreme<1> Largest;
typedef Extreme<-1> Smallest;

// ln of a sum of e^x: the largest x, and the sum of e^(x - largest).
struct Scaled {
    VALUE most, sum;
};

#ifdef LOGSUM
struct LogSum {
    typedef Scaled State;
    static __device__ __forceinline__ State identity() {
        return Scaled{(VALUE)as_float(0xff800000), 0};
    }
    static __device__ __forceinline__ State of(VALUE x, u64) { return Scaled{x, 1}; }
    static __device__ __forceinline__ State combine(State a, State b) {
        // NaN if either is. Equal ones may be infinite, and have no difference.
        const VALUE most = a.most > b.most || a.most != a.most ? a.most : b.most;
        const VALUE of_a = a.most == most ? a.sum : a.sum * exponential(a.most - most);
        const VALUE of_b = b.most == most ? b.sum : b.sum * exponential(b.most - most);
        return Scaled{most, of_a + of_b};
    }
    static __device__ __forceinline__ VALUE value(State s) { return s.most + logarithm(s.sum); }
    static __device__ __forceinline__ i64 place(State) { return 0; }
};
#endif

typedef SCAN::State State;

// A place in a tile, such that threads with neighbours each do not meet in one bank.
__device__ __forceinline__ u32 padded(u32 at) { return at + at / EACH; }

// EACH neighbours, of 8 bytes or of a multiple of 16.
template <typename T>
union Neighbours {
    T values[EACH];
    uint4 sixteens[sizeof(T) * EACH < 16 ? 1 : sizeof(T) * EACH / 16];
    uint2 eight;

    __device__ __forceinline__ Neighbours() {}

    __device__ __forceinline__ void load(const T* from) {
        if (sizeof(T) * EACH >= 16) {
#pragma unroll
            for (u32 i = 0; i < sizeof(T) * EACH / 16; i++) {
                sixteens[i] = __ldg(reinterpret_cast<const uint4*>(from) + i);
            }
        } else {
            eight = __ldg(reinterpret_cast<const uint2*>(from));
        }
    }

    __device__ __forceinline__ void store(T* to) const {
        if (sizeof(T) * EACH >= 16) {
#pragma unroll
            for (u32 i = 0; i < sizeof(T) * EACH / 16; i++) {
                reinterpret_cast<uint4*>(to)[i] = sixteens[i];
            }
        } else {
            *reinterpret_cast<uint2*>(to) = eight;
        }
    }
};

// A thread's elements of the chunk that begins at `first`, those beyond the row as nothing. Without
// VECTOR they come through the tile, so that neighbouring threads read neighbours.
__device__ __forceinline__ void load_chunk(State* tile, State (&own)[EACH], const ELEMENT* x,
                                           i64 stride, u64 first, u64 len) {
#if VECTOR
    const u64 begin = first + (u64)threadIdx.x * EACH;
    Neighbours<ELEMENT> all;
    const bool is_whole = begin + EACH <= len;
    if (is_whole) all.load(x + begin);
#pragma unroll
    for (u32 k = 0; k < EACH; k++) {
        own[k] = SCAN::identity();
        if (is_whole) {
            own[k] = SCAN::of((VALUE)Computed<ELEMENT>::load(all.values[k]), begin + k);
        } else if (begin + k < len) {
            own[k] = SCAN::of((VALUE)Computed<ELEMENT>::load(x[begin + k]), begin + k);
        }
    }
#else
#pragma unroll
    for (u32 k = 0; k < EACH; k++) {
        const u32 inside = k * blockDim.x + threadIdx.x;
        const u64 at = first + inside;
        State state = SCAN::identity();
        if (at < len) state = SCAN::of((VALUE)Computed<ELEMENT>::load(x[(i64)at * stride]), at);
        tile[padded(inside)] = state;
    }
    __syncthreads();
#pragma unroll
    for (u32 k = 0; k < EACH; k++) own[k] = tile[padded(threadIdx.x * EACH + k)];
#endif
}

// The combination of all elements of a thread.
__device__ __forceinline__ State combined(const State (&own)[EACH]) {
    State all = own[0];
#pragma unroll
    for (u32 k = 1; k < EACH; k++) all = SCAN::combine(all, own[k]);
    return all;
}

// Writes a thread's states at the chunk's places in a row of `to`.
template <typename T, typename Value>
__device__ __forceinline__ void store_chunk(const State* tile, const State (&own)[EACH], T* to,
                                            i64 stride, u64 first, u64 len, Value value) {
#if VECTOR
    const u64 begin = first + (u64)threadIdx.x * EACH;
    Neighbours<T> all;
#pragma unroll
    for (u32 k = 0; k < EACH; k++) all.values[k] = value(own[k]);
    if (begin + EACH <= len) {
        all.store(to + begin);
        return;
    }
#pragma unroll
    for (u32 k = 0; k < EACH; k++) {
        if (begin + k < len) to[begin + k] = all.values[k];
    }
#else
#pragma unroll
    for (u32 k = 0; k < EACH; k++) {
        const u32 inside = k * blockDim.x + threadIdx.x;
        const u64 at = first + inside;
        if (at < len) to[(i64)at * stride] = value(tile[padded(inside)]);
    }
#endif
}

// Combines what is before a thread with each of its elements in turn, and writes the results.
__device__ __forceinline__ void finish_chunk(State* tile, State (&own)[EACH], State before,
                                             RESULT* to, i64 stride,
#ifdef INDICES
                                             i64* places_to, i64 places_stride,
#endif
                                             u64 first, u64 len) {
#pragma unroll
    for (u32 k = 0; k < EACH; k++) {
        before = SCAN::combine(before, own[k]);
        own[k] = before;
#if !VECTOR
        tile[padded(threadIdx.x * EACH + k)] = before;
#endif
    }
#if !VECTOR
    __syncthreads();
#endif
    store_chunk(tile, own, to, stride, first, len,
                [](State s) { return Computed<RESULT>::store(SCAN::value(s)); });
#ifdef INDICES
    store_chunk(tile, own, places_to, places_stride, first, len,
                [](State s) { return (i64)SCAN::place(s); });
#endif
}

#if VECTOR
#define TILE(name) State* const name = nullptr
#else
#define TILE(name) __shared__ State name[CHUNK + MOST_THREADS]
#endif

#ifdef KERNEL_total_chunks
// The combination of all elements of each chunk, of `chunks` of each row.
extern "C" __global__ void total_chunks(State* __restrict__ totals, const ELEMENT* __restrict__ x,
                                        const Shape x_shape, u64 chunks, u64 count) {
    TILE(tile);
    __shared__ State warps[32];
    for (u64 work = blockIdx.x; work < count; work += gridDim.x) {
        const u64 row = work / chunks;
        const u64 first = (work - row * chunks) * (EACH * blockDim.x);
        State own[EACH], total;
        load_chunk(tile, own, x + row_offset(x_shape, row), x_shape.strides[0], first,
                   x_shape.extents[0]);
        scan_block<SCAN>(combined(own), warps, total);
        if (threadIdx.x == 0) totals[work] = total;
        __syncthreads();
    }
}
#endif

#ifdef KERNEL_scan_totals
// Replaces the chunks' totals by the combination of those before each, in each row.
extern "C" __global__ void scan_totals(State* __restrict__ totals, u64 chunks, u64 rows) {
    __shared__ State warps[32];
    for (u64 row = blockIdx.x; row < rows; row += gridDim.x) {
        State* const own = totals + row * chunks;
        State carry = SCAN::identity();
        for (u64 begin = 0; begin < chunks; begin += EACH * blockDim.x) {
            const u64 first = begin + threadIdx.x * EACH;
            State states[EACH], all = SCAN::identity(), total;
#pragma unroll
            for (u32 k = 0; k < EACH; k++) {
                states[k] = first + k < chunks ? own[first + k] : SCAN::identity();
                all = SCAN::combine(all, states[k]);
            }
            State before = SCAN::combine(carry, scan_block<SCAN>(all, warps, total));
#pragma unroll
            for (u32 k = 0; k < EACH; k++) {
                if (first + k < chunks) own[first + k] = before;
                before = SCAN::combine(before, states[k]);
            }
            carry = SCAN::combine(carry, total);
        }
    }
}
#endif

#ifdef KERNEL_scan_chunks
// Scans each chunk, after what is before it in `totals` if a row has more than one.
extern "C" __global__ void scan_chunks(RESULT* __restrict__ out, const Shape out_shape,
#ifdef INDICES
                                       i64* __restrict__ places, const Shape places_shape,
#endif
                                       const State* __restrict__ totals,
                                       const ELEMENT* __restrict__ x, const Shape x_shape,
                                       u64 chunks, u64 count) {
    TILE(tile);
    __shared__ State warps[32];
    const u64 len = x_shape.extents[0];
    for (u64 work = blockIdx.x; work < count; work += gridDim.x) {
        const u64 row = work / chunks;
        const u64 first = (work - row * chunks) * (EACH * blockDim.x);
        State own[EACH], total;
        load_chunk(tile, own, x + row_offset(x_shape, row), x_shape.strides[0], first, len);
        State before = scan_block<SCAN>(combined(own), warps, total);
        if (chunks > 1) before = SCAN::combine(totals[work], before);
        finish_chunk(tile, own, before, out + row_offset(out_shape, row), out_shape.strides[0],
#ifdef INDICES
                     places + row_offset(places_shape, row), places_shape.strides[0],
#endif
                     first, len);
        __syncthreads();
    }
}
#endif

#ifdef KERNEL_scan_rows
// Scans a row a block, one chunk after the other: for as many rows as fill a device.
extern "C" __global__ void __launch_bounds__(MOST_THREADS)
    scan_rows(RESULT* __restrict__ out, const Shape out_shape,
#ifdef INDICES
              i64* __restrict__ places, const Shape places_shape,
#endif
              const ELEMENT* __restrict__ x, const Shape x_shape, u64 rows) {
    TILE(tile);
    __shared__ State warps[32];
    const u64 len = x_shape.extents[0], step = EACH * blockDim.x;
    for (u64 row = blockIdx.x; row < rows; row += gridDim.x) {
        const ELEMENT* const from = x + row_offset(x_shape, row);
        RESULT* const to = out + row_offset(out_shape, row);
#ifdef INDICES
        i64* const places_to = places + row_offset(places_shape, row);
#endif
        State carry = SCAN::identity(), next[EACH], total;
        load_chunk(tile, next, from, x_shape.strides[0], 0, len);
        for (u64 first = 0; first < len; first += step) {
            State own[EACH];
#pragma unroll
            for (u32 k = 0; k < EACH; k++) own[k] = next[k];
            // The next elements are on their way meanwhile.
            if (VECTOR && first + step < len) {
                load_chunk(tile, next, from, x_shape.strides[0], first + step, len);
            }
            const State before = scan_block<SCAN>(combined(own), warps, total);
            finish_chunk(tile, own, SCAN::combine(carry, before), to, out_shape.strides[0],
#ifdef INDICES
                         places_to, places_shape.strides[0],
#endif
                         first, len);
            carry = SCAN::combine(carry, total);
            if (!VECTOR) {
                __syncthreads();
                if (first + step < len) {
                    load_chunk(tile, next, from, x_shape.strides[0], first + step, len);
                }
            }
        }
        __syncthreads();
    }
}
#endif

#ifdef KERNEL_scan_short
// Scans a row a thread, one element after the other: for many short rows.
extern "C" __global__ void scan_short(RESULT* __restrict__ out, const Shape out_shape,
#ifdef INDICES
                                      i64* __restrict__ places, const Shape places_shape,
#endif
                                      const ELEMENT* __restrict__ x, const Shape x_shape,
                                      u64 rows) {
    const u64 step = (u64)gridDim.x * blockDim.x, len = x_shape.extents[0];
    for (u64 row = (u64)blockIdx.x * blockDim.x + threadIdx.x; row < rows; row += step) {
        const ELEMENT* const from = x + row_offset(x_shape, row);
        RESULT* const to = out + row_offset(out_shape, row);
#ifdef INDICES
        i64* const places_to = places + row_offset(places_shape, row);
#endif
        State state = SCAN::identity();
        for (u64 at = 0; at < len; at++) {
            const ELEMENT own = from[(i64)at * x_shape.strides[0]];
            state = SCAN::combine(state, SCAN::of((VALUE)Computed<ELEMENT>::load(own), at));
            to[(i64)at * out_shape.strides[0]] = Computed<RESULT>::store(SCAN::value(state));
#ifdef INDICES
            places_to[(i64)at * places_shape.strides[0]] = SCAN::place(state);
#endif
        }
    }
}
#endif
