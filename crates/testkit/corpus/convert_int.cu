// f32 and f64 to integers in four roundings, saturating at the ends; integers to floats in four roundings; narrowing.
//@ run float_to_int: float_to_int grid=32 block=256
//@   in f: f32[8192] mix
//@   in d: f64[8192] mix
//@   out i: i32[32768] exact
//@   out u: u32[32768] exact
//@   out l: i64[32768] exact
//@   out from_d: i32[16384] exact
//@   out wide_d: u64[16384] exact
//@   out narrow: i16[16384] exact
//@ run int_to_float: int_to_float grid=16 block=256
//@   in i: i32[4096] bits
//@   in l: i64[4096] bits
//@   out f: f32[16384] exact
//@   out g: f32[16384] exact
//@   out d: f64[16384] exact
//@ run f64_to_f32: f64_to_f32 grid=16 block=256
//@   in d: f64[4096] mix
//@   out f: f32[16384] exact
//@   out flushed: f32[4096] exact

extern "C" __global__ void float_to_int(const float* f, const double* d, int* i, unsigned* u, long long* l, int* from_d,
                                        unsigned long long* wide_d, short* narrow) {
    int t = blockIdx.x * 256 + threadIdx.x;
    float v = f[t];
    i[4 * t] = __float2int_rn(v);
    i[4 * t + 1] = __float2int_rz(v);
    i[4 * t + 2] = __float2int_rd(v);
    i[4 * t + 3] = __float2int_ru(v);
    u[4 * t] = __float2uint_rn(v);
    u[4 * t + 1] = __float2uint_rz(v);
    u[4 * t + 2] = __float2uint_rd(v);
    u[4 * t + 3] = __float2uint_ru(v);
    l[4 * t] = __float2ll_rn(v);
    l[4 * t + 1] = __float2ll_rz(v);
    l[4 * t + 2] = __float2ll_rd(v);
    l[4 * t + 3] = (long long)__float2ull_ru(v);
    from_d[2 * t] = __double2int_rn(d[t]);
    from_d[2 * t + 1] = (int)__double2uint_rd(d[t]);
    wide_d[2 * t] = (unsigned long long)__double2ll_rz(d[t]);
    wide_d[2 * t + 1] = __double2ull_ru(d[t]);
    asm("cvt.rni.s16.f32 %0, %1;" : "=h"(narrow[2 * t]) : "f"(v));
    asm("cvt.rzi.u16.f32 %0, %1;" : "=h"(narrow[2 * t + 1]) : "f"(v));
}

extern "C" __global__ void int_to_float(const int* i, const long long* l, float* f, float* g, double* d) {
    int t = blockIdx.x * 256 + threadIdx.x;
    f[4 * t] = __int2float_rn(i[t]);
    f[4 * t + 1] = __int2float_rz(i[t]);
    f[4 * t + 2] = __uint2float_rd((unsigned)i[t]);
    f[4 * t + 3] = __uint2float_ru((unsigned)i[t]);
    g[4 * t] = __ll2float_rn(l[t]);
    g[4 * t + 1] = __ll2float_rd(l[t]);
    g[4 * t + 2] = __ull2float_ru((unsigned long long)l[t]);
    g[4 * t + 3] = __ull2float_rz((unsigned long long)l[t]);
    d[4 * t] = __int2double_rn(i[t]);
    d[4 * t + 1] = __ll2double_rn(l[t]);
    d[4 * t + 2] = __ull2double_rd((unsigned long long)l[t]);
    d[4 * t + 3] = __ll2double_ru(l[t]);
}

extern "C" __global__ void f64_to_f32(const double* d, float* f, float* flushed) {
    int t = blockIdx.x * 256 + threadIdx.x;
    f[4 * t] = __double2float_rn(d[t]);
    f[4 * t + 1] = __double2float_rz(d[t]);
    f[4 * t + 2] = __double2float_rd(d[t]);
    f[4 * t + 3] = __double2float_ru(d[t]);
    asm("cvt.rn.ftz.f32.f64 %0, %1;" : "=f"(flushed[t]) : "d"(d[t]));
}
