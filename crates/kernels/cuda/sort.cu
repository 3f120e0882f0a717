// Sorting of rows, stable, and searches in sorted rows. PLACE counts the elements of a row. A key
// is an element's with all bits flipped for descending order.
#include "keys.cuh"
#include "rows.cuh"

// Longest row that one block sorts.
#define SHORT 2048
// Which results there are; and whether NaN, if there is one, is the only result.
#define VALUES 1
#define INDICES 2
#define NAN_IF_ANY 4

// Rows of results, or of none.
struct Sorted {
    KEY* values;
    i64* indices;
    i64 value_stride, index_stride;
};

// Writes one result of a row. The place is compared with the row: it may come from memory.
__device__ __forceinline__ void write_sorted(const Sorted& to, u64 at, KEY key, u64 place,
                                             const KEY* x, i64 stride, u64 len, u32 parts) {
    if (place >= len) return;
    if (parts & VALUES) {
        const KEY bits = is_ambiguous(key) ? x[(i64)place * stride] : bits_of(key);
        to.values[(i64)at * to.value_stride] = bits;
    }
    if (parts & INDICES) to.indices[(i64)at * to.index_stride] = (i64)place;
}

#ifdef KERNEL_sort_rows
// Sorts each row by a block, in a power of two of places in shared memory, those beyond the row
// last. Results are `count` elements from the `first` one on.
extern "C" __global__ void sort_rows(KEY* __restrict__ values, const Shape values_shape,
                                     i64* __restrict__ indices, const Shape indices_shape,
                                     const KEY* __restrict__ x, const Shape x_shape, u64 rows,
                                     u64 first, u64 count, u64 flip, u32 padded, u32 parts) {
    __shared__ KEY keys[SHORT];
    __shared__ u16 places[SHORT];
    const u32 len = (u32)x_shape.extents[0];
    const i64 stride = x_shape.strides[0];
    for (u64 row = blockIdx.x; row < rows; row += gridDim.x) {
        const KEY* const from = x + row_offset(x_shape, row);
        for (u32 at = threadIdx.x; at < padded; at += blockDim.x) {
            keys[at] = at < len ? (KEY)(key_of(from[(i64)at * stride]) ^ (KEY)flip) : LAST_KEY;
            places[at] = (u16)at;
        }
        __syncthreads();
        for (u32 size = 2; size <= padded; size *= 2) {
            for (u32 apart = size / 2; apart > 0; apart /= 2) {
                for (u32 pair = threadIdx.x; pair < padded / 2; pair += blockDim.x) {
                    const u32 a = 2 * pair - (pair & (apart - 1)), b = a + apart;
                    const KEY of_a = keys[a], of_b = keys[b];
                    const u16 in_a = places[a], in_b = places[b];
                    const bool is_after = of_a > of_b || (of_a == of_b && in_a > in_b);
                    if (is_after == ((a & size) == 0)) {
                        keys[a] = of_b;
                        keys[b] = of_a;
                        places[a] = in_b;
                        places[b] = in_a;
                    }
                }
                __syncthreads();
            }
        }
        u64 begin = first;
        if (KIND == FLOAT && (parts & NAN_IF_ANY) && keys[len - 1] == LAST_KEY) {
            begin = count_before([&](u64 at) { return keys[at]; }, len, LAST_KEY, false);
        }
        Sorted to;
        to.values = values + row_offset(values_shape, row);
        to.indices = indices + row_offset(indices_shape, row);
        to.value_stride = values_shape.strides[0];
        to.index_stride = indices_shape.strides[0];
        for (u32 at = threadIdx.x; at < count && begin + at < len; at += blockDim.x) {
            const u32 in = (u32)begin + at;
            write_sorted(to, at, keys[in] ^ (KEY)flip, places[in], from, stride, len, parts);
        }
        __syncthreads();
    }
}
#endif

#ifdef EACH
// Long rows: by digits of 8 bits from the lowest on, each time stable.
#define THREADS 256
#define WARPS (THREADS / 32)
#define DIGITS 256
#define CHUNK (EACH * THREADS)

// The keys of a row: of the operand, or as sorted by earlier digits.
template <bool FIRST>
struct RowKeys {
    const KEY* keys;
    i64 stride;
    KEY flip;
    __device__ __forceinline__ RowKeys(const KEY* all, const Shape& shape, u64 row, u64 flip)
        : keys(all + (FIRST ? row_offset(shape, row) : (i64)(row * shape.extents[0]))),
          stride(FIRST ? shape.strides[0] : 1), flip((KEY)flip) {}
    __device__ __forceinline__ KEY operator[](u64 at) const {
        const KEY own = keys[(i64)at * stride];
        return FIRST ? (KEY)(key_of(own) ^ flip) : own;
    }
};

// The number of elements of each digit in each chunk: counts[row][digit][chunk].
template <bool FIRST>
__device__ __forceinline__ void count_digits(PLACE* counts, const KEY* keys, const Shape& x_shape,
                                             u64 chunks, u64 count, u64 flip, u32 shift) {
    __shared__ u32 found[WARPS][DIGITS];
    const u64 len = x_shape.extents[0];
    for (u64 work = blockIdx.x; work < count; work += gridDim.x) {
        const u64 row = work / chunks, chunk = work - row * chunks;
        const RowKeys<FIRST> own(keys, x_shape, row, flip);
        for (u32 warp = 0; warp < WARPS; warp++) found[warp][threadIdx.x] = 0;
        __syncthreads();
        for (u32 k = 0; k < EACH; k++) {
            const u64 at = chunk * CHUNK + k * THREADS + threadIdx.x;
            if (at < len) atomicAdd(&found[threadIdx.x / 32][(own[at] >> shift) & 255], 1u);
        }
        __syncthreads();
        PLACE total = 0;
        for (u32 warp = 0; warp < WARPS; warp++) total += found[warp][threadIdx.x];
        counts[(row * DIGITS + threadIdx.x) * chunks + chunk] = total;
        __syncthreads();
    }
}

#ifdef KERNEL_count_first
extern "C" __global__ void count_first(PLACE* __restrict__ counts, const KEY* __restrict__ x,
                                       const Shape x_shape, u64 chunks, u64 count, u64 flip) {
    count_digits<true>(counts, x, x_shape, chunks, count, flip, 0);
}
#endif

#ifdef KERNEL_count_next
extern "C" __global__ void count_next(PLACE* __restrict__ counts, const KEY* __restrict__ keys,
                                      const Shape x_shape, u64 chunks, u64 count, u32 shift) {
    count_digits<false>(counts, keys, x_shape, chunks, count, 0, shift);
}
#endif

#ifdef KERNEL_scan_digits
// Replaces the counts of each digit by the sums of those before, and gives their totals.
extern "C" __global__ void scan_digits(PLACE* __restrict__ counts, PLACE* __restrict__ totals,
                                       u64 chunks, u64 digits) {
    __shared__ PLACE warps[WARPS];
    const u32 own = 8;
    for (u64 digit = blockIdx.x; digit < digits; digit += gridDim.x) {
        PLACE* const row = counts + digit * chunks;
        PLACE carry = 0;
        for (u64 begin = 0; begin < chunks; begin += own * THREADS) {
            const u64 first = begin + threadIdx.x * own;
            PLACE values[own], all = 0, total;
#pragma unroll
            for (u32 k = 0; k < own; k++) {
                values[k] = first + k < chunks ? row[first + k] : 0;
                all += values[k];
            }
            PLACE before = carry + scan_block<Count<PLACE>>(all, warps, total);
#pragma unroll
            for (u32 k = 0; k < own; k++) {
                if (first + k < chunks) row[first + k] = before;
                before += values[k];
            }
            carry += total;
        }
        if (threadIdx.x == 0) totals[digit] = carry;
        __syncthreads();
    }
}
#endif

#ifdef KERNEL_scan_few
// The same for few chunks: a digit a thread.
extern "C" __global__ void scan_few(PLACE* __restrict__ counts, PLACE* __restrict__ totals,
                                    u64 chunks, u64 digits) {
    const u64 step = (u64)gridDim.x * blockDim.x;
    const u64 begin = (u64)blockIdx.x * blockDim.x + threadIdx.x;
    for (u64 digit = begin; digit < digits; digit += step) {
        PLACE sum = 0;
        for (u64 at = digit * chunks; at < (digit + 1) * chunks; at++) {
            const PLACE own = counts[at];
            counts[at] = sum;
            sum += own;
        }
        totals[digit] = sum;
    }
}
#endif

// Moves each element behind those of lower digits, of its digit in earlier chunks, and of its digit
// before it in the chunk. A warp's elements are neighbours, and it goes over them in order.
template <bool FIRST>
__device__ __forceinline__ void move_by_digit(KEY* keys_to, PLACE* places_to, const KEY* keys,
                                              const PLACE* places, const Shape& x_shape,
                                              const PLACE* counts, const PLACE* totals, u64 chunks,
                                              u64 count, u64 flip, u32 shift) {
    __shared__ KEY sorted_keys[CHUNK];
    __shared__ PLACE sorted_places[CHUNK];
    __shared__ u32 found[WARPS][DIGITS];
    __shared__ PLACE starts[DIGITS];
    __shared__ PLACE warps[WARPS];
    __shared__ u32 small_warps[WARPS];
    const u64 len = x_shape.extents[0];
    const u32 lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    for (u64 work = blockIdx.x; work < count; work += gridDim.x) {
        const u64 row = work / chunks, chunk = work - row * chunks;
        const RowKeys<FIRST> own(keys, x_shape, row, flip);
        const u64 begin = chunk * CHUNK;
        for (u32 k = 0; k < WARPS; k++) found[k][threadIdx.x] = 0;
        __syncthreads();
        KEY own_keys[EACH];
        u32 ranks[EACH];
#pragma unroll
        for (u32 k = 0; k < EACH; k++) {
            const u64 at = begin + (warp * EACH + k) * 32 + lane;
            const bool is_there = at < len;
            own_keys[k] = is_there ? own[at] : (KEY)0;
            // Those that are not there have a digit of their own.
            const u32 digit = is_there ? (u32)((own_keys[k] >> shift) & 255) : DIGITS;
            const u32 equal = __match_any_sync(0xffffffff, digit);
            const u32 earlier = __popc(equal & ((1u << lane) - 1));
            const u32 before = is_there ? found[warp][digit] : 0;
            __syncwarp();
            if (is_there && earlier == 0) found[warp][digit] = before + __popc(equal);
            __syncwarp();
            ranks[k] = before + earlier;
        }
        __syncthreads();
        // One digit a thread.
        u32 in_chunk = 0, all;
        for (u32 k = 0; k < WARPS; k++) {
            const u32 of_warp = found[k][threadIdx.x];
            found[k][threadIdx.x] = in_chunk;
            in_chunk += of_warp;
        }
        const u32 start = scan_block<Count<u32>>(in_chunk, small_warps, all);
        for (u32 k = 0; k < WARPS; k++) found[k][threadIdx.x] += start;
        PLACE total;
        const u64 digit = row * DIGITS + threadIdx.x;
        const PLACE lower = scan_block<Count<PLACE>>(totals[digit], warps, total);
        starts[threadIdx.x] = lower + counts[digit * chunks + chunk] - start;
        __syncthreads();
#pragma unroll
        for (u32 k = 0; k < EACH; k++) {
            const u64 at = begin + (warp * EACH + k) * 32 + lane;
            if (at < len) {
                const u32 to = found[warp][(own_keys[k] >> shift) & 255] + ranks[k];
                sorted_keys[to] = own_keys[k];
                sorted_places[to] = FIRST ? (PLACE)at : places[row * len + at];
            }
        }
        __syncthreads();
#pragma unroll
        for (u32 k = 0; k < EACH; k++) {
            const u32 at = k * THREADS + threadIdx.x;
            if (begin + at < len) {
                const KEY key = sorted_keys[at];
                const PLACE to = starts[(key >> shift) & 255] + at;
                // Counts come from memory.
                if (to < len) {
                    keys_to[row * len + to] = key;
                    places_to[row * len + to] = sorted_places[at];
                }
            }
        }
        __syncthreads();
    }
}

#ifdef KERNEL_move_first
// Three blocks at once fill a multiprocessor's shared memory.
extern "C" __global__ void __launch_bounds__(THREADS, 3)
    move_first(KEY* __restrict__ keys_to, PLACE* __restrict__ places_to,
               const KEY* __restrict__ x, const Shape x_shape, const PLACE* __restrict__ counts,
               const PLACE* __restrict__ totals, u64 chunks, u64 count, u64 flip) {
    move_by_digit<true>(keys_to, places_to, x, nullptr, x_shape, counts, totals, chunks, count,
                        flip, 0);
}
#endif

#ifdef KERNEL_move_next
extern "C" __global__ void __launch_bounds__(THREADS, 3)
    move_next(KEY* __restrict__ keys_to, PLACE* __restrict__ places_to,
              const KEY* __restrict__ keys, const Shape x_shape, const PLACE* __restrict__ counts,
              const PLACE* __restrict__ totals, u64 chunks, u64 count,
              const PLACE* __restrict__ places, u32 shift) {
    move_by_digit<false>(keys_to, places_to, keys, places, x_shape, counts, totals, chunks, count,
                         0, shift);
}
#endif

#ifdef KERNEL_take_sorted
// Writes `count` elements of each sorted row, from the `first` one on.
extern "C" __global__ void take_sorted(KEY* __restrict__ values, const Shape values_shape,
                                       i64* __restrict__ indices, const Shape indices_shape,
                                       const KEY* __restrict__ x, const Shape x_shape,
                                       const KEY* __restrict__ keys,
                                       const PLACE* __restrict__ places, u64 rows, u64 first,
                                       u64 count, u64 flip, u32 parts) {
    const u64 len = x_shape.extents[0], step = (u64)gridDim.x * blockDim.x;
    for (u64 n = (u64)blockIdx.x * blockDim.x + threadIdx.x; n < rows * count; n += step) {
        const u64 row = n / count, at = n - row * count;
        const KEY* const own = keys + row * len;
        u64 in = first + at;
        if (KIND == FLOAT && (parts & NAN_IF_ANY) && own[len - 1] == LAST_KEY) {
            in = count_before([&](u64 at) { return own[at]; }, len, LAST_KEY, false);
        }
        if (in >= len) continue;
        Sorted to;
        to.values = values + row_offset(values_shape, row);
        to.indices = indices + row_offset(indices_shape, row);
        to.value_stride = values_shape.strides[0];
        to.index_stride = indices_shape.strides[0];
        write_sorted(to, at, own[in] ^ (KEY)flip, places[row * len + in],
                     x + row_offset(x_shape, row), x_shape.strides[0], len, parts);
    }
}
#endif
#endif

#ifdef KERNEL_search_rows
// For each value the number of elements of its sorted row that are before it; with `or_equal` also
// those that are equal.
extern "C" __global__ void search_rows(i64* __restrict__ to, const Shape to_shape,
                                       const KEY* __restrict__ sorted, const Shape sorted_shape,
                                       const KEY* __restrict__ values, const Shape values_shape,
                                       u64 count, u32 or_equal) {
    const u64 len = values_shape.extents[0], step = (u64)gridDim.x * blockDim.x;
    for (u64 n = (u64)blockIdx.x * blockDim.x + threadIdx.x; n < count; n += step) {
        const u64 row = n / len;
        const i64 at = (i64)(n - row * len);
        const KEY* const in = sorted + row_offset(sorted_shape, row);
        const KEY* const own = values + row_offset(values_shape, row);
        const KEY key = key_of(own[at * values_shape.strides[0]]);
        const i64 stride = sorted_shape.strides[0];
        const u64 place = count_before([&](u64 at) { return key_of(in[(i64)at * stride]); },
                                       sorted_shape.extents[0], key, or_equal != 0);
        to[row_offset(to_shape, row) + at * to_shape.strides[0]] = (i64)place;
    }
}
#endif
