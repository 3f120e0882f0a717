// Data that one thread hands to another: releases and acquires, locks, tickets, look-back, last blocks.
//@ run mailbox: mailbox grid=2 block=32
//@   inout box: u32[33] zero raw
//@   inout bad: u32[1] zero raw
//@ run ring: ring grid=2 block=32
//@   inout slots: u32[8] zero raw
//@   inout state: u32[2] zero raw
//@   inout bad: u32[1] zero raw
//@ run volatile_flag: volatile_flag grid=3 block=64
//@   inout data: u32[64] zero raw
//@   inout flag: u32[1] zero raw
//@   inout bad: u32[1] zero raw
//@ run chain: chain grid=6 block=32
//@   inout values: u32[7] zero raw
//@   inout turns: u32[7] zero raw
//@   inout bad: u32[1] zero raw
//@ run ptx_release: ptx_release grid=2 block=32
//@   inout data: u64[32] zero raw
//@   inout flag: u32[1] zero raw
//@   inout bad: u32[1] zero raw
//@ run ticket_lock: ticket_lock grid=5 block=32
//@   inout lock: u32[2] zero raw
//@   inout list: u32[8] zero raw
//@   inout bad: u32[1] zero raw
//@ run lane_locks: lane_locks grid=2 block=64
//@   inout locks: u32[8] zero raw
//@   inout sums: u32[8] zero raw
//@   inout bad: u32[1] zero raw
//@ run standard_lock: standard_lock grid=4 block=64
//@   inout lock: u32[1] zero raw
//@   inout sum: u64[2] zero raw
//@ run linked_list: linked_list grid=4 block=32
//@   inout head: u64[1] zero raw
//@   inout nodes: u64[256] zero raw
//@   inout ticket: u32[1] zero raw
//@   inout bad: u32[1] zero raw
//@ run lookback_packed: lookback_packed grid=8 block=64
//@   in x: u32[512] iota
//@   inout states: u64[8] zero raw
//@   inout y: u32[512] zero raw
//@   inout bad: u32[1] zero raw
//@ run lookback_fenced: lookback_fenced grid=8 block=32
//@   in x: u32[256] iota
//@   inout sums: u32[16] zero raw
//@   inout states: u32[8] zero raw
//@   inout bad: u32[1] zero raw
//@ run last_block_reduce: last_block_reduce grid=6 block=64
//@   in x: u32[384] iota
//@   inout parts: u32[6] zero raw
//@   inout count: u32[1] zero raw
//@   inout bad: u32[1] zero raw
//@ run last_thread_acq_rel: last_thread_acq_rel grid=3 block=32
//@   inout parts: u32[96] zero raw
//@   inout count: u32[1] zero raw
//@   inout bad: u32[1] zero raw
//@ run own_grid_barrier: own_grid_barrier grid=4 block=64 cooperative
//@   inout x: u32[256] zero raw
//@   inout gate: u32[2] zero raw
//@   inout bad: u32[1] zero raw
//@ run work_queue: work_queue grid=3 block=32
//@   inout next: u32[1] zero raw
//@   in x: u32[64] iota
//@   inout y: u32[64] zero raw
//@ run seqlock: sequence grid=2 block=32
//@   inout lock: u32[3] zero raw
//@   inout bad: u32[1] zero raw
//@ run once: once grid=4 block=32
//@   inout state: u32[1] zero raw
//@   inout table: u32[32] zero raw
//@   inout bad: u32[1] zero raw
#include <cuda/atomic>

extern "C" __global__ void mailbox(unsigned* box, unsigned* bad) {
    cuda::atomic_ref<unsigned, cuda::thread_scope_device> full(box[32]);
    unsigned t = threadIdx.x;
    if (blockIdx.x == 0) {
        box[t] = 3 * t;
        __syncwarp();
        if (t == 0) full.store(1, cuda::std::memory_order_release);
    } else {
        if (t == 0) while (full.load(cuda::std::memory_order_acquire) != 1) {}
        __syncwarp();
        if (box[31 - t] != 3 * (31 - t)) __trap();
    }
}

extern "C" __global__ void ring(unsigned* slots, unsigned* state, unsigned* bad) {
    if (threadIdx.x != 0) return;
    cuda::atomic_ref<unsigned, cuda::thread_scope_device> head(state[0]), tail(state[1]);
    if (blockIdx.x == 0) {
        for (unsigned k = 0; k < 40; k++) {
            while (k - tail.load(cuda::memory_order_acquire) >= 8) {}
            slots[k % 8] = k * k;
            head.store(k + 1, cuda::memory_order_release);
        }
    } else {
        for (unsigned k = 0; k < 40; k++) {
            while (head.load(cuda::memory_order_acquire) <= k) {}
            if (slots[k % 8] != k * k) __trap();
            tail.fetch_add(1, cuda::memory_order_release);
        }
    }
}

extern "C" __global__ void volatile_flag(unsigned* data, volatile unsigned* flag, unsigned* bad) {
    unsigned t = threadIdx.x;
    if (blockIdx.x == 0) {
        data[t] = t ^ 21;
        __threadfence();
        __syncthreads();
        if (t == 0) *flag = 1;
    } else {
        while (*flag == 0) {}
        __threadfence();
        if (data[63 - t] != ((63 - t) ^ 21)) __trap();
    }
}

extern "C" __global__ void chain(unsigned* values, unsigned* turns, unsigned* bad) {
    // Each block adds to what the one before left.
    if (threadIdx.x == 0) {
        unsigned before = 0;
        if (blockIdx.x > 0) {
            while (atomicAdd(&turns[blockIdx.x], 0u) == 0) {}
            __threadfence();
            before = values[blockIdx.x];
        }
        values[blockIdx.x + 1] = before + blockIdx.x;
        __threadfence();
        if (blockIdx.x + 1 < gridDim.x) atomicExch(&turns[blockIdx.x + 1], 1u);
        else if (before + blockIdx.x != 15) __trap();
    }
}

extern "C" __global__ void ptx_release(unsigned long long* data, unsigned* flag, unsigned* bad) {
    unsigned t = threadIdx.x, seen = 0;
    if (blockIdx.x == 0) {
        data[t] = 1ull << t;
        __syncthreads();
        if (t == 0) asm volatile("red.release.gpu.global.add.u32 [%0], 1;" :: "l"(flag) : "memory");
    } else {
        do asm volatile("ld.acquire.gpu.global.u32 %0, [%1];" : "=r"(seen) : "l"(flag) : "memory");
        while (seen == 0);
        if (data[t] != 1ull << t) __trap();
    }
}

extern "C" __global__ void ticket_lock(unsigned* lock, unsigned* list, unsigned* bad) {
    if (threadIdx.x == 0) {
        unsigned mine = atomicAdd(&lock[0], 1u);
        while (((volatile unsigned*)lock)[1] != mine) {}
        __threadfence();
        unsigned at = list[7]++;
        list[at] = blockIdx.x;
        __threadfence();
        atomicAdd(&lock[1], 1u);
    }
}

extern "C" __global__ void lane_locks(unsigned* locks, unsigned* sums, unsigned* bad) {
    // Lanes of one warp compete, so each tries once a round.
    unsigned which = threadIdx.x % 8;
    bool is_done = false;
    while (!is_done) {
        if (atomicCAS(&locks[which], 0u, 1u) == 0u) {
            __threadfence();
            sums[which] += threadIdx.x;
            __threadfence();
            atomicExch(&locks[which], 0u);
            is_done = true;
        }
    }
}

extern "C" __global__ void standard_lock(unsigned* lock, unsigned long long* sum) {
    if (threadIdx.x % 32 != 0) return;
    cuda::atomic_ref<unsigned, cuda::thread_scope_device> held(*lock);
    while (held.exchange(1, cuda::memory_order_acquire) != 0) {}
    sum[0] += threadIdx.x;
    sum[1] += 1;
    held.store(0, cuda::memory_order_release);
}

extern "C" __global__ void linked_list(unsigned long long* head, unsigned long long* nodes,
                                       unsigned* ticket, unsigned* bad) {
    unsigned i = blockIdx.x * 32 + threadIdx.x;
    unsigned long long* node = &nodes[2 * i];
    node[1] = i;
    unsigned long long old = atomicAdd(head, 0ull);
    for (;;) {
        node[0] = old;
        __threadfence();
        unsigned long long seen = atomicCAS(head, old, (unsigned long long)node);
        if (seen == old) break;
        old = seen;
    }
    __threadfence();
    if (atomicAdd(ticket, 1u) != 127) return;
    __threadfence();
    unsigned count = 0;
    unsigned long long at = atomicAdd(head, 0ull);
    while (at != 0) {
        count++;
        at = ((unsigned long long*)at)[0];
    }
    if (count != 128) __trap();
}

extern "C" __global__ void lookback_packed(const unsigned* x, unsigned long long* states,
                                           unsigned* y, unsigned* bad) {
    // State and value in one word: nothing else has to be published.
    __shared__ unsigned warp_sums[2], before;
    unsigned t = threadIdx.x, i = blockIdx.x * 64 + t, v = x[i];
    for (unsigned d = 1; d < 32; d *= 2) {
        unsigned other = __shfl_up_sync(0xffffffffu, v, d);
        if (t % 32 >= d) v += other;
    }
    if (t % 32 == 31) warp_sums[t / 32] = v;
    __syncthreads();
    if (t >= 32) v += warp_sums[0];
    if (t == 63) {
        atomicExch(&states[blockIdx.x], (1ull << 32) | v);
        unsigned sum = 0;
        for (int b = (int)blockIdx.x - 1; b >= 0; b--) {
            unsigned long long seen;
            do seen = *(volatile unsigned long long*)&states[b]; while (seen >> 32 == 0);
            sum += (unsigned)seen;
            if (seen >> 32 == 2) break;
        }
        atomicExch(&states[blockIdx.x], (2ull << 32) | (sum + v));
        before = sum;
    }
    __syncthreads();
    y[i] = v + before;
    if (y[i] != i * (i + 1) / 2) __trap();
}

extern "C" __global__ void lookback_fenced(const unsigned* x, unsigned* sums, unsigned* states,
                                           unsigned* bad) {
    unsigned b = blockIdx.x, t = threadIdx.x;
    unsigned all = __reduce_add_sync(0xffffffffu, x[b * 32 + t]);
    if (t != 0) return;
    unsigned* own = &sums[2 * b];
    own[0] = all;
    __threadfence();
    atomicExch(&states[b], 1u);
    unsigned sum = 0;
    for (int k = (int)b - 1; k >= 0; k--) {
        unsigned state;
        do state = atomicAdd(&states[k], 0u); while (state == 0);
        __threadfence();
        sum += state == 2 ? sums[2 * k + 1] : sums[2 * k];
        if (state == 2) break;
    }
    own[1] = sum + all;
    __threadfence();
    atomicExch(&states[b], 2u);
    unsigned n = 32 * (b + 1);
    if (own[1] != n * (n - 1) / 2) __trap();
}

extern "C" __global__ void last_block_reduce(const unsigned* x, unsigned* parts, unsigned* count,
                                             unsigned* bad) {
    __shared__ unsigned s[64];
    __shared__ bool is_last;
    unsigned t = threadIdx.x;
    s[t] = x[blockIdx.x * 64 + t];
    __syncthreads();
    for (unsigned d = 32; d > 0; d /= 2) {
        if (t < d) s[t] += s[t + d];
        __syncthreads();
    }
    if (t == 0) {
        parts[blockIdx.x] = s[0];
        __threadfence();
        is_last = atomicInc(count, gridDim.x - 1) == gridDim.x - 1;
    }
    __syncthreads();
    if (is_last && t == 0) {
        __threadfence();
        unsigned sum = 0;
        for (unsigned k = 0; k < gridDim.x; k++) sum += parts[k];
        if (sum != 384 * 383 / 2) __trap();
    }
}

extern "C" __global__ void last_thread_acq_rel(unsigned* parts, unsigned* count, unsigned* bad) {
    unsigned i = blockIdx.x * 32 + threadIdx.x;
    parts[i] = i;
    cuda::atomic_ref<unsigned, cuda::thread_scope_device> done(*count);
    if (done.fetch_add(1, cuda::memory_order_acq_rel) != 95) return;
    unsigned sum = 0;
    for (unsigned k = 0; k < 96; k++) sum += parts[k];
    if (sum != 96 * 95 / 2) __trap();
}

extern "C" __global__ void own_grid_barrier(unsigned* x, unsigned* gate, unsigned* bad) {
    unsigned t = threadIdx.x, i = blockIdx.x * 64 + t;
    for (unsigned round = 1; round <= 3; round++) {
        x[i] += round;
        __threadfence();
        __syncthreads();
        if (t == 0) {
            if (atomicAdd(&gate[0], 1u) == (2 * round - 1) * gridDim.x - 1) atomicExch(&gate[1], 2 * round - 1);
            while (((volatile unsigned*)gate)[1] < 2 * round - 1) {}
            __threadfence();
        }
        __syncthreads();
        if (x[255 - i] != round * (round + 1) / 2) __trap();
        // Nobody begins the next round before all have read.
        __syncthreads();
        if (t == 0) {
            __threadfence();
            if (atomicAdd(&gate[0], 1u) == 2 * round * gridDim.x - 1) atomicExch(&gate[1], 2 * round);
            while (((volatile unsigned*)gate)[1] < 2 * round) {}
            __threadfence();
        }
        __syncthreads();
    }
}

extern "C" __global__ void work_queue(unsigned* next, const unsigned* x, unsigned* y) {
    for (;;) {
        unsigned at = 0;
        if (threadIdx.x == 0) at = atomicAdd(next, 4u);
        at = __shfl_sync(0xffffffffu, at, 0);
        if (at >= 64) break;
        if (threadIdx.x < 4) y[at + threadIdx.x] = 2 * x[at + threadIdx.x];
    }
}

extern "C" __global__ void sequence(unsigned* lock, unsigned* bad) {
    // Readers retry while a writer is at work; all accesses are atomic.
    cuda::atomic_ref<unsigned, cuda::thread_scope_device> number(lock[0]), a(lock[1]), b(lock[2]);
    if (threadIdx.x != 0) return;
    if (blockIdx.x == 0) {
        for (unsigned k = 1; k < 20; k++) {
            number.store(2 * k - 1, cuda::memory_order_relaxed);
            cuda::atomic_thread_fence(cuda::memory_order_seq_cst, cuda::thread_scope_device);
            a.store(k, cuda::memory_order_relaxed);
            b.store(k, cuda::memory_order_relaxed);
            number.store(2 * k, cuda::memory_order_release);
        }
    } else {
        for (unsigned k = 0; k < 20; k++) {
            unsigned before = number.load(cuda::memory_order_acquire);
            unsigned x = a.load(cuda::memory_order_relaxed), y = b.load(cuda::memory_order_relaxed);
            cuda::atomic_thread_fence(cuda::memory_order_seq_cst, cuda::thread_scope_device);
            if (before % 2 == 0 && number.load(cuda::memory_order_relaxed) == before && x != y) __trap();
        }
    }
}

extern "C" __global__ void once(unsigned* state, unsigned* table, unsigned* bad) {
    // The first block fills a table, the others wait for it.
    __shared__ bool is_first;
    unsigned t = threadIdx.x;
    cuda::atomic_ref<unsigned, cuda::thread_scope_device> ready(*state);
    if (t == 0) {
        unsigned none = 0;
        is_first = ready.compare_exchange_strong(none, 1u, cuda::memory_order_acquire);
    }
    __syncthreads();
    if (is_first) {
        table[t] = t * t;
        __syncthreads();
        if (t == 0) ready.store(2, cuda::memory_order_release);
    } else {
        while (ready.load(cuda::memory_order_acquire) != 2) {}
    }
    __syncthreads();
    if (table[31 - t] != (31 - t) * (31 - t)) __trap();
}
