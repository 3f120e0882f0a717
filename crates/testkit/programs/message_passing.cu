// Blocks and warps hand data on by releases and acquires of the standard library's atomics.
//@ run message_passing: blocks grid=2 block=64
//@   inout word: u32[1] zero raw
//@   inout data: u32[64] zero raw
//@   out got: u32[64] raw
//@ run message_passing: warps grid=1 block=64
//@   inout word: u32[1] zero raw
//@   inout data: u32[64] zero raw
//@   out got: u32[64] raw

#include <cuda/atomic>

extern "C" __global__ void blocks(unsigned* word, unsigned* data, unsigned* got) {
    cuda::atomic_ref<unsigned, cuda::thread_scope_device> flag(*word);
    unsigned t = threadIdx.x;
    if (blockIdx.x == 0) {
        data[t] = t + 1;
        __syncthreads();
        if (t == 0) flag.store(1, cuda::memory_order_release);
    } else {
        while (flag.load(cuda::memory_order_acquire) == 0) {}
        got[t] = data[63 - t];
    }
}

extern "C" __global__ void warps(unsigned* word, unsigned* data, unsigned* got) {
    cuda::atomic_ref<unsigned, cuda::thread_scope_block> flag(*word);
    unsigned t = threadIdx.x;
    if (t < 32) {
        data[t] = t + 1;
        __syncwarp();
        if (t == 0) flag.fetch_add(1, cuda::memory_order_release);
    } else {
        while (flag.load(cuda::memory_order_acquire) == 0) {}
        got[t] = data[63 - t];
    }
}
