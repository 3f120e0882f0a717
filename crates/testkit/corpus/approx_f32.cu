// The hardware's approximate functions, each within its documented bound.
//@ run approx_f32: approx_f32 grid=16 block=256
//@   in x: f32[4096] uniform(-3, 3)
//@   in p: f32[4096] uniform(0.01, 100)
//@   out sine: f32[4096] bound loose
//@   out cosine: f32[4096] bound loose
//@   out power: f32[4096] ulp=4 loose
//@   out logarithm: f32[4096] bound loose
//@   out root: f32[4096] ulp=4 loose
//@   out reciprocal_root: f32[4096] ulp=4 loose
//@   out reciprocal: f32[4096] ulp=2 loose
//@   out quotient: f32[4096] ulp=3 loose
//@   out tangent: f32[4096] bound loose
//@   out exponential: f32[4096] bound loose

extern "C" __global__ void approx_f32(const float* x, const float* p, float* sine, float* cosine, float* power, float* logarithm,
                                      float* root, float* reciprocal_root, float* reciprocal, float* quotient, float* tangent,
                                      float* exponential) {
    int t = blockIdx.x * 256 + threadIdx.x;
    float v = x[t], q = p[t];
    sine[t] = __sinf(v);
    cosine[t] = __cosf(v);
    asm("ex2.approx.f32 %0, %1;" : "=f"(power[t]) : "f"(v));
    asm("lg2.approx.f32 %0, %1;" : "=f"(logarithm[t]) : "f"(q));
    asm("sqrt.approx.f32 %0, %1;" : "=f"(root[t]) : "f"(q));
    reciprocal_root[t] = __frsqrt_rn(q);
    asm("rcp.approx.f32 %0, %1;" : "=f"(reciprocal[t]) : "f"(q));
    quotient[t] = __fdividef(v, q);
    asm("tanh.approx.f32 %0, %1;" : "=f"(tangent[t]) : "f"(v));
    exponential[t] = __expf(v);
}
