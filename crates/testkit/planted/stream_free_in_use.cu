// Freed in one stream while another may still be using it.
//@ program
//@   stream a
//@   stream b
//@   alloc_async a x 1024
//@   alloc y 1024
//@   launch a produce x 256
//@   record a ready
//@   wait b ready
//@   launch b consume x y 256
//@   pause
//@   free_async a x
//@   sync

extern "C" __global__ void produce(float* x, int n) {
    for (int i = threadIdx.x; i < n; i += blockDim.x) x[i] = (float)i;
}

extern "C" __global__ void consume(const float* x, float* y, int n) {
    for (int i = threadIdx.x; i < n; i += blockDim.x) y[i] = x[i] * 2.0f;
}
