// Classes of rows, by indices in memory.
#pragma once
#include "checked.cuh"
#include "rows.cuh"

// The class of a row, or -1 if its index is `ignored` or outside of the classes.
template <typename Index>
__device__ __forceinline__ i64 class_of(const Index* index, const Shape& shape, u64 row,
                                        u64 classes, i64 ignored, u64* fault) {
    const i64 chosen = (i64)index[element_offset(shape, row)];
    if (chosen == ignored) return -1;
    return is_inside(chosen, classes, row, fault) ? chosen : -1;
}
