// Clusters of blocks that use each other's shared memory as they must not.
//@ run clusters_no_barrier_before: no_barrier_before grid=2 block=64
//@   inout y: u32[128] zero raw
//@   finds absent cluster peer, shared memory race
//@ run clusters_no_barrier_between: no_barrier_between grid=2 block=64
//@   inout y: u32[128] zero raw
//@   finds shared memory race
//@ run clusters_block_barrier_only: block_barrier_only grid=2 block=64
//@   inout y: u32[128] zero raw
//@   finds shared memory race
//@ run clusters_overwritten_early: overwritten_early grid=4 block=64
//@   inout y: u32[256] zero raw
//@   finds shared memory race
//@ run clusters_peer_exits: peer_exits grid=2 block=64
//@   inout y: u32[128] zero raw
//@   finds absent cluster peer, cluster peer has exited
//@ run clusters_peer_has_exited: peer_has_exited grid=2 block=64
//@   inout y: u32[64] zero raw
//@   finds absent cluster peer, cluster peer has exited
//@ run clusters_histogram_exits: histogram_exits grid=2 block=64
//@   inout y: u32[64] iota raw
//@   finds absent cluster peer, cluster peer has exited
//@ run clusters_uninitialised: uninitialised grid=2 block=64
//@   inout y: u32[128] zero raw
//@   finds uninitialised read
//@ run clusters_out_of_bounds: out_of_bounds grid=2 block=64
//@   inout y: u32[128] zero raw
//@   finds out of bounds
//@ run clusters_misaligned: misaligned grid=2 block=32
//@   inout y: u32[64] zero raw
//@   finds misaligned
//@ run clusters_rank_out_of_range: rank_out_of_range grid=2 block=32
//@   inout y: u32[64] zero raw
//@   finds out of bounds
//@ run clusters_half_arrive: half_arrive grid=2 block=64
//@   inout y: u32[2] zero raw
//@   finds barrier divergence, deadlock
//@ run clusters_one_block_waits: one_block_waits grid=2 block=64
//@   inout y: u32[2] zero raw
//@   finds barrier divergence, deadlock
//@ run clusters_barrier_in_branch: barrier_in_branch grid=2 block=32
//@   inout y: u32[64] zero raw
//@   finds barrier divergence
//@ run clusters_arrives_twice: arrives_twice grid=2 block=32
//@   inout y: u32[2] zero raw
//@   finds barrier divergence
//@ run clusters_waits_unarrived: waits_unarrived grid=2 block=32
//@   inout y: u32[2] zero raw
//@   finds barrier divergence, deadlock
//@ run clusters_relaxed_arrival: relaxed_arrival grid=2 block=64
//@   inout y: u32[128] zero raw
//@   finds shared memory race
//@ run clusters_read_before_wait: read_before_wait grid=2 block=64
//@   inout y: u32[128] zero raw
//@   finds shared memory race
//@ run clusters_mbarrier_not_published: mbarrier_not_published grid=2 block=32
//@   inout y: u32[2] zero raw
//@   finds shared memory race, uninitialised read
//@ run clusters_mbarrier_never: mbarrier_never grid=2 block=32
//@   inout y: u32[2] zero raw
//@   finds uninitialised read
//@ run clusters_arrival_outlives: arrival_outlives grid=2 block=32
//@   inout y: u32[2] zero raw
//@   finds absent cluster peer
//@ run clusters_async_not_waited: async_not_waited grid=2 block=32
//@   inout y: u32[64] zero raw
//@   finds missing wait for an asynchronous copy
//@ run clusters_async_overwrites: async_overwrites grid=2 block=32
//@   inout y: u32[64] zero raw
//@   finds missing wait for an asynchronous copy, shared memory race
//@ run clusters_async_own_order: async_own_order grid=2 block=32
//@   inout y: u32[64] zero raw
//@   finds shared memory race
//@ run clusters_async_other_mbarrier: async_other_mbarrier grid=2 block=32
//@   inout y: u32[64] zero raw
//@   finds out of bounds
//@ run clusters_flag_without_release: flag_without_release grid=2 block=64
//@   inout y: u32[64] zero raw
//@   finds shared memory race
//@ run clusters_flag_of_block_scope: flag_of_block_scope grid=2 block=64
//@   inout y: u32[64] zero raw
//@   finds shared memory race, atomic scope too narrow
//@ run clusters_atomic_of_block_scope: atomic_of_block_scope grid=2 block=64
//@   inout y: u32[2] zero raw
//@   finds atomic scope too narrow
//@ run clusters_plain_and_atomic: plain_and_atomic grid=2 block=64
//@   inout y: u32[2] zero raw
//@   finds shared memory race
//@ run clusters_two_writers: two_writers grid=4 block=32
//@   inout y: u32[4] zero raw
//@   finds shared memory race
//@ run clusters_global_race: global_race grid=2 block=64
//@   inout x: u32[128] iota raw
//@   inout y: u32[128] zero raw
//@   finds global memory race
//@ run clusters_one_warp_arrives_twice: one_warp_arrives_twice grid=2 block=64
//@   inout y: u32[128] zero raw
//@   finds shared memory race, uninitialised read
#include <cooperative_groups.h>
namespace cg = cooperative_groups;

__device__ unsigned at(const void* p) { return (unsigned)__cvta_generic_to_shared(p); }

__device__ unsigned afar(const void* p, unsigned rank) {
    unsigned out;
    asm("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(out) : "r"(at(p)), "r"(rank));
    return out;
}

__device__ unsigned rank() {
    unsigned r;
    asm("mov.u32 %0, %%cluster_ctarank;" : "=r"(r));
    return r;
}

__device__ unsigned load(unsigned p) {
    unsigned v;
    asm volatile("ld.shared::cluster.u32 %0, [%1];" : "=r"(v) : "r"(p) : "memory");
    return v;
}

__device__ void store(unsigned p, unsigned v) {
    asm volatile("st.shared::cluster.u32 [%0], %1;" ::"r"(p), "r"(v) : "memory");
}

__device__ void start(void* b, unsigned n) {
    asm volatile("mbarrier.init.shared.b64 [%0], %1;" ::"r"(at(b)), "r"(n) : "memory");
}

__device__ void arrive_at(unsigned b) {
    asm volatile("mbarrier.arrive.release.cluster.shared::cluster.b64 _, [%0];" ::"r"(b) : "memory");
}

__device__ void expect(void* b, unsigned bytes) {
    asm volatile("mbarrier.arrive.expect_tx.shared.b64 _, [%0], %1;" ::"r"(at(b)), "r"(bytes) : "memory");
}

__device__ void wait(void* b, unsigned phase) {
    asm volatile(
        "{ .reg .pred p; AGAIN: mbarrier.try_wait.parity.acquire.cluster.shared::cta.b64 p, [%0], %1;"
        " @!p bra AGAIN; }" ::"r"(at(b)), "r"(phase) : "memory");
}

__device__ void store_async(unsigned p, unsigned v, unsigned b) {
    asm volatile("st.async.weak.shared::cluster.mbarrier::complete_tx::bytes.b32 [%0], %1, [%2];"
                 ::"r"(p), "r"(v), "r"(b) : "memory");
}

__device__ void sync() { cg::this_cluster().sync(); }

#define PAIR extern "C" __global__ __cluster_dims__(2, 1, 1)

// The other block may not have begun, let alone written.
PAIR void no_barrier_before(unsigned* y) {
    __shared__ unsigned s[64];
    unsigned t = threadIdx.x;
    s[t] = t;
    __syncthreads();
    y[blockIdx.x * 64 + t] = load(afar(&s[63 - t], rank() ^ 1));
    sync();
}

PAIR void no_barrier_between(unsigned* y) {
    __shared__ unsigned s[64];
    unsigned t = threadIdx.x;
    s[t] = 0;
    sync();
    s[t] = t;
    y[blockIdx.x * 64 + t] = load(afar(&s[t], rank() ^ 1));
    sync();
}

PAIR void block_barrier_only(unsigned* y) {
    __shared__ unsigned s[64];
    unsigned t = threadIdx.x;
    s[t] = 0;
    sync();
    store(afar(&s[t], rank() ^ 1), t + 1);
    __syncthreads();
    y[blockIdx.x * 64 + t] = s[63 - t];
    sync();
}

// A ring with one buffer, and one barrier a step.
extern "C" __global__ __cluster_dims__(4, 1, 1) void overwritten_early(unsigned* y) {
    __shared__ unsigned s[64];
    unsigned t = threadIdx.x, v = blockIdx.x * 64 + t;
    for (unsigned step = 0; step < 3; step++) {
        s[t] = v;
        sync();
        v = load(afar(&s[t], (rank() + 1) % 4));
    }
    sync();
    y[blockIdx.x * 64 + t] = v;
}

// Nothing keeps a block from ending while the other reads.
PAIR void peer_exits(unsigned* y) {
    __shared__ unsigned s[64];
    unsigned t = threadIdx.x;
    s[t] = t;
    sync();
    y[blockIdx.x * 64 + t] = load(afar(&s[63 - t], rank() ^ 1));
}

PAIR void peer_has_exited(unsigned* y) {
    __shared__ unsigned s[64];
    unsigned t = threadIdx.x;
    s[t] = t;
    sync();
    if (rank() == 1) return;
    unsigned v = 0;
    for (unsigned k = 0; k < 200000; k++) {
        v = v * 3 + k;
        if (k % 1000 == 0) __nanosleep(100);
    }
    y[t] = load(afar(&s[63 - t], 1)) + v;
}

PAIR void histogram_exits(unsigned* y) {
    __shared__ unsigned bins[64];
    unsigned t = threadIdx.x;
    bins[t] = 0;
    sync();
    atomicAdd(cg::this_cluster().map_shared_rank(&bins[(y[t] * 7) % 64], rank() ^ 1), 1);
}

PAIR void uninitialised(unsigned* y) {
    __shared__ unsigned s[64];
    unsigned t = threadIdx.x;
    if (rank() == 0) s[t] = t;
    sync();
    y[blockIdx.x * 64 + t] = load(afar(&s[t], 1));
    sync();
}

PAIR void out_of_bounds(unsigned* y) {
    __shared__ unsigned s[64];
    unsigned t = threadIdx.x;
    s[t] = t;
    sync();
    y[blockIdx.x * 64 + t] = load(afar(&s[t], rank() ^ 1) + 4 * (t == 63));
    sync();
}

PAIR void misaligned(unsigned* y) {
    __shared__ unsigned s[64];
    unsigned t = threadIdx.x;
    s[t] = s[t + 32] = t;
    sync();
    y[blockIdx.x * 32 + t] = load(afar(&s[t], rank() ^ 1) + 2 * (t == 7));
    sync();
}

PAIR void rank_out_of_range(unsigned* y) {
    __shared__ unsigned s[32];
    unsigned t = threadIdx.x;
    s[t] = t;
    sync();
    unsigned p = afar(&s[t], rank() + 1);
    if (rank() == 0) y[t] = load(p);
    sync();
}

// A warp of one block never comes.
PAIR void half_arrive(unsigned* y) {
    if (rank() == 0 || threadIdx.x < 32) sync();
    else __syncthreads();
    if (threadIdx.x == 0) y[rank()] = 1;
}

PAIR void one_block_waits(unsigned* y) {
    if (rank() == 0) {
        sync();
    } else {
        // Waits for threads of its own block that wait for the other block.
        if (threadIdx.x < 32) asm volatile("bar.sync 1, 64;" ::: "memory");
        else sync();
    }
    if (threadIdx.x == 0) y[rank()] = 1;
}

PAIR void barrier_in_branch(unsigned* y) {
    unsigned t = threadIdx.x;
    if (t & 1) {
        y[blockIdx.x * 32 + t] = 1;
        asm volatile("barrier.cluster.arrive.aligned;\nbarrier.cluster.wait.aligned;" ::: "memory");
    } else {
        y[blockIdx.x * 32 + t] = 2;
        asm volatile("barrier.cluster.arrive.aligned;\nbarrier.cluster.wait.aligned;" ::: "memory");
    }
    y[blockIdx.x * 32 + t] += 2;
}

PAIR void arrives_twice(unsigned* y) {
    asm volatile("barrier.cluster.arrive.aligned;" ::: "memory");
    asm volatile("barrier.cluster.arrive.aligned;" ::: "memory");
    asm volatile("barrier.cluster.wait.aligned;" ::: "memory");
    if (threadIdx.x == 0) y[rank()] = 1;
}

PAIR void waits_unarrived(unsigned* y) {
    asm volatile("barrier.cluster.wait.aligned;" ::: "memory");
    if (threadIdx.x == 0) y[rank()] = 1;
}

// The arrival tells nothing of the store before it.
PAIR void relaxed_arrival(unsigned* y) {
    __shared__ unsigned s[64];
    unsigned t = threadIdx.x;
    s[t] = 0;
    sync();
    s[t] = t;
    asm volatile("barrier.cluster.arrive.relaxed.aligned;\nbarrier.cluster.wait.aligned;" ::: "memory");
    y[blockIdx.x * 64 + t] = load(afar(&s[63 - t], rank() ^ 1));
    sync();
}

PAIR void read_before_wait(unsigned* y) {
    __shared__ unsigned s[64];
    unsigned t = threadIdx.x;
    s[t] = 0;
    sync();
    s[t] = t;
    asm volatile("barrier.cluster.arrive.aligned;" ::: "memory");
    y[blockIdx.x * 64 + t] = load(afar(&s[63 - t], rank() ^ 1));
    asm volatile("barrier.cluster.wait.aligned;" ::: "memory");
    sync();
}

PAIR void mbarrier_not_published(unsigned* y) {
    __shared__ unsigned long long b;
    if (threadIdx.x == 0) start(&b, 2);
    __syncthreads();
    if (threadIdx.x < 2) arrive_at(afar(&b, threadIdx.x));
    sync();
    if (threadIdx.x == 0) y[rank()] = 1;
}

PAIR void mbarrier_never(unsigned* y) {
    __shared__ unsigned long long b;
    if (rank() == 0 && threadIdx.x == 0) start(&b, 1);
    sync();
    if (rank() == 0 && threadIdx.x == 0) arrive_at(afar(&b, 1));
    sync();
    if (threadIdx.x == 0) y[rank()] = 1;
}

// The last arrival is at a block that does not wait for it.
PAIR void arrival_outlives(unsigned* y) {
    __shared__ unsigned long long b;
    if (threadIdx.x == 0) start(&b, 1);
    sync();
    if (rank() == 0 && threadIdx.x == 0) arrive_at(afar(&b, 1));
    if (threadIdx.x == 0) y[rank()] = 1;
}

PAIR void async_not_waited(unsigned* y) {
    __shared__ unsigned s[32];
    __shared__ unsigned long long full;
    unsigned t = threadIdx.x, to = rank() ^ 1;
    if (t == 0) {
        start(&full, 1);
        expect(&full, 128);
    }
    sync();
    store_async(afar(&s[t], to), t, afar(&full, to));
    sync();
    y[blockIdx.x * 32 + t] = s[t];
    wait(&full, 0);
}

// The data may come while the block still reads what was there.
PAIR void async_overwrites(unsigned* y) {
    __shared__ unsigned s[32];
    __shared__ unsigned long long full;
    unsigned t = threadIdx.x, to = rank() ^ 1;
    s[t] = 1;
    if (t == 0) {
        start(&full, 1);
        expect(&full, 128);
    }
    sync();
    unsigned v = s[31 - t];
    store_async(afar(&s[t], to), t, afar(&full, to));
    wait(&full, 0);
    y[blockIdx.x * 32 + t] = s[t] + v;
    sync();
}

// Two of one thread have no order.
PAIR void async_own_order(unsigned* y) {
    __shared__ unsigned s[32];
    __shared__ unsigned long long full[2];
    unsigned t = threadIdx.x, to = rank() ^ 1;
    if (t < 2) {
        start(&full[t], 1);
        expect(&full[t], 128);
    }
    sync();
    store_async(afar(&s[t], to), t, afar(&full[0], to));
    store_async(afar(&s[t], to), t + 1, afar(&full[1], to));
    wait(&full[0], 0);
    wait(&full[1], 0);
    y[blockIdx.x * 32 + t] = s[t];
    sync();
}

PAIR void async_other_mbarrier(unsigned* y) {
    __shared__ unsigned s[32];
    __shared__ unsigned long long full;
    unsigned t = threadIdx.x, to = rank() ^ 1;
    if (t == 0) {
        start(&full, 1);
        expect(&full, 128);
    }
    sync();
    store_async(afar(&s[t], to), t, afar(&full, rank()));
    wait(&full, 0);
    y[blockIdx.x * 32 + t] = s[t];
    sync();
}

PAIR void flag_without_release(unsigned* y) {
    __shared__ unsigned s[64], flag;
    unsigned t = threadIdx.x;
    if (t == 0) flag = 0;
    sync();
    if (rank() == 0) {
        store(afar(&s[t], 1), t + 7);
        __syncthreads();
        if (t == 0) asm volatile("st.relaxed.cluster.shared::cluster.u32 [%0], 1;" ::"r"(afar(&flag, 1)) : "memory");
    } else {
        unsigned seen = 0;
        while (!seen) asm volatile("ld.acquire.cluster.shared::cta.u32 %0, [%1];" : "=r"(seen) : "r"(at(&flag)) : "memory");
        y[t] = s[63 - t];
    }
    sync();
}

PAIR void flag_of_block_scope(unsigned* y) {
    __shared__ unsigned s[64], flag;
    unsigned t = threadIdx.x;
    if (t == 0) flag = 0;
    sync();
    if (rank() == 0) {
        store(afar(&s[t], 1), t + 7);
        __syncthreads();
        if (t == 0) asm volatile("st.release.cta.shared::cluster.u32 [%0], 1;" ::"r"(afar(&flag, 1)) : "memory");
    } else {
        unsigned seen = 0;
        while (!seen) asm volatile("ld.acquire.cluster.shared::cta.u32 %0, [%1];" : "=r"(seen) : "r"(at(&flag)) : "memory");
        y[t] = s[63 - t];
    }
    sync();
}

PAIR void atomic_of_block_scope(unsigned* y) {
    __shared__ unsigned count;
    if (threadIdx.x == 0) count = 0;
    sync();
    if (rank() == 1) atomicAdd(cg::this_cluster().map_shared_rank(&count, 0), 1);
    else atomicAdd_block(&count, 1);
    sync();
    if (threadIdx.x == 0) y[rank()] = count;
}

PAIR void plain_and_atomic(unsigned* y) {
    __shared__ unsigned count;
    if (threadIdx.x == 0) count = 0;
    sync();
    if (rank() == 1) atomicAdd(cg::this_cluster().map_shared_rank(&count, 0), 1);
    else if (threadIdx.x == 0) count = 5;
    sync();
    if (threadIdx.x == 0) y[rank()] = count;
}

extern "C" __global__ __cluster_dims__(4, 1, 1) void two_writers(unsigned* y) {
    __shared__ unsigned s;
    if (threadIdx.x == 0) s = 0;
    sync();
    if (threadIdx.x == 0 && rank() != 0) store(afar(&s, 0), rank());
    sync();
    if (threadIdx.x == 0) y[rank()] = s;
}

PAIR void global_race(unsigned* x, unsigned* y) {
    unsigned i = blockIdx.x * 64 + threadIdx.x;
    sync();
    x[i] += 5;
    __syncthreads();
    y[i] = x[127 - i];
}

// A warp arrives for the next step before the other has for this one.
PAIR void one_warp_arrives_twice(unsigned* y) {
    __shared__ unsigned s[2][64];
    __shared__ unsigned long long full;
    unsigned t = threadIdx.x, to = rank() ^ 1;
    if (t == 0) start(&full, 64);
    sync();
    for (unsigned k = 0; t >= 32 && k < 500; k++) __nanosleep(100);
    store(afar(&s[0][t], to), t);
    arrive_at(afar(&full, to));
    if (t < 32) {
        store(afar(&s[1][t], to), t);
        arrive_at(afar(&full, to));
    }
    wait(&full, 0);
    y[blockIdx.x * 64 + t] = s[0][63 - t];
    sync();
}
