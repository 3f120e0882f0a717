// Cooperative groups: tiles, coalesced threads, clusters of a block, the whole grid.
//@ run tile_reduce: tile_reduce grid=1 block=64
//@   in x: u32[64] iota
//@ run tile_shared: tile_shared grid=1 block=64
//@   in x: u32[64] iota
//@   inout y: u32[64] zero raw
//@ run coalesced: coalesced grid=1 block=64
//@   inout count: u32[1] zero raw
//@   inout list: u32[64] zero raw
//@ run block_group: block_group grid=2 block=64
//@   in x: u32[128] iota
//@   inout y: u32[128] zero raw
//@ run grid_rounds: grid_rounds grid=4 block=64 cooperative
//@   inout x: u32[256] iota raw
//@   inout y: u32[256] zero raw
//@ run grid_reduce: grid_reduce grid=3 block=64 cooperative
//@   in x: u32[192] iota
//@   inout parts: u32[3] zero raw
//@ run labeled: labeled grid=1 block=32
//@   in x: u32[32] int(0, 3)
//@ run async_group: async_group grid=1 block=64
//@   in x: u32[256] iota
//@   inout y: u32[64] zero raw
#include <cooperative_groups.h>
#include <cooperative_groups/memcpy_async.h>
#include <cooperative_groups/reduce.h>
#include <cooperative_groups/scan.h>

namespace cg = cooperative_groups;
#define CHECK(x) do { if (!(x)) __trap(); } while (0)

extern "C" __global__ void tile_reduce(const unsigned* x) {
    auto tile = cg::tiled_partition<8>(cg::this_thread_block());
    unsigned v = cg::reduce(tile, x[threadIdx.x], cg::plus<unsigned>());
    unsigned first = threadIdx.x & ~7u;
    CHECK(v == 8 * first + 28);
    unsigned upto = cg::inclusive_scan(tile, 1u);
    CHECK(upto == threadIdx.x % 8 + 1);
}

extern "C" __global__ void tile_shared(const unsigned* x, unsigned* y) {
    __shared__ unsigned s[64];
    auto tile = cg::tiled_partition<16>(cg::this_thread_block());
    unsigned base = threadIdx.x & ~15u;
    s[threadIdx.x] = x[threadIdx.x];
    tile.sync();
    y[threadIdx.x] = s[base + 15 - tile.thread_rank()];
    tile.sync();
    s[threadIdx.x] = 0;
}

extern "C" __global__ void coalesced(unsigned* count, unsigned* list) {
    if (threadIdx.x % 3 == 0) {
        auto active = cg::coalesced_threads();
        unsigned base = 0;
        if (active.thread_rank() == 0) base = atomicAdd(count, active.size());
        base = active.shfl(base, 0);
        list[base + active.thread_rank()] = threadIdx.x;
    }
}

extern "C" __global__ void block_group(const unsigned* x, unsigned* y) {
    __shared__ unsigned s[64];
    auto block = cg::this_thread_block();
    s[block.thread_rank()] = x[blockIdx.x * 64 + threadIdx.x];
    block.sync();
    y[blockIdx.x * 64 + threadIdx.x] = s[63 - threadIdx.x];
}

extern "C" __global__ void grid_rounds(unsigned* x, unsigned* y) {
    auto grid = cg::this_grid();
    unsigned i = grid.thread_rank();
    for (int k = 0; k < 3; k++) {
        y[255 - i] = x[i] + 1;
        grid.sync();
        x[i] = y[i ^ 64];
        grid.sync();
    }
}

extern "C" __global__ void grid_reduce(const unsigned* x, unsigned* parts) {
    auto grid = cg::this_grid();
    auto tile = cg::tiled_partition<32>(cg::this_thread_block());
    __shared__ unsigned s[2];
    unsigned v = cg::reduce(tile, x[grid.thread_rank()], cg::plus<unsigned>());
    if (tile.thread_rank() == 0) s[threadIdx.x / 32] = v;
    __syncthreads();
    if (threadIdx.x == 0) parts[blockIdx.x] = s[0] + s[1];
    grid.sync();
    CHECK(parts[0] + parts[1] + parts[2] == 192 * 191 / 2);
}

extern "C" __global__ void labeled(const unsigned* x) {
    auto tile = cg::tiled_partition<32>(cg::this_thread_block());
    auto peers = cg::labeled_partition(tile, x[threadIdx.x]);
    unsigned n = cg::reduce(peers, 1u, cg::plus<unsigned>());
    CHECK(n == peers.size());
    peers.sync();
}

extern "C" __global__ void async_group(const unsigned* x, unsigned* y) {
    __shared__ unsigned s[256];
    auto block = cg::this_thread_block();
    cg::memcpy_async(block, s, x, sizeof(s));
    cg::wait(block);
    y[threadIdx.x] = s[255 - threadIdx.x];
}
