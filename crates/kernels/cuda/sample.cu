// Elements at places between elements: grids of places in memory, and boxes. Places are computed in
// f64, and compared with extents, or moved inside, before an element is read; NaN is 0 then.
#include "blocks.cuh"
#include "checked.cuh"

typedef Computed<ELEMENT> As;

// Operands are [batch, channels, height, width].
__device__ __forceinline__ double element_at(const ELEMENT* x, const Shape& shape, u64 batch,
                                             u64 channel, u64 row, u64 column) {
    return (double)As::load(x[(i64)batch * shape.strides[0] + (i64)channel * shape.strides[1] +
                              (i64)row * shape.strides[2] + (i64)column * shape.strides[3]]);
}

// Batch, channel, row and column of a number.
struct Pixel {
    u64 batch, channel, row, column;
};

__device__ __forceinline__ Pixel pixel_of(const Shape& shape, u64 number) {
    Pixel pixel;
    pixel.column = number % shape.extents[3];
    number /= shape.extents[3];
    pixel.row = number % shape.extents[2];
    number /= shape.extents[2];
    pixel.channel = number % shape.extents[1];
    pixel.batch = number / shape.extents[1];
    return pixel;
}

__device__ __forceinline__ i64 offset_at(const Shape& shape, const Pixel& pixel) {
    return (i64)pixel.batch * shape.strides[0] + (i64)pixel.channel * shape.strides[1] +
           (i64)pixel.row * shape.strides[2] + (i64)pixel.column * shape.strides[3];
}

#ifdef GRID
#define NEAREST 0
#define LINEAR 1

#define ZEROS 0
#define BORDER 1
#define REFLECTION 2

// The place of a coordinate, of which -1 and 1 are the ends: of the first and last element, or of
// their outer edges.
__device__ __forceinline__ double place_of(double coordinate, u64 extent) {
    const double last = (double)(extent - 1);
    double place = ARE_CORNERS ? (coordinate + 1) * 0.5 * last
                               : ((coordinate + 1) * (double)extent - 1) * 0.5;
    if (OUTSIDE == REFLECTION) {
        const double low = ARE_CORNERS ? 0.0 : -0.5;
        const double span = ARE_CORNERS ? last : (double)extent;
        if (span > 0) {
            double beyond = fmod(fabs(place - low), 2 * span);
            if (beyond > span) beyond = 2 * span - beyond;
            place = beyond + low;
        } else {
            place = 0;
        }
    }
    if (OUTSIDE != ZEROS) place = fmin(fmax(place, 0.0), last);
    return place;
}

// An element, or 0 of what is outside.
__device__ __forceinline__ double inside_or_zero(const ELEMENT* x, const Shape& shape, u64 batch,
                                                 u64 channel, double row, double column) {
    const bool is_inside = row >= 0 && row < (double)shape.extents[2] && column >= 0 &&
                           column < (double)shape.extents[3];
    return is_inside ? element_at(x, shape, batch, channel, (u64)row, (u64)column) : 0.0;
}

#ifdef KERNEL_sample_grid
extern "C" __global__ void sample_grid(ELEMENT* __restrict__ to, const Shape to_shape,
                                       const ELEMENT* __restrict__ x, const Shape x_shape,
                                       const ELEMENT* __restrict__ grid, const Shape grid_shape,
                                       u64 count) {
    EACH_ELEMENT(number, count) {
        const Pixel own = pixel_of(to_shape, number);
        const ELEMENT* at = grid + (i64)own.batch * grid_shape.strides[0] +
                            (i64)own.row * grid_shape.strides[1] +
                            (i64)own.column * grid_shape.strides[2];
        const double across = place_of((double)As::load(at[0]), x_shape.extents[3]);
        const double down =
            place_of((double)As::load(at[grid_shape.strides[3]]), x_shape.extents[2]);
        double value = 0;
        if (KIND == NEAREST) {
            value = inside_or_zero(x, x_shape, own.batch, own.channel, rint(down), rint(across));
        } else {
            const double top = floor(down), left = floor(across);
            for (int k = 0; k < 2; k++) {
                const double by_row = k == 0 ? 1 - (down - top) : down - top;
                for (int j = 0; j < 2; j++) {
                    const double by = j == 0 ? 1 - (across - left) : across - left;
                    // What has no weight may be beyond the last element.
                    if (by_row * by == 0) continue;
                    value += by_row * by * inside_or_zero(x, x_shape, own.batch, own.channel,
                                                          top + k, left + j);
                }
            }
        }
        to[offset_at(to_shape, own)] = As::store((As::type)value);
    }
}
#endif

// A place, and by how much it moves with its coordinate.
struct MovedPlace {
    double place, slope;
};

__device__ __forceinline__ MovedPlace moved_place(double coordinate, u64 extent) {
    const double last = (double)(extent - 1);
    const double place = ARE_CORNERS ? (coordinate + 1) * 0.5 * last
                                     : ((coordinate + 1) * (double)extent - 1) * 0.5;
    double slope = 0.5 * (ARE_CORNERS ? last : (double)extent), reflected = place;
    if (OUTSIDE == REFLECTION) {
        const double low = ARE_CORNERS ? 0.0 : -0.5;
        const double span = ARE_CORNERS ? last : (double)extent;
        if (span > 0) {
            if (place < low) slope = -slope;
            double beyond = fmod(fabs(place - low), 2 * span);
            if (beyond > span) {
                beyond = 2 * span - beyond;
                slope = -slope;
            }
            reflected = beyond + low;
        } else {
            reflected = 0;
        }
    }
    if (OUTSIDE != ZEROS && (reflected <= 0 || reflected >= last)) slope = 0;
    return MovedPlace{place_of(coordinate, extent), slope};
}

#ifdef KERNEL_spread_grid
// Adds what each element of the result's gradient gives to elements of the operand's, in no order.
extern "C" __global__ void spread_grid(As::type* to, const Shape to_shape,
                                       const ELEMENT* __restrict__ gradient,
                                       const Shape gradient_shape,
                                       const ELEMENT* __restrict__ grid, const Shape grid_shape,
                                       u64 count) {
    const double height = (double)to_shape.extents[2], width = (double)to_shape.extents[3];
    EACH_ELEMENT(number, count) {
        const Pixel own = pixel_of(gradient_shape, number);
        const ELEMENT* at = grid + (i64)own.batch * grid_shape.strides[0] +
                            (i64)own.row * grid_shape.strides[1] +
                            (i64)own.column * grid_shape.strides[2];
        const double across = place_of((double)As::load(at[0]), to_shape.extents[3]);
        const double down =
            place_of((double)As::load(at[grid_shape.strides[3]]), to_shape.extents[2]);
        const double value = (double)As::load(gradient[offset_at(gradient_shape, own)]);
        const double top = KIND == NEAREST ? rint(down) : floor(down);
        const double left = KIND == NEAREST ? rint(across) : floor(across);
        for (int k = 0; k < (KIND == NEAREST ? 1 : 2); k++) {
            const double by_row = KIND == NEAREST ? 1 : k == 0 ? 1 - (down - top) : down - top;
            for (int j = 0; j < (KIND == NEAREST ? 1 : 2); j++) {
                const double by =
                    KIND == NEAREST ? 1 : j == 0 ? 1 - (across - left) : across - left;
                const double row = top + k, column = left + j;
                const bool is_inside = row >= 0 && row < height && column >= 0 && column < width;
                if (!is_inside || by_row * by == 0) continue;
                const Pixel place{own.batch, own.channel, (u64)row, (u64)column};
                atomicAdd(&to[offset_at(to_shape, place)], (As::type)(by_row * by * value));
            }
        }
    }
}
#endif

#ifdef KERNEL_move_grid
// The gradient of the grid: sums over channels, of places between four elements.
extern "C" __global__ void move_grid(ELEMENT* __restrict__ to, const Shape to_shape,
                                     const ELEMENT* __restrict__ gradient,
                                     const Shape gradient_shape, const ELEMENT* __restrict__ x,
                                     const Shape x_shape, const ELEMENT* __restrict__ grid,
                                     const Shape grid_shape, u64 count) {
    EACH_ELEMENT(number, count) {
        // [batch, rows, columns] of the grid.
        const u64 column = number % grid_shape.extents[2];
        const u64 line = number / grid_shape.extents[2];
        const u64 row = line % grid_shape.extents[1], batch = line / grid_shape.extents[1];
        const ELEMENT* at = grid + (i64)batch * grid_shape.strides[0] +
                            (i64)row * grid_shape.strides[1] + (i64)column * grid_shape.strides[2];
        double by_across = 0, by_down = 0;
        if (KIND == LINEAR) {
            const MovedPlace across = moved_place((double)As::load(at[0]), x_shape.extents[3]);
            const MovedPlace down =
                moved_place((double)As::load(at[grid_shape.strides[3]]), x_shape.extents[2]);
            const double top = floor(down.place), left = floor(across.place);
            const double lower = down.place - top, right = across.place - left;
            for (u64 channel = 0; channel < x_shape.extents[1]; channel++) {
                double around[2][2];
                for (int k = 0; k < 2; k++) {
                    for (int j = 0; j < 2; j++) {
                        around[k][j] =
                            inside_or_zero(x, x_shape, batch, channel, top + k, left + j);
                    }
                }
                const Pixel own{batch, channel, row, column};
                const double g = (double)As::load(gradient[offset_at(gradient_shape, own)]);
                by_across += g * ((1 - lower) * (around[0][1] - around[0][0]) +
                                  lower * (around[1][1] - around[1][0]));
                by_down += g * ((1 - right) * (around[1][0] - around[0][0]) +
                                right * (around[1][1] - around[0][1]));
            }
            by_across *= across.slope;
            by_down *= down.slope;
        }
        ELEMENT* target = to + (i64)batch * to_shape.strides[0] + (i64)row * to_shape.strides[1] +
                          (i64)column * to_shape.strides[2];
        target[0] = As::store((As::type)by_across);
        target[to_shape.strides[3]] = As::store((As::type)by_down);
    }
}
#endif

#ifdef KERNEL_store_sums
// Sums as elements.
extern "C" __global__ void store_sums(ELEMENT* __restrict__ to, const Shape to_shape,
                                      const As::type* __restrict__ from, u64 count) {
    EACH_ELEMENT(number, count) {
        to[offset_at(to_shape, pixel_of(to_shape, number))] = As::store(from[number]);
    }
}
#endif
#endif

#ifdef AFFINE
// A coordinate along one dimension, from -1 to 1.
__device__ __forceinline__ double coordinate_of(u64 at, u64 extent) {
    if (!ARE_CORNERS) return (2.0 * (double)at + 1) / (double)extent - 1;
    return extent > 1 ? 2.0 * (double)at / (double)(extent - 1) - 1 : 0.0;
}

#ifdef KERNEL_affine_grid
// Coordinates of a grid by a matrix [2, 3] of each batch.
extern "C" __global__ void affine_grid(ELEMENT* __restrict__ to, const Shape to_shape,
                                       const ELEMENT* __restrict__ matrix,
                                       const Shape matrix_shape, u64 count) {
    EACH_ELEMENT(number, count) {
        // [batch, height, width, 2].
        const Pixel own = pixel_of(to_shape, number);
        const ELEMENT* row = matrix + (i64)own.batch * matrix_shape.strides[0] +
                             (i64)own.column * matrix_shape.strides[1];
        const double x = coordinate_of(own.row, to_shape.extents[2]);
        const double y = coordinate_of(own.channel, to_shape.extents[1]);
        const double value = (double)As::load(row[0]) * x +
                             (double)As::load(row[matrix_shape.strides[2]]) * y +
                             (double)As::load(row[2 * matrix_shape.strides[2]]);
        to[offset_at(to_shape, own)] = As::store((As::type)value);
    }
}
#endif
#endif

#ifdef INDEX
// A place along one dimension: two neighbours and the share of the second; a place further than one
// element outside is none.
struct Neighbours {
    u64 first, second;
    double share;
    bool is_inside;
};

__device__ __forceinline__ Neighbours neighbours_of(double place, u64 extent) {
    Neighbours both{0, 0, 0, place >= -1 && place <= (double)extent};
    const double last = (double)(extent - 1);
    place = fmin(fmax(place, 0.0), last);
    both.first = (u64)place;
    both.second = both.first + 1 < extent ? both.first + 1 : both.first;
    both.share = place - (double)both.first;
    return both;
}

#ifdef KERNEL_align_boxes
// Means of samples of the parts of boxes [left, top, right, bottom] of the operand of an index.
extern "C" __global__ void align_boxes(ELEMENT* __restrict__ to, const Shape to_shape,
                                       const ELEMENT* __restrict__ x, const Shape x_shape,
                                       const ELEMENT* __restrict__ boxes, const Shape boxes_shape,
                                       const INDEX* __restrict__ index, const Shape index_shape,
                                       double scale, u64 samples, u64 count, u64* fault) {
    EACH_ELEMENT(number, count) {
        // The batch is that of the boxes.
        const Pixel own = pixel_of(to_shape, number);
        const i64 batch = (i64)index[(i64)own.batch * index_shape.strides[0]];
        double sum = 0;
        if (is_inside(batch, x_shape.extents[0], own.batch, fault)) {
            const ELEMENT* box = boxes + (i64)own.batch * boxes_shape.strides[0];
            double edges[4];
            for (int k = 0; k < 4; k++) {
                edges[k] = (double)As::load(box[k * boxes_shape.strides[1]]) * scale - 0.5;
            }
            const double height = (edges[3] - edges[1]) / (double)to_shape.extents[2];
            const double width = (edges[2] - edges[0]) / (double)to_shape.extents[3];
            for (u64 k = 0; k < samples; k++) {
                const double down =
                    edges[1] + ((double)own.row + ((double)k + 0.5) / (double)samples) * height;
                const Neighbours rows = neighbours_of(down, x_shape.extents[2]);
                for (u64 j = 0; j < samples; j++) {
                    const double across =
                        edges[0] + ((double)own.column + ((double)j + 0.5) / (double)samples) * width;
                    const Neighbours columns = neighbours_of(across, x_shape.extents[3]);
                    if (!rows.is_inside || !columns.is_inside) continue;
                    const double upper =
                        (1 - columns.share) *
                            element_at(x, x_shape, batch, own.channel, rows.first, columns.first) +
                        columns.share *
                            element_at(x, x_shape, batch, own.channel, rows.first, columns.second);
                    const double lower =
                        (1 - columns.share) *
                            element_at(x, x_shape, batch, own.channel, rows.second, columns.first) +
                        columns.share *
                            element_at(x, x_shape, batch, own.channel, rows.second, columns.second);
                    sum += (1 - rows.share) * upper + rows.share * lower;
                }
            }
            sum /= (double)(samples * samples);
        }
        to[offset_at(to_shape, own)] = As::store((As::type)sum);
    }
}
#endif
#endif
