// Integer products and quotients: high halves, wide, 24-bit, multiply-add, 64-bit division and remainder, sums of differences.
//@ run int_products: int_products grid=8 block=256
//@   in a: u32[2048] mix
//@   in b: u32[2048] mix
//@   in p: u64[2048] mix
//@   in q: u64[2048] mix
//@   out r: u32[20480] exact
//@   out w: u64[14336] exact
//@ run int_quotients: int_quotients grid=8 block=256
//@   in a: u32[2048] mix
//@   in b: u32[2048] mix
//@   in p: u64[2048] mix
//@   in q: u64[2048] mix
//@   out r: u32[8192] exact
//@   out w: u64[8192] exact

extern "C" __global__ void int_products(const unsigned* a, const unsigned* b, const unsigned long long* p, const unsigned long long* q,
                                        unsigned* r, unsigned long long* w) {
    int t = blockIdx.x * 256 + threadIdx.x;
    unsigned x = a[t], y = b[t];
    unsigned long long u = p[t], v = q[t];
    unsigned* o = r + 10 * t;
    o[0] = x * y;
    o[1] = __umulhi(x, y);
    o[2] = (unsigned)__mulhi((int)x, (int)y);
    o[3] = __umul24(x, y);
    o[4] = (unsigned)__mul24((int)x, (int)y);
    asm("mad.hi.s32 %0, %1, %2, %3;" : "=r"(o[5]) : "r"(x), "r"(y), "r"(7u));
    asm("mad24.lo.u32 %0, %1, %2, %3;" : "=r"(o[6]) : "r"(x), "r"(y), "r"(x));
    o[7] = __usad(x, y, 5u);
    o[8] = __sad((int)x, (int)y, x);
    o[9] = (unsigned)__dp4a((int)x, (int)y, (int)x) ^ __dp2a_lo(x, y, 3u) ^ (__dp4a(x, y, 1u) << 1);
    unsigned long long* z = w + 7 * t;
    z[0] = u * v;
    z[1] = __umul64hi(u, v);
    z[2] = (unsigned long long)__mul64hi((long long)u, (long long)v);
    asm("mad.wide.u32 %0, %1, %2, %3;" : "=l"(z[3]) : "r"(x), "r"(y), "l"(u));
    asm("mad.wide.s32 %0, %1, %2, %3;" : "=l"(z[4]) : "r"(x), "r"(y), "l"(v));
    unsigned narrow;
    asm("mul.wide.s16 %0, %1, %2;" : "=r"(narrow) : "h"((short)x), "h"((short)y));
    o[3] ^= narrow;
    z[5] = u * v + x;
    z[6] = (unsigned long long)((long long)(int)x * (long long)(int)y);
}

extern "C" __global__ void int_quotients(const unsigned* a, const unsigned* b, const unsigned long long* p, const unsigned long long* q,
                                         unsigned* r, unsigned long long* w) {
    int t = blockIdx.x * 256 + threadIdx.x;
    // No divisor is zero, and the most negative number is never divided by minus one.
    unsigned x = a[t], y = b[t] | 1u;
    unsigned long long u = p[t], v = q[t] | 1ull;
    int sy = (int)y == -1 ? 3 : (int)y;
    long long sv = (long long)v == -1 ? 5 : (long long)v;
    r[4 * t] = x / y;
    r[4 * t + 1] = x % y;
    r[4 * t + 2] = (unsigned)((int)x / sy);
    r[4 * t + 3] = (unsigned)((int)x % sy);
    w[4 * t] = u / v;
    w[4 * t + 1] = u % v;
    w[4 * t + 2] = (unsigned long long)((long long)u / sv);
    w[4 * t + 3] = (unsigned long long)((long long)u % sv);
}
