// Cooperative groups: tiles of 4, 8 and 32, coalesced and labelled groups, reductions and scans of a tile.
//@ run cg_tiles: cg_tiles grid=2 block=96
//@   in x: i32[192] int(-50, 50)
//@   out fours: i32[192] exact
//@   out eights: i32[192] exact
//@   out scanned: i32[192] exact
//@   out ranks: i32[192] exact
//@   out labelled: i32[192] exact
#include <cooperative_groups.h>
#include <cooperative_groups/reduce.h>
#include <cooperative_groups/scan.h>
namespace cg = cooperative_groups;

extern "C" __global__ void cg_tiles(const int* x, int* fours, int* eights, int* scanned, int* ranks, int* labelled) {
    auto block = cg::this_thread_block();
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    int v = x[i];

    auto four = cg::tiled_partition<4>(block);
    int sum = v;
    for (int d = four.size() / 2; d > 0; d /= 2) sum += four.shfl_xor(sum, d);
    fours[i] = sum * 10 + (int)four.thread_rank();

    auto eight = cg::tiled_partition<8>(block);
    eights[i] = cg::reduce(eight, v, cg::greater<int>()) + (int)eight.meta_group_rank() * 1000;

    auto warp = cg::tiled_partition<32>(block);
    scanned[i] = cg::inclusive_scan(warp, v) - cg::exclusive_scan(eight, v);

    if (v > 0) {
        auto active = cg::coalesced_threads();
        ranks[i] = (int)active.thread_rank() + 100 * (int)active.size();
    } else {
        ranks[i] = -1;
    }
    warp.sync();
    auto same = cg::labeled_partition(warp, v & 3);
    labelled[i] = cg::reduce(same, v, cg::plus<int>());
}
