// A sum of a block's last warp, half of which was never launched.
//@ run mask_absent_lane: sum grid=1 block=48
//@   in x: i32[48] bits
//@   out y: i32[48] raw

extern "C" __global__ void sum(const int* x, int* y) {
    int v = x[threadIdx.x];
    v += __shfl_down_sync(0xffffffffu, v, 16);
    v += __shfl_down_sync(0xffffffffu, v, 8);
    y[threadIdx.x] = v;
}
