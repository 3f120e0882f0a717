// Wide integers by carry chains: 128-bit sums, products and quotients of the compiler, and 256-bit sums written out.
//@ options: --device-int128
//@ run int128: int128 grid=4 block=128
//@   in a: u64[1024] mix
//@   in b: u64[1024] mix
//@   out sum: u64[1024] exact
//@   out product: u64[1024] exact
//@   out quotient: u64[1024] exact
//@   out shifted: u64[1024] exact
//@ run int256: int256 grid=2 block=64
//@   in a: u32[1024] bits
//@   in b: u32[1024] bits
//@   out sum: u32[1024] exact
//@   out difference: u32[1024] exact
//@   out column: u32[512] exact

extern "C" __global__ void int128(const unsigned long long* a, const unsigned long long* b, unsigned long long* sum,
                                  unsigned long long* product, unsigned long long* quotient, unsigned long long* shifted) {
    int t = blockIdx.x * 128 + threadIdx.x;
    auto join = [](const unsigned long long* p) { return (unsigned __int128)p[1] << 64 | p[0]; };
    auto part = [](unsigned long long* p, unsigned __int128 v) {
        p[0] = (unsigned long long)v;
        p[1] = (unsigned long long)(v >> 64);
    };
    unsigned __int128 x = join(a + 2 * t), y = join(b + 2 * t);
    part(sum + 2 * t, x + y - 3);
    part(product + 2 * t, x * y);
    part(quotient + 2 * t, x / ((y >> (t & 63)) | 1));
    part(shifted + 2 * t, (unsigned __int128)((__int128)x >> (t & 127)) ^ (y << (t & 127)));
}

extern "C" __global__ void int256(const unsigned* a, const unsigned* b, unsigned* sum, unsigned* difference, unsigned* column) {
    int t = blockIdx.x * 64 + threadIdx.x;
    const unsigned *x = a + 8 * t, *y = b + 8 * t;
    unsigned* s = sum + 8 * t;
    asm("add.cc.u32 %0, %8, %16; addc.cc.u32 %1, %9, %17; addc.cc.u32 %2, %10, %18; addc.cc.u32 %3, %11, %19;"
        "addc.cc.u32 %4, %12, %20; addc.cc.u32 %5, %13, %21; addc.cc.u32 %6, %14, %22; addc.u32 %7, %15, %23;"
        : "=&r"(s[0]), "=&r"(s[1]), "=&r"(s[2]), "=&r"(s[3]), "=&r"(s[4]), "=&r"(s[5]), "=&r"(s[6]), "=&r"(s[7])
        : "r"(x[0]), "r"(x[1]), "r"(x[2]), "r"(x[3]), "r"(x[4]), "r"(x[5]), "r"(x[6]), "r"(x[7]),
          "r"(y[0]), "r"(y[1]), "r"(y[2]), "r"(y[3]), "r"(y[4]), "r"(y[5]), "r"(y[6]), "r"(y[7]));
    unsigned* d = difference + 8 * t;
    asm("sub.cc.u32 %0, %8, %16; subc.cc.u32 %1, %9, %17; subc.cc.u32 %2, %10, %18; subc.cc.u32 %3, %11, %19;"
        "subc.cc.u32 %4, %12, %20; subc.cc.u32 %5, %13, %21; subc.cc.u32 %6, %14, %22; subc.u32 %7, %15, %23;"
        : "=&r"(d[0]), "=&r"(d[1]), "=&r"(d[2]), "=&r"(d[3]), "=&r"(d[4]), "=&r"(d[5]), "=&r"(d[6]), "=&r"(d[7])
        : "r"(x[0]), "r"(x[1]), "r"(x[2]), "r"(x[3]), "r"(x[4]), "r"(x[5]), "r"(x[6]), "r"(x[7]),
          "r"(y[0]), "r"(y[1]), "r"(y[2]), "r"(y[3]), "r"(y[4]), "r"(y[5]), "r"(y[6]), "r"(y[7]));
    // One 64 x 64 product to 128 bits by 32-bit multiply-adds with carry.
    unsigned* c = column + 4 * t;
    asm("{ .reg .u32 l0, l1, l2, l3;"
        "mul.lo.u32 l0, %4, %6; mul.hi.u32 l1, %4, %6;"
        "mad.lo.cc.u32 l1, %4, %7, l1; madc.hi.u32 l2, %4, %7, 0;"
        "mad.lo.cc.u32 l1, %5, %6, l1; madc.hi.cc.u32 l2, %5, %6, l2; addc.u32 l3, 0, 0;"
        "mad.lo.cc.u32 l2, %5, %7, l2; madc.hi.u32 l3, %5, %7, l3;"
        "mov.u32 %0, l0; mov.u32 %1, l1; mov.u32 %2, l2; mov.u32 %3, l3; }"
        : "=r"(c[0]), "=r"(c[1]), "=r"(c[2]), "=r"(c[3]) : "r"(x[0]), "r"(x[1]), "r"(y[0]), "r"(y[1]));
}
