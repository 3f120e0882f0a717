// Pools of windows by a power, at random places, and windows as columns. Views have five dimensions.
#include "blocks.cuh"
#include "window.cuh"

typedef Computed<ELEMENT> As;
typedef As::type Real;

__device__ __forceinline__ float power_of(float x, float y) { return powf(x, y); }
__device__ __forceinline__ double power_of(double x, double y) { return pow(x, y); }

// Where a tap of the window at a place lies in the operand.
__device__ __forceinline__ i64 tapped(const Window& window, int d, u64 at, u64 tap) {
    return (i64)at * window.stride[d] - window.padding[d] + (i64)(tap * window.dilation[d]);
}

#ifdef POWER
#ifdef KERNEL_power_pool
// The root of the sum of powers of magnitudes.
extern "C" __global__ void power_pool(ELEMENT* __restrict__ to, const Shape to_shape,
                                      const ELEMENT* __restrict__ from, const Shape from_shape,
                                      const Window window, double power, u64 count) {
    EACH_ELEMENT(number, count) {
        const Place own = place_of(to_shape, number);
        Real sum = 0;
        for (u64 z = 0; z < window.kernel[0]; z++) {
            for (u64 y = 0; y < window.kernel[1]; y++) {
                for (u64 x = 0; x < window.kernel[2]; x++) {
                    const i64 at[3] = {tapped(window, 0, own.at[0], z),
                                       tapped(window, 1, own.at[1], y),
                                       tapped(window, 2, own.at[2], x)};
                    if (!is_inside(at[0], from_shape.extents[2]) ||
                        !is_inside(at[1], from_shape.extents[3]) ||
                        !is_inside(at[2], from_shape.extents[4])) {
                        continue;
                    }
                    const Real value = As::load(from[offset_in(from_shape, own.batch, own.channel,
                                                               at[0], at[1], at[2])]);
                    const Real magnitude = value < 0 ? -value : value;
                    sum += power == 2 ? value * value
                           : power == 1 ? magnitude : power_of(magnitude, (Real)power);
                }
            }
        }
        if (power != 1) sum = power_of(sum, (Real)(1 / power));
        to[offset_in(to_shape, own.batch, own.channel, own.at[0], own.at[1], own.at[2])] =
            As::store(sum);
    }
}
#endif
#endif

#ifdef FRACTIONAL
#ifdef KERNEL_fractional_pool
// Windows at places that a random fraction of each dimension spreads: the last one ends with the
// operand. A place is moved inside, for any fraction.
extern "C" __global__ void fractional_pool(ELEMENT* __restrict__ to, const Shape to_shape,
                                           i64* __restrict__ index, const Shape index_shape,
                                           const ELEMENT* __restrict__ from, const Shape from_shape,
                                           const ELEMENT* __restrict__ fractions,
                                           const Shape fractions_shape, const Window window,
                                           u64 space, u64 count) {
    EACH_ELEMENT(number, count) {
        const Place own = place_of(to_shape, number);
        u64 first[3];
        for (int d = 0; d < 3; d++) {
            const u64 in = from_shape.extents[2 + d], out = to_shape.extents[2 + d];
            const u64 last = in - window.kernel[d];
            first[d] = out > 1 ? 0 : last;
            if (out <= 1) continue;
            const u64 dimension = space - 3 + d;
            const double fraction = (double)As::load(
                fractions[(i64)own.batch * fractions_shape.strides[0] +
                          (i64)own.channel * fractions_shape.strides[1] +
                          (i64)dimension * fractions_shape.strides[2]]);
            const double apart = (double)last / (double)(out - 1);
            const double place = floor(((double)own.at[d] + fraction) * apart) -
                                 floor(fraction * apart);
            // NaN is 0.
            const double inside = fmin(fmax(place, 0.0), (double)last);
            first[d] = own.at[d] + 1 == out ? last : (u64)inside;
            if (first[d] > last) first[d] = last;
        }
        Real best = 0;
        i64 best_at = -1;
        ELEMENT best_element = As::store(0);
        for (u64 z = first[0]; z < first[0] + window.kernel[0]; z++) {
            for (u64 y = first[1]; y < first[1] + window.kernel[1]; y++) {
                for (u64 x = first[2]; x < first[2] + window.kernel[2]; x++) {
                    const ELEMENT element =
                        from[offset_in(from_shape, own.batch, own.channel, z, y, x)];
                    const Real value = As::load(element);
                    if (best_at >= 0 && (best != best || value <= best)) continue;
                    best = value;
                    best_element = element;
                    best_at = (i64)((z * from_shape.extents[3] + y) * from_shape.extents[4] + x);
                }
            }
        }
        to[offset_in(to_shape, own.batch, own.channel, own.at[0], own.at[1], own.at[2])] =
            best_element;
        index[offset_in(index_shape, own.batch, own.channel, own.at[0], own.at[1], own.at[2])] =
            best_at;
    }
}
#endif
#endif

#ifdef COLUMNS
#ifdef KERNEL_to_columns
// A window's elements as a column: [batch, channels by window, places]. A warp computes a line of
// places along x, so that it divides once for all of them.
extern "C" __global__ void to_columns(ELEMENT* __restrict__ to, const Shape to_shape,
                                      const ELEMENT* __restrict__ from, const Shape from_shape,
                                      const Window window, u64 places_y, u64 places_x, u64 lines) {
    const u64 taps_x = window.kernel[2], taps_y = window.kernel[1], taps_z = window.kernel[0];
    const u64 places_z = to_shape.extents[2] / places_x / places_y;
    const u64 warps = (u64)gridDim.x * blockDim.x / 32;
    for (u64 line = ((u64)blockIdx.x * blockDim.x + threadIdx.x) / 32; line < lines;
         line += warps) {
        const u64 place_y = line % places_y, place_z = line / places_y % places_z;
        const u64 rest = line / places_y / places_z;
        const u64 row = rest % to_shape.extents[1], batch = rest / to_shape.extents[1];
        const u64 x = row % taps_x, y = row / taps_x % taps_y, z = row / taps_x / taps_y % taps_z;
        const u64 channel = row / taps_x / taps_y / taps_z;
        const i64 at_z = tapped(window, 0, place_z, z), at_y = tapped(window, 1, place_y, y);
        const bool is_line = is_inside(at_z, from_shape.extents[2]) &&
                             is_inside(at_y, from_shape.extents[3]);
        const u64 first = (place_z * places_y + place_y) * places_x;
        for (u64 place = threadIdx.x % 32; place < places_x; place += 32) {
            const i64 at_x = tapped(window, 2, place, x);
            ELEMENT value = As::store(0);
            if (is_line && is_inside(at_x, from_shape.extents[4])) {
                value = from[offset_in(from_shape, batch, channel, at_z, at_y, at_x)];
            }
            to[(i64)batch * to_shape.strides[0] + (i64)row * to_shape.strides[1] +
               (i64)(first + place) * to_shape.strides[2]] = value;
        }
    }
}
#endif

// Whether the window with that tap at a place is one of `places`, and which.
__device__ __forceinline__ bool window_at(const Window& window, int d, u64 at, u64 tap, u64 places,
                                          u64& place) {
    const i64 first = (i64)at + window.padding[d] - (i64)(tap * window.dilation[d]);
    if (first < 0 || first % window.stride[d] != 0) return false;
    place = (u64)(first / window.stride[d]);
    return place < places;
}

#ifdef KERNEL_from_columns
// The sum of the columns' elements that came from an element.
extern "C" __global__ void from_columns(ELEMENT* __restrict__ to, const Shape to_shape,
                                        const ELEMENT* __restrict__ from, const Shape from_shape,
                                        const Window window, u64 places_z, u64 places_y,
                                        u64 places_x, u64 count) {
    EACH_ELEMENT(number, count) {
        const Place own = place_of(to_shape, number);
        Real sum = 0;
        for (u64 z = 0; z < window.kernel[0]; z++) {
            u64 at_z, at_y, at_x;
            if (!window_at(window, 0, own.at[0], z, places_z, at_z)) continue;
            for (u64 y = 0; y < window.kernel[1]; y++) {
                if (!window_at(window, 1, own.at[1], y, places_y, at_y)) continue;
                for (u64 x = 0; x < window.kernel[2]; x++) {
                    if (!window_at(window, 2, own.at[2], x, places_x, at_x)) continue;
                    const u64 row = ((own.channel * window.kernel[0] + z) * window.kernel[1] + y) *
                                        window.kernel[2] + x;
                    const u64 place = (at_z * places_y + at_y) * places_x + at_x;
                    sum += As::load(from[(i64)own.batch * from_shape.strides[0] +
                                         (i64)row * from_shape.strides[1] +
                                         (i64)place * from_shape.strides[2]]);
                }
            }
        }
        to[offset_in(to_shape, own.batch, own.channel, own.at[0], own.at[1], own.at[2])] =
            As::store(sum);
    }
}
#endif
#endif
