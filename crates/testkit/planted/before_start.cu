// A backward difference that forgets the first element.
//@ run before_start: difference grid=1 block=32
//@   in x: f64[32] uniform(-1, 1)
//@   out y: f64[32] raw

extern "C" __global__ void difference(const double* x, double* y) { y[threadIdx.x] = x[threadIdx.x] - x[(int)threadIdx.x - 1]; }
