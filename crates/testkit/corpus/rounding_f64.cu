// f64 arithmetic in all four roundings, division and roots correctly rounded, comparisons, whole numbers.
//@ run rounding_f64: rounding_f64 grid=8 block=256
//@   in a: f64[2048] mix
//@   in b: f64[2048] mix
//@   in c: f64[2048] mix
//@   out sum: f64[8192] exact
//@   out product: f64[8192] exact
//@   out fused: f64[8192] exact
//@   out quotient: f64[8192] exact
//@   out root: f64[8192] exact
//@   out whole: f64[8192] exact
//@   out ends: f64[4096] exact

extern "C" __global__ void rounding_f64(const double* a, const double* b, const double* c, double* sum, double* product, double* fused,
                                        double* quotient, double* root, double* whole, double* ends) {
    int t = blockIdx.x * 256 + threadIdx.x, o = 4 * t;
    double x = a[t], y = b[t], z = c[t];
    sum[o] = __dadd_rn(x, y), sum[o + 1] = __dadd_rz(x, y), sum[o + 2] = __dadd_rd(x, y), sum[o + 3] = __dsub_ru(x, y);
    product[o] = __dmul_rn(x, y), product[o + 1] = __dmul_rz(x, y), product[o + 2] = __dmul_rd(x, y), product[o + 3] = __dmul_ru(x, y);
    fused[o] = __fma_rn(x, y, z), fused[o + 1] = __fma_rz(x, y, z), fused[o + 2] = __fma_rd(x, y, z), fused[o + 3] = __fma_ru(x, y, z);
    quotient[o] = __ddiv_rn(x, y), quotient[o + 1] = __ddiv_rz(x, y), quotient[o + 2] = __ddiv_rd(x, y), quotient[o + 3] = __drcp_ru(y);
    double p = fabs(x);
    root[o] = __dsqrt_rn(p), root[o + 1] = __dsqrt_rz(p), root[o + 2] = __dsqrt_rd(p), root[o + 3] = __dsqrt_ru(p);
    whole[o] = floor(x), whole[o + 1] = ceil(x), whole[o + 2] = trunc(x), whole[o + 3] = rint(x);
    ends[2 * t] = fmin(x, y), ends[2 * t + 1] = fmax(x, y);
}
