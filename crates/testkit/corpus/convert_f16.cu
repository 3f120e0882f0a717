// f16 to everything for all 65536 inputs, and f32 and f64 to f16 in each rounding.
//@ run f16_to_all: f16_to_all grid=256 block=256
//@   out f: f32[65536] exact
//@   out d: f64[65536] exact
//@   out i: i32[65536] exact
//@   out u: u32[65536] exact
//@   out s: i16[65536] exact
//@   out l: i64[65536] exact
//@   out whole: f16[65536] exact
//@ run all_to_f16: all_to_f16 grid=64 block=256
//@   in f: f32[16384] mix
//@   in d: f64[16384] mix
//@   in i: i32[16384] bits
//@   out near: f16[16384] exact
//@   out zero: f16[16384] exact
//@   out down: f16[16384] exact
//@   out up: f16[16384] exact
//@   out from_f64: f16[16384] exact
//@   out from_i32: f16[16384] exact
//@   out from_u16: f16[16384] exact
#include <cuda_fp16.h>

extern "C" __global__ void f16_to_all(float* f, double* d, int* i, unsigned* u, short* s, long long* l, __half* whole) {
    unsigned t = blockIdx.x * 256 + threadIdx.x;
    __half h = __ushort_as_half((unsigned short)t);
    f[t] = __half2float(h);
    asm("cvt.f64.f16 %0, %1;" : "=d"(d[t]) : "h"((unsigned short)t));
    i[t] = __half2int_rz(h);
    u[t] = __half2uint_rn(h);
    s[t] = __half2short_rd(h);
    l[t] = __half2ll_ru(h);
    whole[t] = hrint(h);
}

extern "C" __global__ void all_to_f16(const float* f, const double* d, const int* i, __half* near, __half* zero, __half* down, __half* up,
                                      __half* from_f64, __half* from_i32, __half* from_u16) {
    unsigned t = blockIdx.x * 256 + threadIdx.x;
    near[t] = __float2half_rn(f[t]);
    zero[t] = __float2half_rz(f[t]);
    down[t] = __float2half_rd(f[t]);
    up[t] = __float2half_ru(f[t]);
    unsigned short bits;
    asm("cvt.rn.f16.f64 %0, %1;" : "=h"(bits) : "d"(d[t]));
    from_f64[t] = __ushort_as_half(bits);
    from_i32[t] = __int2half_rn(i[t]);
    from_u16[t] = __ushort2half_rn((unsigned short)(t * 5u));
}
