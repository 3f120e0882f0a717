// Draws of places by their weights, with replacement. A weight that is not above 0 is 0.
#include "blocks.cuh"
#include "philox.cuh"
#include "rows.cuh"

#define THREADS 256

#ifdef KERNEL_sum_weights
// Sums of the weights up to each place of a row, by a block a row.
extern "C" __global__ void sum_weights(double* __restrict__ sums, const ELEMENT* __restrict__ x,
                                       const Shape x_shape, u64 length, u64 rows) {
    __shared__ double warps[THREADS / 32];
    for (u64 row = blockIdx.x; row < rows; row += gridDim.x) {
        const ELEMENT* own = x + row_offset(x_shape, row);
        double carry = 0;
        for (u64 begin = 0; begin < length; begin += blockDim.x) {
            const u64 at = begin + threadIdx.x;
            double value = 0, all;
            if (at < length) {
                value = (double)Computed<ELEMENT>::load(own[(i64)at * x_shape.strides[0]]);
                if (!(value > 0)) value = 0;
            }
            const double before = carry + scan_block<Count<double>>(value, warps, all);
            if (at < length) sums[row * length + at] = before + value;
            carry += all;
        }
    }
}
#endif

#ifdef KERNEL_draw_places
// The first place where the sum is above a random share of the whole.
extern "C" __global__ void draw_places(i64* __restrict__ to, const Shape to_shape,
                                       const double* __restrict__ sums, u64 length, u64 samples,
                                       u64 seed, u64 stream, u64 count) {
    EACH_ELEMENT(at, count) {
        const double* own = sums + at / samples * length;
        const u64 half = half_of(philox(at / 2, stream, seed), (int)(at % 2));
        const double all = own[length - 1];
        const double share = (double)(half >> 11) * 0x1p-53 * all;
        u64 low = 0, high = length;
        while (low < high) {
            const u64 middle = low + (high - low) / 2;
            // A share may be rounded to the whole: then the first place that has it.
            const bool is_before = own[middle] <= share && own[middle] < all;
            low = is_before ? middle + 1 : low;
            high = is_before ? high : middle;
        }
        to[element_offset(to_shape, at)] = (i64)(low < length ? low : length - 1);
    }
}
#endif
