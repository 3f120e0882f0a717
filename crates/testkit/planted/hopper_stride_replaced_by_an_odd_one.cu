// Stride replaced by an odd one.
//@ arch: sm_90a
//@ run hopper_stride_replaced_by_an_odd_one: stride_replaced_by_an_odd_one grid=1 block=64
//@   in x: u32[64] iota
//@   inout y: u32[64] zero raw
//@   map m: x u32 dims=8,8 strides=32 box=8,4
typedef unsigned long long u64;
struct alignas(64) Map { u64 opaque[16]; };
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
__device__ void fence() { asm volatile("fence.proxy.async.shared::cta;" ::: "memory"); }
__device__ void load_box(void* to, const Map* m, int x, int y, u64* b) {
    asm volatile("cp.async.bulk.tensor.2d.shared::cluster.global.tile.mbarrier::complete_tx::bytes [%0], [%1, {%2, %3}], [%4];"
        ::"r"(at(to)), "l"(m), "r"(x), "r"(y), "r"(at(b)) : "memory");
}

extern "C" __global__ void stride_replaced_by_an_odd_one(const unsigned* x, unsigned* y, const __grid_constant__ Map m) {
    __shared__ alignas(128) unsigned s[64];
    __shared__ u64 b;
    unsigned t = threadIdx.x;
    if (t == 0) start(&b, 1);
    __syncthreads();
    __shared__ alignas(128) Map changed;
    if (t < 16) changed.opaque[t] = m.opaque[t];
    __syncthreads();
    if (t == 0) {
        asm volatile("tensormap.replace.tile.global_stride.shared::cta.b1024.b64 [%0], 0, %1;" ::"r"(at(&changed)), "l"(40ull) : "memory");
        for (int n = 0; n < 16; n++) ((u64*)y)[n] = changed.opaque[n];
        asm volatile("fence.proxy.tensormap::generic.acquire.gpu [%0], 128;" ::"l"(y) : "memory");
        expect(&b, 128);
        load_box(s, (const Map*)y, 0, 0, &b);
    }
    wait(&b, 0);
}
