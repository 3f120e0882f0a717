// Reads one element past the end: the guard compares with <= where < was meant.
//@ run oob_read_global: shift grid=2 block=64
//@   in x: f32[100] uniform(-1, 1)
//@   out y: f32[100] raw
//@   val n: i32 100

extern "C" __global__ void shift(const float* x, float* y, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i + 1 <= n) y[i] = x[i + 1];
}
