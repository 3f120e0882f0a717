// Fences as wide as what they order.
//@ run relayed: relayed grid=2 block=64
//@   inout words: u32[3] zero raw
//@   inout y: u32[1] zero raw
//@ run shared_relay: shared_relay grid=2 block=64
//@   inout words: u32[2] zero raw
//@   inout y: u32[1] zero raw
//@ run within_block: within_block grid=3 block=64
//@   inout words: u32[6] zero raw
//@   inout y: u32[3] zero raw
//@ run both_fences: both_fences grid=2 block=1
//@   inout words: u32[2] zero raw
//@   inout y: u32[1] zero raw

extern "C" __global__ void relayed(unsigned* words, unsigned* y) {
    // A fence of the block is enough to a thread of the block, which passes it on with a wider one.
    unsigned t = threadIdx.x;
    if (blockIdx.x == 0) {
        if (t == 0) {
            words[0] = 5;
            __threadfence_block();
            atomicExch(&words[1], 1u);
        } else if (t == 32) {
            while (atomicAdd(&words[1], 0u) == 0u) {}
            __threadfence();
            atomicExch(&words[2], 1u);
        }
    } else if (t == 0) {
        while (atomicAdd(&words[2], 0u) == 0u) {}
        __threadfence();
        y[0] = words[0];
    }
}

extern "C" __global__ void within_block(unsigned* words, unsigned* y) {
    unsigned *mine = words + 2 * blockIdx.x, t = threadIdx.x;
    if (t == 0) {
        mine[0] = 5;
        __threadfence_block();
        atomicExch(&mine[1], 1u);
    } else if (t == 32) {
        while (atomicAdd(&mine[1], 0u) == 0u) {}
        __threadfence_block();
        y[blockIdx.x] = mine[0];
    }
}

extern "C" __global__ void both_fences(unsigned* words, unsigned* y) {
    if (blockIdx.x == 0) {
        words[0] = 5;
        __threadfence();
        __threadfence_block();
        atomicExch(&words[1], 1u);
    } else {
        while (atomicAdd(&words[1], 0u) == 0u) {}
        __threadfence();
        y[0] = words[0];
    }
}

extern "C" __global__ void shared_relay(unsigned* words, unsigned* y) {
    // By shared memory within the block, then behind a fence of the device to another one.
    __shared__ unsigned flag;
    unsigned t = threadIdx.x;
    if (t == 0) flag = 0;
    __syncthreads();
    if (blockIdx.x == 0) {
        if (t == 0) {
            words[0] = 5;
            __threadfence_block();
            atomicExch(&flag, 1u);
        } else if (t == 32) {
            while (atomicAdd(&flag, 0u) == 0u) {}
            __threadfence();
            atomicExch(&words[1], 1u);
        }
    } else if (t == 0) {
        while (atomicAdd(&words[1], 0u) == 0u) {}
        __threadfence();
        y[0] = words[0];
    }
}
