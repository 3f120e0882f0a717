// Cross products, traces, and distances of pairs of rows. A thread computes one row or element.
#include "blocks.cuh"
#include "rows.cuh"

typedef Computed<ELEMENT> As;
typedef As::type Real;

#define SUM_OF_SIZES 0
#define ROOT_OF_SQUARES 1
#define LARGEST 2
#define POWER 3

__device__ __forceinline__ float size_of(float x) { return fabsf(x); }
__device__ __forceinline__ double size_of(double x) { return fabs(x); }
__device__ __forceinline__ float raised(float x, float by) { return powf(x, by); }
__device__ __forceinline__ double raised(double x, double by) { return pow(x, by); }

#ifdef KERNEL_cross_products
// Of rows of three elements.
extern "C" __global__ void cross_products(ELEMENT* __restrict__ to, const Shape to_shape,
                                          const ELEMENT* __restrict__ x, const Shape x_shape,
                                          const ELEMENT* __restrict__ y, const Shape y_shape,
                                          u64 rows) {
    EACH_ELEMENT(row, rows) {
        const ELEMENT* from = x + row_offset(x_shape, row);
        const ELEMENT* by = y + row_offset(y_shape, row);
        ELEMENT* target = to + row_offset(to_shape, row);
        Real a[3], b[3];
        for (int k = 0; k < 3; k++) {
            a[k] = As::load(from[k * x_shape.strides[0]]);
            b[k] = As::load(by[k * y_shape.strides[0]]);
        }
        for (int k = 0; k < 3; k++) {
            const int next = (k + 1) % 3, last = (k + 2) % 3;
            target[k * to_shape.strides[0]] = As::store(a[next] * b[last] - a[last] * b[next]);
        }
    }
}
#endif

#ifdef KERNEL_row_sums
// Sums of rows.
extern "C" __global__ void row_sums(ELEMENT* __restrict__ to, const Shape to_shape,
                                    const ELEMENT* __restrict__ x, const Shape x_shape, u64 length,
                                    u64 rows) {
    EACH_ELEMENT(row, rows) {
        const ELEMENT* from = x + row_offset(x_shape, row);
        Real sum = 0;
        for (u64 at = 0; at < length; at++) sum += As::load(from[(i64)at * x_shape.strides[0]]);
        to[element_offset(to_shape, row)] = As::store(sum);
    }
}
#endif

#ifdef NORM
#ifdef KERNEL_distances
// Norms of the differences of rows.
extern "C" __global__ void distances(ELEMENT* __restrict__ to, const Shape to_shape,
                                     const ELEMENT* __restrict__ x, const Shape x_shape,
                                     const ELEMENT* __restrict__ y, const Shape y_shape,
                                     double power, u64 length, u64 rows) {
    EACH_ELEMENT(row, rows) {
        const ELEMENT* from = x + row_offset(x_shape, row);
        const ELEMENT* by = y + row_offset(y_shape, row);
        Real all = 0;
        for (u64 at = 0; at < length; at++) {
            const Real apart = size_of(As::load(from[(i64)at * x_shape.strides[0]]) -
                                       As::load(by[(i64)at * y_shape.strides[0]]));
            if (NORM == SUM_OF_SIZES) all += apart;
            if (NORM == ROOT_OF_SQUARES) all += apart * apart;
            if (NORM == LARGEST) all = all != all || all > apart ? all : apart;
            if (NORM == POWER) all += raised(apart, (Real)power);
        }
        if (NORM == ROOT_OF_SQUARES) all = root(all);
        if (NORM == POWER) all = raised(all, (Real)(1 / power));
        to[element_offset(to_shape, row)] = As::store(all);
    }
}
#endif
#endif
