// Shared memory: races of the threads of one block, and arrays that run into each other.
//@ run shared_second_barrier: second_barrier grid=1 block=64
//@   in x: f32[256] uniform(-1, 1)
//@   out y: f32[64] raw
//@   finds shared memory race
//@ run shared_no_barrier_in_tree: tree grid=1 block=128
//@   in x: u32[128] iota
//@   out y: u32[1] raw
//@   finds shared memory race
//@ run shared_scan_in_place: scan_in_place grid=1 block=64
//@   inout x: u32[64] iota raw
//@   finds shared memory race
//@ run shared_warp_step: warp_step grid=1 block=32
//@   in x: u32[32] iota
//@   out y: u32[32] raw
//@   finds shared memory race
//@ run shared_flag_plain: flag_plain grid=1 block=64
//@   out y: u32[64] raw
//@   finds shared memory race
//@ run shared_counter: counter grid=1 block=64
//@   in x: u32[64] bits
//@   out y: u32[1] raw
//@   finds shared memory race
//@ run shared_histogram: histogram grid=1 block=128
//@   in x: u32[128] int(0, 7)
//@   out y: u32[8] raw
//@   finds shared memory race
//@ run shared_zeroed_late: zeroed_late grid=1 block=64
//@   in x: u32[64] int(0, 7)
//@   out y: u32[8] raw
//@   finds shared memory race
//@ run shared_broadcast: broadcast grid=1 block=64
//@   in x: u32[64] bits
//@   out y: u32[64] raw
//@   finds shared memory race, uninitialised read
//@ run shared_broadcast_again: broadcast_again grid=1 block=64
//@   in x: u32[64] bits
//@   out y: u32[64] raw
//@   finds shared memory race
//@ run shared_double_buffer: double_buffer grid=1 block=64
//@   in x: f32[256] uniform(-1, 1)
//@   out y: f32[64] raw
//@   finds shared memory race, uninitialised read
//@ run shared_transpose: transpose grid=1 block=16,16
//@   in x: f32[256] uniform(-1, 1)
//@   out y: f32[256] raw
//@   finds shared memory race, uninitialised read
//@ run shared_uninitialised_tail: uninitialised_tail grid=1 block=48
//@   in x: f32[48] uniform(-1, 1)
//@   out y: f32[1] raw
//@   finds uninitialised read
//@ run shared_uninitialised_pad: uninitialised_pad grid=1 block=32
//@   in x: f32[32] uniform(-1, 1)
//@   out y: f32[32] raw
//@   finds uninitialised read
//@ run shared_uninitialised_dynamic: uninitialised_dynamic grid=1 block=64 shared=512
//@   out y: u32[64] raw
//@   finds uninitialised read
//@ run shared_next_array: next_array grid=1 block=33
//@   out y: u32[64] raw
//@   finds out of bounds
//@ run shared_before_array: before_array grid=1 block=32
//@   out y: u32[32] raw
//@   finds out of bounds
//@ run shared_row_too_far: row_too_far grid=1 block=8,9
//@   out y: u32[64] raw
//@   finds out of bounds
//@ run shared_dynamic_end: dynamic_end grid=1 block=64 shared=252
//@   out y: u32[64] raw
//@   finds out of bounds
//@ run shared_sort: sort grid=1 block=64
//@   inout x: u32[128] bits raw
//@   finds shared memory race
//@ run shared_atomic_and_plain: atomic_and_plain grid=1 block=64
//@   out y: u32[64] raw
//@   finds shared memory race
//@ run shared_half_block: half_block grid=1 block=64
//@   in x: u32[64] bits
//@   out y: u32[64] raw
//@   finds shared memory race, uninitialised read
//@ run shared_bytes: bytes_of_word grid=1 block=64
//@   in x: u32[64] bits
//@   out y: u32[64] raw
//@   finds shared memory race

extern "C" __global__ void second_barrier(const float* x, float* y) {
    __shared__ float tile[64];
    float sum = 0;
    int t = threadIdx.x;
    for (int k = 0; k < 4; k++) {
        tile[t] = x[k * 64 + t];
        __syncthreads();
        for (int i = 0; i < 64; i++) sum += tile[(t + i) % 64];
        // The next tile is written while others still read this one.
    }
    y[t] = sum;
}

extern "C" __global__ void tree(const unsigned* x, unsigned* y) {
    __shared__ unsigned s[128];
    int t = threadIdx.x;
    s[t] = x[t];
    __syncthreads();
    for (int d = 64; d > 0; d /= 2) {
        if (t < d) s[t] += s[t + d];
        if (d > 32) __syncthreads();
    }
    if (t == 0) *y = s[0];
}

extern "C" __global__ void scan_in_place(unsigned* x) {
    __shared__ unsigned s[64];
    int t = threadIdx.x;
    s[t] = x[t];
    __syncthreads();
    for (int d = 1; d < 64; d *= 2) {
        if (t >= d) s[t] += s[t - d];
        __syncthreads();
    }
    x[t] = s[t];
}

extern "C" __global__ void warp_step(const unsigned* x, unsigned* y) {
    __shared__ unsigned s[32];
    int t = threadIdx.x;
    s[t] = x[t];
    y[t] = s[31 - t];
}

extern "C" __global__ void flag_plain(unsigned* y) {
    __shared__ unsigned value, done;
    if (threadIdx.x == 0) done = 0;
    __syncthreads();
    if (threadIdx.x == 0) {
        value = 7;
        done = 1;
    }
    if (threadIdx.x >= 32) y[threadIdx.x] = done != 0 ? value : 0;
    else y[threadIdx.x] = 0;
}

extern "C" __global__ void counter(const unsigned* x, unsigned* y) {
    __shared__ unsigned odd;
    if (threadIdx.x == 0) odd = 0;
    __syncthreads();
    if (x[threadIdx.x] % 2 == 1) odd++;
    __syncthreads();
    if (threadIdx.x == 0) *y = odd;
}

extern "C" __global__ void histogram(const unsigned* x, unsigned* y) {
    __shared__ unsigned counts[8];
    int t = threadIdx.x;
    if (t < 8) counts[t] = 0;
    __syncthreads();
    counts[x[t]] += 1;
    __syncthreads();
    if (t < 8) y[t] = counts[t];
}

extern "C" __global__ void zeroed_late(const unsigned* x, unsigned* y) {
    __shared__ unsigned counts[8];
    int t = threadIdx.x;
    if (t < 8) counts[t] = 0;
    atomicAdd(&counts[x[t]], 1u);
    __syncthreads();
    if (t < 8) y[t] = counts[t];
}

extern "C" __global__ void broadcast(const unsigned* x, unsigned* y) {
    __shared__ unsigned first;
    if (threadIdx.x == 0) first = x[0];
    y[threadIdx.x] = x[threadIdx.x] - (threadIdx.x < 32 ? 0 : first);
    __syncthreads();
}

extern "C" __global__ void broadcast_again(const unsigned* x, unsigned* y) {
    __shared__ unsigned one;
    unsigned sum = 0;
    for (int k = 0; k < 4; k++) {
        if (threadIdx.x == 0) one = x[k];
        __syncthreads();
        sum += one;
    }
    y[threadIdx.x] = sum;
}

extern "C" __global__ void double_buffer(const float* x, float* y) {
    __shared__ float tile[2][64];
    int t = threadIdx.x;
    float sum = 0;
    tile[0][t] = x[t];
    __syncthreads();
    for (int k = 0; k < 4; k++) {
        // The buffer that is read is the one that is filled for the next step.
        if (k < 3) tile[k % 2][t] = x[(k + 1) * 64 + t];
        sum += tile[k % 2][63 - t];
        __syncthreads();
    }
    y[t] = sum;
}

extern "C" __global__ void transpose(const float* x, float* y) {
    __shared__ float tile[16][17];
    int i = threadIdx.y * 16 + threadIdx.x;
    tile[threadIdx.y][threadIdx.x] = x[i];
    y[i] = tile[threadIdx.x][threadIdx.y];
}

extern "C" __global__ void uninitialised_tail(const float* x, float* y) {
    __shared__ float s[64];
    int t = threadIdx.x;
    s[t] = x[t];
    __syncthreads();
    for (int d = 32; d > 0; d /= 2) {
        if (t < d) s[t] += s[t + d];
        __syncthreads();
    }
    if (t == 0) *y = s[0];
}

extern "C" __global__ void uninitialised_pad(const float* x, float* y) {
    __shared__ float s[34];
    int t = threadIdx.x;
    s[t + 1] = x[t];
    __syncthreads();
    y[t] = s[t] + s[t + 2];
}

extern "C" __global__ void uninitialised_dynamic(unsigned* y) {
    extern __shared__ unsigned words[];
    int t = threadIdx.x;
    words[2 * t] = t;
    __syncthreads();
    y[t] = words[t];
}

extern "C" __global__ void next_array(unsigned* y) {
    __shared__ unsigned a[32], b[32];
    int t = threadIdx.x;
    if (t < 32) b[t] = 1;
    __syncthreads();
    a[t] = 2;
    __syncthreads();
    if (t < 32) {
        y[t] = a[t];
        y[32 + t] = b[t];
    }
}

extern "C" __global__ void before_array(unsigned* y) {
    __shared__ unsigned a[32], b[32];
    int t = threadIdx.x;
    a[t] = t;
    b[t] = t;
    __syncthreads();
    y[t] = b[t - 1] + a[31 - t];
}

extern "C" __global__ void row_too_far(unsigned* y) {
    __shared__ unsigned a[8][8];
    a[threadIdx.y][threadIdx.x] = threadIdx.x;
    __syncthreads();
    if (threadIdx.y < 8) y[threadIdx.y * 8 + threadIdx.x] = a[threadIdx.x][threadIdx.y];
}

extern "C" __global__ void dynamic_end(unsigned* y) {
    extern __shared__ unsigned words[];
    int t = threadIdx.x;
    words[t] = t;
    __syncthreads();
    y[t] = t < 63 ? words[62 - t] : 0;
}

extern "C" __global__ void sort(unsigned* x) {
    __shared__ unsigned s[128];
    int t = threadIdx.x;
    s[t] = x[t];
    s[t + 64] = x[t + 64];
    __syncthreads();
    // Odd-even transposition with a barrier after every second phase only.
    for (int k = 0; k < 8; k++) {
        for (int odd = 0; odd < 2; odd++) {
            int i = 2 * t + odd;
            if (i + 1 < 128 && s[i] > s[i + 1]) {
                unsigned other = s[i];
                s[i] = s[i + 1];
                s[i + 1] = other;
            }
        }
        __syncthreads();
    }
    x[t] = s[t];
    x[t + 64] = s[t + 64];
}

extern "C" __global__ void atomic_and_plain(unsigned* y) {
    __shared__ unsigned sum;
    if (threadIdx.x == 0) sum = 0;
    __syncthreads();
    atomicAdd(&sum, threadIdx.x);
    y[threadIdx.x] = sum;
}

extern "C" __global__ void half_block(const unsigned* x, unsigned* y) {
    __shared__ unsigned s[64];
    int t = threadIdx.x;
    s[t] = x[t];
    // A warp waits for itself only.
    __syncwarp();
    y[t] = s[63 - t];
}

extern "C" __global__ void bytes_of_word(const unsigned* x, unsigned* y) {
    __shared__ unsigned char s[64];
    int t = threadIdx.x;
    s[t] = (unsigned char)x[t];
    y[t] = ((unsigned*)s)[t / 4];
}
