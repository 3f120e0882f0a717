// Global memory: threads of one launch that nothing orders, of one block and of several.
//@ run races_last_block_no_fence: last_block_no_fence grid=4 block=32
//@   in x: u32[128] bits
//@   inout parts: u32[4] zero raw
//@   inout ticket: u32[1] zero raw
//@   inout sum: u32[1] zero raw
//@   finds global memory race
//@ run races_plain_flag: plain_flag grid=2 block=32
//@   inout data: u32[32] zero raw
//@   inout flag: u32[1] zero raw
//@   inout got: u32[32] zero raw
//@   finds global memory race
//@ run races_flag_no_fence: flag_no_fence grid=2 block=32
//@   inout data: u32[32] zero raw
//@   inout flag: u32[1] zero raw
//@   inout got: u32[32] zero raw
//@   finds global memory race
//@ run races_stencil_in_place: stencil_in_place grid=4 block=64
//@   inout x: f32[256] uniform(-1, 1) raw
//@   finds global memory race
//@ run races_stencil_block: stencil_block grid=1 block=64
//@   inout x: f32[64] uniform(-1, 1) raw
//@   finds global memory race
//@ run races_max: maximum grid=4 block=32
//@   in x: u32[128] iota
//@   inout most: u32[1] zero raw
//@   finds global memory race
//@ run races_append: append grid=2 block=32
//@   in x: u32[64] iota
//@   inout count: u32[1] zero raw
//@   inout out: u32[64] zero raw
//@   finds global memory race
//@ run races_scope_histogram: scope_histogram grid=4 block=64
//@   in x: u32[256] int(0, 7)
//@   inout counts: u32[8] zero raw
//@   finds atomic scope too narrow
//@ run races_scope_lock: scope_lock grid=2 block=32
//@   inout lock: u32[1] zero raw
//@   inout value: u32[1] zero raw
//@   finds atomic scope too narrow
//@ run races_lock_not_taken: lock_not_taken grid=2 block=32
//@   inout lock: u32[1] zero raw
//@   inout value: u32[1] zero raw
//@   finds global memory race
//@ run races_lock_no_fence: lock_no_fence grid=4 block=32
//@   inout lock: u32[1] zero raw
//@   inout value: u32[1] zero raw
//@   finds global memory race
//@ run races_two_locks: two_locks grid=4 block=32
//@   inout locks: u32[2] zero raw
//@   inout value: u32[1] zero raw
//@   finds global memory race
//@ run races_ldg: ldg grid=1 block=64
//@   inout x: f32[64] uniform(-1, 1) raw
//@   finds read-only load of written data
//@ run races_restrict: restricted grid=1 block=64
//@   inout x: f32[64] uniform(-1, 1) raw
//@   inout y: f32[64] zero raw
//@   finds read-only load of written data
//@ run races_grid_barrier: grid_barrier grid=4 block=32
//@   inout x: u32[128] zero raw
//@   inout arrived: u32[1] zero raw
//@   out y: u32[128] raw
//@   finds global memory race
//@ run races_lookback: lookback grid=4 block=32
//@   in x: u32[128] iota
//@   inout sums: u32[4] zero raw
//@   inout states: u32[4] zero raw
//@   out y: u32[128] raw
//@   finds global memory race
//@ run races_bit_set: bit_set grid=1 block=64
//@   inout bits: u32[2] zero raw
//@   finds global memory race
//@ run races_neighbour_bytes: neighbour_words grid=2 block=16
//@   inout x: u8[33] zero raw
//@   finds global memory race
//@ run races_syncwarp_not_syncthreads: exchange grid=1 block=64
//@   inout x: u32[64] iota raw
//@   finds global memory race
//@ run races_atomic_then_plain: atomic_then_plain grid=2 block=32
//@   inout sum: u32[1] zero raw
//@   inout seen: u32[64] zero raw
//@   finds global memory race
//@ run races_reset_by_first: reset_by_first grid=4 block=32
//@   inout count: u32[1] zero raw
//@   finds global memory race
//@ run races_coordinates: transpose_in_place grid=2,2 block=8,8
//@   inout x: f32[256] uniform(-1, 1) raw
//@   finds global memory race

extern "C" __global__ void last_block_no_fence(const unsigned* x, unsigned* parts,
                                               unsigned* ticket, unsigned* sum) {
    unsigned mine = __reduce_add_sync(0xffffffffu, x[blockIdx.x * 32 + threadIdx.x]);
    if (threadIdx.x != 0) return;
    parts[blockIdx.x] = mine;
    if (atomicAdd(ticket, 1u) != gridDim.x - 1) return;
    unsigned all = 0;
    for (unsigned k = 0; k < gridDim.x; k++) all += parts[k];
    *sum = all;
}

extern "C" __global__ void plain_flag(unsigned* data, unsigned* flag, unsigned* got) {
    if (blockIdx.x == 0) {
        data[threadIdx.x] = threadIdx.x;
        __threadfence();
        __syncthreads();
        if (threadIdx.x == 0) *flag = 1;
    } else if (*flag != 0) {
        got[threadIdx.x] = data[threadIdx.x];
    }
}

extern "C" __global__ void flag_no_fence(unsigned* data, unsigned* flag, unsigned* got) {
    if (blockIdx.x == 0) {
        data[threadIdx.x] = threadIdx.x;
        __syncthreads();
        if (threadIdx.x == 0) atomicExch(flag, 1u);
    } else {
        while (atomicAdd(flag, 0u) == 0) {}
        got[threadIdx.x] = data[threadIdx.x];
    }
}

extern "C" __global__ void stencil_in_place(float* x) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    float left = i > 0 ? x[i - 1] : 0.0f, right = i < 255 ? x[i + 1] : 0.0f;
    __syncthreads();
    x[i] = 0.5f * (left + right);
}

extern "C" __global__ void stencil_block(float* x) {
    int i = threadIdx.x;
    x[i] = i > 0 ? 0.5f * (x[i] + x[i - 1]) : x[i];
}

extern "C" __global__ void maximum(const unsigned* x, unsigned* most) {
    unsigned v = x[blockIdx.x * blockDim.x + threadIdx.x];
    if (v > *most) *most = v;
}

extern "C" __global__ void append(const unsigned* x, unsigned* count, unsigned* out) {
    unsigned v = x[blockIdx.x * blockDim.x + threadIdx.x];
    if (v % 3 == 0) {
        unsigned at = (*count)++;
        out[at] = v;
    }
}

extern "C" __global__ void scope_histogram(const unsigned* x, unsigned* counts) {
    atomicAdd_block(&counts[x[blockIdx.x * blockDim.x + threadIdx.x]], 1u);
}

extern "C" __global__ void scope_lock(unsigned* lock, unsigned* value) {
    if (threadIdx.x != 0) return;
    while (atomicCAS_block(lock, 0u, 1u) != 0u) {}
    __threadfence();
    atomicAdd(value, 1u);
    __threadfence();
    atomicExch_block(lock, 0u);
}

extern "C" __global__ void lock_not_taken(unsigned* lock, unsigned* value) {
    if (threadIdx.x != 0) return;
    // One side takes the lock, the other has no time for it.
    if (blockIdx.x == 0) {
        while (atomicCAS(lock, 0u, 1u) != 0u) {}
        __threadfence();
        *value += 1;
        __threadfence();
        atomicExch(lock, 0u);
    } else {
        *value += 1;
    }
}

extern "C" __global__ void lock_no_fence(unsigned* lock, unsigned* value) {
    if (threadIdx.x != 0) return;
    while (atomicCAS(lock, 0u, 1u) != 0u) {}
    *value += blockIdx.x;
    atomicExch(lock, 0u);
}

extern "C" __global__ void two_locks(unsigned* locks, unsigned* value) {
    if (threadIdx.x != 0) return;
    unsigned* lock = &locks[blockIdx.x % 2];
    while (atomicCAS(lock, 0u, 1u) != 0u) {}
    __threadfence();
    *value += 1;
    __threadfence();
    atomicExch(lock, 0u);
}

extern "C" __global__ void ldg(float* x) {
    int t = threadIdx.x;
    x[t] *= 2.0f;
    __syncthreads();
    float other = __ldg(&x[63 - t]);
    __syncthreads();
    x[t] = other;
}

__device__ void add(const float* __restrict__ a, float* __restrict__ b, int t) {
    b[t] = __ldg(&a[t]) + 1.0f;
}

extern "C" __global__ void restricted(float* x, float* y) {
    // The second call reads what the first one wrote, by loads for data that nothing writes.
    add(x, y, threadIdx.x);
    __syncthreads();
    add(y, x, 63 - threadIdx.x);
}

extern "C" __global__ void grid_barrier(unsigned* x, unsigned* arrived, unsigned* y) {
    int i = blockIdx.x * 32 + threadIdx.x;
    x[i] = i;
    // Counts the blocks, but nothing makes what they wrote visible.
    if (threadIdx.x == 0) {
        atomicAdd(arrived, 1u);
        while (atomicAdd(arrived, 0u) < gridDim.x) {}
    }
    __syncthreads();
    y[i] = x[127 - i];
}

extern "C" __global__ void lookback(const unsigned* x, unsigned* sums, unsigned* states,
                                    unsigned* y) {
    __shared__ unsigned before;
    unsigned i = blockIdx.x * 32 + threadIdx.x, v = x[i];
    for (int d = 1; d < 32; d *= 2) {
        unsigned other = __shfl_up_sync(0xffffffffu, v, d);
        if (threadIdx.x >= d) v += other;
    }
    if (threadIdx.x == 31) {
        unsigned sum = 0;
        if (blockIdx.x > 0) {
            while (atomicAdd(&states[blockIdx.x - 1], 0u) == 0) {}
            sum = sums[blockIdx.x - 1];
        }
        sums[blockIdx.x] = sum + v;
        atomicExch(&states[blockIdx.x], 1u);
        before = sum;
    }
    __syncthreads();
    y[i] = before + v;
}

extern "C" __global__ void bit_set(unsigned* bits) {
    bits[threadIdx.x / 32] |= 1u << (threadIdx.x % 32);
}

extern "C" __global__ void neighbour_words(unsigned char* x) {
    // Two bytes each, one of them the neighbour's.
    int i = blockIdx.x * 16 + threadIdx.x;
    x[i] = (unsigned char)i;
    x[i + 1] = (unsigned char)(i + 5);
}

extern "C" __global__ void exchange(unsigned* x) {
    unsigned v = x[threadIdx.x];
    __syncwarp();
    x[63 - threadIdx.x] = v;
}

extern "C" __global__ void atomic_then_plain(unsigned* sum, unsigned* seen) {
    atomicAdd(sum, 1u);
    __syncthreads();
    seen[blockIdx.x * 32 + threadIdx.x] = *sum;
}

extern "C" __global__ void reset_by_first(unsigned* count) {
    if (blockIdx.x == 0 && threadIdx.x == 0) *count = 100;
    __syncthreads();
    atomicAdd(count, 1u);
}

extern "C" __global__ void transpose_in_place(float* x) {
    int c = blockIdx.x * 8 + threadIdx.x, r = blockIdx.y * 8 + threadIdx.y;
    float v = x[r * 16 + c];
    __syncthreads();
    x[c * 16 + r] = v;
}
