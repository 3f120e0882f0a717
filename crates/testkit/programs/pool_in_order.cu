// Stream-ordered memory handed to another stream and back before it is freed; then reused.
//@ program
//@   stream a
//@   stream b
//@   alloc_async a x 1024
//@   alloc y 1024
//@   launch a produce x 256
//@   record a ready
//@   wait b ready
//@   launch b consume x y 256
//@   record b done
//@   wait a done
//@   free_async a x
//@   alloc_async a z 1024
//@   launch a produce z 256
//@   free_async a z
//@   sync

extern "C" __global__ void produce(float* x, int n) {
    for (int i = threadIdx.x; i < n; i += blockDim.x) x[i] = (float)i;
}

extern "C" __global__ void consume(const float* x, float* y, int n) {
    for (int i = threadIdx.x; i < n; i += blockDim.x) y[i] = x[i] * 2.0f;
}
