// K-quants: 256 elements in groups of 16 or 32, each with a scale, and perhaps a minimum, in units
// of the block's own.
#pragma once
#include "block_units.cuh"

// Scales and minimums of two neighbouring groups of 32, of eight, with six bits each: `words` has
// the block's own scale and minimum, and the groups'.
__device__ __forceinline__ void put_six_bits(Unit& to, const u32 (&words)[4], u32 pair) {
    const float scale = half_value((u16)words[0]), minimum = half_value((u16)(words[0] >> 16));
    const bool is_high = pair >= 2;
    const u32 low = is_high ? 0x0f0f0f0fu : 0x3f3f3f3fu, high = is_high ? 0x30303030u : 0;
    const u32 scales = ((is_high ? words[3] : words[1]) & low) | (words[1] >> 2 & high);
    const u32 minimums = ((is_high ? words[3] >> 4 : words[2]) & low) | (words[2] >> 2 & high);
    // Those of the pair: two scales, two minimums.
    const u32 both = __byte_perm(scales, minimums, pair % 2 == 0 ? 0x5410 : 0x7632);
    to.scale[0] = scale * (float)(both & 255);
    to.scale[1] = scale * (float)(both >> 8 & 255);
    to.offset[0] = minimum * (float)(both >> 16 & 255);
    to.offset[1] = minimum * (float)(both >> 24);
}

// Sixteen bytes whose low nibbles are of one group of 32 and the high ones of the next.
struct PairsOf32 {
    static const u32 ELEMENTS = 256;
    static const int BIAS = 0;
    static const bool HALVES = true, OFFSET = true;
    static __device__ __forceinline__ u32 first(u32 unit) {
        return unit / 2 * 64 + unit % 2 * 16;
    }
    static __device__ __forceinline__ u32 second(u32 unit) { return first(unit) + 32; }
};

struct Q4_K : PairsOf32 {
    static const u32 BYTES = 144;
    static __device__ __forceinline__ void load(Unit& to, const u8* block, u32 unit) {
        u32 scales[4], words[4];
        load_part<16>(scales, block, 0);
        load_part<16>(words, block, 16 + unit * 16);
        put_six_bits(to, scales, unit / 2);
        put_nibbles(to, words);
    }
};

struct Q5_K : PairsOf32 {
    static const u32 BYTES = 176;
    static __device__ __forceinline__ void load(Unit& to, const u8* block, u32 unit) {
        u32 scales[4], high[4], words[4];
        load_part<16>(scales, block, 0);
        load_part<16>(high, block, 16 + unit % 2 * 16);
        load_part<16>(words, block, 48 + unit * 16);
        put_six_bits(to, scales, unit / 2);
        put_nibbles(to, words);
#pragma unroll
        for (int i = 0; i < 4; i++) {
            const u32 bits = high[i] >> (unit / 2 * 2);
            to.codes[i] |= (bits & 0x01010101u) << 4;
            to.codes[4 + i] |= (bits >> 1 & 0x01010101u) << 4;
        }
    }
};

// Sixteen bytes have codes of two bits of four groups of 16 that are 32 elements apart; a unit has
// two of these groups.
struct PairsOf16 {
    static const u32 ELEMENTS = 256;
    static const bool HALVES = true;
    static __device__ __forceinline__ u32 first(u32 unit) {
        return unit / 4 * 128 + unit % 2 * 64 + unit / 2 % 2 * 16;
    }
    static __device__ __forceinline__ u32 second(u32 unit) { return first(unit) + 32; }

    static __device__ __forceinline__ void put_two_bits(Unit& to, const u32 (&words)[4], u32 unit) {
#pragma unroll
        for (int i = 0; i < 4; i++) {
            const u32 word = words[i] >> (unit % 2 * 4);
            to.codes[i] = word & 0x03030303u;
            to.codes[4 + i] = word >> 2 & 0x03030303u;
        }
    }
    // Where the unit's bytes are among those of codes.
    static __device__ __forceinline__ u32 bytes_from(u32 unit) {
        return unit / 4 * 32 + unit / 2 % 2 * 16;
    }
};

struct Q2_K : PairsOf16 {
    static const u32 BYTES = 84;
    static const int BIAS = 0;
    static const bool OFFSET = true;
    static __device__ __forceinline__ void load(Unit& to, const u8* block, u32 unit) {
        u32 words[4], own[1];
        load_part<16>(words, block, 16 + bytes_from(unit));
        load_part<4>(own, block, 80);
        const float scale = half_value((u16)own[0]), minimum = half_value((u16)(own[0] >> 16));
        put_two_bits(to, words, unit);
#pragma unroll
        for (int half = 0; half < 2; half++) {
            const u32 both = byte_at(block + (half == 0 ? first(unit) : second(unit)) / 16);
            to.scale[half] = scale * (float)(both & 15);
            to.offset[half] = minimum * (float)(both >> 4);
        }
    }
};

struct Q3_K : PairsOf16 {
    static const u32 BYTES = 110;
    static const int BIAS = 4;
    static const bool OFFSET = false;
    static __device__ __forceinline__ void load(Unit& to, const u8* block, u32 unit) {
        u32 words[4], high[4];
        load_part<2>(words, block, 32 + bytes_from(unit));
        load_part<2>(high, block, unit / 2 % 2 * 16);
        const float scale = half_at(block, 108);
        put_two_bits(to, words, unit);
        const u32 bit = unit / 4 * 4 + unit % 2 * 2;
#pragma unroll
        for (int i = 0; i < 4; i++) {
            to.codes[i] |= (high[i] >> bit & 0x01010101u) << 2;
            to.codes[4 + i] |= (high[i] >> (bit + 1) & 0x01010101u) << 2;
        }
#pragma unroll
        for (int half = 0; half < 2; half++) {
            const u32 group = (half == 0 ? first(unit) : second(unit)) / 16;
            const u32 low = byte_at(block + 96 + group % 8) >> (group / 8 * 4) & 15;
            const u32 top = byte_at(block + 104 + group % 4) >> (group / 4 * 2) & 3;
            to.scale[half] = scale * (float)((int)(low | top << 4) - 32);
        }
    }
};

struct Q6_K {
    static const u32 ELEMENTS = 256, BYTES = 210;
    static const int BIAS = 32;
    static const bool HALVES = true, OFFSET = false;
    static __device__ __forceinline__ u32 first(u32 unit) { return unit / 4 * 128 + unit % 4 * 16; }
    static __device__ __forceinline__ u32 second(u32 unit) { return first(unit) + 64; }
    static __device__ __forceinline__ void load(Unit& to, const u8* block, u32 unit) {
        u32 words[4], high[4];
        load_part<2>(words, block, unit * 16);
        load_part<2>(high, block, 128 + unit / 4 * 32 + unit % 2 * 16);
        const float scale = half_at(block, 208);
        put_nibbles(to, words);
        const u32 shift = unit / 2 % 2 * 2;
#pragma unroll
        for (int i = 0; i < 4; i++) {
            const u32 bits = high[i] >> shift;
            to.codes[i] |= (bits & 0x03030303u) << 4;
            to.codes[4 + i] |= (bits >> 4 & 0x03030303u) << 4;
        }
        const u32 group = first(unit) / 16;
        to.scale[0] = scale * (float)(signed char)byte_at(block + 192 + group);
        to.scale[1] = scale * (float)(signed char)byte_at(block + 196 + group);
    }
};

struct Q8_K {
    static const u32 ELEMENTS = 256, BYTES = 292;
    static const int BIAS = 0;
    static const bool HALVES = false, OFFSET = false;
    static __device__ __forceinline__ u32 first(u32 unit) { return unit * 32; }
    static __device__ __forceinline__ u32 second(u32 unit) { return unit * 32 + 16; }
    static __device__ __forceinline__ void load(Unit& to, const u8* block, u32 unit) {
        u32 scale[1];
        load_part<4>(scale, block, 0);
        to.scale[0] = as_float(scale[0]);
        load_part<4>(to.codes, block, 4 + unit * 32);
    }
};
