// Allocated in the order of one stream, used in another that never waited for it.
//@ program
//@   stream a
//@   stream b
//@   alloc_async a x 1024
//@   pause
//@   launch b produce x 256
//@   sync

extern "C" __global__ void produce(float* x, int n) {
    for (int i = threadIdx.x; i < n; i += blockDim.x) x[i] = (float)i;
}

extern "C" __global__ void consume(const float* x, float* y, int n) {
    for (int i = threadIdx.x; i < n; i += blockDim.x) y[i] = x[i] * 2.0f;
}
