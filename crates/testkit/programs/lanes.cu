// Lanes of a warp that publish, take and meet as they should.
//@ run lanes_publish_met: publish grid=2 block=32
//@   inout data: u32[32] zero raw
//@   inout flag: u32[1] zero raw
//@   out got: u32[32] raw
//@ run lanes_own: own grid=2 block=32
//@   inout data: u32[32] zero raw
//@   inout flags: u32[32] zero raw
//@   out got: u32[32] raw
//@ run lanes_all_fence: all_fence grid=2 block=40
//@   inout data: u32[40] zero raw
//@   inout flag: u32[1] zero raw
//@   out got: u32[40] raw
//@ run lanes_exited: exited grid=2 block=32
//@   inout data: u32[32] zero raw
//@   inout flag: u32[1] zero raw
//@   inout got: u32[32] zero raw
//@ run lanes_chain: chain grid=3 block=32
//@   inout data: u32[1] zero raw
//@   inout flags: u32[2] zero raw
//@   out got: u32[32] raw
//@ run lanes_tiles: tiles grid=1 block=64
//@   out y: u32[64] raw
//@ run lanes_branches: branches grid=1 block=32
//@   out y: u32[32] raw
//@ run lanes_carry: carry grid=1 block=64
//@   out y: u32[64] raw
//@ run lanes_shared_lock: shared_lock grid=1 block=128
//@   out y: u32[1] raw
//@ run lanes_bytes_own: bytes grid=2 block=32
//@   inout x: u8[64] zero raw
//@   out y: u32[64] raw
//@ run lanes_rgba: rgba grid=1 block=64
//@   inout x: u8[256] zero raw
//@   out y: u32[64] raw
//@ run lanes_sieve: sieve grid=1 block=32
//@   inout x: u8[128] zero raw

extern "C" __global__ void publish(unsigned* data, unsigned* flag, unsigned* got) {
    int t = threadIdx.x;
    if (blockIdx.x == 0) {
        data[t] = t;
        __syncwarp();
        if (t == 3) {
            __threadfence();
            atomicExch(flag, 1u);
        }
    } else {
        if (t == 0) {
            while (atomicAdd(flag, 0u) == 0) {}
            __threadfence();
        }
        __syncwarp();
        got[t] = data[t];
    }
}

extern "C" __global__ void own(unsigned* data, unsigned* flags, unsigned* got) {
    int t = threadIdx.x;
    if (blockIdx.x == 0) {
        data[t] = t;
        __threadfence();
        atomicExch(&flags[t], 1u);
    } else {
        // Each thread waits for the thread whose word it reads.
        while (atomicAdd(&flags[31 - t], 0u) == 0) {}
        __threadfence();
        got[t] = data[31 - t];
    }
}

extern "C" __global__ void all_fence(unsigned* data, unsigned* flag, unsigned* got) {
    int t = threadIdx.x;
    if (blockIdx.x == 0) {
        data[t] = t;
        __threadfence();
        __syncthreads();
        if (t == 39) atomicExch(flag, 1u);
    } else {
        if (t == 0) while (atomicAdd(flag, 0u) == 0) {}
        __syncthreads();
        __threadfence();
        got[t] = data[t];
    }
}

extern "C" __global__ void exited(unsigned* data, unsigned* flag, unsigned* got) {
    int t = threadIdx.x;
    if (t >= 20) return;
    if (blockIdx.x == 0) {
        data[t] = t;
        __syncwarp(0xfffff);
        if (t == 19) {
            __threadfence();
            atomicExch(flag, 1u);
        }
    } else {
        while (atomicAdd(flag, 0u) == 0) {}
        __threadfence();
        got[t] = data[t];
    }
}

extern "C" __global__ void chain(unsigned* data, unsigned* flags, unsigned* got) {
    int t = threadIdx.x;
    if (blockIdx.x == 0) {
        if (t == 7) {
            *data = 9;
            __threadfence();
            atomicExch(&flags[0], 1u);
        }
    } else if (blockIdx.x == 1) {
        // One lane takes it, another hands it on.
        if (t == 1) {
            while (atomicAdd(&flags[0], 0u) == 0) {}
            __threadfence();
        }
        __syncwarp();
        if (t == 30) {
            __threadfence();
            atomicExch(&flags[1], 1u);
        }
    } else {
        while (atomicAdd(&flags[1], 0u) == 0) {}
        __threadfence();
        got[t] = *data;
    }
}

extern "C" __global__ void tiles(unsigned* y) {
    __shared__ unsigned s[64];
    int t = threadIdx.x, lane = t % 32;
    unsigned mask = 0xffu << (lane / 8 * 8);
    s[t] = t;
    __syncwarp(mask);
    unsigned v = s[t ^ 7];
    __syncwarp(mask);
    s[t ^ 3] = v;
    __syncwarp();
    y[t] = s[t ^ 16];
}

extern "C" __global__ void branches(unsigned* y) {
    __shared__ unsigned s[32];
    int t = threadIdx.x;
    if (t < 12) {
        s[t] = t;
        __syncwarp(0xfff);
        y[t] = s[11 - t];
    } else {
        s[t] = 2 * t;
        __syncwarp(0xfffff000u);
        y[t] = s[43 - t];
    }
}

extern "C" __global__ void carry(unsigned* y) {
    __shared__ unsigned last[2];
    int t = threadIdx.x, w = t / 32;
    if (t % 32 == 0) last[w] = 3;
    __syncwarp();
    for (int k = 0; k < 4; k++) {
        unsigned v = last[w] + t;
        __syncwarp();
        if (t % 32 == 31) last[w] = v;
        __syncwarp();
    }
    y[t] = last[w];
}

extern "C" __global__ void shared_lock(unsigned* y) {
    __shared__ unsigned lock, sum;
    int t = threadIdx.x;
    if (t == 0) lock = sum = 0;
    __syncthreads();
    for (bool done = false; !done;) {
        if (atomicCAS(&lock, 0u, 1u) == 0u) {
            __threadfence_block();
            sum += t;
            __threadfence_block();
            atomicExch(&lock, 0u);
            done = true;
        }
    }
    __syncthreads();
    if (t == 0) *y = sum;
}

extern "C" __global__ void bytes(unsigned char* x, unsigned* y) {
    int i = blockIdx.x * 32 + threadIdx.x;
    x[i] = (unsigned char)i;
    y[i] = x[i];
}

extern "C" __global__ void rgba(unsigned char* x, unsigned* y) {
    int t = threadIdx.x;
    for (int c = 0; c < 4; c++) x[4 * t + c] = (unsigned char)(t + c);
    unsigned sum = 0;
    for (int c = 0; c < 4; c++) sum += x[4 * t + c];
    y[t] = sum;
    __syncthreads();
    y[t] += x[4 * (63 - t) + t % 4];
}

extern "C" __global__ void sieve(unsigned char* x) {
    int step = threadIdx.x + 2;
    for (int k = 2 * step; k < 128; k += step) x[k] = 1;
}
