// The field of 256 elements (polynomial 0x11d): products by shifting, by tables, powers and inverses, every pair.
//@ run gf_products: gf_products grid=256 block=256
//@   out shifted: u8[65536] exact
//@   out tabled: u8[65536] exact
//@ run gf_powers: gf_powers grid=1 block=256
//@   out inverse: u8[256] exact
//@   out cube: u8[256] exact

__device__ unsigned gf_times(unsigned a, unsigned b) {
    unsigned r = 0;
    for (int i = 0; i < 8; ++i) {
        r ^= (0u - (b & 1u)) & a;
        b >>= 1;
        a = (a << 1) ^ ((a & 0x80u) ? 0x11du : 0u);
    }
    return r;
}

extern "C" __global__ void gf_products(unsigned char* shifted, unsigned char* tabled) {
    __shared__ unsigned char exps[512], logs[256];
    if (threadIdx.x == 0) {
        unsigned x = 1;
        for (int i = 0; i < 255; ++i) {
            exps[i] = exps[i + 255] = (unsigned char)x;
            logs[x] = (unsigned char)i;
            x = gf_times(x, 2);
        }
    }
    __syncthreads();
    unsigned a = blockIdx.x, b = threadIdx.x;
    shifted[a * 256 + b] = (unsigned char)gf_times(a, b);
    tabled[a * 256 + b] = a && b ? exps[logs[a] + logs[b]] : 0;
}

extern "C" __global__ void gf_powers(unsigned char* inverse, unsigned char* cube) {
    unsigned a = threadIdx.x, r = 1, square = a;
    // a^254, by squaring: 254 is seven ones and a zero.
    for (int i = 0; i < 7; ++i) {
        square = gf_times(square, square);
        r = gf_times(r, square);
    }
    inverse[a] = (unsigned char)r;
    cube[a] = (unsigned char)gf_times(gf_times(a, a), a);
}
