// Reductions of segments of rows, and of bags of a table's rows. Offsets in memory are compared with
// the number of rows: a segment from or to one that is outside has no rows, nor has one that ends
// before it begins. REDUCE says what is made of a segment, of no rows it is 0.
#include "blocks.cuh"
#include "checked.cuh"
#include "rows.cuh"

#define SUM 0
#define MEAN 1
#define MOST 2
#define LEAST 3

#define MOST_THREADS 256

typedef Computed<ELEMENT> As;
typedef As::type Real;

struct Segment {
    u64 begin, end;
};

__device__ __forceinline__ Segment segment_of(const OFFSET* offsets, const Shape& shape, u64 number,
                                              u64 rows, u64* fault) {
    const i64 begin = (i64)offsets[element_offset(shape, number)];
    const i64 end = (i64)offsets[element_offset(shape, number + 1)];
    const bool from = is_inside(begin, rows + 1, number, fault);
    const bool to = is_inside(end, rows + 1, number + 1, fault);
    return from && to ? Segment{(u64)begin, (u64)end} : Segment{0, 0};
}

// A value that is combined with others: none yet, or what `joined` made of them.
struct Reduced {
    Real value;
    u64 count;
};

__device__ __forceinline__ Reduced joined(Reduced a, Reduced b) {
    if (a.count == 0) return b;
    if (b.count == 0) return a;
    const u64 count = a.count + b.count;
    if (REDUCE == SUM || REDUCE == MEAN) return Reduced{a.value + b.value, count};
    // NaN if either is.
    const bool is_first =
        a.value != a.value || (REDUCE == MOST ? a.value > b.value : a.value < b.value);
    return Reduced{is_first ? a.value : b.value, count};
}

struct Join {
    static __device__ __forceinline__ Reduced combine(Reduced a, Reduced b) { return joined(a, b); }
};

__device__ __forceinline__ ELEMENT result_of(Reduced all) {
    const Real value = all.count == 0 ? (Real)0 : all.value;
    return As::store(REDUCE == MEAN && all.count > 0 ? value / (Real)all.count : value);
}

#ifdef SEGMENTS
#ifdef KERNEL_reduce_segments
// `inner` elements of a row are reduced apart from each other, by a thread each, or with BY_BLOCK by
// a block each.
extern "C" __global__ void reduce_segments(ELEMENT* __restrict__ to, const Shape to_shape,
                                           const ELEMENT* __restrict__ x, const Shape x_shape,
                                           const OFFSET* __restrict__ offsets,
                                           const Shape offsets_shape, u64 rows, u64 inner, u64 count,
                                           u64* fault) {
#if BY_BLOCK
    __shared__ Reduced places[MOST_THREADS];
    const u64 first = blockIdx.x, step = gridDim.x, lane = threadIdx.x, lanes = blockDim.x;
#else
    const u64 first = (u64)blockIdx.x * blockDim.x + threadIdx.x;
    const u64 step = (u64)gridDim.x * blockDim.x, lane = 0, lanes = 1;
#endif
    for (u64 number = first; number < count; number += step) {
        const u64 own = number / inner, column = number % inner;
        const Segment segment = segment_of(offsets, offsets_shape, own, rows, fault);
        const ELEMENT* from = x + row_offset(x_shape, column);
        Reduced all{0, 0};
        for (u64 row = segment.begin + lane; row < segment.end; row += lanes) {
            all = joined(all, Reduced{As::load(from[(i64)row * x_shape.strides[0]]), 1});
        }
#if BY_BLOCK
        all = reduce_block<Join>(all, places);
#endif
        if (lane == 0) {
            to[row_offset(to_shape, column) + (i64)own * to_shape.strides[0]] = result_of(all);
        }
    }
}
#endif
#endif

#ifdef INDEX
#ifdef KERNEL_reduce_bags
// Rows of a table by their indices, a bag of them each; one outside of the table is skipped.
extern "C" __global__ void reduce_bags(ELEMENT* __restrict__ to, const Shape to_shape,
                                       const ELEMENT* __restrict__ table, const Shape table_shape,
                                       const INDEX* __restrict__ index, const Shape index_shape,
                                       const OFFSET* __restrict__ offsets,
                                       const Shape offsets_shape,
                                       const ELEMENT* __restrict__ weights,
                                       const Shape weights_shape, u64 places, u64 width, u64 count,
                                       u64* fault) {
    EACH_ELEMENT(number, count) {
        const u64 own = number / width, column = number % width;
        const Segment bag = segment_of(offsets, offsets_shape, own, places, fault);
        Reduced all{0, 0};
        for (u64 at = bag.begin; at < bag.end; at++) {
            const i64 chosen = (i64)index[(i64)at * index_shape.strides[0]];
            if (!is_inside(chosen, table_shape.extents[0], at, fault)) continue;
            Real value = As::load(
                table[chosen * table_shape.strides[0] + (i64)column * table_shape.strides[1]]);
            if (weights != nullptr) value *= As::load(weights[(i64)at * weights_shape.strides[0]]);
            all = joined(all, Reduced{value, 1});
        }
        to[(i64)own * to_shape.strides[0] + (i64)column * to_shape.strides[1]] = result_of(all);
    }
}
#endif

#ifdef KERNEL_spread_bags
// The gradient of the table, which is added to. A block goes over a bag.
extern "C" __global__ void spread_bags(Real* to, const Shape to_shape,
                                       const ELEMENT* __restrict__ gradient,
                                       const Shape gradient_shape,
                                       const INDEX* __restrict__ index, const Shape index_shape,
                                       const OFFSET* __restrict__ offsets,
                                       const Shape offsets_shape,
                                       const ELEMENT* __restrict__ weights,
                                       const Shape weights_shape, u64 places, u64 width, u64 bags,
                                       u64* fault) {
    __shared__ u64 counts[MOST_THREADS];
    for (u64 own = blockIdx.x; own < bags; own += gridDim.x) {
        u64* const noted = threadIdx.x == 0 ? fault : nullptr;
        const Segment bag = segment_of(offsets, offsets_shape, own, places, noted);
        Real by = 1;
        if (REDUCE == MEAN) {
            u64 inside = 0;
            for (u64 at = bag.begin + threadIdx.x; at < bag.end; at += blockDim.x) {
                const u64 chosen = (u64)(i64)index[(i64)at * index_shape.strides[0]];
                inside += chosen < to_shape.extents[0] ? 1 : 0;
            }
            by = (Real)reduce_block<AddOf<u64>>(inside, counts);
        }
        for (u64 at = bag.begin; at < bag.end; at++) {
            const i64 chosen = (i64)index[(i64)at * index_shape.strides[0]];
            if (!is_inside(chosen, to_shape.extents[0], at, noted)) continue;
            const Real weight =
                weights == nullptr ? (Real)1 : As::load(weights[(i64)at * weights_shape.strides[0]]);
            EACH_OF_BLOCK(column, width) {
                Real value = As::load(gradient[(i64)own * gradient_shape.strides[0] +
                                               (i64)column * gradient_shape.strides[1]]);
                value = REDUCE == MEAN ? value / by : value * weight;
                atomicAdd(&to[chosen * to_shape.strides[0] + (i64)column * to_shape.strides[1]],
                          value);
            }
        }
    }
}
#endif

#ifdef KERNEL_spread_rows
// The gradient of a table by that of the rows that indices took.
extern "C" __global__ void spread_rows(Real* to, const Shape to_shape,
                                       const ELEMENT* __restrict__ gradient,
                                       const Shape gradient_shape,
                                       const INDEX* __restrict__ index, const Shape index_shape,
                                       u64 width, u64 count, u64* fault) {
    EACH_ELEMENT(at, count) {
        const u64 number = at / width, column = at % width;
        const i64 chosen = (i64)index[element_offset(index_shape, number)];
        if (!is_inside(chosen, to_shape.extents[0], number, fault)) continue;
        atomicAdd(&to[chosen * to_shape.strides[0] + (i64)column * to_shape.strides[1]],
                  (Real)As::load(gradient[element_offset(gradient_shape, at)]));
    }
}
#endif

#ifdef KERNEL_narrow
extern "C" __global__ void narrow(ELEMENT* __restrict__ to, const Shape to_shape,
                                  const Real* __restrict__ from, u64 count) {
    EACH_ELEMENT(at, count) to[element_offset(to_shape, at)] = As::store(from[at]);
}
#endif
#endif
