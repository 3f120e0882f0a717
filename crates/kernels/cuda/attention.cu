// Attention over cached keys and values, and rotary positions. ELEMENT is the type of queries and
// results, CACHED that of the cache; POSITION, SEQUENCE, TABLE and SLOT are types of whole numbers.
//
// A cache has blocks of `places` positions each. Position p of a sequence is place p % places of
// the block that the sequence's row of the table names at p / places. A block that the table has no
// room for, or that the cache does not have, has no keys.
#include "attention.cuh"
#include "blocks.cuh"
#include "checked.cuh"
#include "overlap.cuh"

typedef Computed<ELEMENT> As;
typedef As::type Real;

#ifdef KERNEL_rotate
// Turns pairs of elements of each head by angle position * frequency; others are copied. A pair is
// two neighbours, or elements half of the turned ones apart. A thread turns a pair or copies one.
extern "C" __global__ void rotate(ELEMENT* to, const Shape to_shape, const ELEMENT* x,
                                  const Shape x_shape, const POSITION* __restrict__ position,
                                  i64 position_stride, const float* __restrict__ frequency,
                                  i64 frequency_stride, double magnitude, u64 pairs, u64 rest,
                                  u64 heads, u64 count) {
    EACH_ELEMENT(at, count) {
        const u64 each = pairs + rest;
        const u64 row = at / each, part = at - row * each;
        const u64 token = row / heads, head = row - token * heads;
        const ELEMENT* from = x + (i64)token * x_shape.strides[0] + (i64)head * x_shape.strides[1];
        ELEMENT* target = to + (i64)token * to_shape.strides[0] + (i64)head * to_shape.strides[1];
        if (part >= pairs) {
            const i64 element = (i64)(part + pairs);
            target[element * to_shape.strides[2]] = from[element * x_shape.strides[2]];
            continue;
        }
        const i64 first = (i64)(IS_ADJACENT ? 2 * part : part);
        const i64 second = IS_ADJACENT ? first + 1 : first + (i64)pairs;
        const Real angle = (Real)position[(i64)token * position_stride] *
                           (Real)frequency[(i64)part * frequency_stride];
        Real sine, cosine;
        sine_cosine(angle, &sine, &cosine);
        sine *= (Real)magnitude;
        cosine *= (Real)magnitude;
        const Real a = As::load(from[first * x_shape.strides[2]]);
        const Real b = As::load(from[second * x_shape.strides[2]]);
        target[first * to_shape.strides[2]] = As::store(a * cosine - b * sine);
        target[second * to_shape.strides[2]] = As::store(a * sine + b * cosine);
    }
}
#endif

#ifdef KERNEL_append
// Stores rows in the places of a cache that `slot` numbers through all blocks.
extern "C" __global__ void append(CACHED* cache, const Shape cache_shape,
                                  const ELEMENT* __restrict__ rows, const Shape rows_shape,
                                  const SLOT* __restrict__ slot, i64 slot_stride, u64 places,
                                  u64 slots, u64 heads, u64 length, u64 count, u64* fault) {
    EACH_ELEMENT(at, count) {
        const u64 row = at / length, element = at - row * length;
        const u64 token = row / heads, head = row - token * heads;
        const i64 chosen = (i64)slot[(i64)token * slot_stride];
        if (!is_inside(chosen, slots, token, fault)) continue;
        const u64 block = (u64)chosen / places, place = (u64)chosen - block * places;
        const Real value = As::load(rows[(i64)token * rows_shape.strides[0] +
                                         (i64)head * rows_shape.strides[1] +
                                         (i64)element * rows_shape.strides[2]]);
        cache[(i64)block * cache_shape.strides[0] + (i64)place * cache_shape.strides[1] +
              (i64)head * cache_shape.strides[2] + (i64)element * cache_shape.strides[3]] =
            Computed<CACHED>::store((Computed<CACHED>::type)value);
    }
}
#endif

#if defined(KERNEL_attend) || defined(KERNEL_combine)
#define LEAST_SCORE (-(Real)INFINITE)
#define INFINITE as_float(0x7f800000)

__device__ __forceinline__ float bent(float x) { return tanhf(x); }
__device__ __forceinline__ double bent(double x) { return tanh(x); }
#endif

#ifdef KERNEL_attend
#define THREADS 128
#define WARPS (THREADS / 32)
// Threads that go over the elements of a value at once, and parts of the keys among the others.
#define ACROSS (VALUE_LENGTH < THREADS ? VALUE_LENGTH : THREADS)
#define PARTS (THREADS / ACROSS)
#define EACH ((VALUE_LENGTH + ACROSS - 1) / ACROSS)
// Values that a thread reads before it adds them.
#define LOADED (EACH > 2 ? 4 : 16)

template <int COUNT>
struct __align__(sizeof(CACHED) * COUNT) Packed {
    CACHED all[COUNT];
};

// One block for a token, GROUP heads that share keys and values, and a part of the positions. A
// thread computes the scores of one key of a tile, then some elements of the sum of values.
extern "C" __global__ void __launch_bounds__(THREADS)
    attend(ELEMENT* to, const Shape to_shape, Real* parts, const ELEMENT* q,
           const Shape q_shape, const CACHED* k, const Shape k_shape,
           const CACHED* v, const Shape v_shape, const TABLE* table,
           const Shape table_shape, const SEQUENCE* sequence, i64 sequence_stride,
           const POSITION* position, i64 position_stride,
           const float* sink, i64 sink_stride, double scale, double limit,
           double bias, u64 biased, u64 window, u64 shared_heads, u64 groups, u64 splits,
           u64 per_split) {
    __shared__ Real queries[GROUP][LENGTH];
    __shared__ Real scores[GROUP][THREADS];
    __shared__ Real largest[GROUP], total[GROUP], factor[GROUP];
    __shared__ i64 rows[THREADS];
    __shared__ Real sums[PARTS > 1 ? GROUP * ACROSS * PARTS : 1];
    overlap_launches();
    const u32 thread = threadIdx.x, lane = thread % 32, warp = thread / 32;
    const u64 split = blockIdx.y;
    const u64 token = blockIdx.x / (shared_heads * groups);
    const u64 of_token = blockIdx.x - token * shared_heads * groups;
    const u64 shared_head = of_token / groups, group = of_token - shared_head * groups;
    const u64 head = (shared_head * groups + group) * GROUP;

    const i64 last = (i64)position[(i64)token * position_stride];
    const i64 own = (i64)sequence[(i64)token * sequence_stride];
    const u64 places = k_shape.extents[1];
    u64 end = last < 0 || (u64)own >= table_shape.extents[0] ? 0 : (u64)last + 1;
    const u64 room = table_shape.extents[1] * places;
    u64 begin = window > 0 && end > window ? end - window : 0;
    if (end > room) end = room;
    const u64 from_split = split * per_split, until_split = from_split + per_split;
    if (begin < from_split) begin = from_split;
    if (end > until_split) end = until_split;

    for (u32 at = thread; at < GROUP * LENGTH; at += THREADS) {
        const u32 g = at / LENGTH, d = at % LENGTH;
        queries[g][d] = As::load(q[(i64)token * q_shape.strides[0] +
                                   (i64)(head + g) * q_shape.strides[1] +
                                   (i64)d * q_shape.strides[2]]) * (Real)scale;
    }
    if (thread < GROUP) {
        largest[thread] = LEAST_SCORE;
        total[thread] = 0;
    }
    Real all[GROUP][EACH];
#pragma unroll
    for (int g = 0; g < GROUP; g++) {
#pragma unroll
        for (int e = 0; e < EACH; e++) all[g][e] = 0;
    }
    const u32 part = thread / ACROSS, column = thread % ACROSS;

    for (u64 tile = begin; tile < end; tile += THREADS) {
        __syncthreads();
        const u64 key = tile + thread;
        i64 value_row = NO_ROW;
        Real own_scores[GROUP];
#pragma unroll
        for (int g = 0; g < GROUP; g++) own_scores[g] = LEAST_SCORE;
        if (key < end) {
            const u64 number = key / places, place = key - number * places;
            const i64 block = (i64)table[own * table_shape.strides[0] +
                                         (i64)number * table_shape.strides[1]];
            if ((u64)block < k_shape.extents[0]) {
                const CACHED* row = k + block * k_shape.strides[0] +
                                    (i64)place * k_shape.strides[1] +
                                    (i64)shared_head * k_shape.strides[2];
                value_row = block * v_shape.strides[0] + (i64)place * v_shape.strides[1] +
                            (i64)shared_head * v_shape.strides[2];
#pragma unroll
                for (int g = 0; g < GROUP; g++) own_scores[g] = 0;
#pragma unroll 4
                for (int d = 0; d < LENGTH; d += WIDTH) {
                    Packed<WIDTH> some;
                    if (WIDTH > 1) {
                        some = *(const Packed<WIDTH>*)(row + d);
                    } else {
                        some.all[0] = row[(i64)d * k_shape.strides[3]];
                    }
#pragma unroll
                    for (int e = 0; e < WIDTH; e++) {
                        const Real element = (Real)Computed<CACHED>::load(some.all[e]);
#pragma unroll
                        for (int g = 0; g < GROUP; g++) {
                            own_scores[g] += queries[g][d + e] * element;
                        }
                    }
                }
            }
        }
        rows[thread] = value_row;
#pragma unroll
        for (int g = 0; g < GROUP; g++) {
            Real score = own_scores[g];
            if (value_row != NO_ROW) {
                if (limit > 0) score = (Real)limit * bent(score / (Real)limit);
                if (bias > 0) score += slope<Real>(bias, biased, head + g) * (Real)((i64)key - last);
            }
            scores[g][thread] = score;
        }
        __syncthreads();
        for (int g = warp; g < GROUP; g += WARPS) {
            const Real before = largest[g];
            Real most = before;
#pragma unroll
            for (int e = 0; e < WARPS; e++) {
                most = MostOf<Real>::combine(most, scores[g][lane + 32 * e]);
            }
#pragma unroll
            for (int distance = 16; distance > 0; distance /= 2) {
                most = MostOf<Real>::combine(most, __shfl_xor_sync(0xffffffff, most, distance));
            }
            Real sum = 0;
#pragma unroll
            for (int e = 0; e < WARPS; e++) {
                const u32 at = lane + 32 * e;
                const Real weight =
                    most == LEAST_SCORE ? (Real)0 : exponential(scores[g][at] - most);
                scores[g][at] = weight;
                sum += weight;
            }
#pragma unroll
            for (int distance = 16; distance > 0; distance /= 2) {
                sum += __shfl_xor_sync(0xffffffff, sum, distance);
            }
            if (lane == 0) {
                const Real by = before == most ? (Real)1 : exponential(before - most);
                factor[g] = by;
                total[g] = total[g] * by + sum;
                largest[g] = most;
            }
        }
        __syncthreads();
        if (part < PARTS) {
#pragma unroll
            for (int g = 0; g < GROUP; g++) {
#pragma unroll
                for (int e = 0; e < EACH; e++) all[g][e] *= factor[g];
            }
            // Rows behind the last key have no value. LOADED keys are read before they are added.
            for (u32 at = part; at < THREADS; at += PARTS * LOADED) {
                if (tile + at >= end) break;
                CACHED some[LOADED][EACH];
#pragma unroll
                for (int l = 0; l < LOADED; l++) {
                    const u32 own_key = at + l * PARTS;
                    const i64 row = own_key < THREADS ? rows[own_key] : NO_ROW;
#pragma unroll
                    for (int e = 0; e < EACH; e++) {
                        const u32 d = column + e * ACROSS;
                        const bool is_value =
                            row != NO_ROW && (VALUE_LENGTH % ACROSS == 0 || d < VALUE_LENGTH);
                        some[l][e] = is_value ? v[row + (i64)d * v_shape.strides[3]] : CACHED{};
                    }
                }
#pragma unroll
                for (int l = 0; l < LOADED; l++) {
                    const u32 own_key = at + l * PARTS;
                    if (own_key >= THREADS) continue;
#pragma unroll
                    for (int e = 0; e < EACH; e++) {
                        const Real value = (Real)Computed<CACHED>::load(some[l][e]);
#pragma unroll
                        for (int g = 0; g < GROUP; g++) {
                            all[g][e] += scores[g][own_key] * value;
                        }
                    }
                }
            }
        }
    }
    __syncthreads();
    if (PARTS > 1) {
        // ACROSS is VALUE_LENGTH, and EACH is 1.
        if (part < PARTS) {
#pragma unroll
            for (int g = 0; g < GROUP; g++) sums[(g * PARTS + part) * ACROSS + column] = all[g][0];
        }
        __syncthreads();
        if (part == 0) {
#pragma unroll
            for (int g = 0; g < GROUP; g++) {
                for (u32 other = 1; other < PARTS; other++) {
                    all[g][0] += sums[(g * PARTS + other) * ACROSS + column];
                }
            }
        }
    }
    if (part != 0) return;
#pragma unroll
    for (int g = 0; g < GROUP; g++) {
        if (splits > 1) {
            Real* of_split =
                parts + ((token * q_shape.extents[1] + head + g) * splits + split) * PART;
#pragma unroll
            for (int e = 0; e < EACH; e++) {
                const u32 d = column + e * ACROSS;
                if (d < VALUE_LENGTH) of_split[d] = all[g][e];
            }
            if (column == 0) {
                of_split[VALUE_LENGTH] = largest[g];
                of_split[VALUE_LENGTH + 1] = total[g];
            }
            continue;
        }
        Real by = 1, sum = total[g];
        if (sink != nullptr) {
            const Real other = sink[(i64)(head + g) * sink_stride];
            const Real most = MostOf<Real>::combine(other, largest[g]);
            by = largest[g] == LEAST_SCORE ? (Real)0 : exponential(largest[g] - most);
            sum = sum * by + (most == LEAST_SCORE ? (Real)0 : exponential(other - most));
        }
#pragma unroll
        for (int e = 0; e < EACH; e++) {
            const u32 d = column + e * ACROSS;
            if (d >= VALUE_LENGTH) continue;
            // Without a key the result is 0.
            const Real value = sum == 0 ? (Real)0 : all[g][e] * by / sum;
            to[(i64)token * to_shape.strides[0] + (i64)(head + g) * to_shape.strides[1] +
               (i64)d * to_shape.strides[2]] = As::store(value);
        }
    }
}
#endif

#ifdef KERNEL_combine
#define COMBINED (THREADS_COMBINE / 32)

// Joins the splits of a token's head: a warp, whose lanes go over the splits, then over elements.
extern "C" __global__ void __launch_bounds__(THREADS_COMBINE)
    combine(ELEMENT* to, const Shape to_shape, const Real* parts,
            const float* sink, i64 sink_stride, u64 splits, u64 rows) {
    __shared__ Real weights[COMBINED][MOST_SPLITS];
    overlap_launches();
    const u32 warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    const u64 row = (u64)blockIdx.x * COMBINED + warp;
    if (row >= rows) return;
    const u64 heads = to_shape.extents[1];
    const u64 token = row / heads, head = row - token * heads;
    const Real* own = parts + row * splits * PART;
    const Real other = sink == nullptr ? LEAST_SCORE : (Real)sink[(i64)head * sink_stride];
    Real most = other;
    for (u32 split = lane; split < splits; split += 32) {
        const Real largest = own[split * PART + VALUE_LENGTH];
        weights[warp][split] = largest;
        most = MostOf<Real>::combine(most, largest);
    }
#pragma unroll
    for (int distance = 16; distance > 0; distance /= 2) {
        most = MostOf<Real>::combine(most, __shfl_xor_sync(0xffffffff, most, distance));
    }
    Real sum = 0;
    for (u32 split = lane; split < splits; split += 32) {
        const Real largest = weights[warp][split];
        const Real weight = largest == LEAST_SCORE ? (Real)0 : exponential(largest - most);
        weights[warp][split] = weight;
        if (weight != 0) sum += own[split * PART + VALUE_LENGTH + 1] * weight;
    }
#pragma unroll
    for (int distance = 16; distance > 0; distance /= 2) {
        sum += __shfl_xor_sync(0xffffffff, sum, distance);
    }
    if (other != LEAST_SCORE) sum += exponential(other - most);
    __syncwarp();
    for (u32 d = lane; d < VALUE_LENGTH; d += 32) {
        Real value = 0;
        for (u32 split = 0; split < splits; split++) {
            // Splits behind the last position have none.
            const Real weight = weights[warp][split];
            if (weight != 0) value += own[split * PART + d] * weight;
        }
        to[(i64)token * to_shape.strides[0] + (i64)head * to_shape.strides[1] +
           (i64)d * to_shape.strides[2]] = As::store(sum == 0 ? (Real)0 : value / sum);
    }
}
#endif
