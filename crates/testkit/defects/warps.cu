// Warps: masks that do not name the lanes that come, lanes that are not there, exchanges without order.
//@ run warps_mask_too_small: mask_too_small grid=1 block=32
//@   in x: u32[32] bits
//@   out y: u32[32] raw
//@   finds wrong warp mask
//@ run warps_shuffle_in_branch: shuffle_in_branch grid=1 block=32
//@   in x: u32[32] bits
//@   out y: u32[32] raw
//@   finds wrong warp mask
//@ run warps_vote_in_branch: vote_in_branch grid=1 block=32
//@   out y: u32[32] raw
//@   finds wrong warp mask
//@ run warps_syncwarp_half: syncwarp_half grid=1 block=32
//@   out y: u32[32] raw
//@   finds wrong warp mask
//@ run warps_tail_shuffle: tail_shuffle grid=1 block=32
//@   in x: u32[20] bits
//@   out y: u32[20] raw
//@   val n: i32 20
//@   finds wrong warp mask
//@ run warps_reduce_absent: reduce_absent grid=1 block=40
//@   in x: u32[40] bits
//@   out y: u32[40] raw
//@   finds wrong warp mask
//@ run warps_broadcast_from_exited: broadcast_from_exited grid=1 block=32
//@   in x: u32[32] bits
//@   out y: u32[32] raw
//@   finds wrong warp mask
//@ run warps_match_mask: match_mask grid=1 block=32
//@   in x: u32[32] int(0, 3)
//@   out y: u32[32] raw
//@   finds wrong warp mask
//@ run warps_shared_no_sync: shared_no_sync grid=1 block=32
//@   in x: u32[32] iota
//@   out y: u32[32] raw
//@   finds shared memory race
//@ run warps_reduce_no_sync: reduce_no_sync grid=1 block=32
//@   in x: u32[32] iota
//@   out y: u32[1] raw
//@   finds shared memory race
//@ run warps_global_no_sync: global_no_sync grid=1 block=32
//@   inout x: u32[32] iota raw
//@   finds global memory race

extern "C" __global__ void mask_too_small(const unsigned* x, unsigned* y) {
    unsigned v = x[threadIdx.x];
    y[threadIdx.x] = __shfl_xor_sync(0x0000ffffu, v, 1);
}

extern "C" __global__ void shuffle_in_branch(const unsigned* x, unsigned* y) {
    unsigned v = x[threadIdx.x];
    // Lane 16 and those behind do not take part, but lane 15 takes a value from there.
    if (threadIdx.x < 16) v += __shfl_down_sync(0x0000ffffu, v, 8, 32) + __shfl_sync(0x0000ffffu, v, 20);
    y[threadIdx.x] = v;
}

extern "C" __global__ void vote_in_branch(unsigned* y) {
    unsigned t = threadIdx.x, got = 0;
    if (t % 2 == 0) got = __ballot_sync(0x0fffffffu & 0x15555555u, t > 7);
    y[t] = got;
}

extern "C" __global__ void syncwarp_half(unsigned* y) {
    __shared__ unsigned s[32];
    s[threadIdx.x] = threadIdx.x;
    __syncwarp(0x0000ffffu);
    y[threadIdx.x] = s[threadIdx.x];
}

extern "C" __global__ void tail_shuffle(const unsigned* x, unsigned* y, int n) {
    int t = threadIdx.x;
    if (t >= n) return;
    unsigned v = x[t];
    for (int d = 16; d > 0; d /= 2) v += __shfl_down_sync(0xffffffffu, v, d);
    y[t] = v;
}

extern "C" __global__ void reduce_absent(const unsigned* x, unsigned* y) {
    // The second warp has eight threads.
    unsigned v = x[threadIdx.x];
    for (int d = 16; d > 0; d /= 2) v += __shfl_xor_sync(0xffffffffu, v, d);
    y[threadIdx.x] = v;
}

extern "C" __global__ void broadcast_from_exited(const unsigned* x, unsigned* y) {
    if (threadIdx.x == 0) return;
    y[threadIdx.x] = x[threadIdx.x] + __shfl_sync(0xfffffffeu, x[threadIdx.x], 0);
}

extern "C" __global__ void match_mask(const unsigned* x, unsigned* y) {
    unsigned t = threadIdx.x, got = 0;
    if (t >= 8) got = __match_any_sync(0x00ffff00u, x[t]);
    y[t] = got;
}

extern "C" __global__ void shared_no_sync(const unsigned* x, unsigned* y) {
    __shared__ unsigned s[32];
    s[threadIdx.x] = x[threadIdx.x];
    y[threadIdx.x] = s[threadIdx.x ^ 5];
}

extern "C" __global__ void reduce_no_sync(const unsigned* x, unsigned* y) {
    __shared__ unsigned s[32];
    unsigned t = threadIdx.x;
    s[t] = x[t];
    __syncwarp();
    for (unsigned d = 16; d > 0; d /= 2)
        if (t < d) s[t] += s[t + d];
    if (t == 0) *y = s[0];
}

extern "C" __global__ void global_no_sync(unsigned* x) {
    unsigned left = x[(threadIdx.x + 31) % 32];
    x[threadIdx.x] = left;
}
