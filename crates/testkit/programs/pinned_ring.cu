// One pinned buffer for both ways, reused only after its event.
//@ program
//@   stream a
//@   stream b
//@   pinned h 1024
//@   alloc x 1024
//@   alloc y 1024
//@   launch a produce x 256
//@   copy_out a x to h
//@   record a full
//@   wait b full
//@   copy_in b y from h
//@   record b empty
//@   wait a empty
//@   copy_out a x to h
//@   sync

extern "C" __global__ void produce(float* x, int n) {
    for (int i = threadIdx.x; i < n; i += blockDim.x) x[i] = (float)i;
}

extern "C" __global__ void consume(const float* x, float* y, int n) {
    for (int i = threadIdx.x; i < n; i += blockDim.x) y[i] = x[i] * 2.0f;
}
