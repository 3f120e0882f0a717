// Products of the vectors of few tokens and rows of weights. ELEMENT is the type of vectors, norms
// and results; sums are of f32.
//
// A block has the tokens' vectors in shared memory, by their norm where there is one: as floats for
// weights of floats, else as codes of 8 bits with a scale of every 32 elements, and their sums by that
// scale where a format needs them, in the order in which units of the weights are read. Its warps take ROWS rows of the weights in turns. Rows come through a ring of STAGES
// parts of shared memory for each warp, which asynchronous copies keep full.
//
// Matrices are one after another in the result's columns. With IS_GATED there are two, of one shape:
// SiLU of the first product is multiplied by the second.
//
// From sm_90 on the kernel may be launched while the one before it still runs. With IS_EARLY norms
// and the first rows of the weights are read before that one has ended: it must not write them.
//
// FORMAT is the struct of a block format, or PLAIN a type of floats. A row has UNITS of 32 elements
// of blocks, or of 16 bytes of floats. GROUP lanes share it; a stage has TURNS units of each.
#ifdef FORMAT
#include "block_formats.cuh"
#endif
#include "fragments.cuh"
#include "overlap.cuh"

#define THREADS (WARPS * 32)
#define EACH_LANE 0xffffffffu
// Stages that are asked for before the kernel before has ended.
#define FIRST_STAGES 1
// Rows of a task, and lines of a stage.
#define ROWS (32 / GROUP)
#define COLUMNS (1 + IS_GATED)
#define LINES (ROWS * COLUMNS)
#define STAGE_UNITS (GROUP * TURNS)
#define CHUNKS ((UNITS + STAGE_UNITS - 1) / STAGE_UNITS)

#ifdef FORMAT
#define UNITS_OF_BLOCK (FORMAT::ELEMENTS / 32)
#define HAS_SUMS (FORMAT::BIAS != 0 || FORMAT::OFFSET)
// Whether both halves of a unit have one scale of the weights and one of the vector.
#define IS_JOINED (!FORMAT::HALVES && FORMAT::first(0) / 32 == FORMAT::second(0) / 32)
// Floats of a unit of a vector: the scale, and the sum by it, of each half that has its own.
#define FACTORS ((1 + HAS_SUMS) * (IS_JOINED ? 1 : 2))
#define LINE_STAGE (STAGE_UNITS / UNITS_OF_BLOCK * FORMAT::BYTES)
#else
#define UNITS_OF_BLOCK 1
#define LINE_STAGE (STAGE_UNITS * 16)
#define NEAR (16 / sizeof(PLAIN))
#endif
// What a line of a stage has room for: its bytes, from up to 15 bytes behind a multiple of 16 on.
#define LINE_ROOM ((LINE_STAGE + (IS_SHIFTED ? 15 : 0) + 15) / 16 * 16)
#define STAGE_ROOM (LINES * LINE_ROOM)
// Copies of 16 bytes that a lane makes at most for a line.
#define COPIES ((LINE_ROOM + 511) / 512)

#define TASKS_OF(count) (((count) + ROWS - 1) / ROWS)
#define TASKS_0 TASKS_OF(COUNT_0)
#define TASKS_1 (TASKS_0 + (MATRICES > 1 ? TASKS_OF(COUNT_1) : 0))
#define TASKS (IS_GATED ? TASKS_0 : TASKS_1 + (MATRICES > 2 ? TASKS_OF(COUNT_2) : 0))

typedef Computed<ELEMENT> As;

struct WeightMatrices {
    const u8 *first, *second, *third;
    i64 first_pitch, second_pitch, third_pitch;
};

// The rows of a task: where the first one begins, how far the next one is, and how many there are.
struct TaskRows {
    const u8* begin;
    i64 pitch;
    u32 row, count;
    // Column of the result of the first row.
    u32 column;

    // With IS_GATED the first matrix's rows, or the second one's.
    __device__ __forceinline__ TaskRows(const WeightMatrices& all, u32 task, bool is_second) {
        begin = is_second ? all.second : all.first;
        pitch = is_second ? all.second_pitch : all.first_pitch;
        row = task * ROWS;
        count = COUNT_0;
        column = row;
        if (!IS_GATED && MATRICES > 1 && task >= TASKS_0) {
            begin = all.second;
            pitch = all.second_pitch;
            row = (task - TASKS_0) * ROWS;
            count = COUNT_1;
            column = COUNT_0 + row;
        }
        if (!IS_GATED && MATRICES > 2 && task >= TASKS_1) {
            begin = all.third;
            pitch = all.third_pitch;
            row = (task - TASKS_1) * ROWS;
            count = COUNT_2;
            column = COUNT_0 + COUNT_1 + row;
        }
    }

    // Where a line begins; one behind the last row is that row.
    __device__ __forceinline__ const u8* of(u32 line) const {
        const u32 own = row + line < count ? row + line : count - 1;
        return begin + (i64)own * pitch;
    }
};

// Starts to copy a part of a line to shared memory.
__device__ __forceinline__ void copy_line(u8* to, const u8* from, u32 bytes) {
    const u32 lane = threadIdx.x % 32;
#if IS_ASYNC
    const u32 beyond = IS_SHIFTED ? (u32)(u64)from & 15 : 0;
    const u8* begin = from - beyond + lane * 16;
    const u32 place = (u32)__cvta_generic_to_shared(to) + lane * 16;
    const u32 all = beyond + bytes;
#pragma unroll(COPIES <= 12 ? COPIES : 1)
    for (u32 i = 0; i < COPIES; i++) {
        const u32 at = lane * 16 + i * 512;
        if (at >= all) break;
        const u32 valid = all - at;
        asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;"
                     :
                     : "r"(place + i * 512), "l"(begin + i * 512), "r"(valid < 16 ? valid : 16)
                     : "memory");
    }
#else
    const u32 whole = (bytes + 15) / 16 * 16;
    for (u32 at = lane; at < whole; at += 32) to[at] = at < bytes ? from[at] : 0;
#endif
}

// The stages of a warp in their order.
struct StageStream {
    const WeightMatrices& all;
    u32 task, chunk;

    // Starts to copy the next stage, if there is one left.
    __device__ __forceinline__ void load(u8* stage) {
        if (task < TASKS && UNITS > 0) {
            const u32 skipped = chunk * LINE_STAGE;
            const u32 left = ROW_BYTES - skipped;
            const u32 bytes = CHUNKS == 1 ? ROW_BYTES : left < LINE_STAGE ? left : LINE_STAGE;
#pragma unroll
            for (u32 column = 0; column < COLUMNS; column++) {
                const TaskRows rows(all, task, column == 1);
#pragma unroll(ROWS <= 2 ? ROWS : 1)
                for (u32 line = 0; line < ROWS; line++) {
                    copy_line(stage + (column * ROWS + line) * LINE_ROOM,
                              rows.of(line) + skipped, bytes);
                }
            }
            if (++chunk == CHUNKS) {
                chunk = 0;
                task += gridDim.x * WARPS;
            }
        }
        commit();
    }
};

struct __align__(4 * sizeof(ELEMENT)) Four {
    ELEMENT all[4];
};

// Four elements of a vector from a multiple of 4 on; those behind its end are 0.
__device__ __forceinline__ float4 four_of(const ELEMENT* x, i64 stride, u32 at) {
    float4 all = make_float4(0, 0, 0, 0);
#if IS_X_VECTOR
    if (at >= DEPTH) return all;
    const Four own = *reinterpret_cast<const Four*>(x + at);
    return make_float4(As::load(own.all[0]), As::load(own.all[1]), As::load(own.all[2]),
                       As::load(own.all[3]));
#else
    if (at < DEPTH) all.x = As::load(x[(i64)at * stride]);
    if (at + 1 < DEPTH) all.y = As::load(x[(i64)(at + 1) * stride]);
    if (at + 2 < DEPTH) all.z = As::load(x[(i64)(at + 2) * stride]);
    if (at + 3 < DEPTH) all.w = As::load(x[(i64)(at + 3) * stride]);
    return all;
#endif
}

// 1 / x by one instruction, also where that is below the least normal float.
__device__ __forceinline__ float inverse_of(float x) {
    float inverse;
    asm("rcp.approx.f32 %0, %1;" : "=f"(inverse) : "f"(x));
    return inverse;
}

__device__ __forceinline__ float most_of(float a, float b) { return a != a || a > b ? a : b; }

// Fours of a vector that a thread has, from its own number on, THREADS apart: all of them at once, as
// each would otherwise wait for the memory alone.
#ifdef FORMAT
#define FOURS (UNITS * 8)
#else
#define FOURS (UNITS * (NEAR / 4))
#endif
#define OWN_FOURS ((FOURS + THREADS - 1) / THREADS)

struct OwnFours {
    float4 all[OWN_FOURS > 0 ? OWN_FOURS : 1];

    __device__ __forceinline__ void load(const ELEMENT* x, i64 stride) {
#pragma unroll
        for (u32 i = 0; i < OWN_FOURS; i++) {
            all[i] = four_of(x, stride, (threadIdx.x + i * THREADS) * 4);
        }
    }
};

// The tokens' vectors in shared memory.
struct Vectors {
#ifdef FORMAT
    // Sixteen codes of each unit's first half, then those of the second halves.
    uint4* codes;
    // FACTORS of each unit.
    float* factors;
#else
    float4* fours;
#endif
};

// Puts four elements of a token where products read them.
__device__ __forceinline__ void put_four(const Vectors& to, u32 token, u32 four, const float4& v) {
#ifdef FORMAT
    // Eight lanes have a scale.
    float most = most_of(most_of(fabsf(v.x), fabsf(v.y)), most_of(fabsf(v.z), fabsf(v.w)));
#pragma unroll
    for (u32 distance = 4; distance > 0; distance /= 2) {
        most = most_of(most, __shfl_xor_sync(EACH_LANE, most, distance));
    }
    // A scale so small that its inverse is none is 0, and one of what is not finite NaN.
    const bool is_finite = most - most == 0, is_some = is_finite && most > 1e-36f;
    const float inverse = is_some ? 127.0f * inverse_of(most) : 0.0f;
    const float scale = is_some ? most * (1.0f / 127.0f) : is_finite ? 0.0f : as_float(0x7fc00000);
    const float4 from = is_some ? v : make_float4(0, 0, 0, 0);
    const int codes[4] = {__float2int_rn(from.x * inverse), __float2int_rn(from.y * inverse),
                          __float2int_rn(from.z * inverse), __float2int_rn(from.w * inverse)};
    int sum = 0;
    if (HAS_SUMS) {
        sum = codes[0] + codes[1] + codes[2] + codes[3];
        sum += __shfl_xor_sync(EACH_LANE, sum, 1);
        sum += __shfl_xor_sync(EACH_LANE, sum, 2);
        if (IS_JOINED) sum += __shfl_xor_sync(EACH_LANE, sum, 4);
    }
    if (four >= FOURS) return;
    const u32 word = (u32)(codes[0] & 255) | (u32)(codes[1] & 255) << 8 |
                     (u32)(codes[2] & 255) << 16 | (u32)codes[3] << 24;
    // The half of a unit in which these elements are.
    const u32 sixteen = four / 4, inside = sixteen % (2 * UNITS_OF_BLOCK);
    u32 unit = 0, half = 0;
#pragma unroll
    for (u32 i = 0; i < UNITS_OF_BLOCK; i++) {
        const bool is_second = FORMAT::second(i) / 16 == inside;
        if (is_second || FORMAT::first(i) / 16 == inside) unit = i;
        if (is_second) half = 1;
    }
    unit += token * UNITS + sixteen / (2 * UNITS_OF_BLOCK) * UNITS_OF_BLOCK;
    reinterpret_cast<u32*>(to.codes + half * (TOKENS * UNITS) + unit)[four % 4] = word;
    if (four % 4 == 0 && (!IS_JOINED || half == 0)) {
        float* own = to.factors + unit * FACTORS + half * (1 + HAS_SUMS);
        own[0] = scale;
        if (HAS_SUMS) own[1] = scale * (float)sum;
    }
#else
    // The first four elements of all units, then the other ones.
    if (four >= FOURS) return;
    to.fours[(token * (NEAR / 4) + four % (NEAR / 4)) * UNITS + four / (NEAR / 4)] = v;
#endif
}

// Puts the tokens' vectors in shared memory, by their norm. The first one is `own`.
__device__ __forceinline__ void put_vectors(const Vectors& to, OwnFours& own, const ELEMENT* x,
                                            i64 x_row, i64 x_column, const OwnFours& norm,
                                            float eps, float (*partial)[WARPS]) {
    const u32 lane = threadIdx.x % 32, warp = threadIdx.x / 32;
#pragma unroll 1
    for (u32 token = 0; token < TOKENS; token++) {
        if (token > 0) own.load(x + (i64)token * x_row, x_column);
#if IS_NORMED
        float squares = 0;
#pragma unroll
        for (u32 i = 0; i < OWN_FOURS; i++) {
            const float4 v = own.all[i];
            squares += v.x * v.x + v.y * v.y + v.z * v.z + v.w * v.w;
        }
#pragma unroll
        for (u32 distance = 16; distance > 0; distance /= 2) {
            squares += __shfl_xor_sync(EACH_LANE, squares, distance);
        }
        if (lane == 0) partial[token][warp] = squares;
        __syncthreads();
        squares = lane < WARPS ? partial[token][lane] : 0.0f;
#pragma unroll
        for (u32 distance = 16; distance > 0; distance /= 2) {
            squares += __shfl_xor_sync(EACH_LANE, squares, distance);
        }
        const float factor = rsqrtf(squares * (1.0f / (float)(DEPTH > 0 ? DEPTH : 1)) + eps);
#pragma unroll
        for (u32 i = 0; i < OWN_FOURS; i++) {
            own.all[i].x *= factor * norm.all[i].x;
            own.all[i].y *= factor * norm.all[i].y;
            own.all[i].z *= factor * norm.all[i].z;
            own.all[i].w *= factor * norm.all[i].w;
        }
#endif
#pragma unroll
        for (u32 i = 0; i < OWN_FOURS; i++) {
            // Whole warps, as lanes share units.
            if (warp * 32 + i * THREADS < FOURS) {
                put_four(to, token, threadIdx.x + i * THREADS, own.all[i]);
            }
        }
    }
}

#ifdef FORMAT
// Factors of a unit of a vector, in one read.
__device__ __forceinline__ void load_factors(float (&to)[4], const float* from) {
    if (FACTORS == 1) {
        to[0] = *from;
    } else if (FACTORS == 2) {
        const float2 both = *reinterpret_cast<const float2*>(from);
        to[0] = both.x;
        to[1] = both.y;
    } else {
        const float4 all = *reinterpret_cast<const float4*>(from);
        to[0] = all.x;
        to[1] = all.y;
        to[2] = all.z;
        to[3] = all.w;
    }
}

// Adds a unit of each column's row: that of the lane in a turn of a stage.
__device__ __forceinline__ void add_unit(float (&sums)[COLUMNS][TOKENS],
                                         const u8* const (&lines)[COLUMNS], u32 chunk, u32 turn,
                                         const Vectors& x) {
    const u32 own = threadIdx.x % GROUP, place = turn * GROUP + own;
    // Of whole blocks the lane's place in one is the same in all turns.
    const bool is_whole = GROUP % UNITS_OF_BLOCK == 0;
    const u32 inside = is_whole ? own % UNITS_OF_BLOCK : place % UNITS_OF_BLOCK;
    const u32 block = is_whole ? own / UNITS_OF_BLOCK + turn * (GROUP / UNITS_OF_BLOCK)
                               : place / UNITS_OF_BLOCK;
    Unit w[COLUMNS];
#pragma unroll
    for (u32 c = 0; c < COLUMNS; c++) FORMAT::load(w[c], lines[c] + block * FORMAT::BYTES, inside);
    const u32 unit = (chunk * (STAGE_UNITS / UNITS_OF_BLOCK) + block) * UNITS_OF_BLOCK + inside;
#pragma unroll
    for (u32 m = 0; m < TOKENS; m++) {
        const u32 at = m * UNITS + unit;
        const uint4 first = x.codes[at], second = x.codes[TOKENS * UNITS + at];
        const u32 words[8] = {first.x,  first.y,  first.z,  first.w,
                              second.x, second.y, second.z, second.w};
        float factors[4];
        load_factors(factors, x.factors + at * FACTORS);
#pragma unroll
        for (u32 c = 0; c < COLUMNS; c++) {
            int dots[2] = {0, 0};
#pragma unroll
            for (int i = 0; i < 8; i++) {
                dots[i / 4] = __dp4a((int)w[c].codes[i], (int)words[i], dots[i / 4]);
            }
            if (IS_JOINED) dots[0] += dots[1];
#pragma unroll
            for (int half = 0; half < (IS_JOINED ? 1 : 2); half++) {
                const float* own = factors + half * (1 + HAS_SUMS);
                const int part = FORMAT::HALVES ? half : 0;
                // Whole numbers below 2^24, so the first factor is exact.
                float value = own[0] * (float)dots[half];
                if (FORMAT::BIAS != 0) value = fmaf(-(float)FORMAT::BIAS, own[HAS_SUMS], value);
                sums[c][m] = fmaf(w[c].scale[part], value, sums[c][m]);
                if (FORMAT::OFFSET) {
                    sums[c][m] = fmaf(-w[c].offset[part], own[HAS_SUMS], sums[c][m]);
                }
            }
        }
    }
}
#else
union Pack {
    uint4 bits;
    PLAIN values[NEAR];

    __device__ __forceinline__ Pack() {}
};

__device__ __forceinline__ void add_unit(float (&sums)[COLUMNS][TOKENS],
                                         const u8* const (&lines)[COLUMNS], u32 chunk, u32 turn,
                                         const Vectors& x) {
    const u32 place = turn * GROUP + threadIdx.x % GROUP, unit = chunk * STAGE_UNITS + place;
    Pack w[COLUMNS];
#pragma unroll
    for (u32 c = 0; c < COLUMNS; c++) {
        w[c].bits = *reinterpret_cast<const uint4*>(lines[c] + place * 16);
    }
#pragma unroll
    for (u32 m = 0; m < TOKENS; m++) {
#pragma unroll
        for (u32 quad = 0; quad < NEAR / 4; quad++) {
            const float4 v = x.fours[(m * (NEAR / 4) + quad) * UNITS + unit];
            const float values[4] = {v.x, v.y, v.z, v.w};
#pragma unroll
            for (u32 c = 0; c < COLUMNS; c++) {
#pragma unroll
                for (u32 i = 0; i < 4; i++) {
                    const float own = (float)Computed<PLAIN>::load(w[c].values[quad * 4 + i]);
                    sums[c][m] = fmaf(own, values[i], sums[c][m]);
                }
            }
        }
    }
}
#endif

extern "C" __global__ void __launch_bounds__(THREADS)
    token_product(ELEMENT* to, i64 to_row, i64 to_column, const ELEMENT* x, i64 x_row, i64 x_column,
                  const ELEMENT* norm, i64 norm_stride, const ELEMENT* residual, i64 residual_row,
                  i64 residual_column, double eps, const u8* first, i64 first_pitch,
                  const u8* second, i64 second_pitch, const u8* third, i64 third_pitch) {
    extern __shared__ uint4 memory[];
    __shared__ float partial[TOKENS][WARPS];
    const u32 lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    u8* ring = reinterpret_cast<u8*>(memory) + warp * (STAGES * STAGE_ROOM);
    u8* rest = reinterpret_cast<u8*>(memory) + WARPS * (STAGES * STAGE_ROOM);
    Vectors vectors;
#ifdef FORMAT
    vectors.codes = reinterpret_cast<uint4*>(rest);
    vectors.factors = reinterpret_cast<float*>(rest + TOKENS * DEPTH);
#else
    vectors.fours = reinterpret_cast<float4*>(rest);
#endif
    const WeightMatrices weights = {first, second, third, first_pitch, second_pitch, third_pitch};
    // Neighbouring tasks are of different blocks.
    const u32 begin = warp * gridDim.x + blockIdx.x;
    StageStream stream = {weights, begin, 0};
    OwnFours own_norm;
    allow_next();
    if (!IS_EARLY) wait_for_previous();
    // What the wait takes is for the first rows; then the vector is asked for before further ones, as
    // memory answers in order.
#pragma unroll
    for (u32 stage = 0; stage + 1 < STAGES && stage < FIRST_STAGES; stage++) {
        stream.load(ring + stage * STAGE_ROOM);
    }
    if (IS_NORMED) own_norm.load(norm, norm_stride);
    if (IS_EARLY) wait_for_previous();
    OwnFours own_x;
    own_x.load(x, x_column);
#pragma unroll 1
    for (u32 stage = FIRST_STAGES; stage + 1 < STAGES; stage++) {
        stream.load(ring + stage * STAGE_ROOM);
    }
    put_vectors(vectors, own_x, x, x_row, x_column, own_norm, (float)eps, partial);
    __syncthreads();

    const u32 own = lane % GROUP, line = lane / GROUP;
    u32 slot = 0;
    for (u32 task = begin; task < TASKS; task += gridDim.x * WARPS) {
        const TaskRows rows(weights, task, false);
        const bool is_stored = own == 0 && rows.row + line < rows.count;
        const i64 column = rows.column + line;
        float added[TOKENS] = {};
        if (residual != nullptr && is_stored) {
#pragma unroll
            for (u32 m = 0; m < TOKENS; m++) {
                const i64 place = (i64)m * residual_row + column * residual_column;
                added[m] = As::load(residual[place]);
            }
        }
        float sums[COLUMNS][TOKENS] = {};
#pragma unroll 1
        for (u32 chunk = 0; chunk < CHUNKS; chunk++) {
            wait_for_all_but<STAGES - 2>();
            __syncwarp();
            // The stage that was read last is free.
            stream.load(ring + (slot == 0 ? STAGES - 1 : slot - 1) * STAGE_ROOM);
            const u8* lines[COLUMNS];
#pragma unroll
            for (u32 c = 0; c < COLUMNS; c++) {
                lines[c] = ring + slot * STAGE_ROOM + (c * ROWS + line) * LINE_ROOM;
#if IS_ASYNC && IS_SHIFTED
                const TaskRows from(weights, task, c == 1);
                lines[c] += (u64)(from.of(line) + chunk * LINE_STAGE) & 15;
#endif
            }
#pragma unroll(TURNS * COLUMNS * TOKENS <= 10 ? TURNS : 1)
            for (u32 turn = 0; turn < TURNS; turn++) {
                const bool is_full = UNITS % STAGE_UNITS == 0;
                if (is_full || chunk * STAGE_UNITS + turn * GROUP + own < UNITS) {
                    add_unit(sums, lines, chunk, turn, vectors);
                }
            }
            if (++slot == STAGES) slot = 0;
        }
#pragma unroll
        for (u32 c = 0; c < COLUMNS; c++) {
#pragma unroll
            for (u32 m = 0; m < TOKENS; m++) {
#pragma unroll
                for (u32 distance = GROUP / 2; distance > 0; distance /= 2) {
                    sums[c][m] += __shfl_xor_sync(EACH_LANE, sums[c][m], distance);
                }
            }
        }
        if (!is_stored) continue;
#pragma unroll
        for (u32 m = 0; m < TOKENS; m++) {
            float value = sums[COLUMNS - 1][m];
            if (IS_GATED) value *= sums[0][m] / (1.0f + expf(-sums[0][m]));
            to[(i64)m * to_row + column * to_column] = As::store(value + added[m]);
        }
    }
    wait_for_all_but<0>();
}
