// Arithmetic on pairs of f16 and bf16: sums, products, fused, relu, extrema with and without NaN, comparisons.
//@ run f16_pairs: f16_pairs grid=16 block=128
//@   in a: f16[4096] mix
//@   in b: f16[4096] mix
//@   in c: f16[4096] mix
//@   out sum: f16[4096] exact
//@   out difference: f16[4096] exact
//@   out product: f16[4096] exact
//@   out fused: f16[4096] exact
//@   out relu: f16[4096] exact
//@   out low: f16[4096] exact
//@   out nan_high: f16[4096] exact
//@   out saturated: f16[4096] exact
//@   out less: u32[2048] exact
//@ run bf16_pairs: bf16_pairs grid=16 block=128
//@   in a: bf16[4096] mix
//@   in b: bf16[4096] mix
//@   in c: bf16[4096] mix
//@   out fused: bf16[4096] exact
//@   out relu: bf16[4096] exact
//@   out high: bf16[4096] exact
//@   out nan_low: bf16[4096] exact
//@   out negated: bf16[4096] exact
#include <cuda_bf16.h>
#include <cuda_fp16.h>

extern "C" __global__ void f16_pairs(const __half2* a, const __half2* b, const __half2* c, __half2* sum, __half2* difference,
                                     __half2* product, __half2* fused, __half2* relu, __half2* low, __half2* nan_high,
                                     __half2* saturated, unsigned* less) {
    int t = blockIdx.x * 128 + threadIdx.x;
    __half2 x = a[t], y = b[t], z = c[t];
    sum[t] = __hadd2_rn(x, y);
    difference[t] = __hsub2_rn(x, y);
    product[t] = __hmul2_rn(x, y);
    fused[t] = __hfma2(x, y, z);
    relu[t] = __hfma2_relu(x, y, z);
    low[t] = __hmin2(x, y);
    nan_high[t] = __hmax2_nan(x, y);
    saturated[t] = __hadd2_sat(x, y);
    less[t] = __hlt2_mask(x, y) ^ (__hgeu2_mask(x, z) & 0x0f0f0f0fu);
}

extern "C" __global__ void bf16_pairs(const __nv_bfloat162* a, const __nv_bfloat162* b, const __nv_bfloat162* c, __nv_bfloat162* fused,
                                      __nv_bfloat162* relu, __nv_bfloat162* high, __nv_bfloat162* nan_low, __nv_bfloat162* negated) {
    int t = blockIdx.x * 128 + threadIdx.x;
    __nv_bfloat162 x = a[t], y = b[t], z = c[t];
    fused[t] = __hfma2(x, y, z);
    relu[t] = __hfma2_relu(x, y, z);
    high[t] = __hmax2(x, y);
    nan_low[t] = __hmin2_nan(x, y);
    negated[t] = __hneg2(__habs2(x));
}
