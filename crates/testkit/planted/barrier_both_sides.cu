// Both sides of a branch have a barrier, but not the same one.
//@ run barrier_both_sides: sides grid=1 block=64
//@   out y: i32[64] raw

extern "C" __global__ void sides(int* y) {
    if (threadIdx.x & 32) {
        y[threadIdx.x] = 1;
        __syncthreads();
        y[threadIdx.x] += 1;
    } else {
        __syncthreads();
        y[threadIdx.x] = 2;
    }
}
