// Lanes of a warp exchange through global memory as if they still ran in step.
//@ run race_threads_lanes: exchange grid=1 block=32
//@   inout x: i32[32] bits raw

extern "C" __global__ void exchange(int* x) {
    x[threadIdx.x] += 1;
    int other = x[threadIdx.x ^ 1];
    __syncwarp();
    x[threadIdx.x] = other;
}
