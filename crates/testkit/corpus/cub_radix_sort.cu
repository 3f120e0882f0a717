// CUB's block radix sort of keys with values, and of floats downwards.
//@ run cub_radix_sort: cub_radix_sort grid=2 block=64
//@   in keys: u32[512] bits
//@   in floats: f32[512] uniform(-100, 100)
//@   out sorted: u32[512] exact
//@   out order: u32[512] exact
//@   out falling: f32[512] exact
#include <cub/block/block_radix_sort.cuh>

extern "C" __global__ void cub_radix_sort(const unsigned* keys, const float* floats, unsigned* sorted, unsigned* order, float* falling) {
    using Pairs = cub::BlockRadixSort<unsigned, 64, 4, unsigned>;
    using Floats = cub::BlockRadixSort<float, 64, 4>;
    __shared__ union {
        typename Pairs::TempStorage pairs;
        typename Floats::TempStorage floats;
    } s;
    int base = blockIdx.x * 256 + threadIdx.x * 4;
    unsigned k[4], v[4];
    float f[4];
    for (int i = 0; i < 4; ++i) {
        k[i] = keys[base + i] & 0xffffu;
        v[i] = threadIdx.x * 4 + i;
        f[i] = floats[base + i];
    }
    Pairs(s.pairs).Sort(k, v, 0, 16);
    __syncthreads();
    Floats(s.floats).SortDescending(f);
    for (int i = 0; i < 4; ++i) {
        sorted[base + i] = k[i];
        order[base + i] = v[i];
        falling[base + i] = f[i];
    }
}
