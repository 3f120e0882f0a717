// A least-digit-first radix sort of one block, one bit a pass, ranked by ballots.
//@ run radix_block: radix_block grid=3 block=256
//@   in keys: u32[768] bits
//@   out sorted: u32[768] exact

extern "C" __global__ void radix_block(const unsigned* keys, unsigned* sorted) {
    __shared__ unsigned s[256];
    __shared__ unsigned zeros[8];
    int t = threadIdx.x, lane = t & 31, warp = t >> 5;
    unsigned key = keys[blockIdx.x * 256 + t];
    for (int bit = 0; bit < 32; ++bit) {
        unsigned one = (key >> bit) & 1u;
        unsigned ones = __ballot_sync(0xffffffffu, one);
        if (lane == 0) zeros[warp] = 32u - __popc(ones);
        __syncthreads();
        unsigned before = 0, all = 0;
        for (int w = 0; w < 8; ++w) {
            if (w < warp) before += zeros[w];
            all += zeros[w];
        }
        unsigned ones_here = __popc(ones & ((1u << lane) - 1u));
        unsigned zero_rank = before + lane - ones_here;
        unsigned rank = one ? all + (unsigned)t - zero_rank : zero_rank;
        s[rank] = key;
        __syncthreads();
        key = s[t];
    }
    sorted[blockIdx.x * 256 + t] = key;
}
