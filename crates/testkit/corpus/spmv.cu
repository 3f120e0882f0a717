// A sparse matrix by rows times a vector: a thread a row, and a warp a row; rows may be empty.
//@ run spmv: spmv grid=3 block=64
//@   in offsets: u32[161] made
//@   in columns: u32[2000] made
//@   in values: f32[2000] uniform(-1, 1)
//@   in x: f32[300] uniform(-1, 1)
//@   out by_thread: f32[160] bound
//@   out by_warp: f32[160] bound
//@   val rows: i32 160

extern "C" __global__ void spmv(const unsigned* offsets, const unsigned* columns, const float* values, const float* x, float* by_thread,
                                float* by_warp, int rows) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < rows) {
        float sum = 0.0f;
        for (unsigned k = offsets[i]; k < offsets[i + 1]; ++k) sum += values[k] * __ldg(&x[columns[k]]);
        by_thread[i] = sum;
    }
    int warps = gridDim.x * blockDim.x / 32, lane = threadIdx.x & 31;
    for (int row = i / 32; row < rows; row += warps) {
        float sum = 0.0f;
        for (unsigned k = offsets[row] + lane; k < offsets[row + 1]; k += 32) sum += values[k] * x[columns[k]];
        for (int d = 16; d > 0; d >>= 1) sum += __shfl_down_sync(0xffffffffu, sum, d);
        if (lane == 0) by_warp[row] = sum;
    }
}
