// Slot overwritten during a store.
//@ arch: sm_90a
//@ run hopper_slot_overwritten_during_a_store: slot_overwritten_during_a_store grid=1 block=64
//@   in x: u32[64] iota
//@   inout y: u32[64] zero raw
typedef unsigned long long u64;
__device__ unsigned at(const void* p) { return (unsigned)__cvta_generic_to_shared(p); }
__device__ void store(void* to, const void* from, unsigned bytes) {
    asm volatile("cp.async.bulk.global.shared::cta.bulk_group [%0], [%1], %2;"
        ::"l"(to), "r"(at(from)), "r"(bytes) : "memory");
}
__device__ void commit() { asm volatile("cp.async.bulk.commit_group;" ::: "memory"); }
template <int N> __device__ void wait_all() { asm volatile("cp.async.bulk.wait_group %0;" ::"n"(N) : "memory"); }
__device__ void fence() { asm volatile("fence.proxy.async.shared::cta;" ::: "memory"); }

extern "C" __global__ void slot_overwritten_during_a_store(const unsigned* x, unsigned* y) {
    __shared__ alignas(128) unsigned s[64];
    unsigned t = threadIdx.x;
    s[t] = x[t];
    fence();
    __syncthreads();
    if (t == 0) { store(y, s, 256); commit(); }
    __syncthreads();
    s[t] = 7;
    if (t == 0) wait_all<0>();
}
