// Tiles turned in shared memory with a padding column, for sizes that no tile divides; f32 and pairs of f16.
//@ run transpose_f32: transpose_f32 grid=3,2 block=32,8
//@   in x: f32[4550] bits
//@   out y: f32[4550] exact
//@   val rows: i32 50
//@   val cols: i32 91
//@ run transpose_f16: transpose_f16 grid=2,2 block=32,8
//@   in x: f16[4096] bits
//@   out y: f16[4096] exact
//@   val n: i32 64
#include <cuda_fp16.h>

extern "C" __global__ void transpose_f32(const float* x, float* y, int rows, int cols) {
    __shared__ float tile[32][33];
    int c = blockIdx.x * 32 + threadIdx.x, r = blockIdx.y * 32 + threadIdx.y;
    for (int k = 0; k < 32; k += 8)
        if (r + k < rows && c < cols) tile[threadIdx.y + k][threadIdx.x] = x[(r + k) * cols + c];
    __syncthreads();
    int c2 = blockIdx.y * 32 + threadIdx.x, r2 = blockIdx.x * 32 + threadIdx.y;
    for (int k = 0; k < 32; k += 8)
        if (r2 + k < cols && c2 < rows) y[(r2 + k) * rows + c2] = tile[threadIdx.x][threadIdx.y + k];
}

extern "C" __global__ void transpose_f16(const __half* x, __half* y, int n) {
    __shared__ __half tile[32][34];
    for (int k = 0; k < 32; k += 8) {
        int r = blockIdx.y * 32 + threadIdx.y + k, c = blockIdx.x * 32 + threadIdx.x;
        tile[threadIdx.y + k][threadIdx.x] = x[r * n + c];
    }
    __syncthreads();
    if (threadIdx.x < 16)
        for (int k = 0; k < 32; k += 8) {
            int r = blockIdx.x * 32 + threadIdx.y + k, c = blockIdx.y * 32 + 2 * threadIdx.x;
            __half2 pair = __halves2half2(tile[2 * threadIdx.x][threadIdx.y + k], tile[2 * threadIdx.x + 1][threadIdx.y + k]);
            *reinterpret_cast<__half2*>(&y[r * n + c]) = pair;
        }
}
