// e4m3 and e5m2: every input to f16 and f32, every f16 and many f32 back, saturating.
//@ run fp8_to_all: fp8_to_all grid=1 block=256
//@   out f4: f32[256] exact
//@   out f5: f32[256] exact
//@   out h4: f16[256] exact
//@   out h5: f16[256] exact
//@ run f16_to_fp8: f16_to_fp8 grid=256 block=256
//@   out e4: f8e4m3[65536] exact
//@   out e5: f8e5m2[65536] exact
//@ run f32_to_fp8: f32_to_fp8 grid=64 block=256
//@   in f: f32[16384] mix
//@   out e4: f8e4m3[16384] exact
//@   out e5: f8e5m2[16384] exact
//@   out pair4: f8e4m3[16384] exact
#include <cuda_fp16.h>
#include <cuda_fp8.h>

extern "C" __global__ void fp8_to_all(float* f4, float* f5, __half* h4, __half* h5) {
    __nv_fp8_storage_t b = (__nv_fp8_storage_t)threadIdx.x;
    __nv_fp8_e4m3 e4;
    e4.__x = b;
    __nv_fp8_e5m2 e5;
    e5.__x = b;
    f4[threadIdx.x] = float(e4);
    f5[threadIdx.x] = float(e5);
    h4[threadIdx.x] = __half(__nv_cvt_fp8_to_halfraw(b, __NV_E4M3));
    h5[threadIdx.x] = __half(__nv_cvt_fp8_to_halfraw(b, __NV_E5M2));
}

extern "C" __global__ void f16_to_fp8(unsigned char* e4, unsigned char* e5) {
    unsigned t = blockIdx.x * 256 + threadIdx.x;
    __half_raw h;
    h.x = (unsigned short)t;
    e4[t] = __nv_cvt_halfraw_to_fp8(h, __NV_SATFINITE, __NV_E4M3);
    e5[t] = __nv_cvt_halfraw_to_fp8(h, __NV_SATFINITE, __NV_E5M2);
}

extern "C" __global__ void f32_to_fp8(const float* f, unsigned char* e4, unsigned char* e5, unsigned short* pair4) {
    unsigned t = blockIdx.x * 256 + threadIdx.x;
    e4[t] = __nv_cvt_float_to_fp8(f[t], __NV_SATFINITE, __NV_E4M3);
    e5[t] = __nv_cvt_float_to_fp8(f[t], __NV_SATFINITE, __NV_E5M2);
    if (t < 8192) pair4[t] = __nv_cvt_float2_to_fp8x2(make_float2(f[2 * t], f[2 * t + 1]), __NV_SATFINITE, __NV_E4M3);
}
