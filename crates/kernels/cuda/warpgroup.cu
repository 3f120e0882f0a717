// Matrix products of 16-bit floats by warpgroups, on sm_90a. A block goes over tiles of ROWS by
// COLUMNS of the result: one warpgroup copies tiles of both factors by tensor maps, STAGES ahead,
// to shared memory; WARPGROUPS others multiply, each its share of the rows. The results leave
// through shared memory, by a map, while the factors of the next tile come.
//
// CLUSTER blocks, 1 or 2, have tiles below each other, and each copies half of the right factor's
// tile to both. A block whose tile would be below the result multiplies the last one again and
// stores nothing.
//
// Shared memory has lines of 64 elements, along the depth (LEFT_ALONG_K, RIGHT_ALONG_K) or across
// it; the latter in parts of 64 elements, each DEPTH lines.
//
// SPLIT blocks of a cluster, instead, have parts of the depth of one tile, none of them empty. Each
// sends the others their columns' sums, and adds those of its own, in the blocks' order.
//
// It is the design of CUTLASS's persistent warp-specialised kernels (NVIDIA, sm_90).
#include "epilogue.cuh"
#include "fragments.cuh"
#include "hopper.cuh"

DEFINE_WARPGROUP_PRODUCT(COLUMNS)

#define DEPTH 64
// Rows of clusters' tiles whose blocks run together, to read the same columns from the cache.
#define STRIP 8
#define LINE 64
#define THREADS (128 * (WARPGROUPS + 1))
// With IN_TURNS each of two warpgroups has every second tile, and one multiplies while the other
// stores; else they share the rows of each.
#if IN_TURNS
#define OWN_ROWS ROWS
#else
#define OWN_ROWS (ROWS / WARPGROUPS)
#endif
// Products of 64 rows that a warpgroup has.
#define PIECES (OWN_ROWS / 64)
#define LEFT_BYTES (ROWS * DEPTH * 2)
#define PART_BYTES (DEPTH * LINE * 2)
// Boxes of the right factor's tile: along the depth one of each block's share of the columns, across
// it parts of 64.
#define RIGHT_PARTS (RIGHT_ALONG_K ? CLUSTER : (COLUMNS + LINE - 1) / LINE)
#define RIGHT_PART (RIGHT_ALONG_K ? COLUMNS / CLUSTER : LINE)
#define RIGHT_BYTES (RIGHT_PARTS * RIGHT_PART * DEPTH * 2)
// Blocks that have one tile, or tiles below each other.
#define BLOCKS (CLUSTER * SPLIT)

// Columns of a tile that a block stores, and those of a box, whose lines have a power of two bytes.
#define OWN_COLUMNS (COLUMNS / SPLIT)
#define STORED (OWN_COLUMNS % 64 == 0 ? 64 : OWN_COLUMNS % 32 == 0 ? 32 : 16)

struct Tile {
    u64 row, column;
    u32 batch;
    bool is_stored;
};

// A tile by its number: strips of STRIP clusters' rows, and in each by columns.
__device__ __forceinline__ Tile tile_of(u32 number, u32 down, u32 across, u32 rank, u64 rows) {
    const u32 of_batch = down * across;
    const u32 batch = number / of_batch, in_batch = number - batch * of_batch;
    const u32 strip = in_batch / (STRIP * across), in_strip = in_batch - strip * STRIP * across;
    const u32 left_down = down - strip * STRIP;
    const u32 height = left_down < STRIP ? left_down : STRIP;
    const u64 row = ((u64)(strip * STRIP + in_strip % height) * CLUSTER + rank) * ROWS;
    const bool is_stored = row < rows;
    return Tile{is_stored ? row : (rows - 1) / ROWS * ROWS, (u64)(in_strip / height) * COLUMNS,
                batch, is_stored};
}

struct Shared {
    Barrier full[STAGES], empty[STAGES];
#if IN_TURNS
    Barrier turns[2];
#endif
};

// Where a role is in the ring of slots.
struct Slot {
    u32 stage, parity;

    __device__ __forceinline__ void next() {
        stage = stage == STAGES - 1 ? 0 : stage + 1;
        parity ^= stage == 0;
    }

    __device__ __forceinline__ void skip(u32 steps) {
        const u32 to = stage + steps;
        stage = to % STAGES;
        parity ^= to / STAGES & 1;
    }
};

// The place of a part of a factor, none of whose boxes is outside altogether.
__device__ __forceinline__ int inside(u64 first, u64 extent) {
    return (int)(first < extent ? first : 0);
}

__device__ __forceinline__ void copy_factors(u8* stages, Shared& shared, const TensorMap& left_map,
                                             const TensorMap& right_map, u32 left_batched,
                                             u32 right_batched, u64 rows, u64 columns,
                                             u32 first_step, u32 last_step, u32 down, u32 across,
                                             u32 tiles, u32 rank) {
    Slot slot = {0, 1};
    for (u32 number = blockIdx.x / BLOCKS; number < tiles; number += gridDim.x / BLOCKS) {
        const Tile tile = tile_of(number, down, across, rank, rows);
        const int left_z = left_batched ? tile.batch : 0, right_z = right_batched ? tile.batch : 0;
        for (u32 step = first_step; step < last_step; step++) {
            const u32 k = step * DEPTH;
            Barrier& full = shared.full[slot.stage];
            shared.empty[slot.stage].wait<(CLUSTER > 1)>(slot.parity);
            full.expect(LEFT_BYTES + RIGHT_BYTES);
            u8* const left = stages + slot.stage * (LEFT_BYTES + RIGHT_BYTES);
            u8* const right = left + LEFT_BYTES;
            if (LEFT_ALONG_K) {
                load_box(left, left_map, full, (int)k, (int)tile.row, left_z);
            } else {
#pragma unroll
                for (u32 part = 0; part < ROWS / LINE; part++) {
                    load_box(left + part * PART_BYTES, left_map, full,
                             inside(tile.row + part * LINE, rows), (int)k, left_z);
                }
            }
#pragma unroll
            for (u32 part = 0; part < RIGHT_PARTS; part++) {
                // Each block of a cluster copies as many of them, or one more.
                if (part * CLUSTER / RIGHT_PARTS != rank) continue;
                u8* const to = right + part * (RIGHT_PART * DEPTH * 2);
                const int column = inside(tile.column + part * RIGHT_PART, columns);
                const int x = RIGHT_ALONG_K ? (int)k : column;
                const int y = RIGHT_ALONG_K ? column : (int)k;
                if (CLUSTER > 1) {
                    load_box_to_all(to, right_map, full, (u16)((1 << CLUSTER) - 1), x, y, right_z);
                } else {
                    load_box(to, right_map, full, x, y, right_z);
                }
            }
            slot.next();
        }
    }
}

// Sums of a warpgroup's rows of a tile.
struct Sums {
    float of[PIECES][COLUMNS / 2];
};

// Says that this warpgroup has read a slot, to the blocks that copy to it.
__device__ __forceinline__ void release(Barrier& empty) {
    const u32 thread = threadIdx.x % 128;
    if (CLUSTER > 1) {
        if (thread < CLUSTER) empty.arrive_at(thread);
    } else if (thread == 0) {
        empty.arrive();
    }
}

// Adds the products along the depth; slots are free again behind the products that read them.
__device__ __forceinline__ void multiply_tile(Sums& sums, u8* stages, Shared& shared, u32 steps,
                                              u32 first_row, Slot& slot) {
    u32 last = 0;
    for (u32 at = 0; at < steps; at++) {
        shared.full[slot.stage].wait<false>(slot.parity);
        u8* const left = stages + slot.stage * (LEFT_BYTES + RIGHT_BYTES);
        u8* const right = left + LEFT_BYTES;
        begin_products();
#pragma unroll
        for (u32 step = 0; step < DEPTH / 16; step++) {
            // 16 elements along a line are 32 bytes, and 16 lines are 2048.
            const u64 b = factor_of(right + step * (RIGHT_ALONG_K ? 32 : 2048), PART_BYTES);
#pragma unroll
            for (u32 piece = 0; piece < PIECES; piece++) {
                const u32 row = first_row + piece * 64;
                const u64 a = factor_of(left + row * DEPTH * 2 + step * (LEFT_ALONG_K ? 32 : 2048),
                                        PART_BYTES);
                WarpgroupProduct<ELEMENT, COLUMNS>::multiply<!LEFT_ALONG_K, !RIGHT_ALONG_K>(
                    sums.of[piece], a, b, at > 0 || step > 0);
            }
        }
        commit_products();
        if (at > 0) {
            wait_for_products<1>();
            release(shared.empty[last]);
        }
        last = slot.stage;
        slot.next();
    }
#if IN_TURNS
    // The other warpgroup's products may queue behind these.
    if (threadIdx.x % 128 == 0) shared.turns[2 - threadIdx.x / 128].arrive();
#endif
    wait_for_products<0>();
#pragma unroll
    for (u32 piece = 0; piece < PIECES; piece++) settle(sums.of[piece]);
    release(shared.empty[last]);
}

#if SPLIT > 1
// Leaves the sums of this block's columns, of all blocks' parts of the depth, at the beginning of
// `sums`. Each thread sends those that threads of its number need, in memory whose factors all have
// read.
__device__ __forceinline__ void combine(Sums& sums, u8* stages, u32 own, u32 rank) {
    const u32 each = OWN_COLUMNS / 2, thread = own * 128 + threadIdx.x % 128;
    float4* const received = reinterpret_cast<float4*>(stages);
    sync_cluster();
#pragma unroll
    for (u32 to = 0; to < SPLIT; to++) {
        if (to == rank) continue;
        const u32 there = shared_address_of(stages, to);
#pragma unroll
        for (u32 piece = 0; piece < PIECES; piece++) {
#pragma unroll
            for (u32 at = 0; at < each / 4; at++) {
                const float* from = sums.of[piece] + to * each + at * 4;
                const float4 four = make_float4(from[0], from[1], from[2], from[3]);
                const u32 place = ((rank * PIECES + piece) * (each / 4) + at) * (WARPGROUPS * 128);
                store_four(there + (place + thread) * 16, four);
            }
        }
    }
    sync_cluster();
#pragma unroll
    for (u32 piece = 0; piece < PIECES; piece++) {
#pragma unroll
        for (u32 at = 0; at < each / 4; at++) {
            float total[4] = {};
#pragma unroll
            for (u32 from = 0; from < SPLIT; from++) {
                const u32 place = ((from * PIECES + piece) * (each / 4) + at) * (WARPGROUPS * 128);
                float4 four;
                if (from == rank) {
                    const float* mine = sums.of[piece] + from * each + at * 4;
                    four = make_float4(mine[0], mine[1], mine[2], mine[3]);
                } else {
                    four = received[place + thread];
                }
                total[0] += four.x, total[1] += four.y, total[2] += four.z, total[3] += four.w;
            }
            // Of the first block these are its own sums, which are read; of another one, sums that
            // were sent.
#pragma unroll
            for (u32 i = 0; i < 4; i++) sums.of[piece][at * 4 + i] = total[i];
        }
    }
}
#endif

// Two neighbours of a row, whose first column is even, before they are rounded.
__device__ __forceinline__ float2 finished(const Epilogue& epilogue, float low, float high, u64 row,
                                           u64 column, u64 rows, u64 columns) {
    float values[2] = {low, high};
#pragma unroll
    for (u32 i = 0; i < 2; i++) {
        if (row >= rows || column + i >= columns) continue;
        values[i] = epilogue.before_rounding(values[i], row, column + i);
    }
    return make_float2(values[0], values[1]);
}

#if IS_MAPPED
// Stores 64 rows, at most STAGED columns at a time, through shared memory that the warpgroup has alone.
__device__ __forceinline__ void store_piece(const float* sums, u8* staged,
                                            const TensorMap& map, const Epilogue& epilogue, u64 row,
                                            u64 column, int batch, u64 rows, u64 columns,
                                            u32 barrier) {
    const u32 thread = threadIdx.x % 128, lane = thread % 32;
    // The line to which this lane gives an address, and its chunk of two.
    const u32 line = thread / 32 * 16 + lane % 16;
#pragma unroll
    for (u32 first = 0; first < OWN_COLUMNS; first += STAGED) {
        if (thread == 0) wait_for_reads_of_stores();
        sync_some(barrier, 128);
        const u32 left_over = OWN_COLUMNS - first, here = left_over < STAGED ? left_over : STAGED;
#pragma unroll
        for (u32 j = 0; j < STAGED / 16; j++) {
            if (j * 16 >= here) break;
            u32 words[4];
#pragma unroll
            for (u32 at = 0; at < 4; at++) {
                const u32 from = first / 2 + j * 8 + at * 2;
                float2 both = make_float2(sums[from], sums[from + 1]);
#if !IS_PLAIN
                both = finished(epilogue, both.x, both.y, row + thread / 32 * 16 + lane / 4 + at % 2 * 8,
                                column + first + j * 16 + at / 2 * 8 + lane % 4 * 2, rows, columns);
#endif
                words[at] = TensorCore<ELEMENT>::pair(both.x, both.y);
            }
            const u32 chunk = j * 2 + lane / 16;
            const u32 chunks = STORED / 8, in_box = chunk % chunks;
            // Swizzled by the number of 128 bytes.
            const u32 swizzled = in_box ^ line * chunks / 8 % chunks;
            u8* const to = staged + chunk / chunks * (64 * STORED * 2) + line * (STORED * 2) +
                           swizzled * 16;
            asm volatile("stmatrix.sync.aligned.m8n8.x4.shared.b16 [%0], {%1, %2, %3, %4};" ::"r"(
                             shared_address(to)),
                         "r"(words[0]), "r"(words[1]), "r"(words[2]), "r"(words[3])
                         : "memory");
        }
        publish_to_copies();
        sync_some(barrier, 128);
        if (thread == 0) {
#pragma unroll
            for (u32 part = 0; part < STAGED / STORED; part++) {
                if (part * STORED >= here) break;
                const u64 at = column + first + part * STORED;
                if (at < columns && row < rows) {
                    store_box(map, staged + part * (64 * STORED * 2), (int)at, (int)row, batch);
                }
            }
            commit_stores();
        }
    }
}
#else
__device__ __forceinline__ void store_piece(const float* sums, const Epilogue& epilogue, u64 row, u64 column, u64 rows,
                                            u64 columns) {
    const u32 thread = threadIdx.x % 128, lane = thread % 32;
    const u32 own_row = thread / 32 * 16 + lane / 4;
#pragma unroll
    for (u32 at = 0; at < OWN_COLUMNS / 2; at++) {
        const u64 r = row + own_row + at / 2 % 2 * 8, c = column + at / 4 * 8 + lane % 4 * 2 + at % 2;
        if (r < rows && c < columns) epilogue.store(sums[at], r, c);
    }
}
#endif

extern "C" __global__ void __launch_bounds__(THREADS, 1)
    warpgroup(const __grid_constant__ TensorMap left_map,
              const __grid_constant__ TensorMap right_map,
#if IS_MAPPED
              const __grid_constant__ TensorMap to_map,
#endif
              RESULT* to, const Shape to_shape, const ELEMENT* __restrict__ bias, i64 bias_stride,
              const RESULT* residual, const Shape residual_shape, double scale, u64 depth,
              u32 left_batched, u32 right_batched, u32 down, u32 across, u32 tiles) {
    extern __shared__ __align__(1024) u8 dynamic[];
    __shared__ Shared shared;
    // Patterns of 1024 bytes begin at multiples of that.
    u8* const stages = dynamic + (1024 - shared_address(dynamic) % 1024) % 1024;
    const u64 rows = to_shape.extents[DIMS - 2], columns = to_shape.extents[DIMS - 1];
    const u32 rank = BLOCKS > 1 ? cluster_rank() : 0;
    const u32 group = threadIdx.x / 128;
    if (threadIdx.x == 0) {
        prefetch_map(left_map);
        prefetch_map(right_map);
        for (u32 stage = 0; stage < STAGES; stage++) {
            shared.full[stage].start(1);
            shared.empty[stage].start((IN_TURNS ? 1 : WARPGROUPS) * CLUSTER);
        }
#if IN_TURNS
        shared.turns[0].start(1);
        shared.turns[1].start(1);
#endif
        publish_barriers();
    }
    if (BLOCKS > 1) {
        sync_cluster();
    } else {
        __syncthreads();
    }
    // Steps along the depth of this block.
    const u32 all_steps = (u32)((depth + DEPTH - 1) / DEPTH);
    const u32 of_part = (all_steps + SPLIT - 1) / SPLIT;
    const u32 part = SPLIT > 1 ? rank : 0;
    const u32 first_step = part * of_part;
    const u32 last_step = first_step + of_part < all_steps ? first_step + of_part : all_steps;
    const u32 steps = last_step - first_step;
    const u32 below = SPLIT > 1 ? 0 : rank;
    if (group == 0) {
#if WARPGROUPS > 1
        give_registers<40>();
#endif
        if (threadIdx.x == 0) {
            copy_factors(stages, shared, left_map, right_map, left_batched, right_batched, rows,
                         columns, first_step, last_step, down, across, tiles, below);
        }
    } else {
#if WARPGROUPS > 1
        take_registers<232>();
#endif
        const u32 own = group - 1;
        Slot slot = {0, 0};
#if IN_TURNS
        u32 turn = 0;
        if (own == 1 && threadIdx.x % 128 == 0) shared.turns[0].arrive();
#endif
        for (u32 number = blockIdx.x / BLOCKS; number < tiles; number += gridDim.x / BLOCKS) {
#if IN_TURNS
            if (turn++ % 2 != own) {
                slot.skip(steps);
                continue;
            }
            shared.turns[own].wait<false>((turn - 1) / 2 % 2);
#endif
            const Tile tile = tile_of(number, down, across, below, rows);
            Sums sums;
            multiply_tile(sums, stages, shared, steps, IN_TURNS ? 0 : own * OWN_ROWS, slot);
#if SPLIT > 1
            combine(sums, stages, own, rank);
#endif
            if (!tile.is_stored) continue;
            const Batch batch(tile.batch, to_shape, to_shape, to_shape, residual_shape);
            const Epilogue epilogue(to, to_shape, bias, bias_stride, residual, residual_shape,
                                    scale, batch);
#pragma unroll
            for (u32 piece = 0; piece < PIECES; piece++) {
                const u64 row = tile.row + (IN_TURNS ? 0 : own * OWN_ROWS) + piece * 64;
#if IS_MAPPED
                u8* const staged = stages + STAGES * (LEFT_BYTES + RIGHT_BYTES) +
                                   own * (64 * STAGED * 2);
                store_piece(sums.of[piece], staged, to_map, epilogue, row,
                            tile.column + part * OWN_COLUMNS, tile.batch, rows, columns, 1 + own);
#else
                store_piece(sums.of[piece], epilogue, row, tile.column + part * OWN_COLUMNS, rows,
                            columns);
#endif
            }
        }
#if IS_MAPPED
        if (threadIdx.x % 128 == 0) wait_for_reads_of_stores();
#endif
    }
#if SPLIT > 1
    if (group == 0) {
        sync_cluster();
        sync_cluster();
    }
#endif
    // The other block may still copy to this one's memory, and arrive at its barriers.
    if (CLUSTER > 1) sync_cluster();
}
