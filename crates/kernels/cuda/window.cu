// Convolutions, pools and interpolation: each element of the result is made of a window of the
// operand. All have five dimensions: batch, channels, and three of space, some of extent 1.
#include "window.cuh"

typedef Computed<ELEMENT> As;

#define EACH_ELEMENT(number, count)                                                       \
    for (u64 number = (u64)blockIdx.x * blockDim.x + threadIdx.x; number < count;         \
         number += (u64)gridDim.x * blockDim.x)

#define EACH_TAP(r, window)                                                               \
    for (u64 r##z = 0; r##z < window.kernel[0]; r##z++)                                   \
        for (u64 r##y = 0; r##y < window.kernel[1]; r##y++)                               \
            for (u64 r##x = 0; r##x < window.kernel[2]; r##x++)

#define EACH_OF(p, extents)                                                               \
    for (u64 p##z = 0; p##z < extents[2]; p##z++)                                         \
        for (u64 p##y = 0; p##y < extents[3]; p##y++)                                     \
            for (u64 p##x = 0; p##x < extents[4]; p##x++)

#ifdef CONVOLVE
// Where a tap of the window at a place of the result lies in the operand.
__device__ __forceinline__ i64 tapped(const Window& window, int d, u64 at, u64 tap) {
    return (i64)at * window.stride[d] - window.padding[d] + (i64)(tap * window.dilation[d]);
}

#ifdef KERNEL_convolve
extern "C" __global__ void convolve(ELEMENT* __restrict__ to, const Shape to_shape,
                                    const ELEMENT* __restrict__ from, const Shape from_shape,
                                    const ELEMENT* __restrict__ weight, const Shape weight_shape,
                                    const ELEMENT* __restrict__ bias, i64 bias_stride,
                                    const Window window, u64 groups, u64 count) {
    const u64 per_group = to_shape.extents[1] / groups, channels = weight_shape.extents[1];
    EACH_ELEMENT(number, count) {
        const Place own = place_of(to_shape, number);
        const u64 first = own.channel / per_group * channels;
        ACC sum = 0;
        for (u64 c = 0; c < channels; c++) {
            EACH_TAP(r, window) {
                const i64 z = tapped(window, 0, own.at[0], rz), y = tapped(window, 1, own.at[1], ry),
                          x = tapped(window, 2, own.at[2], rx);
                if (is_inside(z, from_shape.extents[2]) && is_inside(y, from_shape.extents[3]) &&
                    is_inside(x, from_shape.extents[4])) {
                    const ACC value = As::load(
                        from[offset_in(from_shape, own.batch, first + c, z, y, x)]);
                    sum += value * (ACC)As::load(weight[offset_in(weight_shape, own.channel, c, rz,
                                                                  ry, rx)]);
                }
            }
        }
        if (bias != nullptr) sum += (ACC)As::load(bias[(i64)own.channel * bias_stride]);
        to[offset_in(to_shape, own.batch, own.channel, own.at[0], own.at[1], own.at[2])] =
            As::store((As::type)sum);
    }
}
#endif

// The transpose: where a tap comes from, or -1.
__device__ __forceinline__ i64 spread(const Window& window, int d, u64 at, u64 tap) {
    const i64 place = (i64)at + window.padding[d] - (i64)(tap * window.dilation[d]);
    return place >= 0 && place % window.stride[d] == 0 ? place / window.stride[d] : -1;
}

#ifdef KERNEL_convolve_transposed
extern "C" __global__ void convolve_transposed(
    ELEMENT* __restrict__ to, const Shape to_shape, const ELEMENT* __restrict__ from,
    const Shape from_shape, const ELEMENT* __restrict__ weight, const Shape weight_shape,
    const ELEMENT* __restrict__ bias, i64 bias_stride, const Window window, u64 groups,
    u64 count) {
    const u64 per_group = weight_shape.extents[1], channels = from_shape.extents[1] / groups;
    EACH_ELEMENT(number, count) {
        const Place own = place_of(to_shape, number);
        const u64 first = own.channel / per_group * channels;
        ACC sum = 0;
        for (u64 c = first; c < first + channels; c++) {
            EACH_TAP(r, window) {
                const i64 z = spread(window, 0, own.at[0], rz), y = spread(window, 1, own.at[1], ry),
                          x = spread(window, 2, own.at[2], rx);
                if (is_inside(z, from_shape.extents[2]) && is_inside(y, from_shape.extents[3]) &&
                    is_inside(x, from_shape.extents[4])) {
                    const ACC value = As::load(from[offset_in(from_shape, own.batch, c, z, y, x)]);
                    sum += value * (ACC)As::load(weight[offset_in(
                                       weight_shape, c, own.channel % per_group, rz, ry, rx)]);
                }
            }
        }
        if (bias != nullptr) sum += (ACC)As::load(bias[(i64)own.channel * bias_stride]);
        to[offset_in(to_shape, own.batch, own.channel, own.at[0], own.at[1], own.at[2])] =
            As::store((As::type)sum);
    }
}
#endif

#ifdef KERNEL_convolve_weight
// The gradient of the weight, of the result's gradient and the operand.
extern "C" __global__ void convolve_weight(ELEMENT* __restrict__ to, const Shape to_shape,
                                           const ELEMENT* __restrict__ gradient,
                                           const Shape gradient_shape,
                                           const ELEMENT* __restrict__ from, const Shape from_shape,
                                           const Window window, u64 groups, u64 count) {
    const u64 per_group = to_shape.extents[0] / groups, channels = to_shape.extents[1];
    EACH_ELEMENT(number, count) {
        // The weight's first two dimensions are those of the result's and the operand's channels.
        const Place own = place_of(to_shape, number);
        const u64 c = own.batch / per_group * channels + own.channel;
        ACC sum = 0;
        for (u64 batch = 0; batch < from_shape.extents[0]; batch++) {
            EACH_OF(p, gradient_shape.extents) {
                const i64 z = tapped(window, 0, pz, own.at[0]), y = tapped(window, 1, py, own.at[1]),
                          x = tapped(window, 2, px, own.at[2]);
                if (is_inside(z, from_shape.extents[2]) && is_inside(y, from_shape.extents[3]) &&
                    is_inside(x, from_shape.extents[4])) {
                    const ACC value = As::load(from[offset_in(from_shape, batch, c, z, y, x)]);
                    sum += value * (ACC)As::load(gradient[offset_in(gradient_shape, batch,
                                                                    own.batch, pz, py, px)]);
                }
            }
        }
        to[offset_in(to_shape, own.batch, own.channel, own.at[0], own.at[1], own.at[2])] =
            As::store((As::type)sum);
    }
}
#endif
#endif

#if defined(POOL) || defined(POOL_BACKWARD)
#define MOST 0
#define MEAN_OF_ALL 1
#define MEAN_OF_INSIDE 2

// First and last place of a window along a dimension that are inside, their step, and the number of
// all places of the window.
struct Span {
    i64 first, end, step;
    u64 taps;
};

__device__ __forceinline__ Span span_of(const Window& window, int d, u64 at, u64 from, u64 to) {
#if IS_ADAPTIVE
    const u64 first = at * from / to, end = ((at + 1) * from + to - 1) / to;
    return Span{(i64)first, (i64)end, 1, end - first};
#else
    i64 first = (i64)at * window.stride[d] - window.padding[d];
    const i64 step = (i64)window.dilation[d];
    i64 end = first + (i64)window.kernel[d] * step;
    if (first < 0) first += (step - 1 - first) / step * step;
    if (end > (i64)from) end = (i64)from;
    return Span{first, end, step, window.kernel[d]};
#endif
}
#endif

#ifdef POOL
#ifdef KERNEL_pool
extern "C" __global__ void pool(ELEMENT* __restrict__ to, const Shape to_shape,
                                i64* __restrict__ index, const Shape index_shape,
                                const ELEMENT* __restrict__ from, const Shape from_shape,
                                const Window window, u64 count) {
    const u64* extents = from_shape.extents;
    EACH_ELEMENT(number, count) {
        const Place own = place_of(to_shape, number);
        Span spans[3];
        for (int d = 0; d < 3; d++) {
            spans[d] = span_of(window, d, own.at[d], extents[2 + d], to_shape.extents[2 + d]);
        }
        ACC sum = 0;
        As::type best = (As::type)as_float(0xff800000);
        ELEMENT best_element = As::store(best);
        i64 best_at = -1;
        u64 inside = 0;
        ACC all = 1;
        for (int d = 0; d < 3; d++) all *= (ACC)spans[d].taps;
        for (i64 z = spans[0].first; z < spans[0].end; z += spans[0].step) {
            for (i64 y = spans[1].first; y < spans[1].end; y += spans[1].step) {
                for (i64 x = spans[2].first; x < spans[2].end; x += spans[2].step) {
                    const ELEMENT element =
                        from[offset_in(from_shape, own.batch, own.channel, z, y, x)];
                    const As::type value = As::load(element);
                    inside++;
                    if (POOL != MOST) {
                        sum += (ACC)value;
                    } else if (best_at < 0 || (best == best && !(value <= best))) {
                        best = value;
                        best_element = element;
                        best_at = (z * (i64)extents[3] + y) * (i64)extents[4] + x;
                    }
                }
            }
        }
        const i64 target =
            offset_in(to_shape, own.batch, own.channel, own.at[0], own.at[1], own.at[2]);
        if (POOL == MOST) {
            to[target] = best_element;
            index[offset_in(index_shape, own.batch, own.channel, own.at[0], own.at[1], own.at[2])] =
                best_at;
        } else {
            const ACC terms = POOL == MEAN_OF_ALL ? all : (ACC)inside;
            to[target] = As::store((As::type)(sum / terms));
        }
    }
}
#endif
#endif

#ifdef POOL_BACKWARD
// Windows along a dimension that may have a place: all that do are among them.
__device__ __forceinline__ Span windows_over(const Window& window, int d, u64 at, u64 from, u64 to) {
#if IS_ADAPTIVE
    const u64 last = (at + 1) * to / from + 1;
    return Span{(i64)(at * to / from), (i64)(last < to ? last : to), 1, 0};
#else
    const i64 step = window.stride[d], beyond = (i64)at + window.padding[d];
    const i64 low = beyond - (i64)((window.kernel[d] - 1) * window.dilation[d]);
    const i64 last = beyond / step + 1;
    return Span{low <= 0 ? 0 : (low + step - 1) / step, last < (i64)to ? last : (i64)to, 1, 0};
#endif
}

__device__ __forceinline__ bool has_place(const Span& span, i64 at) {
    return at >= span.first && at < span.end && (at - span.first) % span.step == 0;
}

// The number of places of a window that are counted.
__device__ __forceinline__ u64 places_of(const Span& span) {
    if (POOL_BACKWARD == MEAN_OF_ALL) return span.taps;
    return span.end > span.first ? (u64)((span.end - span.first + span.step - 1) / span.step) : 0;
}

#ifdef KERNEL_pool_backward
// The gradient of a pool's operand: each of its elements adds up those of the windows that have it,
// or that have it as the largest, by their index.
extern "C" __global__ void pool_backward(ELEMENT* __restrict__ to, const Shape to_shape,
                                         const ELEMENT* __restrict__ gradient,
                                         const Shape gradient_shape,
                                         const INDEX* __restrict__ index, const Shape index_shape,
                                         const Window window, u64 count) {
    EACH_ELEMENT(number, count) {
        const Place own = place_of(to_shape, number);
        const u64* extents = to_shape.extents;
        const u64* windows = gradient_shape.extents;
        const i64 place = (i64)((own.at[0] * extents[3] + own.at[1]) * extents[4] + own.at[2]);
        Span all[3];
        for (int d = 0; d < 3; d++) {
            all[d] = windows_over(window, d, own.at[d], extents[2 + d], windows[2 + d]);
        }
        ACC sum = 0;
        for (i64 z = all[0].first; z < all[0].end; z++) {
            const Span along_z = span_of(window, 0, z, extents[2], windows[2]);
            if (!has_place(along_z, (i64)own.at[0])) continue;
            for (i64 y = all[1].first; y < all[1].end; y++) {
                const Span along_y = span_of(window, 1, y, extents[3], windows[3]);
                if (!has_place(along_y, (i64)own.at[1])) continue;
                for (i64 x = all[2].first; x < all[2].end; x++) {
                    const Span along_x = span_of(window, 2, x, extents[4], windows[4]);
                    if (!has_place(along_x, (i64)own.at[2])) continue;
                    const ACC value = As::load(
                        gradient[offset_in(gradient_shape, own.batch, own.channel, z, y, x)]);
                    if (POOL_BACKWARD == MOST) {
                        const i64 chosen =
                            (i64)index[offset_in(index_shape, own.batch, own.channel, z, y, x)];
                        if (chosen == place) sum += value;
                    } else {
                        sum += value / ((ACC)places_of(along_z) * (ACC)places_of(along_y) *
                                        (ACC)places_of(along_x));
                    }
                }
            }
        }
        to[offset_in(to_shape, own.batch, own.channel, own.at[0], own.at[1], own.at[2])] =
            As::store((As::type)sum);
    }
}
#endif
#endif

#ifdef INTERPOLATE
#define NEAREST 0
#define LINEAR 1
#define CUBIC 2

// Neighbours of a place and their weights, along one dimension.
struct Taps {
    u64 at[4];
    double weight[4];
};

// Keys' cubic convolution with a = -0.75.
__device__ __forceinline__ double cubic(double x) {
    const double a = -0.75;
    x = fabs(x);
    if (x <= 1) return ((a + 2) * x - (a + 3)) * x * x + 1;
    return ((a * x - 5 * a) * x + 8 * a) * x - 4 * a;
}

__device__ __forceinline__ Taps taps_of(u64 at, u64 from, u64 to, u64 corners) {
    Taps taps;
    if (INTERPOLATE == NEAREST) {
        taps.at[0] = at * from / to;
        taps.weight[0] = 1;
        return taps;
    }
    double place;
    if (corners) {
        place = to > 1 ? (double)at * (double)(from - 1) / (double)(to - 1) : 0;
    } else {
        place = ((double)at + 0.5) * (double)from / (double)to - 0.5;
    }
    if (INTERPOLATE == LINEAR && place < 0) place = 0;
    const i64 first = (i64)floor(place);
    const double beyond = place - (double)first;
    const int count = INTERPOLATE == LINEAR ? 2 : 4;
    for (int k = 0; k < count; k++) {
        const i64 near = first + k - (INTERPOLATE == LINEAR ? 0 : 1);
        taps.at[k] = near < 0 ? 0 : near >= (i64)from ? from - 1 : (u64)near;
        taps.weight[k] = INTERPOLATE == LINEAR ? (k == 0 ? 1 - beyond : beyond)
                                               : cubic(beyond - (double)(k - 1));
    }
    return taps;
}

#ifdef KERNEL_interpolate
extern "C" __global__ void interpolate(ELEMENT* __restrict__ to, const Shape to_shape,
                                       const ELEMENT* __restrict__ from, const Shape from_shape,
                                       u64 corners, u64 count) {
    EACH_ELEMENT(number, count) {
        const Place own = place_of(to_shape, number);
        Taps taps[3];
        int counts[3];
        for (int d = 0; d < 3; d++) {
            const u64 in = from_shape.extents[2 + d], out = to_shape.extents[2 + d];
            // A dimension that stays needs no neighbours.
            taps[d] = taps_of(own.at[d], in, out, corners);
            counts[d] = INTERPOLATE == NEAREST ? 1 : INTERPOLATE == LINEAR ? 2 : 4;
            if (in == out) {
                taps[d].at[0] = own.at[d];
                taps[d].weight[0] = 1;
                counts[d] = 1;
            }
        }
        if (INTERPOLATE == NEAREST) {
            to[offset_in(to_shape, own.batch, own.channel, own.at[0], own.at[1], own.at[2])] =
                from[offset_in(from_shape, own.batch, own.channel, taps[0].at[0], taps[1].at[0],
                               taps[2].at[0])];
            continue;
        }
        double sum = 0;
        for (int z = 0; z < counts[0]; z++) {
            for (int y = 0; y < counts[1]; y++) {
                for (int x = 0; x < counts[2]; x++) {
                    const double weight =
                        taps[0].weight[z] * taps[1].weight[y] * taps[2].weight[x];
                    const i64 place = offset_in(from_shape, own.batch, own.channel, taps[0].at[z],
                                                taps[1].at[y], taps[2].at[x]);
                    sum += weight * (double)As::load(from[place]);
                }
            }
        }
        to[offset_in(to_shape, own.batch, own.channel, own.at[0], own.at[1], own.at[2])] =
            As::store((As::type)sum);
    }
}
#endif

// Places of the result along a dimension that may be made of one of the operand: all that are, are
// among them.
__device__ __forceinline__ void results_of(u64 at, u64 from, u64 to, u64 corners, i64& first,
                                           i64& end) {
    first = 0;
    end = (i64)to;
    if (from == to) {
        first = (i64)at;
        end = first + 1;
    } else if (!corners || from > 1) {
        const double by = corners ? (double)(to - 1) / (double)(from - 1) : (double)to / (double)from;
        const double low = ((double)at - 2) * by - 2, high = ((double)at + 3) * by + 2;
        if (low > 0) first = (i64)low;
        if (high < (double)to) end = (i64)high + 1;
        if (end > (i64)to) end = (i64)to;
    }
}

// The weight of a place of the operand in one of the result, along a dimension.
__device__ __forceinline__ double weight_of(u64 own, u64 at, u64 from, u64 to, u64 corners) {
    if (from == to) return 1;
    const Taps taps = taps_of(at, from, to, corners);
    double weight = 0;
    for (int k = 0; k < (INTERPOLATE == NEAREST ? 1 : INTERPOLATE == LINEAR ? 2 : 4); k++) {
        if (taps.at[k] == own) weight += taps.weight[k];
    }
    return weight;
}

#ifdef KERNEL_interpolate_backward
// The gradient of the operand, of the result's.
extern "C" __global__ void interpolate_backward(ELEMENT* __restrict__ to, const Shape to_shape,
                                                const ELEMENT* __restrict__ gradient,
                                                const Shape gradient_shape, u64 corners, u64 count) {
    EACH_ELEMENT(number, count) {
        const Place own = place_of(to_shape, number);
        const u64* in = to_shape.extents + 2;
        const u64* out = gradient_shape.extents + 2;
        i64 first[3], end[3];
        for (int d = 0; d < 3; d++) {
            results_of(own.at[d], in[d], out[d], corners, first[d], end[d]);
        }
        double sum = 0;
        for (i64 z = first[0]; z < end[0]; z++) {
            const double by_z = weight_of(own.at[0], z, in[0], out[0], corners);
            if (by_z == 0) continue;
            for (i64 y = first[1]; y < end[1]; y++) {
                const double by_y = by_z * weight_of(own.at[1], y, in[1], out[1], corners);
                if (by_y == 0) continue;
                for (i64 x = first[2]; x < end[2]; x++) {
                    const double by = by_y * weight_of(own.at[2], x, in[2], out[2], corners);
                    if (by == 0) continue;
                    sum += by * (double)As::load(gradient[offset_in(
                                    gradient_shape, own.batch, own.channel, z, y, x)]);
                }
            }
        }
        to[offset_in(to_shape, own.batch, own.channel, own.at[0], own.at[1], own.at[2])] =
            As::store((As::type)sum);
    }
}
#endif
#endif
