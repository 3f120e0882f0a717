// Asynchronous copies into shared memory that are not waited for, or by the wrong threads.
//@ run copies_no_wait: no_wait grid=1 block=32
//@   in x: f32[32] uniform(-1, 1)
//@   out y: f32[32] raw
//@   finds missing wait for an asynchronous copy
//@ run copies_one_stage_short: one_stage_short grid=1 block=32
//@   in x: f32[256] uniform(-1, 1)
//@   out y: f32[32] raw
//@   finds missing wait for an asynchronous copy
//@ run copies_no_commit: no_commit grid=1 block=32
//@   in x: f32[32] uniform(-1, 1)
//@   out y: f32[32] raw
//@   finds missing wait for an asynchronous copy
//@ run copies_no_barrier: no_barrier grid=1 block=64
//@   in x: f32[64] uniform(-1, 1)
//@   out y: f32[64] raw
//@   finds shared memory race, uninitialised read
//@ run copies_overwritten: overwritten grid=1 block=64
//@   in x: f32[256] uniform(-1, 1)
//@   out y: f32[64] raw
//@   finds shared memory race
//@ run copies_past_end: past_end grid=1 block=32
//@   in x: f32[120] uniform(-1, 1)
//@   out y: f32[128] raw
//@   finds out of bounds
//@ run copies_into_next_array: into_next_array grid=1 block=32
//@   in x: f32[128] uniform(-1, 1)
//@   out y: f32[32] raw
//@   finds out of bounds
//@ run copies_misaligned: misaligned grid=1 block=16
//@   in x: f32[65] uniform(-1, 1)
//@   out y: f32[64] raw
//@   finds misaligned
//@ run copies_mbarrier_not_awaited: mbarrier_not_awaited grid=1 block=32
//@   in x: f32[32] uniform(-1, 1)
//@   out y: f32[32] raw
//@   finds missing wait for an asynchronous copy
#include <cuda_pipeline.h>

extern "C" __global__ void no_wait(const float* x, float* y) {
    __shared__ float s[32];
    int t = threadIdx.x;
    __pipeline_memcpy_async(&s[t], &x[t], 4);
    __pipeline_commit();
    y[t] = s[t];
}

extern "C" __global__ void one_stage_short(const float* x, float* y) {
    __shared__ float s[2][32];
    int t = threadIdx.x;
    float sum = 0;
    for (int k = 0; k < 2; k++) {
        __pipeline_memcpy_async(&s[k][t], &x[k * 32 + t], 4);
        __pipeline_commit();
    }
    for (int k = 0; k < 8; k++) {
        // Of two groups in flight, two may remain: no group is waited for.
        __pipeline_wait_prior(2);
        __syncwarp();
        sum += s[k % 2][31 - t];
        __syncwarp();
        if (k + 2 < 8) __pipeline_memcpy_async(&s[k % 2][t], &x[(k + 2) * 32 + t], 4);
        __pipeline_commit();
    }
    y[t] = sum;
}

extern "C" __global__ void no_commit(const float* x, float* y) {
    __shared__ float s[32];
    int t = threadIdx.x;
    __pipeline_memcpy_async(&s[t], &x[t], 4);
    // Waits for groups that are committed: the copy is in none.
    asm volatile("cp.async.wait_group 0;" ::: "memory");
    y[t] = s[t];
}

extern "C" __global__ void no_barrier(const float* x, float* y) {
    __shared__ float s[64];
    int t = threadIdx.x;
    __pipeline_memcpy_async(&s[t], &x[t], 4);
    __pipeline_commit();
    __pipeline_wait_prior(0);
    // Own copies are complete, those of others need a barrier.
    y[t] = s[63 - t];
}

extern "C" __global__ void overwritten(const float* x, float* y) {
    __shared__ float s[64];
    int t = threadIdx.x;
    float sum = 0;
    for (int k = 0; k < 4; k++) {
        __pipeline_memcpy_async(&s[t], &x[k * 64 + t], 4);
        __pipeline_commit();
        __pipeline_wait_prior(0);
        __syncthreads();
        sum += s[63 - t];
    }
    y[t] = sum;
}

extern "C" __global__ void past_end(const float* x, float* y) {
    __shared__ __align__(16) float s[128];
    int t = threadIdx.x;
    __pipeline_memcpy_async(&s[4 * t], &x[4 * t], 16);
    __pipeline_commit();
    __pipeline_wait_prior(0);
    for (int k = 0; k < 4; k++) y[4 * t + k] = s[4 * t + k];
}

extern "C" __global__ void into_next_array(const float* x, float* y) {
    __shared__ __align__(16) float a[96];
    __shared__ __align__(16) float b[96];
    int t = threadIdx.x;
    b[t] = 1.0f;
    __syncthreads();
    __pipeline_memcpy_async(&a[4 * t], &x[4 * t], 16);
    __pipeline_commit();
    __pipeline_wait_prior(0);
    __syncthreads();
    y[t] = a[t] + b[t];
}

extern "C" __global__ void misaligned(const float* x, float* y) {
    __shared__ __align__(16) float s[64];
    int t = threadIdx.x;
    unsigned to = (unsigned)__cvta_generic_to_shared(&s[4 * t]);
    asm volatile("cp.async.ca.shared.global [%0], [%1], 16;" :: "r"(to), "l"(x + 4 * t + 1) : "memory");
    asm volatile("cp.async.wait_all;" ::: "memory");
    for (int k = 0; k < 4; k++) y[4 * t + k] = s[4 * t + k];
}

extern "C" __global__ void mbarrier_not_awaited(const float* x, float* y) {
    __shared__ float s[32];
    __shared__ unsigned long long bar;
    int t = threadIdx.x;
    unsigned at = (unsigned)__cvta_generic_to_shared(&bar);
    unsigned to = (unsigned)__cvta_generic_to_shared(&s[t]);
    if (t == 0) asm volatile("mbarrier.init.shared.b64 [%0], 32;" :: "r"(at) : "memory");
    __syncthreads();
    asm volatile("cp.async.ca.shared.global [%0], [%1], 4;" :: "r"(to), "l"(x + t) : "memory");
    asm volatile("cp.async.mbarrier.arrive.noinc.shared.b64 [%0];" :: "r"(at) : "memory");
    // The phase is not waited for.
    y[t] = s[t];
}
