// CUB's block scans (raking and by warps) and a block-wide exchange of items.
//@ run cub_scan: cub_scan grid=2 block=64
//@   in x: u32[512] int(0, 1000)
//@   out inclusive: u32[512] exact
//@   out exclusive: u32[512] exact
//@   out striped: u32[512] exact
//@   out totals: u32[2] exact
#include <cub/block/block_exchange.cuh>
#include <cub/block/block_scan.cuh>

extern "C" __global__ void cub_scan(const unsigned* x, unsigned* inclusive, unsigned* exclusive, unsigned* striped, unsigned* totals) {
    using Raking = cub::BlockScan<unsigned, 64, cub::BLOCK_SCAN_RAKING>;
    using Warps = cub::BlockScan<unsigned, 64, cub::BLOCK_SCAN_WARP_SCANS>;
    using Exchange = cub::BlockExchange<unsigned, 64, 4>;
    __shared__ union {
        typename Raking::TempStorage raking;
        typename Warps::TempStorage warps;
        typename Exchange::TempStorage exchange;
    } s;
    int base = blockIdx.x * 256;
    unsigned v[4], r[4], total;
    for (int i = 0; i < 4; ++i) v[i] = x[base + threadIdx.x * 4 + i];
    Raking(s.raking).InclusiveSum(v, r);
    for (int i = 0; i < 4; ++i) inclusive[base + threadIdx.x * 4 + i] = r[i];
    __syncthreads();
    Warps(s.warps).ExclusiveSum(v, r, total);
    for (int i = 0; i < 4; ++i) exclusive[base + threadIdx.x * 4 + i] = r[i];
    __syncthreads();
    Exchange(s.exchange).BlockedToStriped(v, r);
    for (int i = 0; i < 4; ++i) striped[base + threadIdx.x * 4 + i] = r[i];
    if (threadIdx.x == 0) totals[blockIdx.x] = total;
}
