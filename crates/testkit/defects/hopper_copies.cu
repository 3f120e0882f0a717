// Bulk copies that are fenced, ordered or waited for in a wrong way.
//@ arch: sm_90a
//@ run hopper_copies_store_without_fence: store_without_fence grid=1 block=64
//@   in x: u32[64] iota
//@   inout y: u32[64] zero raw
//@   finds missing proxy fence
//@ run hopper_copies_fence_before_the_write: fence_before_the_write grid=1 block=64
//@   in x: u32[64] iota
//@   inout y: u32[64] zero raw
//@   finds missing proxy fence
//@ run hopper_copies_fence_of_one_thread_before_the_barrier: fence_of_one_thread_before_the_barrier grid=1 block=64
//@   in x: u32[64] iota
//@   inout y: u32[64] zero raw
//@   finds missing proxy fence
//@ run hopper_copies_fence_of_global_memory_alone: fence_of_global_memory_alone grid=1 block=64
//@   in x: u32[64] iota
//@   inout y: u32[64] zero raw
//@   finds missing proxy fence
//@ run hopper_copies_memory_fence_is_no_proxy_fence: memory_fence_is_no_proxy_fence grid=1 block=64
//@   in x: u32[64] iota
//@   inout y: u32[64] zero raw
//@   finds missing proxy fence
//@ run hopper_copies_store_without_barrier: store_without_barrier grid=1 block=64
//@   in x: u32[64] iota
//@   inout y: u32[64] zero raw
//@   finds missing wait for an asynchronous copy, shared memory race
//@ run hopper_copies_store_of_nothing: store_of_nothing grid=1 block=64
//@   in x: u32[64] iota
//@   inout y: u32[64] zero raw
//@   finds uninitialised read
//@ run hopper_copies_tensor_store_without_fence: tensor_store_without_fence grid=1 block=64
//@   in x: u32[64] iota
//@   inout y: u32[64] zero raw
//@   map m: y u32 dims=8,8 strides=32 box=8,8
//@   finds missing proxy fence
//@ run hopper_copies_read_before_the_wait: read_before_the_wait grid=1 block=64
//@   in x: u32[64] iota
//@   inout y: u32[64] zero raw
//@   finds missing wait for an asynchronous copy
//@ run hopper_copies_parity_of_the_phase_before: parity_of_the_phase_before grid=1 block=64
//@   in x: u32[64] iota
//@   inout y: u32[64] zero raw
//@   finds mbarrier that never completes, deadlock
//@ run hopper_copies_parity_that_is_not_flipped: parity_that_is_not_flipped grid=1 block=64
//@   in x: u32[64] iota
//@   inout y: u32[64] zero raw
//@   finds missing wait for an asynchronous copy
//@ run hopper_copies_one_thread_waits_for_all: one_thread_waits_for_all grid=1 block=64
//@   in x: u32[64] iota
//@   inout y: u32[64] zero raw
//@   finds missing wait for an asynchronous copy
//@ run hopper_copies_slot_overwritten_during_a_store: slot_overwritten_during_a_store grid=1 block=64
//@   in x: u32[64] iota
//@   inout y: u32[64] zero raw
//@   finds missing wait for an asynchronous copy
//@ run hopper_copies_tensor_slot_overwritten_during_a_store: tensor_slot_overwritten_during_a_store grid=1 block=64
//@   in x: u32[64] iota
//@   inout y: u32[64] zero raw
//@   map m: y u32 dims=8,8 strides=32 box=8,8
//@   finds missing wait for an asynchronous copy
//@ run hopper_copies_wait_without_commit: wait_without_commit grid=1 block=64
//@   in x: u32[64] iota
//@   inout y: u32[64] zero raw
//@   finds missing wait for an asynchronous copy
//@ run hopper_copies_wait_that_keeps_the_last_group: wait_that_keeps_the_last_group grid=1 block=64
//@   in x: u32[64] iota
//@   inout y: u32[64] zero raw
//@   finds missing wait for an asynchronous copy
//@ run hopper_copies_wait_of_another_thread: wait_of_another_thread grid=1 block=64
//@   in x: u32[64] iota
//@   inout y: u32[64] zero raw
//@   finds missing wait for an asynchronous copy
//@ run hopper_copies_load_into_a_slot_being_stored: load_into_a_slot_being_stored grid=1 block=64
//@   in x: u32[64] iota
//@   inout y: u32[64] zero raw
//@   finds missing wait for an asynchronous copy
//@ run hopper_copies_two_loads_into_one_slot: two_loads_into_one_slot grid=1 block=64
//@   in x: u32[64] iota
//@   inout y: u32[64] zero raw
//@   finds missing wait for an asynchronous copy
//@ run hopper_copies_load_over_what_threads_wrote: load_over_what_threads_wrote grid=1 block=64
//@   in x: u32[64] iota
//@   inout y: u32[64] zero raw
//@   finds missing proxy fence
//@ run hopper_copies_load_while_others_still_read: load_while_others_still_read grid=1 block=64
//@   in x: u32[64] iota
//@   inout y: u32[64] zero raw
//@   finds missing wait for an asynchronous copy, shared memory race
//@ run hopper_copies_expects_more_than_comes: expects_more_than_comes grid=1 block=64
//@   in x: u32[64] iota
//@   inout y: u32[64] zero raw
//@   finds mbarrier that never completes, deadlock
//@ run hopper_copies_expects_less_than_comes: expects_less_than_comes grid=1 block=64
//@   in x: u32[64] iota
//@   inout y: u32[64] zero raw
//@   finds mbarrier that never completes, deadlock
//@ run hopper_copies_expects_nothing: expects_nothing grid=1 block=64
//@   in x: u32[64] iota
//@   inout y: u32[64] zero raw
//@   finds mbarrier that never completes, deadlock
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
__device__ void load(void* to, const void* from, unsigned bytes, u64* b) {
    asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];"
        ::"r"(at(to)), "l"(from), "r"(bytes), "r"(at(b)) : "memory");
}
__device__ void store(void* to, const void* from, unsigned bytes) {
    asm volatile("cp.async.bulk.global.shared::cta.bulk_group [%0], [%1], %2;"
        ::"l"(to), "r"(at(from)), "r"(bytes) : "memory");
}
__device__ void commit() { asm volatile("cp.async.bulk.commit_group;" ::: "memory"); }
template <int N> __device__ void wait_read() { asm volatile("cp.async.bulk.wait_group.read %0;" ::"n"(N) : "memory"); }
template <int N> __device__ void wait_all() { asm volatile("cp.async.bulk.wait_group %0;" ::"n"(N) : "memory"); }
__device__ void fence() { asm volatile("fence.proxy.async.shared::cta;" ::: "memory"); }
__device__ void load_box(void* to, const Map* m, int x, int y, u64* b) {
    asm volatile("cp.async.bulk.tensor.2d.shared::cluster.global.tile.mbarrier::complete_tx::bytes [%0], [%1, {%2, %3}], [%4];"
        ::"r"(at(to)), "l"(m), "r"(x), "r"(y), "r"(at(b)) : "memory");
}
__device__ void store_box(const Map* m, int x, int y, const void* from) {
    asm volatile("cp.async.bulk.tensor.2d.global.shared::cta.tile.bulk_group [%0, {%1, %2}], [%3];"
        ::"l"(m), "r"(x), "r"(y), "r"(at(from)) : "memory");
}

extern "C" __global__ void store_without_fence(const unsigned* x, unsigned* y) {
    __shared__ alignas(128) unsigned s[64];
    unsigned t = threadIdx.x;
    s[t] = x[t];
    __syncthreads();
    if (t == 0) { store(y, s, 256); commit(); wait_all<0>(); }
}

extern "C" __global__ void fence_before_the_write(const unsigned* x, unsigned* y) {
    __shared__ alignas(128) unsigned s[64];
    unsigned t = threadIdx.x;
    fence();
    s[t] = x[t];
    __syncthreads();
    if (t == 0) { store(y, s, 256); commit(); wait_all<0>(); }
}

extern "C" __global__ void fence_of_one_thread_before_the_barrier(const unsigned* x, unsigned* y) {
    __shared__ alignas(128) unsigned s[64];
    unsigned t = threadIdx.x;
    s[t] = x[t];
    if (t == 0) fence();
    __syncthreads();
    if (t == 0) { store(y, s, 256); commit(); wait_all<0>(); }
}

extern "C" __global__ void fence_of_global_memory_alone(const unsigned* x, unsigned* y) {
    __shared__ alignas(128) unsigned s[64];
    unsigned t = threadIdx.x;
    s[t] = x[t];
    asm volatile("fence.proxy.async.global;" ::: "memory");
    __syncthreads();
    if (t == 0) { store(y, s, 256); commit(); wait_all<0>(); }
}

extern "C" __global__ void memory_fence_is_no_proxy_fence(const unsigned* x, unsigned* y) {
    __shared__ alignas(128) unsigned s[64];
    unsigned t = threadIdx.x;
    s[t] = x[t];
    __threadfence();
    __syncthreads();
    if (t == 0) { store(y, s, 256); commit(); wait_all<0>(); }
}

extern "C" __global__ void store_without_barrier(const unsigned* x, unsigned* y) {
    __shared__ alignas(128) unsigned s[64];
    unsigned t = threadIdx.x;
    s[t] = x[t];
    fence();
    if (t == 0) { store(y, s, 256); commit(); wait_all<0>(); }
}

extern "C" __global__ void store_of_nothing(const unsigned* x, unsigned* y) {
    __shared__ alignas(128) unsigned s[64];
    unsigned t = threadIdx.x;
    if (t < 32) s[t] = x[t];
    fence();
    __syncthreads();
    if (t == 0) { store(y, s, 256); commit(); wait_all<0>(); }
}

extern "C" __global__ void tensor_store_without_fence(const unsigned* x, unsigned* y, const __grid_constant__ Map m) {
    __shared__ alignas(128) unsigned s[64];
    unsigned t = threadIdx.x;
    s[t] = x[t];
    __syncthreads();
    if (t == 0) { store_box(&m, 0, 0, s); commit(); wait_all<0>(); }
}

extern "C" __global__ void read_before_the_wait(const unsigned* x, unsigned* y) {
    __shared__ alignas(128) unsigned s[64];
    __shared__ u64 b;
    unsigned t = threadIdx.x;
    if (t == 0) start(&b, 1);
    __syncthreads();
    if (t == 0) { expect(&b, 256); load(s, x, 256, &b); }
    __syncthreads();
    y[t] = s[t];
    wait(&b, 0);
}

extern "C" __global__ void parity_of_the_phase_before(const unsigned* x, unsigned* y) {
    __shared__ alignas(128) unsigned s[64];
    __shared__ u64 b;
    unsigned t = threadIdx.x;
    if (t == 0) start(&b, 1);
    __syncthreads();
    if (t == 0) { expect(&b, 256); load(s, x, 256, &b); }
    __syncthreads();
    wait(&b, 1);
    y[t] = s[t];
    wait(&b, 0);
}

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

extern "C" __global__ void one_thread_waits_for_all(const unsigned* x, unsigned* y) {
    __shared__ alignas(128) unsigned s[64];
    __shared__ u64 b;
    unsigned t = threadIdx.x;
    if (t == 0) start(&b, 1);
    __syncthreads();
    if (t == 0) { expect(&b, 256); load(s, x, 256, &b); }
    __syncthreads();
    if (t == 0) wait(&b, 0);
    y[t] = s[t];
}

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

extern "C" __global__ void tensor_slot_overwritten_during_a_store(const unsigned* x, unsigned* y, const __grid_constant__ Map m) {
    __shared__ alignas(128) unsigned s[64];
    unsigned t = threadIdx.x;
    s[t] = x[t];
    fence();
    __syncthreads();
    if (t == 0) { store_box(&m, 0, 0, s); commit(); }
    __syncthreads();
    s[t] = 7;
    if (t == 0) wait_all<0>();
}

extern "C" __global__ void wait_without_commit(const unsigned* x, unsigned* y) {
    __shared__ alignas(128) unsigned s[64];
    unsigned t = threadIdx.x;
    s[t] = x[t];
    fence();
    __syncthreads();
    if (t == 0) { store(y, s, 256); wait_read<0>(); }
    __syncthreads();
    s[t] = 7;
    if (t == 0) { commit(); wait_all<0>(); }
}

extern "C" __global__ void wait_that_keeps_the_last_group(const unsigned* x, unsigned* y) {
    __shared__ alignas(128) unsigned s[64];
    unsigned t = threadIdx.x;
    s[t] = x[t];
    fence();
    __syncthreads();
    if (t == 0) { store(y, s, 128); commit(); store(y + 32, s + 32, 128); commit(); wait_read<1>(); }
    __syncthreads();
    s[t] = 7;
    if (t == 0) wait_all<0>();
}

extern "C" __global__ void wait_of_another_thread(const unsigned* x, unsigned* y) {
    __shared__ alignas(128) unsigned s[64];
    unsigned t = threadIdx.x;
    s[t] = x[t];
    fence();
    __syncthreads();
    if (t == 0) { store(y, s, 256); commit(); }
    if (t == 32) wait_read<0>();
    __syncthreads();
    s[t] = 7;
    if (t == 0) wait_all<0>();
}

extern "C" __global__ void load_into_a_slot_being_stored(const unsigned* x, unsigned* y) {
    __shared__ alignas(128) unsigned s[64];
    __shared__ u64 b;
    unsigned t = threadIdx.x;
    if (t == 0) start(&b, 1);
    __syncthreads();
    s[t] = x[t];
    fence();
    __syncthreads();
    if (t == 0) { store(y, s, 256); commit(); expect(&b, 256); load(s, x, 256, &b); }
    wait(&b, 0);
    if (t == 0) wait_all<0>();
}

extern "C" __global__ void two_loads_into_one_slot(const unsigned* x, unsigned* y) {
    __shared__ alignas(128) unsigned s[64];
    __shared__ u64 b;
    unsigned t = threadIdx.x;
    if (t == 0) start(&b, 1);
    __syncthreads();
    if (t == 0) { expect(&b, 512); load(s, x, 256, &b); load(s, x, 256, &b); }
    wait(&b, 0);
    y[t] = s[t];
}

extern "C" __global__ void load_over_what_threads_wrote(const unsigned* x, unsigned* y) {
    __shared__ alignas(128) unsigned s[64];
    __shared__ u64 b;
    unsigned t = threadIdx.x;
    if (t == 0) start(&b, 1);
    __syncthreads();
    s[t] = 0;
    __syncthreads();
    if (t == 0) { expect(&b, 128); load(s, x, 128, &b); }
    wait(&b, 0);
    y[t] = s[t];
}

extern "C" __global__ void load_while_others_still_read(const unsigned* x, unsigned* y) {
    __shared__ alignas(128) unsigned s[64];
    __shared__ u64 b;
    unsigned t = threadIdx.x;
    if (t == 0) start(&b, 1);
    __syncthreads();
    if (t == 0) { expect(&b, 256); load(s, x, 256, &b); }
    wait(&b, 0);
    y[t] = s[t];
    if (t == 0) { expect(&b, 256); load(s, x, 256, &b); }
    wait(&b, 1);
}

extern "C" __global__ void expects_more_than_comes(const unsigned* x, unsigned* y) {
    __shared__ alignas(128) unsigned s[64];
    __shared__ u64 b;
    unsigned t = threadIdx.x;
    if (t == 0) start(&b, 1);
    __syncthreads();
    if (t == 0) { expect(&b, 512); load(s, x, 256, &b); }
    wait(&b, 0);
    y[t] = s[t];
}

extern "C" __global__ void expects_less_than_comes(const unsigned* x, unsigned* y) {
    __shared__ alignas(128) unsigned s[64];
    __shared__ u64 b;
    unsigned t = threadIdx.x;
    if (t == 0) start(&b, 1);
    __syncthreads();
    if (t == 0) { expect(&b, 128); load(s, x, 256, &b); }
    wait(&b, 0);
    y[t] = s[t];
}

extern "C" __global__ void expects_nothing(const unsigned* x, unsigned* y) {
    __shared__ alignas(128) unsigned s[64];
    __shared__ u64 b;
    unsigned t = threadIdx.x;
    if (t == 0) start(&b, 1);
    __syncthreads();
    if (t == 0) { arrive(&b); load(s, x, 256, &b); }
    wait(&b, 0);
    wait(&b, 1);
    y[t] = s[t];
}
