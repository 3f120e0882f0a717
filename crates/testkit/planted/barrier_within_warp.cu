// Lanes of one warp part before the barrier: the odd ones wait elsewhere for the others.
//@ run barrier_within_warp: odd grid=1 block=32
//@   out y: i32[32] raw

extern "C" __global__ void odd(int* y) {
    int v = 0;
    if (threadIdx.x % 2 == 0) {
        __syncthreads();
        v = 1;
    }
    __syncwarp();
    y[threadIdx.x] = v;
}
