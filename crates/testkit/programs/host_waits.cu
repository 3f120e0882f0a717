// The host waits for one stream before it gives work to another.
//@ program
//@   stream a
//@   stream b
//@   alloc x 1024
//@   alloc y 1024
//@   copy_in a x
//@   sync a
//@   launch b consume x y 256
//@   record b e
//@   sync_event e
//@   memset a x
//@   copy_out a y
//@   sync

extern "C" __global__ void produce(float* x, int n) {
    for (int i = threadIdx.x; i < n; i += blockDim.x) x[i] = (float)i;
}

extern "C" __global__ void consume(const float* x, float* y, int n) {
    for (int i = threadIdx.x; i < n; i += blockDim.x) y[i] = x[i] * 2.0f;
}
