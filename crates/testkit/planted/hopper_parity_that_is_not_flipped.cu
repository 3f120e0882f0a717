// Parity that is not flipped.
//@ arch: sm_90a
//@ run hopper_parity_that_is_not_flipped: parity_that_is_not_flipped grid=1 block=64
//@   in x: u32[64] iota
//@   inout y: u32[64] zero raw
typedef unsigned long long u64;
__device__ unsigned at(const void* p) { return (unsigned)__cvta_generic_to_shared(p); }
__device__ void start(u64* b, unsigned n) {
    asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(at(b)), "r"(n) : "memory");
    asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
}
__device__ void expect(u64* b, unsigned bytes) {
    asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(at(b)), "r"(bytes) : "memory");
}
__device__ void arrive(u64* b) {
    asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(at(b)) : "memory");
}
__device__ void wait(u64* b, unsigned parity) {
    asm volatile(
        "{ .reg .pred p; AGAIN: mbarrier.try_wait.parity.shared::cta.b64 p, [%0], %1; @!p bra AGAIN; }"
        ::"r"(at(b)), "r"(parity) : "memory");
}
__device__ void load(void* to, const void* from, unsigned bytes, u64* b) {
    asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];"
        ::"r"(at(to)), "l"(from), "r"(bytes), "r"(at(b)) : "memory");
}
__device__ void fence() { asm volatile("fence.proxy.async.shared::cta;" ::: "memory"); }

extern "C" __global__ void parity_that_is_not_flipped(const unsigned* x, unsigned* y) {
    __shared__ alignas(128) unsigned s[64];
    __shared__ u64 b;
    unsigned t = threadIdx.x;
    if (t == 0) start(&b, 1);
    __syncthreads();
    // The copy of the second round is read behind a wait for the first.
    if (t == 0) { expect(&b, 128); load(s, x, 128, &b); }
    wait(&b, 0);
    unsigned sum = s[t / 2];
    __syncthreads();
    if (t == 0) { expect(&b, 144); load(s + 32, x + 32, 128, &b); }
    __syncthreads();
    wait(&b, 0);
    sum += s[32 + t / 2];
    y[t] = sum;
    __syncthreads();
    if (t == 0) load(s, x, 16, &b);
    wait(&b, 1);
}
