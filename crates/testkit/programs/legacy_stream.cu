// The default stream orders itself with blocking streams, both ways.
//@ program
//@   blocking a
//@   blocking b
//@   alloc x 1024
//@   alloc y 1024
//@   launch a produce x 256
//@   launch default consume x y 256
//@   launch b consume y x 256
//@   sync

extern "C" __global__ void produce(float* x, int n) {
    for (int i = threadIdx.x; i < n; i += blockDim.x) x[i] = (float)i;
}

extern "C" __global__ void consume(const float* x, float* y, int n) {
    for (int i = threadIdx.x; i < n; i += blockDim.x) y[i] = x[i] * 2.0f;
}
