// A warp's part of attention of few heads of one token, by tensor cores: tiles of 16 keys.
//
// A query or a weight is the sum of floats of the products' type, its terms, whose products are exact:
// two of f16, four of bf16. That type is CACHED, or f16 for 8 bits, which are exact in it. The right
// factor of a product has a column for each term of a head, two by two, so that a lane has of each
// result the terms of one head, `lane % 4` of its four. A key or a value with an infinity gives NaN,
// as terms may be 0.
//
// Lane `4 g + c` has of keys `g` and `g + 8` the elements `8 c` to `8 c + 7` of every 32. The order of
// elements in scores' products is that of these chunks, for keys and queries alike.
//
// What is loaded is added in the next turn, so that memory answers meanwhile.
#pragma once
#include "fragments.cuh"

#define KEYS_OF_WARP 16
#define TILES ((GROUP + 3) / 4)
#define CHUNKS (LENGTH / 32)
#define SLICES (LENGTH / 16)

template <typename T>
struct Terms {
    static const u32 WORDS = 1;
};
template <>
struct Terms<Bfloat> {
    static const u32 WORDS = 2;
};
#define TERM_PAIRS Terms<Factor>::WORDS

typedef Wide<CACHED>::type Factor;
typedef Wide<CACHED>::Raw RawChunk;
typedef TensorCore<Factor> Core;

// A chunk of a key or a value.
union Chunk {
    uint4 bits;
    u32 words[4];

    __device__ __forceinline__ Chunk() {}
};

// What is left of a float behind its first terms.
__device__ __forceinline__ float behind(float value, u32 terms) {
#pragma unroll
    for (u32 i = 0; i < 2 * TERM_PAIRS - 1; i++) {
        if (i < terms) value -= Computed<Factor>::load(Computed<Factor>::store(value));
    }
    return value;
}

// An 8 by 8 matrix of 16-bit elements, two of each lane, with its rows as columns.
__device__ __forceinline__ u32 transposed(u32 word) {
    u32 other;
    asm("movmatrix.sync.aligned.m8n8.trans.b16 %0, %1;" : "=r"(other) : "r"(word));
    return other;
}

struct PartSums {
    RawChunk keys[2][CHUNKS], values[2][CHUNKS];
    bool is_there[2];
    u32 q[TILES][TERM_PAIRS][SLICES][2];
    // By what scores are multiplied, as queries are scaled to have no terms that are too small.
    float back[TILES];
    float sums[TILES][SLICES][4], most[TILES], total[TILES];

    // Loads keys from a number on, but the one that is not in the cache yet.
    __device__ __forceinline__ void load(const CachedRows& rows, u32 base, u32 until, u32 own) {
        const u32 group = threadIdx.x % 32 / 4, part = threadIdx.x % 4;
#pragma unroll
        for (u32 half = 0; half < 2; half++) {
            const u32 number = base + half * 8 + group;
            const uint4 *key, *value;
            is_there[half] = number < until;
            const bool is_read = is_there[half] && number != own;
            if (is_read) is_there[half] = rows.find(number, key, value);
#pragma unroll
            for (u32 t = 0; t < CHUNKS; t++) {
                keys[half][t] = Wide<CACHED>::none();
                values[half][t] = Wide<CACHED>::none();
                if (!is_read || !is_there[half]) continue;
                keys[half][t] = reinterpret_cast<const RawChunk*>(key)[t * 4 + part];
                values[half][t] = reinterpret_cast<const RawChunk*>(value)[t * 4 + part];
            }
        }
    }

    // Puts that one where it is.
    __device__ __forceinline__ void put_own(u32 base, u32 own, const uint4* key,
                                            const uint4* value) {
        const u32 group = threadIdx.x % 32 / 4, part = threadIdx.x % 4;
#pragma unroll
        for (u32 half = 0; half < 2; half++) {
            if (base + half * 8 + group != own) continue;
#pragma unroll
            for (u32 t = 0; t < CHUNKS; t++) {
                keys[half][t] = reinterpret_cast<const RawChunk*>(key)[t * 4 + part];
                values[half][t] = reinterpret_cast<const RawChunk*>(value)[t * 4 + part];
            }
        }
    }

    __device__ __forceinline__ void begin(const float (&queries)[GROUP][LENGTH]) {
        const u32 lane = threadIdx.x % 32, column = lane / 4, part = lane % 4;
#pragma unroll
        for (u32 tile = 0; tile < TILES; tile++) {
            const u32 head = tile * 4 + column / 2;
            const bool is_there = head < GROUP;
            const float* from = queries[is_there ? head : 0] + part * 8;
            float largest = 0;
#pragma unroll
            for (u32 i = 0; i < LENGTH / 4; i++) {
                largest = larger(largest, fabsf(from[i / 8 * 32 + i % 8]));
            }
            largest = larger(largest, __shfl_xor_sync(EACH_LANE, largest, 1));
            largest = larger(largest, __shfl_xor_sync(EACH_LANE, largest, 2));
            // The power of two below it, and its inverse: 1 where there is none.
            const u32 exponent = __float_as_uint(largest) >> 23;
            const bool is_scaled = exponent > 0 && exponent < 254;
            const float scale = is_scaled ? as_float((254 - exponent) << 23) : 1.0f;
            // A lane's scores are of head `lane % 4`.
            const u32 power = __shfl_sync(EACH_LANE, is_scaled ? exponent : 127, part * 8);
            back[tile] = as_float(power << 23);
            most[tile] = LEAST_SCORE;
            total[tile] = 0;
#pragma unroll
            for (u32 slice = 0; slice < SLICES; slice++) {
                const float4 four =
                    *reinterpret_cast<const float4*>(from + slice / 2 * 32 + slice % 2 * 4);
                const float all[4] = {four.x * scale, four.y * scale, four.z * scale,
                                      four.w * scale};
#pragma unroll
                for (u32 pair = 0; pair < TERM_PAIRS; pair++) {
                    const u32 term = 2 * pair + column % 2;
#pragma unroll
                    for (u32 i = 0; i < 2; i++) {
                        const u32 word = Core::pair(behind(all[2 * i], term),
                                                                  behind(all[2 * i + 1], term));
                        q[tile][pair][slice][i] = is_there ? word : 0;
                    }
                }
#pragma unroll
                for (u32 i = 0; i < 4; i++) sums[tile][slice][i] = 0;
            }
        }
    }

    // Adds what is loaded, and loads the keys from a number on.
    __device__ __forceinline__ void add(const CachedRows& rows, u32 next, u32 until, u32 own,
                                        float limit) {
        u32 weights[TILES][TERM_PAIRS][2];
        Chunk key[2][CHUNKS];
#pragma unroll
        for (u32 half = 0; half < 2; half++) {
#pragma unroll
            for (u32 t = 0; t < CHUNKS; t++) key[half][t].bits = Wide<CACHED>::eight(keys[half][t]);
        }
#pragma unroll
        for (u32 tile = 0; tile < TILES; tile++) {
            float scores[4] = {};
#pragma unroll
            for (u32 slice = 0; slice < SLICES; slice++) {
                const u32 t = slice / 2, word = slice % 2 * 2;
#pragma unroll
                for (u32 pair = 0; pair < TERM_PAIRS; pair++) {
                    Core::multiply(scores, key[0][t].words[word], key[1][t].words[word],
                                   key[0][t].words[word + 1], key[1][t].words[word + 1],
                                   q[tile][pair][slice][0], q[tile][pair][slice][1]);
                }
            }
            float own_scores[2], both = most[tile];
#pragma unroll
            for (u32 half = 0; half < 2; half++) {
                const float score = (scores[2 * half] + scores[2 * half + 1]) * back[tile];
                own_scores[half] = is_there[half] ? limited(score, limit) : LEAST_SCORE;
                both = larger(both, own_scores[half]);
            }
#pragma unroll
            for (u32 distance = 4; distance < 32; distance *= 2) {
                both = larger(both, __shfl_xor_sync(EACH_LANE, both, distance));
            }
            const float by = factor(most[tile], both);
            most[tile] = both;
            total[tile] *= by;
#pragma unroll
            for (u32 slice = 0; slice < SLICES; slice++) {
#pragma unroll
                for (u32 i = 0; i < 4; i++) sums[tile][slice][i] *= by;
            }
#pragma unroll
            for (u32 half = 0; half < 2; half++) {
                const float weight = factor(own_scores[half], both);
                total[tile] += weight;
#pragma unroll
                for (u32 pair = 0; pair < TERM_PAIRS; pair++) {
                    const u32 word = Core::pair(behind(weight, 2 * pair),
                                                              behind(weight, 2 * pair + 1));
                    weights[tile][pair][half] = transposed(word);
                }
            }
        }
#pragma unroll
        for (u32 slice = 0; slice < SLICES; slice++) {
            const u32 t = slice / 2, word = slice % 2 * 2;
            u32 columns[2][2];
#pragma unroll
            for (u32 half = 0; half < 2; half++) {
                Chunk value;
                value.bits = Wide<CACHED>::eight(values[half][t]);
                columns[half][0] = transposed(value.words[word]);
                columns[half][1] = transposed(value.words[word + 1]);
            }
#pragma unroll
            for (u32 tile = 0; tile < TILES; tile++) {
#pragma unroll
                for (u32 pair = 0; pair < TERM_PAIRS; pair++) {
                    Core::multiply(sums[tile][slice], columns[0][0], columns[0][1],
                                                 columns[1][0], columns[1][1],
                                                 weights[tile][pair][0], weights[tile][pair][1]);
                }
            }
        }
        load(rows, next, until, own);
    }

    // Joins the lanes' sums.
    __device__ __forceinline__ void finish(float (&to)[GROUP][LENGTH], float (&all_most)[GROUP],
                                           float (&all_totals)[GROUP]) {
        const u32 group = threadIdx.x % 32 / 4, part = threadIdx.x % 4;
#pragma unroll
        for (u32 tile = 0; tile < TILES; tile++) {
            const u32 head = tile * 4 + part;
#pragma unroll
            for (u32 distance = 4; distance < 32; distance *= 2) {
                total[tile] += __shfl_xor_sync(EACH_LANE, total[tile], distance);
            }
            if (head >= GROUP) continue;
            if (group == 0) {
                all_most[head] = most[tile];
                all_totals[head] = total[tile];
            }
#pragma unroll
            for (u32 slice = 0; slice < SLICES; slice++) {
                const u32 d = slice / 2 * 32 + slice % 2 * 4 + group / 2 * 8 + group % 2;
                to[head][d] = sums[tile][slice][0] + sums[tile][slice][1];
                to[head][d + 2] = sums[tile][slice][2] + sums[tile][slice][3];
            }
        }
    }
};
