// Elements as unsigned keys in the order of their values. KEY is the unsigned type of an element's
// size, KIND what its bits mean; LARGEST are those of the largest magnitude of a float but NaN.
#pragma once
#include "common.cuh"

#define UNSIGNED 0
#define SIGNED 1
#define FLOAT 2
#define BOOL 3
#define SIGN_BIT ((KEY)((KEY)1 << (8 * sizeof(KEY) - 1)))
#define LAST_KEY ((KEY)~(KEY)0)

// Zeros have one key, and so has NaN: the last one.
__device__ __forceinline__ KEY key_of(KEY bits) {
#if KIND == FLOAT
    const KEY magnitude = bits & (KEY)~SIGN_BIT;
    if (magnitude > (KEY)LARGEST) return LAST_KEY;
    if (magnitude == 0) return SIGN_BIT;
    return bits & SIGN_BIT ? (KEY)~bits : (KEY)(bits | SIGN_BIT);
#elif KIND == SIGNED
    return bits ^ SIGN_BIT;
#elif KIND == BOOL
    return bits != 0;
#else
    return bits;
#endif
}

// Whether a key is that of elements with different bits.
__device__ __forceinline__ bool is_ambiguous(KEY key) {
    return KIND == FLOAT && (key == LAST_KEY || key == SIGN_BIT);
}

// The bits of an element with that key.
__device__ __forceinline__ KEY bits_of(KEY key) {
#if KIND == FLOAT
    return key & SIGN_BIT ? (KEY)(key & (KEY)~SIGN_BIT) : (KEY)~key;
#elif KIND == SIGNED
    return key ^ SIGN_BIT;
#else
    return key;
#endif
}

// The number of first keys, of sorted ones, that are before a key; with `or_equal` those equal too.
template <typename Read>
__device__ __forceinline__ u64 count_before(const Read& read, u64 len, KEY key, bool or_equal) {
    u64 from = 0, until = len;
    while (from < until) {
        const u64 middle = from + (until - from) / 2;
        const KEY own = read(middle);
        if (own < key || (or_equal && own == key)) {
            from = middle + 1;
        } else {
            until = middle;
        }
    }
    return from;
}
