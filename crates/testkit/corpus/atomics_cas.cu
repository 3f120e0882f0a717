// Compare and swap: a maximum of floats, a product modulo a prime, 16-bit and 64-bit swaps, a lock, a hash table.
//@ run cas_loops: cas_loops grid=3 block=64
//@   in x: f32[192] uniform(-100, 100)
//@   inout high: u32[1] made exact
//@   inout product: u32[1] made exact
//@   inout pair: u64[1] zero exact
//@   inout narrow: u16[2] zero exact
//@ run spin_lock: spin_lock grid=4 block=64
//@   inout lock: u32[1] zero exact
//@   inout shared_value: u32[2] zero exact
//@ run hash_insert: hash_insert grid=2 block=128
//@   in keys: u32[256] int(1, 100)
//@   inout slots: u32[512] zero raw
//@   inout counts: u32[512] zero raw
//@   out found: u32[256] exact

extern "C" __global__ void cas_loops(const float* x, unsigned* high, unsigned* product, unsigned long long* pair, unsigned short* narrow) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    float v = x[i];
    unsigned old = atomicAdd(high, 0u);
    while (__uint_as_float(old) < v) {
        unsigned was = atomicCAS(high, old, __float_as_uint(v));
        if (was == old) break;
        old = was;
    }
    unsigned factor = (__float_as_uint(v) % 1000u) + 1u;
    unsigned seen = atomicAdd(product, 0u), expected;
    do {
        expected = seen;
        unsigned next = (unsigned)((unsigned long long)expected * factor % 1000003u);
        seen = atomicCAS(product, expected, next);
    } while (seen != expected);
    // Two counters in one word: the low half counts all, the high half counts the odd.
    unsigned long long p = atomicAdd(pair, 0ull), q;
    do {
        q = p;
        p = atomicCAS(pair, q, q + 1ull + ((unsigned long long)(i & 1) << 32));
    } while (p != q);
    unsigned short n = 0, m;
    do {
        m = n;
        n = atomicCAS(&narrow[i & 1], m, (unsigned short)(m + 3));
    } while (n != m);
}

extern "C" __global__ void spin_lock(unsigned* lock, unsigned* shared_value) {
    // One thread of a warp at a time holds the lock; the others of its warp must not starve it.
    bool done = false;
    while (!done) {
        if (atomicCAS(lock, 0u, 1u) == 0u) {
            __threadfence();
            volatile unsigned* v = shared_value;
            unsigned a = v[0], b = v[1];
            v[0] = a + 1u;
            v[1] = b + a;
            __threadfence();
            atomicExch(lock, 0u);
            done = true;
        }
    }
}

// Open addressing, linear probing; each key's count ends beside it, and a second pass looks it up.
extern "C" __global__ void hash_insert(const unsigned* keys, unsigned* slots, unsigned* counts, unsigned* found) {
    int base = blockIdx.x * 256;
    unsigned key = keys[blockIdx.x * 128 + threadIdx.x];
    unsigned at = (key * 2654435761u) >> 24;
    while (true) {
        unsigned was = atomicCAS(&slots[base + at], 0u, key);
        if (was == 0u || was == key) break;
        at = (at + 1) & 255u;
    }
    atomicAdd(&counts[base + at], 1u);
    __syncthreads();
    at = (key * 2654435761u) >> 24;
    while (slots[base + at] != key) at = (at + 1) & 255u;
    found[blockIdx.x * 128 + threadIdx.x] = counts[base + at];
}
