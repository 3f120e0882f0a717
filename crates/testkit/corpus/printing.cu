// Device printf: every conversion the ABI can carry, and a string from the module.
//@ run printing: printing grid=1 block=2
//@   in x: f64[2] iota
//@   out done: u32[2] exact
//@   prints "thread 0 of 2: -7 0xbeef 18446744073709551615 0.500 1.5e+00 c text 100%"
//@   prints "thread 1 of 2: -7 0xbeef 18446744073709551615 1.500 1.5e+00 c text 100%"
#include <cuda_fp16.h>
extern "C" __device__ int printf(const char*, ...);

extern "C" __global__ void printing(const double* x, unsigned* done) {
    printf("thread %u of %d: %d 0x%x %llu %.3f %.1e %c %s %d%%\n", threadIdx.x, (int)blockDim.x, -7, 0xbeefu, ~0ull,
           x[threadIdx.x] + 0.5, 1.5f, 'c', "text", 100);
    done[threadIdx.x] = 1;
}
