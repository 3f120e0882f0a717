// Local arrays that registers cannot hold: written and read at computed places, passed by pointer, of structures.
//@ run local_array: local_array grid=2 block=64
//@   in x: u32[128] bits
//@   out digits: u8[1280] exact
//@   out permuted: u32[128] exact
//@   out window: u32[128] exact

struct Pair {
    unsigned key;
    unsigned value;
};

__device__ __noinline__ int write_digits(unsigned v, unsigned char* to) {
    int n = 0;
    do {
        to[n++] = (unsigned char)('0' + v % 10);
        v /= 10;
    } while (v);
    return n;
}

extern "C" __global__ void local_array(const unsigned* x, unsigned char* digits, unsigned* permuted, unsigned* window) {
    int i = blockIdx.x * 64 + threadIdx.x;
    unsigned v = x[i];
    unsigned char text[10];
    int n = write_digits(v, text);
    for (int k = 0; k < 10; ++k) digits[i * 10 + k] = k < n ? text[n - 1 - k] : (unsigned char)' ';

    // A shuffle of sixteen entries driven by the input's bits.
    Pair p[16];
    for (int k = 0; k < 16; ++k) p[k] = {(unsigned)k, v * (unsigned)(k + 1)};
    for (int k = 15; k > 0; --k) {
        int j = (int)((v >> k) % (unsigned)(k + 1));
        Pair q = p[k];
        p[k] = p[j];
        p[j] = q;
    }
    unsigned hash = 0;
    for (int k = 0; k < 16; ++k) hash = hash * 33u + p[k].key + p[k].value;
    permuted[i] = hash;

    unsigned ring[8] = {1, 1, 1, 1, 1, 1, 1, 1};
    for (unsigned k = 0; k < (v & 63); ++k) ring[(k + v) & 7] += ring[(k * 3 + 1) & 7] ^ k;
    unsigned sum = 0;
    for (int k = 0; k < 8; ++k) sum = sum * 5u + ring[k];
    window[i] = sum;
}
