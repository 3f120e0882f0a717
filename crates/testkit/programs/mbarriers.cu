// Mbarriers from their initialisation to their end.
//@ run phases: phases grid=2 block=96
//@   in x: u32[96] iota
//@   inout y: u32[96] zero raw
//@ run reused_memory: reused_memory grid=1 block=64
//@   inout y: u32[64] zero raw
//@ run one_warp: one_warp grid=1 block=32
//@   inout y: u32[32] zero raw
//@ run full_and_empty: full_and_empty grid=1 block=64
//@   in x: u32[128] iota
//@   inout y: u32[32] zero raw
//@ run last_consumer_ends: last_consumer_ends grid=1 block=64
//@   inout y: u32[64] zero raw
//@ run object: object grid=1 block=64
//@   in x: u32[64] iota
//@   inout y: u32[64] zero raw
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

extern "C" __global__ void phases(const unsigned* x, unsigned* y) {
    __shared__ unsigned long long b;
    __shared__ unsigned s[96];
    unsigned t = threadIdx.x, sum = 0;
    // Initialised by a thread of another warp than the first.
    if (t == 70) start(&b, 96);
    __syncthreads();
    for (unsigned k = 0; k < 4; k++) {
        s[t] = x[t] + k;
        arrive(&b);
        wait(&b, 0);
        sum += s[95 - t];
        arrive(&b);
        wait(&b, 1);
    }
    if (blockIdx.x == 0) y[t] = sum;
}

extern "C" __global__ void reused_memory(unsigned* y) {
    // The memory holds a barrier, then a number, then a barrier again.
    __shared__ unsigned long long b;
    unsigned t = threadIdx.x;
    for (unsigned k = 0; k < 2; k++) {
        if (t == 0) start(&b, 64);
        __syncthreads();
        arrive(&b);
        wait(&b, 0);
        __syncthreads();
        if (t == 32 * k) end(&b);
        __syncthreads();
        if (t == 0) b = 7;
        __syncthreads();
        y[t] += (unsigned)b;
        __syncthreads();
    }
}

extern "C" __global__ void one_warp(unsigned* y) {
    __shared__ unsigned long long b;
    unsigned t = threadIdx.x;
    if (t == 0) start(&b, 32);
    __syncwarp();
    arrive(&b);
    wait(&b, 0);
    y[t] = t;
}

extern "C" __global__ void full_and_empty(const unsigned* x, unsigned* y) {
    __shared__ unsigned long long full, empty;
    __shared__ unsigned s[32];
    unsigned t = threadIdx.x;
    if (t == 0) {
        start(&full, 32);
        start(&empty, 32);
        asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
    }
    __syncthreads();
    if (t < 32) {
        for (unsigned k = 0; k < 4; k++) {
            if (k > 0) wait(&empty, (k - 1) & 1);
            s[t] = x[32 * k + t];
            arrive(&full);
        }
    } else {
        unsigned sum = 0;
        for (unsigned k = 0; k < 4; k++) {
            wait(&full, k & 1);
            sum += s[63 - t];
            arrive(&empty);
        }
        y[t - 32] = sum;
    }
}

extern "C" __global__ void last_consumer_ends(unsigned* y) {
    // Only one thread waits, so no other uses the barrier after its phase.
    __shared__ unsigned long long b;
    unsigned t = threadIdx.x;
    if (t == 0) start(&b, 64);
    __syncthreads();
    arrive(&b);
    if (t == 0) {
        wait(&b, 0);
        end(&b);
    }
    y[t] = t;
}

extern "C" __global__ void object(const unsigned* x, unsigned* y) {
    __shared__ cuda::barrier<cuda::thread_scope_block> b;
    __shared__ unsigned s[64];
    unsigned t = threadIdx.x;
    if (t == 0) init(&b, 64);
    __syncthreads();
    s[t] = x[t];
    b.arrive_and_wait();
    y[t] = s[63 - t];
}
