// Bulk copies and tensor maps as they are used well: no finding, and the right numbers.
//@ arch: sm_90a
//@ run ring_of_tiles: ring_of_tiles grid=2 block=160
//@   in x: u32[4096] bits
//@   inout y: u32[4096] zero raw
//@   map m: x u32 dims=64,64 strides=256 box=32,16 swizzle=3
//@ run ring_with_stores: ring_with_stores grid=1 block=160
//@   in x: u32[4096] bits
//@   inout y: u32[4096] zero raw
//@   map in: x u32 dims=64,64 strides=256 box=32,16 swizzle=3
//@   map out: y u32 dims=64,64 strides=256 box=32,16
//@ run epilogue: epilogue grid=1 block=128
//@   in x: u32[2048] bits
//@   inout y: u32[2048] zero raw
//@   map m: y u32 dims=32,60 strides=128 box=32,8
//@ run bulk_in_and_out: bulk_in_and_out grid=4 block=64
//@   in x: u32[1024] bits
//@   inout y: u32[1024] zero raw
//@ run sums: sums grid=4 block=64
//@   in x: u32[256] int(0, 100)
//@   inout y: u32[64] zero raw
//@ run pixels: pixels grid=1 block=64
//@   in x: u32[2304] bits
//@   inout y: u32[512] zero raw
//@   map m: x u32 dims=16,6,6,4 strides=64,384,2304 lower=-1,-1 upper=-1,-1 channels=8 pixels=64
//@ run arrivals: arrivals grid=1 block=96
//@   inout y: u32[96] zero raw
//@ run token_waits: token_waits grid=1 block=64
//@   in x: u32[64] bits
//@   inout y: u32[64] zero raw
//@ run global_behind_a_fence: global_behind_a_fence grid=1 block=64
//@   in x: u32[64] bits
//@   inout y: u32[64] zero raw
//@ run waits_for_another_warp: waits_for_another_warp grid=1 block=64
//@   in x: u32[64] bits
//@   inout y: u32[64] zero raw
//@ run replaced_map: replaced_map grid=1 block=32
//@   in x: u32[256] bits
//@   inout y: u32[256] zero raw
//@   map m: x u32 dims=8,8 strides=32 box=8,4
//@ run triton_forms: triton_forms grid=2 block=128
//@   in x: u32[4096] bits
//@   inout y: u32[4096] zero raw
//@   map in: x u32 dims=64,64 strides=256 box=32,32 swizzle=3
//@   map out: y u32 dims=64,64 strides=256 box=32,32 swizzle=3
//@ run cutlass_forms: cutlass_forms grid=1 block=288
//@   in x: u32[4096] bits
//@   inout y: u32[4096] zero raw
//@   map in: x u32 dims=64,64 strides=256 box=32,16 swizzle=3
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

// Each kernel looks at what it has copied: a wrong word ends it.
__device__ void same(unsigned have, unsigned want) { if (have != want) __trap(); }
__device__ unsigned swizzled(unsigned byte) { return byte ^ (byte >> 7 & 7) << 4; }

// A producer's warp fills a ring, consumers read swizzled tiles, two tiles of 16 rows in a stage.
extern "C" __global__ void ring_of_tiles(const unsigned* x, unsigned* y, const __grid_constant__ Map m) {
    __shared__ alignas(1024) unsigned char s[3][4096];
    __shared__ u64 full[3], empty[3];
    unsigned t = threadIdx.x;
    if (t == 0)
        for (int n = 0; n < 3; n++) { start(&full[n], 1); start(&empty[n], 128); }
    __syncthreads();
    if (t >= 128) {
        if (t == 128)
            for (unsigned k = 0; k < 8; k++) {
                unsigned stage = k % 3, parity = k / 3 & 1;
                wait(&empty[stage], parity ^ 1);
                expect(&full[stage], 4096);
                load_box(s[stage], &m, 32 * (k & 1), 16 * (k / 2), &full[stage]);
                load_box(s[stage] + 2048, &m, 32 * (k & 1), 16 * (k / 2), &full[stage]);
            }
    } else {
        for (unsigned k = 0; k < 8; k++) {
            unsigned stage = k % 3, parity = k / 3 & 1;
            wait(&full[stage], parity);
            for (unsigned n = t; n < 1024; n += 128) {
                unsigned have = *(unsigned*)(s[stage] + swizzled(4 * n)), row = n / 32 % 16;
                unsigned where = (16 * (k / 2) + row) * 64 + 32 * (k & 1) + n % 32;
                same(have, x[where]);
                if (blockIdx.x == 0 && n < 512) y[where] = have + 1;
            }
            arrive(&empty[stage]);
        }
    }
}

// The same with a store of each tile, from a slot that the next store waits for.
extern "C" __global__ void ring_with_stores(const unsigned* x, unsigned* y, const __grid_constant__ Map in, const __grid_constant__ Map out) {
    __shared__ alignas(1024) unsigned char s[2][2048];
    __shared__ alignas(128) unsigned o[512];
    __shared__ u64 full[2], empty[2];
    unsigned t = threadIdx.x;
    if (t == 0)
        for (int n = 0; n < 2; n++) { start(&full[n], 1); start(&empty[n], 4); }
    __syncthreads();
    if (t >= 128) {
        if (t == 128)
            for (unsigned k = 0; k < 8; k++) {
                unsigned stage = k & 1;
                wait(&empty[stage], k / 2 & 1 ^ 1);
                expect(&full[stage], 2048);
                load_box(s[stage], &in, 32 * (k & 1), 16 * (k / 2), &full[stage]);
            }
        return;
    }
    for (unsigned k = 0; k < 8; k++) {
        unsigned stage = k & 1;
        wait(&full[stage], k / 2 & 1);
        unsigned have[4];
        for (unsigned n = 0; n < 4; n++) have[n] = *(unsigned*)(s[stage] + swizzled(4 * (t + 128 * n)));
        __syncwarp();
        if (t % 32 == 0) arrive(&empty[stage]);
        if (t == 0) wait_read<0>();
        asm volatile("bar.sync 1, 128;" ::: "memory");
        for (unsigned n = 0; n < 4; n++) o[t + 128 * n] = have[n] ^ 5;
        fence();
        asm volatile("bar.sync 1, 128;" ::: "memory");
        if (t == 0) { store_box(&out, 32 * (k & 1), 16 * (k / 2), o); commit(); }
    }
    if (t == 0) wait_all<0>();
    asm volatile("bar.sync 1, 128;" ::: "memory");
    for (unsigned n = t; n < 4096; n += 128) same(y[n], x[n] ^ 5);
}

// Rows behind the tensor's end drop out.
extern "C" __global__ void epilogue(const unsigned* x, unsigned* y, const __grid_constant__ Map m) {
    __shared__ alignas(128) unsigned s[2][256];
    unsigned t = threadIdx.x;
    for (unsigned k = 0; k < 8; k++) {
        if (t == 0) wait_read<1>();
        __syncthreads();
        s[k & 1][t] = x[256 * k + t];
        s[k & 1][t + 128] = x[256 * k + t + 128];
        fence();
        __syncthreads();
        if (t == 0) { store_box(&m, 0, 8 * k, s[k & 1]); commit(); }
    }
    if (t == 0) wait_all<0>();
    __syncthreads();
    for (unsigned n = t; n < 2048; n += 128) same(y[n], n < 1920 ? x[n] : 0);
}

extern "C" __global__ void bulk_in_and_out(const unsigned* x, unsigned* y) {
    __shared__ alignas(16) unsigned s[256];
    __shared__ u64 b;
    unsigned t = threadIdx.x, first = 256 * blockIdx.x;
    if (t == 0) { start(&b, 1); expect(&b, 1024); load(s, x + first, 1024, &b); }
    __syncthreads();
    wait(&b, 0);
    for (unsigned n = t; n < 256; n += 64) s[n] += n;
    fence();
    __syncthreads();
    if (t == 0) { store(y + first, s, 1024); commit(); wait_read<0>(); }
}

// Blocks add to the same words.
extern "C" __global__ void sums(const unsigned* x, unsigned* y) {
    __shared__ alignas(16) unsigned s[64];
    unsigned t = threadIdx.x;
    s[t] = x[64 * blockIdx.x + t];
    fence();
    __syncthreads();
    if (t == 0) {
        asm volatile("cp.reduce.async.bulk.global.shared::cta.bulk_group.add.u32 [%0], [%1], 256;" ::"l"(y), "r"(at(s)) : "memory");
        commit();
        wait_all<0>();
    }
}

// 36 pixels of an image with a border of one, then the next image.
extern "C" __global__ void pixels(const unsigned* x, unsigned* y, const __grid_constant__ Map m) {
    __shared__ alignas(128) unsigned s[512];
    __shared__ u64 b;
    unsigned t = threadIdx.x;
    if (t == 0) {
        start(&b, 1);
        expect(&b, 2048);
        asm volatile("cp.async.bulk.tensor.4d.shared::cluster.global.im2col.mbarrier::complete_tx::bytes [%0], [%1, {%2, %3, %3, %4}], [%5], {%6, %7};"
            ::"r"(at(s)), "l"(&m), "r"(8), "r"(-1), "r"(1), "r"(at(&b)), "h"((unsigned short)2), "h"((unsigned short)1) : "memory");
    }
    __syncthreads();
    wait(&b, 0);
    for (unsigned n = t; n < 512; n += 64) {
        unsigned pixel = n / 8, image = 1 + pixel / 36;
        int row = (int)(pixel / 6 % 6) - 1 + 1, column = (int)(pixel % 6) - 1 + 2;
        bool inside = row >= 0 && row < 6 && column >= 0 && column < 6;
        same(s[n], inside ? x[((image * 6 + row) * 6 + column) * 16 + 8 + n % 8] : 0);
        y[n] = s[n];
    }
}

// Counts, drops and tokens of arrivals.
extern "C" __global__ void arrivals(unsigned* y) {
    __shared__ u64 b;
    __shared__ unsigned s[96];
    unsigned t = threadIdx.x;
    if (t == 0) start(&b, 96);
    __syncthreads();
    s[t] = t;
    u64 token;
    if (t < 32) asm volatile("mbarrier.arrive_drop.release.cta.shared::cta.b64 %0, [%1];" : "=l"(token) : "r"(at(&b)) : "memory");
    else asm volatile("mbarrier.arrive.release.cta.shared::cta.b64 %0, [%1];" : "=l"(token) : "r"(at(&b)) : "memory");
    unsigned pending;
    asm volatile("mbarrier.pending_count.b64 %0, %1;" : "=r"(pending) : "l"(token));
    if (pending == 0 || pending > 96) __trap();
    wait(&b, 0);
    y[t] = s[95 - t];
    if (t >= 32) {
        // Those that have dropped out are not waited for.
        arrive(&b);
        wait(&b, 1);
        y[t] += 1;
    }
}

extern "C" __global__ void token_waits(const unsigned* x, unsigned* y) {
    __shared__ alignas(16) unsigned s[64];
    __shared__ u64 b;
    unsigned t = threadIdx.x;
    if (t == 0) start(&b, 64);
    __syncthreads();
    u64 token;
    if (t == 0) {
        asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 %0, [%1], 256;" : "=l"(token) : "r"(at(&b)) : "memory");
        load(s, x, 256, &b);
    } else {
        asm volatile("mbarrier.arrive.shared::cta.b64 %0, [%1];" : "=l"(token) : "r"(at(&b)) : "memory");
    }
    unsigned done = 0;
    while (!done)
        asm volatile("{ .reg .pred p; mbarrier.try_wait.acquire.cta.shared::cta.b64 p, [%1], %2, 1000; selp.u32 %0, 1, 0, p; }"
            : "=r"(done) : "r"(at(&b)), "l"(token) : "memory");
    same(s[t], x[t]);
    y[t] = s[t];
}

extern "C" __global__ void global_behind_a_fence(const unsigned* x, unsigned* y) {
    __shared__ alignas(16) unsigned s[64];
    __shared__ u64 b;
    unsigned t = threadIdx.x;
    if (t == 0) start(&b, 1);
    y[t] = x[t] + 3;
    asm volatile("fence.proxy.async;" ::: "memory");
    __syncthreads();
    if (t == 0) { expect(&b, 256); load(s, y, 256, &b); }
    wait(&b, 0);
    same(s[63 - t], x[63 - t] + 3);
}

// A long wait is no deadlock.
extern "C" __global__ void waits_for_another_warp(const unsigned* x, unsigned* y) {
    __shared__ u64 b;
    unsigned t = threadIdx.x, v = x[t];
    if (t == 0) start(&b, 1);
    __syncthreads();
    if (t < 32) {
        wait(&b, 0);
    } else {
        for (unsigned n = 0; n < 200000; n++) v = v * 1664525 + 1013904223;
        if (t == 32) arrive(&b);
    }
    y[t] = v;
}

extern "C" __global__ void replaced_map(const unsigned* x, unsigned* y, const __grid_constant__ Map m) {
    __shared__ alignas(128) Map changed;
    __shared__ alignas(128) unsigned s[64];
    __shared__ u64 b;
    unsigned t = threadIdx.x;
    if (t < 16) changed.opaque[t] = m.opaque[t];
    if (t == 0) start(&b, 1);
    __syncwarp();
    if (t == 0) {
        asm volatile("tensormap.replace.tile.global_address.shared::cta.b1024.b64 [%0], %1;" ::"r"(at(&changed)), "l"(x + 128) : "memory");
        asm volatile("tensormap.replace.tile.box_dim.shared::cta.b1024.b32 [%0], 1, %1;" ::"r"(at(&changed)), "r"(8) : "memory");
    }
    __syncwarp();
    asm volatile("tensormap.cp_fenceproxy.global.shared::cta.tensormap::generic.release.gpu.sync.aligned [%0], [%1], 128;"
        ::"l"(y), "r"(at(&changed)) : "memory");
    asm volatile("fence.proxy.tensormap::generic.acquire.gpu [%0], 128;" ::"l"(y) : "memory");
    if (t == 0) { expect(&b, 256); load_box(s, (const Map*)y, 0, 0, &b); }
    wait(&b, 0);
    same(s[t], x[128 + t]);
    same(s[t + 32], x[160 + t]);
}

// As Triton writes it: predicates, one elected lane of the first warp, loops in braces, two slots.
extern "C" __global__ void triton_forms(const unsigned* x, unsigned* y, const __grid_constant__ Map in, const __grid_constant__ Map out) {
    __shared__ alignas(1024) unsigned char s[3][4096];
    __shared__ u64 b[2];
    unsigned t = threadIdx.x, column = 32 * blockIdx.x;
    asm volatile("{ .reg .pred p; setp.eq.u32 p, %0, 0; @p mbarrier.init.shared::cta.b64 [%1], 1; @p mbarrier.init.shared::cta.b64 [%2], 1; }"
        ::"r"(t), "r"(at(&b[0])), "r"(at(&b[1])) : "memory");
    __syncthreads();
    for (unsigned k = 0; k < 2; k++)
        asm volatile("{ .reg .pred p, q, r; setp.eq.u32 p, %0, 0; @p mbarrier.arrive.expect_tx.shared.b64 _, [%1], 4096;\n"
            "setp.lt.u32 q, %0, 32; @!q bra DONE; elect.sync _|r, 0xffffffff;\n"
            "@r cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes [%2], [%3, {%4, %5}], [%1];\nDONE: }"
            ::"r"(t), "r"(at(&b[k])), "r"(at(s[k])), "l"(&in), "r"(column), "r"(32 * k) : "memory");
    for (unsigned k = 0; k < 2; k++) {
        asm volatile("{ .reg .pred complete; waitLoop: mbarrier.try_wait.parity.shared.b64 complete, [%0], %1; @!complete bra.uni waitLoop; }"
            ::"r"(at(&b[k])), "r"(0) : "memory");
        for (unsigned n = t; n < 1024; n += 128) {
            unsigned where = swizzled(4 * n);
            *(unsigned*)(s[2] + where) = ~*(unsigned*)(s[k] + where);
        }
        asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
        __syncthreads();
        asm volatile("{ .reg .pred p; setp.eq.u32 p, %0, 0;\n"
            "@p cp.async.bulk.tensor.2d.global.shared::cta.bulk_group [%1, {%2, %3}], [%4]; cp.async.bulk.commit_group; cp.async.bulk.wait_group.read 0; }"
            ::"r"(t), "l"(&out), "r"(column), "r"(32 * k), "r"(at(s[2])) : "memory");
        __syncthreads();
    }
    asm volatile("{ .reg .pred p; setp.eq.u32 p, %0, 0; @p mbarrier.inval.shared::cta.b64 [%1]; @p mbarrier.inval.shared::cta.b64 [%2]; }"
        ::"r"(t), "r"(at(&b[0])), "r"(at(&b[1])) : "memory");
}

// As CUTLASS does it: a producer's warp whose elected lane waits and loads, two groups of consumers
// that take tiles by turns, try the phase before they wait, and free slots by one lane of each warp.
extern "C" __global__ void cutlass_forms(const unsigned* x, unsigned* y, const __grid_constant__ Map in) {
    __shared__ alignas(1024) unsigned char s[3][2048];
    __shared__ u64 full[3], empty[3];
    unsigned warp = threadIdx.x / 32, t = threadIdx.x % 128;
    if (threadIdx.x == 0) {
        for (int n = 0; n < 3; n++) {
            asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(at(&full[n])), "r"(1));
            asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(at(&empty[n])), "r"(4));
        }
        asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
    }
    __syncthreads();
    if (warp == 8) {
        unsigned elected;
        asm volatile("{ .reg .pred p; elect.sync _|p, 0xffffffff; selp.u32 %0, 1, 0, p; }" : "=r"(elected));
        if (elected)
            for (unsigned k = 0; k < 8; k++) {
                unsigned slot = k % 3, phase = k / 3 & 1 ^ 1;
                wait(&empty[slot], phase);
                expect(&full[slot], 2048);
                load_box(s[slot], &in, 32 * (k & 1), 16 * (k / 2), &full[slot]);
            }
        // The tail waits until all slots are free.
        if (elected)
            for (unsigned k = 8; k < 11; k++) wait(&empty[k % 3], k / 3 & 1 ^ 1);
        return;
    }
    for (unsigned k = warp / 4; k < 8; k += 2) {
        unsigned slot = k % 3, phase = k / 3 & 1, ready;
        asm volatile("{ .reg .pred p; mbarrier.try_wait.parity.shared::cta.b64 p, [%1], %2; selp.b32 %0, 1, 0, p; }"
            : "=r"(ready) : "r"(at(&full[slot])), "r"(phase) : "memory");
        if (!ready) wait(&full[slot], phase);
        for (unsigned n = t; n < 512; n += 128) {
            unsigned where = (16 * (k / 2) + n / 32) * 64 + 32 * (k & 1) + n % 32;
            unsigned have = *(unsigned*)(s[slot] + swizzled(4 * n));
            same(have, x[where]);
            y[where] = have;
        }
        __syncwarp();
        if (threadIdx.x % 32 == 0) arrive(&empty[slot]);
    }
}
