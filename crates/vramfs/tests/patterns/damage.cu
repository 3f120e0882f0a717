// Damages and inspects blocks on the device, so that a million patterns need no copy to the host.
//
// Invariant: a difference is an exclusive or derived from a seed and a pattern's number alone, so
// damaging a block twice restores it. None of the crate's arithmetic is used: bits are placed and
// rows are summed as docs/vramfs-format.md specifies. Constants of the layout precede this text.

typedef unsigned int u32;
typedef unsigned long long u64;
typedef unsigned char u8;

constexpr u32 ROW_WORDS = ROW_BYTES / 4;
constexpr u32 VALUES = 255;

// Kinds of damage to a block. The host has the same (main.rs).
constexpr u32 ONE = 0;     // one word with `count` symbol errors, and `others` with one each, in as many rows
constexpr u32 EVERY = 1;   // every word with `count` symbol errors, anywhere
constexpr u32 SINGLE = 2;  // every word with one: over all numbers each word has every row and difference
constexpr u32 DOUBLE = 3;  // every word with two: over all numbers each two rows and differences come once
constexpr u32 ROWS = 4;    // `count` rows wrong throughout, and `others` with valid checksums
constexpr u32 BURST = 5;   // in two adjacent blocks `count` bytes; `others`: up to `count`, of one value
constexpr u32 NEAR = 6;    // as ONE, with errors at some of the nine symbols in which another code word differs

// Sebastiano Vigna's SplitMix64.
struct Draw {
    u64 state;
    __device__ u64 next() {
        u64 x = state += 0x9E3779B97F4A7C15ull;
        x = (x ^ x >> 30) * 0xBF58476D1CE4E5B9ull;
        x = (x ^ x >> 27) * 0x94D049BB133111EBull;
        return x ^ x >> 31;
    }
    __device__ u32 below(u32 end) { return u32((next() >> 32) * end >> 32); }
};

// A pattern's own random numbers, and those of a part of it.
__device__ Draw draw(u64 seed, u64 number, u32 part) {
    Draw first{seed ^ number * 0xD1342543DE82EF95ull};
    return Draw{first.next() ^ u64(part) << 40};
}

// The symbol of word `word` in a row, as the format specifies.
__device__ u32* plane(u8* row, u32 word, u32 bit) {
    return reinterpret_cast<u32*>(row + (bit < 4 ? 16 * (word / 32) + 4 * bit : 512 + 16 * (word / 32) + 4 * (bit - 4)));
}

__device__ void change(u8* block, u32 row, u32 word, u32 by) {
    for (u32 bit = 0; bit < 8; bit++)
        if (by >> bit & 1) atomicXor(plane(block + row * ROW_BYTES, word, bit), 1u << word % 32);
}

// A row that was not drawn before.
__device__ u32 draw_row(u32 (&drawn)[CODED_ROWS / 32 + 1], Draw& from) {
    for (;;) {
        const u32 row = from.below(CODED_ROWS);
        if (drawn[row / 32] >> row % 32 & 1) continue;
        drawn[row / 32] |= 1u << row % 32;
        return row;
    }
}

// `count` symbol errors in a word, each in another row.
__device__ void scatter(u8* block, u32 word, u32 count, Draw from) {
    u32 drawn[CODED_ROWS / 32 + 1] = {};
    for (u32 at = 0; at < count; at++) {
        const u32 row = draw_row(drawn, from);
        change(block, row, word, 1 + from.below(VALUES));
    }
}

// In the code's field, by shifts.
__device__ u32 times(u32 x, u32 y) {
    u32 sum = 0;
    for (u32 bit = 0; bit < 8; bit++) {
        sum ^= x & 0u - (y >> bit & 1);
        x = x << 1 ^ (0u - (x >> 7 & 1) & 0x11D);
    }
    return sum;
}

__device__ u32 power(u32 x, u32 exponent) {
    u32 product = 1;
    for (; exponent != 0; exponent--) product = times(product, x);
    return product;
}

// `count` of nine symbols that are a code word by themselves: adding the rest would give a valid
// word other than the original. For nine places x, the symbols x^4 / product of (x - others) times
// each of x^-4 .. x^3 sum to 0: Lagrange's formula for polynomials of degree 7, of which eight
// values determine the ninth.
__device__ void go_near(u8* block, u32 word, u32 count, Draw from) {
    u32 drawn[CODED_ROWS / 32 + 1] = {}, rows[9], places[9];
    for (u32 i = 0; i < 9; i++) {
        rows[i] = draw_row(drawn, from);
        places[i] = power(2, CODED_ROWS - 1 - rows[i]);
    }
    const u32 scale = 1 + from.below(VALUES);
    for (u32 i = 0; i < count; i++) {
        u32 product = 1;
        for (u32 j = 0; j < 9; j++) product = j == i ? product : times(product, places[i] ^ places[j]);
        // Its power of 254 is its inverse.
        change(block, rows[i], word, times(times(scale, power(places[i], 4)), power(product, VALUES - 1)));
    }
}

// CRC32C's register after four more bytes, bit by bit.
__device__ u32 summed(u32 reg, u32 word) {
    reg ^= word;
    for (u32 bit = 0; bit < 32; bit++) reg = reg >> 1 ^ (0u - (reg & 1) & 0x82F63B78u);
    return reg;
}

__device__ u32 difference(u64 seed, u64 number, u32 row, u32 at) {
    return u32(draw(seed, number, 1 + row * ROW_WORDS + at).next() >> 32);
}

// Damages each block that `only` names, or undoes the damage. Block `at` has the pattern `first +
// at`, and `words[at]` is the word that `ONE` and `NEAR` have chosen.
extern "C" __global__ void damage(u64 base, const u8* right, const u32* only, u32* words, u32 kind, u32 count, u32 others,
                                  u32 loses_record, u64 seed, u64 first) {
    __shared__ u32 chosen[CODED_ROWS];
    const u32 at = blockIdx.x, thread = threadIdx.x;
    if (only[at] == 0) return;
    u8* const block = reinterpret_cast<u8*>(base) + u64(at) * BLOCK_BYTES;
    const u64 number = first + at;
    if ((kind == ONE || kind == NEAR) && thread == 0) {
        Draw from = draw(seed, number, 0);
        const u32 word = from.below(WORDS), row = from.below(CODED_ROWS);
        const Draw of_word{from.next()};
        if (kind == ONE) scatter(block, word, count, of_word);
        else go_near(block, word, count, of_word);
        for (u32 k = 0; k < others; k++) change(block, (row + 13 * k) % CODED_ROWS, (word + 1 + 97 * k) % WORDS, 1 + from.below(VALUES));
        words[at] = word;
    }
    for (u32 word = thread; word < WORDS; word += blockDim.x) {
        if (kind == EVERY) scatter(block, word, count, draw(seed, number, 1 + word));
        if (kind == SINGLE) {
            const u64 of = (number + 7919ull * word) % (CODED_ROWS * VALUES);
            change(block, u32(of / VALUES), word, 1 + u32(of % VALUES));
        }
        if (kind == DOUBLE) {
            // Consecutive numbers give distant pairs: the factor is coprime to their count.
            const u64 pairs = CODED_ROWS * (CODED_ROWS - 1) / 2, all = pairs * VALUES * VALUES;
            const u64 mine = number * WORDS + word;
            if (mine >= all) continue;
            const u64 of = mine * 370248451ull % all;
            u32 pair = u32(of / (VALUES * VALUES)), row = 0;
            for (; pair >= CODED_ROWS - 1 - row; row++) pair -= CODED_ROWS - 1 - row;
            change(block, row, word, 1 + u32(of % VALUES));
            change(block, row + 1 + pair, word, 1 + u32(of / VALUES % VALUES));
        }
    }
    if (kind == ROWS) {
        if (thread == 0) {
            Draw from = draw(seed, number, 0);
            for (u32 k = 0; k < CODED_ROWS; k++) chosen[k] = k;
            for (u32 k = 0; k < count + others; k++) {
                const u32 of = k + from.below(CODED_ROWS - k), row = chosen[of];
                chosen[of] = chosen[k];
                chosen[k] = row;
            }
        }
        __syncthreads();
        for (u32 k = 0; k < count + others; k++) {
            u32* const row = reinterpret_cast<u32*>(block + chosen[k] * ROW_BYTES);
            const u32 all = k < count ? ROW_WORDS : ROW_WORDS - 1;
            for (u32 i = thread; i < all; i += blockDim.x) row[i] ^= difference(seed, number, k, i);
        }
        // The checksum stays valid if the CRC of the difference alone, started with zero, is zero:
        // the last bytes are the register.
        if (thread < others) {
            u32 reg = 0;
            for (u32 i = 0; i < ROW_WORDS - 1; i++) reg = summed(reg, difference(seed, number, count + thread, i));
            reinterpret_cast<u32*>(block + chosen[count + thread] * ROW_BYTES)[ROW_WORDS - 1] ^= reg;
        }
    }
    if (kind == BURST) {
        // Each position once: the factor is odd, and coprime to the blocks' bytes; two blocks share
        // a number.
        const u64 of = number / 2, begin = of * 50021 % BLOCK_BYTES;
        Draw from = draw(seed, of, 0);
        const u32 bytes = others == 0 ? count : 1 + from.below(count);
        const u8 value = u8(from.next());
        for (u32 i = thread; i < bytes; i += blockDim.x) {
            const u64 place = begin + i;
            if (place / BLOCK_BYTES != number % 2) continue;
            const u8 to_value = right[u64(at) * BLOCK_BYTES + place % BLOCK_BYTES] ^ value;
            const u8 by = others == 0 ? u8(1 + draw(seed, of, 1 + i).below(VALUES)) : to_value;
            // At least one bit changes.
            block[place % BLOCK_BYTES] ^= by == 0 && i == 0 ? 1 : by;
        }
    }
    if (loses_record != 0)
        for (u32 i = thread; i < ROW_WORDS; i += blockDim.x)
            reinterpret_cast<u32*>(block + RECORD_OFFSET)[i] ^= difference(seed, number, CODED_ROWS, i);
}

// Counts the 32-bit words of each block that differ from the original, and restores them.
extern "C" __global__ void compare_and_restore(u64 base, const u8* right, u32* wrong) {
    __shared__ u32 all;
    const u64 at = u64(blockIdx.x) * BLOCK_BYTES;
    u32* const is = reinterpret_cast<u32*>(base + at);
    const u32* const was = reinterpret_cast<const u32*>(right + at);
    if (threadIdx.x == 0) all = 0;
    __syncthreads();
    u32 mine = 0;
    for (u32 i = threadIdx.x; i < BLOCK_BYTES / 4; i += blockDim.x) {
        if (is[i] == was[i]) continue;
        mine++;
        is[i] = was[i];
    }
    if (mine != 0) atomicAdd(&all, mine);
    __syncthreads();
    if (threadIdx.x == 0) wrong[blockIdx.x] = all;
}

// The symbols of one word for each block of threads: `asked` has a block's index times WORDS plus
// the word's index.
extern "C" __global__ void gather(u64 base, const u32* asked, u8* symbols) {
    const u32 of = asked[blockIdx.x], word = of % WORDS;
    u8* const block = reinterpret_cast<u8*>(base) + u64(of / WORDS) * BLOCK_BYTES;
    for (u32 row = threadIdx.x; row < CODED_ROWS; row += blockDim.x) {
        u32 symbol = 0;
        for (u32 bit = 0; bit < 8; bit++) symbol |= (*plane(block + row * ROW_BYTES, word, bit) >> word % 32 & 1) << bit;
        symbols[u64(blockIdx.x) * CODED_ROWS + row] = u8(symbol);
    }
}

// Whether each row of a block fails its checksum.
extern "C" __global__ void erased(u64 base, u8* rows) {
    const u8* const block = reinterpret_cast<const u8*>(base) + u64(blockIdx.x) * BLOCK_BYTES;
    for (u32 row = threadIdx.x; row < CODED_ROWS; row += blockDim.x) {
        const u32* const words = reinterpret_cast<const u32*>(block + row * ROW_BYTES);
        u32 reg = ~0u;
        for (u32 i = 0; i < ROW_WORDS; i++) reg = summed(reg, words[i]);
        rows[blockIdx.x * CODED_ROWS + row] = ~reg != reinterpret_cast<const u32*>(block + RECORD_OFFSET)[row];
    }
}
