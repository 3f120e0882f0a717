// Mbarriers used outside of their lives.
//@ run mbarriers_never: never grid=1 block=64
//@   out y: u32[64] raw
//@   finds uninitialised read
//@ run mbarriers_unsynced: unsynced grid=1 block=64
//@   in x: u32[64] iota
//@   out y: u32[64] raw
//@   finds shared memory race
//@ run mbarriers_object_unsynced: object_unsynced grid=1 block=64
//@   in x: u32[64] iota
//@   out y: u32[64] raw
//@   finds shared memory race
//@ run mbarriers_ended: ended grid=1 block=64
//@   out y: u32[64] raw
//@   finds uninitialised read
//@ run mbarriers_begun_again: begun_again grid=1 block=64
//@   out y: u32[64] raw
//@   finds shared memory race
#include <cuda/barrier>

__device__ unsigned at(const void* p) { return (unsigned)__cvta_generic_to_shared(p); }

__device__ void start(void* b, unsigned n) {
    asm volatile("mbarrier.init.shared.b64 [%0], %1;" ::"r"(at(b)), "r"(n) : "memory");
}

__device__ void end(void* b) {
    asm volatile("mbarrier.inval.shared.b64 [%0];" ::"r"(at(b)) : "memory");
}

__device__ void arrive(void* b) {
    asm volatile("{ .reg .b64 s; mbarrier.arrive.shared.b64 s, [%0]; }" ::"r"(at(b)) : "memory");
}

__device__ void wait(void* b, unsigned phase) {
    asm volatile(
        "{ .reg .pred p; AGAIN: mbarrier.try_wait.parity.shared.b64 p, [%0], %1; @!p bra AGAIN; }"
        ::"r"(at(b)), "r"(phase) : "memory");
}

extern "C" __global__ void never(unsigned* y) {
    __shared__ unsigned long long b;
    arrive(&b);
    y[threadIdx.x] = 1;
}

extern "C" __global__ void unsynced(const unsigned* x, unsigned* y) {
    __shared__ unsigned long long b;
    unsigned t = threadIdx.x;
    if (t == 0) start(&b, 64);
    arrive(&b);
    y[t] = x[t];
}

extern "C" __global__ void object_unsynced(const unsigned* x, unsigned* y) {
    __shared__ cuda::barrier<cuda::thread_scope_block> b;
    unsigned t = threadIdx.x;
    if (t == 0) init(&b, 64);
    b.arrive_and_wait();
    y[t] = x[t];
}

extern "C" __global__ void ended(unsigned* y) {
    __shared__ unsigned long long b;
    unsigned t = threadIdx.x;
    if (t == 0) start(&b, 64);
    __syncthreads();
    arrive(&b);
    wait(&b, 0);
    __syncthreads();
    if (t == 0) end(&b);
    __syncthreads();
    arrive(&b);
    y[t] = t;
}

extern "C" __global__ void begun_again(unsigned* y) {
    // Others may still ask for the first phase when the barrier is started anew.
    __shared__ unsigned long long b;
    unsigned t = threadIdx.x;
    if (t == 0) start(&b, 64);
    __syncthreads();
    arrive(&b);
    wait(&b, 0);
    if (t == 63) {
        end(&b);
        start(&b, 64);
    }
    __syncthreads();
    y[t] = t;
}
