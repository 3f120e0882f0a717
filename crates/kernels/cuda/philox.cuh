// Random numbers by counter: Philox4x32-10 (Salmon, Moraes, Dror, Shaw: "Parallel random numbers: as
// easy as 1, 2, 3", 2011). Block `b` of 128 bits is the counter (b, stream) under the key `seed`. An
// element of 32 random bits is word i % 4 of block i / 4, one of 64 is half i % 2 of block i / 2,
// where i is its number in row-major order. So the numbers depend on nothing else.
#pragma once
#include "common.cuh"

struct Words {
    u32 word[4];
};

__device__ __forceinline__ Words philox(u64 block, u64 stream, u64 seed) {
    u32 a = (u32)block, b = (u32)(block >> 32), c = (u32)stream, d = (u32)(stream >> 32);
    u32 low = (u32)seed, high = (u32)(seed >> 32);
#pragma unroll
    for (int round = 0; round < 10; round++) {
        const u64 left = (u64)0xD2511F53u * a, right = (u64)0xCD9E8D57u * c;
        a = (u32)(right >> 32) ^ b ^ low;
        b = (u32)right;
        c = (u32)(left >> 32) ^ d ^ high;
        d = (u32)left;
        low += 0x9E3779B9u;
        high += 0xBB67AE85u;
    }
    return Words{{a, b, c, d}};
}

__device__ __forceinline__ u64 half_of(const Words& words, int half) {
    return (u64)words.word[2 * half + 1] << 32 | words.word[2 * half];
}
