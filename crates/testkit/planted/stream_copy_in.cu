// Uploaded in one stream, used in another at once.
//@ program
//@   stream a
//@   stream b
//@   alloc x 1024
//@   alloc y 1024
//@   copy_in a x
//@   pause
//@   launch b consume x y 256
//@   sync

extern "C" __global__ void produce(float* x, int n) {
    for (int i = threadIdx.x; i < n; i += blockDim.x) x[i] = (float)i;
}

extern "C" __global__ void consume(const float* x, float* y, int n) {
    for (int i = threadIdx.x; i < n; i += blockDim.x) y[i] = x[i] * 2.0f;
}
