// The last block that is done sums what all have left behind; a lock guards a list of those done.
//@ run last_block: total grid=6 block=96
//@   inout parts: u32[576] zero raw
//@   inout ticket: u32[1] zero raw
//@   inout sum: u32[1] zero raw
//@   inout lock: u32[2] zero raw

extern "C" __global__ void total(unsigned* parts, unsigned* ticket, unsigned* sum, unsigned* lock) {
    __shared__ bool last;
    unsigned i = blockIdx.x * blockDim.x + threadIdx.x;
    parts[i] = i;
    __threadfence();
    __syncthreads();
    if (threadIdx.x == 0) {
        last = atomicAdd(ticket, 1u) == gridDim.x - 1;
        while (atomicCAS(lock, 0u, 1u) != 0u) {}
        __threadfence();
        lock[1] += blockIdx.x;
        __threadfence();
        atomicExch(lock, 0u);
    }
    __syncthreads();
    if (!last) return;
    unsigned mine = 0;
    for (unsigned k = threadIdx.x; k < gridDim.x * blockDim.x; k += blockDim.x) mine += parts[k];
    for (unsigned d = 16; d > 0; d /= 2) mine += __shfl_down_sync(0xffffffffu, mine, d);
    if (threadIdx.x % 32 == 0) atomicAdd(sum, mine);
}
