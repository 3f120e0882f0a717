// CUB's block and warp reductions.
//@ run cub_reduce: cub_reduce grid=3 block=128
//@   in x: i32[1536] int(-1000, 1000)
//@   out sums: i32[3] exact
//@   out highs: i32[3] exact
//@   out warps: i32[12] exact
#include <cub/block/block_load.cuh>
#include <cub/block/block_reduce.cuh>
#include <cub/warp/warp_reduce.cuh>

struct Larger {
    __device__ int operator()(int a, int b) const { return a > b ? a : b; }
};

extern "C" __global__ void cub_reduce(const int* x, int* sums, int* highs, int* warps) {
    using Load = cub::BlockLoad<int, 128, 4, cub::BLOCK_LOAD_WARP_TRANSPOSE>;
    using Reduce = cub::BlockReduce<int, 128>;
    using WarpReduce = cub::WarpReduce<int>;
    __shared__ typename Load::TempStorage load;
    __shared__ typename Reduce::TempStorage reduce;
    __shared__ typename WarpReduce::TempStorage warp[4];
    int v[4];
    Load(load).Load(x + blockIdx.x * 512, v);
    int sum = Reduce(reduce).Sum(v);
    __syncthreads();
    int high = Reduce(reduce).Reduce(v, Larger());
    int mine = WarpReduce(warp[threadIdx.x / 32]).Sum(v[0]);
    if (threadIdx.x == 0) {
        sums[blockIdx.x] = sum;
        highs[blockIdx.x] = high;
    }
    if (threadIdx.x % 32 == 0) warps[blockIdx.x * 4 + threadIdx.x / 32] = mine;
}
