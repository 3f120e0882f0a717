// A backward difference that forgets the first element.
//@ run before_start: difference grid=1 block=32
//@   out y: f64[32] raw
//@   in x: f64[32] uniform(-1, 1)

extern "C" __global__ void difference(double* y, const double* x) { y[threadIdx.x] = x[threadIdx.x] - x[(int)threadIdx.x - 1]; }
