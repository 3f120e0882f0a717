// Products of rows of activations, as codes of 8 bits, and rows of a weight in blocks.
//
// KIND says how activations are quantised: 0 in blocks of 32, as q8_0; 1 so, with sums as q8_1 has
// them; 2 in blocks of 256, as q8_K. In the workspace are the codes of all rows, and of every RUN
// elements a scale and a sum: of codes, or for KIND 1 of elements. Of blocks of 32 a row has the
// first halves, then the second ones: lanes that have neighbouring blocks read neighbouring bytes.
//
// IS_GROUPED: the weight has rows for each of many experts, and a row of the result is a pair of a
// token and an expert that `index` chooses for it; `slots` neighbours are of one row of codes. Pairs
// are in the order of `index`, or `order` has those of each expert one after another, and `tiles`
// an expert, the first of its pairs and their number for each block of rows (expert.cu).
#include "block_formats.cuh"
#if IS_GROUPED
#include "checked.cuh"
#include "rows.cuh"
#define GROUPED(...) , __VA_ARGS__
#else
#define GROUPED(...)
#endif

#define EACH_LANE 0xffffffffu
#define RUN (KIND == 2 ? 16 : 32)
#define WARPS 4
#define THREADS (WARPS * 32)

// Where a half of 16 codes is in a row of so many, by its first element.
__device__ __forceinline__ u64 place_of_half(u64 element, u64 depth) {
    return KIND == 2 ? element : element / 32 * 16 + (element % 32 == 0 ? 0 : depth / 2);
}

// Where the elements of a matrix are.
struct Place {
    i64 row, column;

    __device__ __forceinline__ i64 of(u64 m, u64 n) const {
        return (i64)m * row + (i64)n * column;
    }
};

// What a product becomes. The residual may be where the result is: a thread reads an element before
// it writes it.
struct Target {
    RESULT* to;
    Place place;
    const ELEMENT* bias;
    i64 bias_stride;
    const ELEMENT* residual;
    Place residual_place;

    // `expert` is how far the biases of a pair's expert are from the first ones.
    __device__ __forceinline__ void store(u64 row, u64 column, float value, float gate,
                                          i64 expert = 0) const {
        if (IS_GATED) value *= gate / (1.0f + expf(-gate));
        if (bias != nullptr) {
            value += Computed<ELEMENT>::load(bias[expert + (i64)column * bias_stride]);
        }
        if (residual != nullptr) {
            value += Computed<ELEMENT>::load(residual[residual_place.of(row, column)]);
        }
        to[place.of(row, column)] = Computed<RESULT>::store(value);
    }

    __device__ __forceinline__ void clear(u64 row, u64 column) const {
        to[place.of(row, column)] = Computed<RESULT>::store(0.0f);
    }
};

#if IS_GROUPED
#define OF_EXPERT , (i64)expert * bias_expert
#else
#define OF_EXPERT
#endif

#ifdef KERNEL_multiply_few
// At most TILE rows at once. GROUP lanes have the units of a row of the weight in turns, and COLUMNS
// such rows each; a warp has 32 / GROUP times as many. Neighbouring lanes have the same units.
#define GROUPS (32 / GROUP)

__device__ __forceinline__ float of_unit(const Unit& w, const uint4 (&x)[2], const float2& low,
                                         const float2& high) {
    const u32 words[8] = {x[0].x, x[0].y, x[0].z, x[0].w, x[1].x, x[1].y, x[1].z, x[1].w};
    int dots[2] = {0, 0};
#pragma unroll
    for (int i = 0; i < 8; i++) {
        int& dot = dots[FORMAT::HALVES ? i / 4 : 0];
        dot = __dp4a((int)w.codes[i], (int)words[i], dot);
    }
    const float bias = -(float)FORMAT::BIAS;
    // Whole numbers below 2^24, so these are exact.
    float first = (float)dots[0], second = (float)dots[1];
#if KIND == 2
    if (FORMAT::HALVES) {
        if (FORMAT::BIAS != 0) {
            first = fmaf(bias, low.y, first);
            second = fmaf(bias, high.y, second);
        }
        float sum = fmaf(w.scale[0], first, w.scale[1] * second);
        if (FORMAT::OFFSET) sum -= fmaf(w.offset[0], low.y, w.offset[1] * high.y);
        return low.x * sum;
    }
    if (FORMAT::BIAS != 0) first = fmaf(bias, low.y + high.y, first);
    return low.x * (w.scale[0] * first);
#else
    if (FORMAT::HALVES) return low.x * fmaf(w.scale[0], first, w.scale[1] * second);
    if (FORMAT::BIAS != 0) first = fmaf(bias, low.y, first);
    const float product = low.x * w.scale[0];
    if (FORMAT::OFFSET) return fmaf(product, first, -(w.offset[0] * low.y));
    return product * first;
#endif
}

extern "C" __global__ void __launch_bounds__(THREADS)
    multiply_few(RESULT* to, i64 to_row, i64 to_column, const u8* __restrict__ weight,
                 const u8* __restrict__ gate, i64 pitch, i64 gate_pitch,
                 const u8* __restrict__ codes, const float2* __restrict__ scales,
                 const ELEMENT* __restrict__ bias, i64 bias_stride,
                 const ELEMENT* residual, i64 residual_row, i64 residual_column,
                 u64 rows, u64 columns, u32 units
                 GROUPED(i64 bias_expert, u64 experts, u64 slots, const INDEX* __restrict__ index,
                         const Shape index_shape, u64* fault)) {
    const u32 units_of_block = FORMAT::ELEMENTS / 32;
    const u32 lane = threadIdx.x % 32, own = lane / GROUPS;
    const u64 warp = (u64)blockIdx.x * WARPS + threadIdx.x / 32;
    const u64 column = warp * (GROUPS * COLUMNS) + lane % GROUPS;
    const u64 first_row = (u64)blockIdx.y * TILE;
    const Target target = {to,          {to_row, to_column},
                           bias,        bias_stride,
                           residual,    {residual_row, residual_column}};
#if IS_GROUPED
    // One pair: TILE is 1.
    const i64 expert = (i64)index[element_offset(index_shape, first_row)];
    if (!is_inside(expert, experts, first_row, fault)) {
#pragma unroll
        for (u32 c = 0; c < COLUMNS; c++) {
            const u64 place = column + c * GROUPS;
            if (own == 0 && place < columns) target.clear(first_row, place);
        }
        return;
    }
    weight += expert * (i64)columns * pitch;
    gate += expert * (i64)columns * gate_pitch;
#endif
    // Of a lane beyond the columns or the rows the work is that of the last one. Where a block is one
    // unit, addresses go from one of the lane's units to the next.
    const bool is_single = units_of_block == 1;
    const u8* from[COLUMNS];
    const u8* gate_from[COLUMNS];
#pragma unroll
    for (u32 c = 0; c < COLUMNS; c++) {
        const u64 place = column + c * GROUPS, least = place < columns ? place : columns - 1;
        const u32 first = is_single ? own * FORMAT::BYTES : 0;
        from[c] = weight + (i64)least * pitch + first;
        gate_from[c] = IS_GATED ? gate + (i64)least * gate_pitch + first : nullptr;
    }
    const u64 depth = (u64)units * 32;
    const u8* x[TILE];
    const float2* x_scales[TILE];
#pragma unroll
    for (u32 m = 0; m < TILE; m++) {
        u64 row = first_row + m < rows ? first_row + m : rows - 1;
#if IS_GROUPED
        row /= slots;
#endif
        x[m] = codes + row * depth + (is_single ? own * 16 : 0);
        x_scales[m] = scales + row * (depth / RUN) + (is_single ? own : 0);
    }
    float sums[COLUMNS][TILE] = {}, gates[COLUMNS][TILE] = {};
    for (u32 unit = own; unit < units; unit += GROUP) {
        const u32 block = is_single ? 0 : unit / units_of_block, inside = unit % units_of_block;
        Unit w[COLUMNS], g[COLUMNS];
#pragma unroll
        for (u32 c = 0; c < COLUMNS; c++) {
            FORMAT::load(w[c], from[c] + block * FORMAT::BYTES, inside);
            if (IS_GATED) FORMAT::load(g[c], gate_from[c] + block * FORMAT::BYTES, inside);
            if (is_single) from[c] += GROUP * FORMAT::BYTES;
            if (is_single && IS_GATED) gate_from[c] += GROUP * FORMAT::BYTES;
        }
        const u32 low = block * FORMAT::ELEMENTS + FORMAT::first(is_single ? 0 : inside);
        const u32 high = block * FORMAT::ELEMENTS + FORMAT::second(is_single ? 0 : inside);
#pragma unroll
        for (u32 m = 0; m < TILE; m++) {
            const u64 places[2] = {place_of_half(low, depth), place_of_half(high, depth)};
            const uint4 halves[2] = {*reinterpret_cast<const uint4*>(x[m] + places[0]),
                                     *reinterpret_cast<const uint4*>(x[m] + places[1])};
            const float2 low_scale = x_scales[m][low / RUN];
            const float2 high_scale = KIND == 2 ? x_scales[m][high / RUN] : low_scale;
            if (is_single) {
                x[m] += GROUP * 16;
                x_scales[m] += GROUP;
            }
#pragma unroll
            for (u32 c = 0; c < COLUMNS; c++) {
                sums[c][m] += of_unit(w[c], halves, low_scale, high_scale);
                if (IS_GATED) gates[c][m] += of_unit(g[c], halves, low_scale, high_scale);
            }
        }
    }
#pragma unroll
    for (u32 c = 0; c < COLUMNS; c++) {
#pragma unroll
        for (u32 m = 0; m < TILE; m++) {
#pragma unroll
            for (u32 distance = 16; distance >= GROUPS; distance /= 2) {
                sums[c][m] += __shfl_xor_sync(EACH_LANE, sums[c][m], distance);
                if (IS_GATED) gates[c][m] += __shfl_xor_sync(EACH_LANE, gates[c][m], distance);
            }
        }
    }
    if (own != 0) return;
    if (COLUMNS * TILE == 1) {
        if (column < columns) target.store(first_row, column, sums[0][0], gates[0][0] OF_EXPERT);
        return;
    }
    // A lane's own part of shared memory, so that one loop stores all.
    __shared__ float staged[1 + IS_GATED][COLUMNS * TILE][THREADS];
#pragma unroll
    for (u32 c = 0; c < COLUMNS; c++) {
#pragma unroll
        for (u32 m = 0; m < TILE; m++) {
            staged[0][c * TILE + m][threadIdx.x] = sums[c][m];
            if (IS_GATED) staged[IS_GATED][c * TILE + m][threadIdx.x] = gates[c][m];
        }
    }
#pragma unroll 1
    for (u32 i = 0; i < COLUMNS * TILE; i++) {
        const u64 place = column + i / TILE * GROUPS, row = first_row + i % TILE;
        if (place < columns && row < rows) {
            target.store(row, place, staged[0][i][threadIdx.x],
                         staged[IS_GATED][i][threadIdx.x] OF_EXPERT);
        }
    }
}
#endif

#ifdef KERNEL_multiply_many
// A block has TILE rows and 64 columns of the result. Codes of both factors, CHUNK elements at a
// time, come into shared memory, those of the weight decoded; tensor cores sum their products, which
// are whole numbers, over the elements that have one scale.
#define CHUNK 128
#define ACROSS 64
// A line of codes, with a gap so that eight lines lie in different banks.
#define LINE (CHUNK + 16)
#define STEP (FORMAT::HALVES ? 16 : 32)
#define STEPS (CHUNK / STEP)
#define WARPS_DOWN (TILE / 32)
#define WARP_COLUMNS (ACROSS * WARPS_DOWN / WARPS)
#define TILES_ACROSS (WARP_COLUMNS / 8)

// Sums of a tile of the result.
typedef float Staged[TILE][ACROSS + 4];

struct __align__(16) Tiles {
    u8 x[TILE][LINE];
    u8 w[ACROSS][LINE];
    float2 x_scales[TILE][CHUNK / RUN + 1];
    // Scale and offset.
    float2 w_scales[ACROSS][STEPS + 1];
};

__device__ __forceinline__ u32 word_of(const u8* line, u32 place) {
    return *reinterpret_cast<const u32*>(line + place);
}

__device__ __forceinline__ void multiply_tile(int (&sums)[4], const u32 (&a)[4], const u32 (&b)[2]) {
    const int none = 0;
    if (FORMAT::HALVES) {
        asm("mma.sync.aligned.m16n8k16.row.col.s32.s8.s8.s32 {%0, %1, %2, %3}, {%4, %5}, {%6}, "
            "{%7, %7, %7, %7};"
            : "=r"(sums[0]), "=r"(sums[1]), "=r"(sums[2]), "=r"(sums[3])
            : "r"(a[0]), "r"(a[1]), "r"(b[0]), "r"(none));
    } else {
        asm("mma.sync.aligned.m16n8k32.row.col.s32.s8.s8.s32 {%0, %1, %2, %3}, "
            "{%4, %5, %6, %7}, {%8, %9}, {%10, %10, %10, %10};"
            : "=r"(sums[0]), "=r"(sums[1]), "=r"(sums[2]), "=r"(sums[3])
            : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]), "r"(none));
    }
}

struct Factors {
    const u8* weight;
    i64 pitch;
    const u8* codes;
    const float2* scales;
    u64 rows, columns, first_row, first_column;
    u32 units;
    const u32* order;
    u64 slots;

    // Row of codes of a row of the product.
    __device__ __forceinline__ u64 codes_of(u64 row) const {
        return IS_GROUPED ? order[row] / slots : row;
    }

    __device__ __forceinline__ void load_weight(Tiles& tiles, u32 chunk) const {
        const u32 units_of_block = FORMAT::ELEMENTS / 32;
#pragma unroll 1
        for (u32 at = threadIdx.x; at < ACROSS * (CHUNK / 32); at += THREADS) {
            const u32 line = at / (CHUNK / 32), unit = chunk * (CHUNK / 32) + at % (CHUNK / 32);
            Unit own = {};
            const u32 block = unit / units_of_block, inside = unit % units_of_block;
            const bool is_inside = unit < units && first_column + line < columns;
            if (is_inside) {
                const u8* from = weight + (i64)(first_column + line) * pitch;
                FORMAT::load(own, from + block * FORMAT::BYTES, inside);
            }
#pragma unroll
            for (int i = 0; i < 8; i++) {
                own.codes[i] = is_inside ? without_bias<FORMAT::BIAS>(own.codes[i]) : 0;
            }
            const u32 base = block * FORMAT::ELEMENTS;
            const u32 places[2] = {(base + FORMAT::first(inside)) % CHUNK,
                                   (base + FORMAT::second(inside)) % CHUNK};
#pragma unroll
            for (int half = 0; half < 2; half++) {
                const u32* codes = own.codes + half * 4;
                *reinterpret_cast<uint4*>(&tiles.w[line][places[half]]) =
                    make_uint4(codes[0], codes[1], codes[2], codes[3]);
                const int from = FORMAT::HALVES ? half : 0;
                tiles.w_scales[line][places[half] / STEP] =
                    make_float2(own.scale[from], FORMAT::OFFSET ? own.offset[from] : 0.0f);
            }
        }
    }

    __device__ __forceinline__ void load_rows(Tiles& tiles, u32 chunk) const {
        const u64 depth = (u64)units * 32;
        const u32 parts = CHUNK / 16, runs = CHUNK / RUN;
#pragma unroll 1
        for (u32 at = threadIdx.x; at < TILE * parts; at += THREADS) {
            const u32 line = at / parts, place = chunk * CHUNK + at % parts * 16;
            uint4 own = make_uint4(0, 0, 0, 0);
            if (first_row + line < rows && place < depth) {
                const u64 half = codes_of(first_row + line) * depth + place_of_half(place, depth);
                own = *reinterpret_cast<const uint4*>(codes + half);
            }
            *reinterpret_cast<uint4*>(&tiles.x[line][at % parts * 16]) = own;
        }
#pragma unroll 1
        for (u32 at = threadIdx.x; at < TILE * runs; at += THREADS) {
            const u32 line = at / runs, place = chunk * runs + at % runs;
            float2 own = make_float2(0, 0);
            if (first_row + line < rows && place < depth / RUN) {
                own = scales[codes_of(first_row + line) * (depth / RUN) + place];
            }
            tiles.x_scales[line][at % runs] = own;
        }
    }
};

// Adds the products of the elements that have one scale.
__device__ __forceinline__ void add_step(float (&sums)[2][TILES_ACROSS][4], const Tiles& tiles,
                                         u32 step, u32 warp_row, u32 warp_column) {
    const u32 group = threadIdx.x % 32 / 4, quad = threadIdx.x % 4;
    const u32 place = step * STEP + quad * 4;
    u32 a[2][4];
    float2 of_rows[2][2];
#pragma unroll
    for (u32 i = 0; i < 4; i++) {
        const u32 line = warp_row + i * 8 + group;
        a[i / 2][i % 2] = word_of(tiles.x[line], place);
        a[i / 2][2 + i % 2] = FORMAT::HALVES ? 0 : word_of(tiles.x[line], place + 16);
        // Of codes in blocks of 256 a scale is of all, and sums are of 16.
        float2 own = tiles.x_scales[line][step * STEP / RUN];
        if (!FORMAT::HALVES && KIND == 2) own.y += tiles.x_scales[line][step * STEP / RUN + 1].y;
        of_rows[i / 2][i % 2] = own;
    }
#pragma unroll
    for (u32 j = 0; j < TILES_ACROSS; j++) {
        const u8* line = tiles.w[warp_column + j * 8 + group];
        const u32 b[2] = {word_of(line, place), FORMAT::HALVES ? 0 : word_of(line, place + 16)};
        float2 of_columns[2];
#pragma unroll
        for (u32 n = 0; n < 2; n++) {
            of_columns[n] = tiles.w_scales[warp_column + j * 8 + quad * 2 + n][step];
        }
#pragma unroll
        for (u32 i = 0; i < 2; i++) {
            int dots[4];
            multiply_tile(dots, a[i], b);
#pragma unroll
            for (u32 part = 0; part < 4; part++) {
                const float2 x = of_rows[i][part / 2], w = of_columns[part % 2];
                float own = x.x * w.x * (float)dots[part];
                if (FORMAT::OFFSET) own -= w.y * (KIND == 2 ? x.x * x.y : x.y);
                sums[i][j][part] += own;
            }
        }
    }
}

extern "C" __global__ void __launch_bounds__(THREADS)
    multiply_many(RESULT* to, i64 to_row, i64 to_column, const u8* __restrict__ weight,
                  const u8* __restrict__ gate, i64 pitch, i64 gate_pitch,
                  const u8* __restrict__ codes, const float2* __restrict__ scales,
                  const ELEMENT* __restrict__ bias, i64 bias_stride,
                  const ELEMENT* residual, i64 residual_row, i64 residual_column,
                  u64 rows, u64 columns, u32 units
                  GROUPED(i64 bias_expert, u64 experts, u64 slots, const u32* __restrict__ order,
                          const uint4* __restrict__ tiles_of_experts)) {
    __shared__ union {
        Tiles tiles;
        Staged sums;
    } shared;
    __shared__ float gates[IS_GATED ? TILE : 1][ACROSS + 4];
    Tiles& tiles = shared.tiles;
    const u32 warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    const u32 warp_row = warp % WARPS_DOWN * 32, warp_column = warp / WARPS_DOWN * WARP_COLUMNS;
    u64 row = (u64)blockIdx.x * TILE;
    const u64 column = (u64)blockIdx.y * ACROSS;
    const u32 group = lane / 4, quad = lane % 4;
    const Target target = {to,          {to_row, to_column},
                           bias,        bias_stride,
                           residual,    {residual_row, residual_column}};
#if IS_GROUPED
    const uint4 own = tiles_of_experts[blockIdx.x];
    const u64 expert = own.x;
    row = own.y;
    rows = row + own.z;
    // Those behind the last expert have chosen none that there is.
    if (expert >= experts) {
        for (u32 at = threadIdx.x; at < own.z * ACROSS; at += THREADS) {
            const u64 own_column = column + at % ACROSS;
            if (own_column < columns) target.clear(order[row + at / ACROSS], own_column);
        }
        return;
    }
    if (own.z == 0) return;
    weight += (i64)expert * (i64)columns * pitch;
    gate += (i64)expert * (i64)columns * gate_pitch;
#else
    const u32* order = nullptr;
    const u64 slots = 1;
#endif
#pragma unroll 1
    for (u32 pass = 0; pass <= IS_GATED; pass++) {
        const bool is_gate = IS_GATED && pass == 0;
        const Factors of = {is_gate ? gate : weight,
                            is_gate ? gate_pitch : pitch,
                            codes,
                            scales,
                            rows,
                            columns,
                            row,
                            column,
                            units,
                            order,
                            slots};
        float sums[2][TILES_ACROSS][4] = {};
#pragma unroll 1
        for (u32 chunk = 0; chunk * (CHUNK / 32) < units; chunk++) {
            of.load_weight(tiles, chunk);
            of.load_rows(tiles, chunk);
            __syncthreads();
#pragma unroll 1
            for (u32 step = 0; step < STEPS; step++) add_step(sums, tiles, step, warp_row, warp_column);
            __syncthreads();
        }
        float(*to_sums)[ACROSS + 4] = is_gate ? gates : shared.sums;
#pragma unroll
        for (u32 i = 0; i < 2; i++) {
#pragma unroll
            for (u32 j = 0; j < TILES_ACROSS; j++) {
#pragma unroll
                for (u32 part = 0; part < 4; part++) {
                    to_sums[warp_row + i * 16 + part / 2 * 8 + group]
                           [warp_column + j * 8 + quad * 2 + part % 2] = sums[i][j][part];
                }
            }
        }
    }
    __syncthreads();
#pragma unroll 1
    for (u32 at = threadIdx.x; at < TILE * ACROSS; at += THREADS) {
        const u32 own_row = at / ACROSS, own_column = at % ACROSS;
        if (row + own_row < rows && column + own_column < columns) {
            const u64 place = IS_GROUPED ? order[row + own_row] : row + own_row;
            const float gate_sum =
                IS_GATED ? gates[own_row % (IS_GATED ? TILE : 1)][own_column] : 0.0f;
            target.store(place, column + own_column, shared.sums[own_row][own_column],
                         gate_sum OF_EXPERT);
        }
    }
}
#endif
