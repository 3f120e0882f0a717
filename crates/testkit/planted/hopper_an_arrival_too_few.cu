// An arrival too few.
//@ arch: sm_90a
//@ run hopper_an_arrival_too_few: an_arrival_too_few grid=1 block=64
//@   in x: u32[64] iota
//@   inout y: u32[64] zero raw
typedef unsigned long long u64;
__device__ unsigned at(const void* p) { return (unsigned)__cvta_generic_to_shared(p); }
__device__ void start(u64* b, unsigned n) {
    asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(at(b)), "r"(n) : "memory");
    asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
}
__device__ void arrive(u64* b) {
    asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(at(b)) : "memory");
}
__device__ void wait(u64* b, unsigned parity) {
    asm volatile(
        "{ .reg .pred p; AGAIN: mbarrier.try_wait.parity.shared::cta.b64 p, [%0], %1; @!p bra AGAIN; }"
        ::"r"(at(b)), "r"(parity) : "memory");
}
__device__ void fence() { asm volatile("fence.proxy.async.shared::cta;" ::: "memory"); }

extern "C" __global__ void an_arrival_too_few(const unsigned* x, unsigned* y) {
    __shared__ u64 b;
    unsigned t = threadIdx.x;
    if (t == 0) start(&b, 64);
    __syncthreads();
    if (t != 5) arrive(&b);
    wait(&b, 0);
    y[t] = x[t];
}
