// f32 arithmetic in all four roundings, division and roots correctly rounded, subnormals kept, flushed and saturated.
//@ run rounding_f32: rounding_f32 grid=16 block=256
//@   in a: f32[4096] mix
//@   in b: f32[4096] mix
//@   in c: f32[4096] mix
//@   out sum: f32[16384] exact
//@   out product: f32[16384] exact
//@   out fused: f32[16384] exact
//@   out quotient: f32[16384] exact
//@   out root: f32[16384] exact
//@   out reciprocal: f32[16384] exact
//@ run special_f32: special_f32 grid=16 block=256
//@   in a: f32[4096] mix
//@   in b: f32[4096] mix
//@   out low: f32[4096] exact
//@   out high: f32[4096] exact
//@   out nan_high: f32[4096] exact
//@   out flushed: f32[12288] exact
//@   out clamped: f32[8192] exact
//@   out signs: f32[12288] exact
//@   out whole: f32[16384] exact
//@   out compare: u32[4096] exact

extern "C" __global__ void rounding_f32(const float* a, const float* b, const float* c, float* sum, float* product, float* fused,
                                        float* quotient, float* root, float* reciprocal) {
    int t = blockIdx.x * 256 + threadIdx.x, o = 4 * t;
    float x = a[t], y = b[t], z = c[t];
    sum[o] = __fadd_rn(x, y), sum[o + 1] = __fadd_rz(x, y), sum[o + 2] = __fadd_rd(x, y), sum[o + 3] = __fsub_ru(x, y);
    product[o] = __fmul_rn(x, y), product[o + 1] = __fmul_rz(x, y), product[o + 2] = __fmul_rd(x, y), product[o + 3] = __fmul_ru(x, y);
    fused[o] = __fmaf_rn(x, y, z), fused[o + 1] = __fmaf_rz(x, y, z), fused[o + 2] = __fmaf_rd(x, y, z), fused[o + 3] = __fmaf_ru(x, y, z);
    quotient[o] = __fdiv_rn(x, y), quotient[o + 1] = __fdiv_rz(x, y), quotient[o + 2] = __fdiv_rd(x, y), quotient[o + 3] = __fdiv_ru(x, y);
    float p = fabsf(x);
    root[o] = __fsqrt_rn(p), root[o + 1] = __fsqrt_rz(p), root[o + 2] = __fsqrt_rd(p), root[o + 3] = __fsqrt_ru(p);
    reciprocal[o] = __frcp_rn(x), reciprocal[o + 1] = __frcp_rz(x), reciprocal[o + 2] = __frcp_rd(x), reciprocal[o + 3] = __frcp_ru(x);
}

extern "C" __global__ void special_f32(const float* a, const float* b, float* low, float* high, float* nan_high, float* flushed,
                                       float* clamped, float* signs, float* whole, unsigned* compare) {
    int t = blockIdx.x * 256 + threadIdx.x;
    float x = a[t], y = b[t];
    asm("min.f32 %0, %1, %2;" : "=f"(low[t]) : "f"(x), "f"(y));
    asm("max.f32 %0, %1, %2;" : "=f"(high[t]) : "f"(x), "f"(y));
    asm("max.NaN.f32 %0, %1, %2;" : "=f"(nan_high[t]) : "f"(x), "f"(y));
    asm("add.ftz.f32 %0, %1, %2;" : "=f"(flushed[3 * t]) : "f"(x), "f"(y));
    asm("mul.rn.ftz.f32 %0, %1, %2;" : "=f"(flushed[3 * t + 1]) : "f"(x), "f"(y));
    asm("fma.rz.ftz.f32 %0, %1, %2, %1;" : "=f"(flushed[3 * t + 2]) : "f"(x), "f"(y));
    asm("add.rn.sat.f32 %0, %1, %2;" : "=f"(clamped[2 * t]) : "f"(x), "f"(y));
    clamped[2 * t + 1] = __saturatef(y);
    signs[3 * t] = fabsf(x);
    signs[3 * t + 1] = -y;
    signs[3 * t + 2] = copysignf(x, y);
    whole[4 * t] = floorf(x), whole[4 * t + 1] = ceilf(x), whole[4 * t + 2] = truncf(x), whole[4 * t + 3] = rintf(x);
    unsigned m = 0;
    m |= (x < y) << 0 | (x <= y) << 1 | (x > y) << 2 | (x >= y) << 3 | (x == y) << 4 | (x != y) << 5;
    m |= (!(x < y)) << 6 | (!(x >= y)) << 7 | isnan(x) << 8 | isinf(y) << 9 | isfinite(x) << 10 | signbit(y) << 11;
    unsigned unordered, ordered;
    asm("{ .reg .pred p; setp.nan.f32 p, %1, %2; selp.u32 %0, 1, 0, p; }" : "=r"(unordered) : "f"(x), "f"(y));
    asm("{ .reg .pred p, q; setp.ltu.and.f32 p|q, %1, %2, 1; selp.u32 %0, 1, 2, p; @q add.u32 %0, %0, 4; }" : "=r"(ordered) : "f"(x), "f"(y));
    compare[t] = m | unordered << 12 | ordered << 13;
}
