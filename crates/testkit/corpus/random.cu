// Random numbers: Philox 4x32-10 by counter, xorshift128, and uniform floats made of them.
//@ run philox: philox grid=2 block=64
//@   val seed: u64 81985529216486895
//@   out bits: u32[512] exact
//@   out uniform: f32[512] exact
//@ run xorshift: xorshift grid=1 block=64
//@   in seeds: u32[256] bits
//@   out last: u32[64] exact

extern "C" __global__ void philox(unsigned long long seed, uint4* bits, float4* uniform) {
    unsigned i = blockIdx.x * 64 + threadIdx.x;
    unsigned c0 = i, c1 = 0, c2 = 0x12345678u, c3 = 0x9abcdef0u;
    unsigned k0 = (unsigned)seed, k1 = (unsigned)(seed >> 32);
    for (int round = 0; round < 10; ++round) {
        unsigned h0 = __umulhi(0xd2511f53u, c0), l0 = 0xd2511f53u * c0;
        unsigned h1 = __umulhi(0xcd9e8d57u, c2), l1 = 0xcd9e8d57u * c2;
        c0 = h1 ^ c1 ^ k0, c1 = l1, c2 = h0 ^ c3 ^ k1, c3 = l0;
        k0 += 0x9e3779b9u, k1 += 0xbb67ae85u;
    }
    bits[i] = make_uint4(c0, c1, c2, c3);
    auto unit = [](unsigned v) { return (float)(v >> 8) * 0x1p-24f; };
    uniform[i] = make_float4(unit(c0), unit(c1), unit(c2), unit(c3));
}

extern "C" __global__ void xorshift(const uint4* seeds, unsigned* last) {
    uint4 s = seeds[threadIdx.x];
    unsigned v = 0;
    for (int i = 0; i < 100; ++i) {
        unsigned t = s.x ^ (s.x << 11);
        s.x = s.y, s.y = s.z, s.z = s.w;
        s.w = s.w ^ (s.w >> 19) ^ t ^ (t >> 8);
        v += s.w;
    }
    last[threadIdx.x] = v;
}
