// Blocks of quantised elements decoded, all or those of rows that indices choose, and 8-bit blocks
// of elements.
#include "block_codes.cuh"
#include "checked.cuh"

#ifdef RESULT
#include "block_formats.cuh"

struct __align__(16) Packed {
    RESULT all[16 / sizeof(RESULT)];
};

// Sixteen elements of a half to where `stride` says. With VECTOR they are neighbours at a multiple of
// 16 bytes.
template <bool VECTOR>
__device__ __forceinline__ void store_half(RESULT* to, i64 stride, const Unit& unit, u32 half) {
    if (VECTOR) {
        const u32 each = 16 / sizeof(RESULT);
#pragma unroll
        for (u32 part = 0; part < 16 / each; part++) {
            Packed some;
#pragma unroll
            for (u32 i = 0; i < each; i++) {
                const float value = element_of<FORMAT>(unit, half, part * each + i);
                some.all[i] = Computed<RESULT>::store(value);
            }
            reinterpret_cast<Packed*>(to)[part] = some;
        }
        return;
    }
#pragma unroll
    for (u32 i = 0; i < 16; i++) {
        const float value = element_of<FORMAT>(unit, half, i);
        to[(i64)i * stride] = Computed<RESULT>::store(value);
    }
}

template <bool VECTOR>
__device__ __forceinline__ void store_unit(RESULT* to, i64 stride, const u8* row, u32 unit) {
    const u32 block = unit / (FORMAT::ELEMENTS / 32), inside = unit % (FORMAT::ELEMENTS / 32);
    Unit own;
    FORMAT::load(own, row + (u64)block * FORMAT::BYTES, inside);
    const u64 base = (u64)block * FORMAT::ELEMENTS;
    store_half<VECTOR>(to + (i64)(base + FORMAT::first(inside)) * stride, stride, own, 0);
    store_half<VECTOR>(to + (i64)(base + FORMAT::second(inside)) * stride, stride, own, 1);
}

#ifdef KERNEL_decode_rows
extern "C" __global__ void decode_rows(RESULT* __restrict__ to, const Shape to_shape,
                                       const u8* __restrict__ blocks, i64 pitch, u64 units,
                                       u64 count) {
    const u64 step = (u64)gridDim.x * blockDim.x;
    for (u64 at = (u64)blockIdx.x * blockDim.x + threadIdx.x; at < count; at += step) {
        const u64 row = count >> 32 == 0 ? (u32)at / (u32)units : at / units;
        store_unit<IS_VECTOR>(to + row_offset(to_shape, row), to_shape.strides[0], blocks + (i64)row * pitch,
                              (u32)(at - row * units));
    }
}
#endif

#ifdef KERNEL_decode_chosen
// An index outside of the rows gives zeros; if `fault` is given, the first one is recorded there.
extern "C" __global__ void decode_chosen(RESULT* __restrict__ to, const Shape to_shape,
                                         const u8* __restrict__ blocks, i64 pitch,
                                         const INDEX* __restrict__ index, const Shape index_shape,
                                         u64 rows, u64 units, u64 count, u64* fault) {
    const u64 step = (u64)gridDim.x * blockDim.x;
    for (u64 at = (u64)blockIdx.x * blockDim.x + threadIdx.x; at < count; at += step) {
        const u64 row = at / units;
        const u32 unit = (u32)(at - row * units);
        const i64 chosen = (i64)index[element_offset(index_shape, row)];
        RESULT* own = to + row_offset(to_shape, row);
        const i64 stride = to_shape.strides[0];
        if (is_inside(chosen, rows, row, fault)) {
            store_unit<false>(own, stride, blocks + chosen * pitch, unit);
        } else {
            for (u32 i = 0; i < 32; i++) own[(i64)(unit * 32 + i) * stride] = Computed<RESULT>::store(0);
        }
    }
}
#endif
#endif

#ifdef ELEMENT
// KIND is 0 for q8_0, 1 for q8_1, 2 for q8_K. A warp has a block.
#define BLOCK (KIND == 2 ? 256 : 32)
#define WARPS 4
#define THREADS (WARPS * 32)

#ifdef KERNEL_quantise_rows
// Codes of all rows, and of every 32 or 16 elements a scale and a sum, as block_product.cu reads them.
extern "C" __global__ void __launch_bounds__(THREADS)
    quantise_rows(u8* __restrict__ codes, float2* __restrict__ scales, const ELEMENT* __restrict__ x,
                  i64 x_row, i64 x_column, u64 across, u64 blocks) {
    typedef Computed<ELEMENT> In;
    const u32 lane = threadIdx.x % 32;
    const u64 step = (u64)gridDim.x * WARPS;
    for (u64 number = (u64)blockIdx.x * WARPS + threadIdx.x / 32; number < blocks; number += step) {
        const u64 row = number / across, place = (number - row * across) * BLOCK;
        const ELEMENT* from = x + (i64)row * x_row + (i64)place * x_column;
#if KIND == 2
        float own[8];
#pragma unroll
        for (int i = 0; i < 8; i++) {
            own[i] = In::load(from[(i64)(lane * 8 + i) * x_column]);
        }
        const Codes256 block(own);
        u32 words[2] = {};
#pragma unroll
        for (int i = 0; i < 8; i++) words[i / 4] |= (u32)(block.codes[i] & 255) << (i % 4 * 8);
        reinterpret_cast<uint2*>(codes + number * 256)[lane] = make_uint2(words[0], words[1]);
        if (lane % 2 == 0) scales[number * 16 + lane / 2] = make_float2(block.scale, (float)block.sum);
#else
        const Codes32 block(In::load(from[(i64)lane * x_column]));
        const u64 half = lane / 16 * (across * 16) + (number - row * across) * 16;
        codes[row * across * 32 + half + lane % 16] = (u8)block.code;
        float sum = (float)block.sum;
        // Rounded to f16, as the scale.
        if (KIND == 1) sum = half_value(half_bits(__fmul_rn(sum, block.scale)));
        if (lane == 0) scales[number] = make_float2(half_value(block.bits), sum);
#endif
    }
}
#endif

#ifdef KERNEL_encode_rows
#define BLOCK_BYTES (KIND == 2 ? 292 : KIND == 1 ? 36 : 34)

extern "C" __global__ void encode_rows(u8* __restrict__ to, const Shape to_shape,
                                       const ELEMENT* __restrict__ x, const Shape x_shape,
                                       u64 across, u64 blocks) {
    typedef Computed<ELEMENT> In;
    const u32 lane = threadIdx.x % 32, warps = blockDim.x / 32;
    const i64 stride = to_shape.strides[0];
    for (u64 number = (u64)blockIdx.x * warps + threadIdx.x / 32; number < blocks;
         number += (u64)gridDim.x * warps) {
        const u64 row = number / across, place = number % across;
        const ELEMENT* from = x + row_offset(x_shape, row);
        u8* block = to + row_offset(to_shape, row) + (i64)(place * BLOCK_BYTES) * stride;
        const u64 first = place * BLOCK;
#if KIND == 2
        float own[8];
#pragma unroll
        for (int i = 0; i < 8; i++) {
            own[i] = In::load(from[(i64)(first + lane * 8 + i) * x_shape.strides[0]]);
        }
        const Codes256 codes(own);
#pragma unroll
        for (int i = 0; i < 8; i++) block[(i64)(4 + lane * 8 + i) * stride] = (u8)codes.codes[i];
        if (lane < 4) block[(i64)lane * stride] = (u8)(__float_as_uint(codes.scale) >> (lane * 8));
        block[(i64)(260 + lane) * stride] = (u8)(codes.sum >> (lane % 2 * 8));
#else
        const Codes32 codes(In::load(from[(i64)(first + lane) * x_shape.strides[0]]));
        block[(i64)(BLOCK_BYTES - 32 + lane) * stride] = (u8)codes.code;
        const u16 sum = half_bits(__fmul_rn((float)codes.sum, codes.scale));
        if (lane < 2) block[(i64)lane * stride] = (u8)(codes.bits >> (lane * 8));
        if (KIND == 1 && lane < 2) block[(i64)(2 + lane) * stride] = (u8)(sum >> (lane * 8));
#endif
    }
}
#endif
#endif
