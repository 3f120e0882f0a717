// The mathematical library in f64: long chains of fused operations, table look-ups, slow paths.
//@ run math_f64: math_f64 grid=2 block=128
//@   in x: f64[256] uniform(-30, 30)
//@   in p: f64[256] uniform(0.001, 1000)
//@   out sine: f64[256] ulp=3 loose
//@   out exponential: f64[256] ulp=3 loose
//@   out logarithm: f64[256] ulp=3 loose
//@   out power: f64[256] ulp=4 loose
//@   out reciprocal_root: f64[256] ulp=2 loose
//@   out tanh_: f64[256] ulp=4 loose
//@   out cube_root: f64[256] ulp=2 loose
//@   out arc: f64[256] ulp=4 loose

extern "C" __global__ void math_f64(const double* x, const double* p, double* sine, double* exponential, double* logarithm, double* power,
                                    double* reciprocal_root, double* tanh_, double* cube_root, double* arc) {
    int t = blockIdx.x * 128 + threadIdx.x;
    double v = x[t], q = p[t];
    sine[t] = sin(t == 0 ? 1e9 : v);
    exponential[t] = exp(v);
    logarithm[t] = log(q);
    power[t] = pow(q, v * 0.25);
    reciprocal_root[t] = rsqrt(q);
    tanh_[t] = tanh(v * 0.1);
    cube_root[t] = cbrt(q);
    arc[t] = atan2(v, q);
}
