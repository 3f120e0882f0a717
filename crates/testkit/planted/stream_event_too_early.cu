// The event is recorded before the work it should stand behind.
//@ program
//@   stream a
//@   stream b
//@   alloc x 1024
//@   alloc y 1024
//@   record a e
//@   launch a produce x 256
//@   pause
//@   wait b e
//@   launch b consume x y 256
//@   sync

extern "C" __global__ void produce(float* x, int n) {
    for (int i = threadIdx.x; i < n; i += blockDim.x) x[i] = (float)i;
}

extern "C" __global__ void consume(const float* x, float* y, int n) {
    for (int i = threadIdx.x; i < n; i += blockDim.x) y[i] = x[i] * 2.0f;
}
