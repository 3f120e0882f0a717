// Bytes, phases, places and tensor maps that do not fit their copies.
//@ arch: sm_90a
//@ run hopper_maps_an_arrival_too_few: an_arrival_too_few grid=1 block=64
//@   in x: u32[64] iota
//@   inout y: u32[64] zero raw
//@   finds mbarrier that never completes, deadlock
//@ run hopper_maps_parity_of_a_phase_to_come: parity_of_a_phase_to_come grid=1 block=64
//@   in x: u32[64] iota
//@   inout y: u32[64] zero raw
//@   finds mbarrier that never completes, deadlock
//@ run hopper_maps_an_arrival_too_many: an_arrival_too_many grid=1 block=64
//@   in x: u32[64] iota
//@   inout y: u32[64] zero raw
//@   finds mbarrier that never completes
//@ run hopper_maps_producer_and_consumer_wait_for_each_other: producer_and_consumer_wait_for_each_other grid=1 block=64
//@   in x: u32[64] iota
//@   inout y: u32[64] zero raw
//@   finds mbarrier that never completes, deadlock
//@ run hopper_maps_mbarrier_of_nobody: mbarrier_of_nobody grid=1 block=64
//@   in x: u32[64] iota
//@   inout y: u32[64] zero raw
//@   finds uninitialised read
//@ run hopper_maps_store_left_at_the_end: store_left_at_the_end grid=1 block=64
//@   in x: u32[64] iota
//@   inout y: u32[64] zero raw
//@   finds missing wait for an asynchronous copy
//@ run hopper_maps_load_left_at_the_end: load_left_at_the_end grid=1 block=64
//@   in x: u32[64] iota
//@   inout y: u32[64] zero raw
//@   finds missing wait for an asynchronous copy
//@ run hopper_maps_global_memory_without_fence: global_memory_without_fence grid=1 block=64
//@   in x: u32[64] iota
//@   inout y: u32[64] zero raw
//@   finds missing proxy fence
//@ run hopper_maps_source_overwritten_during_a_load: source_overwritten_during_a_load grid=1 block=64
//@   in x: u32[64] iota
//@   inout y: u32[64] zero raw
//@   finds missing wait for an asynchronous copy
//@ run hopper_maps_target_read_during_a_store: target_read_during_a_store grid=1 block=64
//@   in x: u32[64] iota
//@   inout y: u32[64] zero raw
//@   finds missing wait for an asynchronous copy
//@ run hopper_maps_store_past_the_end: store_past_the_end grid=1 block=64
//@   in x: u32[64] iota
//@   inout y: u32[64] zero raw
//@   finds out of bounds
//@ run hopper_maps_load_past_the_end: load_past_the_end grid=1 block=64
//@   in x: u32[64] iota
//@   inout y: u32[64] zero raw
//@   finds out of bounds
//@ run hopper_maps_load_past_shared_memory: load_past_shared_memory grid=1 block=64
//@   in x: u32[64] iota
//@   inout y: u32[64] zero raw
//@   finds out of bounds, illegal address
//@ run hopper_maps_load_to_half_a_chunk: load_to_half_a_chunk grid=1 block=64
//@   in x: u32[64] iota
//@   inout y: u32[64] zero raw
//@   finds misaligned, misaligned address
//@ run hopper_maps_load_from_half_a_chunk: load_from_half_a_chunk grid=1 block=64
//@   in x: u32[64] iota
//@   inout y: u32[64] zero raw
//@   finds misaligned, misaligned address
//@ run hopper_maps_box_behind_the_tensor: box_behind_the_tensor grid=1 block=64
//@   in x: u32[64] iota
//@   inout y: u32[64] zero raw
//@   map m: x u32 dims=8,8 strides=32 box=8,4
//@   finds misuse of a tensor map
//@ run hopper_maps_coordinates_in_bytes: coordinates_in_bytes grid=1 block=64
//@   in x: u32[64] iota
//@   inout y: u32[64] zero raw
//@   map m: x u32 dims=8,8 strides=32 box=8,4
//@   finds misuse of a tensor map
//@ run hopper_maps_box_before_the_tensor: box_before_the_tensor grid=1 block=64
//@   in x: u32[64] iota
//@   inout y: u32[64] zero raw
//@   map m: x u32 dims=8,8 strides=32 box=8,4
//@   finds misuse of a tensor map
//@ run hopper_maps_store_far_outside: store_far_outside grid=1 block=64
//@   in x: u32[64] iota
//@   inout y: u32[64] zero raw
//@   map m: y u32 dims=8,8 strides=32 box=8,8
//@   finds misuse of a tensor map
//@ run hopper_maps_box_at_half_a_line: box_at_half_a_line grid=1 block=64
//@   in x: u32[64] iota
//@   inout y: u32[64] zero raw
//@   map m: x u32 dims=8,8 strides=32 box=8,4
//@   finds misaligned, misaligned address
//@ run hopper_maps_copy_of_another_rank: copy_of_another_rank grid=1 block=64
//@   in x: u32[64] iota
//@   inout y: u32[64] zero raw
//@   map m: x u32 dims=8,8 strides=32 box=8,4
//@   finds misuse of a tensor map, illegal instruction
//@ run hopper_maps_copy_of_another_mode: copy_of_another_mode grid=1 block=64
//@   in x: u32[64] iota
//@   inout y: u32[64] zero raw
//@   map m: x u32 dims=8,4,2 strides=32,128 box=8,4,1
//@   finds misuse of a tensor map, illegal instruction
//@ run hopper_maps_memory_without_a_map: memory_without_a_map grid=1 block=64
//@   in x: u32[64] iota
//@   inout y: u32[64] zero raw
//@   finds misuse of a tensor map, illegal instruction
//@ run hopper_maps_stride_replaced_by_an_odd_one: stride_replaced_by_an_odd_one grid=1 block=64
//@   in x: u32[64] iota
//@   inout y: u32[64] zero raw
//@   map m: x u32 dims=8,8 strides=32 box=8,4
//@   finds misuse of a tensor map, illegal instruction
//@ run hopper_maps_swizzle_replaced_by_a_narrow_one: swizzle_replaced_by_a_narrow_one grid=1 block=64
//@   in x: u32[64] iota
//@   inout y: u32[64] zero raw
//@   map m: x u32 dims=8,8 strides=32 box=8,4
//@   finds misuse of a tensor map, illegal instruction
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

extern "C" __global__ void an_arrival_too_few(const unsigned* x, unsigned* y) {
    __shared__ u64 b;
    unsigned t = threadIdx.x;
    if (t == 0) start(&b, 64);
    __syncthreads();
    if (t != 5) arrive(&b);
    wait(&b, 0);
    y[t] = x[t];
}

extern "C" __global__ void parity_of_a_phase_to_come(const unsigned* x, unsigned* y) {
    __shared__ u64 b;
    unsigned t = threadIdx.x;
    if (t == 0) start(&b, 64);
    __syncthreads();
    arrive(&b);
    wait(&b, 0);
    wait(&b, 1);
    y[t] = x[t];
}

extern "C" __global__ void an_arrival_too_many(const unsigned* x, unsigned* y) {
    __shared__ u64 b;
    unsigned t = threadIdx.x;
    if (t == 0) start(&b, 2);
    __syncthreads();
    if (t == 0) asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0], 3;" ::"r"(at(&b)) : "memory");
    wait(&b, 0);
    y[t] = x[t];
}

extern "C" __global__ void producer_and_consumer_wait_for_each_other(const unsigned* x, unsigned* y) {
    __shared__ alignas(128) unsigned s[64];
    __shared__ u64 b, e;
    unsigned t = threadIdx.x;
    if (t == 0) { start(&b, 1); start(&e, 1); }
    __syncthreads();
    if (t == 0) { wait(&e, 0); expect(&b, 256); load(s, x, 256, &b); }
    if (t >= 32) { wait(&b, 0); y[t] = s[t]; if (t == 32) arrive(&e); }
}

extern "C" __global__ void mbarrier_of_nobody(const unsigned* x, unsigned* y) {
    __shared__ u64 b;
    unsigned t = threadIdx.x;
    if (t == 0) arrive(&b);
    y[t] = x[t];
}

extern "C" __global__ void store_left_at_the_end(const unsigned* x, unsigned* y) {
    __shared__ alignas(128) unsigned s[64];
    unsigned t = threadIdx.x;
    s[t] = x[t];
    fence();
    __syncthreads();
    if (t == 0) { store(y, s, 256); commit(); }
}

extern "C" __global__ void load_left_at_the_end(const unsigned* x, unsigned* y) {
    __shared__ alignas(128) unsigned s[64];
    __shared__ u64 b;
    unsigned t = threadIdx.x;
    if (t == 0) start(&b, 1);
    __syncthreads();
    if (t == 0) { expect(&b, 256); load(s, x, 256, &b); }
    y[t] = t;
}

extern "C" __global__ void global_memory_without_fence(const unsigned* x, unsigned* y) {
    __shared__ alignas(128) unsigned s[64];
    __shared__ u64 b;
    unsigned t = threadIdx.x;
    if (t == 0) start(&b, 1);
    __syncthreads();
    y[t] = x[t];
    __syncthreads();
    if (t == 0) { expect(&b, 256); load(s, y, 256, &b); }
    wait(&b, 0);
    y[t] += s[t];
}

extern "C" __global__ void source_overwritten_during_a_load(const unsigned* x, unsigned* y) {
    __shared__ alignas(128) unsigned s[64];
    __shared__ u64 b;
    unsigned t = threadIdx.x;
    if (t == 0) start(&b, 1);
    __syncthreads();
    if (t == 0) { expect(&b, 256); load(s, y, 256, &b); }
    __syncthreads();
    y[t] = 1;
    wait(&b, 0);
}

extern "C" __global__ void target_read_during_a_store(const unsigned* x, unsigned* y) {
    __shared__ alignas(128) unsigned s[64];
    unsigned t = threadIdx.x;
    s[t] = x[t];
    fence();
    __syncthreads();
    if (t == 0) { store(y, s, 256); commit(); wait_read<0>(); }
    __syncthreads();
    if (y[t] == 12345) y[t] = 1;
    if (t == 0) wait_all<0>();
}

extern "C" __global__ void store_past_the_end(const unsigned* x, unsigned* y) {
    __shared__ alignas(128) unsigned s[64];
    unsigned t = threadIdx.x;
    s[t] = x[t];
    fence();
    __syncthreads();
    if (t == 0) { store(y + 16, s, 256); commit(); wait_all<0>(); }
}

extern "C" __global__ void load_past_the_end(const unsigned* x, unsigned* y) {
    __shared__ alignas(128) unsigned s[64];
    __shared__ u64 b;
    unsigned t = threadIdx.x;
    if (t == 0) start(&b, 1);
    __syncthreads();
    if (t == 0) { expect(&b, 256); load(s, x + 16, 256, &b); }
    wait(&b, 0);
    y[t] = s[t];
}

extern "C" __global__ void load_past_shared_memory(const unsigned* x, unsigned* y) {
    __shared__ alignas(128) unsigned s[64];
    __shared__ u64 b;
    unsigned t = threadIdx.x;
    if (t == 0) start(&b, 1);
    __syncthreads();
    if (t == 0) { expect(&b, 256); load(s + 4096, x, 256, &b); }
    wait(&b, 0);
}

extern "C" __global__ void load_to_half_a_chunk(const unsigned* x, unsigned* y) {
    __shared__ alignas(128) unsigned s[64];
    __shared__ u64 b;
    unsigned t = threadIdx.x;
    if (t == 0) start(&b, 1);
    __syncthreads();
    if (t == 0) { expect(&b, 128); load(s + 2, x, 128, &b); }
    wait(&b, 0);
    y[t] = s[t];
}

extern "C" __global__ void load_from_half_a_chunk(const unsigned* x, unsigned* y) {
    __shared__ alignas(128) unsigned s[64];
    __shared__ u64 b;
    unsigned t = threadIdx.x;
    if (t == 0) start(&b, 1);
    __syncthreads();
    if (t == 0) { expect(&b, 128); load(s, x + 2, 128, &b); }
    wait(&b, 0);
    y[t] = s[t];
}

extern "C" __global__ void box_behind_the_tensor(const unsigned* x, unsigned* y, const __grid_constant__ Map m) {
    __shared__ alignas(128) unsigned s[64];
    __shared__ u64 b;
    unsigned t = threadIdx.x;
    if (t == 0) start(&b, 1);
    __syncthreads();
    if (t == 0) { expect(&b, 128); load_box(s, &m, 0, 8, &b); }
    wait(&b, 0);
    if (t < 32) y[t] = s[t];
}

extern "C" __global__ void coordinates_in_bytes(const unsigned* x, unsigned* y, const __grid_constant__ Map m) {
    __shared__ alignas(128) unsigned s[64];
    __shared__ u64 b;
    unsigned t = threadIdx.x;
    if (t == 0) start(&b, 1);
    __syncthreads();
    if (t == 0) { expect(&b, 128); load_box(s, &m, 16, 4, &b); }
    wait(&b, 0);
    if (t < 32) y[t] = s[t];
}

extern "C" __global__ void box_before_the_tensor(const unsigned* x, unsigned* y, const __grid_constant__ Map m) {
    __shared__ alignas(128) unsigned s[64];
    __shared__ u64 b;
    unsigned t = threadIdx.x;
    if (t == 0) start(&b, 1);
    __syncthreads();
    if (t == 0) { expect(&b, 128); load_box(s, &m, 0, -4, &b); }
    wait(&b, 0);
    if (t < 32) y[t] = s[t];
}

extern "C" __global__ void store_far_outside(const unsigned* x, unsigned* y, const __grid_constant__ Map m) {
    __shared__ alignas(128) unsigned s[64];
    unsigned t = threadIdx.x;
    s[t] = x[t];
    fence();
    __syncthreads();
    if (t == 0) { store_box(&m, 0, 4096, s); commit(); wait_all<0>(); }
}

extern "C" __global__ void box_at_half_a_line(const unsigned* x, unsigned* y, const __grid_constant__ Map m) {
    __shared__ alignas(128) unsigned s[64];
    __shared__ u64 b;
    unsigned t = threadIdx.x;
    if (t == 0) start(&b, 1);
    __syncthreads();
    if (t == 0) { expect(&b, 128); load_box(s + 16, &m, 0, 0, &b); }
    wait(&b, 0);
    if (t < 32) y[t] = s[t];
}

extern "C" __global__ void copy_of_another_rank(const unsigned* x, unsigned* y, const __grid_constant__ Map m) {
    __shared__ alignas(128) unsigned s[64];
    __shared__ u64 b;
    unsigned t = threadIdx.x;
    if (t == 0) start(&b, 1);
    __syncthreads();
    if (t == 0) {
        expect(&b, 128);
        asm volatile("cp.async.bulk.tensor.3d.shared::cluster.global.tile.mbarrier::complete_tx::bytes [%0], [%1, {%2, %2, %2}], [%3];"
            ::"r"(at(s)), "l"(&m), "r"(0), "r"(at(&b)) : "memory");
    }
    wait(&b, 0);
}

extern "C" __global__ void copy_of_another_mode(const unsigned* x, unsigned* y, const __grid_constant__ Map m) {
    __shared__ alignas(128) unsigned s[64];
    __shared__ u64 b;
    unsigned t = threadIdx.x;
    if (t == 0) start(&b, 1);
    __syncthreads();
    if (t == 0) {
        expect(&b, 128);
        asm volatile("cp.async.bulk.tensor.3d.shared::cluster.global.im2col.mbarrier::complete_tx::bytes [%0], [%1, {%2, %2, %2}], [%3], {%4};"
            ::"r"(at(s)), "l"(&m), "r"(0), "r"(at(&b)), "h"((unsigned short)0) : "memory");
    }
    wait(&b, 0);
}

extern "C" __global__ void memory_without_a_map(const unsigned* x, unsigned* y) {
    __shared__ alignas(128) unsigned s[64];
    __shared__ u64 b;
    unsigned t = threadIdx.x;
    if (t == 0) start(&b, 1);
    __syncthreads();
    if (t == 0) { expect(&b, 128); load_box(s, (const Map*)x, 0, 0, &b); }
    wait(&b, 0);
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

extern "C" __global__ void swizzle_replaced_by_a_narrow_one(const unsigned* x, unsigned* y, const __grid_constant__ Map m) {
    __shared__ alignas(128) unsigned s[64];
    __shared__ u64 b;
    unsigned t = threadIdx.x;
    if (t == 0) start(&b, 1);
    __syncthreads();
    __shared__ alignas(128) Map changed;
    if (t < 16) changed.opaque[t] = m.opaque[t];
    __syncthreads();
    if (t == 0) {
        asm volatile("tensormap.replace.tile.box_dim.shared::cta.b1024.b32 [%0], 0, %1;" ::"r"(at(&changed)), "r"(16) : "memory");
        asm volatile("tensormap.replace.tile.swizzle_mode.shared::cta.b1024.b32 [%0], 1;" ::"r"(at(&changed)) : "memory");
        for (int n = 0; n < 16; n++) ((u64*)y)[n] = changed.opaque[n];
        asm volatile("fence.proxy.tensormap::generic.acquire.gpu [%0], 128;" ::"l"(y) : "memory");
        expect(&b, 256);
        load_box(s, (const Map*)y, 0, 0, &b);
    }
    wait(&b, 0);
}
