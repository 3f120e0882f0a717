// An event between two streams.
//@ program
//@   stream a
//@   stream b
//@   alloc x 1024
//@   alloc y 1024
//@   launch a produce x 256
//@   record a e
//@   wait b e
//@   launch b consume x y 256
//@   copy_out b y
//@   sync
//@   free x
//@   free y

extern "C" __global__ void produce(float* x, int n) {
    for (int i = threadIdx.x; i < n; i += blockDim.x) x[i] = (float)i;
}

extern "C" __global__ void consume(const float* x, float* y, int n) {
    for (int i = threadIdx.x; i < n; i += blockDim.x) y[i] = x[i] * 2.0f;
}
