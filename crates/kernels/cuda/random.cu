// Random numbers of a distribution, by the counter of philox.cuh.
#include "philox.cuh"

#define UNIFORM 0
#define NORMAL 1
#define EXPONENTIAL 2
#define BERNOULLI 3
#define INTEGERS 4
#define TRUNCATED 5

// Neighbours that are moved at once.
template <typename T, int N>
struct __align__(sizeof(T) * N > 16 ? 16 : sizeof(T) * N) Packed {
    T elements[N];
};

// From [0, 1), and from (0, 1].
__device__ __forceinline__ float fraction(u32 word) { return (float)(word >> 8) * 0x1p-24f; }
__device__ __forceinline__ double fraction(u64 half) { return (double)(half >> 11) * 0x1p-53; }
__device__ __forceinline__ float above_zero(u32 word) {
    return (float)((word >> 8) + 1) * 0x1p-24f;
}
__device__ __forceinline__ double above_zero(u64 half) {
    return (double)((half >> 11) + 1) * 0x1p-53;
}

#ifdef DISTRIBUTION
// Elements of one block.
#define EACH (IS_WIDE ? 2 : 4)

__device__ __forceinline__ void numbers_of(const Words& words, double first, double second,
                                           i64 low, u64 range, ELEMENT* numbers) {
    typedef Computed<ELEMENT> As;
#if IS_WIDE
#define DRAW(k) half_of(words, k)
#else
#define DRAW(k) words.word[k]
#endif
    if (DISTRIBUTION == NORMAL) {
        // Box and Muller: two normal numbers of two uniform ones.
        for (int k = 0; k < EACH; k += 2) {
            REAL sine, cosine;
#if IS_WIDE
            const REAL radius = sqrt(-2.0 * log(above_zero(DRAW(k))));
            sincospi(2.0 * fraction(DRAW(k + 1)), &sine, &cosine);
#else
            const REAL radius = sqrtf(-2.0f * logf(above_zero(DRAW(k))));
            sincospif(2.0f * fraction(DRAW(k + 1)), &sine, &cosine);
#endif
            numbers[k] = As::store((As::type)((REAL)first + (REAL)second * (radius * cosine)));
            numbers[k + 1] = As::store((As::type)((REAL)first + (REAL)second * (radius * sine)));
        }
        return;
    }
    if (DISTRIBUTION == TRUNCATED) {
        // By the inverse of the distribution function, of a share between those of both ends.
        const double least = __longlong_as_double(low), most = __longlong_as_double((i64)range);
        const double before = normcdf((least - first) / second);
        const double between = normcdf((most - first) / second) - before;
        for (int k = 0; k < EACH; k++) {
#if IS_WIDE
            const double share = ((double)(DRAW(k) >> 12) + 0.5) * 0x1p-52;
#else
            const double share = ((double)(DRAW(k) >> 8) + 0.5) * 0x1p-24;
#endif
            const double number = first + second * normcdfinv(before + share * between);
            numbers[k] = As::store((As::type)(fmin(fmax(number, least), most)));
        }
        return;
    }
    for (int k = 0; k < EACH; k++) {
        if (DISTRIBUTION == UNIFORM) {
            // Between both, whose difference may be too large for a number.
            const REAL share = (REAL)fraction(DRAW(k));
            const REAL number = (REAL)first * (1 - share) + (REAL)second * share;
            const REAL least = (REAL)first, most = (REAL)second;
            numbers[k] =
                As::store((As::type)(number < least ? least : number > most ? most : number));
        } else if (DISTRIBUTION == EXPONENTIAL) {
#if IS_WIDE
            const REAL number = -log(above_zero(DRAW(k)));
#else
            const REAL number = -logf(above_zero(DRAW(k)));
#endif
            numbers[k] = As::store((As::type)(number / (REAL)first));
        } else if (DISTRIBUTION == BERNOULLI) {
            numbers[k] = As::store((As::type)((double)DRAW(k) * 0x1p-32 < first ? 1 : 0));
        } else {
            const u64 above = __umul64hi((u64)DRAW(k), range);
            numbers[k] = As::store((As::type)(low + (i64)(range == 0 ? (u64)DRAW(k) : above)));
        }
    }
}

#ifdef KERNEL_random_elements
extern "C" __global__ void random_elements(ELEMENT* __restrict__ to, const Shape to_shape,
                                           double first, double second, i64 low, u64 range,
                                           u64 seed, u64 stream, u64 count) {
    const u64 step = (u64)gridDim.x * blockDim.x;
    for (u64 block = (u64)blockIdx.x * blockDim.x + threadIdx.x; block * EACH < count;
         block += step) {
        Packed<ELEMENT, 4> four;
        ELEMENT* numbers = four.elements;
        numbers_of(philox(block, stream, seed), first, second, low, range, numbers);
#if IS_DENSE
        if (block * EACH + EACH <= count) {
            *(Packed<ELEMENT, EACH>*)(to + block * EACH) = *(const Packed<ELEMENT, EACH>*)numbers;
            continue;
        }
#endif
#pragma unroll
        for (int k = 0; k < EACH; k++) {
            const u64 at = block * EACH + k;
            if (at < count) to[offset_of<DIMS, COUNTED>(to_shape, (COUNTED)at)] = numbers[k];
        }
    }
}
#endif
#endif

#ifdef DROPPED
#ifdef KERNEL_drop_elements
// Elements that stay are scaled, the others are 0; `mask` is whether they stay.
extern "C" __global__ void drop_elements(DROPPED* to, const Shape to_shape,
                                         Bool* __restrict__ mask, const Shape mask_shape,
                                         const DROPPED* from, const Shape from_shape,
                                         double chance, double scale, u64 seed, u64 stream,
                                         u64 count) {
    typedef Computed<DROPPED> As;
    const u64 step = (u64)gridDim.x * blockDim.x;
    for (u64 block = (u64)blockIdx.x * blockDim.x + threadIdx.x; block * 4 < count;
         block += step) {
        const Words words = philox(block, stream, seed);
#if IS_DENSE
        if (block * 4 + 4 <= count) {
            Packed<DROPPED, 4> four = ((const Packed<DROPPED, 4>*)from)[block];
            Packed<Bool, 4> stay;
#pragma unroll
            for (int k = 0; k < 4; k++) {
                const bool stays = (double)words.word[k] * 0x1p-32 >= chance;
                const As::type value = As::load(four.elements[k]) * (As::type)scale;
                four.elements[k] = As::store(stays ? value : (As::type)0);
                stay.elements[k] = Bool{(u8)stays};
            }
            ((Packed<DROPPED, 4>*)to)[block] = four;
            ((Packed<Bool, 4>*)mask)[block] = stay;
            continue;
        }
#endif
#pragma unroll
        for (int k = 0; k < 4; k++) {
            const u64 at = block * 4 + k;
            if (at >= count) break;
            i64 target, source;
            offsets_of<DIMS, COUNTED>(to_shape, from_shape, (COUNTED)at, target, source);
            const bool stays = (double)words.word[k] * 0x1p-32 >= chance;
            const As::type value = As::load(from[source]);
            to[target] = As::store(stays ? (As::type)(value * (As::type)scale) : (As::type)0);
            mask[offset_of<DIMS, COUNTED>(mask_shape, (COUNTED)at)] = Bool{(u8)stays};
        }
    }
}
#endif
#endif
