// A warp's part of attention of few heads of one token, in f32: a key has LANES lanes, 16 bytes each,
// which keep the largest score, the sum of weights, and that of values by them.
//
// What is loaded is added in the next turn, so that memory answers meanwhile.
#pragma once

#define WIDTH (16 / (u32)sizeof(CACHED))
// Keys that the lanes have at once, and how often.
#define KEYS (32 / LANES)
#define LOADED 4
// A warp's keys lie apart: those of all warps are neighbours.
#define KEYS_OF_WARP (KEYS * LOADED)

union Chunk {
    uint4 bits;
    CACHED values[WIDTH];

    __device__ __forceinline__ Chunk() {}
};

struct PartSums {
    Chunk keys[LOADED], values[LOADED];
    bool is_there[LOADED];
    float q[GROUP][WIDTH], sums[GROUP][WIDTH], most[GROUP], total[GROUP];

    // Whether the lane has some of a head's elements.
    static __device__ __forceinline__ bool has_chunk() {
        return threadIdx.x % LANES * WIDTH < LENGTH;
    }

    // Loads keys from a number on, but the one that is not in the cache yet.
    __device__ __forceinline__ void load(const CachedRows& rows, u32 base, u32 until, u32 own) {
        const u32 chunk = threadIdx.x % LANES;
#pragma unroll
        for (u32 i = 0; i < LOADED; i++) {
            const u32 number = base + i * KEYS + threadIdx.x % 32 / LANES;
            keys[i].bits = make_uint4(0, 0, 0, 0);
            values[i].bits = make_uint4(0, 0, 0, 0);
            is_there[i] = number < until;
            if (!is_there[i] || number == own) continue;
            const uint4 *key, *value;
            is_there[i] = rows.find(number, key, value);
            if (!is_there[i] || !has_chunk()) continue;
            keys[i].bits = key[chunk];
            values[i].bits = value[chunk];
        }
    }

    // Puts that one where it is.
    __device__ __forceinline__ void put_own(u32 base, u32 own, const uint4* key,
                                            const uint4* value) {
        const u32 chunk = threadIdx.x % LANES;
#pragma unroll
        for (u32 i = 0; i < LOADED; i++) {
            if (base + i * KEYS + threadIdx.x % 32 / LANES != own || !has_chunk()) continue;
            keys[i].bits = key[chunk];
            values[i].bits = value[chunk];
        }
    }

    __device__ __forceinline__ void begin(const float (&queries)[GROUP][LENGTH]) {
        const u32 first = threadIdx.x % LANES * WIDTH;
#pragma unroll
        for (u32 g = 0; g < GROUP; g++) {
            most[g] = LEAST_SCORE;
            total[g] = 0;
#pragma unroll
            for (u32 e = 0; e < WIDTH; e++) {
                q[g][e] = has_chunk() ? queries[g][first + e] : 0.0f;
                sums[g][e] = 0;
            }
        }
    }

    // Adds what is loaded, and loads the keys from a number on.
    __device__ __forceinline__ void add(const CachedRows& rows, u32 next, u32 until, u32 own,
                                        float limit) {
#pragma unroll
        for (u32 g = 0; g < GROUP; g++) {
            float scores[LOADED], both = most[g];
#pragma unroll
            for (u32 i = 0; i < LOADED; i++) {
                float sum = 0;
#pragma unroll
                for (u32 e = 0; e < WIDTH; e++) {
                    sum = fmaf(q[g][e], (float)Kept::load(keys[i].values[e]), sum);
                }
#pragma unroll
                for (u32 distance = LANES / 2; distance > 0; distance /= 2) {
                    sum += __shfl_xor_sync(EACH_LANE, sum, distance);
                }
                scores[i] = is_there[i] ? limited(sum, limit) : LEAST_SCORE;
                both = larger(both, scores[i]);
            }
            const float by = factor(most[g], both);
            most[g] = both;
            total[g] *= by;
#pragma unroll
            for (u32 e = 0; e < WIDTH; e++) sums[g][e] *= by;
#pragma unroll
            for (u32 i = 0; i < LOADED; i++) {
                const float weight = factor(scores[i], both);
                total[g] += weight;
#pragma unroll
                for (u32 e = 0; e < WIDTH; e++) {
                    sums[g][e] = fmaf(weight, (float)Kept::load(values[i].values[e]), sums[g][e]);
                }
            }
        }
        load(rows, next, until, own);
    }

    // Joins the lanes' sums.
    __device__ __forceinline__ void finish(float (&to)[GROUP][LENGTH], float (&all_most)[GROUP],
                                           float (&all_totals)[GROUP]) {
        const u32 lane = threadIdx.x % 32, first = threadIdx.x % LANES * WIDTH;
#pragma unroll
        for (u32 g = 0; g < GROUP; g++) {
#pragma unroll
            for (u32 distance = LANES; distance < 32; distance *= 2) {
                const float other = __shfl_xor_sync(EACH_LANE, most[g], distance);
                const float both = larger(most[g], other);
                const float by = factor(most[g], both), other_by = factor(other, both);
                most[g] = both;
                total[g] =
                    total[g] * by + __shfl_xor_sync(EACH_LANE, total[g], distance) * other_by;
#pragma unroll
                for (u32 e = 0; e < WIDTH; e++) {
                    sums[g][e] = sums[g][e] * by +
                                 __shfl_xor_sync(EACH_LANE, sums[g][e], distance) * other_by;
                }
            }
            if (lane < LANES && has_chunk()) {
#pragma unroll
                for (u32 e = 0; e < WIDTH; e++) to[g][first + e] = sums[g][e];
            }
            if (lane == 0) {
                all_most[g] = most[g];
                all_totals[g] = total[g];
            }
        }
    }
};
