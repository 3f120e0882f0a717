// No guard at all: the last block's spare threads write past the end.
//@ run oob_write_global: fill grid=2 block=64
//@   out y: i32[100] raw

extern "C" __global__ void fill(int* y) { y[blockIdx.x * blockDim.x + threadIdx.x] = 7; }
