// Reed-Solomon over 256 elements: parity of a stripe from a generator matrix, and the syndromes of a damaged word.
//@ run rs_parity: rs_parity grid=4 block=64
//@   in data: u8[2560] bits
//@   in matrix: u8[40] bits
//@   out parity: u8[1024] exact
//@ run rs_syndromes: rs_syndromes grid=16 block=64
//@   in words: u8[4080] bits
//@   out syndromes: u8[512] exact

__constant__ unsigned char table_low[16] = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15};

__device__ unsigned twice4(unsigned x) { return ((x & 0x7f7f7f7fu) << 1) ^ (((x >> 7) & 0x01010101u) * 0x1du); }

// Four bytes at once in a word.
__device__ unsigned times4(unsigned x, unsigned by) {
    unsigned r = 0;
    while (by) {
        if (by & 1u) r ^= x;
        x = twice4(x);
        by >>= 1;
    }
    return r;
}

// Ten data shards of 256 bytes give four parity shards; a thread makes four bytes of one.
extern "C" __global__ void rs_parity(const unsigned* data, const unsigned char* matrix, unsigned* parity) {
    unsigned sum = 0;
    for (int d = 0; d < 10; ++d) sum ^= times4(data[d * 64 + threadIdx.x], matrix[blockIdx.x * 10 + d]);
    parity[blockIdx.x * 64 + threadIdx.x] = sum;
}

// Horner's rule at powers of two: 32 syndromes for each word of 255 bytes; two threads share a syndrome's word.
extern "C" __global__ void rs_syndromes(const unsigned char* words, unsigned char* syndromes) {
    int j = threadIdx.x % 32, part = threadIdx.x / 32;
    unsigned point = 1;
    for (int i = 0; i < j; ++i) point = twice4(point) & 0xffu;
    const unsigned char* w = words + blockIdx.x * 255;
    unsigned value = 0;
    int first = part ? 128 : 0, last = part ? 255 : 128;
    for (int i = first; i < last; ++i) value = (times4(value, point) & 0xffu) ^ table_low[w[i] & 15] ^ (w[i] & 0xf0u);
    if (!part)
        for (int i = 0; i < 127; ++i) value = times4(value, point) & 0xffu;
    __shared__ unsigned halves[64];
    halves[threadIdx.x] = value;
    __syncthreads();
    if (!part) syndromes[blockIdx.x * 32 + j] = (unsigned char)(halves[j] ^ halves[j + 32]);
}
