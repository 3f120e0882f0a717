// Recursion of one function into itself and of two into each other; each lane goes its own depth.
//@ run recursion: recursion grid=1 block=64
//@   out fibonacci: u32[64] exact
//@   out ackermann: u32[64] exact
//@   out parity: u32[64] exact
//@   out hanoi: u64[64] exact

__device__ __noinline__ unsigned fib(unsigned n) { return n < 2 ? n : fib(n - 1) + fib(n - 2); }

__device__ __noinline__ unsigned acker(unsigned m, unsigned n) {
    if (m == 0) return n + 1;
    if (n == 0) return acker(m - 1, 1);
    return acker(m - 1, acker(m, n - 1));
}

__device__ unsigned odd(unsigned n);
__device__ __noinline__ unsigned even(unsigned n) { return n == 0 ? 1u : odd(n - 1); }
__device__ __noinline__ unsigned odd(unsigned n) { return n == 0 ? 0u : even(n - 1); }

// Each move is mixed into a hash, so the order of moves matters.
__device__ __noinline__ void towers(int discs, int from, int to, int spare, unsigned long long& hash) {
    if (discs == 0) return;
    towers(discs - 1, from, spare, to, hash);
    hash = hash * 1099511628211ull + (unsigned)(from * 16 + to * 4 + discs);
    towers(discs - 1, spare, to, from, hash);
}

extern "C" __global__ void recursion(unsigned* fibonacci, unsigned* ackermann, unsigned* parity, unsigned long long* hanoi) {
    unsigned t = threadIdx.x;
    fibonacci[t] = fib(t % 11);
    ackermann[t] = acker(t % 3, t % 3);
    parity[t] = even(t % 16);
    unsigned long long hash = 14695981039346656037ull;
    towers((int)(t % 6), 0, 2, 1, hash);
    hanoi[t] = hash;
}
