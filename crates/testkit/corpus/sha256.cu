// SHA-256 of short messages, one a thread, and CRC-32 by a table made in shared memory.
//@ run sha256: sha256 grid=2 block=32
//@   in text: u8[6400] bits
//@   in lengths: u32[64] int(0, 100)
//@   out digests: u8[2048] exact
//@ run crc32: crc32 grid=1 block=64
//@   in text: u8[6400] bits
//@   out sums: u32[64] exact

__device__ unsigned right(unsigned v, int n) { return __funnelshift_r(v, v, n); }

// The constants are the first 32 bits of the fractional parts of roots of the first primes, worked out in f64.
__device__ unsigned fraction(double v) { return (unsigned)((v - floor(v)) * 4294967296.0); }

extern "C" __global__ void sha256(const unsigned char* text, const unsigned* lengths, unsigned char* digests) {
    __shared__ unsigned k[64], start[8];
    for (int t = threadIdx.x; t < 64; t += 32) {
        int prime = 1, seen = -1;
        while (seen < t) {
            ++prime;
            bool composite = false;
            for (int d = 2; d * d <= prime; ++d) composite |= prime % d == 0;
            if (!composite) ++seen;
        }
        k[t] = fraction(cbrt((double)prime));
        if (t < 8) start[t] = fraction(sqrt((double)prime));
    }
    __syncthreads();
    int i = blockIdx.x * 32 + threadIdx.x;
    const unsigned char* m = text + i * 100;
    unsigned length = lengths[i], h[8];
    for (int j = 0; j < 8; ++j) h[j] = start[j];
    unsigned blocks = (length + 9 + 63) / 64;
    for (unsigned b = 0; b < blocks; ++b) {
        unsigned w[64];
        for (unsigned j = 0; j < 16; ++j) {
            unsigned v = 0;
            for (unsigned c = 0; c < 4; ++c) {
                unsigned at = b * 64 + j * 4 + c;
                v = v << 8 | (at < length ? m[at] : at == length ? 0x80u : 0u);
            }
            w[j] = v;
        }
        if (b + 1 == blocks) w[15] = length * 8;
        for (int j = 16; j < 64; ++j) {
            unsigned a = w[j - 15], e = w[j - 2];
            w[j] = w[j - 16] + (right(a, 7) ^ right(a, 18) ^ (a >> 3)) + w[j - 7] + (right(e, 17) ^ right(e, 19) ^ (e >> 10));
        }
        unsigned s[8];
        for (int j = 0; j < 8; ++j) s[j] = h[j];
        for (int j = 0; j < 64; ++j) {
            unsigned e = s[4], a = s[0];
            unsigned p = s[7] + (right(e, 6) ^ right(e, 11) ^ right(e, 25)) + ((e & s[5]) ^ (~e & s[6])) + k[j] + w[j];
            unsigned q = (right(a, 2) ^ right(a, 13) ^ right(a, 22)) + ((a & s[1]) ^ (a & s[2]) ^ (s[1] & s[2]));
            s[7] = s[6], s[6] = s[5], s[5] = s[4], s[4] = s[3] + p, s[3] = s[2], s[2] = s[1], s[1] = s[0], s[0] = p + q;
        }
        for (int j = 0; j < 8; ++j) h[j] += s[j];
    }
    unsigned* out = reinterpret_cast<unsigned*>(digests + i * 32);
    for (int j = 0; j < 8; ++j) out[j] = __byte_perm(h[j], 0, 0x0123);
}

extern "C" __global__ void crc32(const unsigned char* text, unsigned* sums) {
    __shared__ unsigned table[256];
    for (int i = threadIdx.x; i < 256; i += 64) {
        unsigned v = (unsigned)i;
        for (int b = 0; b < 8; ++b) v = v & 1 ? v >> 1 ^ 0xedb88320u : v >> 1;
        table[i] = v;
    }
    __syncthreads();
    unsigned c = ~0u;
    for (int i = 0; i < 100; ++i) c = table[(c ^ text[threadIdx.x * 100 + i]) & 255u] ^ c >> 8;
    sums[threadIdx.x] = ~c;
}
