// The second file of `registration`: with -rdc=true the two are linked at run time.
#include "common.h"
__device__ int elsewhere = 77;
static __device__ int offset(int i) { return elsewhere + i; }
__global__ void fill(int* out, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) out[i] = offset(i);
}
void fill_elsewhere(int* out, int n) {
    fill<<<(n + 127) / 128, 128>>>(out, n);
    OK(cudaGetLastError());
}
