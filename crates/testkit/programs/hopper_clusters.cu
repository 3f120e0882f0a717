// Clusters of blocks that use each other's shared memory as they should.
//@ run clusters_softmax_row: softmax_row grid=8 block=128
//@   in x: f32[2048] uniform(-4, 4)
//@   inout y: f32[2048] zero raw
//@ run clusters_histogram: histogram grid=4 block=128
//@   in x: u32[4096] int(0, 511)
//@   inout bins: u32[512] zero raw
//@   val n: i32 4096
//@ run clusters_ring: ring grid=8 block=64
//@   in x: u32[512] iota
//@   inout y: u32[512] zero raw
//@ run clusters_ring_of_stores: ring_of_stores grid=4 block=64
//@   in x: u32[256] iota
//@   inout y: u32[256] zero raw
//@ run clusters_remote_mbarrier: remote_mbarrier grid=4 block=64
//@   in x: u32[256] iota
//@   inout y: u32[256] zero raw
//@ run clusters_async_stores: async_stores grid=4 block=32
//@   in x: u32[128] iota
//@   inout y: u32[128] zero raw
//@ run clusters_async_sums: async_sums grid=2 block=64
//@   in x: u32[128] iota
//@   inout y: u32[2] zero raw
//@ run clusters_flags: flags grid=2 block=64
//@   in x: u32[64] iota
//@   inout y: u32[64] zero raw
//@ run clusters_global_data: global_data grid=4 block=64
//@   inout x: u32[256] iota raw
//@   inout y: u32[256] zero raw
//@ run clusters_early_exit: early_exit grid=4 block=96
//@   inout y: u32[4] zero raw
//@ run clusters_split_barrier: split_barrier grid=4 block=64
//@   in x: u32[256] iota
//@   inout y: u32[256] zero raw
//@ run clusters_relaxed_start: relaxed_start grid=4 block=64
//@   inout y: u32[4] zero raw
//@ run clusters_three_axes: three_axes grid=4,4,2 block=8,4
//@   inout y: u32[32] zero raw
//@ run clusters_of_a_grid: of_a_grid grid=8 block=64 cooperative
//@   inout partial: u32[8] zero raw
//@   inout y: u32[8] zero raw
//@ run clusters_one_block: one_block grid=3 block=64
//@   inout y: u32[192] zero raw
//@ run clusters_atomics_of_all: atomics_of_all grid=4 block=64
//@   inout y: u32[2] zero raw
//@ run clusters_full_and_empty: full_and_empty grid=2 block=64
//@   in x: u32[512] iota
//@   inout y: u32[64] zero raw
//@ run clusters_by_headers: by_headers grid=4 block=64
//@   in x: u32[256] iota
//@   inout y: u32[256] zero raw
//@ run clusters_group_members: group_members grid=4 block=64
//@   inout y: u32[256] zero raw
#include <cooperative_groups.h>
#include <cuda/barrier>
#include <cuda/ptx>
namespace cg = cooperative_groups;

__device__ unsigned at(const void* p) { return (unsigned)__cvta_generic_to_shared(p); }

// The place of `p` in the block of `rank`.
__device__ unsigned afar(const void* p, unsigned rank) {
    unsigned out;
    asm("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(out) : "r"(at(p)), "r"(rank));
    return out;
}

__device__ void start(void* b, unsigned n) {
    asm volatile("mbarrier.init.shared.b64 [%0], %1;" ::"r"(at(b)), "r"(n) : "memory");
    asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
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

__device__ float sum_of_block(float v, float* s) {
    s[threadIdx.x] = v;
    __syncthreads();
    for (unsigned half = blockDim.x / 2; half; half /= 2) {
        if (threadIdx.x < half) s[threadIdx.x] += s[threadIdx.x + half];
        __syncthreads();
    }
    float sum = s[0];
    __syncthreads();
    return sum;
}

// A row of 1024 numbers for each cluster of four blocks.
extern "C" __global__ __cluster_dims__(4, 1, 1) void softmax_row(const float* x, float* y) {
    cg::cluster_group cluster = cg::this_cluster();
    __shared__ float s[128], part[2];
    unsigned row = blockIdx.x / 4, first = row * 1024 + cluster.block_rank() * 256 + threadIdx.x;
    float a = x[first], b = x[first + 128];
    s[threadIdx.x] = fmaxf(a, b);
    __syncthreads();
    for (unsigned half = 64; half; half /= 2) {
        if (threadIdx.x < half) s[threadIdx.x] = fmaxf(s[threadIdx.x], s[threadIdx.x + half]);
        __syncthreads();
    }
    if (threadIdx.x == 0) part[0] = s[0];
    cluster.sync();
    float most = part[0];
    for (unsigned r = 0; r < cluster.num_blocks(); r++) most = fmaxf(most, *cluster.map_shared_rank(&part[0], r));
    a = __expf(a - most);
    b = __expf(b - most);
    float sum = sum_of_block(a + b, s);
    if (threadIdx.x == 0) part[1] = sum;
    cluster.sync();
    sum = 0;
    for (unsigned r = 0; r < cluster.num_blocks(); r++) sum += *cluster.map_shared_rank(&part[1], r);
    y[first] = a / sum;
    y[first + 128] = b / sum;
    // The others read part[1].
    cluster.sync();
}

// As in NVIDIA's guide: each block of a cluster has a part of the bins.
extern "C" __global__ __cluster_dims__(2, 1, 1) void histogram(const unsigned* x, unsigned* bins, int n) {
    cg::cluster_group cluster = cg::this_cluster();
    __shared__ unsigned own[256];
    for (unsigned k = threadIdx.x; k < 256; k += blockDim.x) own[k] = 0;
    cluster.sync();
    for (int k = blockIdx.x * blockDim.x + threadIdx.x; k < n; k += gridDim.x * blockDim.x) {
        unsigned bin = x[k];
        unsigned* there = cluster.map_shared_rank(own, bin / 256);
        atomicAdd(there + bin % 256, 1);
    }
    cluster.sync();
    for (unsigned k = threadIdx.x; k < 256; k += blockDim.x) {
        atomicAdd(&bins[cluster.block_rank() * 256 + k], own[k]);
    }
}

// Each block reads what its neighbour has, step by step.
extern "C" __global__ __cluster_dims__(8, 1, 1) void ring(const unsigned* x, unsigned* y) {
    cg::cluster_group cluster = cg::this_cluster();
    __shared__ unsigned s[2][64];
    unsigned t = threadIdx.x, rank = cluster.block_rank(), v = x[blockIdx.x * 64 + t], sum = v;
    s[0][t] = v;
    for (unsigned step = 1; step < 8; step++) {
        cluster.sync();
        v = *cluster.map_shared_rank(&s[(step - 1) & 1][t], (rank + 1) % 8);
        sum += v;
        s[step & 1][t] = v;
    }
    cluster.sync();
    y[blockIdx.x * 64 + t] = sum;
}

// The same by stores into the neighbour, with an arrival at its mbarrier.
extern "C" __global__ __cluster_dims__(4, 1, 1) void ring_of_stores(const unsigned* x, unsigned* y) {
    cg::cluster_group cluster = cg::this_cluster();
    __shared__ unsigned s[4][64];
    __shared__ unsigned long long full;
    unsigned t = threadIdx.x, rank = cluster.block_rank(), v = x[blockIdx.x * 64 + t], sum = v;
    if (t == 0) start(&full, 64);
    cluster.sync();
    for (unsigned step = 1; step < 4; step++) {
        asm volatile("st.shared::cluster.u32 [%0], %1;" ::"r"(afar(&s[step][t], (rank + 1) % 4)), "r"(v) : "memory");
        arrive_at(afar(&full, (rank + 1) % 4));
        wait(&full, (step - 1) & 1);
        v = s[step][t];
        sum += v;
        // No warp arrives for the next step before all have for this one.
        __syncthreads();
    }
    y[blockIdx.x * 64 + t] = sum;
    cluster.sync();
}

// Rank 0 waits at its mbarrier for all; they have written into its memory.
extern "C" __global__ __cluster_dims__(4, 1, 1) void remote_mbarrier(const unsigned* x, unsigned* y) {
    cg::cluster_group cluster = cg::this_cluster();
    __shared__ unsigned s[256];
    __shared__ unsigned long long full;
    unsigned t = threadIdx.x, rank = cluster.block_rank();
    if (rank == 0 && t == 0) start(&full, 256);
    cluster.sync();
    asm volatile("st.shared::cluster.u32 [%0], %1;" ::"r"(afar(&s[rank * 64 + t], 0)),
                 "r"(x[rank * 64 + t] * 3) : "memory");
    arrive_at(afar(&full, 0));
    if (rank == 0) {
        wait(&full, 0);
        for (unsigned k = t; k < 256; k += 64) y[k] = s[255 - k];
    }
}

// Asynchronous stores into the next block, and bytes that its mbarrier counts.
extern "C" __global__ __cluster_dims__(4, 1, 1) void async_stores(const unsigned* x, unsigned* y) {
    cg::cluster_group cluster = cg::this_cluster();
    __shared__ __align__(16) unsigned s[32 * 4];
    __shared__ unsigned long long full;
    unsigned t = threadIdx.x, rank = cluster.block_rank(), v = x[blockIdx.x * 32 + t];
    if (t == 0) {
        start(&full, 1);
        expect(&full, 32 * 16);
    }
    cluster.sync();
    unsigned to = (rank + 1) % 4;
    asm volatile(
        "st.async.weak.shared::cluster.mbarrier::complete_tx::bytes.v4.b32 [%0], {%1, %2, %3, %4}, [%5];"
        ::"r"(afar(&s[4 * t], to)), "r"(v), "r"(v + 1), "r"(v + 2), "r"(v + 3), "r"(afar(&full, to)) : "memory");
    wait(&full, 0);
    y[blockIdx.x * 32 + t] = s[4 * t] + s[4 * t + 1] + s[4 * t + 2] + s[4 * (31 - t) + 3];
}

extern "C" __global__ __cluster_dims__(2, 1, 1) void async_sums(const unsigned* x, unsigned* y) {
    cg::cluster_group cluster = cg::this_cluster();
    __shared__ unsigned sum;
    __shared__ unsigned long long full;
    unsigned t = threadIdx.x, rank = cluster.block_rank();
    if (t == 0) {
        sum = 0;
        start(&full, 1);
        expect(&full, 64 * 4);
    }
    cluster.sync();
    unsigned to = rank ^ 1;
    asm volatile(
        "red.async.relaxed.cluster.shared::cluster.mbarrier::complete_tx::bytes.add.u32 [%0], %1, [%2];"
        ::"r"(afar(&sum, to)), "r"(x[blockIdx.x * 64 + t]), "r"(afar(&full, to)) : "memory");
    wait(&full, 0);
    if (t == 0) y[rank] = sum;
}

// A flag in the other block's memory hands data on.
extern "C" __global__ __cluster_dims__(2, 1, 1) void flags(const unsigned* x, unsigned* y) {
    cg::cluster_group cluster = cg::this_cluster();
    __shared__ unsigned s[64], flag;
    unsigned t = threadIdx.x, rank = cluster.block_rank();
    if (t == 0) flag = 0;
    cluster.sync();
    if (rank == 0) {
        *cluster.map_shared_rank(&s[t], 1) = x[t] + 7;
        __syncthreads();
        if (t == 0) {
            asm volatile("st.release.cluster.shared::cluster.u32 [%0], 1;" ::"r"(afar(&flag, 1)) : "memory");
        }
    } else {
        unsigned seen = 0;
        while (!seen) {
            asm volatile("ld.acquire.cluster.shared::cta.u32 %0, [%1];" : "=r"(seen) : "r"(at(&flag)) : "memory");
        }
        y[t] = s[63 - t];
    }
}

// The barrier orders accesses to global memory too.
extern "C" __global__ __cluster_dims__(4, 1, 1) void global_data(unsigned* x, unsigned* y) {
    unsigned i = blockIdx.x * 64 + threadIdx.x;
    x[i] += 5;
    cg::this_cluster().sync();
    y[i] = x[255 - i];
}

// Threads that have exited are not waited for.
extern "C" __global__ __cluster_dims__(2, 1, 1) void early_exit(unsigned* y) {
    cg::cluster_group cluster = cg::this_cluster();
    __shared__ unsigned s;
    if (threadIdx.x >= 64) return;
    if (threadIdx.x == 0) s = blockIdx.x + 1;
    if (threadIdx.x % 32 == 5 && cluster.block_rank() == 1) return;
    cluster.sync();
    if (threadIdx.x == 0) y[blockIdx.x] = *cluster.map_shared_rank(&s, cluster.block_rank() ^ 1);
    cluster.sync();
}

// Work between arriving and waiting.
extern "C" __global__ __cluster_dims__(4, 1, 1) void split_barrier(const unsigned* x, unsigned* y) {
    cg::cluster_group cluster = cg::this_cluster();
    __shared__ unsigned s[64], mine[64];
    unsigned t = threadIdx.x, rank = cluster.block_rank();
    s[t] = x[blockIdx.x * 64 + t];
    cg::cluster_group::arrival_token token = cluster.barrier_arrive();
    mine[t] = t * 2;
    cluster.barrier_wait(std::move(token));
    unsigned v = *cluster.map_shared_rank(&s[63 - t], (rank + 2) % 4) + mine[t];
    y[blockIdx.x * 64 + t] = v;
    cluster.sync();
}

// As CUTLASS begins: barriers are initialised, fenced, and the arrival is relaxed.
extern "C" __global__ __cluster_dims__(4, 1, 1) void relaxed_start(unsigned* y) {
    __shared__ unsigned long long full;
    if (threadIdx.x == 0) start(&full, 4);
    asm volatile("barrier.cluster.arrive.relaxed.aligned;\nbarrier.cluster.wait.aligned;" ::: "memory");
    if (threadIdx.x < 4) arrive_at(afar(&full, threadIdx.x));
    wait(&full, 0);
    if (threadIdx.x == 0) y[blockIdx.x] = 1;
    asm volatile("barrier.cluster.arrive.aligned;\nbarrier.cluster.wait.aligned;" ::: "memory");
}

extern "C" __global__ __cluster_dims__(2, 2, 2) void three_axes(unsigned* y) {
    cg::cluster_group cluster = cg::this_cluster();
    __shared__ unsigned s;
    unsigned block = blockIdx.x + gridDim.x * (blockIdx.y + gridDim.y * blockIdx.z);
    if (threadIdx.x + threadIdx.y == 0) s = block;
    cluster.sync();
    if (threadIdx.x + threadIdx.y == 0) {
        unsigned sum = 0;
        for (unsigned r = 0; r < 8; r++) sum += *cluster.map_shared_rank(&s, r);
        dim3 i = cluster.block_index();
        y[block] = sum * 100 + cluster.block_rank() * 10 + i.x + 2 * i.y + 4 * i.z;
    }
    cluster.sync();
}

extern "C" __global__ __cluster_dims__(2, 1, 1) void of_a_grid(unsigned* partial, unsigned* y) {
    cg::grid_group grid = cg::this_grid();
    cg::cluster_group cluster = cg::this_cluster();
    __shared__ unsigned s;
    if (threadIdx.x == 0) s = blockIdx.x;
    cluster.sync();
    if (threadIdx.x == 0) partial[blockIdx.x] = *cluster.map_shared_rank(&s, cluster.block_rank() ^ 1);
    cluster.sync();
    grid.sync();
    if (threadIdx.x == 0) {
        unsigned sum = 0;
        for (unsigned k = 0; k < 8; k++) sum += partial[k];
        y[blockIdx.x] = sum;
    }
}

// Without clusters the barrier is the block's.
extern "C" __global__ void one_block(unsigned* y) {
    cg::cluster_group cluster = cg::this_cluster();
    __shared__ unsigned s[64];
    s[threadIdx.x] = threadIdx.x;
    cluster.sync();
    y[blockIdx.x * 64 + threadIdx.x] = *cluster.map_shared_rank(&s[63 - threadIdx.x], 0) + cluster.num_blocks();
}

extern "C" __global__ __cluster_dims__(4, 1, 1) void atomics_of_all(unsigned* y) {
    cg::cluster_group cluster = cg::this_cluster();
    __shared__ unsigned count, most;
    if (threadIdx.x == 0) count = most = 0;
    cluster.sync();
    unsigned* there = cluster.map_shared_rank(&count, 0);
    unsigned before = atomicAdd(there, 1);
    atomicMax(cluster.map_shared_rank(&most, 0), before);
    cluster.sync();
    if (cluster.block_rank() == 0 && threadIdx.x == 0) {
        y[0] = count;
        y[1] = most;
    }
}

// Rank 0 fills a slot of rank 1, which gives it back.
extern "C" __global__ __cluster_dims__(2, 1, 1) void full_and_empty(const unsigned* x, unsigned* y) {
    cg::cluster_group cluster = cg::this_cluster();
    __shared__ unsigned slot[2][64];
    __shared__ unsigned long long full[2], empty[2];
    unsigned t = threadIdx.x, rank = cluster.block_rank(), sum = 0;
    if (t == 0) {
        for (unsigned k = 0; k < 2; k++) {
            start(&full[k], 64);
            start(&empty[k], 64);
        }
    }
    cluster.sync();
    for (unsigned step = 0; step < 8; step++) {
        unsigned k = step % 2, phase = step / 2 & 1;
        if (rank == 0) {
            if (step >= 2) wait(&empty[k], phase ^ 1);
            asm volatile("st.shared::cluster.u32 [%0], %1;" ::"r"(afar(&slot[k][t], 1)), "r"(x[step * 64 + t]) : "memory");
            arrive_at(afar(&full[k], 1));
        } else {
            wait(&full[k], phase);
            sum += slot[k][63 - t] * (step + 1);
            arrive_at(afar(&empty[k], 0));
        }
    }
    // The slots' last returns are on their way.
    if (rank == 0) {
        wait(&empty[0], 1);
        wait(&empty[1], 1);
    } else {
        y[t] = sum;
    }
}

// The same instructions by the functions of CUDA's headers.
extern "C" __global__ __cluster_dims__(2, 1, 1) void by_headers(const unsigned* x, unsigned* y) {
    namespace ptx = cuda::ptx;
    __shared__ unsigned s[64], sum;
    __shared__ uint64_t full, counted;
    unsigned t = threadIdx.x, rank = ptx::get_sreg_cluster_ctarank(), to = rank ^ 1;
    if (t == 0) {
        sum = 0;
        ptx::mbarrier_init(&full, 1);
        ptx::mbarrier_init(&counted, 64);
        ptx::fence_mbarrier_init(ptx::sem_release, ptx::scope_cluster);
        ptx::mbarrier_arrive_expect_tx(ptx::sem_release, ptx::scope_cta, ptx::space_shared, &full, 64 * 8);
    }
    ptx::barrier_cluster_arrive(ptx::sem_release);
    ptx::barrier_cluster_wait(ptx::sem_acquire);
    unsigned* there = cg::this_cluster().map_shared_rank(s, to);
    unsigned* sum_there = cg::this_cluster().map_shared_rank(&sum, to);
    uint64_t* full_there = cg::this_cluster().map_shared_rank(&full, to);
    unsigned v = x[blockIdx.x * 64 + t];
    ptx::st_async(&there[t], v, full_there);
    ptx::red_async(ptx::op_add, sum_there, v, full_there);
    while (!ptx::mbarrier_try_wait_parity(ptx::sem_acquire, ptx::scope_cluster, &full, 0)) {
    }
    unsigned seen = s[63 - t] + sum;
    // Each tells the other that it has read.
    ptx::mbarrier_arrive(ptx::sem_release, ptx::scope_cluster, ptx::space_cluster,
                         cg::this_cluster().map_shared_rank(&counted, to));
    while (!ptx::mbarrier_try_wait_parity(ptx::sem_acquire, ptx::scope_cluster, &counted, 0)) {
    }
    y[blockIdx.x * 64 + t] = seen;
}

extern "C" __global__ __cluster_dims__(4, 1, 1) void group_members(unsigned* y) {
    cg::cluster_group cluster = cg::this_cluster();
    __shared__ unsigned s;
    cluster.sync();
    unsigned* there = cluster.map_shared_rank(&s, (cluster.block_rank() + 3) % 4);
    y[blockIdx.x * 64 + threadIdx.x] = cluster.thread_rank() + 1000 * cluster.num_threads()
        + 1000000 * cluster.query_shared_rank(there) + 10000000 * cluster.dim_blocks().x;
    cluster.sync();
}
