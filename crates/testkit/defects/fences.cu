// Fences and releases for the own block, between blocks.
//@ run fences_flag: block_fence_flag grid=2 block=1
//@   inout words: u32[2] zero raw
//@   inout y: u32[1] zero raw
//@   finds global memory race
//@ run fences_ticket: block_fence_ticket grid=4 block=32
//@   inout parts: u32[4] zero raw
//@   inout ticket: u32[1] zero raw
//@   inout y: u32[1] zero raw
//@   finds global memory race
//@ run fences_shared_relay: shared_relay grid=2 block=64
//@   inout words: u32[2] zero raw
//@   inout y: u32[1] zero raw
//@   finds global memory race
//@ run fences_release: block_release grid=2 block=1
//@   inout words: u32[2] zero raw
//@   inout y: u32[1] zero raw
//@   finds global memory race

extern "C" __global__ void block_fence_flag(unsigned* words, unsigned* y) {
    if (blockIdx.x == 0) {
        words[0] = 5;
        __threadfence_block();
        atomicExch(&words[1], 1u);
    } else {
        while (atomicAdd(&words[1], 0u) == 0u) {}
        __threadfence();
        y[0] = words[0];
    }
}

extern "C" __global__ void block_fence_ticket(unsigned* parts, unsigned* ticket, unsigned* y) {
    if (threadIdx.x != 0) return;
    parts[blockIdx.x] = blockIdx.x;
    asm volatile("fence.acq_rel.cta;" ::: "memory");
    if (atomicAdd(ticket, 1u) + 1 < gridDim.x) return;
    __threadfence();
    unsigned sum = 0;
    for (unsigned k = 0; k < gridDim.x; k++) sum += parts[k];
    y[0] = sum;
}

extern "C" __global__ void block_release(unsigned* words, unsigned* y) {
    if (blockIdx.x == 0) {
        words[0] = 5;
        asm volatile("fence.acq_rel.cta; st.relaxed.gpu.u32 [%0], 1;" ::"l"(words + 1) : "memory");
    } else {
        unsigned seen;
        do asm volatile("ld.acquire.gpu.u32 %0, [%1];" : "=r"(seen) : "l"(words + 1) : "memory");
        while (seen == 0);
        y[0] = words[0];
    }
}

extern "C" __global__ void shared_relay(unsigned* words, unsigned* y) {
    // What came by shared memory is passed on to another block behind a fence of the own one.
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
            __threadfence_block();
            atomicExch(&words[1], 1u);
        }
    } else if (t == 0) {
        while (atomicAdd(&words[1], 0u) == 0u) {}
        __threadfence();
        y[0] = words[0];
    }
}
