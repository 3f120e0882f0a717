// A captured fork and join, launched twice, and a reader that waits.
//@ program
//@   stream a
//@   stream b
//@   alloc x 1024
//@   alloc y 1024
//@   alloc z 1024
//@   capture a
//@   launch a produce x 256
//@   record a forked
//@   wait b forked
//@   launch b consume x y 256
//@   launch a consume x z 256
//@   record b joined
//@   wait a joined
//@   memset a x
//@   end_capture a g
//@   launch_graph a g
//@   launch_graph a g
//@   record a e
//@   wait b e
//@   copy_out b y
//@   copy b z y
//@   sync

extern "C" __global__ void produce(float* x, int n) {
    for (int i = threadIdx.x; i < n; i += blockDim.x) x[i] = (float)i;
}

extern "C" __global__ void consume(const float* x, float* y, int n) {
    for (int i = threadIdx.x; i < n; i += blockDim.x) y[i] = x[i] * 2.0f;
}
