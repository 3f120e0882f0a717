// The mathematical library in f32, as the compiler inlines it: within a few units in the last place of the true value.
//@ run math_f32: math_f32 grid=8 block=256
//@   in x: f32[2048] uniform(-40, 40)
//@   in p: f32[2048] uniform(0.001, 50)
//@   in u: f32[2048] uniform(-0.999, 0.999)
//@   out sine: f32[2048] ulp=4 loose
//@   out cosine: f32[2048] ulp=4 loose
//@   out tangent: f32[2048] ulp=8 loose
//@   out exponential: f32[2048] ulp=4 loose
//@   out logarithm: f32[2048] ulp=4 loose
//@   out power: f32[2048] ulp=8 loose
//@   out tanh_: f32[2048] ulp=4 loose
//@   out error: f32[2048] ulp=4 loose
//@   out arc: f32[2048] ulp=6 loose
//@   out cube_root: f32[2048] ulp=4 loose
//@   out remainder: f32[2048] exact
//@   out length: f32[2048] ulp=4 loose
//@   out scaled: f32[2048] exact

extern "C" __global__ void math_f32(const float* x, const float* p, const float* u, float* sine, float* cosine, float* tangent,
                                    float* exponential, float* logarithm, float* power, float* tanh_, float* error, float* arc,
                                    float* cube_root, float* remainder, float* length, float* scaled) {
    int t = blockIdx.x * 256 + threadIdx.x;
    float v = x[t], q = p[t], w = u[t];
    // The first is so large that the reduction of its argument takes the long way.
    float big = t == 0 ? 123456.789f : v;
    sine[t] = sinf(big);
    cosine[t] = cosf(big);
    tangent[t] = tanf(v);
    exponential[t] = expf(v);
    logarithm[t] = logf(q);
    power[t] = powf(q, w * 8.0f);
    tanh_[t] = tanhf(v * 0.1f);
    error[t] = erff(w * 3.0f);
    arc[t] = atan2f(v, q);
    cube_root[t] = cbrtf(v);
    remainder[t] = fmodf(v, q);
    length[t] = hypotf(v, q);
    int e;
    float m = frexpf(v, &e);
    scaled[t] = ldexpf(m, e + 3);
}
