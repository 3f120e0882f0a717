// Blocks of quantised elements, in units of 32 elements that a thread decodes at once.
//
// A unit is two halves of 16 elements that lie at multiples of 16 in its block. An element is
// scale * (code - BIAS) - offset, of its half. A format is a struct:
//   ELEMENTS, BYTES   of a block
//   BIAS              subtracted from codes
//   HALVES            whether the halves have scales of their own, else those of the first half
//   OFFSET            whether there are offsets
//   load              decodes a unit of a block
//   first, second     where the halves begin in the block
// BLOCK_ALIGN is the power of two, at most 16, that every block's address is a multiple of. If it is
// 2, or IS_DENSE, blocks follow each other without gaps from a multiple of 4 on.
#pragma once
#include "common.cuh"

struct Unit {
    u32 codes[8];
    float scale[2];
    float offset[2];
};

// What an address at a multiple of `step` from a block is a multiple of.
constexpr int aligned_at(int step) { return step < BLOCK_ALIGN ? step : BLOCK_ALIGN; }

__device__ __forceinline__ u32 byte_at(const u8* from) { return *from; }

template <int ALIGN>
__device__ __forceinline__ u32 load_two(const u8* from) {
    if (ALIGN >= 2) return *reinterpret_cast<const u16*>(from);
    return byte_at(from) | byte_at(from + 1) << 8;
}

// Words at an address that is a multiple of ALIGN.
template <int ALIGN, int N>
__device__ __forceinline__ void load_words(u32 (&to)[N], const u8* from) {
    if (ALIGN >= 16 && N % 4 == 0) {
#pragma unroll
        for (int i = 0; i < N / 4; i++) {
            const uint4 four = reinterpret_cast<const uint4*>(from)[i];
            to[4 * i] = four.x;
            to[4 * i + 1] = four.y;
            to[4 * i + 2] = four.z;
            to[4 * i + 3] = four.w;
        }
    } else if (ALIGN >= 8 && N % 2 == 0) {
#pragma unroll
        for (int i = 0; i < N / 2; i++) {
            const uint2 two = reinterpret_cast<const uint2*>(from)[i];
            to[2 * i] = two.x;
            to[2 * i + 1] = two.y;
        }
    } else if (ALIGN >= 4) {
#pragma unroll
        for (int i = 0; i < N; i++) to[i] = reinterpret_cast<const u32*>(from)[i];
    } else if (ALIGN == 2 && N > 1) {
        // Whole words from a multiple of 4 on, and the last half.
        const u32 beyond = (u32)(u64)from & 2;
        const u32* words = reinterpret_cast<const u32*>(from - beyond);
        u32 own[N + 1];
#pragma unroll
        for (int i = 0; i < N; i++) own[i] = words[i];
        own[N] = load_two<2>(from + 4 * N - 2);
#pragma unroll
        for (int i = 0; i < N; i++) to[i] = __funnelshift_r(own[i], own[i + 1], beyond * 8);
    } else if (IS_DENSE && N > 1) {
        // Whole words, and what bytes are left.
        const u32 beyond = (u32)(u64)from & 3;
        const u32* words = reinterpret_cast<const u32*>(from - beyond);
        u32 own[N + 1];
#pragma unroll
        for (int i = 0; i < N; i++) own[i] = words[i];
        own[N] = 0;
#pragma unroll
        for (u32 i = 0; i < 3; i++) {
            if (i < beyond) own[N] |= byte_at(from - beyond + 4 * N + i) << (8 * i);
        }
#pragma unroll
        for (int i = 0; i < N; i++) to[i] = __funnelshift_r(own[i], own[i + 1], beyond * 8);
    } else {
#pragma unroll
        for (int i = 0; i < N; i++) {
            to[i] = load_two<ALIGN>(from + 4 * i) | load_two<ALIGN>(from + 4 * i + 2) << 16;
        }
    }
}

// A part of a block at a multiple of STEP bytes from its beginning.
template <int STEP, int N>
__device__ __forceinline__ void load_part(u32 (&to)[N], const u8* block, u32 offset) {
    load_words<aligned_at(STEP)>(to, block + offset);
}

__device__ __forceinline__ u32 two_at(const u8* block, u32 offset) {
    return load_two<aligned_at(2)>(block + offset);
}

__device__ __forceinline__ float half_at(const u8* block, u32 offset) {
    return half_value((u16)two_at(block, offset));
}

// Four bits, one in each byte.
__device__ __forceinline__ u32 spread_bits(u32 bits) {
    return (bits & 15) * 0x00204081u & 0x01010101u;
}

// Four codes of two bits, one in each byte.
__device__ __forceinline__ u32 spread_pairs(u32 bits) {
    return (bits & 3) | (bits & 0xc) << 6 | (bits & 0x30) << 12 | (bits & 0xc0) << 18;
}

// The low nibbles of words as the first half, the high ones as the second one.
__device__ __forceinline__ void put_nibbles(Unit& to, const u32 (&words)[4]) {
#pragma unroll
    for (int i = 0; i < 4; i++) {
        to.codes[i] = words[i] & 0x0f0f0f0fu;
        to.codes[4 + i] = words[i] >> 4 & 0x0f0f0f0fu;
    }
}

// Codes less BIAS, for codes below 128 in each byte.
template <int BIAS>
__device__ __forceinline__ u32 without_bias(u32 codes) {
    if (BIAS == 0) return codes;
    return ((codes | 0x80808080u) - (u32)BIAS * 0x01010101u) ^ 0x80808080u;
}

// Element of a half.
template <typename Format>
__device__ __forceinline__ float element_of(const Unit& unit, u32 half, u32 place) {
    const u32 own = Format::HALVES ? half : 0;
    const int code = (int)(signed char)(unit.codes[half * 4 + place / 4] >> (place % 4 * 8));
    const float value = __fmul_rn(unit.scale[own], (float)(code - Format::BIAS));
    return Format::OFFSET ? __fsub_rn(value, unit.offset[own]) : value;
}
