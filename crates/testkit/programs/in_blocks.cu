// Threads of one block that hand data on: named barriers, phases, masks, copies in the background.
//@ run named_producer: named_producer grid=2 block=128
//@   in x: u32[1024] iota
//@   inout y: u32[128] zero raw
//@ run named_halves: named_halves grid=1 block=128
//@   inout y: u32[128] zero raw
//@ run tile_two_barriers: tile_two_barriers grid=1 block=64
//@   in x: u32[256] iota
//@   inout y: u32[64] zero raw
//@ run double_buffer: double_buffer grid=1 block=64
//@   in x: u32[512] iota
//@   inout y: u32[64] zero raw
//@ run warp_tree: warp_tree grid=1 block=256
//@   in x: u32[256] iota
//@ run warp_masks: warp_masks grid=1 block=32
//@   in x: u32[32] iota
//@   inout y: u32[32] zero raw
//@ run tail_mask: tail_mask grid=1 block=64
//@   in x: u32[50] iota
//@   val n: i32 50
//@ run grouped_by_value: grouped_by_value grid=1 block=64
//@   in x: u32[64] int(0, 5)
//@   inout counts: u32[6] zero raw
//@ run exits_early: exits_early grid=3 block=64
//@   in x: u32[150] iota
//@   inout y: u32[150] zero raw
//@   val n: i32 150
//@ run async_ring: async_ring grid=1 block=64
//@   in x: u32[1024] iota
//@   inout y: u32[64] zero raw
//@ run async_zero_fill: async_zero_fill grid=1 block=32
//@   in x: f32[100] uniform(-1, 1)
//@   inout y: f32[128] zero raw
//@   val n: i32 100
//@ run mbarrier_copies: mbarrier_copies grid=1 block=64
//@   in x: u32[64] iota
//@   inout y: u32[64] zero raw
//@ run mbarrier_producer: mbarrier_producer grid=1 block=64
//@   in x: u32[256] iota
//@   inout y: u32[32] zero raw
//@ run standard_barrier: standard_barrier grid=1 block=96
//@   inout y: u32[96] zero raw
//@ run standard_pipeline: standard_pipeline grid=1 block=32
//@   in x: u32[256] iota
//@   inout y: u32[32] zero raw
//@ run block_flags: block_flags grid=2 block=96
//@   inout y: u32[192] zero raw
//@ run shared_histogram: shared_histogram grid=4 block=128
//@   in x: u32[512] int(0, 15)
//@   inout y: u32[16] zero raw
//@ run private_histograms: private_histograms grid=1 block=128
//@   in x: u8[512] bits
//@   inout y: u32[256] zero raw
//@ run padded_transpose: padded_transpose grid=2,2 block=16,16
//@   in x: f32[1024] uniform(-1, 1)
//@   inout y: f32[1024] zero raw
//@ run bytes_of_words: bytes_of_words grid=1 block=64
//@   inout y: u32[16] zero raw
//@ run scan_ping_pong: scan_ping_pong grid=1 block=64
//@   in x: u32[64] iota
//@   inout y: u32[64] zero raw
//@ run voted_branch: voted_branch grid=1 block=96
//@   in x: u32[96] bits
//@   inout y: u32[96] zero raw
//@ run recycled_shared: recycled_shared grid=1 block=64 shared=1024
//@   in x: u32[64] iota
//@   inout y: u32[64] zero raw
//@ run shared_lock: shared_lock grid=2 block=128
//@   inout y: u32[2] zero raw
//@ run counted_barrier: counted_barrier grid=1 block=96
//@   in x: u32[96] bits
//@   inout y: u32[96] zero raw
#include <cuda/barrier>
#include <cuda/pipeline>
#include <cuda_pipeline.h>

#define CHECK(x) do { if (!(x)) __trap(); } while (0)

__device__ void meet(int name, int threads) {
    asm volatile("bar.sync %0, %1;" :: "r"(name), "r"(threads) : "memory");
}
__device__ void arrive(int name, int threads) {
    asm volatile("bar.arrive %0, %1;" :: "r"(name), "r"(threads) : "memory");
}

extern "C" __global__ void named_producer(const unsigned* x, unsigned* y) {
    // Two warps fill, two empty; a pair of barriers for each of two buffers.
    __shared__ unsigned buffer[2][64];
    unsigned t = threadIdx.x % 64;
    if (threadIdx.x < 64) {
        for (int k = 0; k < 8; k++) {
            if (k >= 2) meet(3 + k % 2, 128);
            buffer[k % 2][t] = x[blockIdx.x * 512 + k * 64 + t];
            arrive(1 + k % 2, 128);
        }
    } else {
        unsigned sum = 0;
        for (int k = 0; k < 8; k++) {
            meet(1 + k % 2, 128);
            sum += buffer[k % 2][63 - t];
            if (k < 6) arrive(3 + k % 2, 128);
        }
        y[blockIdx.x * 64 + t] = sum;
    }
}

extern "C" __global__ void named_halves(unsigned* y) {
    // Each half meets under its own name, then all meet.
    __shared__ unsigned s[128];
    unsigned t = threadIdx.x, half = t / 64;
    s[t] = t;
    meet(1 + half, 64);
    unsigned v = s[half * 64 + (63 - t % 64)];
    __syncthreads();
    s[t] = v;
    __syncthreads();
    y[t] = s[127 - t];
}

extern "C" __global__ void tile_two_barriers(const unsigned* x, unsigned* y) {
    __shared__ unsigned tile[64];
    unsigned t = threadIdx.x, sum = 0;
    for (int k = 0; k < 4; k++) {
        tile[t] = x[k * 64 + t];
        __syncthreads();
        for (int i = 0; i < 64; i += 7) sum += tile[(t + i) % 64];
        __syncthreads();
    }
    y[t] = sum;
}

extern "C" __global__ void double_buffer(const unsigned* x, unsigned* y) {
    __shared__ unsigned tile[2][64];
    unsigned t = threadIdx.x, sum = 0;
    tile[0][t] = x[t];
    for (int k = 0; k < 8; k++) {
        __syncthreads();
        if (k < 7) tile[(k + 1) % 2][t] = x[(k + 1) * 64 + t];
        sum += tile[k % 2][63 - t];
    }
    y[t] = sum;
}

extern "C" __global__ void warp_tree(const unsigned* x) {
    __shared__ unsigned s[256];
    unsigned t = threadIdx.x;
    s[t] = x[t];
    __syncthreads();
    for (unsigned d = 128; d > 16; d /= 2) {
        if (t < d) s[t] += s[t + d];
        __syncthreads();
    }
    if (t < 32) {
        // The last steps of one warp, with a meeting between reading and writing.
        for (unsigned d = 16; d > 0; d /= 2) {
            unsigned v = s[t] + s[t ^ d];
            __syncwarp();
            s[t] = v;
            __syncwarp();
        }
        CHECK(s[31 - t] == 256 * 255 / 2);
    }
}

extern "C" __global__ void warp_masks(const unsigned* x, unsigned* y) {
    // Halves take different ways, each with its own mask.
    unsigned t = threadIdx.x, v = x[t];
    if (t < 16) {
        for (int d = 8; d > 0; d /= 2) v += __shfl_xor_sync(0x0000ffffu, v, d);
        CHECK(v == 120);
    } else {
        v = __reduce_max_sync(0xffff0000u, v);
        CHECK(v == 31);
    }
    __syncwarp();
    y[t] = v + __popc(__ballot_sync(0xffffffffu, t % 3 == 0));
}

extern "C" __global__ void tail_mask(const unsigned* x, int n) {
    int t = threadIdx.x;
    unsigned mask = __ballot_sync(0xffffffffu, t < n);
    if (t >= n) return;
    unsigned v = x[t];
    int first = t & ~31, lanes = __popc(mask);
    for (int d = 16; d > 0; d /= 2) {
        unsigned other = __shfl_down_sync(mask, v, d);
        if (t - first + d < lanes) v += other;
    }
    if (t == 32) CHECK(v == (32 + 49) * 18 / 2);
}

extern "C" __global__ void grouped_by_value(const unsigned* x, unsigned* counts) {
    unsigned v = x[threadIdx.x];
    unsigned peers = __match_any_sync(0xffffffffu, v);
    unsigned leader = __ffs(peers) - 1;
    unsigned at = 0;
    if (threadIdx.x % 32 == leader) at = atomicAdd(&counts[v], __popc(peers));
    at = __shfl_sync(peers, at, leader);
    CHECK(at <= 64);
}

extern "C" __global__ void exits_early(const unsigned* x, unsigned* y, int n) {
    __shared__ unsigned s[64];
    int i = blockIdx.x * 64 + threadIdx.x;
    if (i >= n) return;
    s[threadIdx.x] = x[i];
    __syncthreads();
    int left = n - blockIdx.x * 64 < 64 ? n - blockIdx.x * 64 : 64;
    y[i] = s[left - 1 - threadIdx.x];
    __syncthreads();
    s[threadIdx.x] = y[i];
}

extern "C" __global__ void async_ring(const unsigned* x, unsigned* y) {
    __shared__ unsigned ring[4][64];
    unsigned t = threadIdx.x, sum = 0;
    for (int k = 0; k < 3; k++) {
        __pipeline_memcpy_async(&ring[k][t], &x[k * 64 + t], 4);
        __pipeline_commit();
    }
    for (int k = 0; k < 16; k++) {
        __pipeline_wait_prior(2);
        __syncthreads();
        if (k + 3 < 16) __pipeline_memcpy_async(&ring[(k + 3) % 4][t], &x[(k + 3) * 64 + t], 4);
        __pipeline_commit();
        sum += ring[k % 4][63 - t];
    }
    y[t] = sum;
}

extern "C" __global__ void async_zero_fill(const float* x, float* y, int n) {
    __shared__ __align__(16) float s[128];
    int at = 4 * threadIdx.x, left = n - at;
    int bytes = left >= 4 ? 16 : left > 0 ? 4 * left : 0;
    __pipeline_memcpy_async(&s[at], bytes > 0 ? &x[at] : x, 16, 16 - bytes);
    __pipeline_commit();
    __pipeline_wait_prior(0);
    __syncwarp();
    for (int k = 0; k < 4; k++) y[k * 32 + threadIdx.x] = s[k * 32 + threadIdx.x];
}

__device__ bool is_over(unsigned bar, unsigned parity) {
    unsigned done;
    asm volatile("{ .reg .pred p; mbarrier.test_wait.parity.shared.b64 p, [%1], %2; selp.u32 %0, 1, 0, p; }"
                 : "=r"(done) : "r"(bar), "r"(parity) : "memory");
    return done != 0;
}

extern "C" __global__ void mbarrier_copies(const unsigned* x, unsigned* y) {
    __shared__ unsigned s[64];
    __shared__ unsigned long long word;
    unsigned t = threadIdx.x;
    unsigned bar = (unsigned)__cvta_generic_to_shared(&word);
    unsigned to = (unsigned)__cvta_generic_to_shared(&s[t]);
    if (t == 0) asm volatile("mbarrier.init.shared.b64 [%0], 64;" :: "r"(bar) : "memory");
    __syncthreads();
    asm volatile("cp.async.ca.shared.global [%0], [%1], 4;" :: "r"(to), "l"(x + t) : "memory");
    asm volatile("cp.async.mbarrier.arrive.noinc.shared.b64 [%0];" :: "r"(bar) : "memory");
    while (!is_over(bar, 0)) {}
    y[t] = s[63 - t];
    CHECK(y[t] == 63 - t);
}

extern "C" __global__ void mbarrier_producer(const unsigned* x, unsigned* y) {
    // One warp copies, the other computes; two stages, each with a full and an empty barrier.
    __shared__ unsigned s[2][32];
    __shared__ unsigned long long words[4];
    unsigned t = threadIdx.x % 32;
    unsigned bars = (unsigned)__cvta_generic_to_shared(words);
    if (threadIdx.x < 4) asm volatile("mbarrier.init.shared.b64 [%0], 32;" :: "r"(bars + 8 * threadIdx.x) : "memory");
    __syncthreads();
    if (threadIdx.x < 32) {
        for (unsigned k = 0; k < 8; k++) {
            unsigned stage = k % 2;
            if (k >= 2) while (!is_over(bars + 16 + 8 * stage, (k / 2 - 1) % 2)) {}
            unsigned to = (unsigned)__cvta_generic_to_shared(&s[stage][t]);
            asm volatile("cp.async.ca.shared.global [%0], [%1], 4;" :: "r"(to), "l"(x + 32 * k + t) : "memory");
            asm volatile("cp.async.mbarrier.arrive.noinc.shared.b64 [%0];" :: "r"(bars + 8 * stage) : "memory");
        }
    } else {
        unsigned sum = 0;
        for (unsigned k = 0; k < 8; k++) {
            unsigned stage = k % 2;
            while (!is_over(bars + 8 * stage, k / 2 % 2)) {}
            sum += s[stage][31 - t];
            asm volatile("{ .reg .b64 s; mbarrier.arrive.shared.b64 s, [%0]; }" :: "r"(bars + 16 + 8 * stage) : "memory");
        }
        y[t] = sum;
        CHECK(sum == 8 * (31 - t) + 32 * 28);
    }
}

extern "C" __global__ void standard_barrier(unsigned* y) {
    __shared__ cuda::barrier<cuda::thread_scope_block> bar;
    __shared__ unsigned s[96];
    unsigned t = threadIdx.x;
    if (t == 0) init(&bar, blockDim.x);
    __syncthreads();
    for (unsigned k = 0; k < 3; k++) {
        s[t] = t + k;
        bar.arrive_and_wait();
        unsigned v = s[95 - t];
        CHECK(v == 95 - t + k);
        auto token = bar.arrive();
        y[t] = v;
        bar.wait(cuda::std::move(token));
    }
}

extern "C" __global__ void standard_pipeline(const unsigned* x, unsigned* y) {
    __shared__ unsigned s[2][32];
    unsigned t = threadIdx.x, sum = 0;
    auto pipe = cuda::make_pipeline();
    pipe.producer_acquire();
    cuda::memcpy_async(&s[0][t], &x[t], sizeof(unsigned), pipe);
    pipe.producer_commit();
    for (unsigned k = 0; k < 8; k++) {
        if (k < 7) {
            pipe.producer_acquire();
            cuda::memcpy_async(&s[(k + 1) % 2][t], &x[32 * (k + 1) + t], sizeof(unsigned), pipe);
            pipe.producer_commit();
            cuda::pipeline_consumer_wait_prior<1>(pipe);
        } else {
            cuda::pipeline_consumer_wait_prior<0>(pipe);
        }
        __syncwarp();
        sum += s[k % 2][31 - t];
        pipe.consumer_release();
        __syncwarp();
    }
    y[t] = sum;
}

extern "C" __global__ void block_flags(unsigned* y) {
    // Warps of a block pass a value along by flags with the block's scope.
    __shared__ unsigned values[3], flags[3];
    unsigned w = threadIdx.x / 32, lane = threadIdx.x % 32;
    if (threadIdx.x < 3) flags[threadIdx.x] = 0;
    __syncthreads();
    unsigned before = 0;
    if (w > 0) {
        while (atomicAdd_block(&flags[w - 1], 0u) == 0) {}
        __threadfence_block();
        before = values[w - 1];
    }
    unsigned mine = before + lane;
    if (lane == 31) {
        values[w] = mine;
        __threadfence_block();
        atomicExch_block(&flags[w], 1u);
    }
    y[blockIdx.x * 96 + threadIdx.x] = mine;
    CHECK(mine == 31 * w + lane);
}

extern "C" __global__ void shared_histogram(const unsigned* x, unsigned* y) {
    __shared__ unsigned counts[16];
    unsigned t = threadIdx.x;
    if (t < 16) counts[t] = 0;
    __syncthreads();
    atomicAdd(&counts[x[blockIdx.x * 128 + t]], 1u);
    __syncthreads();
    if (t < 16 && counts[t] != 0) atomicAdd(&y[t], counts[t]);
}

extern "C" __global__ void private_histograms(const unsigned char* x, unsigned* y) {
    // A histogram for each warp, whose lanes count by votes.
    __shared__ unsigned counts[4][256];
    unsigned t = threadIdx.x, w = t / 32;
    for (unsigned k = t; k < 1024; k += 128) ((unsigned*)counts)[k] = 0;
    __syncthreads();
    for (unsigned k = 0; k < 4; k++) {
        unsigned v = x[k * 128 + t];
        unsigned peers = __match_any_sync(0xffffffffu, v);
        if (__ffs(peers) - 1 == t % 32) counts[w][v] += __popc(peers);
        __syncwarp();
    }
    __syncthreads();
    for (unsigned v = t; v < 256; v += 128) y[v] = counts[0][v] + counts[1][v] + counts[2][v] + counts[3][v];
}

extern "C" __global__ void padded_transpose(const float* x, float* y) {
    __shared__ float tile[16][17];
    unsigned c = blockIdx.x * 16 + threadIdx.x, r = blockIdx.y * 16 + threadIdx.y;
    tile[threadIdx.y][threadIdx.x] = x[r * 32 + c];
    __syncthreads();
    y[(blockIdx.x * 16 + threadIdx.y) * 32 + blockIdx.y * 16 + threadIdx.x] = tile[threadIdx.x][threadIdx.y];
}

extern "C" __global__ void bytes_of_words(unsigned* y) {
    // Neighbours write bytes of one word, which is read as a word later.
    __shared__ unsigned char s[64];
    unsigned t = threadIdx.x;
    s[t] = (unsigned char)(3 * t);
    __syncthreads();
    if (t < 16) {
        y[t] = ((unsigned*)s)[t];
        CHECK((y[t] >> 8 & 255) == 3 * (4 * t + 1));
    }
}

extern "C" __global__ void scan_ping_pong(const unsigned* x, unsigned* y) {
    __shared__ unsigned s[2][64];
    unsigned t = threadIdx.x, from = 0;
    s[0][t] = x[t];
    __syncthreads();
    for (unsigned d = 1; d < 64; d *= 2) {
        s[1 - from][t] = t >= d ? s[from][t] + s[from][t - d] : s[from][t];
        from = 1 - from;
        __syncthreads();
    }
    y[t] = s[from][t];
    CHECK(y[t] == t * (t + 1) / 2);
}

extern "C" __global__ void voted_branch(const unsigned* x, unsigned* y) {
    // All threads of the block take the same way, so that a barrier may stand in it.
    __shared__ unsigned s[96];
    unsigned t = threadIdx.x;
    if (__syncthreads_or(x[t] % 5 == 0)) {
        s[t] = x[t];
        __syncthreads();
        y[t] = s[95 - t];
    }
    unsigned count = __syncthreads_count(t < 40);
    CHECK(count == 40);
}

extern "C" __global__ void recycled_shared(const unsigned* x, unsigned* y) {
    // The same dynamic memory as words, then as pairs.
    extern __shared__ unsigned memory[];
    unsigned t = threadIdx.x;
    memory[t] = x[t];
    __syncthreads();
    unsigned v = memory[63 - t];
    __syncthreads();
    ((uint2*)memory)[t] = make_uint2(v, v + 1);
    __syncthreads();
    y[t] = ((uint2*)memory)[t ^ 1].y;
}

extern "C" __global__ void shared_lock(unsigned* y) {
    __shared__ unsigned lock, sum;
    if (threadIdx.x == 0) lock = sum = 0;
    __syncthreads();
    if (threadIdx.x % 32 == 0) {
        while (atomicCAS(&lock, 0u, 1u) != 0u) {}
        __threadfence_block();
        sum += 1;
        __threadfence_block();
        atomicExch(&lock, 0u);
    }
    __syncthreads();
    if (threadIdx.x == 0) y[blockIdx.x] = sum;
    CHECK(sum == 4);
}

extern "C" __global__ void counted_barrier(const unsigned* x, unsigned* y) {
    // A barrier of two of three warps, then of all.
    __shared__ unsigned s[96];
    unsigned t = threadIdx.x;
    s[t] = x[t];
    if (t < 64) {
        meet(4, 64);
        y[t] = s[63 - t];
    }
    __syncthreads();
    if (t >= 64) y[t] = s[t - 64] + s[t - 32];
}
