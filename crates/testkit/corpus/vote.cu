// Votes and matches, whole warps and parts of them, inside divergent code; active masks; elections.
//@ run votes: votes grid=2 block=64
//@   in x: u32[128] int(0, 6)
//@   out all: u32[128] exact
//@   out ballots: u32[128] exact
//@   out matches: u32[256] exact
//@   out parts: u32[128] exact
//@   out lanes: u32[128] exact

extern "C" __global__ void votes(const unsigned* x, unsigned* all, unsigned* ballots, unsigned* matches, unsigned* parts, unsigned* lanes) {
    int i = blockIdx.x * blockDim.x + threadIdx.x, lane = threadIdx.x & 31;
    unsigned v = x[i], full = 0xffffffffu;
    unsigned uniform;
    asm("{ .reg .pred p, q; setp.gt.u32 p, %1, 2; vote.sync.uni.pred q, p, 0xffffffff; selp.u32 %0, 1, 0, q; }" : "=r"(uniform) : "r"(v));
    all[i] = (unsigned)__all_sync(full, v < 6) | (unsigned)__any_sync(full, v == 0) << 1 | uniform << 2;
    ballots[i] = __ballot_sync(full, v & 1);
    int same = 0;
    matches[2 * i] = __match_any_sync(full, v);
    matches[2 * i + 1] = __match_all_sync(full, v >> 3, &same) ^ ((unsigned)same << 31) ^ __match_any_sync(full, (unsigned long long)(v & 1) << 40);
    unsigned r;
    if (lane < 12)
        r = __ballot_sync(0x00000fffu, v > 2);
    else if (lane < 20)
        r = (unsigned)__any_sync(0x000ff000u, v == 3) | 0x100u;
    else
        r = __match_any_sync(0xfff00000u, v);
    parts[i] = r;
    __syncwarp();
    unsigned less, equal, greater;
    asm("mov.u32 %0, %%lanemask_lt;" : "=r"(less));
    asm("mov.u32 %0, %%lanemask_eq;" : "=r"(equal));
    asm("mov.u32 %0, %%lanemask_ge;" : "=r"(greater));
    lanes[i] = __popc(ballots[i] & less) | (unsigned)__popc(equal) << 8 | (unsigned)__popc(greater) << 16;
}
