// Attention over cached keys and values of 16 or 8 bits by tensor cores ("FlashAttention-2", Dao,
// 2023). ELEMENT is the type of queries and results, CACHED that of the cache; POSITION, SEQUENCE
// and TABLE are types of whole numbers. The cache is that of attention.cu.
//
// A row is one head of a token; the GROUP heads of a block's TOKENS tokens share keys and values.
// KEYS of them at a time come through shared memory. Each row keeps its largest score, the sum of
// weights, and the sum of values by them. Queries and weights are rounded to CACHED,
// or to f16 for one of 8 bits, whose values are exact in f16.
//
// With IS_PLAIN scores are neither limited nor biased.
//
// With BY_KEYS, all warps have the rows of one token, and each has a part of the keys; otherwise
// each has 16 rows and all keys.
#include "attention.cuh"
#include "blocks.cuh"
#include "fragments.cuh"
#include "overlap.cuh"

#define WARPS (THREADS / 32)
#define OWN_KEYS (BY_KEYS ? KEYS / WARPS : KEYS)
// Chunks of eight elements from one key to the next: odd, so that eight rows lie in different banks.
#define KEY_PITCH (LENGTH / 8 + 1)
#define VALUE_PITCH (VALUE_LENGTH / 8 + 1)
// Rows that warps have in common.
#define MERGED 8
#define LEAST_SCORE (-as_float(0x7f800000))
#define LOG2_E 1.4426950408889634f
#define LN_2 0.6931471805599453f
#define ALL_KEYS (~0ull >> (64 - KEYS))

typedef Computed<ELEMENT> As;
typedef TensorCore<Wide<CACHED>::type> Core;

// The larger, or NaN if either is.
__device__ __forceinline__ float most_of(float a, float b) {
    float most;
    asm("max.NaN.f32 %0, %1, %2;" : "=f"(most) : "f"(a), "f"(b));
    return most;
}

// 2^x. It is 0 where that is below the least normal float.
__device__ __forceinline__ float power_of_two(float x) {
    float power;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(power) : "f"(x));
    return power;
}

// What rows have in common.
struct Target {
    ELEMENT* to;
    const Shape& shape;
    float* parts;
    const float* sink;
    i64 sink_stride;
    u64 split, splits;

    // Stores an element of a row by the sum of values, and the row's largest score, as a power of
    // 2, and sum of weights.
    __device__ __forceinline__ void store(u64 token, u64 head, u32 d, float sum, float largest,
                                          float total) const {
        if (splits > 1) {
            float* part = parts + ((token * shape.extents[1] + head) * splits + split) * PART;
            part[d] = sum;
            if (d == 0) {
                part[VALUE_LENGTH] = largest * LN_2;
                part[VALUE_LENGTH + 1] = total;
            }
            return;
        }
        if (sink != nullptr) {
            const float other = sink[(i64)head * sink_stride] * LOG2_E;
            const float most = most_of(other, largest);
            const float by = largest == LEAST_SCORE ? 0.0f : exp2f(largest - most);
            sum *= by;
            total = total * by + (other == LEAST_SCORE ? 0.0f : exp2f(other - most));
        }
        // Without a key the result is 0.
        to[(i64)token * shape.strides[0] + (i64)head * shape.strides[1] +
           (i64)d * shape.strides[2]] = As::store(total == 0 ? 0.0f : sum / total);
    }
};

// Places of the keys of a tile: offsets in both parts of the cache, and a bit for each that is there.
struct TileKeys {
    i64 keys[KEYS], values[KEYS];
    u32 valid[KEYS / 32];

    __device__ __forceinline__ void find(u64 tile, u64 end, i64 own, u64 shared_head,
                                         const Shape& k, const Shape& v, const TABLE* table,
                                         const Shape& table_shape) {
        if (threadIdx.x >= KEYS) return;
        const u64 key = tile + threadIdx.x, places = k.extents[1];
        i64 key_row = NO_ROW, value_row = NO_ROW;
        if (key < end) {
            const u64 number =
                (key | places) >> 32 == 0 ? (u32)key / (u32)places : key / places;
            const i64 place = (i64)(key - number * places);
            const i64 block = (i64)table[own * table_shape.strides[0] +
                                         (i64)number * table_shape.strides[1]];
            if ((u64)block < k.extents[0]) {
                key_row = block * k.strides[0] + place * k.strides[1] +
                          (i64)shared_head * k.strides[2];
                value_row = block * v.strides[0] + place * v.strides[1] +
                            (i64)shared_head * v.strides[2];
            }
        }
        keys[threadIdx.x] = key_row;
        values[threadIdx.x] = value_row;
        const u32 bits = __ballot_sync(0xffffffff, key_row != NO_ROW);
        if (threadIdx.x % 32 == 0) valid[threadIdx.x / 32] = bits;
    }

    __device__ __forceinline__ u64 all_valid() const {
        u64 bits = 0;
#pragma unroll
        for (u32 word = 0; word < KEYS / 32; word++) bits |= (u64)valid[word] << (32 * word);
        return bits;
    }
};

// Loads rows of CHUNKS chunks each; those that are not there are 0.
template <u32 CHUNKS>
__device__ __forceinline__ void load_rows(uint4* tile, const CACHED* from, const i64* rows) {
    if (sizeof(CACHED) == 1) {
        // All are on their way before the first one is made wider.
        const u32 count = KEYS * CHUNKS / THREADS;
        typedef Wide<CACHED>::Raw Raw;
        Raw all[count];
#pragma unroll
        for (u32 i = 0; i < count; i++) {
            const u32 at = i * THREADS + threadIdx.x;
            const i64 row = rows[at / CHUNKS];
            all[i] = Wide<CACHED>::none();
            if (row == NO_ROW) continue;
            all[i] = *reinterpret_cast<const Raw*>(from + row + at % CHUNKS * 8);
        }
#pragma unroll
        for (u32 i = 0; i < count; i++) {
            const u32 at = i * THREADS + threadIdx.x;
            tile[at / CHUNKS * (CHUNKS + 1) + at % CHUNKS] = Wide<CACHED>::eight(all[i]);
        }
        return;
    }
#pragma unroll
    for (u32 at = threadIdx.x; at < KEYS * CHUNKS; at += THREADS) {
        const u32 key = at / CHUNKS, chunk = at % CHUNKS;
        const i64 row = rows[key];
        const bool is_there = row != NO_ROW;
        copy_eight(tile + key * (CHUNKS + 1) + chunk, is_there ? from + row + chunk * 8 : from,
                   is_there ? 8 : 0);
    }
}

extern "C" __global__ void __launch_bounds__(THREADS)
    flash(ELEMENT* to, const Shape to_shape, float* parts, const ELEMENT* q,
          const Shape q_shape, const CACHED* k, const Shape k_shape,
          const CACHED* v, const Shape v_shape, const TABLE* table,
          const Shape table_shape, const SEQUENCE* sequence, i64 sequence_stride,
          const POSITION* position, i64 position_stride,
          const float* sink, i64 sink_stride, double scale, double limit, double bias,
          u64 biased, u64 window, u64 shared_heads, u64 groups, u64 splits) {
    __shared__ union __align__(16) {
        struct {
            uint4 keys[KEYS * KEY_PITCH];
            uint4 values[KEYS * VALUE_PITCH];
        } tile;
        float merged[BY_KEYS ? WARPS * MERGED * VALUE_LENGTH : 1];
    } shared;
    __shared__ TileKeys found[2];
    __shared__ i64 positions[TOKENS], sequences[TOKENS];
    __shared__ float all_largest[WARPS][MERGED], all_totals[WARPS][MERGED];
    overlap_launches();
    const u32 thread = threadIdx.x, lane = thread % 32, warp = thread / 32;
    const u64 of_token = shared_heads * groups, tokens = q_shape.extents[0];
    // The last tokens, which have the most keys, first.
    const u64 tile_number = (gridDim.x - 1 - blockIdx.x) / of_token;
    const u64 group_number = (gridDim.x - 1 - blockIdx.x) - tile_number * of_token;
    const u64 first_token = tile_number * TOKENS, first_head = group_number * GROUP;
    const u64 shared_head = group_number / groups;
    const u32 count = tokens - first_token < TOKENS ? (u32)(tokens - first_token) : TOKENS;
    const Target target = {to, to_shape, parts, sink, sink_stride, blockIdx.y, splits};

    for (u32 at = thread; at < count; at += THREADS) {
        positions[at] = (i64)position[(i64)(first_token + at) * position_stride];
        sequences[at] = (i64)sequence[(i64)(first_token + at) * sequence_stride];
    }
    // The two rows of this thread: tokens of this tile, and heads.
    u32 own_token[2];
    u64 own_head[2];
    u32 queries[LENGTH / 16][4];
#pragma unroll
    for (u32 i = 0; i < 2; i++) {
        const u32 row = (BY_KEYS ? 0 : warp * 16) + lane / 4 + 8 * i;
        own_token[i] = row / GROUP;
        own_head[i] = first_head + row % GROUP;
        const bool is_row = own_token[i] < count;
        const ELEMENT* from = q;
        if (is_row) {
            from += (i64)(first_token + own_token[i]) * q_shape.strides[0] +
                    (i64)own_head[i] * q_shape.strides[1];
        }
#pragma unroll
        for (u32 part = 0; part < LENGTH / 8; part++) {
            const i64 d = part * 8 + lane % 4 * 2;
            const float low = is_row ? As::load(from[d * q_shape.strides[2]]) : 0.0f;
            const float high = is_row ? As::load(from[(d + 1) * q_shape.strides[2]]) : 0.0f;
            queries[part / 2][part % 2 * 2 + i] = Core::pair(low, high);
        }
    }
    const u32 first_key = BY_KEYS ? warp * OWN_KEYS : 0;
    const float factor = IS_PLAIN ? (float)(scale * (double)LOG2_E) : (float)scale;
    float sums[VALUE_LENGTH / 8][4] = {};
    float largest[2] = {LEAST_SCORE, LEAST_SCORE}, total[2] = {0.0f, 0.0f};
    __syncthreads();

    // Tokens of one sequence after another.
    u32 next_token = 0;
    for (u32 run = 0; run < count; run = next_token) {
        const i64 own = sequences[run];
        u64 begin = ~0ull, end = 0;
        for (next_token = run; next_token < count && sequences[next_token] == own; next_token++) {
            const i64 last = positions[next_token];
            if (last < 0) continue;
            const u64 until = (u64)last + 1;
            const u64 from = window > 0 && until > window ? until - window : 0;
            if (until > end) end = until;
            if (from < begin) begin = from;
        }
        const u64 room = table_shape.extents[1] * k_shape.extents[1];
        if (end > room) end = room;
        if ((u64)own >= table_shape.extents[0] || begin >= end) continue;
        // Whole tiles for each split.
        const u64 of_split = ((end - begin + splits - 1) / splits + KEYS - 1) / KEYS * KEYS;
        begin += blockIdx.y * of_split;
        if (begin >= end) continue;
        if (end - begin > of_split) end = begin + of_split;

        u32 current = 0;
        found[0].find(begin, end, own, shared_head, k_shape, v_shape, table, table_shape);
        __syncthreads();
        load_rows<LENGTH / 8>(shared.tile.keys, k, found[0].keys);
        commit();
        for (u64 tile = begin; tile < end; tile += KEYS) {
            const u64 next = tile + KEYS;
            load_rows<VALUE_LENGTH / 8>(shared.tile.values, v, found[current].values);
            commit();
            if (next < end) {
                found[current ^ 1].find(next, end, own, shared_head, k_shape, v_shape, table,
                                        table_shape);
            }
            wait_for_all_but<1>();
            __syncthreads();
            float scores[OWN_KEYS / 8][4] = {};
#pragma unroll
            for (u32 depth = 0; depth < LENGTH / 16; depth++) {
#pragma unroll
                for (u32 j = 0; j < OWN_KEYS / 16; j++) {
                    u32 b[4];
                    const u32 key = first_key + j * 16 + lane % 8 + lane / 16 * 8;
                    load_matrices<false>(
                        b, shared.tile.keys + key * KEY_PITCH + depth * 2 + lane / 8 % 2);
                    const u32(&a)[4] = queries[depth];
                    Core::multiply(scores[2 * j], a[0], a[1], a[2], a[3], b[0], b[1]);
                    Core::multiply(scores[2 * j + 1], a[0], a[1], a[2], a[3], b[2], b[3]);
                }
            }
            __syncthreads();
            if (next < end) {
                load_rows<LENGTH / 8>(shared.tile.keys, k, found[current ^ 1].keys);
            }
            commit();
            const u64 valid = found[current].all_valid();
#pragma unroll
            for (u32 i = 0; i < 2; i++) {
                const bool is_own = own_token[i] >= run && own_token[i] < next_token;
                const i64 last = is_own ? positions[own_token[i]] : -1;
                // Bits of the keys of this row.
                const i64 after = last - (i64)tile;
                u64 mask = valid;
                if (last < 0 || after < 0) {
                    mask = 0;
                } else if (after < 63) {
                    mask &= ~0ull >> (63 - after);
                }
                if (window > 0 && after >= 0 && (u64)after >= window) {
                    const u64 before = (u64)after - window + 1;
                    mask = before > 63 ? 0 : mask & ~0ull << before;
                }
                const bool has_all = mask == ALL_KEYS;
                mask >>= first_key + lane % 4 * 2;
#pragma unroll
                for (u32 j = 0; j < OWN_KEYS / 8; j++) {
#pragma unroll
                    for (u32 c = 0; c < 2; c++) {
                        float& score = scores[j][2 * i + c];
                        score *= factor;
#if !IS_PLAIN
                        if (limit > 0) score = (float)limit * tanhf(score / (float)limit);
                        if (bias > 0) {
                            const i64 key = (i64)(first_key + lane % 4 * 2 + j * 8 + c);
                            score += slope<float>(bias, biased, own_head[i]) * (float)(key - after);
                        }
                        score *= LOG2_E;
#endif
                    }
                }
                if (!has_all) {
#pragma unroll
                    for (u32 j = 0; j < OWN_KEYS / 8; j++) {
#pragma unroll
                        for (u32 c = 0; c < 2; c++) {
                            if (!(mask >> (j * 8 + c) & 1)) scores[j][2 * i + c] = LEAST_SCORE;
                        }
                    }
                }
                float most = largest[i];
#pragma unroll
                for (u32 j = 0; j < OWN_KEYS / 8; j++) {
#pragma unroll
                    for (u32 c = 0; c < 2; c++) most = most_of(most, scores[j][2 * i + c]);
                }
                most = most_of(most, __shfl_xor_sync(0xffffffff, most, 1));
                most = most_of(most, __shfl_xor_sync(0xffffffff, most, 2));
                const float by = largest[i] == most ? 1.0f : power_of_two(largest[i] - most);
                const float base = most == LEAST_SCORE ? 0.0f : most;
                largest[i] = most;
                float sum = 0;
#pragma unroll
                for (u32 j = 0; j < OWN_KEYS / 8; j++) {
#pragma unroll
                    for (u32 c = 0; c < 2; c++) {
                        float& score = scores[j][2 * i + c];
                        score = power_of_two(score - base);
                        sum += score;
                    }
                }
                total[i] = total[i] * by + sum;
#pragma unroll
                for (u32 j = 0; j < VALUE_LENGTH / 8; j++) {
                    sums[j][2 * i] *= by;
                    sums[j][2 * i + 1] *= by;
                }
            }
            wait_for_all_but<1>();
            __syncthreads();
#pragma unroll
            for (u32 depth = 0; depth < OWN_KEYS / 16; depth++) {
                const float(&near)[4] = scores[2 * depth], (&far)[4] = scores[2 * depth + 1];
                const u32 a[4] = {Core::pair(near[0], near[1]), Core::pair(near[2], near[3]),
                                  Core::pair(far[0], far[1]), Core::pair(far[2], far[3])};
                const uint4* row = shared.tile.values +
                                   (first_key + depth * 16 + lane % 16) * VALUE_PITCH + lane / 16;
#pragma unroll
                for (u32 j = 0; j < VALUE_LENGTH / 16; j++) {
                    u32 b[4];
                    load_matrices<true>(b, row + j * 2);
                    Core::multiply(sums[2 * j], a[0], a[1], a[2], a[3], b[0], b[1]);
                    Core::multiply(sums[2 * j + 1], a[0], a[1], a[2], a[3], b[2], b[3]);
                }
            }
            __syncthreads();
            current ^= 1;
        }
        wait_for_all_but<0>();
    }
#pragma unroll
    for (u32 i = 0; i < 2; i++) {
        total[i] += __shfl_xor_sync(0xffffffff, total[i], 1);
        total[i] += __shfl_xor_sync(0xffffffff, total[i], 2);
    }
    if (!BY_KEYS) {
#pragma unroll
        for (u32 i = 0; i < 2; i++) {
            if (own_token[i] >= count) continue;
#pragma unroll
            for (u32 j = 0; j < VALUE_LENGTH / 8; j++) {
#pragma unroll
                for (u32 c = 0; c < 2; c++) {
                    target.store(first_token + own_token[i], own_head[i], j * 8 + lane % 4 * 2 + c,
                                 sums[j][2 * i + c], largest[i], total[i]);
                }
            }
        }
        return;
    }
    __syncthreads();
    // Rows of the second half are of no head.
    const u32 row = lane / 4;
    if (lane % 4 == 0) {
        all_largest[warp][row] = largest[0];
        all_totals[warp][row] = total[0];
    }
#pragma unroll
    for (u32 j = 0; j < VALUE_LENGTH / 8; j++) {
#pragma unroll
        for (u32 c = 0; c < 2; c++) {
            shared.merged[(warp * MERGED + row) * VALUE_LENGTH + j * 8 + lane % 4 * 2 + c] =
                sums[j][c];
        }
    }
    __syncthreads();
    for (u32 at = thread; at < GROUP * VALUE_LENGTH; at += THREADS) {
        const u32 g = at / VALUE_LENGTH, d = at % VALUE_LENGTH;
        float most = LEAST_SCORE, sum = 0, all = 0;
#pragma unroll
        for (u32 w = 0; w < WARPS; w++) most = most_of(most, all_largest[w][g]);
#pragma unroll
        for (u32 w = 0; w < WARPS; w++) {
            const float by = all_largest[w][g] == LEAST_SCORE ? 0.0f
                                                              : exp2f(all_largest[w][g] - most);
            if (by == 0) continue;
            sum += shared.merged[(w * MERGED + g) * VALUE_LENGTH + d] * by;
            all += all_totals[w][g] * by;
        }
        target.store(first_token, first_head + g, d, sum, most, all);
    }
}
