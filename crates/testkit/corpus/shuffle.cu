// Shuffles in all modes and widths, indices out of range, partial masks, 64-bit and 16-bit values.
//@ run shuffles: shuffles grid=1 block=64
//@   in x: u32[64] bits
//@   in wide: f64[64] uniform(-1, 1)
//@   out r: u32[640] exact
//@   out d: f64[64] exact
//@   out valid: u32[256] exact
#include <cuda_fp16.h>

extern "C" __global__ void shuffles(const unsigned* x, const double* wide, unsigned* r, double* d, unsigned* valid) {
    int t = threadIdx.x, lane = t & 31;
    unsigned v = x[t], full = 0xffffffffu;
    unsigned* o = r + 10 * t;
    o[0] = __shfl_sync(full, v, 31 - lane);
    o[1] = __shfl_sync(full, v, (int)(v >> 5), 8);
    o[2] = __shfl_up_sync(full, v, 3);
    o[3] = __shfl_up_sync(full, v, 5, 16);
    o[4] = __shfl_down_sync(full, v, 7);
    o[5] = __shfl_down_sync(full, v, 3, 4);
    o[6] = __shfl_xor_sync(full, v, 21);
    o[7] = __shfl_xor_sync(full, v, 9, 8);
    // Only even lanes take part in the first, only odd in the second.
    if (lane & 1)
        o[8] = __shfl_sync(0xaaaaaaaau, v, (lane + 6) | 1);
    else
        o[8] = __shfl_sync(0x55555555u, v, (lane + 4) & ~1);
    __half h = __ushort_as_half((unsigned short)v);
    o[9] = __half_as_ushort(__shfl_xor_sync(full, h, 1));
    d[t] = __shfl_down_sync(full, wide[t], 2);
    unsigned q, got;
    asm volatile("{ .reg .pred p; shfl.sync.up.b32 %0|p, %2, 4, 0, 0xffffffff; selp.u32 %1, 1, 0, p; }" : "=r"(got), "=r"(q) : "r"(v));
    valid[4 * t] = q;
    asm volatile("{ .reg .pred p; shfl.sync.down.b32 %0|p, %2, 9, 31, 0xffffffff; selp.u32 %1, 1, 0, p; }" : "=r"(got), "=r"(q) : "r"(v));
    valid[4 * t + 1] = q;
    asm volatile("{ .reg .pred p; shfl.sync.idx.b32 %0|p, %2, %3, 0x181f, 0xffffffff; selp.u32 %1, 1, 0, p; }" : "=r"(got), "=r"(q) : "r"(v), "r"(lane + 3));
    valid[4 * t + 2] = q ^ got;
    asm volatile("{ .reg .pred p; shfl.sync.bfly.b32 %0|p, %2, 12, 0x180f, 0xffffffff; selp.u32 %1, 1, 0, p; }" : "=r"(got), "=r"(q) : "r"(v));
    valid[4 * t + 3] = q ^ got;
}
