// Downloaded in one stream while another still writes it.
//@ program
//@   stream a
//@   stream b
//@   alloc x 1024
//@   launch a produce x 256
//@   pause
//@   copy_out b x
//@   sync

extern "C" __global__ void produce(float* x, int n) {
    for (int i = threadIdx.x; i < n; i += blockDim.x) x[i] = (float)i;
}

extern "C" __global__ void consume(const float* x, float* y, int n) {
    for (int i = threadIdx.x; i < n; i += blockDim.x) y[i] = x[i] * 2.0f;
}
