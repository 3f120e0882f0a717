// Threads without work return before the barrier that the rest wait at.
//@ run barrier_early_exit: guarded grid=1 block=64
//@   in x: f32[50] uniform(-1, 1)
//@   out y: f32[50] raw
//@   val n: i32 50

extern "C" __global__ void guarded(const float* x, float* y, int n) {
    __shared__ float s[64];
    int t = threadIdx.x;
    if (t >= n) return;
    s[t] = x[t];
    __syncthreads();
    y[t] = s[n - 1 - t];
}
