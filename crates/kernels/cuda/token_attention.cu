// Attention of tokens of which each is the last one of its sequence: norms of heads, rotary
// positions, the cache's new keys and values, and attention, in one launch.
//
// x has the heads of queries, of keys and of values of each token, one after another. The cache is
// that of attention.cu; `slot` is the place of the token's position. ELEMENT is the type of x and of
// results, CACHED that of the cache; POSITION, SEQUENCE, TABLE and SLOT are types of whole numbers.
//
// A block has GROUP heads that share keys and values, of a token, and a part of its keys, of which
// there are as many as suffice. With IS_EARLY what does not depend on x is read before the kernel
// before has ended, which must not write it: positions, places, the table, norms, and keys and values
// of earlier tokens. LANES lanes have a key, 16 bytes each, and keep the largest score,
// the sum of weights and that of values by them. The block that is ready last joins the parts; it
// finds that out by `arrived`, which is 0 before and after.
#include "attention.cuh"
#include "checked.cuh"
#include "overlap.cuh"

#define WARPS 8
#define THREADS (WARPS * 32)
#define EACH_LANE 0xffffffffu
#define LEAST_SCORE (-as_float(0x7f800000))

typedef Computed<ELEMENT> As;
typedef Computed<CACHED> Kept;

// A sequence's keys and values of one head.
struct CachedRows {
    const CACHED *k, *v;
    i64 k_block, k_place, v_block, v_place, block_stride;
    const TABLE* blocks;
    u64 block_count;
    u32 places;

    // Finds a key and its value; the table may have a block that the cache lacks.
    __device__ __forceinline__ bool find(u32 number, const uint4*& key, const uint4*& value) const {
        const u32 of_table = number / places;
        const i64 place = number - of_table * places;
        const i64 block = (i64)blocks[(i64)of_table * block_stride];
        if ((u64)block >= block_count) return false;
        key = reinterpret_cast<const uint4*>(k + block * k_block + place * k_place);
        value = reinterpret_cast<const uint4*>(v + block * v_block + place * v_place);
        return true;
    }
};

// By how much a sum for one largest score is scaled for another one. Scores are logarithms to base 2.
__device__ __forceinline__ float factor(float most, float both) {
    return most == LEAST_SCORE ? 0.0f : exp2f(most - both);
}

// The larger score; NaN stays.
__device__ __forceinline__ float larger(float most, float other) {
    return other != other || other > most ? other : most;
}

#define LOG2_E 1.44269504f

// A score to base 2, of one that is multiplied by LOG2_E unless scores are limited.
__device__ __forceinline__ float limited(float score, float limit) {
    return HAS_LIMIT ? limit * tanhf(score / limit) * LOG2_E : score;
}

#if IS_TILED
#include "token_tiles.cuh"
#else
#include "token_lanes.cuh"
#endif

// A head of x by its norm and its position, as a warp. Factors are sines and cosines.
__device__ __forceinline__ void put_head(float* to, float* row, const ELEMENT* from, i64 stride,
                                         const ELEMENT* norm, i64 norm_stride, float eps,
                                         const float2* factors, float scale) {
    const u32 lane = threadIdx.x % 32;
    float squares = 0;
    for (u32 d = lane; d < LENGTH; d += 32) {
        row[d] = As::load(from[(i64)d * stride]);
        squares += row[d] * row[d];
    }
    if (norm != nullptr) {
#pragma unroll
        for (u32 distance = 16; distance > 0; distance /= 2) {
            squares += __shfl_xor_sync(EACH_LANE, squares, distance);
        }
        const float by = 1.0f / sqrtf(squares / (float)LENGTH + eps);
        for (u32 d = lane; d < LENGTH; d += 32) {
            row[d] = row[d] * by * As::load(norm[(i64)d * norm_stride]);
        }
    }
    __syncwarp();
    for (u32 d = lane; d < LENGTH; d += 32) {
        float value = row[d];
        if (d < 2 * PAIRS) {
            const PairPlace place = pair_place<IS_ADJACENT>(d, PAIRS);
            const float2 by = factors[place.pair];
            value = place.is_second ? row[place.other] * by.x + value * by.y
                                    : value * by.y - row[place.other] * by.x;
        }
        to[d] = value * scale;
    }
}

// Stores an element of a result by its sums.
__device__ __forceinline__ void store_head(ELEMENT* to, const Shape& shape, u32 token, u32 head,
                                           u32 d, float sum, float total) {
    // Without a key the result is 0.
    to[(i64)token * shape.strides[0] + (i64)head * shape.strides[1] + (i64)d * shape.strides[2]] =
        As::store(total == 0 ? 0.0f : sum / total);
}

extern "C" __global__ void __launch_bounds__(THREADS, 2)
    token_attention(ELEMENT* to, const Shape to_shape, CACHED* k_to, const Shape k_to_shape,
                    CACHED* v_to, const Shape v_to_shape, u32* arrived, float* parts,
                    const CACHED* k, const Shape k_shape, const CACHED* v, const Shape v_shape,
                    const ELEMENT* x, const Shape x_shape, const POSITION* position, i64 position_stride,
                    const float* frequency, i64 frequency_stride, const SLOT* slot, i64 slot_stride,
                    const TABLE* table, const Shape table_shape, const SEQUENCE* sequence,
                    i64 sequence_stride, const ELEMENT* q_norm, i64 q_norm_stride,
                    const ELEMENT* k_norm, i64 k_norm_stride,
                    double eps, double magnitude, double scale, double limit, u64 window,
                    u64 groups, u64* fault) {
    __shared__ __align__(16) float queries[GROUP][LENGTH];
    __shared__ __align__(16) CACHED own_key[LENGTH], own_value[LENGTH];
    __shared__ union {
        float rows[WARPS][2][LENGTH];
        float sums[WARPS][GROUP][LENGTH];
    } shared;
    __shared__ float all_most[WARPS][GROUP], all_totals[WARPS][GROUP];
    __shared__ float2 factors[PAIRS > 0 ? PAIRS : 1];
    __shared__ bool is_ready_last;
    allow_next();
    if (!IS_EARLY) wait_for_previous();
    const u32 warp = threadIdx.x / 32, lane = threadIdx.x % 32, splits = gridDim.y;
    const u32 heads = (u32)to_shape.extents[1], shared_heads = (u32)k_shape.extents[2];
    const u32 of_token = shared_heads * (u32)groups;
    const u32 token = blockIdx.x / of_token, part_of_token = blockIdx.x - token * of_token;
    const u32 shared_head = part_of_token / (u32)groups;
    const u32 group = part_of_token - shared_head * (u32)groups;
    const u32 first_head = part_of_token * GROUP;

    const i64 last = (i64)position[(i64)token * position_stride];
    const i64 own = (i64)sequence[(i64)token * sequence_stride];
    const i64 chosen = (i64)slot[(i64)token * slot_stride];
    const u32 places = (u32)k_shape.extents[1];
    u64 end = last < 0 || (u64)own >= table_shape.extents[0] ? 0 : (u64)last + 1;
    u64 begin = window > 0 && end > window ? end - window : 0;
    const u64 room = table_shape.extents[1] * places;
    if (end > room) end = room;
    if (begin > end) begin = end;
    // Parts of equal length, as many as have enough keys.
    u64 length = (end - begin + splits - 1) / splits;
    length = length < LEAST_PART ? LEAST_PART : (length + LEAST_PART - 1) / LEAST_PART * LEAST_PART;
    const u64 needed = (end - begin + length - 1) / length;
    const u32 active = needed > 0 ? (u32)needed : 1, split = blockIdx.y;
    if (split >= active) return;
    const u64 from = begin + split * length;
    const u64 until = from + length < end ? from + length : end;
    const bool has_own = (u64)last >= from && (u64)last < until;
    const bool is_stored = split + 1 == active && group == 0;

    for (u32 pair = threadIdx.x; pair < PAIRS; pair += THREADS) {
        float sine, cosine;
        sine_cosine((float)last * frequency[(i64)pair * frequency_stride], &sine, &cosine);
        factors[pair] = make_float2(sine * (float)magnitude, cosine * (float)magnitude);
    }
    const CachedRows rows = {k + (i64)shared_head * k_shape.strides[2],
                             v + (i64)shared_head * v_shape.strides[2],
                             k_shape.strides[0],
                             k_shape.strides[1],
                             v_shape.strides[0],
                             v_shape.strides[1],
                             table_shape.strides[1],
                             table + own * table_shape.strides[0],
                             k_shape.extents[0],
                             places};
    // The key that is not in the cache yet, if it is of this part.
    const u32 own_number = has_own ? (u32)last : 0xffffffffu;
    PartSums sums;
    u32 base = (u32)from + warp * KEYS_OF_WARP;
    sums.load(rows, base, (u32)until, own_number);
    __syncthreads();
    if (IS_EARLY) wait_for_previous();

    // Heads of queries, and that of keys where it is needed.
    const ELEMENT* of_x = x + (i64)token * x_shape.strides[0];
    for (u32 head = warp; head < GROUP + 1; head += WARPS) {
        const bool is_key = head == GROUP;
        // Zeros are defined, though not used.
        if (is_key && !has_own && !is_stored) {
            for (u32 d = lane; d < LENGTH; d += 32) own_key[d] = Kept::store(0.0f);
            break;
        }
        const u32 column = is_key ? heads + shared_head : first_head + head;
        float* turned_row = is_key ? shared.rows[warp][1] : queries[head];
        put_head(turned_row, shared.rows[warp][0], of_x + (i64)(column * LENGTH) * x_shape.strides[1],
                 x_shape.strides[1], is_key ? k_norm : q_norm, is_key ? k_norm_stride : q_norm_stride,
                 (float)eps, factors,
                 is_key ? 1.0f : (float)scale * (HAS_LIMIT ? 1.0f : LOG2_E));
        if (is_key) {
            for (u32 d = lane; d < LENGTH; d += 32) own_key[d] = Kept::store(turned_row[d]);
        }
        __syncwarp();
    }
    const u32 of_value = (heads + shared_heads + shared_head) * LENGTH;
    for (u32 d = threadIdx.x; d < LENGTH; d += THREADS) {
        const bool is_needed = has_own || is_stored;
        const ELEMENT* value = of_x + (i64)(of_value + d) * x_shape.strides[1];
        own_value[d] = Kept::store(is_needed ? As::load(*value) : 0.0f);
    }
    __syncthreads();
    const u64 slots = k_shape.extents[0] * places;
    if (is_stored && is_inside(chosen, slots, token, threadIdx.x == 0 ? fault : nullptr)) {
        const i64 block = chosen / places, place = chosen - block * places;
        CACHED* key = k_to + block * k_to_shape.strides[0] + place * k_to_shape.strides[1] +
                      (i64)shared_head * k_to_shape.strides[2];
        CACHED* value = v_to + block * v_to_shape.strides[0] + place * v_to_shape.strides[1] +
                        (i64)shared_head * v_to_shape.strides[2];
        for (u32 d = threadIdx.x; d < LENGTH; d += THREADS) {
            key[(i64)d * k_to_shape.strides[3]] = own_key[d];
            value[(i64)d * v_to_shape.strides[3]] = own_value[d];
        }
    }

    sums.begin(queries);
    while (true) {
        if (has_own) {
            sums.put_own(base, own_number, reinterpret_cast<const uint4*>(own_key),
                         reinterpret_cast<const uint4*>(own_value));
        }
        if (base >= until) break;
        base += WARPS * KEYS_OF_WARP;
        sums.add(rows, base, (u32)until, own_number, (float)limit);
    }
    // The rows are in `queries` and `own_key` by now.
    sums.finish(shared.sums[warp], all_most[warp], all_totals[warp]);
    __syncthreads();
    float* own_parts = parts + ((u64)token * heads + first_head) * splits * PART;
    for (u32 at_head = threadIdx.x; at_head < GROUP * LENGTH; at_head += THREADS) {
        const u32 g = at_head / LENGTH, d = at_head % LENGTH;
        float most = LEAST_SCORE, sum = 0, total = 0;
#pragma unroll
        for (u32 w = 0; w < WARPS; w++) {
            most = larger(most, all_most[w][g]);
        }
#pragma unroll
        for (u32 w = 0; w < WARPS; w++) {
            const float by = factor(all_most[w][g], most);
            sum += shared.sums[w][g][d] * by;
            total += all_totals[w][g] * by;
        }
        if (active == 1) {
            store_head(to, to_shape, token, first_head + g, d, sum, total);
            continue;
        }
        float* part = own_parts + ((u64)g * splits + split) * PART;
        part[d] = sum;
        if (d == 0) {
            part[LENGTH] = most;
            part[LENGTH + 1] = total;
        }
    }
    if (active == 1) return;
    __threadfence();
    __syncthreads();
    if (threadIdx.x == 0) {
        const u32 before = atomicAdd(arrived + blockIdx.x, 1);
        is_ready_last = before + 1 == active;
        if (is_ready_last) atomicExch(arrived + blockIdx.x, 0);
        __threadfence();
    }
    __syncthreads();
    if (!is_ready_last) return;
    for (u32 at_head = threadIdx.x; at_head < GROUP * LENGTH; at_head += THREADS) {
        const u32 g = at_head / LENGTH, d = at_head % LENGTH;
        const float* of_head = own_parts + (u64)g * splits * PART;
        float most = LEAST_SCORE, sum = 0, total = 0;
        for (u32 other = 0; other < active; other++) {
            most = larger(most, __ldcg(of_head + other * PART + LENGTH));
        }
        for (u32 other = 0; other < active; other++) {
            const float* part = of_head + other * PART;
            const float by = factor(__ldcg(part + LENGTH), most);
            sum += __ldcg(part + d) * by;
            total += __ldcg(part + LENGTH + 1) * by;
        }
        store_head(to, to_shape, token, first_head + g, d, sum, total);
    }
}
