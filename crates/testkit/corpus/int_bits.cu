// Bits: counting, finding, reversing, permuting bytes, funnel shifts, fields in and out, three-input logic, shifts past the width.
//@ run int_bits: int_bits grid=8 block=256
//@   in a: u32[2048] mix
//@   in b: u32[2048] mix
//@   in p: u64[2048] mix
//@   out r: u32[51200] exact
//@   out w: u64[12288] exact

extern "C" __global__ void int_bits(const unsigned* a, const unsigned* b, const unsigned long long* p, unsigned* r, unsigned long long* w) {
    int t = blockIdx.x * 256 + threadIdx.x;
    unsigned x = a[t], y = b[t];
    unsigned long long u = p[t];
    unsigned* o = r + 25 * t;
    o[0] = __popc(x);
    o[1] = __clz((int)x);
    o[2] = __ffs((int)x);
    o[3] = __brev(x);
    o[4] = __byte_perm(x, y, y >> 7);
    o[5] = __funnelshift_l(x, y, y);
    o[6] = __funnelshift_r(x, y, y);
    o[7] = __funnelshift_lc(x, y, y & 63u);
    o[8] = __funnelshift_rc(x, y, y & 63u);
    asm("bfe.u32 %0, %1, %2, %3;" : "=r"(o[9]) : "r"(x), "r"(y & 63u), "r"((y >> 8) & 63u));
    asm("bfe.s32 %0, %1, %2, %3;" : "=r"(o[10]) : "r"(x), "r"(y & 63u), "r"((y >> 8) & 63u));
    asm("bfi.b32 %0, %1, %2, %3, %4;" : "=r"(o[11]) : "r"(x), "r"(y), "r"((y >> 4) & 63u), "r"((y >> 12) & 63u));
    asm("lop3.b32 %0, %1, %2, %3, 0x96;" : "=r"(o[12]) : "r"(x), "r"(y), "r"((unsigned)u));
    asm("lop3.b32 %0, %1, %2, %3, 0xe8;" : "=r"(o[13]) : "r"(x), "r"(y), "r"((unsigned)u));
    asm("shl.b32 %0, %1, %2;" : "=r"(o[14]) : "r"(x), "r"(y & 127u));
    asm("shr.u32 %0, %1, %2;" : "=r"(o[15]) : "r"(x), "r"(y & 127u));
    asm("shr.s32 %0, %1, %2;" : "=r"(o[16]) : "r"(x), "r"(y & 127u));
    asm("bfind.u32 %0, %1;" : "=r"(o[17]) : "r"(x));
    asm("bfind.shiftamt.s32 %0, %1;" : "=r"(o[18]) : "r"(x));
    asm("prmt.b32.f4e %0, %1, %2, %3;" : "=r"(o[19]) : "r"(x), "r"(y), "r"(t & 3));
    asm("prmt.b32.rc16 %0, %1, %2, %3;" : "=r"(o[20]) : "r"(x), "r"(y), "r"(t & 3));
    o[21] = __vadd4(x, y);
    o[22] = __vmaxu2(x, y);
    o[23] = __vcmpgtu4(x, y);
    asm("{ .reg .s32 n; neg.s32 n, %1; abs.s32 %0, n; cnot.b32 n, %1; xor.b32 %0, %0, n; }" : "=r"(o[24]) : "r"(x));
    unsigned long long* z = w + 6 * t;
    z[0] = (unsigned long long)__popcll(u) | (unsigned long long)__clzll((long long)u) << 8 | (unsigned long long)__ffsll((long long)u) << 16;
    z[1] = __brevll(u);
    asm("bfe.s64 %0, %1, %2, %3;" : "=l"(z[2]) : "l"(u), "r"(y & 127u), "r"((y >> 8) & 127u));
    asm("bfi.b64 %0, %1, %2, %3, %4;" : "=l"(z[3]) : "l"((unsigned long long)x), "l"(u), "r"(y & 63u), "r"((y >> 12) & 63u));
    asm("shr.s64 %0, %1, %2;" : "=l"(z[4]) : "l"(u), "r"(y & 127u));
    asm("shl.b64 %0, %1, %2;" : "=l"(z[5]) : "l"(u), "r"(y & 127u));
}
