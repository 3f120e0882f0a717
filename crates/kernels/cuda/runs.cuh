// Runs: tokens that follow one another, with the slots in which their state is read, written and
// kept.
//
// ELEMENT is the type of what goes through, KEPT that of states, RUN a type of whole numbers.
#pragma once
#include "common.cuh"

typedef Computed<ELEMENT> As;
typedef As::type Real;
typedef Computed<KEPT> Stored;

__device__ __forceinline__ Real sigmoid(Real x) { return (Real)1 / ((Real)1 + exponential(-x)); }

// Tokens that follow one another, and the slots of their state.
struct Run {
    u64 begin, end;
    // Where the next run begins; tokens of none are before it.
    u64 next;
    i64 from, to, kept;
    // Tokens behind which the state is kept; 0 for never.
    u64 mark;
};

__device__ __forceinline__ u64 clamped(i64 value, u64 least, u64 most) {
    if (value < 0 || (u64)value < least) return least;
    return (u64)value > most ? most : (u64)value;
}

__device__ __forceinline__ Run run_of(const RUN* runs, const Shape& shape, u64 number, u64 tokens,
                                      u64 slots) {
    const RUN* row = runs + (i64)number * shape.strides[0];
    const i64 step = shape.strides[1];
    Run run;
    const i64 count = (i64)row[step];
    run.begin = clamped((i64)row[0], 0, tokens);
    run.end = run.begin + clamped(count, 0, tokens - run.begin);
    run.from = (i64)row[2 * step];
    run.to = (i64)row[3 * step];
    run.mark = clamped((i64)row[4 * step], 0, tokens + 1);
    run.kept = (i64)row[5 * step];
    run.next = tokens;
    if (number + 1 < shape.extents[0]) {
        run.next = clamped((i64)row[shape.strides[0]], run.end, tokens);
    }
    if ((u64)run.from >= slots) run.from = -1;
    if ((u64)run.to >= slots) run.to = -1;
    if ((u64)run.kept >= slots || run.mark == 0 || run.mark > run.end - run.begin) run.kept = -1;
    return run;
}
