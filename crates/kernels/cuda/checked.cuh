// Indices that come from memory.
#pragma once
#include "common.cuh"

// Whether an index is below an extent. Else, if `fault` is given, the first such index that is seen
// is recorded there: `at`, its number, plus one, and the index itself.
__device__ __forceinline__ bool is_inside(i64 index, u64 extent, u64 at, u64* fault) {
    if ((u64)index < extent) return true;
    if (fault != nullptr && atomicCAS(&fault[0], 0ull, at + 1) == 0) {
        atomicExch(&fault[1], (u64)index);
    }
    return false;
}
