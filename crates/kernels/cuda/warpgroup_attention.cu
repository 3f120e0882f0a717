// Attention of whole sequences by warpgroups, on sm_90a ("FlashAttention-3", Shah and others, 2024).
// A block goes over tiles of ROWS queries of one head: a warpgroup copies the queries and, KEYS at a
// time and STAGES ahead, keys and values by tensor maps; two others have 64 queries each. While one
// computes weights, the other's products keep the tensor cores busy; and of one warpgroup the
// products of the next keys run while the weights of the last are computed.
//
// With IN_QUERIES results leave through the memory of the queries that they are of, which the next
// ones enter later.
//
// Each row keeps its largest score, the sum of weights, and the sum of values by them. Weights are
// rounded to ELEMENT.
//
// A query attends to the keys up to its place, counted so that the last query is the last key's, if
// IS_CAUSAL; with HAS_WINDOW to the last `window` of those. HAS_LIMIT limits scores by tanh, and
// with HAS_SINKS each head has a score without value.
#include "fragments.cuh"
#include "hopper.cuh"

DEFINE_WARPGROUP_PRODUCT(KEYS)
DEFINE_FRAGMENT_PRODUCT(VALUE_LENGTH)

#define ROWS 128
#define THREADS 384
#define LINE 64
#define KEY_PARTS (LENGTH / LINE)
#define VALUE_PARTS (VALUE_LENGTH / LINE)
#define QUERY_BYTES (ROWS * LENGTH * 2)
#define KEY_BYTES (KEYS * LENGTH * 2)
#define VALUE_BYTES (KEYS * VALUE_LENGTH * 2)
#define RESULT_BYTES (ROWS * VALUE_LENGTH * 2)
#define LEAST_SCORE (-as_float(0x7f800000))
#define LOG2_E 1.4426950408889634f

struct Shared {
    Barrier queries, queries_free;
    Barrier keys[STAGES], keys_free[STAGES], values[STAGES], values_free[STAGES];
};

struct Slot {
    u32 stage, parity;

    __device__ __forceinline__ void next() {
        stage = stage == STAGES - 1 ? 0 : stage + 1;
        parity ^= stage == 0;
    }
};

// Numbers of the whole launch.
struct Extents {
    u32 tokens, keys, heads, group, batches, section, window, pair;

    __device__ __forceinline__ u32 tiles_down() const { return (tokens + ROWS - 1) / ROWS; }
    // Tiles, or with pairs twice the pairs, of which the middle one may have one tile.
    __device__ __forceinline__ u32 numbers() const {
        const u32 down = (tiles_down() + pair - 1) / pair * pair;
        return down * heads * batches;
    }
    // The number of this block's next tile: both of a pair follow each other.
    __device__ __forceinline__ u32 next(u32 number) const {
        if (pair == 1) return number + gridDim.x;
        return number % 2 == 0 ? number + 1 : number - 1 + 2 * gridDim.x;
    }
    // The key of the first query; before the first key where there are fewer keys than queries.
    __device__ __forceinline__ int first_place() const { return (int)keys - (int)tokens; }
};

struct Tile {
    u32 batch, head, row;
    // Tiles of keys: from the first one to before the last.
    int first, last;
    bool is_there;
};

// A tile by its number: a section of heads after another, whose keys and values stay in the cache,
// and in each the last queries first, which have the most keys. With a causal mask a block takes
// pairs of tiles, one with many keys and one with few, so that all pairs take as long.
__device__ __forceinline__ Tile tile_of(const Extents& extents, u32 number) {
    const u32 down = extents.tiles_down(), all = extents.heads * extents.batches;
    const u32 pairs_down = (down + extents.pair - 1) / extents.pair;
    const u32 unit = number / extents.pair, is_second = number % extents.pair;
    const u32 section = unit / (extents.section * pairs_down);
    const u32 in_section = unit - section * extents.section * pairs_down;
    const u32 left_over = all - section * extents.section;
    const u32 width = left_over < extents.section ? left_over : extents.section;
    const u32 head = section * extents.section + in_section % width;
    const u32 from_last = in_section / width, from_first = down - 1 - from_last;
    const u32 row = (is_second ? from_last : from_first) * ROWS;
    const bool is_there = is_second == 0 || from_last != from_first;
    Tile tile = {head / extents.heads, head % extents.heads, row, 0, 0, is_there};
    int end = (int)extents.keys;
    const int place = (int)row + extents.first_place();
#if IS_CAUSAL
    if (place + ROWS < end) end = place + ROWS;
#endif
#if HAS_WINDOW
    const int begin = place - (int)extents.window + 1;
    if (begin > 0) tile.first = begin / KEYS;
#endif
    tile.last = end > 0 ? (end + KEYS - 1) / KEYS : 0;
    return tile;
}

__device__ __forceinline__ void copy_keys(u8* stages, Shared& shared, const TensorMap& q_map,
                                          const TensorMap& k_map, const TensorMap& v_map,
                                          const Extents& extents, u8* queries) {
    Slot slot = {0, 1};
    u32 parity = 1;
    const u32 end = extents.numbers();
    for (u32 number = blockIdx.x * extents.pair; number < end; number = extents.next(number)) {
        const Tile tile = tile_of(extents, number);
        if (!tile.is_there) continue;
        const int shared_head = (int)(tile.head / extents.group);
        // Also those of a tile without keys, whose results may leave through their memory.
        shared.queries_free.wait<false>(parity);
        parity ^= 1;
        shared.queries.expect(QUERY_BYTES);
#pragma unroll
        for (u32 part = 0; part < KEY_PARTS; part++) {
            load_box(queries + part * (ROWS * LINE * 2), q_map, shared.queries, part * LINE,
                     (int)tile.head, (int)tile.row, (int)tile.batch);
        }
        for (int at = tile.last - 1; at >= tile.first; at--) {
            u8* const keys = stages + slot.stage * (KEY_BYTES + VALUE_BYTES);
            u8* const values = keys + KEY_BYTES;
            Barrier& keys_full = shared.keys[slot.stage];
            shared.keys_free[slot.stage].wait<false>(slot.parity);
            keys_full.expect(KEY_BYTES);
#pragma unroll
            for (u32 part = 0; part < KEY_PARTS; part++) {
                load_box(keys + part * (KEYS * LINE * 2), k_map, keys_full, part * LINE,
                         shared_head, at * KEYS, (int)tile.batch);
            }
            Barrier& values_full = shared.values[slot.stage];
            shared.values_free[slot.stage].wait<false>(slot.parity);
            values_full.expect(VALUE_BYTES);
#pragma unroll
            for (u32 part = 0; part < VALUE_PARTS; part++) {
                load_box(values + part * (KEYS * LINE * 2), v_map, values_full, part * LINE,
                         shared_head, at * KEYS, (int)tile.batch);
            }
            slot.next();
        }
    }
}

__device__ __forceinline__ float power_of_two(float x) {
    float power;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(power) : "f"(x));
    return power;
}

__device__ __forceinline__ float larger(float a, float b) {
    float most;
    asm("max.NaN.f32 %0, %1, %2;" : "=f"(most) : "f"(a), "f"(b));
    return most;
}

// The products of a warpgroup's queries with a tile of keys.
__device__ __forceinline__ void multiply_keys(float (&scores)[KEYS / 2], const u8* queries,
                                              const u8* keys) {
#pragma unroll
    for (u32 step = 0; step < LENGTH / 16; step++) {
        // Four steps are a line of 128 bytes; parts follow each other.
        const u32 part = step / 4, within = step % 4 * 32;
        const u64 a = factor_of(queries + part * (ROWS * LINE * 2) + within, 0);
        const u64 b = factor_of(keys + part * (KEYS * LINE * 2) + within, 0);
        WarpgroupProduct<ELEMENT, KEYS>::multiply<0, 0>(scores, a, b, step > 0);
    }
    commit_products();
}

// Adds the products of weights with a tile of values.
__device__ __forceinline__ void multiply_values(float (&sums)[VALUE_LENGTH / 2],
                                                const u32 (&weights)[KEYS / 16][4],
                                                const u8* values, bool adds) {
#pragma unroll
    for (u32 step = 0; step < KEYS / 16; step++) {
        const u64 b = factor_of(values + step * 2048, KEYS * LINE * 2);
        FragmentProduct<ELEMENT, VALUE_LENGTH>::multiply<1>(sums, weights[step], b,
                                                            adds || step > 0);
    }
    commit_products();
}

// What the two rows of a thread have so far.
struct Rows {
    float largest[2], total[2];

    // Turns scores into weights; returns what earlier sums are multiplied with.
    __device__ __forceinline__ float2 weigh(float (&scores)[KEYS / 2], float factor) {
        float by[2];
#pragma unroll
        for (u32 i = 0; i < 2; i++) {
            float most = largest[i];
#pragma unroll
            for (u32 j = 0; j < KEYS / 8; j++) {
                most = larger(most, scores[4 * j + 2 * i]);
                most = larger(most, scores[4 * j + 2 * i + 1]);
            }
            most = larger(most, __shfl_xor_sync(0xffffffff, most, 1));
            most = larger(most, __shfl_xor_sync(0xffffffff, most, 2));
            const float base = most == LEAST_SCORE ? 0.0f : most * factor;
            by[i] = power_of_two(largest[i] * factor - base);
            largest[i] = most;
            float sum = 0;
#pragma unroll
            for (u32 j = 0; j < KEYS / 8; j++) {
#pragma unroll
                for (u32 c = 0; c < 2; c++) {
                    float& score = scores[4 * j + 2 * i + c];
                    score = power_of_two(__fmaf_rn(score, factor, -base));
                    sum += score;
                }
            }
            total[i] = total[i] * by[i] + sum;
        }
        return make_float2(by[0], by[1]);
    }
};

__device__ __forceinline__ void round_weights(u32 (&weights)[KEYS / 16][4],
                                              const float (&scores)[KEYS / 2]) {
#pragma unroll
    for (u32 step = 0; step < KEYS / 16; step++) {
#pragma unroll
        for (u32 at = 0; at < 4; at++) {
            weights[step][at] = TensorCore<ELEMENT>::pair(scores[step * 8 + at * 2],
                                                          scores[step * 8 + at * 2 + 1]);
        }
    }
}

// Scores of keys that a row does not attend to become the least one.
__device__ __forceinline__ void mask(float (&scores)[KEYS / 2], const Extents& extents, int row,
                                     int first_key) {
    const int lane = threadIdx.x % 32;
#pragma unroll
    for (u32 i = 0; i < 2; i++) {
        int end = (int)extents.keys - first_key, begin = -KEYS;
        const int place = row + (int)i * 8 + extents.first_place() - first_key;
#if IS_CAUSAL
        if (place + 1 < end) end = place + 1;
#endif
#if HAS_WINDOW
        begin = place - (int)extents.window + 1;
#endif
#pragma unroll
        for (u32 j = 0; j < KEYS / 8; j++) {
#pragma unroll
            for (u32 c = 0; c < 2; c++) {
                const int key = (int)j * 8 + lane % 4 * 2 + (int)c;
                if (key >= end || key < begin) scores[4 * j + 2 * i + c] = LEAST_SCORE;
            }
        }
    }
}

// Whether some row of a warpgroup does not attend to some key of a tile.
__device__ __forceinline__ bool needs_mask(const Extents& extents, int first_row, int first_key) {
    const int place = first_row + extents.first_place();
    bool is_needed = first_key + KEYS > (int)extents.keys;
#if IS_CAUSAL
    is_needed |= first_key + KEYS - 1 > place;
#endif
#if HAS_WINDOW
    is_needed |= first_key <= place + 63 - (int)extents.window;
#endif
    return is_needed;
}

__device__ __forceinline__ void limit_scores(float (&scores)[KEYS / 2], float scale, float limit) {
#if HAS_LIMIT
#pragma unroll
    for (u32 i = 0; i < KEYS / 2; i++) scores[i] = limit * tanhf(scores[i] * scale / limit);
#endif
}

extern "C" __global__ void __launch_bounds__(THREADS, 1)
    warpgroup_attention(const __grid_constant__ TensorMap q_map,
                        const __grid_constant__ TensorMap k_map,
                        const __grid_constant__ TensorMap v_map,
                        const __grid_constant__ TensorMap to_map, const float* sink,
                        i64 sink_stride, double scale_of_scores, double limit_of_scores, u32 tokens, u32 keys, u32 heads,
                        u32 group, u32 batches, u32 section, u32 window, u32 pair) {
    extern __shared__ __align__(1024) u8 dynamic[];
    __shared__ Shared shared;
    const float scale = (float)scale_of_scores, limit = (float)limit_of_scores;
    u8* const queries = dynamic + (1024 - shared_address(dynamic) % 1024) % 1024;
    u8* const stages = queries + QUERY_BYTES;
    const Extents extents = {tokens, keys, heads, group, batches, section, window, pair};
    if (threadIdx.x == 0) {
        prefetch_map(q_map);
        prefetch_map(k_map);
        prefetch_map(v_map);
        shared.queries.start(1);
        shared.queries_free.start(2);
        for (u32 stage = 0; stage < STAGES; stage++) {
            shared.keys[stage].start(1);
            shared.values[stage].start(1);
            shared.keys_free[stage].start(2);
            shared.values_free[stage].start(2);
        }
        publish_barriers();
    }
    __syncthreads();
    if (threadIdx.x < 128) {
        give_registers<24>();
        if (threadIdx.x == 0) copy_keys(stages, shared, q_map, k_map, v_map, extents, queries);
        return;
    }
    take_registers<240>();
    const u32 own = threadIdx.x / 128 - 1, thread = threadIdx.x % 128, lane = thread % 32;
    const u8* const own_queries = queries + own * (64 * LINE * 2);
#if IN_QUERIES
    u8* const staged = queries + own * (64 * LINE * 2);
#else
    u8* const staged = stages + STAGES * (KEY_BYTES + VALUE_BYTES) + own * (64 * LINE * 2);
#endif
#if HAS_LIMIT
    const float factor = LOG2_E;
#else
    const float factor = scale * LOG2_E;
#endif
    Slot keys_slot = {0, 0}, values_slot = {0, 0};
    u32 parity = 0;
    // The first warpgroup's turn.
    if (own == 1) arrive_some(1, 256);
    const u32 end = extents.numbers();
    for (u32 number = blockIdx.x * extents.pair; number < end; number = extents.next(number)) {
        const Tile tile = tile_of(extents, number);
        if (!tile.is_there) continue;
        const int first_row = (int)(tile.row + own * 64);
        const int row = first_row + (int)(thread / 32 * 16 + lane / 4);
        float sums[VALUE_LENGTH / 2];
        Rows rows = {{LEAST_SCORE, LEAST_SCORE}, {0.0f, 0.0f}};
        shared.queries.wait<false>(parity);
        parity ^= 1;
        if (tile.first < tile.last) {
            float scores[KEYS / 2];
            u32 weights[KEYS / 16][4];
            shared.keys[keys_slot.stage].wait<false>(keys_slot.parity);
            begin_products();
            multiply_keys(scores, own_queries,
                          stages + keys_slot.stage * (KEY_BYTES + VALUE_BYTES));
            wait_for_products<0>();
            settle(scores);
            if (thread == 0) shared.keys_free[keys_slot.stage].arrive();
            keys_slot.next();
            int at = tile.last - 1;
            limit_scores(scores, scale, limit);
            if (needs_mask(extents, first_row, at * KEYS)) mask(scores, extents, row, at * KEYS);
            rows.weigh(scores, factor);
            round_weights(weights, scores);
            bool adds = false;
#pragma unroll 1
            for (at--; at >= tile.first; at--) {
                shared.keys[keys_slot.stage].wait<false>(keys_slot.parity);
                sync_some(1 + own, 256);
                begin_products();
                multiply_keys(scores, own_queries,
                              stages + keys_slot.stage * (KEY_BYTES + VALUE_BYTES));
                shared.values[values_slot.stage].wait<false>(values_slot.parity);
                begin_products();
                multiply_values(
                    sums, weights,
                    stages + values_slot.stage * (KEY_BYTES + VALUE_BYTES) + KEY_BYTES, adds);
                adds = true;
                arrive_some(2 - own, 256);
                wait_for_products<1>();
                settle(scores);
                if (thread == 0) shared.keys_free[keys_slot.stage].arrive();
                keys_slot.next();
                limit_scores(scores, scale, limit);
                if (needs_mask(extents, first_row, at * KEYS)) {
                    mask(scores, extents, row, at * KEYS);
                }
                const float2 by = rows.weigh(scores, factor);
                wait_for_products<0>();
                settle(sums);
                if (thread == 0) shared.values_free[values_slot.stage].arrive();
                values_slot.next();
#pragma unroll
                for (u32 j = 0; j < VALUE_LENGTH / 8; j++) {
                    sums[4 * j] *= by.x, sums[4 * j + 1] *= by.x;
                    sums[4 * j + 2] *= by.y, sums[4 * j + 3] *= by.y;
                }
                round_weights(weights, scores);
            }
#if !IN_QUERIES
            // The queries are read.
            if (thread == 0) shared.queries_free.arrive();
#endif
            shared.values[values_slot.stage].wait<false>(values_slot.parity);
            begin_products();
            multiply_values(sums, weights,
                            stages + values_slot.stage * (KEY_BYTES + VALUE_BYTES) + KEY_BYTES,
                            adds);
            wait_for_products<0>();
            settle(sums);
            if (thread == 0) shared.values_free[values_slot.stage].arrive();
            values_slot.next();
        } else {
#if !IN_QUERIES
            if (thread == 0) shared.queries_free.arrive();
#endif
#pragma unroll
            for (u32 i = 0; i < VALUE_LENGTH / 2; i++) sums[i] = 0.0f;
        }
        float by[2];
#pragma unroll
        for (u32 i = 0; i < 2; i++) {
            float total = rows.total[i];
            total += __shfl_xor_sync(0xffffffff, total, 1);
            total += __shfl_xor_sync(0xffffffff, total, 2);
#if HAS_SINKS
            const float other = sink[(i64)tile.head * sink_stride] * LOG2_E;
            const float own_largest = rows.largest[i] * factor;
            const float most = larger(other, own_largest);
            const float part =
                rows.largest[i] == LEAST_SCORE ? 0.0f : power_of_two(own_largest - most);
            total = total * part + (other == LEAST_SCORE ? 0.0f : power_of_two(other - most));
            by[i] = total == 0 ? 0.0f : part / total;
#else
            by[i] = total == 0 ? 0.0f : 1.0f / total;
#endif
        }
        // Results leave through shared memory, 64 elements of all rows in a box.
        if (thread == 0) wait_for_reads_of_stores();
        sync_some(3 + own, 128);
        const u32 line = thread / 32 * 16 + lane % 16;
#pragma unroll
        for (u32 j = 0; j < VALUE_LENGTH / 16; j++) {
            u32 words[4];
#pragma unroll
            for (u32 at = 0; at < 4; at++) {
                const float factor_here = by[at % 2];
                words[at] = TensorCore<ELEMENT>::pair(sums[j * 8 + at * 2] * factor_here,
                                                      sums[j * 8 + at * 2 + 1] * factor_here);
            }
            const u32 chunk = j * 2 + lane / 16;
            u8* const to = staged + chunk / 8 * (ROWS * LINE * 2) + line * (LINE * 2) +
                           (chunk % 8 ^ line % 8) * 16;
            asm volatile("stmatrix.sync.aligned.m8n8.x4.shared.b16 [%0], {%1, %2, %3, %4};" ::"r"(
                             shared_address(to)),
                         "r"(words[0]), "r"(words[1]), "r"(words[2]), "r"(words[3])
                         : "memory");
        }
        publish_to_copies();
        sync_some(3 + own, 128);
        if (thread == 0) {
            if (first_row < (int)tokens) {
#pragma unroll
                for (u32 part = 0; part < VALUE_PARTS; part++) {
                    store_box(to_map, staged + part * (ROWS * LINE * 2), part * LINE,
                              (int)tile.head, first_row, (int)tile.batch);
                }
            }
            commit_stores();
#if IN_QUERIES
            wait_for_reads_of_stores();
            shared.queries_free.arrive();
#endif
        }
    }
    // The other warpgroup has arrived once more.
    if (own == 0) sync_some(1, 256);
    if (thread == 0) wait_for_reads_of_stores();
}
