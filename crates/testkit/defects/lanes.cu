// Lanes of a warp: what one publishes, takes, or meets is not done for the others.
//@ run lanes_publish: publish grid=2 block=32
//@   inout data: u32[32] zero raw
//@   inout flag: u32[1] zero raw
//@   inout got: u32[32] zero raw
//@   finds global memory race
//@ run lanes_publish_exit: publish_exit grid=2 block=24
//@   inout data: u32[32] zero raw
//@   inout flag: u32[1] zero raw
//@   inout got: u32[32] zero raw
//@   finds global memory race
//@ run lanes_take: take grid=2 block=32
//@   inout data: u32[32] zero raw
//@   inout flag: u32[1] zero raw
//@   inout got: u32[32] zero raw
//@   finds global memory race
//@ run lanes_ticket: ticket grid=4 block=32
//@   inout parts: u32[128] zero raw
//@   inout count: u32[1] zero raw
//@   inout sum: u32[1] zero raw
//@   finds global memory race
//@ run lanes_other_flag: other_flag grid=2 block=1
//@   inout data: u32[1] zero raw
//@   inout flags: u32[2] zero raw
//@   inout got: u32[1] zero raw
//@   finds global memory race
//@ run lanes_halves: halves grid=1 block=32
//@   out y: u32[32] raw
//@   finds shared memory race
//@ run lanes_half_global: half_global grid=1 block=32
//@   inout x: u32[32] iota raw
//@   out y: u32[32] raw
//@   finds global memory race
//@ run lanes_quarter: quarter grid=1 block=64
//@   out y: u32[64] raw
//@   finds shared memory race
//@ run lanes_last_writes: last_writes grid=1 block=32
//@   out y: u32[32] raw
//@   finds shared memory race
//@ run lanes_last_writes_global: last_writes_global grid=1 block=32
//@   inout x: u32[1] iota raw
//@   out y: u32[32] raw
//@   finds global memory race
//@ run lanes_shared_flag: shared_flag grid=1 block=64
//@   out y: u32[32] raw
//@   finds shared memory race
//@ run lanes_shared_queue: shared_queue grid=1 block=64
//@   in x: u32[64] iota
//@   out y: u32[32] raw
//@   finds shared memory race
//@ run lanes_bytes: bytes grid=2 block=32
//@   inout x: u8[64] zero raw
//@   out y: u32[32] raw
//@   finds global memory race
//@ run lanes_halfwords: halfwords grid=1 block=64
//@   out y: u32[32] raw
//@   finds shared memory race

extern "C" __global__ void publish(unsigned* data, unsigned* flag, unsigned* got) {
    int t = threadIdx.x;
    if (blockIdx.x == 0) {
        data[t] = t;
        if (t == 0) {
            __threadfence();
            atomicExch(flag, 1u);
        }
    } else {
        while (atomicAdd(flag, 0u) == 0) {}
        __threadfence();
        got[t] = data[t];
    }
}

extern "C" __global__ void publish_exit(unsigned* data, unsigned* flag, unsigned* got) {
    int t = threadIdx.x;
    if (blockIdx.x == 0) {
        if (t >= 20) return;
        data[t] = t;
        __threadfence();
        if (t == 19) atomicExch(flag, 1u);
    } else {
        while (atomicAdd(flag, 0u) == 0) {}
        __threadfence();
        if (t < 20) got[t] = data[t];
    }
}

extern "C" __global__ void take(unsigned* data, unsigned* flag, unsigned* got) {
    int t = threadIdx.x;
    if (blockIdx.x == 0) {
        data[t] = t;
        __syncwarp();
        if (t == 5) {
            __threadfence();
            atomicExch(flag, 1u);
        }
    } else {
        if (t == 0) {
            while (atomicAdd(flag, 0u) == 0) {}
            __threadfence();
        }
        got[t] = data[t];
    }
}

extern "C" __global__ void ticket(unsigned* parts, unsigned* count, unsigned* sum) {
    int i = blockIdx.x * 32 + threadIdx.x;
    parts[i] = i;
    if (threadIdx.x != 0) return;
    __threadfence();
    if (atomicAdd(count, 1u) != gridDim.x - 1) return;
    __threadfence();
    unsigned all = 0;
    for (int k = 0; k < 128; k++) all += parts[k];
    *sum = all;
}

extern "C" __global__ void other_flag(unsigned* data, unsigned* flags, unsigned* got) {
    if (blockIdx.x == 0) {
        *data = 5;
        // Released at one flag; the other one is read.
        asm volatile("st.release.gpu.global.u32 [%0], %1;" ::"l"(&flags[0]), "r"(1) : "memory");
        asm volatile("st.relaxed.gpu.global.u32 [%0], %1;" ::"l"(&flags[1]), "r"(1) : "memory");
    } else {
        unsigned seen = 0;
        while (seen == 0)
            asm volatile("ld.acquire.gpu.global.u32 %0, [%1];" : "=r"(seen) : "l"(&flags[1]) : "memory");
        *got = *data;
    }
}

extern "C" __global__ void halves(unsigned* y) {
    __shared__ unsigned s[32];
    int t = threadIdx.x;
    s[t] = t;
    // Sixteen meet, and read what the other sixteen wrote.
    __syncwarp(t < 16 ? 0x0000ffffu : 0xffff0000u);
    y[t] = s[(t + 8) % 32];
}

extern "C" __global__ void half_global(unsigned* x, unsigned* y) {
    int t = threadIdx.x;
    x[t] = 2 * t;
    if (t < 16) {
        __syncwarp(0x0000ffffu);
        y[t] = x[t + 1];
    } else {
        y[t] = x[t];
    }
}

extern "C" __global__ void quarter(unsigned* y) {
    __shared__ unsigned s[64];
    int t = threadIdx.x, lane = t % 32;
    s[t] = t;
    __syncwarp(0xffu << (lane / 8 * 8));
    y[t] = s[t ^ 8];
}

extern "C" __global__ void last_writes(unsigned* y) {
    __shared__ unsigned carry;
    int t = threadIdx.x;
    if (t == 0) carry = 3;
    __syncwarp();
    unsigned v = carry + t;
    if (t == 31) carry = v;
    __syncwarp();
    y[t] = v + carry;
}

extern "C" __global__ void last_writes_global(unsigned* x, unsigned* y) {
    int t = threadIdx.x;
    unsigned v = x[0] + t;
    if (t == 31) x[0] = v;
    y[t] = v;
}

extern "C" __global__ void shared_flag(unsigned* y) {
    __shared__ unsigned data[32], flag;
    int t = threadIdx.x;
    if (t == 0) flag = 0;
    __syncthreads();
    if (t < 32) {
        data[t] = 3 * t;
        if (t == 0) {
            __threadfence_block();
            atomicExch(&flag, 1u);
        }
    } else {
        while (atomicAdd(&flag, 0u) == 0) {}
        __threadfence_block();
        y[t - 32] = data[t - 32];
    }
}

extern "C" __global__ void shared_queue(const unsigned* x, unsigned* y) {
    __shared__ unsigned items[32], count;
    int t = threadIdx.x;
    if (t == 0) count = 0;
    __syncthreads();
    if (t < 32) {
        // Written, counted, and no fence between.
        items[t] = x[t];
        __syncwarp();
        if (t == 0) atomicAdd(&count, 32u);
    } else {
        while (atomicAdd(&count, 0u) < 32) {}
        y[t - 32] = items[t - 32];
    }
}

extern "C" __global__ void bytes(unsigned char* x, unsigned* y) {
    int t = threadIdx.x;
    if (blockIdx.x == 0) {
        x[2 * t] = (unsigned char)t;
        x[2 * t + 1] = 1;
    } else {
        y[t] = x[2 * t];
    }
}

extern "C" __global__ void halfwords(unsigned* y) {
    __shared__ unsigned short s[64];
    int t = threadIdx.x;
    // Each word has two writers; the one that writes first is read by the other warp.
    if (t < 32) {
        s[2 * t] = (unsigned short)t;
        s[2 * t + 1] = (unsigned short)(t + 1);
    } else {
        y[t - 32] = s[2 * (t - 32)];
    }
}
