// Choice of one element of each row by its weight: e^(x / temperature) of the largest ones.
//
// A block has a row. Where the row is cut (the `top_k` largest, those that have `top_p` of the weight
// of all together), elements are counted in bins by their distance from the largest one; those of the
// first bins, among which those that are kept surely are, are sorted in shared memory if they are few.
// Else the least key of those that are kept is found by halving, and equal ones are kept all. The
// choice is among what is kept in the order of the row. Sums of weights are f64.
#define KEY u32
#define KIND 2
#define LARGEST 0x7f800000ull
#include "keys.cuh"
#include "rows.cuh"

#define THREADS 1024
#define WARPS 32
#define EACH_LANE 0xffffffffu
// Elements that are sorted at most.
#define SORTED 2048
#define BINS 2048
// Bins of the distance from the largest one, after the division by the temperature, by 1.
#define BINS_OF_ONE 64

typedef Computed<ELEMENT> As;

// How a row's element is chosen, as six numbers of 32 bits.
struct Settings {
    float temperature;
    u32 top_k;
    float top_p, min_p;
    // From 0 to 1, by which the element is chosen.
    double place;

    __device__ __forceinline__ Settings(const int* own, i64 stride) {
        temperature = as_float((u32)own[0]);
        top_k = (u32)own[stride];
        top_p = as_float((u32)own[2 * stride]);
        min_p = as_float((u32)own[3 * stride]);
        place = __hiloint2double(own[5 * stride], own[4 * stride]);
        // What is no place is the first one.
        if (!(place >= 0 && place < 1)) place = 0;
    }
};

// A row, with what the weights of its elements depend on.
struct Weights {
    const ELEMENT* x;
    i64 stride;
    u32 len;
    float most, temperature, least;
    // Key of the least element that counts.
    u32 least_key;

    __device__ __forceinline__ float at(u32 i) const {
        return (float)As::load(x[(i64)i * stride]);
    }
    __device__ __forceinline__ float distance(float value) const {
        return value == most ? 0.0f : (most - value) / temperature;
    }
    // 0 of what does not count.
    __device__ __forceinline__ float of(float value) const {
        if (key_of(__float_as_uint(value)) < least_key) return 0;
        const float weight = expf(-distance(value));
        return weight >= least ? weight : 0.0f;
    }
};

__device__ __forceinline__ double lane_sum(double own) {
#pragma unroll
    for (u32 distance = 16; distance > 0; distance /= 2) {
        own += __shfl_xor_sync(EACH_LANE, own, distance);
    }
    return own;
}

// The sum of all threads' values, for each of them.
__device__ double block_sum(double own, double* of_warps) {
    own = lane_sum(own);
    __syncthreads();
    if (threadIdx.x % 32 == 0) of_warps[threadIdx.x / 32] = own;
    __syncthreads();
    double all = 0;
    for (u32 warp = 0; warp < WARPS; warp++) all += of_warps[warp];
    return all;
}

// The element in which the place is, in the order of the row: each time the part of one warp.
__device__ u32 choose_in_order(const Weights& row, double place, double* of_warps) {
    const u32 lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    u32 begin = 0, end = row.len;
    double target = -1;
    while (true) {
        const u32 each = (((end - begin) + WARPS - 1) / WARPS + 31) / 32 * 32;
        const u32 first = begin + warp * each;
        const u32 last = first + each < end ? first + each : end;
        double sum = 0;
        for (u32 i = first + lane; i < last; i += 32) sum += row.of(row.at(i));
        sum = lane_sum(sum);
        __syncthreads();
        if (lane == 0) of_warps[warp] = sum;
        __syncthreads();
        if (target < 0) {
            double all = 0;
            for (u32 w = 0; w < WARPS; w++) all += of_warps[w];
            target = place * all;
        }
        // The first part that goes beyond the target, or the last one with a weight.
        u32 part = 0;
        double before = 0, sum_before = 0;
        bool is_found = false;
        for (u32 w = 0; w < WARPS; w++) {
            const double own = of_warps[w];
            if (!is_found && own > 0) {
                part = w;
                before = sum_before;
                is_found = sum_before + own > target;
            }
            sum_before += own;
        }
        target -= before;
        if (target < 0) target = 0;
        const u32 there = begin + part * each;
        end = there + each < end ? there + each : end;
        begin = there;
        if (end - begin <= 32) break;
    }
    // Each warp does the same.
    const u32 own = begin + lane;
    const double weight = own < end ? row.of(row.at(own)) : 0.0f;
    double sum = weight;
#pragma unroll
    for (u32 distance = 1; distance < 32; distance *= 2) {
        const double other = __shfl_up_sync(EACH_LANE, sum, distance);
        if (lane >= distance) sum += other;
    }
    const u32 beyond = __ballot_sync(EACH_LANE, weight > 0 && sum > target);
    const u32 some = __ballot_sync(EACH_LANE, weight > 0);
    if (beyond != 0) return begin + __ffs(beyond) - 1;
    return some != 0 ? begin + 31 - __clz(some) : begin;
}

// The largest key at and above which there are so many elements, or so much weight.
template <bool IS_COUNT>
__device__ u32 key_of_part(const Weights& row, double wanted, double* of_warps) {
    u32 key = 0;
    for (u32 bit = 1u << 31; bit > 0; bit >>= 1) {
        const u32 tried = key | bit;
        double own = 0;
        for (u32 i = threadIdx.x; i < row.len; i += THREADS) {
            const float value = row.at(i);
            if (key_of(__float_as_uint(value)) < tried) continue;
            const float weight = row.of(value);
            own += IS_COUNT ? (double)(weight > 0) : (double)weight;
        }
        const double sum = block_sum(own, of_warps);
        // Of no part one element is kept.
        if (sum > 0 && sum >= wanted) key = tried;
    }
    return key;
}


// Sorts numbers in shared memory; behind them there is room up to a power of two.
__device__ void sort_shared(u64* all, u32 count) {
    u32 padded = 2;
    while (padded < count) padded *= 2;
    for (u32 i = threadIdx.x; i < padded; i += THREADS) {
        if (i >= count) all[i] = ~0ull;
    }
    __syncthreads();
    for (u32 size = 2; size <= padded; size *= 2) {
        for (u32 apart = size / 2; apart > 0; apart /= 2) {
            for (u32 pair = threadIdx.x; pair < padded / 2; pair += THREADS) {
                const u32 a = 2 * pair - (pair & (apart - 1)), b = a + apart;
                const u64 of_a = all[a], of_b = all[b];
                if ((of_a > of_b) == ((a & size) == 0)) {
                    all[a] = of_b;
                    all[b] = of_a;
                }
            }
            __syncthreads();
        }
    }
}

// Sums of the weights of elements up to each one, by the first warp. The low half of a number is an
// element's place.
__device__ void sum_shared(const Weights& row, const u64* all, u32 count, double* sums) {
    const u32 lane = threadIdx.x % 32;
    if (threadIdx.x < 32) {
        double before = 0;
        for (u32 first = 0; first < count; first += 32) {
            const u32 i = first + lane;
            double sum = i < count ? row.of(row.at((u32)all[i])) : 0.0f;
#pragma unroll
            for (u32 distance = 1; distance < 32; distance *= 2) {
                const double other = __shfl_up_sync(EACH_LANE, sum, distance);
                if (lane >= distance) sum += other;
            }
            sum += before;
            if (i < count) sums[i] = sum;
            before = __shfl_sync(EACH_LANE, sum, 31);
        }
    }
    __syncthreads();
}

// The element of a row that is cut, of whose first bins these are all: keys that descend, and places.
__device__ u32 choose_sorted(const Weights& row, const Settings& settings, double all, u64* sorted,
                             u32 count, double* sums) {
    sort_shared(sorted, count);
    if (settings.top_k > 0 && settings.top_k < count) count = settings.top_k;
    sum_shared(row, sorted, count, sums);
    if (settings.top_k > 0) all = sums[count - 1];
    // Both searches are of few steps, and each thread does them.
    if (settings.top_p < 1) {
        const double wanted = (double)settings.top_p * all;
        u32 from = 0, until = count;
        while (from < until) {
            const u32 middle = (from + until) / 2;
            if (sums[middle] >= wanted) {
                until = middle;
            } else {
                from = middle + 1;
            }
        }
        if (from < count) count = from + 1;
    }
    __syncthreads();
    // In the order of the row.
    for (u32 i = threadIdx.x; i < count; i += THREADS) sorted[i] = (u32)sorted[i];
    __syncthreads();
    sort_shared(sorted, count);
    sum_shared(row, sorted, count, sums);
    const double target = settings.place * sums[count - 1];
    u32 from = 0, until = count - 1;
    while (from < until) {
        const u32 middle = (from + until) / 2;
        if (sums[middle] > target) {
            until = middle;
        } else {
            from = middle + 1;
        }
    }
    return (u32)sorted[from];
}

// The last bin of those among which the chosen element is: by their count, if that is cut, else by
// what elements behind may weigh at most. A count that all elements are within is none.
__device__ void find_cut(Settings& settings, double all, const u32* bins, double* of_warps,
                         u32* counts, u32& cut) {
    const u32 lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    const u32 each = BINS / THREADS, first = threadIdx.x * each;
    u32 count = 0;
    double weight = 0;
    for (u32 b = first; b < first + each; b++) {
        count += bins[b];
        weight += bins[b] * (expf(-(float)b / BINS_OF_ONE) * (1 + 1e-6));
    }
    u32 up_to = count;
    double behind = weight;
#pragma unroll
    for (u32 distance = 1; distance < 32; distance *= 2) {
        const u32 other = __shfl_up_sync(EACH_LANE, up_to, distance);
        const double later = __shfl_down_sync(EACH_LANE, behind, distance);
        if (lane >= distance) up_to += other;
        if (lane + distance < 32) behind += later;
    }
    // Sums before have been read.
    __syncthreads();
    if (lane == 31) counts[warp] = up_to;
    if (lane == 0) of_warps[warp] = behind;
    if (threadIdx.x == 0) cut = BINS - 1;
    __syncthreads();
    u32 of_all = 0;
    for (u32 w = 0; w < WARPS; w++) {
        of_all += counts[w];
        if (w < warp) up_to += counts[w];
        if (w > warp) behind += of_warps[w];
    }
    if (settings.top_k >= of_all) settings.top_k = 0;
    if (settings.top_k > 0) {
        // The count before this thread's bins, and with them.
        u32 before = up_to - count;
        for (u32 b = first; b < first + each; b++) {
            if (before < settings.top_k && before + bins[b] >= settings.top_k) cut = b;
            before += bins[b];
        }
    } else {
        const double most = (1 - (double)settings.top_p) * all * (1 - 1e-6);
        double from = behind;
        for (u32 b = first; b < first + each; b++) {
            from -= bins[b] * (expf(-(float)b / BINS_OF_ONE) * (1 + 1e-6));
            // The first bin behind which there is no more.
            if (from <= most) atomicMin(&cut, b);
        }
    }
}

extern "C" __global__ void __launch_bounds__(THREADS)
    choose(i64* __restrict__ to, i64 to_stride, ELEMENT* __restrict__ values, i64 values_stride,
           const ELEMENT* __restrict__ x, const Shape shape, const int* __restrict__ settings_of,
           i64 settings_row, i64 settings_stride) {
    __shared__ u64 sorted[SORTED];
    __shared__ double sums[SORTED];
    __shared__ u32 bins[BINS];
    __shared__ double of_warps[WARPS];
    __shared__ u32 counts[WARPS];
    __shared__ u32 cut, found;
    const u32 lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    const u64 number = blockIdx.x;
    Weights row;
    row.x = x + (i64)number * shape.strides[0];
    row.stride = shape.strides[1];
    row.len = (u32)shape.extents[1];
    Settings settings(settings_of + (i64)number * settings_row, settings_stride);
    // The key of the largest one, and where it is first; NaN is behind all.
    u64 best = 0;
    bool has_nan = false;
    for (u32 i = threadIdx.x; i < row.len; i += THREADS) {
        const float value = row.at(i);
        has_nan |= value != value;
        const u64 own = (u64)key_of(__float_as_uint(value)) << 32 | (u32)~i;
        best = own > best ? own : best;
    }
#pragma unroll
    for (u32 distance = 16; distance > 0; distance /= 2) {
        const u64 other = __shfl_xor_sync(EACH_LANE, best, distance);
        best = other > best ? other : best;
    }
    if (lane == 0) sorted[warp] = best;
    for (u32 i = threadIdx.x; i < BINS; i += THREADS) bins[i] = 0;
    if (threadIdx.x == 0) found = 0;
    has_nan = __syncthreads_or(has_nan) != 0;
    for (u32 w = 0; w < WARPS; w++) best = sorted[w] > best ? sorted[w] : best;
    __syncthreads();
    u32 chosen = ~(u32)best;
    row.most = row.at(chosen);
    row.temperature = settings.temperature;
    row.least = settings.min_p;
    row.least_key = 0;
    const bool is_cut = (settings.top_k > 0 && settings.top_k < row.len) || settings.top_p < 1;
    const bool is_chosen = has_nan || !(settings.temperature > 0) ||
                           row.most == as_float(0xff800000u);
    if (!is_chosen && !is_cut) {
        chosen = choose_in_order(row, settings.place, of_warps);
    } else if (!is_chosen) {
        double own = 0;
        for (u32 i = threadIdx.x; i < row.len; i += THREADS) {
            const float value = row.at(i), weight = row.of(value);
            if (!(weight > 0)) continue;
            own += weight;
            const float far = row.distance(value) * BINS_OF_ONE;
            atomicAdd(&bins[far < BINS - 1 ? (u32)far : BINS - 1], 1u);
        }
        const double all = block_sum(own, of_warps);
        find_cut(settings, all, bins, of_warps, counts, cut);
        __syncthreads();
        const u32 last_bin = cut;
        for (u32 i = threadIdx.x; i < row.len; i += THREADS) {
            const float value = row.at(i);
            if (!(row.of(value) > 0)) continue;
            const float far = row.distance(value) * BINS_OF_ONE;
            if ((far < BINS - 1 ? (u32)far : BINS - 1) > last_bin) continue;
            const u32 slot = atomicAdd(&found, 1u);
            if (slot < SORTED) {
                sorted[slot] = (u64)~key_of(__float_as_uint(value)) << 32 | i;
            }
        }
        __syncthreads();
        if (found <= SORTED) {
            chosen = choose_sorted(row, settings, all, sorted, found, sums);
        } else {
            double weight = all;
            u32 least = 0;
            if (settings.top_k > 0) {
                least = key_of_part<true>(row, settings.top_k, of_warps);
                row.least_key = least;
                double own = 0;
                for (u32 i = threadIdx.x; i < row.len; i += THREADS) own += row.of(row.at(i));
                weight = block_sum(own, of_warps);
            }
            if (settings.top_p < 1) {
                row.least_key = least;
                const u32 other = key_of_part<false>(row, settings.top_p * weight, of_warps);
                row.least_key = other > least ? other : least;
            }
            chosen = choose_in_order(row, settings.place, of_warps);
        }
    }
    if (threadIdx.x != 0) return;
    to[(i64)number * to_stride] = chosen;
    values[(i64)number * values_stride] =
        has_nan ? As::store(as_float(0x7fc00000u)) : As::store(row.most);
}
