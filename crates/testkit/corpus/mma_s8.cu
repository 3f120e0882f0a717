// mma.sync on bytes, m16n8k32 and m16n8k16, signed, mixed signs, and saturating: exact.
//@ run mma_s8: mma_s8 grid=1 block=32
//@   in a: i8[512] bits
//@   in b: i8[256] bits
//@   in c: i32[128] int(-1000000, 1000000)
//@   out d: i32[128] exact
//@   out mixed: i32[128] exact
//@   out short_k: i32[128] exact
//@ run mma_s8_saturates: mma_s8_saturates grid=1 block=32
//@   in a: i8[512] bits
//@   in b: i8[256] bits
//@   in c: i32[128] bits
//@   out d: i32[128] exact

__device__ unsigned word(const signed char* p) { return *reinterpret_cast<const unsigned*>(p); }

// a is 16 x 32 row major, b is 32 x 8 column major, c and d are 16 x 8.
extern "C" __global__ void mma_s8(const signed char* a, const signed char* b, const int* c, int* d, int* mixed, int* short_k) {
    int group = threadIdx.x / 4, member = threadIdx.x % 4;
    unsigned a0 = word(a + group * 32 + member * 4), a1 = word(a + (group + 8) * 32 + member * 4);
    unsigned a2 = word(a + group * 32 + member * 4 + 16), a3 = word(a + (group + 8) * 32 + member * 4 + 16);
    unsigned b0 = word(b + group * 32 + member * 4), b1 = word(b + group * 32 + member * 4 + 16);
    int low = group * 8 + member * 2, high = low + 64;
    int r0, r1, r2, r3;
    asm("mma.sync.aligned.m16n8k32.row.col.s32.s8.s8.s32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%10, %11, %12, %13};"
        : "=r"(r0), "=r"(r1), "=r"(r2), "=r"(r3)
        : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "r"(b0), "r"(b1), "r"(c[low]), "r"(c[low + 1]), "r"(c[high]), "r"(c[high + 1]));
    d[low] = r0, d[low + 1] = r1, d[high] = r2, d[high + 1] = r3;
    asm("mma.sync.aligned.m16n8k32.row.col.s32.u8.s8.s32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%10, %11, %12, %13};"
        : "=r"(r0), "=r"(r1), "=r"(r2), "=r"(r3)
        : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "r"(b0), "r"(b1), "r"(c[low]), "r"(c[low + 1]), "r"(c[high]), "r"(c[high + 1]));
    mixed[low] = r0, mixed[low + 1] = r1, mixed[high] = r2, mixed[high + 1] = r3;
    // The first sixteen columns of a and rows of b alone.
    asm("mma.sync.aligned.m16n8k16.row.col.s32.s8.s8.s32 {%0, %1, %2, %3}, {%4, %5}, {%6}, {%7, %7, %7, %7};"
        : "=r"(r0), "=r"(r1), "=r"(r2), "=r"(r3) : "r"(a0), "r"(a1), "r"(b0), "r"(0));
    short_k[low] = r0, short_k[low + 1] = r1, short_k[high] = r2, short_k[high + 1] = r3;
}

extern "C" __global__ void mma_s8_saturates(const signed char* a, const signed char* b, const int* c, int* d) {
    int group = threadIdx.x / 4, member = threadIdx.x % 4;
    unsigned a0 = word(a + group * 32 + member * 4), a1 = word(a + (group + 8) * 32 + member * 4);
    unsigned a2 = word(a + group * 32 + member * 4 + 16), a3 = word(a + (group + 8) * 32 + member * 4 + 16);
    unsigned b0 = word(b + group * 32 + member * 4), b1 = word(b + group * 32 + member * 4 + 16);
    int low = group * 8 + member * 2, high = low + 64;
    int r0, r1, r2, r3;
    asm("mma.sync.aligned.m16n8k32.row.col.satfinite.s32.s8.s8.s32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%10, %11, %12, %13};"
        : "=r"(r0), "=r"(r1), "=r"(r2), "=r"(r3)
        : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "r"(b0), "r"(b1), "r"(c[low]), "r"(c[low + 1]), "r"(c[high]), "r"(c[high + 1]));
    d[low] = r0, d[low + 1] = r1, d[high] = r2, d[high + 1] = r3;
}
