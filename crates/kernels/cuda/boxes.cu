// Boxes that overlap others of a higher score less than a threshold, in order of their scores.
#include "blocks.cuh"
#include "checked.cuh"

typedef Computed<ELEMENT> As;
typedef As::type Real;

__device__ __forceinline__ Real least_of(Real a, Real b) { return a < b ? a : b; }
__device__ __forceinline__ Real most_of(Real a, Real b) { return a > b ? a : b; }

struct Box {
    Real left, top, right, bottom;
    __device__ __forceinline__ Real area() const { return (right - left) * (bottom - top); }
};

__device__ __forceinline__ Box box_of(const ELEMENT* boxes, const Shape& shape, u64 number) {
    const ELEMENT* box = boxes + (i64)number * shape.strides[0];
    const i64 step = shape.strides[1];
    return Box{As::load(box[0]), As::load(box[step]), As::load(box[2 * step]),
               As::load(box[3 * step])};
}

// Keeps boxes in order. Places of sorted scores come from memory. One block: each box that is kept
// suppresses those behind it, which the threads compare with it.
extern "C" __global__ void suppress(i64* __restrict__ kept, const Shape kept_shape,
                                    i64* __restrict__ number, u8* suppressed,
                                    const i64* __restrict__ places,
                                    const ELEMENT* __restrict__ boxes, const Shape boxes_shape,
                                    double threshold, u64 count) {
    EACH_OF_BLOCK(at, count) suppressed[at] = 0;
    u64 found = 0;
    for (u64 at = 0; at < count; at++) {
        // Marks of the boxes before are seen by all threads.
        __syncthreads();
        const u64 place = (u64)places[at];
        if (suppressed[at] != 0 || place >= count) continue;
        if (threadIdx.x == 0) kept[(i64)found * kept_shape.strides[0]] = (i64)place;
        found++;
        const Box own = box_of(boxes, boxes_shape, place);
        for (u64 other = at + 1 + threadIdx.x; other < count; other += blockDim.x) {
            const u64 second = (u64)places[other];
            if (suppressed[other] != 0 || second >= count) continue;
            const Box box = box_of(boxes, boxes_shape, second);
            const Real width =
                most_of(least_of(own.right, box.right) - most_of(own.left, box.left), 0);
            const Real height =
                most_of(least_of(own.bottom, box.bottom) - most_of(own.top, box.top), 0);
            const Real both = width * height;
            const Real either = own.area() + box.area() - both;
            if (both > (Real)threshold * either) suppressed[other] = 1;
        }
    }
    for (u64 at = found + threadIdx.x; at < count; at += blockDim.x) {
        kept[(i64)at * kept_shape.strides[0]] = 0;
    }
    if (threadIdx.x == 0) *number = (i64)found;
}
