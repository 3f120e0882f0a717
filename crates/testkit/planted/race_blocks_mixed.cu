// One block adds atomically, the other stores plainly.
//@ run race_blocks_mixed: publish grid=2 block=32
//@   inout value: u32[1] zero raw

extern "C" __global__ void publish(unsigned* value) {
    if (threadIdx.x != 0) return;
    if (blockIdx.x == 0)
        atomicAdd(value, 1u);
    else
        *value = 5;
}
