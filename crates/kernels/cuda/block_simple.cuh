// Block formats with one scale, and perhaps one minimum, for all elements of a block, and those of
// ternary elements and of four-bit floats.
#pragma once
#include "block_units.cuh"

// A block of 32 elements, or of units that follow each other.
struct InOrder {
    static const int BIAS = 0;
    static const bool HALVES = false, OFFSET = false;
    static __device__ __forceinline__ u32 first(u32 unit) { return unit * 32; }
    static __device__ __forceinline__ u32 second(u32 unit) { return unit * 32 + 16; }
};

struct Q1_0 : InOrder {
    static const u32 ELEMENTS = 128, BYTES = 18;
    static const int BIAS = 1;
    static __device__ __forceinline__ void load(Unit& to, const u8* block, u32 unit) {
        to.scale[0] = half_at(block, 0);
        u32 bits[1];
        load_part<2>(bits, block, 2 + unit * 4);
#pragma unroll
        for (int i = 0; i < 8; i++) to.codes[i] = spread_bits(bits[0] >> (4 * i)) << 1;
    }
};

struct Q2_0 : InOrder {
    static const u32 ELEMENTS = 64, BYTES = 18;
    static const int BIAS = 1;
    static __device__ __forceinline__ void load(Unit& to, const u8* block, u32 unit) {
        to.scale[0] = half_at(block, 0);
        u32 words[2];
        load_part<2>(words, block, 2 + unit * 8);
#pragma unroll
        for (int i = 0; i < 8; i++) to.codes[i] = spread_pairs(words[i / 4] >> (i % 4 * 8));
    }
};

struct Q4_0 : InOrder {
    static const u32 ELEMENTS = 32, BYTES = 18;
    static const int BIAS = 8;
    static __device__ __forceinline__ void load(Unit& to, const u8* block, u32) {
        to.scale[0] = half_at(block, 0);
        u32 words[4];
        load_part<2>(words, block, 2);
        put_nibbles(to, words);
    }
};

// Scale and minimum, which is added.
__device__ __forceinline__ void put_scale_and_minimum(Unit& to, const u8* block) {
    u32 both[1];
    load_part<4>(both, block, 0);
    to.scale[0] = half_value((u16)both[0]);
    to.offset[0] = -half_value((u16)(both[0] >> 16));
}

struct Q4_1 : InOrder {
    static const u32 ELEMENTS = 32, BYTES = 20;
    static const bool OFFSET = true;
    static __device__ __forceinline__ void load(Unit& to, const u8* block, u32) {
        put_scale_and_minimum(to, block);
        u32 words[4];
        load_part<4>(words, block, 4);
        put_nibbles(to, words);
    }
};

__device__ __forceinline__ void put_fifth_bits(Unit& to, u32 bits) {
#pragma unroll
    for (int i = 0; i < 8; i++) to.codes[i] |= spread_bits(bits >> (4 * i)) << 4;
}

struct Q5_0 : InOrder {
    static const u32 ELEMENTS = 32, BYTES = 22;
    static const int BIAS = 16;
    static __device__ __forceinline__ void load(Unit& to, const u8* block, u32) {
        to.scale[0] = half_at(block, 0);
        u32 bits[1], words[4];
        load_part<2>(bits, block, 2);
        load_part<2>(words, block, 6);
        put_nibbles(to, words);
        put_fifth_bits(to, bits[0]);
    }
};

struct Q5_1 : InOrder {
    static const u32 ELEMENTS = 32, BYTES = 24;
    static const bool OFFSET = true;
    static __device__ __forceinline__ void load(Unit& to, const u8* block, u32) {
        put_scale_and_minimum(to, block);
        u32 bits[1], words[4];
        load_part<4>(bits, block, 4);
        load_part<8>(words, block, 8);
        put_nibbles(to, words);
        put_fifth_bits(to, bits[0]);
    }
};

struct Q8_0 : InOrder {
    static const u32 ELEMENTS = 32, BYTES = 34;
    static __device__ __forceinline__ void load(Unit& to, const u8* block, u32) {
        to.scale[0] = half_at(block, 0);
        load_part<2>(to.codes, block, 2);
    }
};

struct Q8_1 : InOrder {
    static const u32 ELEMENTS = 32, BYTES = 36;
    static __device__ __forceinline__ void load(Unit& to, const u8* block, u32) {
        to.scale[0] = half_at(block, 0);
        load_part<4>(to.codes, block, 4);
    }
};

// Sixteen levels, four in each word.
struct Levels {
    u32 words[4];

    // Levels of the eight nibbles of a word: those of low ones, and of high ones.
    __device__ __forceinline__ void put(u32& low, u32& high, u32 nibbles) const {
        const u32 places = nibbles & 0x77777777u;
        // A level is of the first or of the last eight, as the nibble's topmost bit says.
        const u32 half = 0x32103210u | (nibbles & 0x88888888u) >> 1;
        const u32 a = __byte_perm(__byte_perm(words[0], words[1], places),
                                  __byte_perm(words[2], words[3], places), half);
        const u32 b = __byte_perm(__byte_perm(words[0], words[1], places >> 16),
                                  __byte_perm(words[2], words[3], places >> 16), half >> 16);
        low = __byte_perm(a, b, 0x6420);
        high = __byte_perm(a, b, 0x7531);
    }
};

__device__ __forceinline__ Levels nonlinear_levels() {
    return Levels{{0xbfad9881u, 0xf6eaddcfu, 0x26190d01u, 0x71594535u}};
}

// Twice the values of E2M1.
__device__ __forceinline__ Levels doubled_levels() {
    return Levels{{0x03020100u, 0x0c080604u, 0xfdfeff00u, 0xf4f8fafcu}};
}

struct Iq4Nl : InOrder {
    static const u32 ELEMENTS = 32, BYTES = 18;
    static __device__ __forceinline__ void load(Unit& to, const u8* block, u32) {
        to.scale[0] = half_at(block, 0);
        u32 words[4];
        load_part<2>(words, block, 2);
        const Levels levels = nonlinear_levels();
#pragma unroll
        for (int i = 0; i < 4; i++) levels.put(to.codes[i], to.codes[4 + i], words[i]);
    }
};

struct Mxfp4 : InOrder {
    static const u32 ELEMENTS = 32, BYTES = 17;
    static __device__ __forceinline__ void load(Unit& to, const u8* block, u32) {
        // Half of 2 to the power of an exponent with a bias of 127.
        const u32 exponent = byte_at(block);
        to.scale[0] = as_float(exponent < 2 ? 0x00200000u << exponent : (exponent - 1) << 23);
        u32 words[4];
        load_part<1>(words, block, 1);
        const Levels levels = doubled_levels();
#pragma unroll
        for (int i = 0; i < 4; i++) levels.put(to.codes[i], to.codes[4 + i], words[i]);
    }
};

// Half of an E4M3 scale, whose sign is ignored; 0x7f is 0.
__device__ __forceinline__ float half_scale(u32 code) {
    const u32 exponent = code >> 3 & 15;
    const float fraction = (float)(code & 7);
    const float value = exponent == 0 ? fraction * 0.001953125f
                                      : (1.0f + fraction * 0.125f) * as_float((exponent + 120) << 23);
    return code == 0x7f ? 0.0f : value * 0.5f;
}

struct Nvfp4 : InOrder {
    static const u32 ELEMENTS = 64, BYTES = 36;
    static const bool HALVES = true;
    static __device__ __forceinline__ void load(Unit& to, const u8* block, u32 unit) {
        const u32 scales = two_at(block, unit * 2);
        to.scale[0] = half_scale(scales & 255);
        to.scale[1] = half_scale(scales >> 8);
        u32 words[4];
        load_part<4>(words, block, 4 + unit * 16);
        const Levels levels = doubled_levels();
#pragma unroll
        for (int half = 0; half < 8; half += 4) {
            u32* codes = to.codes + half;
            levels.put(codes[0], codes[2], words[half / 2]);
            levels.put(codes[1], codes[3], words[half / 2 + 1]);
        }
    }
};

struct Tq1_0 : InOrder {
    static const u32 ELEMENTS = 256, BYTES = 54;
    static const int BIAS = 1;

    // Leading digits, base 3, of fractions of 256 in the bytes of a word, times a power of 3.
    static __device__ __forceinline__ u32 digits(u32 word, u32 power) {
        const u32 even = (word & 0x00ff00ffu) * power & 0x00ff00ffu;
        const u32 odd = (word >> 8 & 0x00ff00ffu) * power & 0x00ff00ffu;
        return (even * 3 >> 8 & 0x00030003u) | (odd * 3 & 0x03000300u);
    }

    static __device__ __forceinline__ void load(Unit& to, const u8* block, u32 unit) {
        to.scale[0] = half_at(block, 52);
#pragma unroll
        for (u32 half = 0; half < 2; half++) {
            // Sixteen elements: five rows of 32 columns, five of 16, four of 4, a word for each.
            const u32 group = unit * 2 + half;
            const bool is_last = group == 15;
            u32 words[4];
            load_part<2>(words, block, group < 10 ? group % 2 * 16 : is_last ? 36 : 32);
            // Powers of 3, a byte each.
            const u32 row = group < 10 ? group / 2 : group - 10;
            const u32 power = row == 4 ? 81 : 0x1b090301u >> (row % 4 * 8) & 255;
#pragma unroll
            for (int i = 0; i < 4; i++) {
                const u32 own = is_last ? 0x1b090301u >> (i * 8) & 255 : power;
                to.codes[half * 4 + i] = digits(is_last ? words[3] : words[i], own);
            }
        }
    }
};

struct Tq2_0 {
    static const u32 ELEMENTS = 256, BYTES = 66;
    static const int BIAS = 1;
    static const bool HALVES = false, OFFSET = false;
    // A byte has the codes of four elements that are 32 apart.
    static __device__ __forceinline__ u32 first(u32 unit) {
        return unit / 4 * 128 + unit % 2 * 64 + unit / 2 % 2 * 16;
    }
    static __device__ __forceinline__ u32 second(u32 unit) { return first(unit) + 32; }
    static __device__ __forceinline__ void load(Unit& to, const u8* block, u32 unit) {
        to.scale[0] = half_at(block, 64);
        u32 words[4];
        load_part<2>(words, block, unit / 4 * 32 + unit / 2 % 2 * 16);
#pragma unroll
        for (int i = 0; i < 4; i++) {
            const u32 word = words[i] >> (unit % 2 * 4);
            to.codes[i] = word & 0x03030303u;
            to.codes[4 + i] = word >> 2 & 0x03030303u;
        }
    }
};
