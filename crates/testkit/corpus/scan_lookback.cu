// A prefix sum of many blocks in one pass: each publishes its aggregate, looks back for its prefix, publishes that.
//@ run scan_lookback: scan_lookback grid=40 block=128
//@   in x: u32[5120] int(0, 1000)
//@   out y: u32[5120] exact
//@   inout state: u64[40] zero exact
//@   inout next: u32[1] zero exact

constexpr unsigned long long AGGREGATE = 1ull << 62, PREFIX = 2ull << 62, VALUE = 0xffffffffull;

extern "C" __global__ void scan_lookback(const unsigned* x, unsigned* y, unsigned long long* state, unsigned* next) {
    __shared__ unsigned tile, before, warps[4];
    int t = threadIdx.x, lane = t & 31, warp = t >> 5;
    // Tiles are taken in the order in which blocks start, so the tile looked back at has always started.
    if (t == 0) tile = atomicAdd(next, 1u);
    __syncthreads();
    unsigned v = x[tile * 128 + t];
    for (int d = 1; d < 32; d *= 2) {
        unsigned left = __shfl_up_sync(0xffffffffu, v, d);
        if (lane >= d) v += left;
    }
    if (lane == 31) warps[warp] = v;
    __syncthreads();
    for (int w = 0; w < warp; ++w) v += warps[w];
    unsigned total = warps[0] + warps[1] + warps[2] + warps[3];
    if (t == 0) {
        unsigned sum = 0;
        if (tile > 0) {
            atomicExch(&state[tile], AGGREGATE | total);
            int back = (int)tile - 1;
            while (true) {
                unsigned long long s = atomicAdd(&state[back], 0ull);
                if (s == 0) continue;
                sum += (unsigned)(s & VALUE);
                if (s & PREFIX) break;
                --back;
            }
        }
        atomicExch(&state[tile], PREFIX | (unsigned long long)(sum + total));
        before = sum;
    }
    __syncthreads();
    y[tile * 128 + t] = v + before;
}
