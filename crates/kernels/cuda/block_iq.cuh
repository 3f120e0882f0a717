// Block formats whose codes choose rows of a codebook: IQ1 to IQ3, and IQ4_XS. CODEBOOK has the
// rows, with eight elements of two bits, or four of three bits, the first element lowest.
#pragma once
#include "block_simple.cuh"

#ifdef CODEBOOK
__device__ const u16 codebook[] = {CODEBOOK};

__device__ __forceinline__ u32 row_of(u32 code) { return codebook[code]; }
#endif

// Selectors of bytes for four codes of two bits.
__device__ __forceinline__ u32 two_bit_places(u32 bits) {
    const u32 apart = (bits | bits << 4) & 0x0f0f;
    return (apart | apart << 2) & 0x3333;
}

// Selectors of bytes for four codes of three bits.
__device__ __forceinline__ u32 three_bit_places(u32 bits) {
    return (bits & 7) | (bits & 0x38) << 1 | (bits & 0x1c0) << 2 | (bits & 0xe00) << 3;
}

// Four levels above 0 with the signs that four bits say.
__device__ __forceinline__ u32 with_signs(u32 levels, u32 bits) {
    const u32 ones = spread_bits(bits);
    return (levels ^ ones * 255) + ones;
}

// Seven signs, and an eighth that makes their number even.
__device__ __forceinline__ u32 even_signs(u32 seven) {
    seven &= 127;
    return seven | (u32)(__popc(seven) & 1) << 7;
}

// Eight levels of IQ2, of a row of the codebook.
__device__ __forceinline__ void put_eight(Unit& to, u32 part, u32 row, u32 signs) {
    const u32 levels = 0x002b1908u;
    to.codes[part * 2] = with_signs(__byte_perm(levels, 0, two_bit_places(row & 255)), signs);
    to.codes[part * 2 + 1] = with_signs(__byte_perm(levels, 0, two_bit_places(row >> 8)), signs >> 4);
}

// Levels of IQ1 times eight: an eighth is added to -1, 0 and 1, or subtracted.
__device__ __forceinline__ void put_ones(Unit& to, u32 part, u32 row, bool is_below) {
    const u32 above = 0x000901f9u, below = 0x0007fff7u, levels = is_below ? below : above;
    to.codes[part * 2] = __byte_perm(levels, 0, two_bit_places(row & 255));
    to.codes[part * 2 + 1] = __byte_perm(levels, 0, two_bit_places(row >> 8));
}

__device__ __forceinline__ float quarter_factor(float scale, u32 nibble) {
    return scale * (0.5f + (float)nibble) * 0.25f;
}

#ifdef CODEBOOK
struct Iq2Xxs : InOrder {
    static const u32 ELEMENTS = 256, BYTES = 66;
    static __device__ __forceinline__ void load(Unit& to, const u8* block, u32 unit) {
        u32 words[2];
        load_part<2>(words, block, 2 + unit * 8);
        to.scale[0] = quarter_factor(half_at(block, 0), words[1] >> 28);
#pragma unroll
        for (u32 part = 0; part < 4; part++) {
            const u32 row = row_of(words[0] >> (8 * part) & 255);
            put_eight(to, part, row, even_signs(words[1] >> (7 * part)));
        }
    }
};

struct Iq2Xs : InOrder {
    static const u32 ELEMENTS = 256, BYTES = 74;
    static const bool HALVES = true;
    static __device__ __forceinline__ void load(Unit& to, const u8* block, u32 unit) {
        const float scale = half_at(block, 0);
        const u32 nibbles = byte_at(block + 66 + unit);
        to.scale[0] = quarter_factor(scale, nibbles & 15);
        to.scale[1] = quarter_factor(scale, nibbles >> 4);
        u32 words[2];
        load_part<2>(words, block, 2 + unit * 8);
#pragma unroll
        for (u32 part = 0; part < 4; part++) {
            const u32 word = words[part / 2] >> (part % 2 * 16);
            put_eight(to, part, row_of(word & 511), even_signs(word >> 9));
        }
    }
};

struct Iq2S : InOrder {
    static const u32 ELEMENTS = 256, BYTES = 82;
    static const bool HALVES = true;
    static __device__ __forceinline__ void load(Unit& to, const u8* block, u32 unit) {
        const float scale = half_at(block, 0);
        const u32 nibbles = byte_at(block + 74 + unit), high = byte_at(block + 66 + unit);
        to.scale[0] = quarter_factor(scale, nibbles & 15);
        to.scale[1] = quarter_factor(scale, nibbles >> 4);
        u32 codes[1], signs[1];
        load_part<2>(codes, block, 2 + unit * 4);
        load_part<2>(signs, block, 34 + unit * 4);
#pragma unroll
        for (u32 part = 0; part < 4; part++) {
            const u32 code = (codes[0] >> (8 * part) & 255) | (high >> (2 * part) & 3) << 8;
            put_eight(to, part, row_of(code), signs[0] >> (8 * part) & 255);
        }
    }
};

struct Iq3Xxs : InOrder {
    static const u32 ELEMENTS = 256, BYTES = 98;
    static __device__ __forceinline__ void load(Unit& to, const u8* block, u32 unit) {
        u32 codes[2], words[1];
        load_part<2>(codes, block, 2 + unit * 8);
        load_part<2>(words, block, 66 + unit * 4);
        to.scale[0] = half_at(block, 0) * (0.5f + (float)(words[0] >> 28)) * 0.5f;
#pragma unroll
        for (u32 i = 0; i < 8; i++) {
            const u32 row = row_of(codes[i / 4] >> (i % 4 * 8) & 255);
            const u32 levels = __byte_perm(0x1c140c04u, 0x3e342c24u, three_bit_places(row));
            to.codes[i] = with_signs(levels, even_signs(words[0] >> (i / 2 * 7)) >> (i % 2 * 4));
        }
    }
};

struct Iq3S : InOrder {
    static const u32 ELEMENTS = 256, BYTES = 110;
    static __device__ __forceinline__ void load(Unit& to, const u8* block, u32 unit) {
        u32 codes[2], signs[1];
        load_part<2>(codes, block, 2 + unit * 8);
        load_part<2>(signs, block, 74 + unit * 4);
        const u32 high = byte_at(block + 66 + unit);
        const u32 nibble = byte_at(block + 106 + unit / 2) >> (unit % 2 * 4) & 15;
        to.scale[0] = half_at(block, 0) * (float)(1 + 2 * nibble);
#pragma unroll
        for (u32 i = 0; i < 8; i++) {
            const u32 code = (codes[i / 4] >> (i % 4 * 8) & 255) | (high >> i & 1) << 8;
            const u32 places = three_bit_places(row_of(code));
            to.codes[i] = with_signs(__byte_perm(0x07050301u, 0x0f0d0b09u, places), signs[0] >> (4 * i));
        }
    }
};

struct Iq1S : InOrder {
    static const u32 ELEMENTS = 256, BYTES = 50;
    static __device__ __forceinline__ void load(Unit& to, const u8* block, u32 unit) {
        const u32 word = two_at(block, 34 + unit * 2);
        to.scale[0] = half_at(block, 0) * (float)(2 * (word >> 12 & 7) + 1) * 0.125f;
        u32 codes[1];
        load_part<2>(codes, block, 2 + unit * 4);
#pragma unroll
        for (u32 part = 0; part < 4; part++) {
            const u32 code = (codes[0] >> (8 * part) & 255) | (word >> (3 * part) & 7) << 8;
            put_ones(to, part, row_of(code), (word & 0x8000) != 0);
        }
    }
};

struct Iq1M : InOrder {
    static const u32 ELEMENTS = 256, BYTES = 56;
    static const bool HALVES = true;
    static __device__ __forceinline__ void load(Unit& to, const u8* block, u32 unit) {
        // The block's scale is in the topmost bits of the groups' ones.
        u32 words[2], codes[1];
        load_part<8>(words, block, 48);
        const u32 bits = (words[0] >> 12 & 15) | (words[0] >> 24 & 0xf0) | (words[1] >> 4 & 0xf00) |
                         (words[1] >> 16 & 0xf000);
        const float scale = half_value((u16)bits);
        const u32 own = words[unit / 4] >> (unit / 2 % 2 * 16 + unit % 2 * 6);
        to.scale[0] = scale * (float)(2 * (own & 7) + 1) * 0.125f;
        to.scale[1] = scale * (float)(2 * (own >> 3 & 7) + 1) * 0.125f;
        load_part<4>(codes, block, unit * 4);
        const u32 high = two_at(block, 32 + unit * 2);
#pragma unroll
        for (u32 part = 0; part < 4; part++) {
            const u32 top = high >> (4 * part);
            const u32 code = (codes[0] >> (8 * part) & 255) | (top & 7) << 8;
            put_ones(to, part, row_of(code), (top & 8) != 0);
        }
    }
};
#endif

struct Iq4Xs : InOrder {
    static const u32 ELEMENTS = 256, BYTES = 136;
    static __device__ __forceinline__ void load(Unit& to, const u8* block, u32 unit) {
        u32 own[2], words[4];
        load_part<8>(own, block, 0);
        load_part<8>(words, block, 8 + unit * 16);
        const u32 low = own[1] >> (4 * unit) & 15, high = own[0] >> (16 + 2 * unit) & 3;
        to.scale[0] = half_value((u16)own[0]) * (float)((int)(low | high << 4) - 32);
        const Levels levels = nonlinear_levels();
#pragma unroll
        for (int i = 0; i < 4; i++) levels.put(to.codes[i], to.codes[4 + i], words[i]);
    }
};
