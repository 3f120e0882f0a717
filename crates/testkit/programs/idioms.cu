// Further ways in which threads work together, without a mistake.
//@ run release_lookback: release_lookback grid=6 block=64
//@   in x: u32[384] iota
//@   inout tiles: u32[18] zero raw
//@ run persistent: persistent grid=2 block=64
//@   inout next: u32[2] zero raw
//@   in x: u32[640] iota
//@   inout y: u32[640] zero raw
//@ run latch: latch grid=1 block=96
//@   inout y: u32[96] zero raw
//@ run semaphore: semaphore grid=3 block=32
//@   inout y: u32[2] zero raw
//@   inout words: u64[2] zero raw
//@ run neighbour_bytes: neighbour_bytes grid=2 block=64
//@   inout x: u8[128] zero raw
//@ run halves_of_words: halves_of_words grid=2 block=64
//@   inout x: u16[256] zero raw
//@ run booleans: booleans grid=1 block=64
//@   inout y: u8[64] zero raw
//@ run max_of_doubles: max_of_doubles grid=1 block=128
//@   in x: f64[128] uniform(0, 1)
//@   inout y: f64[1] zero raw
//@ run tiled_product: tiled_product grid=2,2 block=16,16
//@   in a: f32[1024] uniform(-1, 1)
//@   in b: f32[1024] uniform(-1, 1)
//@   inout c: f32[1024] zero raw
//@ run staged_product: staged_product grid=2,2 block=16,16
//@   in a: f32[1024] uniform(-1, 1)
//@   in b: f32[1024] uniform(-1, 1)
//@   inout c: f32[1024] zero raw
//@ run matrix_tile: matrix_tile grid=1 block=64
//@   in a: f16[512] const(1)
//@   inout c: f32[512] zero raw
//@ run polling_with_sleep: polling_with_sleep grid=2 block=32
//@   inout words: u32[34] zero raw
//@ run two_way: two_way grid=2 block=32
//@   inout words: u32[66] zero raw
//@ run exits_by_warp: exits_by_warp grid=1 block=128
//@   inout y: u32[128] zero raw
//@ run loop_until_done: loop_until_done grid=1 block=64
//@   in x: u32[64] int(1, 9)
//@   inout y: u32[64] zero raw
//@ run grid_double_buffer: grid_double_buffer grid=3 block=64 cooperative
//@   inout a: f32[192] uniform(-1, 1) raw
//@   inout b: f32[192] zero raw
//@ run stack_of_blocks: stack_of_blocks grid=4 block=32
//@   inout top: u32[1] zero raw
//@   inout next: u32[128] zero raw
//@ run radix_pass: radix_pass grid=1 block=128
//@   in x: u32[128] bits
//@   inout y: u32[128] zero raw
//@ run warp_queue: warp_queue grid=1 block=64
//@   inout y: u32[64] zero raw
//@ run fetched_once: fetched_once grid=2 block=64
//@   in x: u32[128] iota
//@   inout y: u32[128] zero raw
//@ run block_votes: block_votes grid=2 block=96
//@   in x: u32[192] bits
//@   inout y: u32[2] zero raw
//@ run scaled_by_constants: scaled_by_constants grid=2 block=32
//@   set weights: f32[8] uniform(-1, 1)
//@   in x: f32[64] uniform(-1, 1)
//@   inout y: f32[64] zero raw
//@ run variables: variables grid=2 block=64
//@   inout y: u32[1] zero raw
#include <cooperative_groups.h>
#include <cuda/atomic>
#include <cuda/latch>
#include <cuda/semaphore>
#include <cuda_pipeline.h>
#include <mma.h>

#define CHECK(x) do { if (!(x)) __trap(); } while (0)

__device__ unsigned load_acquire(const unsigned* p) {
    unsigned v;
    asm volatile("ld.acquire.gpu.global.u32 %0, [%1];" : "=r"(v) : "l"(p) : "memory");
    return v;
}
__device__ void store_release(unsigned* p, unsigned v) {
    asm volatile("st.release.gpu.global.u32 [%0], %1;" :: "l"(p), "r"(v) : "memory");
}

extern "C" __global__ void release_lookback(const unsigned* x, unsigned* tiles) {
    // A warp looks back at up to 32 tiles at once.
    __shared__ unsigned shared_sum, before;
    unsigned t = threadIdx.x, b = blockIdx.x;
    unsigned v = x[b * 64 + t];
    if (t == 0) shared_sum = 0;
    __syncthreads();
    unsigned warp_sum = __reduce_add_sync(0xffffffffu, v);
    if (t % 32 == 0) atomicAdd(&shared_sum, warp_sum);
    __syncthreads();
    if (t < 32) {
        unsigned* own = tiles + 3 * b;
        if (t == 0) {
            own[1] = shared_sum;
            store_release(&own[0], 1);
        }
        unsigned sum = 0;
        for (int first = (int)b - 1; first >= 0; first -= 32) {
            int at = first - (int)t;
            unsigned state = 2, part = 0;
            if (at >= 0) {
                do state = load_acquire(&tiles[3 * at]); while (state == 0);
                part = state == 2 ? tiles[3 * at + 2] : tiles[3 * at + 1];
            }
            unsigned whole = __ballot_sync(0xffffffffu, state == 2);
            unsigned last = whole ? __ffs(whole) - 1 : 31;
            sum += __reduce_add_sync(0xffffffffu, t <= last ? part : 0);
            if (whole) break;
        }
        if (t == 0) {
            own[2] = sum + shared_sum;
            store_release(&own[0], 2);
            before = sum;
        }
    }
    __syncthreads();
    unsigned n = b * 64;
    CHECK(before == n * (n - 1) / 2 || n == 0 && before == 0);
}

extern "C" __global__ void persistent(unsigned* next, const unsigned* x, unsigned* y) {
    __shared__ unsigned tile;
    for (;;) {
        if (threadIdx.x == 0) tile = atomicAdd(&next[0], 1u);
        __syncthreads();
        unsigned mine = tile;
        __syncthreads();
        if (mine >= 10) break;
        y[mine * 64 + threadIdx.x] = x[mine * 64 + 63 - threadIdx.x];
    }
}

extern "C" __global__ void latch(unsigned* y) {
    __shared__ alignas(cuda::latch<cuda::thread_scope_block>) unsigned char memory[sizeof(cuda::latch<cuda::thread_scope_block>)];
    __shared__ unsigned s[96];
    auto* gate = (cuda::latch<cuda::thread_scope_block>*)memory;
    unsigned t = threadIdx.x;
    if (t == 0) new (gate) cuda::latch<cuda::thread_scope_block>(96);
    __syncthreads();
    s[t] = t;
    gate->arrive_and_wait();
    y[t] = s[95 - t];
}

extern "C" __global__ void semaphore(unsigned* y, unsigned long long* words) {
    // Two may be inside at once: the count is atomic, the gate is a semaphore in global memory.
    cuda::atomic_ref<unsigned long long, cuda::thread_scope_device> gate(words[0]);
    if (threadIdx.x != 0) return;
    for (;;) {
        unsigned long long inside = gate.load(cuda::memory_order_relaxed);
        if (inside < 2 && gate.compare_exchange_weak(inside, inside + 1, cuda::memory_order_acquire)) break;
    }
    atomicAdd(&y[0], 1u);
    gate.fetch_sub(1, cuda::memory_order_release);
}

extern "C" __global__ void neighbour_bytes(unsigned char* x) {
    x[blockIdx.x * 64 + threadIdx.x] = (unsigned char)threadIdx.x;
}

extern "C" __global__ void halves_of_words(unsigned short* x) {
    unsigned i = blockIdx.x * 64 + threadIdx.x;
    x[2 * i] = (unsigned short)i;
    __syncwarp();
    x[2 * i + 1] = x[2 * i] + 1;
}

extern "C" __global__ void booleans(bool* y) {
    __shared__ bool s[64];
    unsigned t = threadIdx.x;
    s[t] = t % 3 == 0;
    __syncthreads();
    y[t] = s[63 - t];
}

extern "C" __global__ void max_of_doubles(const double* x, double* y) {
    __shared__ unsigned long long most;
    if (threadIdx.x == 0) most = 0;
    __syncthreads();
    double v = x[threadIdx.x];
    unsigned long long old = *(volatile unsigned long long*)&most;
    while (__longlong_as_double(old) < v) {
        unsigned long long seen = atomicCAS(&most, old, __double_as_longlong(v));
        if (seen == old) break;
        old = seen;
    }
    __syncthreads();
    if (threadIdx.x == 0) *y = __longlong_as_double(most);
}

extern "C" __global__ void tiled_product(const float* a, const float* b, float* c) {
    __shared__ float s[16][16], r[16][16];
    int tx = threadIdx.x, ty = threadIdx.y, col = blockIdx.x * 16 + tx, row = blockIdx.y * 16 + ty;
    float sum = 0;
    for (int k = 0; k < 32; k += 16) {
        s[ty][tx] = a[row * 32 + k + tx];
        r[ty][tx] = b[(k + ty) * 32 + col];
        __syncthreads();
        for (int i = 0; i < 16; i++) sum += s[ty][i] * r[i][tx];
        __syncthreads();
    }
    c[row * 32 + col] = sum;
}

extern "C" __global__ void staged_product(const float* a, const float* b, float* c) {
    __shared__ float s[3][16][16], r[3][16][16];
    int tx = threadIdx.x, ty = threadIdx.y, col = blockIdx.x * 16 + tx, row = blockIdx.y * 16 + ty;
    auto fetch = [&](int stage, int k) {
        __pipeline_memcpy_async(&s[stage][ty][tx], &a[row * 32 + k * 8 % 32 + tx % 8], 4);
        __pipeline_memcpy_async(&r[stage][ty][tx], &b[(k * 8 % 32 + ty % 8) * 32 + col], 4);
    };
    for (int k = 0; k < 2; k++) {
        fetch(k, k);
        __pipeline_commit();
    }
    float sum = 0;
    for (int k = 0; k < 4; k++) {
        __pipeline_wait_prior(1);
        __syncthreads();
        if (k + 2 < 4) fetch((k + 2) % 3, k + 2);
        __pipeline_commit();
        for (int i = 0; i < 8; i++) sum += s[k % 3][ty][i] * r[k % 3][i][tx];
    }
    c[row * 32 + col] = sum;
}

extern "C" __global__ void matrix_tile(const __half* a, float* c) {
    using namespace nvcuda::wmma;
    __shared__ __half s[2][256];
    __shared__ float out[2][256];
    unsigned w = threadIdx.x / 32, lane = threadIdx.x % 32;
    for (unsigned k = lane; k < 256; k += 32) s[w][k] = a[w * 256 + k];
    __syncwarp();
    fragment<matrix_a, 16, 16, 16, __half, row_major> left;
    fragment<matrix_b, 16, 16, 16, __half, col_major> right;
    fragment<accumulator, 16, 16, 16, float> sum;
    fill_fragment(sum, 0.0f);
    load_matrix_sync(left, s[w], 16);
    load_matrix_sync(right, s[w], 16);
    mma_sync(sum, left, right, sum);
    store_matrix_sync(out[w], sum, 16, mem_row_major);
    __syncwarp();
    for (unsigned k = lane; k < 256; k += 32) c[w * 256 + k] = out[w][255 - k];
}

extern "C" __global__ void polling_with_sleep(unsigned* words) {
    unsigned t = threadIdx.x;
    if (blockIdx.x == 1) {
        words[t] = t + 9;
        __threadfence();
        __syncwarp();
        if (t == 0) atomicOr(&words[32], 1u);
    } else {
        if (t == 0) while (atomicOr(&words[32], 0u) == 0) __nanosleep(50);
        __syncwarp();
        __threadfence();
        CHECK(words[t] == t + 9);
    }
}

extern "C" __global__ void two_way(unsigned* words) {
    // A question and an answer, each with a flag.
    unsigned t = threadIdx.x;
    unsigned* flag = words + 64;
    if (blockIdx.x == 0) {
        words[t] = t;
        __syncthreads();
        if (t == 0) {
            store_release(&flag[0], 1);
            while (load_acquire(&flag[1]) == 0) {}
        }
        __syncthreads();
        CHECK(words[32 + t] == 2 * t);
        words[t] = 0;
    } else {
        if (t == 0) while (load_acquire(&flag[0]) == 0) {}
        __syncthreads();
        words[32 + t] = 2 * words[t];
        __syncthreads();
        if (t == 0) store_release(&flag[1], 1);
    }
}

extern "C" __global__ void exits_by_warp(unsigned* y) {
    __shared__ unsigned s[128];
    unsigned t = threadIdx.x;
    s[t] = t;
    if (t >= 96) return;
    __syncthreads();
    y[t] = s[95 - t];
    if (t >= 64) return;
    __syncthreads();
    s[t] = 1;
    __syncthreads();
    y[t] += s[63 - t];
}

extern "C" __global__ void loop_until_done(const unsigned* x, unsigned* y) {
    unsigned left = x[threadIdx.x], rounds = 0;
    while (__any_sync(0xffffffffu, left > 0)) {
        if (left > 0) left--;
        rounds++;
        unsigned most = __reduce_max_sync(0xffffffffu, left);
        CHECK(most >= left);
    }
    y[threadIdx.x] = rounds;
}

extern "C" __global__ void grid_double_buffer(float* a, float* b) {
    auto grid = cooperative_groups::this_grid();
    unsigned i = grid.thread_rank();
    for (int k = 0; k < 4; k++) {
        float* from = k % 2 ? b : a;
        float* to = k % 2 ? a : b;
        to[i] = 0.5f * (from[i > 0 ? i - 1 : 0] + from[i < 191 ? i + 1 : 191]);
        grid.sync();
    }
}

extern "C" __global__ void stack_of_blocks(unsigned* top, unsigned* next) {
    // Each thread pushes itself by an exchange; links are read by nobody until the kernel ends.
    unsigned i = blockIdx.x * 32 + threadIdx.x;
    next[i] = atomicExch(top, i + 1);
}

extern "C" __global__ void radix_pass(const unsigned* x, unsigned* y) {
    __shared__ unsigned ones[4], zeros;
    unsigned t = threadIdx.x, v = x[t], bit = v & 1;
    unsigned mask = __ballot_sync(0xffffffffu, bit);
    if (t % 32 == 0) ones[t / 32] = __popc(mask);
    __syncthreads();
    if (t == 0) {
        unsigned sum = 0;
        for (int w = 0; w < 4; w++) {
            unsigned n = ones[w];
            ones[w] = sum;
            sum += n;
        }
        zeros = 128 - sum;
    }
    __syncthreads();
    unsigned before = ones[t / 32] + __popc(mask & ((1u << t % 32) - 1));
    y[bit ? zeros + before : t - before] = v;
}

extern "C" __global__ void warp_queue(unsigned* y) {
    // One warp produces items in shared memory, the other takes them: volatile head and tail.
    __shared__ unsigned items[8];
    __shared__ volatile unsigned head, tail;
    unsigned w = threadIdx.x / 32, lane = threadIdx.x % 32;
    if (threadIdx.x == 0) head = tail = 0;
    __syncthreads();
    if (lane == 0) {
        for (unsigned k = 0; k < 30; k++) {
            if (w == 0) {
                while (k - tail >= 8) {}
                items[k % 8] = 3 * k;
                __threadfence_block();
                head = k + 1;
            } else {
                while (head <= k) {}
                __threadfence_block();
                CHECK(items[k % 8] == 3 * k);
                __threadfence_block();
                tail = k + 1;
            }
        }
    }
    __syncthreads();
    y[threadIdx.x] = head + tail;
}

extern "C" __global__ void fetched_once(const unsigned* x, unsigned* y) {
    __shared__ __align__(16) unsigned s[64];
    unsigned t = threadIdx.x;
    if (t < 16) __pipeline_memcpy_async(&s[4 * t], &x[blockIdx.x * 64 + 4 * t], 16);
    __pipeline_commit();
    __pipeline_wait_prior(0);
    __syncthreads();
    y[blockIdx.x * 64 + t] = s[63 - t];
}

extern "C" __global__ void block_votes(const unsigned* x, unsigned* y) {
    unsigned v = x[blockIdx.x * 96 + threadIdx.x];
    int count = __syncthreads_count(v % 2);
    int all = __syncthreads_and(v % 2);
    if (threadIdx.x == 0) y[blockIdx.x] = count + all;
}

__constant__ float weights[8];

extern "C" __global__ void scaled_by_constants(const float* x, float* y) {
    unsigned i = blockIdx.x * 32 + threadIdx.x;
    y[i] = x[i] * weights[i % 8] + weights[7];
}

__device__ unsigned done_blocks, partial[2];

extern "C" __global__ void variables(unsigned* y) {
    __shared__ unsigned sum;
    if (threadIdx.x == 0) sum = 0;
    __syncthreads();
    atomicAdd(&sum, threadIdx.x);
    __syncthreads();
    if (threadIdx.x == 0) {
        partial[blockIdx.x] = sum;
        __threadfence();
        if (atomicAdd(&done_blocks, 1u) == gridDim.x - 1) {
            __threadfence();
            *y = ((volatile unsigned*)partial)[0] + ((volatile unsigned*)partial)[1];
        }
    }
}
